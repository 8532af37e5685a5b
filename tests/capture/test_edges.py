"""What stands at the edge of a call: addresses, keys, endings, and bodies that come late."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from explorer.capture.answers import Answers
from explorer.capture.desk import LiveRollout
from explorer.capture.exchange import Exchange
from explorer.capture.lineage import Lineage
from explorer.capture.retries import Answer, Attempt, evidence_in
from explorer.engine.protocol import EngineReply
from explorer.engine.reply import parse_reply
from explorer.engine.scripted import ScriptedEngine
from explorer.records import CaptureLevel, RolloutId
from explorer.wire import chat
from explorer.wire.protocol import PLAIN
from explorer.wire.routes import find_route
from tests.capture.playbook import ROLLOUT, TIME, answered, make_exchange, received
from tests.live import Live, serving

ASK = {"messages": [{"role": "user", "content": "hi"}]}
GOOGLE = {"contents": [{"parts": [{"text": "hi"}]}]}
STREAM = "text/event-stream; charset=utf-8"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("edges") / "store.duckdb"
    with serving(ScriptedEngine([{"when": {"contains": ""}, "text": "ok"}]), store) as running:
        yield running


def post(live: Live, path: str, key: str, body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(live.url + path, json=body, headers=headers, timeout=30)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/k/{key}/v1/chat/completions",
        "/k/{key}/k/{key}/v1/chat/completions",
        "/v1/K/{key}/chat/completions",
        "/v1beta/{key}",
    ],
)
def test_a_key_at_a_wrong_place_of_the_address_is_not_recorded(live: Live, path: str) -> None:
    rollout, key = live.create()
    answer = post(live, path.format(key=key), key, ASK)
    assert answer.status_code == 404
    assert key not in answer.text
    (call,) = live.calls(rollout)
    assert "rxk_" in call["failure_detail"]
    assert key not in json.dumps(call)


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", ASK | {"stream": True}, STREAM),
        ("/v1/completions", {"prompt": "hi", "stream": True}, STREAM),
        ("/v1/responses", {"input": "hi", "stream": True}, STREAM),
        ("/v1/messages", ASK | {"stream": True, "max_tokens": 9}, STREAM),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", GOOGLE, STREAM),
        ("/v1beta/models/m:streamGenerateContent", GOOGLE, "application/json"),
    ],
)
def test_the_closing_turn_of_a_stream_is_a_stream(
    live: Live, path: str, body: dict[str, Any], kind: str
) -> None:
    _, key = live.create(budgets={"calls": 1, "on_spent": "final_turn"})
    assert post(live, path, key, body).headers["content-type"] == kind
    last = post(live, path, key, body)
    assert last.status_code == 200
    assert last.headers["content-type"] == kind
    assert "budget of this session is spent" in last.text


def test_a_models_name_may_hold_slashes(live: Live) -> None:
    rollout, key = live.create()
    for name in ("org/name", "org%2Fname", "models/org/name"):
        asked = post(live, f"/v1beta/models/{name}:generateContent", key, GOOGLE)
        assert asked.status_code == 200, asked.text
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    assert {call.model_requested for call in record.calls} == {"org/name"}
    answer = httpx.get(live.url + "/v1/models/org/name")
    assert answer.json()["id"] == "org/name"


@pytest.mark.parametrize(
    "path",
    ["/V1/Chat/Completions", "/v1//chat/completions", "/v1/v1/chat/completions/"],
)
def test_base_addresses_may_end_in_a_slash(live: Live, path: str) -> None:
    _, key = live.create()
    assert post(live, path, key, ASK).status_code == 200


def test_a_route_is_none_without_a_model() -> None:
    assert find_route("POST", "/v1beta/models/:generateContent") is None
    assert find_route("POST", "/v1beta/models/a:b:generateContent") is None


def slow_call(live: Live, key: str) -> tuple[socket.socket, bytes]:
    """A connection whose request lacks the last byte of its body, and that byte."""
    body = orjson.dumps(ASK)
    host, port = live.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body[:-1])
    time.sleep(0.3)
    return connection, body[-1:]


def test_a_body_that_comes_after_the_close_makes_no_call(live: Live) -> None:
    rollout, key = live.create()
    connection, rest = slow_call(live, key)
    with connection:
        live.api("POST", f"/api/v1/rollouts/{rollout}/close", {})
        connection.sendall(rest)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400")
    assert live.calls(rollout) == []


def test_a_body_that_comes_while_the_server_stops_makes_no_call(tmp_path: Path) -> None:
    answers: list[bytes] = []
    with serving(ScriptedEngine([{"text": "ok"}]), tmp_path / "s.duckdb") as one:
        rollout, key = one.create()
        connection, rest = slow_call(one, key)

        def finish() -> None:
            time.sleep(0.5)
            connection.sendall(rest)
            answers.append(connection.recv(65536))

        last = threading.Thread(target=finish)
        last.start()
    last.join()
    connection.close()
    assert answers[0].startswith(b"HTTP/1.1 429")
    with serving(ScriptedEngine([{"text": "ok"}]), tmp_path / "s.duckdb") as again:
        assert again.calls(rollout) == []


def attempt(name: str, live: LiveRollout, size: int) -> Attempt:
    loop = asyncio.new_event_loop()
    made = Attempt(name, None, 0, b"", "/", TIME, loop.create_future())  # type: ignore[arg-type]
    live.retries.open(made)
    live.retries.close(made, Answer(200, (), b"x" * size))
    loop.close()
    return made


def test_what_a_rollout_keeps_for_later_calls_is_counted_and_ends_with_it() -> None:
    rollout = LiveRollout(ROLLOUT, Lineage())
    attempt("a", rollout, 1000)
    rollout.remember({"call_1": "y" * 500})
    assert rollout.size_bytes == 1500
    rollout.seal()
    assert rollout.size_bytes == 0
    assert rollout.sampled_arguments == {}
    # A call that was still in flight ends after the close.
    late = attempt("b", rollout, 10)
    assert late.answer.done()


def test_two_very_long_idempotency_keys_are_two() -> None:
    one, other = (evidence_in((("idempotency-key", "k" * 300 + end),)) for end in ("a", "b"))
    assert one is not None
    assert other is not None
    assert one.key != other.key
    assert len(one.key or "") <= 256


def test_a_header_of_the_engine_that_cannot_be_sent_stays_behind() -> None:
    body = b'{"error": {"message": "busy"}}'
    for value in ("€", "1\r\nx: y", "\udc80"):
        reply = EngineReply(429, (("retry-after", value), ("retry-after-ms", "5")), body)
        answer = Answers(chat, PLAIN, "id").upstream(reply, parse_reply(429, body))
        assert [pair for pair in answer.headers if "retry-after" in pair[0]] == [
            ("retry-after-ms", "5")
        ]


def test_a_call_at_the_text_level_is_one_whatever_came_back() -> None:
    """Its truncation was not made neutral, so its ids must not train by anybody's leave."""
    exchange: Exchange = make_exchange(level=CaptureLevel.TEXT)
    exchange.handle(received(top_p=0.5, return_token_ids=True, logprobs=True))
    exchange.handle(answered())
    assert exchange.call is not None
    assert exchange.call.submitted_sampling["top_p"] == 0.5
    assert exchange.call.capture_level is CaptureLevel.TEXT


def test_one_missing_reply_ends_the_search_for_thousands(live: Live) -> None:
    """Each is looked for in the store, so a request could keep it busy for minutes."""
    _, key = live.create()
    items = [
        {"type": "item_reference", "id": f"msg_00000000-0000-7000-8000-{place:012x}"}
        for place in range(20_000)
    ]
    began = time.monotonic()
    answer = post(live, "/v1/responses", key, {"input": items})
    assert answer.status_code == 400
    assert "not found" in answer.json()["error"]["message"]
    assert time.monotonic() - began < 5

"""The proxy over real sockets: what harnesses see, and what is recorded."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import orjson
import pytest

from explorer.engine.scripted import ScriptedEngine
from explorer.trace.verify import verify
from tests.live import Live, serving

SCRIPT: list[dict[str, Any]] = [
    {
        "when": {"contains": "tool please"},
        "tool_calls": [{"name": "look", "arguments": {"q": 1}}],
    },
    {"when": {"contains": "slow please"}, "text": "late", "delay_ms": 700},
    {"when": {"contains": "hang please"}, "fault": "hang"},
    {"when": {"contains": "dead please"}, "fault": "unreachable"},
    {"when": {"contains": "html please"}, "fault": "not_json"},
    {"when": {"contains": "limit please"}, "status": 429},
    {"when": {"contains": "no ids please"}, "text": "hi", "fault": "no_ids"},
    {"when": {"contains": "names please"}, "text": "hi", "fault": "placeholder_ids"},
    {
        "when": {"contains": "null please"},
        "text": "a",
        "token_ids": [5, 6],
        "logprobs": [-0.1, None],
    },
    {"when": {"contains": ""}, "text": "Hello 🦊 there.", "reasoning": "\nI greet.\n"},
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("proxy") / "store.duckdb"
    options = {"status_hold_s": 0.2, "keepalive_s": 0.1, "max_body_bytes": 2_000_000}
    with serving(ScriptedEngine(SCRIPT), store, **options) as running:
        yield running


def say(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_the_real_openai_client_works_unary_and_streamed(live: Live) -> None:
    rollout, key = live.create(run="sdk")
    client = openai.OpenAI(base_url=f"{live.url}/k/{key}/v1", api_key="unused", max_retries=0)
    with client:
        models = [model.id for model in client.models.list()]
        assert models == ["scripted"]
        messages: Any = [{"role": "user", "content": "hi"}]
        unary = client.chat.completions.create(model="m", messages=messages)
        assert unary.choices[0].message.content == "Hello 🦊 there."
        chunks = list(
            client.chat.completions.create(
                model="m",
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello 🦊 there."
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == unary.usage.prompt_tokens  # type: ignore[union-attr]
    calls = live.calls(rollout)
    assert [call["response_id"] for call in calls] == [unary.id, chunks[0].id]
    assert all(call["status"] == "committed" for call in calls)


def test_sse_18_the_reply_form_follows_the_request(live: Live) -> None:
    _, key = live.create()
    plain = live.chat(key, **say("x"))
    streamed = live.chat(key, **say("x"), stream=True)
    assert plain.headers["content-type"] == "application/json"
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")


def test_tool_calls_come_back_whole(live: Live) -> None:
    _, key = live.create()
    body = live.chat(
        key, **say("tool please"), tools=[{"type": "function", "function": {"name": "look"}}]
    ).json()
    (call,) = body["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look"
    assert body["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("dead please", 502, "upstream_unreachable"),
        ("html please", 502, "upstream_malformed"),
        ("limit please", 429, "upstream_status"),
    ],
)
def test_failures_are_shown_and_recorded(live: Live, text: str, status: int, kind: str) -> None:
    rollout, key = live.create()
    response = live.chat(key, **say(text))
    assert response.status_code == status
    assert response.json()["error"]["message"]
    (call,) = live.calls(rollout)
    assert (call["status"], call["failure_kind"]) == ("failed", kind)


def test_a_slow_stream_is_kept_alive_by_comments(live: Live) -> None:
    _, key = live.create()
    response = live.chat(key, **say("slow please"), stream=True)
    assert response.status_code == 200
    assert response.text.startswith(": keep-alive\n\n")
    assert response.text.count(": keep-alive") >= 3
    assert "late" in response.text


def test_dis_01_a_client_that_leaves_is_recorded_and_the_engine_freed(live: Live) -> None:
    rollout, key = live.create()
    engine: Any = live.application.engine
    before = engine.cancelled
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            live.url + "/v1/chat/completions",
            json=say("hang please"),
            headers={"authorization": f"Bearer {key}"},
            timeout=0.4,
        )
    deadline = time.time() + 5
    while not (calls := live.calls(rollout)) and time.time() < deadline:
        time.sleep(0.05)
    assert [(c["status"], c["failure_kind"]) for c in calls] == [("aborted", "client_gone")]
    assert engine.cancelled == before + 1


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "x-goog-api-key"])
def test_the_key_is_taken_from_every_usual_place(live: Live, header: str) -> None:
    _, key = live.create()
    value = f"Bearer {key}" if header == "authorization" else key
    url = live.url + "/v1/chat/completions"
    assert httpx.post(url, json=say("x"), headers={header: value}).status_code == 200
    assert httpx.post(url, json=say("x"), params={"key": key}).status_code == 200


def test_an_unknown_key_is_refused_before_the_body_is_read(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "Authorization: Bearer rxk_nobody\r\nContent-Length: 1000000\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(head.encode())
        # Not one byte of the body is sent, and the answer comes all the same.
        answer = connection.recv(4096).decode()
    assert answer.startswith("HTTP/1.1 401")
    assert "x-should-retry: false" in answer.lower()


def test_a_closed_rollout_refuses_so_that_no_sdk_retries(live: Live) -> None:
    rollout, key = live.create()
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
    seen: list[str] = []

    def count(request: httpx2.Request) -> None:
        seen.append(str(request.url))

    with (
        httpx2.Client(event_hooks={"request": [count]}) as http,
        openai.OpenAI(
            base_url=live.url + "/v1", api_key=key, max_retries=3, http_client=http
        ) as client,
        pytest.raises(openai.BadRequestError, match="closed"),
    ):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert len(seen) == 1


def test_size_01_a_large_body_is_refused_in_the_callers_shape(live: Live) -> None:
    _, key = live.create()
    response = live.chat(key, raw=b"x" * 2_000_001)
    assert response.status_code == 413
    assert "ROLLOUT_EXPLORER_MAX_BODY_BYTES" in response.json()["error"]["message"]


def test_enc_02_a_gzip_body_is_read(live: Live) -> None:
    _, key = live.create()
    raw = gzip.compress(orjson.dumps(say("x")))
    response = httpx.post(
        live.url + "/v1/chat/completions",
        content=raw,
        headers={"authorization": f"Bearer {key}", "content-encoding": "gzip"},
    )
    assert response.status_code == 200


def test_ids_missing_lower_the_level_and_placeholders_recover_it(live: Live) -> None:
    rollout, key = live.create()
    live.chat(key, **say("no ids please"))
    live.chat(key, **say("names please"))
    missing, named = live.calls(rollout)
    assert missing["capture_level"] == "logprobs"
    assert named["capture_level"] == "tokens"
    assert named["completion_len"] > 0


def test_lp_02_a_null_logprob_is_null_in_the_api(live: Live) -> None:
    rollout, key = live.create()
    live.chat(key, **say("null please"))
    (call,) = live.calls(rollout)
    detail = live.api("GET", f"/api/v1/rollouts/{rollout}/calls/{call['call_id']}")
    assert detail["per_token_logps"][1] is None
    assert detail["per_token_logps"][0] == pytest.approx(-0.1)


def test_raw_bodies_are_exact_and_hold_no_key(live: Live) -> None:
    rollout, key = live.create()
    asked = orjson.dumps(say("exact  spacing") | {"seed": 9223372036854775807})
    live.chat(key, raw=asked)
    (call,) = live.calls(rollout)
    path = f"/api/v1/rollouts/{rollout}/raw/{call['call_id']}"
    got = httpx.get(
        f"{live.url}{path}?kind=request", headers={"authorization": f"Bearer {live.token}"}
    )
    assert got.content == asked
    for body in live.store.bodies(call["call_id"]):
        assert key.encode() not in body.data
        assert key not in repr(body.headers)


def test_the_key_is_stored_only_as_a_hash(live: Live, tmp_path: Path) -> None:
    _, key = live.create(metadata={"note": "kept"})
    copy = tmp_path / "copy.duckdb"
    live.api("POST", "/api/v1/backup", {"target": str(copy)})
    assert key.encode() not in copy.read_bytes()


def test_con_02_a_hundred_interleaved_rollouts_do_not_mix(live: Live) -> None:
    made = [live.create(run="many", attempt=n) for n in range(100)]

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(limits=limits, timeout=60) as client:

            async def one(number: int, key: str) -> None:
                for turn in range(3):
                    response = await client.post(
                        live.url + "/v1/chat/completions",
                        json=say(f"rollout {number} turn {turn}"),
                        headers={"x-api-key": key},
                    )
                    assert response.status_code == 200

            await asyncio.gather(*(one(n, key) for n, (_, key) in enumerate(made)))

    asyncio.run(all_of_them())
    for number, (rollout, _) in enumerate(made):
        calls = live.calls(rollout)
        assert [call["sequence"] for call in calls] == [0, 1, 2]
        for call in calls:
            request = live.store.bodies(call["call_id"])[0]
            assert f"rollout {number} turn".encode() in request.data


def test_other_wire_paths_say_what_is_spoken(live: Live) -> None:
    response = httpx.get(live.url + "/v1/embeddings")
    assert response.status_code == 404
    assert "/v1/chat/completions" in response.json()["error"]["message"]


@pytest.mark.parametrize("depth", [90, 120, 240])
def test_what_is_recorded_of_a_deep_request_can_be_verified(live: Live, depth: int) -> None:
    """Readers of JSON go 200 levels deep: a deeper sampling field is refused, not recorded."""
    rollout, key = live.create(run="deep")
    deep = orjson.loads(b"[" * depth + b"1" + b"]" * depth)
    answer = live.chat(key, response_format=deep)
    assert answer.status_code == (200 if depth < 100 else 400), answer.text
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
    token = {"authorization": f"Bearer {live.token}"}
    audit = httpx.get(f"{live.url}/api/v1/rollouts/{rollout}/capture-audit", headers=token)
    assert verify(audit.content).ok

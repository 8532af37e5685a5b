"""Retries join only on evidence; strays, claims and context overflow through the proxy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from explorer.capture.retries import canonical_digest
from explorer.engine.scripted import ScriptedEngine
from tests.live import Live, serving

SCRIPT: list[dict[str, Any]] = [
    {"when": {"contains": "slow please"}, "text": "late", "delay_ms": 500},
    {"when": {"contains": "fail once"}, "status": 500, "once": True},
    {"when": {"contains": "fail twice"}, "status": 500, "once": True},
    {
        "when": {"contains": "too long"},
        "status": 400,
        "body": {
            "error": {
                "message": "This model's maximum context length is 1024 tokens. However, you "
                "requested 2000 tokens in the messages, Please reduce the length.",
                "type": "BadRequestError",
                "param": "input_tokens",
                "code": 400,
            }
        },
    },
    {
        "when": {"contains": "wait please"},
        "status": 429,
        "body": {"error": {"message": "busy"}},
    },
    {"when": {"contains": ""}, "text": "ok"},
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("retries") / "store.duckdb"
    with serving(ScriptedEngine(SCRIPT), store) as running:
        yield running


def post(live: Live, key: str, text: str = "hi", **headers: str) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return send(live, key, orjson.dumps(body), **headers)


def send(live: Live, key: str, raw: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        live.url + "/v1/chat/completions",
        content=raw,
        headers={"authorization": f"Bearer {key}"} | named,
        timeout=30,
    )


def retry_counts(live: Live, rollout: Any) -> list[int]:
    record = live.store.record(rollout)
    assert record is not None
    return [call.retry_count for call in record.calls]


def test_ret_01_the_same_key_gets_the_same_reply(live: Live) -> None:
    rollout, key = live.create()
    first = post(live, key, idempotency_key="k1")
    second = post(live, key, idempotency_key="k1")
    assert first.content == second.content
    assert len(live.calls(rollout)) == 1
    assert retry_counts(live, rollout) == [1]


def test_ret_01_a_retry_joins_a_call_that_is_still_in_flight(live: Live) -> None:
    rollout, key = live.create()
    replies: list[httpx.Response] = []
    threads = [
        threading.Thread(
            target=lambda: replies.append(post(live, key, "slow please", idempotency_key="k"))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({reply.content for reply in replies}) == 1
    assert [reply.status_code for reply in replies] == [200] * 3
    assert len(live.calls(rollout)) == 1
    assert retry_counts(live, rollout) == [2]


def test_ret_02_without_evidence_two_samples_are_two_calls(live: Live) -> None:
    rollout, key = live.create()
    post(live, key, idempotency_key="a")
    post(live, key, idempotency_key="b")
    post(live, key)
    post(live, key)
    post(live, key, x_stainless_retry_count="0")
    post(live, key, x_stainless_retry_count="0")
    assert len(live.calls(rollout)) == 6


def test_an_sdk_counter_and_the_same_json_join_whatever_the_key_order(live: Live) -> None:
    rollout, key = live.create()
    one = b'{"model":"m","messages":[{"role":"user","content":"x"}],"user":"u"}'
    other = b'{ "user":"u", "messages":[{"content":"x","role":"user"}],"model":"m" }'
    assert canonical_digest(one) == canonical_digest(other)
    first = send(live, key, one, x_stainless_retry_count="0")
    again = send(live, key, other, x_stainless_retry_count="1")
    assert first.content == again.content
    changed = send(live, key, other.replace(b'"u"', b'"v"'), x_stainless_retry_count="1")
    assert changed.content != first.content
    assert len(live.calls(rollout)) == 2


def test_a_retry_after_two_equal_requests_is_nobodys(live: Live) -> None:
    rollout, key = live.create()
    post(live, key, x_stainless_retry_count="0")
    post(live, key, x_stainless_retry_count="0")
    post(live, key, x_stainless_retry_count="1")
    assert len(live.calls(rollout)) == 3


def test_a_second_retry_joins_what_the_first_one_joined_or_made(live: Live) -> None:
    rollout, key = live.create()
    first = post(live, key, "one", x_stainless_retry_count="0")
    assert post(live, key, "one", x_stainless_retry_count="1").content == first.content
    assert post(live, key, "one", x_stainless_retry_count="2").content == first.content
    assert retry_counts(live, rollout) == [2]
    assert post(live, key, "fail twice", x_stainless_retry_count="0").status_code == 500
    made = post(live, key, "fail twice", x_stainless_retry_count="1")
    again = post(live, key, "fail twice", x_stainless_retry_count="2")
    assert made.status_code == 200
    assert again.content == made.content
    assert len(live.calls(rollout)) == 3


def test_a_retry_of_a_failed_call_is_made(live: Live) -> None:
    rollout, key = live.create()
    assert post(live, key, "fail once", idempotency_key="k").status_code == 500
    assert post(live, key, "fail once", idempotency_key="k").status_code == 200
    assert [call["status"] for call in live.calls(rollout)] == ["failed", "committed"]


def test_a_reused_key_with_another_body_is_refused(live: Live) -> None:
    rollout, key = live.create()
    post(live, key, "one", idempotency_key="k")
    refused = post(live, key, "two", idempotency_key="k")
    assert refused.status_code == 400
    assert refused.headers["x-should-retry"] == "false"
    assert "idempotency key" in refused.json()["error"]["message"]
    assert len(live.calls(rollout)) == 1


def test_an_overflow_is_worded_as_each_wires_clients_know_it(live: Live) -> None:
    _, key = live.create()
    chat = post(live, key, "too long")
    assert chat.status_code == 400
    assert chat.json()["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 1024" in chat.json()["error"]["message"]
    messages = httpx.post(
        live.url + "/v1/messages?beta=true",
        json={"max_tokens": 5, "messages": [{"role": "user", "content": "too long"}]},
        headers={"x-api-key": key},
    )
    assert messages.status_code == 400
    told = messages.json()["error"]
    assert told["type"] == "invalid_request_error"
    assert told["message"].startswith("prompt is too long: 2000 tokens > 1024 maximum")
    google = httpx.post(
        live.url + "/v1beta/models/m:generateContent",
        json={"contents": [{"role": "user", "parts": [{"text": "too long"}]}]},
        headers={"x-goog-api-key": key},
    )
    assert google.json()["error"]["status"] == "INVALID_ARGUMENT"
    assert "exceeds the maximum number of tokens" in google.json()["error"]["message"]


def test_a_context_budget_is_an_overflow_before_the_engine_is_asked(live: Live) -> None:
    rollout, key = live.create(budgets={"context_tokens": 40})
    assert post(live, key, "hi").status_code == 200
    refused = post(live, key, "many words " * 60)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert [call["failure_kind"] for call in live.calls(rollout)] == [None, "context"]
    assert post(live, key, "short again").status_code == 200


def test_an_engines_429_keeps_its_status_and_is_not_final(live: Live) -> None:
    _, key = live.create()
    busy = post(live, key, "wait please")
    assert busy.status_code == 429
    assert "x-should-retry" not in busy.headers


def test_dia_05_a_websocket_is_told_what_to_do(live: Live) -> None:
    rollout, key = live.create()
    answer = httpx.get(
        live.url + "/v1/responses",
        headers={
            "authorization": f"Bearer {key}",
            "upgrade": "websocket",
            "connection": "Upgrade",
            "sec-websocket-version": "13",
            "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        },
    )
    assert answer.status_code == 426
    assert "no websockets" in answer.json()["error"]["message"]
    (call,) = live.calls(rollout)
    assert (call["status"], call["failure_kind"]) == ("refused", "unsupported")


def test_dia_10_paths_match_whatever_their_case_and_strays_are_listed(live: Live) -> None:
    rollout, key = live.create()
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    for path in (
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        "/v1beta/models/m:STREAMgeneratecontent?alt=sse",
        "/V1BETA/Models/m:generateContent",
    ):
        answer = httpx.post(live.url + f"/k/{key}" + path, json=body)
        assert answer.status_code == 200, path
    stray = httpx.post(
        live.url + "/v1/embeddings", json={}, headers={"authorization": f"Bearer {key}"}
    )
    assert stray.status_code == 404
    assert "POST /v1/embeddings is not a wire route" in stray.json()["error"]["message"]
    calls = live.calls(rollout)
    assert [call["status"] for call in calls] == ["committed"] * 3 + ["refused"]
    assert calls[-1]["failure_kind"] == "unsupported"


@pytest.mark.parametrize("path", ["/", "/v1", "/api/hello", "/v1/models", "/v1/models/gpt-4o"])
def test_looking_around_is_harmless(live: Live, path: str) -> None:
    rollout, key = live.create()
    assert httpx.head(live.url + f"/k/{key}" + path).status_code == 200
    assert httpx.get(live.url + f"/k/{key}" + path).status_code in (200, 404)
    assert live.calls(rollout) == []


def test_dia_07_dia_08_claims_are_kept_and_decide_nothing(live: Live) -> None:
    rollout, key = live.create()
    other, _ = live.create()
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "metadata": {"user_id": '{"session_id":"claude-session","account":"x"}'},
        "prompt_cache_key": "p" * 1000,
    }
    turn = '{"request_kind":"compaction","thread_source":"user","cwd":"/home/me"}'
    send(
        live,
        key,
        orjson.dumps(body),
        x_session_id="sub-7",
        x_parent_session_id="main",
        x_codex_turn_metadata=turn,
    )
    record = live.store.record(rollout)  # type: ignore[arg-type]
    assert record is not None
    claims = record.calls[0].claims
    assert claims["x-session-id"] == "sub-7"
    assert claims["x-parent-session-id"] == "main"
    assert claims["session_id"] == "claude-session"
    assert claims["request_kind"] == "compaction"
    assert claims["prompt_cache_key"] == "p" * 256
    assert "cwd" not in claims
    assert live.calls(other) == []

"""Reported cases that need the whole server: load, odd content, failures in mid-rollout."""

from __future__ import annotations

import asyncio
import html
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from explorer.engine.scripted import ScriptedEngine
from explorer.records import LogprobKind, RolloutId
from tests.live import Live, serving

CUT_ARGUMENTS = '{"q": "unterminated'
WARMING = {"error": {"message": "worker lost", "code": 500}}
SCRIPT: list[dict[str, Any]] = [
    {  # with its ids given, so that the engine itself takes no time
        "when": {"contains": "slow please"},
        "text": "late",
        "delay_ms": 3000,
        "prompt_token_ids": [1],
        "token_ids": [2],
    },
    {"when": {"contains": "late error"}, "status": 500, "body": WARMING, "delay_ms": 500},
    {"when": {"contains": "bad arguments"}, "status": 400, "body": WARMING},
    {
        "when": {"contains": "unterminated please"},
        "tool_calls": [{"name": "look", "arguments": CUT_ARGUMENTS}],
    },
    {"when": {"contains": "nul please"}, "text": "a\0b"},
    {"when": {"contains": ""}, "text": "fine"},
]
IN_FLIGHT = 400


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("cases") / "store.duckdb"
    options = {"status_hold_s": 0.1, "keepalive_s": 0.1, "max_in_flight": IN_FLIGHT}
    with serving(ScriptedEngine(SCRIPT), store, **options) as running:
        yield running


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_con_03_many_slow_calls_are_bounded_and_health_stays_quick(live: Live) -> None:
    rollout, key = live.create()
    big = orjson.dumps({"messages": [said("x" * 200_000), said("slow please")]})
    headers = {"x-api-key": key}
    url = live.url + "/v1/chat/completions"

    async def work() -> tuple[list[httpx.Response], httpx.Response, list[float]]:
        limits = httpx.Limits(max_connections=IN_FLIGHT + 10)
        async with httpx.AsyncClient(limits=limits, timeout=60) as client:
            calls = [
                asyncio.create_task(client.post(url, content=big, headers=headers))
                for _ in range(IN_FLIGHT)
            ]
            while live.application.proxy.in_flight < IN_FLIGHT:
                assert not any(call.done() for call in calls)
                await asyncio.sleep(0.05)
            refused = await client.post(url, content=big, headers=headers)
            times = []
            for _ in range(5):
                began = time.perf_counter()
                assert (await client.get(live.url + "/healthz")).status_code == 200
                times.append(time.perf_counter() - began)
            return list(await asyncio.gather(*calls)), refused, times

    began = time.perf_counter()
    replies, refused, times = asyncio.run(work())
    print(f"{time.perf_counter() - began:.1f} s, health {[f'{t * 1e3:.1f}' for t in times]} ms")
    assert {reply.status_code for reply in replies} == {200}
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert "ROLLOUT_EXPLORER_MAX_IN_FLIGHT" in refused.json()["error"]["message"]
    assert min(times) < 0.1
    assert len(live.calls(rollout)) == IN_FLIGHT


def test_con_03_bodies_that_are_still_coming_count(tmp_path: Any) -> None:
    with serving(ScriptedEngine(SCRIPT), tmp_path / "s.duckdb", max_in_flight=1) as one:
        _, key = one.create()
        host, port = one.url.removeprefix("http://").split(":")
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {key}\r\nContent-Length: 100\r\n\r\n{{"
        )
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(head.encode())
            time.sleep(0.3)
            assert one.chat(key).status_code == 429
        deadline = time.monotonic() + 5
        while one.chat(key).status_code != 200:  # once the slow one is gone
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_tool_07_arguments_are_repaired_neither_way(live: Live) -> None:
    rollout, key = live.create()
    first = live.chat(key, messages=[said("unterminated please")]).json()
    message = first["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == CUT_ARGUMENTS
    second = live.chat(
        key, messages=[said("unterminated please"), message, said("bad arguments")]
    )
    assert (second.status_code, second.json()) == (400, WARMING)
    one, two = live.calls(rollout)
    assert (one["status"], two["status"]) == ("committed", "failed")
    assert (two["failure_kind"], two["upstream_status"]) == ("upstream_status", 400)
    bodies = {body.kind.value: body.data for body in live.store.bodies(two["call_id"])}
    assert orjson.loads(bodies["reply"]) == WARMING
    for kind in ("request", "submitted"):
        sent = orjson.loads(bodies[kind])["messages"][1]
        assert sent["tool_calls"][0]["function"]["arguments"] == CUT_ARGUMENTS


def test_sse_15_a_failure_in_mid_stream_is_an_error_event(live: Live) -> None:
    rollout, key = live.create()
    response = live.chat(key, messages=[said("late error")], stream=True)
    assert response.status_code == 200  # the status line was held back as long as told
    events = [line for line in response.text.splitlines() if line.startswith("data:")]
    told = json.loads(events[-2].removeprefix("data:"))["error"]["message"]
    assert told == "500 service overloaded, try again: worker lost"
    assert events[-1] == "data: [DONE]"
    (call,) = live.calls(rollout)
    assert (call["status"], call["upstream_status"]) == ("failed", 500)


def test_uni_02_nul_is_stored_among_nine_ordinary_calls(live: Live) -> None:
    rollout, key = live.create()
    raw = b'{"messages":[{"role":"user","content":"a\\u0000b nul please"}]}'
    reply = live.chat(key, raw=raw)
    assert reply.json()["choices"][0]["message"]["content"] == "a\0b"
    for _ in range(9):
        assert live.chat(key).status_code == 200
    calls = live.calls(rollout)
    assert [call["status"] for call in calls] == ["committed"] * 10
    assert live.store.bodies(calls[0]["call_id"])[0].data == raw
    for tab in ("conversation", "tokens", "requests", "findings"):
        assert httpx.get(f"{live.url}/rollouts/{rollout}/{tab}").status_code == 200


def test_uni_03_a_body_that_is_no_unicode_is_refused_and_kept(live: Live) -> None:
    rollout, key = live.create()
    raw = b'{"messages":[{"role":"tool","content":"\xff\xfe\x00"}]}'
    refused = live.chat(key, raw=raw)
    assert refused.status_code == 400
    spelled = b'{"messages":[{"role":"tool","content":"\\udcff\\udcfe\\u0000"}]}'
    live.chat(key, raw=spelled)
    for call, body in zip(live.calls(rollout), (raw, spelled), strict=True):
        assert live.store.bodies(call["call_id"])[0].data == body
        page = httpx.get(f"{live.url}/rollouts/{rollout}/requests/{call['call_id']}")
        assert page.status_code == 200
        page.content.decode()
    audit = live.api("GET", f"/api/v1/rollouts/{rollout}/capture-audit")
    assert len(audit["calls"]) == 2


def test_lp_05_a_call_keeps_the_sampling_that_was_really_sent(live: Live) -> None:
    rollout, key = live.create()
    live.chat(key, temperature=0.7)
    (call,) = live.calls(rollout)
    assert call["requested_sampling"] == {"temperature": 0.7}
    bodies = {body.kind.value: body.data for body in live.store.bodies(call["call_id"])}
    sent = orjson.loads(bodies["submitted"])
    assert sent["temperature"] == 0.7
    assert {name: sent[name] for name in call["submitted_sampling"]} == (
        call["submitted_sampling"]
    )
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    (certificate,) = {found.certificate_id: found for found in record.certificates}.values()
    assert record.calls[0].certificate_id == certificate.certificate_id
    # The engine never said what its logprobs are, so nothing calls them processed.
    assert certificate.logprob_kind is LogprobKind.UNKNOWN


def test_size_01_thirty_megabytes_are_taken_by_default(live: Live) -> None:
    rollout, key = live.create()
    raw = orjson.dumps({"messages": [said("x" * 30_000_000), said("slow please")]})
    assert live.chat(key, raw=raw).status_code == 200
    (call,) = live.calls(rollout)
    assert live.store.bodies(call["call_id"])[0].data == raw


def test_tok_18_a_set_up_without_ids_is_said_before_the_first_rollout(tmp_path: Any) -> None:
    script = [{"when": {"contains": ""}, "text": "ok", "fault": "no_ids"}]
    with serving(ScriptedEngine(script), tmp_path / "s.duckdb") as without:
        shown = without.api("GET", "/api/v1/engine")
        assert shown["passing"] is False
        assert shown["certificate"]["capture_level"] == "logprobs"
        reasons = shown["certificate"]["failures"]
        for path in ("/", "/engine"):
            page = html.unescape(httpx.get(without.url + path).text)
            assert all(reason in page for reason in reasons)
            assert "Not certified, so its calls do not count as trainable." in page


def test_sse_16_headers_of_the_engine_stay_behind_and_ours_are_single(live: Live) -> None:
    _, key = live.create()
    for stream in (False, True):
        names = [name for name, _ in live.chat(key, stream=stream).headers.multi_items()]
        assert sorted(names) == sorted(set(names))
        assert "connection" not in names

"""Small inputs from public bug reports, through the running proxy; named after their ids."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from explorer.engine.scripted import ScriptedEngine
from explorer.records import CallStatus, FailureKind, RolloutId
from explorer.trace.policy import DEFAULT_POLICY
from explorer.trace.verdict import judge
from tests.live import Live, serving

SCRIPT: list[dict[str, Any]] = [
    {"when": {"contains": "bad gateway"}, "status": 502, "delay_ms": 300, "once": True},
    {"when": {"contains": "not allowed"}, "status": 400},
    {"when": {"contains": "slow please"}, "text": "late", "delay_ms": 900},
    {"when": {"contains": "slow failure"}, "status": 500, "delay_ms": 900},
    {"when": {"contains": "a picture"}, "text": "seen", "prompt_token_ids": [1, 2, 3]},
    {"when": {"contains": ""}, "text": "ok"},
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("cases") / "store.duckdb"
    with serving(ScriptedEngine(SCRIPT), store) as running:
        yield running


def said(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def codes(live: Live, rollout: str) -> list[str]:
    found = live.api("GET", f"/api/v1/rollouts/{rollout}/findings")["findings"]
    return [finding["code"] for finding in found]


def test_dia_09_an_empty_manifest_is_dropped_and_the_change_is_recorded(live: Live) -> None:
    rollout, key = live.create()
    assert live.chat(key, messages=said("hi"), tools=[]).status_code == 200
    (call,) = live.calls(rollout)
    raw = httpx.get(
        f"{live.url}/api/v1/rollouts/{rollout}/raw/{call['call_id']}?kind=submitted",
        headers={"authorization": f"Bearer {live.token}"},
    ).json()
    assert "tools" not in raw
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    assert "empty_tools_dropped" in [note.code for note in record.calls[0].notes]


def test_dia_09_a_rollout_that_ends_on_an_error_says_so(live: Live) -> None:
    rollout, key = live.create()
    live.chat(key, messages=said("hi"))
    assert "ended_on_failure" not in codes(live, rollout)
    assert live.chat(key, messages=said("not allowed")).status_code == 400
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {})
    assert {"ended_on_failure", "call_failed"} <= set(codes(live, rollout))


def test_ret_03_the_proxy_never_tries_again_by_itself(live: Live) -> None:
    rollout, key = live.create()
    assert live.chat(key, messages=said("bad gateway")).status_code == 502
    # A second attempt at the engine would have been answered well.
    assert [call["status"] for call in live.calls(rollout)] == ["failed"]
    assert live.chat(key, messages=said("bad gateway")).status_code == 200
    assert [call["status"] for call in live.calls(rollout)] == ["failed", "committed"]


def test_bud_01_a_fourth_call_never_reaches_the_engine(live: Live) -> None:
    rollout, key = live.create(budgets={"calls": 3})
    statuses = [live.chat(key, messages=said("hi")).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 400]
    calls = live.calls(rollout)
    assert [call["status"] for call in calls] == ["committed"] * 3 + ["refused"]
    assert calls[3]["failure_kind"] == "budget"
    assert "calls_refused" in codes(live, rollout)


@pytest.mark.parametrize("stream", [False, True])
def test_wall_time_cuts_a_call_and_says_that_it_did(live: Live, stream: bool) -> None:
    rollout, key = live.create(budgets={"wall_s": 0.4})
    answer = live.chat(key, messages=said("slow please"), stream=stream)
    assert answer.status_code == 400
    assert answer.headers["x-should-retry"] == "false"
    assert "0.4 seconds of wall time" in answer.json()["error"]["message"]
    (call,) = live.calls(rollout)
    assert (call["status"], call["failure_kind"]) == ("failed", "budget")


def test_a_final_turn_is_on_record_as_it_was_written(live: Live) -> None:
    rollout, key = live.create(budgets={"calls": 1, "on_spent": "final_turn"})
    live.chat(key, messages=said("hi"))
    live.chat(key, messages=said("more"), stream=True)
    refused = live.calls(rollout)[1]
    assert refused["stream"] is True
    raw = httpx.get(
        f"{live.url}/api/v1/rollouts/{rollout}/raw/{refused['call_id']}?kind=reply",
        headers={"authorization": f"Bearer {live.token}"},
    )
    assert "budget of this session is spent" in raw.text


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions"])
def test_a_base_address_with_another_number_of_v1_is_understood(live: Live, path: str) -> None:
    rollout, key = live.create()
    for prefix, headers in ((f"/k/{key}", {}), ("", {"authorization": f"Bearer {key}"})):
        url = live.url + prefix + path
        answer = httpx.post(url, json={"messages": said("hi")}, headers=headers)
        assert answer.status_code == 200, answer.text
    assert len(live.calls(rollout)) == 2


def test_dis_03_a_client_that_leaves_at_a_round_time_is_noted(live: Live) -> None:
    rollout, key = live.create()
    with pytest.raises(httpx.TimeoutException):
        httpx.post(
            live.url + "/v1/chat/completions",
            json={"messages": said("slow please")},
            headers={"authorization": f"Bearer {key}"},
            timeout=0.3,
        )
    deadline = time.monotonic() + 10
    while not live.calls(rollout):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    (call,) = record.calls
    assert (call.status, call.failure_kind) == (CallStatus.ABORTED, FailureKind.CLIENT_GONE)

    def found(seconds: float) -> bool:
        moved = replace(call, ended_us=call.started_us + int(seconds * 1_000_000))
        judged = judge(replace(record, calls=(moved,)), DEFAULT_POLICY)
        return "edge_timeout_suspected" in [finding.code for finding in judged.findings]

    assert found(100.2)
    assert found(60.0)
    assert not found(99.0)
    assert not found(42.0)


def test_dis_03_blanks_keep_a_whole_reply_alive_only_when_asked(tmp_path: Any) -> None:
    options = {"status_hold_s": 0.1, "keepalive_s": 0.2, "unary_keepalive": True}
    with serving(ScriptedEngine(SCRIPT), tmp_path / "store.duckdb", **options) as live:
        rollout, key = live.create()
        slow = live.chat(key, messages=said("slow please"))
        assert slow.status_code == 200
        assert slow.content.startswith(b"\n\n")
        assert slow.json()["choices"][0]["message"]["content"] == "late"
        failed = live.chat(key, messages=said("slow failure"))
        assert failed.status_code == 200  # too late for another
        assert "error" in failed.json()
        quick = live.chat(key, messages=said("not allowed"))
        assert quick.status_code == 400
        assert [call["status"] for call in live.calls(rollout)] == [
            "committed",
            "failed",
            "failed",
        ]


def test_dia_04_a_picture_is_shown_by_type_and_size(live: Live) -> None:
    rollout, key = live.create()
    picture = base64.b64encode(b"\x89PNG" + bytes(3_000_000)).decode()
    url = f"data:image/png;base64,{picture}"
    parts = [
        {"type": "text", "text": "a picture"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    raw = orjson.dumps({"messages": said(parts)})
    assert live.chat(key, raw=raw).status_code == 200
    html = httpx.get(
        f"{live.url}/rollouts/{rollout}/conversation",
        headers={"authorization": f"Bearer {live.token}"},
        timeout=60,
    ).text
    assert picture[:40] not in html
    assert "[image/png, 3,000,004 bytes" in html

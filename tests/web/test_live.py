"""The live tail: positions, messages without a gap or a repeat, restarts, and its end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.engine.tiny import TinyEngine
from explorer.errors import InvalidValue
from explorer.web.live import Position, read_position
from tests.live import Live, serving


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(TinyEngine(), tmp_path_factory.mktemp("live") / "s.duckdb") as found:
        yield found


def messages(
    url: str, rollout_id: str, *, last: str = "", until: int = 0, path: str = ""
) -> Iterator[dict[str, Any]]:
    """Events of a stream; ends by itself, or after `until` of them."""
    headers = {"last-event-id": last} if last else {}
    address = f"{url}{path or f'/api/v1/rollouts/{rollout_id}/events'}"
    count = 0
    with httpx.stream("GET", address, headers=headers, timeout=30) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        found: dict[str, Any] = {}
        for line in reply.iter_lines():
            if not line and "event" in found:
                yield found
                count += 1
                found = {}
                if count == until:
                    return
            name, _, value = line.partition(": ")
            if name == "data":
                found["data"] = json.loads(value)
            elif name in ("event", "id"):
                found[name] = value


@given(st.lists(st.integers(0, 30), unique=True))
def test_a_position_names_exactly_what_was_told(order: list[int]) -> None:
    position = Position(events=3)
    for sequence in order:
        assert not position.has_call(sequence)
        position = position.with_call(sequence)
    assert {n for n in range(31) if position.has_call(n)} == set(order)
    assert read_position(str(position)) == position


@pytest.mark.parametrize(
    "text", ["", "e1", "e1.c2.", "e-1.c0", "e1.c1+", "x", "e1.c2+9999999999"]
)
def test_a_position_of_others_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="not one of ours"):
        read_position(text)


def test_everything_is_told_once_and_the_stream_ends(live: Live) -> None:
    rollout_id, key = live.create(run="live", budgets={"calls": 9})
    assert live.chat(key).status_code == 200
    told: list[dict[str, Any]] = []
    ready = threading.Event()

    def follow() -> None:
        for message in messages(live.url, rollout_id):
            told.append(message)
            if message["event"] == "state":
                ready.set()

    reader = threading.Thread(target=follow)
    reader.start()
    assert ready.wait(20)
    for _ in range(3):
        assert live.chat(key).status_code == 200
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/reward", {"reward": 0.5})
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})
    reader.join(30)
    assert not reader.is_alive()
    calls = live.calls(rollout_id)
    assert [m["data"]["call_id"] for m in told if m["event"] == "call"] == [
        call["call_id"] for call in calls
    ]
    kinds = [m["data"]["kind"] for m in told if m["event"] == "event"]
    assert kinds == ["reward", "closed"]
    state = [m["data"] for m in told if m["event"] == "state"][-1]
    assert (state["status"], state["calls"], state["reward"]) == ("closed", 4, 0.5)
    assert state["budgets"][0]["used_text"] == "4"
    assert told[-1]["event"] == "end"
    # From any place on, exactly the rest comes.
    placed = [m for m in told if "id" in m and m["event"] != "end"]
    for place, message in enumerate(placed):
        rest = list(messages(live.url, rollout_id, last=message["id"]))
        again = [m for m in rest if m["event"] in ("event", "call")]
        wanted = sorted(
            json.dumps(m["data"]["sequence"]) + m["event"] for m in placed[place + 1 :]
        )
        assert sorted(json.dumps(m["data"]["sequence"]) + m["event"] for m in again) == wanted
        assert rest[-1]["event"] == "end"


def test_a_restart_loses_and_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    with serving(TinyEngine(), path) as first:
        rollout_id, key = first.create(run="live")
        for _ in range(2):
            first.chat(key)
        before = list(messages(first.url, rollout_id, until=3))
        told: list[dict[str, Any]] = []

        def follow() -> None:
            last = [m["id"] for m in before if "id" in m][-1]
            told.extend(messages(first.url, rollout_id, last=last))

        reader = threading.Thread(target=follow)
        reader.start()
        for _ in range(200):
            if told:
                break
            time.sleep(0.05)
    # The server stopped although somebody was reading.
    reader.join(20)
    assert not reader.is_alive()
    assert {m["event"] for m in told} == {"state"}
    last = [m["id"] for m in before if "id" in m][-1]
    with serving(TinyEngine(), path) as second:
        second.chat(key)
        second.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {})
        rest = list(messages(second.url, rollout_id, last=last))
        calls = [m["data"]["sequence"] for m in (*before, *rest) if m["event"] == "call"]
        assert calls == [0, 1, 2]
        events = [m["data"]["kind"] for m in (*before, *rest) if m["event"] == "event"]
        assert events == ["closed"]


def test_what_cannot_be_followed_is_said(live: Live) -> None:
    unknown = httpx.get(f"{live.url}/api/v1/rollouts/ro_{'0' * 32}/events")
    assert unknown.status_code == 404
    rollout_id, _ = live.create()
    bad = httpx.get(f"{live.url}/api/v1/rollouts/{rollout_id}/events?since=yesterday")
    assert bad.status_code == 422
    assert "leave it out" in bad.json()["error"]["message"]
    stream = messages(live.url, rollout_id)
    assert next(stream)["event"] == "state"
    live.api("DELETE", f"/api/v1/rollouts/{rollout_id}", status=204)
    assert [m["event"] for m in stream][-1] == "end"


def test_the_page_has_the_stream_only_while_it_runs(live: Live) -> None:
    rollout_id, key = live.create(budgets={"calls": 5})
    live.chat(key)
    page = httpx.get(f"{live.url}/rollouts/{rollout_id}/requests.json").json()
    assert page["header"]["live"]["budgets"] == ["model calls 1 of 5"]
    href = page["header"]["live"]["href"]
    live.chat(key)
    found = list(messages(live.url, rollout_id, path=href, until=1))
    assert [(m["event"], m["data"]["sequence"]) for m in found] == [("call", 1)]
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {})
    assert (
        httpx.get(f"{live.url}/rollouts/{rollout_id}/requests.json").json()["header"]["live"]
        is None
    )
    assert "live.js" not in httpx.get(f"{live.url}/rollouts/{rollout_id}/requests").text

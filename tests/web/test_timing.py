"""The waterfall, its table, the budgets, and who stopped the rollout."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from explorer.records import (
    Admission,
    CallId,
    CallStatus,
    Dialect,
    EventKind,
    FailureKind,
    RolloutEvent,
)
from tests.web.conftest import Site
from tests.web.parsing import lookup, read
from tests.web.seeds import FIRST, START_US, TOOL_OUTPUT, Maker, maker, write
from tests.web.serving import serving


def timing_of(
    made: Maker, folder: Path, *, open_call: bool = False, event: RolloutEvent | None = None
) -> tuple[Any, str]:
    """Twin and page of a rollout of its own."""
    path = f"/rollouts/{made.rollout.rollout_id}/timing"
    with serving(folder) as served:
        closes = event is None and not open_call
        served.call(partial(write, served.store, made, None, None, close=closes))
        if event is not None:
            served.call(partial(served.store.add_event, event))
        if open_call:
            served.call(partial(_admit, served.store, made))
        with httpx.Client(base_url=served.url, timeout=60) as client:
            return client.get(f"{path}.json").json(), client.get(path).text


async def _admit(store: Any, made: Maker) -> None:
    await store.admit(
        Admission(
            call_id=CallId("f" * 32),
            rollout_id=made.rollout.rollout_id,
            sequence=len(made.calls),
            started_us=START_US + 60_000_000,
            dialect=Dialect.CHAT,
            stream=False,
            n_tools=0,
            request_sha256="0" * 64,
        )
    )


def test_the_time_between_calls_is_the_harnesses(site: Site) -> None:
    twin: Any = site.json("/rollouts/{small}/timing.json")
    # Calls start every three seconds and take 2.0, 4.2 and 0.9.
    assert [row["gap_ms"] for row in twin["rows"]] == [None, 1000.0, None]
    assert [row["total_ms"] for row in twin["rows"]] == [2000.0, 4200.0, 900.0]
    assert twin["span_ms"] == 7200.0
    assert [long for _, long, _ in twin["parts"]] == ["6.20 s", "1.00 s", "6.39 s"]
    page = read(site.text("/rollouts/{small}/timing"))
    assert [e for e in page.elements if e.attributes.get("class") == "gap"]
    assert "the time to the first token" in page.text
    for number in page.numbers:
        assert number.attributes["value"] == str(lookup(twin, number.attributes["data-k"]))


def test_bars_stay_within_the_chart(site: Site) -> None:
    for name in ("small", "forked", "refused", "ranked", "open"):
        twin: Any = site.json(f"/rollouts/{{{name}}}/timing.json")
        for row in twin["rows"]:
            assert 0 <= row["x"] <= 1000
            assert row["x"] + row["width"] <= 1002
            assert row["gap_x"] >= -0.1
            assert row["engine_width"] <= row["width"]


def test_a_call_in_flight_has_no_end(tmp_path: Path) -> None:
    made = maker("flying")
    made.call("look", said=FIRST)
    twin, page = timing_of(made, tmp_path, open_call=True)
    last = twin["rows"][-1]
    assert (last["state"], last["total_ms"], last["tokens"]) == ("open", None, None)
    assert last["total_text"] == "in flight"
    assert twin["open_calls"] == 1
    assert "1 call still in flight" in page
    assert twin["stopped"][-1] == "Nobody has closed the rollout."


def test_what_the_engine_did_not_tell_is_unknown(tmp_path: Path) -> None:
    made = maker("untold")
    made.call("look", said=FIRST, engine_ms=None)
    twin, _ = timing_of(made, tmp_path)
    (row,) = twin["rows"]
    assert (row["engine_ms"], row["engine_text"], row["rate"]) == (None, "unknown", None)
    assert row["outside_text"] == "unknown"
    assert twin["unrecorded"] == 1


def test_budgets_used_and_who_stopped_it(tmp_path: Path) -> None:
    made = maker("spent", budgets={"calls": 2, "output_tokens": 1_000_000, "wall_s": 3600})
    one = made.call("look", said=FIRST)
    two = made.call("more", parent=one, said=(("tool", TOOL_OUTPUT),))
    made.call(
        "",
        parent=two,
        said=(("tool", TOOL_OUTPUT),),
        status=CallStatus.REFUSED,
        failure_kind=FailureKind.BUDGET,
        failure_detail="the budget of this rollout is spent: 2 model calls",
        completion=None,
        completion_len=None,
        logprobs=None,
        chain_hash=None,
        usage_completion=None,
    )
    closed = RolloutEvent(
        made.rollout.rollout_id,
        -1,
        made.rollout.created_us + 90_000_000,
        EventKind.CLOSED,
        reason="the harness gave up <b>",
        payload={"exit_code": 3},
    )
    twin, page = timing_of(made, tmp_path, event=closed)
    rows = {row["name"]: row for row in twin["budgets"]}
    assert list(rows) == ["model calls", "sampled tokens", "wall time"]
    assert (rows["model calls"]["used_text"], rows["model calls"]["spent"]) == ("2", True)
    sampled = sum(call.completion_len or 0 for call in made.calls)
    assert rows["sampled tokens"]["used_text"] == f"{sampled:,}"
    assert rows["sampled tokens"]["limit_text"] == "1,000,000"
    first, second, third = twin["stopped"]
    assert first.startswith("The proxy refused 1 call")
    assert "2 model calls" in first
    assert "call 1" in second
    assert "exit code 3" in third
    assert "gave up &lt;b&gt;" in page


def test_retries_are_counted(tmp_path: Path) -> None:
    made = maker("retried")
    made.call("look", said=FIRST)
    made.calls[0] = replace(made.calls[0], retry_count=2)
    twin, page = timing_of(made, tmp_path)
    assert twin["rows"][0]["retries"] == 2
    assert "↻2" in page


def test_a_long_rollout_is_paged(long_site: Site) -> None:
    twin: Any = long_site.json("/rollouts/{long}/timing.json?start=100")
    assert twin["total"] == 280
    assert twin["rows"][0]["label"] == "100"
    assert twin["next_href"] is None

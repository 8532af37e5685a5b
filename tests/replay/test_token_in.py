"""Recorded OpenCode and Pi traffic with token-in: no break by re-rendered history is left.

Passed through, the same traffic breaks: these harnesses write tool calls anew and drop
reasoning, and the template then makes other tokens of them. What is left with token-in are
replies that the harness truly changed, and a reply that was cut before its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from explorer.engine.scripted import ScriptedEngine
from explorer.records import CallId, Fallback
from explorer.trace.causes import BreakCause
from explorer.trace.sequences import Sequences
from explorer.trace.token_in import counted
from explorer.trace.verdict import Judgement, judge
from tests.live import serving
from tests.replay.recording import DATA, SUFFIX, read
from tests.replay.replaying import Replay, replay, script_of

RERENDERED = {
    BreakCause.REASONING_DROPPED,
    BreakCause.RESERIALISED_ARGUMENTS,
    BreakCause.TEMPLATE_BOUNDARY,
}
# By recording: the calls that break when messages are passed through, and those that fall back.
WANTED: dict[str, tuple[list[int], dict[int, Fallback]]] = {
    "opencode/basic": ([3, 4, 5, 6], {}),
    "opencode/compact": ([3, 4, 7, 8], {6: Fallback.HISTORY_EDITED}),
    "opencode/subagent": ([5, 6, 7, 8, 9], {}),
    "opencode/badtool": (
        [3, 4, 5],
        {3: Fallback.HISTORY_EDITED, 4: Fallback.HISTORY_EDITED},
    ),
    "pi/basic": ([2, 3, 4, 5], {}),
    "pi/compact": ([2, 3, 4, 5, 6], {}),
    "pi/badtool": ([2, 3, 4], {3: Fallback.HISTORY_EDITED}),
    "pi/length": ([2, 4, 5], {3: Fallback.PARENT_CUT}),
}


@dataclass
class Both:
    """One recording, passed through and with token-in."""

    through: Replay
    by_ids: Replay


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    """All of them on one server: the script is read in order."""
    known = {name: read(DATA / f"{name}{SUFFIX}") for name in WANTED}
    script = [entry for _, calls in known.values() for entry in script_of(calls) * 2]
    found = {}
    store = tmp_path_factory.mktemp("token_in") / "s.duckdb"
    with serving(ScriptedEngine(script), store) as live:
        for name, (meta, recorded) in known.items():
            through = replay(live, recorded, meta["wire"])
            found[name] = Both(through, replay(live, recorded, meta["wire"], token_in=True))
    return found


def breaks(made: Replay, judged: Judgement) -> list[int]:
    """Numbers of the calls whose prompt left what they continue, rendered anew."""
    names: dict[CallId, int] = {call.call_id: n for n, call in made.calls.items()}
    return [
        names[node.call_id]
        for node in judged.tree.nodes.values()
        if node.break_ is not None and node.break_.cause in RERENDERED
    ]


@pytest.mark.parametrize("name", sorted(WANTED))
def test_breaks_by_rerendered_history_fall_to_zero(name: str, done: dict[str, Both]) -> None:
    before, fallbacks = WANTED[name]
    both = done[name]
    assert breaks(both.through, judge(both.through.record)) == before
    left = breaks(both.by_ids, judge(both.by_ids.record))
    told = {
        n: Fallback(call.token_in.fallback)
        for n, call in both.by_ids.calls.items()
        if call.token_in is not None and call.token_in.fallback is not None
    }
    assert told == fallbacks
    assert set(left) <= set(fallbacks), "every break that is left has its reason on record"
    counts = counted(both.by_ids.record.calls)
    assert counts.avoided == counts.sent > 0
    assert counts.differing == counts.unknown == 0


@pytest.mark.parametrize("name", sorted(WANTED))
def test_each_prompt_begins_with_the_exact_ids_of_its_parent(
    name: str, done: dict[str, Both]
) -> None:
    record = done[name].by_ids.record
    whole = Sequences(record.calls)
    sent = [call for call in record.calls if call.token_in is not None and call.token_in.sent]
    for call in sent:
        assert call.token_in is not None
        assert call.token_in.same is True
        assert call.token_in.how == "kv_transfer_params"
        parent = whole.full(CallId(str(call.token_in.parent_id)))
        assert parent.size == call.token_in.prefix_len
        prompt = whole.prompt(call.call_id)
        assert np.array_equal(prompt[: parent.size], parent)
        differs = call.token_in.differs_at
        assert differs is not None
        assert differs < parent.size < prompt.size


def test_no_token_trains_that_would_not_without_it(done: dict[str, Both]) -> None:
    """A scripted engine is never trainable, so the masks are compared without its verdict:
    the sampled tokens of every call, and not one of its prompt."""
    for both in done.values():
        for made in (both.through, both.by_ids):
            for mask in judge(made.record).masks.values():
                assert mask.supervised == 0
        lengths = [
            [None if call.completion is None else call.completion.size for call in calls]
            for calls in (both.through.calls.values(), both.by_ids.calls.values())
        ]
        assert lengths[0] == lengths[1]

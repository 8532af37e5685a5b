"""Scripts of conversations for property tests: who said what after what, and what it means.

Owns: `Script`, how one is drawn, the orders in which its calls may arrive, and the record that
capture makes of one such order.
Must not know: how roles and masks are decided; a script says itself what is meant.

An agent's conversation has turns that may be tried again, fail first, part in two, be written
anew (every request in other tokens) or begin anew (from a summary). A subagent runs between two
turns of an agent and is known by a claim or by its own system prompt. A title call has no
tools, or says what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from explorer.capture.lineage import Lineage
from explorer.records import (
    Call,
    CallStatus,
    CaptureLevel,
    FailureKind,
    RolloutRecord,
)
from tests.trace.build import ids, make_call, record

# What was meant, told by the mask reason of what was sampled.
TRAINS = "sampled"
# Tokens of the environment and of the model where conversations are told apart: no prompt goes
# on by accident from what another call sampled.
_SAID = (0, 1, 2)
_FIRST = (3, 4, 5)


@dataclass(frozen=True, slots=True)
class Step:
    """One call, as the harness and the engine made it.

    Attributes:
        sampled: None for a call that failed before its first token.
        after: the calls that must have been admitted before, or it could not be as it is.
        meant: the mask reason of its sampled tokens.
        facts: fields of the call.
    """

    name: str
    prompt: tuple[int, ...]
    sampled: tuple[int, ...] | None
    after: tuple[str, ...]
    meant: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def full(self) -> tuple[int, ...]:
        return (*self.prompt, *(self.sampled or ()))


Script = tuple[Step, ...]


def recorded(
    script: Sequence[Step], order: Sequence[str], ended: Sequence[str] | None = None
) -> RolloutRecord:
    """The rollout as capture stores it when the calls are admitted in this order: each against
    the longest call that it continues and that had ended well by then.

    Args:
        ended: the order in which they end, if it is another.
    """
    by_name = {step.name: step for step in script}
    admitted = {name: sequence for sequence, name in enumerate(order, 1)}
    lineage = Lineage()
    calls: dict[str, Call] = {}
    for name in ended or order:
        calls[name] = _call(by_name[name], admitted[name], lineage, calls)
        if calls[name].status is CallStatus.COMMITTED:
            lineage.add(calls[name])
    return record(*(calls[name] for name in order))


def _call(step: Step, sequence: int, lineage: Lineage, calls: dict[str, Call]) -> Call:
    if step.sampled is None:
        return make_call(step.name, sequence, None, None, **step.facts)
    placed = lineage.place(ids(step.prompt), ids(step.sampled))
    parent = None if placed.parent_id is None else calls[placed.parent_id]
    made = make_call(
        step.name,
        sequence,
        step.prompt,
        step.sampled,
        parent=parent,
        prefix_len=placed.prefix_len if parent is not None else None,
        **step.facts,
    )
    assert made.chain_hash == placed.chain_hash
    return made


@st.composite
def interleavings(draw: st.DrawFn, script: Script) -> list[str]:
    """An order in which every call comes after those that it needs."""
    waiting = list(script)
    done: list[str] = []
    while waiting:
        ready = [step for step in waiting if set(step.after) <= set(done)]
        chosen = ready[draw(st.integers(0, len(ready) - 1))]
        waiting.remove(chosen)
        done.append(chosen.name)
    return done


# -- drawing a script -----------------------------------------------------------------------


@dataclass(slots=True)
class _Talk:
    """One conversation while it is drawn."""

    name: str
    draw: st.DrawFn
    first: tuple[int, ...]
    facts: dict[str, Any]
    meant: str
    apart: bool
    anew: bool = False
    steps: list[Step] = field(default_factory=list)
    n: int = 0

    def tokens(self, least: int = 0) -> tuple[int, ...]:
        """Said by the environment; never a token that the model may begin with."""
        among = _SAID if self.apart else _SAID[:2]
        return tuple(self.draw(st.lists(st.sampled_from(among), min_size=least, max_size=2)))

    def answer(self, attempt: int) -> tuple[int, ...]:
        """Sampled; two answers to one prompt differ where conversations are told apart."""
        rest = self.tokens()
        if self.apart:
            return (_FIRST[attempt], *rest)
        return (
            rest if self.draw(st.booleans()) else (*rest, self.draw(st.sampled_from(_SAID[:2])))
        )

    def attempt(
        self, now: _State, sampled: tuple[int, ...] | None, meant: str, **more: Any
    ) -> Step:
        self.n += 1
        name = f"{self.name}{self.n}"
        facts = self.facts | {
            "message_digests": now.said,
            "reply_digest": None if sampled is None else f"{name} answers",
        }
        return self.add(Step(name, now.prompt, sampled, now.after, meant, facts | more))

    def add(self, step: Step) -> Step:
        self.steps.append(step)
        return step


@dataclass(frozen=True, slots=True)
class _State:
    """Where a conversation stands before a turn."""

    prompt: tuple[int, ...]
    said: tuple[str, ...]
    after: tuple[str, ...]


_FAILED: dict[str, Any] = {
    "status": CallStatus.FAILED,
    "failure_kind": FailureKind.UPSTREAM_STATUS,
    "capture_level": CaptureLevel.TEXT,
    "finish_reason": None,
}
_BROKEN: dict[str, Any] = {
    "status": CallStatus.FAILED,
    "failure_kind": FailureKind.FAILED_MIDSTREAM,
    "finish_reason": None,
}


def _turn(talk: _Talk, now: _State, *, last: bool) -> Step:
    """The attempts at one turn; the one that the harness goes on from, if it does."""
    draw = talk.draw
    kind = draw(st.sampled_from(("one", "one", "one", "fails", "breaks", "again")))
    finish: dict[str, Any] = (
        {} if last or not talk.facts["n_tools"] else {"finish_reason": "tool_calls"}
    )
    if kind == "fails":
        failed = talk.attempt(now, None, "failed_call", **_FAILED)
        now = replace(now, after=(failed.name,))
    elif kind == "breaks":
        failed = talk.attempt(now, talk.answer(2), "failed_call", **_BROKEN)
        now = replace(now, after=(failed.name,))
    elif kind == "again":
        used = None if last else draw(st.integers(0, 1))
        taken: list[Step] = []
        for attempt in (0, 1):
            meant = talk.meant
            if meant == TRAINS and used is None:
                meant = "ambiguous_sibling"
            elif used not in (None, attempt):
                meant = "discarded"
            taken.append(talk.attempt(now, talk.answer(attempt), meant, **finish))
            now = replace(now, after=(taken[-1].name,))
        return taken[used or 0]
    if talk.meant == TRAINS and draw(st.integers(0, 5)) == 0:
        return talk.attempt(now, talk.answer(0), "greedy", greedy=True, **finish)
    return talk.attempt(now, talk.answer(0), talk.meant, **finish)


def _next(talk: _Talk, used: Step, turn: int, *, fresh: bool, other: bool = False) -> _State:
    """What the harness asks after a turn; `fresh`: from a summary; `other`: the second of two
    ways in which it goes on."""
    name = talk.steps[-1].name if not other else f"{used.name} again"
    after = (used.name,) if other else (talk.steps[-1].name,)
    if fresh:
        return _State(
            (*talk.first, 20 + turn, *talk.tokens()), (f"{talk.name} summary {turn}",), after
        )
    said = (*used.facts["message_digests"], used.facts["reply_digest"], f"after {name}")
    delta = (
        (*talk.tokens(1 if talk.apart else 0), 6)
        if other
        else talk.tokens(1 if talk.apart else 0)
    )
    if talk.anew:
        return _State((*talk.first, 40 + turn, *delta), said, after)
    return _State((*used.full, *delta), said, after)


def _converse(talk: _Talk, turns: int) -> list[tuple[Step, list[str]]]:
    """Draws the turns; gives each turn that was continued with the calls that continue it."""
    draw = talk.draw
    start = (*talk.first, *talk.tokens())
    now = _State(start or (0,), (f"{talk.name} asks",), ())
    between: list[tuple[Step, list[str]]] = []
    goes_on: list[str] = []
    for turn in range(turns):
        last = turn == turns - 1
        before = len(talk.steps)
        used = _turn(talk, now, last=last)
        goes_on.append(talk.steps[before].name)
        if last:
            break
        # Where nothing goes on from a turn's answers nobody can say which one was used, and
        # nobody waited for a subagent.
        twice = any(step.meant == "discarded" for step in talk.steps[before:])
        fresh = talk.meant == TRAINS and not twice and draw(st.integers(0, 6)) == 0
        forks = not fresh and not talk.anew and draw(st.integers(0, 4)) == 0
        goes_on = []
        if not fresh:
            between.append((used, goes_on))
        now = _next(talk, used, turn, fresh=fresh)
        if forks:
            branch = _next(talk, used, turn, fresh=False, other=True)
            way = talk.attempt(branch, talk.answer(0), talk.meant)
            goes_on.append(way.name)
    return between


@st.composite
def scripts(draw: st.DrawFn, apart: bool = True) -> Script:
    """Conversations of an agent, with title calls beside them and subagents between turns.

    Args:
        apart: no conversation shares tokens with another, and no two answers to one prompt are
            equal. Otherwise all tokens come from an alphabet of two.
    """
    tools = draw(st.integers(0, 5)) > 0

    def talk(name: str, number: int, facts: dict[str, Any], meant: str) -> _Talk:
        first: tuple[int, ...] = (10 + number,) if apart else ()
        anew = apart and draw(st.integers(0, 2)) == 0
        return _Talk(name, draw, first, facts, meant, apart, anew)

    steps: list[Step] = []
    between: list[tuple[Step, list[str]]] = []
    n_agents = draw(st.integers(1, 2))
    for number in range(n_agents):
        facts = {
            "n_tools": 2 * tools,
            "system_digest": "M",
            "tools_digest": "two" if tools else None,
        }
        agent = talk("ab"[number], number, facts, TRAINS)
        between += _converse(agent, draw(st.integers(1, 3)))
        steps += agent.steps
    for number in range(draw(st.integers(0, 2))):
        steps += _title(draw, talk, number, tools=tools)
    for number in range(draw(st.integers(0, 2)) if between else 0):
        used, following = between[draw(st.integers(0, len(between) - 1))]
        steps = _spawn(draw, talk, number, tools, used, following, steps)
    return tuple(steps)


def _title(draw: st.DrawFn, talk: Any, number: int, *, tools: bool) -> list[Step]:
    says = draw(st.booleans())
    facts: dict[str, Any] = {"n_tools": 0, "system_digest": "T", "tools_digest": None}
    if says:
        facts["claims"] = {"request_kind": "title"}
        if tools and draw(st.booleans()):
            facts |= {"n_tools": 1, "tools_digest": "title"}
    meant = "auxiliary" if says or tools else TRAINS
    made: _Talk = talk("tu"[number], 4 + number, facts, meant)
    made.anew = False
    now = _State((*made.first, *made.tokens(1)), (f"{made.name} asks",), ())
    made.attempt(now, made.answer(0), meant)
    return made.steps


def _spawn(
    draw: st.DrawFn,
    talk: Any,
    number: int,
    tools: bool,
    used: Step,
    following: list[str],
    steps: list[Step],
) -> list[Step]:
    """A subagent between a turn and the calls that continue it; those wait for its beginning,
    or for its end."""
    claimed = draw(st.booleans())
    system = "M" if claimed and draw(st.booleans()) else f"S{number}"
    facts: dict[str, Any] = {"n_tools": int(tools), "system_digest": system}
    facts["tools_digest"] = f"sub{number}" if tools else None
    if claimed:
        facts["claims"] = {"x-parent-session-id": "main", "x-session-id": f"s{number}"}
    made: _Talk = talk("xy"[number], 7 + number, facts, "subagent" if tools else TRAINS)
    _converse(made, draw(st.integers(1, 2)))
    first = made.steps[0]
    made.steps[0] = replace(first, after=(*first.after, used.name))
    waited = made.steps[-1].name if draw(st.booleans()) else first.name
    held = [
        replace(step, after=(*step.after, waited)) if step.name in following else step
        for step in steps
    ]
    return [*held, *made.steps]

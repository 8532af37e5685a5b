"""Builds the timing tab: a waterfall of the calls, budgets, and who stopped the rollout.

Owns: what each stretch of time is called. Must not know: HTML, HTTP.

Only what was recorded is drawn: a call's start, its end and its time in the engine. Where
inside a call the engine worked, how long it queued there and when the first token came is
not on record, and is not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from explorer.capture.budgets import LIMITS, Ledger
from explorer.export.judged import Judged
from explorer.records import Admission, Call, CallStatus, EventKind, FailureKind
from explorer.trace.versions import Shut, waited_us
from explorer.web import words
from explorer.web.contexts import Frame
from explorer.web.contexts_rollout import Header
from explorer.web.contexts_timing import BudgetRow, TimingPage, TimingRow
from explorer.web.conversation import failure_words
from explorer.web.frames import rollout_href
from explorer.web.pretty import safe_text
from explorer.web.turn_tree import TurnTree

CHART_WIDTH: Final = 1000.0
ROWS_PER_PAGE: Final = 300


@dataclass(frozen=True, slots=True)
class _Clock:
    """The first start and the last end, in microseconds."""

    first: int
    last: int

    @property
    def span_ms(self) -> float:
        return max((self.last - self.first) / 1000, 0.001)

    def x(self, time_us: int) -> float:
        return CHART_WIDTH * (time_us - self.first) / 1000 / self.span_ms

    def width(self, value_ms: float) -> float:
        return CHART_WIDTH * value_ms / self.span_ms


def timing_page(
    judged: Judged, frame: Frame, header: Header, start: int = 0, shut: tuple[Shut, ...] = ()
) -> TimingPage:
    """A waterfall of the calls and its table; `shut`: when calls waited for weights."""
    calls, waiting = judged.record.calls, judged.record.open_calls
    starts = [call.started_us for call in calls] + [each.started_us for each in waiting]
    clock = _Clock(
        min(starts, default=0),
        max(
            [*(call.ended_us for call in calls), *(each.started_us for each in waiting)],
            default=0,
        ),
    )
    rows = list(_rows(judged, clock, shut))
    first = max(0, start)
    last = first + ROWS_PER_PAGE
    rollout_id = judged.record.rollout.rollout_id
    return TimingPage(
        frame=frame,
        header=header,
        rows=tuple(rows[first:last]),
        first=first,
        total=len(rows),
        next_href=rollout_href(rollout_id, "timing", start=last) if last < len(rows) else None,
        span_ms=clock.span_ms,
        span_text=words.duration(clock.span_ms),
        parts=_parts(calls, waiting, clock),
        unrecorded=sum(call.engine_ms is None for call in calls),
        open_calls=len(waiting),
        budgets=budget_rows(judged),
        stopped=stopped_by(judged),
        waited=sum(bool(row.fence_ms) for row in rows),
    )


def _rows(judged: Judged, clock: _Clock, shut: tuple[Shut, ...]) -> Iterator[TimingRow]:
    labels = TurnTree(judged).labels
    busy_until: int | None = None
    every: list[Call | Admission] = [*judged.record.calls, *judged.record.open_calls]
    every.sort(key=lambda each: (each.started_us, each.sequence))
    gaps: dict[str, float | None] = {}
    for each in every:
        quiet = busy_until is not None and busy_until < each.started_us
        gaps[each.call_id] = (
            (each.started_us - busy_until) / 1000 if quiet and busy_until else None
        )
        # A call in flight has no end: after it, nothing is known to be quiet.
        end = each.ended_us if isinstance(each, Call) else clock.last + 1
        busy_until = end if busy_until is None else max(busy_until, end)
    for each in sorted(every, key=lambda each: each.sequence):
        before = gaps[each.call_id]
        if isinstance(each, Call):
            row = _ended(judged, each, labels.get(each.call_id, words.NONE), before, clock)
            waited = waited_us(each, shut) / 1000
            yield replace(
                row,
                fence_ms=waited or None,
                fence_text=words.duration(waited) if waited else words.NONE,
            )
        else:
            yield _open(each, before, clock)


def _ended(
    judged: Judged, call: Call, turn: str, gap: float | None, clock: _Clock
) -> TimingRow:
    decision = judged.judgement.roles.get(call.call_id)
    total = (call.ended_us - call.started_us) / 1000
    engine, tokens = call.engine_ms, call.completion_len or 0
    outside = None if engine is None else max(0.0, total - engine)
    failed = call.status is not CallStatus.COMMITTED
    return TimingRow(
        label=str(call.sequence),
        turn=turn,
        role=decision.role.value if decision else words.NONE,
        call_href=rollout_href(judged.record.rollout.rollout_id, f"requests/{call.call_id}"),
        start_ms=(call.started_us - clock.first) / 1000,
        start_text=words.duration((call.started_us - clock.first) / 1000),
        gap_ms=gap,
        gap_text=words.NONE if gap is None else words.duration(gap),
        total_ms=total,
        total_text=words.duration(total),
        engine_ms=engine,
        engine_text=words.duration(engine),
        outside_text=words.duration(outside),
        fence_ms=None,
        fence_text=words.NONE,
        tokens=tokens,
        rate=round(1000 * tokens / engine, 2) if engine and tokens else None,
        retries=call.retry_count,
        state="failed" if failed else "ended",
        failure=failure_words(call),
        x=round(clock.x(call.started_us), 1),
        width=round(max(1.5, clock.width(total)), 1),
        engine_width=round(clock.width(min(total, engine or 0.0)), 1),
        gap_x=round(clock.x(call.started_us) - clock.width(gap or 0.0), 1),
        gap_width=round(clock.width(gap or 0.0), 1),
    )


def _open(admission: Admission, gap: float | None, clock: _Clock) -> TimingRow:
    x = clock.x(admission.started_us)
    return TimingRow(
        label=str(admission.sequence),
        turn=words.NONE,
        role=words.NONE,
        call_href=rollout_href(admission.rollout_id, "requests"),
        start_ms=(admission.started_us - clock.first) / 1000,
        start_text=words.duration((admission.started_us - clock.first) / 1000),
        gap_ms=gap,
        gap_text=words.NONE if gap is None else words.duration(gap),
        total_ms=None,
        total_text="in flight",
        engine_ms=None,
        engine_text=words.UNKNOWN,
        outside_text=words.UNKNOWN,
        fence_ms=None,
        fence_text=words.NONE,
        tokens=None,
        rate=None,
        retries=0,
        state="open",
        failure="",
        x=round(min(x, CHART_WIDTH - 6), 1),
        width=round(max(6.0, CHART_WIDTH - x), 1),
        engine_width=0.0,
        gap_x=round(x - clock.width(gap or 0.0), 1),
        gap_width=round(clock.width(gap or 0.0), 1),
    )


def _parts(
    calls: Sequence[Call], waiting: Sequence[Admission], clock: _Clock
) -> tuple[tuple[str, str, str], ...]:
    """The span, parted: some call in flight, or none. Engine times of calls at the same
    time overlap, so their sum may be more than the span and has no share of it."""
    stretches = [(call.started_us, call.ended_us) for call in calls]
    stretches += [(each.started_us, clock.last) for each in waiting]
    busy = 0
    until = clock.first
    for begun, end in sorted(stretches):
        busy += max(0, end - max(begun, until))
        until = max(until, end)
    if not calls:
        return ()
    quiet = clock.span_ms - busy / 1000
    engine = sum(call.engine_ms for call in calls if call.engine_ms is not None)

    def share(value_ms: float) -> str:
        return words.percent(round(value_ms * 1000), round(clock.span_ms * 1000))

    return (
        ("some call in flight", words.duration(busy / 1000), share(busy / 1000)),
        ("no call in flight: tools and harness", words.duration(quiet), share(quiet)),
        ("engine time, summed over calls", words.duration(engine), ""),
    )


_NAMES: Final = {
    "calls": "model calls",
    "output_tokens": "sampled tokens",
    "total_tokens": "tokens, prompts included",
    "wall_s": "wall time",
    "context_tokens": "longest call",
}


def budget_rows(judged: Judged) -> tuple[BudgetRow, ...]:
    """Each budget of the rollout, and what was used of it by the proxy's own count."""
    rollout, calls = judged.record.rollout, judged.record.calls
    used: dict[str, float] = dict(Ledger(rollout.budgets, rollout.created_us, calls).used)
    used["wall_s"] = (_ended_us(judged) - rollout.created_us) / 1e6
    used["context_tokens"] = max(
        ((call.prompt_len or 0) + (call.completion_len or 0) for call in calls), default=0
    )
    rows = []
    for name in LIMITS:
        limit = rollout.budgets.get(name)
        if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
            continue
        share = used[name] / limit
        given, taken = (
            (words.duration(1000 * each) if name == "wall_s" else words.thousands(each))
            for each in (limit, used[name])
        )
        rows.append(
            BudgetRow(
                name=_NAMES[name],
                limit_text=given,
                used_text=taken,
                share=round(min(1.0, share), 4),
                spent=share >= 1,
            )
        )
    return tuple(rows)


def _ended_us(judged: Judged) -> int:
    """When it was closed; of an open one, when its last call ended."""
    record = judged.record
    closed = [e.time_us for e in record.events if e.kind is EventKind.CLOSED]
    calls = [call.ended_us for call in record.calls]
    return max([*closed, *calls], default=record.rollout.created_us)


def stopped_by(judged: Judged) -> tuple[str, ...]:
    """Who ended the rollout, in the order it happened, from what is on record."""
    told = []
    calls = judged.record.calls
    refused = [c for c in calls if c.failure_kind in (FailureKind.BUDGET, FailureKind.CONTEXT)]
    if refused:
        detail = safe_text(refused[0].failure_detail or "a budget is spent")
        told.append(
            f"The proxy refused {words.plural(len(refused), 'call')}, "
            f"first call {refused[0].sequence}: {detail}"
        )
    last = next((c for c in reversed(calls) if c.status is CallStatus.COMMITTED), None)
    if last is not None:
        reason = safe_text(last.finish_reason or words.UNKNOWN)
        told.append(f"The last reply (call {last.sequence}) stopped with “{reason}”.")
    closed = [e for e in judged.record.events if e.kind is EventKind.CLOSED]
    if not closed:
        told.append("Nobody has closed the rollout.")
        return tuple(told)
    payload: dict[str, Any] = closed[-1].payload
    text = f"It was closed by its runner at {words.clock(closed[-1].time_us)}"
    if closed[-1].reason:
        text += f": {safe_text(closed[-1].reason)}"
    code = payload.get("exit_code")
    if type(code) is int:
        text += f", exit code {code}"
    told.append(f"{text}.")
    return tuple(told)

"""What the timing tab says, every field documented.

Owns: the contexts of the waterfall and of budgets. Must not know: where values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Frame, page, said
from explorer.web.contexts_rollout import Header


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One call in time."""

    label: str = said("The call's number in admission order.")
    turn: str = said("Its number in the turn tree.")
    role: str = said("Role of the call.")
    call_href: str = said("Address of its request.")
    start_ms: float = said("Start after the first call, in milliseconds.")
    start_text: str = said("The start as shown.")
    gap_ms: float | None = said(
        "Before it, time in which no call was in flight: tools and the harness itself. Null "
        "for the first call, and where an earlier one was still running."
    )
    gap_text: str = said("That time as shown.")
    total_ms: float | None = said("Duration seen by the harness, null while in flight.")
    total_text: str = said("The duration as shown.")
    engine_ms: float | None = said("Of it, in the engine; null when not recorded.")
    engine_text: str = said("The engine's share as shown.")
    outside_text: str = said("The rest: the way there and back, the proxy, waiting.")
    fence_ms: float | None = said("Of it, waiting for new weights; null: it did not.")
    fence_text: str = said("That time as shown.")
    tokens: int | None = said("Sampled tokens, null while in flight.")
    rate: float | None = said("Sampled tokens per second of engine time.")
    retries: int = said("Retries that were answered from it.")
    state: str = said("`ended`, `failed` or `open`.")
    failure: str = said("What went wrong, empty when nothing did.")
    x: float = said("Left edge of its bar, 0 to 1000.")
    width: float = said("Width of its bar.")
    engine_width: float = said("Width of the engine's share.")
    gap_x: float = said("Left edge of the time before it.")
    gap_width: float = said("Width of that time, 0 without any.")


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """One budget with what was used of it."""

    name: str = said("Name of the budget.")
    limit_text: str = said("The limit as shown.")
    used_text: str = said("What was used, as shown.")
    share: float = said("Used of the limit, 0 to 1.")
    spent: bool = said("Whether it is used up.")


@page
@dataclass(frozen=True, slots=True)
class TimingPage:
    """`/rollouts/{rollout_id}/timing`: a waterfall and its table."""

    template: ClassVar[str] = "timing.html"
    frame: Frame = said("What surrounds the page.")
    header: Header = said("What every tab shows.")
    rows: tuple[TimingRow, ...] = said("Calls of this page, in admission order.")
    first: int = said("Place of the first one listed, from 0.")
    total: int = said("Calls, those in flight included.")
    next_href: str | None = said("Address of the next calls, null at the end.")
    span_ms: float = said("From the first start to the last end.")
    span_text: str = said("The span as shown.")
    parts: tuple[tuple[str, str, str], ...] = said(
        "Where the time went: what, how long, and its share of the span."
    )
    unrecorded: int = said("Calls without a recorded engine time.")
    open_calls: int = said("Calls still in flight.")
    budgets: tuple[BudgetRow, ...] = said("Budgets with what was used, empty without any.")
    stopped: tuple[str, ...] = said("Who stopped the rollout, as far as it is recorded.")
    waited: int = said("Calls that waited for new weights.")

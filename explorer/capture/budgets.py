"""What a rollout may spend, and what it has spent: by reservation.

Owns: the budgets' names and checks, what counts, and the ledger of one rollout.
Must not know: dialects, the store, HTTP.

A call reserves before the engine is asked, so that calls at the same time cannot
overspend together; the reservation is replaced by the truth when the call has ended, and
given back when the engine never answered it. Prompt tokens are those that the engine's own
tokenizer counts beforehand, output tokens at most the cap that is sent with the call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from explorer.errors import BudgetSpent, CapacityReached, ContextOverflow
from explorer.records import Call, CallStatus

LIMITS = ("calls", "output_tokens", "total_tokens", "wall_s", "context_tokens")
ON_SPENT = ("refuse", "final_turn")
FINAL_TURN_TEXT = "The budget of this session is spent. Stopping here."
# Calls that count as made: the engine worked for them.
_MADE = (CallStatus.COMMITTED, CallStatus.ABORTED)


def _made(call: Call) -> bool:
    """Also where it broke off a stream of which something had been read."""
    return call.status in _MADE or bool(call.completion_len)


@dataclass(slots=True)
class Reservation:
    """What one call has set aside; `max_tokens` is the cap to send, None where no budget
    caps it."""

    prompt: int
    output: int
    max_tokens: int | None


class Ledger:
    """The budgets of one rollout; safe across threads.

    Args:
        budgets: limits by name (`LIMITS`), and ``on_spent``; absent means no limit.
        created_us: from when wall time counts.
        calls: ended calls of the rollout, after a restart.
    """

    def __init__(
        self,
        budgets: Mapping[str, Any] | None = None,
        created_us: int = 0,
        calls: Iterable[Call] = (),
    ) -> None:
        self._limits = {name: (budgets or {}).get(name) for name in LIMITS}
        self.final_turn = (budgets or {}).get("on_spent") == "final_turn"
        self._created_us = created_us
        self._lock = threading.Lock()
        self._calls = self._output = self._total = 0
        self._open: list[Reservation] = []
        for call in calls:
            if _made(call):
                self._add(call)

    @property
    def counts_prompts(self) -> bool:
        """Whether a call's prompt must be counted before it may be reserved."""
        return bool(self._limits["total_tokens"] or self._limits["context_tokens"])

    @property
    def used(self) -> dict[str, int]:
        """What ended calls have taken of the budgets that are counted."""
        with self._lock:
            return {
                "calls": self._calls,
                "output_tokens": self._output,
                "total_tokens": self._total,
            }

    def remaining_s(self, time_us: int) -> float | None:
        """Seconds of wall time that are left, None without such a budget."""
        limit = self._limits["wall_s"]
        if limit is None:
            return None
        return float(limit) - (time_us - self._created_us) / 1_000_000

    def out_of_time(self) -> BudgetSpent:
        """What a call is told that the wall time cuts."""
        return _spent("wall_s", self._limits["wall_s"], "seconds of wall time")

    def reserve(self, time_us: int, prompt: int, max_tokens: int | None) -> Reservation:
        """Sets aside what the call may take.

        Args:
            prompt: tokens of its prompt; 0 where `counts_prompts` is False.
            max_tokens: the cap that the harness asked for.

        Raises:
            BudgetSpent: a budget is used up; it will not come back.
            ContextOverflow: this prompt is longer than the context budget.
            CapacityReached: what is left is reserved by calls in flight.
        """
        with self._lock:
            self._refuse_when_spent(time_us)
            # To an engine, a limit of 0 or less is an error or no limit; never a small one.
            asked = max_tokens if max_tokens is not None and max_tokens > 0 else None
            room = min(self._rooms(prompt), default=None)
            if room is not None and asked is not None:
                room = min(room, asked)
            made = Reservation(prompt, room or asked or 0, room)
            self._open.append(made)
            return made

    def _refuse_when_spent(self, time_us: int) -> None:
        left = self.remaining_s(time_us)
        if left is not None and left <= 0:
            raise self.out_of_time()
        limit = self._limits["calls"]
        if limit is not None and self._calls >= limit:
            raise _spent("calls", limit, "model calls")
        if limit is not None and self._calls + len(self._open) >= limit:
            _room(0, "calls")
        limit = self._limits["output_tokens"]
        if limit is not None and self._output >= limit:
            raise _spent("output_tokens", limit, "output tokens")
        limit = self._limits["total_tokens"]
        if limit is not None and self._total >= limit:
            raise _spent("total_tokens", limit, "tokens")

    def _rooms(self, prompt: int) -> Iterable[int]:
        """How many tokens each budget lets the call generate."""
        context = self._limits["context_tokens"]
        if context is not None:
            if prompt >= context:
                raise ContextOverflow(
                    f"the prompt has {prompt} tokens and this rollout's context is limited "
                    f"to {context}",
                    prompt_tokens=prompt,
                    limit_tokens=context,
                )
            yield context - prompt
        output = self._limits["output_tokens"]
        if output is not None:
            room = output - self._output - sum(each.output for each in self._open)
            yield _room(room, "output tokens")
        total = self._limits["total_tokens"]
        if total is not None:
            held = sum(each.prompt + each.output for each in self._open)
            if self._total + prompt >= total:
                raise _spent("total_tokens", total, "tokens")
            yield _room(total - self._total - held - prompt, "tokens")

    def settle(self, reservation: Reservation, call: Call) -> None:
        """Replaces a reservation by what the call really took."""
        with self._lock:
            self._drop(reservation)
            if _made(call):
                self._add(call, reservation.prompt)

    def _drop(self, reservation: Reservation) -> None:
        self._open = [each for each in self._open if each is not reservation]

    def _add(self, call: Call, prompt: int = 0) -> None:
        output = call.completion_len if call.completion_len is not None else 0
        output = max(output, call.usage_completion or 0)
        asked = call.prompt_len or call.usage_prompt or prompt
        self._calls += 1
        self._output += output
        self._total += output + asked


def _room(room: int, what: str) -> int:
    if room <= 0:
        raise CapacityReached(
            f"the {what} that are left of this rollout's budget are reserved by calls in "
            "flight; try again",
            retry_after_s=1,
        )
    return room


def _spent(name: str, limit: Any, what: str) -> BudgetSpent:
    return BudgetSpent(
        f"the budget of this rollout is spent: {limit:g} {what}; it takes no more calls",
        budget=name,
        limit=limit,
    )


def closing_reply(model: str, time_us: int) -> dict[str, Any]:
    """A chat completion in the model's place, for a rollout that has nothing left."""
    message = {"role": "assistant", "content": FINAL_TURN_TEXT}
    return {
        "object": "chat.completion",
        "created": time_us // 1_000_000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }

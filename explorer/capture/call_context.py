"""What is known about a call before its body is read.

Owns: `CallContext`. Must not know: the order of a call's life.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from explorer.capture.budgets import Ledger
from explorer.capture.draft import Placement
from explorer.capture.fence import Fence
from explorer.capture.sampling import SamplingPlan
from explorer.capture.token_in_call import TokenInPlan
from explorer.records import Admission, CallId, IdArray, Rollout
from explorer.wire import chat
from explorer.wire.neutral import NeutralRequest
from explorer.wire.protocol import PLAIN, Target, Wire


@dataclass(frozen=True, slots=True)
class CallContext:
    """A call, its rollout and what both may use.

    Attributes:
        place: finds the stored parent of (prompt ids, completion ids).
        fence: lets calls in, and knows which weights sample.
        certificate: reads which certificate of the engine is in force now; given the
            fingerprint and model that a reply names, `NOT_CERTIFIED` when they are another
            engine's.
        known_ids: ids whose bytes need not be learned; None learns nothing.
        hold_s: how long a stream's status line is held back (seconds).
        keepalive_s: time between comments on a held stream (seconds).
        wire: the dialect; `target` is what its address said.
        ledger: the rollout's budgets.
        unary_keepalive: a whole reply is begun with blanks, too, as JSON allows; an error
            then comes with status 200.
        sampled_arguments: argument texts of the rollout's earlier tool calls, by id.
        external: the engine is a worker that keeps the tokens itself.
        token_in: what prompts are continued by their ids with; None sends messages.
    """

    call_id: CallId
    rollout: Rollout
    sequence: int
    plan: SamplingPlan
    place: Callable[[IdArray, IdArray], Placement]
    certificate: Callable[[str | None, str | None], str]
    known_ids: Container[int] | None = None
    timeout_s: float = 900.0
    hold_s: float = 5.0
    keepalive_s: float = 5.0
    wire: Wire = chat
    target: Target = PLAIN
    ledger: Ledger = field(default_factory=Ledger)
    unary_keepalive: bool = False
    sampled_arguments: Mapping[str, str] = field(default_factory=dict)
    external: bool = False
    token_in: TokenInPlan | None = None
    fence: Fence = field(default_factory=Fence)

    def admission(self, time_us: int, request: NeutralRequest, sha256: str) -> Admission:
        """The row that is written before the engine is asked."""
        return Admission(
            call_id=self.call_id,
            rollout_id=self.rollout.rollout_id,
            sequence=self.sequence,
            started_us=time_us,
            dialect=self.wire.DIALECT,
            stream=request.stream,
            n_tools=len(request.tools),
            request_sha256=sha256,
        )

    def time_for_a_reply(self, time_us: int) -> float:
        """How long the engine may take: the rollout may have less left (seconds)."""
        left = self.ledger.remaining_s(time_us)
        return self.timeout_s if left is None else min(left, self.timeout_s)

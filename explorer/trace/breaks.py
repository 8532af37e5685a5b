"""Why a prompt left the sequence it might have continued.

Owns: `PrefixBreak`, the closed list of causes and the rules that name one.
Must not know: how the break was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from explorer.records import Call, CallId


class BreakCause(StrEnum):
    """What changed between a prompt and the nearest earlier sequence. Closed."""

    SAME_PROMPT = "same_prompt"
    SYSTEM_CHANGED = "system_changed"
    TOOLS_CHANGED = "tools_changed"
    COMPACTION = "compaction"
    HISTORY_REWRITTEN = "history_rewritten"
    REASONING_DROPPED = "reasoning_dropped_or_reserialised"
    UNRELATED = "unrelated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """Where a prompt stops agreeing with the nearest earlier sequence.

    Attributes:
        nearest_call_id: the earlier call that shares most leading tokens.
        offset: how many tokens are shared; the position of the first difference.
        expected_id: the nearest sequence's id there, None when it ends there.
        actual_id: the prompt's id there, None when the prompt ends there.
    """

    nearest_call_id: CallId
    offset: int
    expected_id: int | None
    actual_id: int | None
    cause: BreakCause


def name_cause(
    call: Call, nearest: Call, offset: int, actual_id: int | None, before: Call | None = None
) -> BreakCause:
    """The first rule that the evidence supports; `UNKNOWN` when none does.

    Args:
        before: the call admitted just before, whatever it was for.
    """
    if actual_id is None:
        return BreakCause.SAME_PROMPT
    mine, theirs = call.message_digests, nearest.message_digests
    compared = bool(mine and theirs)
    if offset == 0:
        return BreakCause.UNRELATED
    if compared and not set(mine) & _said(nearest):
        summed_up = before is not None and _asked_for_summary(call, nearest, before)
        return BreakCause.COMPACTION if summed_up else BreakCause.UNRELATED
    if call.system_digest != nearest.system_digest:
        return BreakCause.SYSTEM_CHANGED
    if call.tools_digest != nearest.tools_digest:
        return BreakCause.TOOLS_CHANGED
    if not compared:
        return BreakCause.UNKNOWN
    if mine[: len(theirs)] == theirs:
        if len(mine) == len(theirs):
            return BreakCause.UNKNOWN
        # Every message came back as it was, and still the tokens differ: the template
        # rendered an earlier assistant turn in another way than it was sampled.
        intact = nearest.reply_digest in (None, mine[len(theirs)])
        return BreakCause.REASONING_DROPPED if intact else BreakCause.HISTORY_REWRITTEN
    if len(mine) < len(theirs):
        is_rewind = theirs[: len(mine)] == mine
        return BreakCause.UNKNOWN if is_rewind else BreakCause.COMPACTION
    return BreakCause.HISTORY_REWRITTEN


def _asked_for_summary(call: Call, nearest: Call, before: Call) -> bool:
    """Whether the call just before read the whole conversation with other tools than the
    agent's, after which the agent goes on from a few new messages: it was summed up."""
    theirs = nearest.message_digests
    same_agent = (call.system_digest, call.tools_digest) == (
        nearest.system_digest,
        nearest.tools_digest,
    )
    read_it_all = (
        len(before.message_digests) > len(theirs)
        and before.message_digests[: len(theirs)] == theirs
        and before.tools_digest != call.tools_digest
    )
    shorter = len(call.message_digests) < len(before.message_digests)
    return same_agent and read_it_all and shorter


def _said(call: Call) -> set[str]:
    said = set(call.message_digests)
    if call.reply_digest is not None:
        said.add(call.reply_digest)
    return said

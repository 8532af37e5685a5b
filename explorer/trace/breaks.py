"""Why a prompt left the sequence it might have continued.

Owns: `PrefixBreak` and the rules that name a cause from the messages.
Must not know: how the break was found, token ids (`rerendered`).
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.records import Call, CallId
from explorer.trace.causes import BreakCause
from explorer.trace.claims import conversation_of


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """Where a prompt stops agreeing with the nearest earlier sequence.

    Attributes:
        nearest_call_id: the earlier call that shares most leading tokens.
        offset: how many tokens are shared; the position of the first difference.
        expected_id: the nearest sequence's id there, None when it ends there.
        actual_id: the prompt's id there, None when the prompt ends there.
        rendered_anew: every message came back as it was, and still the tokens differ.
    """

    nearest_call_id: CallId
    offset: int
    expected_id: int | None
    actual_id: int | None
    cause: BreakCause
    rendered_anew: bool = False


def name_cause(
    call: Call, nearest: Call, offset: int, actual_id: int | None, before: Call | None = None
) -> BreakCause | None:
    """The first rule that the evidence supports; `UNKNOWN` when none does, and None when the
    messages came back as they were, so that only the tokens can tell.

    Args:
        before: the call admitted just before, whatever it was for.
    """
    if actual_id is None:
        return BreakCause.SAME_PROMPT
    mine, theirs = call.message_digests, nearest.message_digests
    compared = bool(mine and theirs)
    if offset == 0:
        return BreakCause.UNRELATED
    if compared and mine[: len(theirs)] != theirs:
        if _summed_up(call, nearest, before):
            return BreakCause.COMPACTION
        if _begins_anew(call, nearest):
            return BreakCause.UNRELATED
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
        return None if intact else BreakCause.HISTORY_REWRITTEN
    if len(mine) < len(theirs):
        is_rewind = theirs[: len(mine)] == mine
        return BreakCause.UNKNOWN if is_rewind else BreakCause.COMPACTION
    return BreakCause.HISTORY_REWRITTEN


def _begins_anew(call: Call, nearest: Call) -> bool:
    """Whether nothing but a preamble is common to the two conversations."""
    mine, theirs = call.message_digests, nearest.message_digests
    if not set(mine) & _said(nearest):
        return True
    if nearest.reply_digest is not None and nearest.reply_digest in mine:
        return False
    # Another system prompt and another first message, though the task may stand in both.
    other_start = call.system_digest != nearest.system_digest and mine[0] != theirs[0]
    here, there = conversation_of(call), conversation_of(nearest)
    return other_start or (bool(here and there) and here != there)


def _summed_up(call: Call, nearest: Call, before: Call | None) -> bool:
    """Whether the conversation goes on from a shorter form of what was said before."""
    mine, theirs = call.message_digests, nearest.message_digests
    if call.tools_digest == nearest.tools_digest and _moved_up(mine, theirs):
        return True
    if before is None:
        return False
    all_new = not set(mine) & _said(nearest)
    if (all_new or _answered_by(call, before)) and _asked_for_summary(call, nearest, before):
        return True
    return mine[0] != theirs[0] and _summed_up_in_band(call, nearest, before)


def _moved_up(mine: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    """Whether some message stands nearer to the beginning than it stood before: what was
    between is gone. A message said more than once proves nothing."""
    if len(mine) >= len(theirs):
        return False
    places: dict[str, int] = {}
    for place, digest in enumerate(theirs):
        places[digest] = -1 if digest in places else place
    return any(places.get(digest, -1) > place for place, digest in enumerate(mine))


def _answered_by(call: Call, before: Call) -> bool:
    return before.reply_digest is not None and before.reply_digest in call.message_digests


def _asked_for_summary(call: Call, nearest: Call, before: Call) -> bool:
    """Whether the call just before read the whole conversation with other tools than the
    agent's, after which the agent goes on from a few new messages or from its very answer:
    it was summed up."""
    theirs = nearest.message_digests
    if not _same_agent(call, nearest) or before.tools_digest == call.tools_digest:
        return False
    read_it_all = (
        len(before.message_digests) > len(theirs)
        and before.message_digests[: len(theirs)] == theirs
    )
    shorter = len(call.message_digests) < len(before.message_digests)
    return (read_it_all and shorter) or _answered_by(call, before)


def _summed_up_in_band(call: Call, nearest: Call, before: Call) -> bool:
    """Whether the harness itself says that this is still the conversation that just ended
    in an answer without a tool call, and yet goes on from fewer messages. Its system prompt
    may hold a mark of the first message, so that is not compared.
    """
    claimed = conversation_of(call)
    return (
        bool(claimed)
        and claimed == conversation_of(before) == conversation_of(nearest)
        and call.tools_digest is not None
        and call.tools_digest == before.tools_digest == nearest.tools_digest
        and before.finish_reason == "stop"
        and len(call.message_digests) < len(before.message_digests)
    )


def _same_agent(call: Call, nearest: Call) -> bool:
    return (call.system_digest, call.tools_digest) == (
        nearest.system_digest,
        nearest.tools_digest,
    )


def _said(call: Call) -> set[str]:
    said = set(call.message_digests)
    if call.reply_digest is not None:
        said.add(call.reply_digest)
    return said

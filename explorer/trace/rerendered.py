"""Why a turn that came back unchanged has other tokens, told by the ids alone.

Owns: `rerender_cause`: reasoning dropped, template boundary, re-serialised arguments.
Must not know: texts, tokenizers, the tree.

The messages of the new request repeat the earlier call and its reply, and yet the prompt
leaves the sampled tokens somewhere. What follows in the prompt says why: an answer whose
front is gone and whose rest goes on, an answer that is whole but for its first or last
tokens, or an answer with a tool call that differs in its middle and ends alike. Without one
of these the cause is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer.records import Call, IdArray
from explorer.trace.causes import BreakCause
from explorer.trace.prefix import shared_length

# First or last tokens of a turn that a template may join with what stands beside them.
SEAM = 2
# Tokens of an answer's front that may still agree where reasoning was dropped: its mark.
FRONT = 4
# What a template may put where something was: an empty block of reasoning, a blank.
INSERTED = 16
# Equal tokens that are no accident; fewer count only when they end the answer.
STRETCH = 8
LAST_STRETCH = 3
# Tokens that cannot hold a whole tool call.
SHORTEST_CALL = 4
# An answer that repeats itself could be tried in as many places as it has tokens.
_TRIED = 32
_TOOL_CALLS = frozenset(("tool_calls", "function_call"))
_TOOL_NOTE = "tool_calls_with_stop"


@dataclass(frozen=True, slots=True)
class Rerendered:
    """A sampled turn and what stands in its place in a later prompt.

    Attributes:
        call: the call that sampled it.
        kept: how many of its sampled ids the prompt has; below zero when the prompt leaves
            it in the tokens just before, which open the turn.
        prompt: the prompt's ids from where it leaves the turn; as many as `window` says.
    """

    call: Call
    kept: int
    prompt: IdArray


def window(completion: int) -> int:
    """How many ids of the prompt are worth looking at for so many sampled ones."""
    return 2 * completion + 4 * INSERTED


def rerender_cause(turn: Rerendered) -> BreakCause:
    """The cause that the ids prove, `UNKNOWN` when they prove none."""
    sampled = turn.call.completion
    if sampled is None or not sampled.size:
        return BreakCause.UNKNOWN
    kept = max(turn.kept, 0)
    if kept > SEAM and kept >= sampled.size - SEAM:
        return BreakCause.TEMPLATE_BOUNDARY
    rest = sampled[kept:]
    if kept <= max(FRONT, SEAM):
        found = _goes_on(rest, turn.prompt)
        if found is not None:
            removed, inserted, _ = found
            if kept + removed <= SEAM:
                return BreakCause.TEMPLATE_BOUNDARY
            # More is gone than a seam, and more than has come.
            if removed > inserted and turn.call.usage_reasoning != 0:
                return BreakCause.REASONING_DROPPED
    if _has_tool_calls(turn.call) and _in_tool_call(turn, kept, rest):
        return BreakCause.RESERIALISED_ARGUMENTS
    return BreakCause.UNKNOWN


def _in_tool_call(turn: Rerendered, kept: int, rest: IdArray) -> bool:
    """Whether the break lies inside the tool call that ends the answer.

    Its front must be intact, its end come again, and nothing be left out at the break that
    does not come again before that end. Where the engine counts the tokens of the reasoning,
    the break must lie behind them; where it does not, the break might lie in reasoning, so
    what is between break and end must be too short for a whole call, or have tokens that
    changed places, or differ again at once as JSON does that was written anew.
    """
    end = _end_again(rest, turn.prompt)
    if kept <= FRONT or end is None:
        return False
    middle = turn.prompt[:end]
    found = _goes_on(rest, turn.prompt)
    removed, inserted, stretch = found or (0, 0, 0)
    cut_out = removed - inserted > SEAM and removed < rest.size - STRETCH
    moved = cut_out and _holds(middle, rest[:removed])
    if cut_out and not moved:
        return False
    counted = turn.call.usage_reasoning
    if counted is not None:
        return kept > counted + FRONT
    if stretch >= STRETCH:
        return moved
    return end <= SHORTEST_CALL or _agrees_shortly(rest, middle)


def _agrees_shortly(rest: IdArray, middle: IdArray) -> bool:
    """Whether both sides agree again near the break, for a few tokens."""
    near = rest[: 2 * STRETCH].tolist()
    return any(
        near[place : place + 2] == middle[other : other + 2].tolist()
        for place in range(len(near) - 1)
        for other in range(min(2 * STRETCH, middle.size - 1))
    )


def _goes_on(rest: IdArray, prompt: IdArray) -> tuple[int, int, int] | None:
    """Where the answer goes on behind the break: how many of its tokens were left out, how
    many others stand in their place, and for how long it goes on; the longest counts."""
    best: tuple[int, int, int] | None = None
    for inserted in range(min(INSERTED + 1, prompt.size)):
        ahead = prompt[inserted:]
        for removed in _starts(rest, ahead):
            length = shared_length(rest[removed:], ahead)
            to_end = length == rest.size - removed
            proves = length >= STRETCH or (to_end and length >= LAST_STRETCH)
            if proves and (best is None or length > best[0]):
                best = (length, removed, inserted)
    return None if best is None else (best[1], best[2], best[0])


def _starts(rest: IdArray, ahead: IdArray) -> list[int]:
    """Where in `rest` the first ids of `ahead` stand, or what is left of `rest` there."""
    alike = rest == ahead[0]
    for place in range(1, min(STRETCH, ahead.size, rest.size)):
        alike[: rest.size - place] &= rest[place:] == ahead[place]
    return [int(place) for place in np.flatnonzero(alike)[:_TRIED]]


def _has_tool_calls(call: Call) -> bool:
    return call.finish_reason in _TOOL_CALLS or any(
        note.code == _TOOL_NOTE for note in call.notes
    )


def _end_again(rest: IdArray, prompt: IdArray) -> int | None:
    """Where in the prompt the last tokens of the answer come again, its stop mark last."""
    if rest.size <= LAST_STRETCH:
        return None
    places = _places(prompt, rest[-LAST_STRETCH:])
    return int(places[0]) if places.size else None


def _holds(ids: IdArray, part: IdArray) -> bool:
    return bool(_places(ids, part).size)


def _places(ids: IdArray, part: IdArray) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Where `part` stands in `ids`."""
    alike = np.ones(max(ids.size - part.size + 1, 0), np.bool_)
    for place in range(part.size):
        alike &= ids[place : place + alike.size] == part[place]
    return np.flatnonzero(alike)

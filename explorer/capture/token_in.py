"""Which earlier call a conversation continues, and the exact ids of that call.

Owns: the book of one rollout: conversations by strict digests, tokens as deltas.
Must not know: tokenizers, engines, the order of a call's life.

Unlike the prefix index this looks at messages, not at tokens; unlike the digests on record it
is strict: a reply counts as the one that was served only where its text and the parsed
arguments of its calls are the same. Nothing is guessed: where two calls could be meant, none
is.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from explorer.capture.token_in_digest import Conversation
from explorer.records import Call, CallId, CallStatus, CaptureLevel, Fallback, IdArray
from explorer.wire.ids import origin_of_tool

_PER_TURN_BYTES = 1200


@dataclass(frozen=True, slots=True)
class Turn:
    """A call that may be continued.

    Attributes:
        problem: why it cannot be, although it was answered.
        by_ids: its own prompt was sent as ids.
        asked_end: its request named the id that ended it as a stop.
    """

    call_id: CallId
    said: Conversation
    problem: Fallback | None
    by_ids: bool
    asked_end: bool = False


class Continued(NamedTuple):
    """The call that a conversation continues.

    Attributes:
        history: messages before the reply.
        prompt, completion: its ids.
    """

    turn: Turn
    history: int
    prompt: IdArray
    completion: IdArray


class _Tokens(NamedTuple):
    parent: CallId | None
    prefix_len: int
    delta: IdArray
    completion: IdArray


class Book:
    """The answered calls of one rollout, findable by conversation; safe across threads."""

    def __init__(self) -> None:
        self._turns: dict[bytes, list[Turn]] = {}
        self._tokens: dict[CallId, _Tokens] = {}
        self._lock = threading.Lock()
        self.size_bytes = 0

    def add(
        self, call: Call, said: Conversation | None, reply: Mapping[str, Any] | None
    ) -> None:
        """A durable call may be continued from now on.

        Args:
            said: its request, shaped for the engine; None where it cannot be continued.
            reply: the message as the harness got it, None where it got none.
        """
        if call.prompt_delta is not None and call.completion is not None:
            with self._lock:
                self._tokens[call.call_id] = _Tokens(
                    call.stored_parent_id, call.prefix_len, call.prompt_delta, call.completion
                )
                self.size_bytes += 4 * int(call.prompt_delta.size + call.completion.size)
        if call.status is not CallStatus.COMMITTED or said is None or reply is None:
            return
        turn = Turn(call.call_id, said, _problem(call), _by_ids(call), _asked_end(call))
        key = said.key_with(reply)
        with self._lock:
            self._turns.setdefault(key, []).append(turn)
            self.size_bytes += _PER_TURN_BYTES

    def continued(
        self, messages: Sequence[Mapping[str, Any]], said: Conversation
    ) -> Continued | Fallback | None:
        """The call that a request continues with its exact ids; a reason where that cannot be
        told or used; None where a new conversation begins.

        Args:
            said: what the messages say.
        """
        spoken = [
            place
            for place, message in enumerate(messages)
            if message.get("role") == "assistant"
        ]
        if not spoken or not self._turns:
            return None
        last = spoken[-1]
        if last == len(messages) - 1:
            return Fallback.PREFILL
        with self._lock:
            found = list(self._turns.get(said.keys[last], ()))
        found = [turn for turn in found if _may_be(turn, messages[last])]
        if not found:
            return Fallback.HISTORY_EDITED
        # Another agent may have had the same words said to it under another system prompt.
        found = [turn for turn in found if turn.said.head == said.head] or found
        turn = found[-1]
        if turn.said.system != said.system:
            return Fallback.SYSTEM_CHANGED
        if turn.said.tools != said.tools:
            return Fallback.TOOLS_CHANGED
        if turn.said.rendering != said.rendering:
            return Fallback.RENDERING_CHANGED
        if turn.problem is not None:
            return turn.problem
        return self._with_ids(turn, found, last)

    def _with_ids(self, turn: Turn, found: Sequence[Turn], last: int) -> Continued | Fallback:
        ids = [self._sequence(each.call_id) for each in found]
        mine = ids[-1]
        if mine is None:
            return Fallback.PARENT_NOT_CAPTURED
        if not all(other is not None and np.array_equal(other, mine) for other in ids):
            return Fallback.AMBIGUOUS_PARENT
        completion = self._tokens[turn.call_id].completion
        at = int(mine.size - completion.size)
        return Continued(turn, last, mine[:at], completion)

    def _sequence(self, call_id: CallId) -> IdArray | None:
        """Prompt and completion of a call, put together from the deltas; None where one of
        them is missing."""
        parts: list[IdArray] = []
        wanted: int | None = None
        at: CallId | None = call_id
        with self._lock:
            while at is not None and wanted != 0:
                tokens = self._tokens.get(at)
                if tokens is None:
                    return None
                own = np.concatenate((tokens.delta, tokens.completion))
                if wanted is None:
                    parts.append(own)
                    wanted = tokens.prefix_len
                elif wanted > tokens.prefix_len:
                    parts.append(own[: wanted - tokens.prefix_len])
                    wanted = tokens.prefix_len
                at = tokens.parent
        return None if wanted else np.concatenate(parts[::-1])


def _problem(call: Call) -> Fallback | None:
    """Why a call cannot be continued by its ids."""
    if call.capture_level is not CaptureLevel.TOKENS or call.prompt_delta is None:
        return Fallback.PARENT_NOT_CAPTURED
    if call.completion is None or not call.completion.size:
        return Fallback.PARENT_NOT_CAPTURED
    if call.finish_reason not in ("stop", "tool_calls", "function_call"):
        return Fallback.PARENT_CUT
    # A stop text ends a turn without its end token; an id may be that token.
    if call.stop_reason is not None and not call.stop_reason.isdigit():
        return Fallback.PARENT_CUT
    return None


def _may_be(turn: Turn, reply: Mapping[str, Any]) -> bool:
    """Whether an echoed reply may be that of a call: its tool calls name it."""
    calls = reply.get("tool_calls")
    named = [
        origin_of_tool(call.get("id"))
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, Mapping)
    ]
    return all(origin is None or origin[0] == turn.call_id for origin in named)


def _asked_end(call: Call) -> bool:
    """Whether a call ended by an id that its own request named."""
    asked = call.submitted_sampling.get("stop_token_ids")
    named = asked if isinstance(asked, list | tuple) else ()
    return call.stop_reason is not None and call.stop_reason in map(str, named)


def _by_ids(call: Call) -> bool:
    return call.token_in is not None and call.token_in.sent

"""What a conversation adds to a prompt, as ids: the seam of token-in.

Owns: `SuffixTokenizer`, the cut behind the reply that was sampled, and the checks that make a
template's answer trustworthy.
Must not know: calls, the store, where the parent's ids come from.

The parent's prompt and completion are never rendered again; only what stands behind the
reply is. Three things must hold, or there is no answer:

    the earlier messages, rendered alone, begin the whole conversation's rendering
    the template closes the reply with the very token that was sampled last
    that token, encoded with what follows, is still itself

The closing token is the template's own: one that merely stands in a message's text, or is
ordinary text (a line feed that a request named as a stop), would cut a turn in two.

Reasoning is taken out of all messages for it: templates drop it at places of their own, and
none of those places matters for what comes after the reply.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from explorer.engine.protocol import Engine
from explorer.engine.tiny.parts import Prompts
from explorer.errors import BadRequest, ConfigurationError, UpstreamFailed
from explorer.records import Fallback

# A word that no conversation has, without anything that a template or JSON would change.
MARK = "qzTokenInMark7c41e0d9"
_NEXT = "qzTokenInNext7c41e0d9"
# Tokens that a template writes behind the end of a turn, before the next one begins.
_MOST_BEHIND = 3
# Rendering a longer conversation a second time, to see what was avoided, costs too much.
MOST_COMPARED_CHARS = 2_000_000
_REASONING = ("reasoning", "reasoning_content", "thinking", "thinking_blocks")


@dataclass(frozen=True, slots=True)
class Extend:
    """A conversation that continues a sampled reply.

    Attributes:
        body: the chat request as it would be sent.
        history: how many of its messages stand before the reply.
        end_id: the last id that was sampled for the reply.
        expected: ids of the parent's prompt, where the engine rendered it itself: rendering
            the history must give them, or the template is not the engine's.
        asked_end: whether the parent's request named that id as a stop itself, so that it
            need not be the end of a turn.
    """

    body: Mapping[str, Any]
    history: int
    end_id: int
    expected: tuple[int, ...] | None = None
    asked_end: bool = False


@dataclass(frozen=True, slots=True)
class Extension:
    """Ids behind the reply, or why there are none; `rendered` are those of the whole body
    as it would have been sent, None where nobody rendered it."""

    suffix: tuple[int, ...] | None = None
    reason: Fallback | None = None
    rendered: tuple[int, ...] | None = None


class SuffixTokenizer(Protocol):
    """Tokenises what is new in a conversation."""

    async def extend(self, wanted: Extend) -> Extension:
        """The ids behind the reply. Never raises for what a template does."""
        ...


class TemplateSuffix:
    """By a chat template and tokenizer on this machine; blocks, one thread at a time."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts

    def extend(self, wanted: Extend) -> Extension:
        """The ids behind the reply, or why there are none."""
        try:
            return self._extend(wanted)
        except (BadRequest, AttributeError, LookupError, RecursionError):
            return Extension(reason=Fallback.TEMPLATE_NOT_EXTENDABLE)

    def _extend(self, wanted: Extend) -> Extension:
        prompts, body = self._prompts, wanted.body
        messages = list(body["messages"])
        history = messages[: wanted.history]
        if wanted.expected is not None:
            earlier = prompts.ids(_with(body, history))
            if tuple(earlier) != wanted.expected:
                return Extension(reason=Fallback.TEMPLATE_DIFFERS)
        plain = [without_reasoning(message) for message in messages]
        plain[wanted.history] = marked(plain[wanted.history])
        before = prompts.text(_with(body, plain[: wanted.history], generation=False))
        whole = prompts.text(_with(body, plain))
        end = prompts.tokenizer.raw(wanted.end_id).decode("utf-8", "replace")
        if whole.count(MARK) != 1 or not whole.startswith(before) or not end:
            return Extension(reason=Fallback.TEMPLATE_NOT_EXTENDABLE)
        closing = self._closing(_with(body, plain), wanted, end)
        at = whole.index(MARK) + len(closing or "")
        if closing is None or not whole.startswith(closing + end, whole.index(MARK)):
            return Extension(reason=Fallback.PARENT_CUT)
        ids = prompts.encode(whole[at:], body)
        if not ids or ids[0] != wanted.end_id:
            return Extension(reason=Fallback.TEMPLATE_NOT_EXTENDABLE)
        rendered = None
        if len(whole) <= MOST_COMPARED_CHARS:
            rendered = tuple(prompts.ids(body))
        return Extension(tuple(ids[1:]), rendered=rendered)

    def _closing(self, body: Mapping[str, Any], wanted: Extend, end: str) -> str | None:
        """The text from the mark up to the end of the reply's turn, told by a rendering in
        which nothing that follows has a text of its own; None where the template does not
        end the turn so."""
        if not self._prompts.tokenizer.is_special(wanted.end_id):
            return None
        messages = list(body["messages"])
        later = [{**each, "content": _NEXT} for each in messages[wanted.history + 1 :]]
        bare = self._prompts.text(
            {**body, "messages": [*messages[: wanted.history + 1], *later]}
        )
        start = bare.find(MARK)
        at = bare.find(end, start, bare.find(_NEXT, start) + 1)
        return None if at < 0 else bare[start:at]

    def preserving(self) -> bool:
        """Whether the template leaves a turn as it is when a tool's result follows; what
        TRL's `is_chat_template_prefix_preserving` asks."""
        call = {
            "id": "call_0",
            "type": "function",
            "function": {"name": "dummy", "arguments": "{}"},
        }
        turns: list[dict[str, Any]] = [
            {"role": "user", "content": "dummy"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        result = {"role": "tool", "name": "dummy", "content": "dummy", "tool_call_id": "call_0"}
        try:
            first = self._prompts.ids(_with({}, turns, generation=False))
            second = self._prompts.ids(_with({}, [*turns, result], generation=False))
        except (BadRequest, AttributeError, LookupError):
            return False
        return second[: len(first)] == first


class EngineSuffix:
    """By the engine's own tokenize route, where no template is known here."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def extend(self, wanted: Extend) -> Extension:
        """The difference of two renderings, of which the first must begin the second."""
        try:
            return await self._extend(wanted)
        except (UpstreamFailed, BadRequest):
            return Extension(reason=Fallback.NO_TOKENIZER)

    async def _extend(self, wanted: Extend) -> Extension:
        if wanted.asked_end:
            return Extension(reason=Fallback.PARENT_CUT)
        tokenize, body = self._engine.tokenize, wanted.body
        messages = list(body["messages"])
        if wanted.expected is not None:
            earlier = await tokenize(_with(body, messages[: wanted.history]))
            if earlier != wanted.expected:
                return Extension(reason=Fallback.TEMPLATE_DIFFERS)
        # Some templates give a last turn an empty block of reasoning that they take away when
        # more follows; a turn that reasons has one in both places.
        for reasoning in ("", "."):
            plain = [without_reasoning(message) for message in messages]
            if reasoning:
                plain[wanted.history] |= {"reasoning": reasoning, "reasoning_content": "."}
            turn = plain[: wanted.history + 1]
            suffix = _behind(
                await tokenize(_with(body, turn, generation=False)),
                await tokenize(_with(body, plain)),
                wanted.end_id,
            )
            if suffix is not None:
                return Extension(suffix, rendered=await tokenize(body))
        return Extension(reason=Fallback.TEMPLATE_NOT_EXTENDABLE)


class Suffixes:
    """The template on this machine where there is one, else the engine's tokenize route.

    Args:
        find: loads the engine's tokenizer and template; None where none is here. Blocks.
    """

    def __init__(self, engine: Engine, find: Callable[[], Prompts | None]) -> None:
        self._find = find
        self._by_engine = EngineSuffix(engine)
        self._local: TemplateSuffix | None = None
        self._looked = False
        self._lock = threading.Lock()

    async def extend(self, wanted: Extend) -> Extension:
        """The ids behind the reply, or why there are none."""
        found = await asyncio.to_thread(self._here, wanted)
        if found is not None and found.reason is not Fallback.TEMPLATE_DIFFERS:
            return found
        other = await self._by_engine.extend(wanted)
        if found is not None and other.reason is Fallback.NO_TOKENIZER:
            return found
        return other

    def _here(self, wanted: Extend) -> Extension | None:
        # Loading takes a second, and a tokenizer is used by one thread at a time.
        with self._lock:
            if not self._looked:
                self._looked = True
                try:
                    prompts = self._find()
                except ConfigurationError:
                    prompts = None
                self._local = None if prompts is None else TemplateSuffix(prompts)
            return None if self._local is None else self._local.extend(wanted)


def _behind(turn: Sequence[int], whole: Sequence[int], end_id: int) -> tuple[int, ...] | None:
    """The ids of `whole` behind the end of `turn`, which must begin it. The end stands at the
    end: farther up it closes another turn, or is part of somebody's text."""
    for place in range(len(turn) - 1, max(-1, len(turn) - 2 - _MOST_BEHIND), -1):
        if turn[place] == end_id:
            kept = place + 1
            return tuple(whole[kept:]) if whole[:kept] == turn[:kept] else None
    return None


def _with(
    body: Mapping[str, Any], messages: list[Any], *, generation: bool = True
) -> dict[str, Any]:
    return {**body, "messages": messages, "add_generation_prompt": generation}


def without_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without what was thought before it."""
    return {key: value for key, value in message.items() if key not in _REASONING}


def marked(reply: Mapping[str, Any]) -> dict[str, Any]:
    """The reply with the mark where a template writes it last: in the arguments of its last
    tool call, else as its text."""
    calls = reply.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return {**reply, "content": MARK}
    last = calls[-1]
    function = {**last["function"], "arguments": f'{{"mark": "{MARK}"}}'}
    return {**reply, "tool_calls": [*calls[:-1], {**last, "function": function}]}

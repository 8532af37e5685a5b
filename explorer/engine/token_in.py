"""Ids as a prompt: whether an engine takes them, how they are sent, how the reply is read.

Owns: the probe's two questions, the body of each way, and the parser of a reply that came
back as plain text.
Must not know: which ids, what they continue.

`/inference/v1/generate` takes ids too, but does not give those of the prompt back: nobody
could say what the engine read. So it is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from explorer.engine.protocol import Engine, EngineRequest
from explorer.engine.reply import ParsedReply, parse_reply
from explorer.engine.tiny.parse import parse_message
from explorer.errors import UpstreamFailed
from explorer.records import CaptureLevel

# Under a certificate's `numbers`: which way the probe found.
PROBED = "token_in"


class Way(StrEnum):
    """How ids reach the engine."""

    CHAT = "kv_transfer_params"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class TakesIds:
    """How an engine takes ids; `way` is None where it does not. `flags` are those that it was
    started with, `max_model_len` is its context (tokens)."""

    way: Way | None = None
    flags: tuple[str, ...] | None = None
    max_model_len: int | None = None

    @classmethod
    def told_by(cls, numbers: Mapping[str, Any]) -> TakesIds:
        """As a certificate's measurements say."""
        way, flags = numbers.get(PROBED), numbers.get("flags")
        return cls(
            None if way is None else Way(way),
            None if flags is None else tuple(flags),
            numbers.get("max_model_len"),
        )


class Asks(Protocol):
    """What asks an engine small questions."""

    engine: Engine

    def request(self, content: str, **more: Any) -> EngineRequest:
        """A chat request of one user message."""
        ...


async def find_way(asker: Asks) -> Way | None:
    """The way by which the engine reads the ids that it is sent, told by those that it gives
    back; None where there is none, or the engine broke off: that proves nothing of its
    logprobs.
    """
    try:
        return await _find_way(asker)
    except UpstreamFailed:
        return None


async def _find_way(asker: Asks) -> Way | None:
    first = asker.request("Say only: ok", temperature=1.0, max_tokens=1, seed=1)
    plain = await _prompt_of(asker.engine, first)
    if not plain:
        return None
    # Another prompt than the messages make, of ids that the engine knows.
    ids = [*plain, *plain[-2:]]
    again = asker.request("Say only: ok", temperature=1.0, max_tokens=1, seed=1)
    chat = replace(again, body=with_ids(again.body, ids))
    if await _prompt_of(asker.engine, chat) == ids:
        return Way.CHAT
    last = asker.request("Say only: ok", temperature=1.0, max_tokens=1, seed=1)
    text = replace(last, body=as_completion(last.body, ids, 1))
    return Way.COMPLETIONS if await _prompt_of(asker.engine, text) == ids else None


async def _prompt_of(engine: Engine, request: EngineRequest) -> list[int]:
    reply = await engine.generate(request)
    parsed = parse_reply(reply.status, reply.body)
    return [] if parsed.prompt_ids is None else [int(each) for each in parsed.prompt_ids]


def with_ids(body: Mapping[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    """A chat body whose prompt is these ids; the messages stay for whoever reads it."""
    return {**body, "kv_transfer_params": {"prompt_token_ids": list(ids)}}


# What plain completions have too, under the same name and with the same meaning.
_SHARED = (
    *("model", "temperature", "top_p", "top_k", "min_p", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "seed", "stop", "stop_token_ids"),
    *("ignore_eos", "min_tokens", "logit_bias", "bad_words", "allowed_token_ids"),
    *("return_token_ids", "priority", "cache_salt", "user", "return_weight_versions"),
)
# What only chat can do: a reply without it would be another one.
_CHAT_ONLY = (
    *("response_format", "structured_outputs", "guided_json", "guided_regex"),
    *("guided_choice", "guided_grammar", "guided_decoding", "thinking_token_budget"),
    *("function_call", "n"),
)


def needs_chat(body: Mapping[str, Any]) -> bool:
    """Whether the body asks for what plain completions cannot do."""
    if body.get("tool_choice") not in (None, "auto", "none"):
        return True
    return any(body.get(name) not in (None, 1) for name in _CHAT_ONLY)


def as_completion(
    body: Mapping[str, Any], ids: Sequence[int], max_tokens: int
) -> dict[str, Any]:
    """A chat body as a plain completion of these ids."""
    made = {name: body[name] for name in _SHARED if name in body}
    asked = body.get("top_logprobs")
    made |= {
        "prompt": list(ids),
        "max_tokens": max_tokens,
        "logprobs": asked if type(asked) is int and 0 <= asked <= 20 else 0,
    }
    return made


Parser = Callable[[ParsedReply], ParsedReply]


def find_parser(flags: Sequence[str] | None, body: Mapping[str, Any]) -> Parser | None:
    """What the engine itself would have made of the text, by the flags that it was started
    with; None where one of its parsers is not known here."""
    if flags is None:
        return None
    reasoning = _flag(flags, "reasoning_parser", "--reasoning-parser")
    called = _flag(flags, "tool_call_parser", "--tool-call-parser")
    tools = bool(body.get("tools")) and body.get("tool_choice") != "none"
    if reasoning not in ("", "qwen3") or called not in ("", "hermes"):
        return None
    if tools and not called:
        return None

    def parse(reply: ParsedReply) -> ParsedReply:
        return _parsed(reply, tools=tools, thinks=bool(reasoning))

    return parse


def _flag(flags: Sequence[str], declared: str, option: str) -> str:
    """The value of an option, from a command line or from what a server declares."""
    for place, flag in enumerate(flags):
        name, _, value = flag.partition("=")
        if name.rpartition(".")[2] == declared or name == option:
            return value or (flags[place + 1] if place + 1 < len(flags) else "")
    return ""


def _parsed(reply: ParsedReply, *, tools: bool, thinks: bool) -> ParsedReply:
    """A text completion's reply with reasoning and tool calls told apart. The ids, logprobs
    and the end stay those that the engine gave."""
    if reply.body is None or reply.level is CaptureLevel.TEXT or reply.failure is not None:
        return reply
    choice = reply.body["choices"][0]
    text = choice["message"].get("content")
    if not isinstance(text, str):
        return reply
    found = parse_message(text, tools=tools, thinks=thinks)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": found.content,
        "reasoning": found.reasoning,
    }
    finish = choice.get("finish_reason")
    if found.tool_calls and finish == "stop":
        message["tool_calls"] = [call.as_json() for call in found.tool_calls]
        finish = "tool_calls"
    elif found.tool_calls:
        # As an engine does: a call that was cut stays text.
        message["content"] = text
    first = {**choice, "message": message, "finish_reason": finish}
    body = {**reply.body, "choices": [first, *reply.body["choices"][1:]]}
    return replace(reply, body=body, message=message)

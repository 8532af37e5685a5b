"""What a vLLM-shaped reply says beside its sampled ids and logprobs.

Owns: usage, alternatives, weight versions, the message's oddities, and text made storable.
Must not know: how ids and logprobs are read (`reply` does), dialects, the store.

An engine may send anything: no function here raises for what it finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from explorer.records import Note

PLACEHOLDER = "token_id:"
MAX_ID = 2**31 - 1
_MAX_DIGITS = 10
_MAX_COUNT = 2**63 - 1
_MOST_SPANS, _LONGEST_LABEL = 64, 200


def printable(text: str) -> str:
    """`text` with lone surrogates spelled out; the raw body keeps them as they came."""
    return text.encode("utf-8", "backslashreplace").decode()


def scalar_text(value: Any) -> str | None:
    """A text or number as text; None for anything else, which the raw body keeps."""
    return printable(str(value)) if isinstance(value, str | int | float) else None


def error_message(body: Any) -> str:
    """The text of an engine's error, whose `error` may be an object or a string."""
    if isinstance(body, dict):
        error = body.get("error", body.get("detail", body.get("message")))
        if isinstance(error, dict):
            error = error.get("message", error)
        if error is not None:
            try:
                return printable(str(error)[:2000])
            except RecursionError:
                return "an error message that is nested too deeply"
    return "no error message"


def placeholder_id(token: Any) -> int | None:
    """N of an engine's ``token_id:N``, None for any other text."""
    if not isinstance(token, str) or not token.startswith(PLACEHOLDER):
        return None
    digits = token[len(PLACEHOLDER) :]
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_DIGITS:
        return None
    found = int(digits)
    return found if found <= MAX_ID else None


def top_logprobs_of(entries: Sequence[Any] | None) -> bytes | None:
    """The alternatives as ``[id, text, logprob]`` triples in JSON, None without any."""
    if not entries or not _any_alternatives(entries):
        return None
    rows = [_alternatives(entry) for entry in entries]
    return orjson.dumps(rows) if any(rows) else None


def _any_alternatives(entries: Sequence[Any]) -> bool:
    """Told at once for the usual reply, which has none."""
    try:
        return any([entry["top_logprobs"] for entry in entries])
    except (KeyError, TypeError):
        return True


def _alternatives(entry: Any) -> list[list[Any]]:
    listed = entry.get("top_logprobs") if isinstance(entry, dict) else None
    row: list[list[Any]] = []
    for item in listed if isinstance(listed, list) else ():
        if not isinstance(item, dict):
            continue
        token, token_id, logprob = item.get("token"), item.get("token_id"), item.get("logprob")
        if type(token_id) is not int or not 0 <= token_id <= MAX_ID:
            token_id = placeholder_id(token)
        text = printable(token) if isinstance(token, str) else None
        row.append([token_id, text, _storable(logprob)])
    return row


def _storable(number: Any) -> float | None:
    """A number that JSON can hold, else None."""
    if type(number) is float or (type(number) is int and abs(number) <= _MAX_COUNT):
        return number
    return None


def routed_experts(choice: Mapping[str, Any]) -> Any:
    """The experts that a choice names, in the engine's own form; None where it names none."""
    message = choice.get("message")
    inner = message.get("routed_experts") if isinstance(message, dict) else None
    return choice.get("routed_experts", inner)


def usage_counts(body: Mapping[str, Any]) -> dict[str, int | None]:
    """The engine's own counts, None where it gives none."""
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}

    def count(source: Any, key: str) -> int | None:
        value = source.get(key) if isinstance(source, dict) else None
        return value if type(value) is int and abs(value) <= _MAX_COUNT else None

    return {
        "prompt": count(usage, "prompt_tokens"),
        "completion": count(usage, "completion_tokens"),
        "cached": count(usage.get("prompt_tokens_details"), "cached_tokens"),
        "reasoning": count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    }


# How models begin a tool call, in the formats that engines have parsers for. Where one of
# them is left in the text of a reply, the engine could not read what the model wrote.
_TOOL_MARKERS = (
    "<tool_call>",
    "<tool_calls>",
    "<|tool_call|>",
    "<|tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<function=",
    "<function_call>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<minimax:tool_call>",
    "<|action_start|>",
)


def _unread_tool_call(content: Any) -> str | None:
    """The marker of a tool call that the engine left in the text, if there is one."""
    if not isinstance(content, str):
        return None
    return next((marker for marker in _TOOL_MARKERS if marker in content), None)


def _check_arguments(function: Mapping[str, Any], notes: list[Note]) -> None:
    arguments = function.get("arguments")
    name = (scalar_text(function.get("name")) or "")[:100]
    if not isinstance(arguments, str):
        notes.append(Note("arguments_not_string", name))
        return
    try:
        orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        notes.append(Note("arguments_not_json", name))


def check_message(message: Mapping[str, Any], finish: Any, notes: list[Note]) -> None:
    """Notes what a harness may stumble over."""
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        ids = [call.get("id") for call in calls if isinstance(call, dict)]
        if len(set(map(str, ids))) != len(ids):
            notes.append(Note("duplicate_tool_call_id", "two tool calls share one id"))
        for call in calls:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                _check_arguments(function, notes)
        if finish == "stop":
            notes.append(Note("tool_calls_with_stop", "finish_reason is stop"))
    else:
        marker = _unread_tool_call(message.get("content"))
        if marker is not None:
            notes.append(Note("tool_call_as_text", marker))
    if finish is None or finish == "":
        notes.append(Note("finish_missing", "the reply has no finish reason"))


@dataclass(frozen=True, slots=True)
class LabelledSpan:
    """What the engine calls the weights that sampled completion ids ``start:end``."""

    label: str
    start: int
    end: int


def weight_spans(choice: Mapping[str, Any], sampled: int | None) -> tuple[LabelledSpan, ...]:
    """The weight version of each part of the completion, as the engine spells it.

    A span without places covers the whole completion where it is the only one, and nothing
    otherwise: its neighbours then show that there were several.
    """
    listed = choice.get("weight_versions")
    if not isinstance(listed, list):
        return ()
    items = [item for item in listed if isinstance(item, dict) and "version" in item]
    made = []
    for item in items[:_MOST_SPANS]:
        label = (scalar_text(item["version"]) or "unknown")[:_LONGEST_LABEL]
        start, end = _place(item.get("start")), _place(item.get("end"))
        if start is None or end is None:
            start, end = 0, sampled if len(items) == 1 and sampled is not None else 0
        made.append(LabelledSpan(label, start, end))
    return tuple(made)


def _place(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_ID else None

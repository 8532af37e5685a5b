"""Reads a vLLM-shaped chat or text completion into ids, logprobs and facts, and doubts it.

Owns: where ids and logprobs sit in a reply, how they are recovered, and which
disagreements drop the capture level.
Must not know: dialects, the store.

Nothing is repaired: a count that disagrees becomes a note, and `trace` grades it.
Ids come from the engine's `token_ids`; where those are missing, from its own
``token_id:N`` strings; never from text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from explorer.engine.completion import as_chat
from explorer.engine.replyfacts import (
    LabelledSpan,
    check_message,
    error_message,
    placeholder_id,
    printable,
    routed_experts,
    scalar_text,
    top_logprobs_of,
    usage_counts,
    weight_spans,
)
from explorer.records import (
    ABORTS,
    NULL_LOGPROB_BITS,
    CaptureLevel,
    FailureKind,
    IdArray,
    LogprobArray,
    Note,
)

_NULL = np.array([NULL_LOGPROB_BITS], dtype=np.uint32).view(np.float32)[0]
_INTEGER = {int}
_NUMBERS = {int, float}


@dataclass(frozen=True, slots=True, eq=False)
class ParsedReply:
    """What one engine reply says.

    `body` is the decoded JSON (None when it could not be read), a text completion in the
    shape of a chat completion; `failure` is set when
    the reply is no usable completion. `logprobs` has one entry per entry the engine
    gave, null as `NULL_LOGPROB_BITS`, or is None when it gave none.
    """

    body: dict[str, Any] | None = None
    failure: FailureKind | None = None
    failure_detail: str | None = None
    prompt_ids: IdArray | None = None
    completion_ids: IdArray | None = None
    logprobs: LogprobArray | None = None
    top_logprobs: bytes | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None
    level: CaptureLevel = CaptureLevel.TEXT
    upstream_id: str | None = None
    fingerprint: str | None = None
    model: str | None = None
    weight_label: str | None = None
    routed_experts: Any = None
    weight_spans: tuple[LabelledSpan, ...] = ()
    usage: dict[str, int | None] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


def loads(raw: bytes) -> Any:
    """JSON with the literals NaN and Infinity allowed, since engines do write them.

    Raises:
        ValueError: not JSON at all.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(raw)


def parse_reply(status: int, raw: bytes, *, max_tokens: int | None = None) -> ParsedReply:
    """Everything a reply says; never raises.

    Args:
        status: HTTP status of the engine.
        raw: the body as it came.
        max_tokens: what was asked for, to note a reply that is longer.
    """
    try:
        body = loads(raw)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        if status >= 400:
            return ParsedReply(
                failure=FailureKind.UPSTREAM_STATUS,
                failure_detail=f"engine answered {status} with a body that is not JSON",
            )
        return ParsedReply(
            failure=FailureKind.UPSTREAM_MALFORMED,
            failure_detail=f"engine answered {status} with a body that is not JSON: {error}",
        )
    if status >= 400:
        return ParsedReply(
            body=body if isinstance(body, dict) else None,
            failure=FailureKind.UPSTREAM_STATUS,
            failure_detail=f"engine answered {status}: {error_message(body)}",
        )
    if isinstance(body, dict):
        body = as_chat(body)
    if not isinstance(body, dict) or not _has_choice(body):
        return ParsedReply(
            body=body if isinstance(body, dict) else None,
            failure=FailureKind.UPSTREAM_MALFORMED,
            failure_detail=f"engine answered {status} without choices",
        )
    try:
        return read_completion(body, max_tokens=max_tokens)
    except RecursionError:
        return ParsedReply(
            failure=FailureKind.UPSTREAM_MALFORMED,
            failure_detail=f"engine answered {status} with a body that is nested too deeply",
        )


def _has_choice(body: Mapping[str, Any]) -> bool:
    choices = body.get("choices")
    return (
        isinstance(choices, list)
        and bool(choices)
        and all(isinstance(choice, dict) for choice in choices)
        and isinstance(choices[0].get("message"), dict)
    )


def read_completion(body: dict[str, Any], *, max_tokens: int | None = None) -> ParsedReply:
    """A completion that has at least one choice; choice 0 is read."""
    choice = body["choices"][0]
    notes: list[Note] = []
    entries = _entries(choice)
    prompt_ids = _prompt_ids(body, choice, notes)
    completion_ids = _completion_ids(body, choice, entries, notes)
    logprobs = _logprobs(entries, notes)
    usage = usage_counts(body)
    level = _level(prompt_ids, completion_ids, logprobs, notes)
    _compare_counts(prompt_ids, completion_ids, logprobs, usage, notes)
    if len(body["choices"]) > 1:
        notes.append(Note("several_choices", f"{len(body['choices'])} choices"))
    message = choice["message"]
    check_message(message, choice.get("finish_reason"), notes)
    if (
        max_tokens is not None
        and completion_ids is not None
        and completion_ids.size > max_tokens
    ):
        notes.append(Note("exceeds_max_tokens", f"{completion_ids.size} > {max_tokens}"))
    finish = choice.get("finish_reason")
    stop = choice.get("stop_reason")
    spans = weight_spans(choice, None if completion_ids is None else completion_ids.size)
    aborted = isinstance(finish, str) and finish in ABORTS
    return ParsedReply(
        body=body,
        failure=FailureKind.ENGINE_ABORTED if aborted else None,
        failure_detail=f"engine ended the generation with {finish!r}" if aborted else None,
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        logprobs=logprobs,
        top_logprobs=top_logprobs_of(entries),
        finish_reason=_text(finish) or None,
        stop_reason=scalar_text(stop),
        level=level,
        upstream_id=_text(body.get("id")),
        fingerprint=_text(body.get("system_fingerprint")),
        model=_text(body.get("model")),
        routed_experts=routed_experts(choice),
        weight_label=",".join(dict.fromkeys(span.label for span in spans)) or None,
        weight_spans=spans,
        usage=usage,
        message=message,
        notes=tuple(notes),
    )


def _text(value: Any) -> str | None:
    return printable(value) if isinstance(value, str) else None


def _entries(choice: Mapping[str, Any]) -> list[Any] | None:
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    content = logprobs.get("content")
    return content if isinstance(content, list) else None


def _id_array(value: Any, what: str, notes: list[Note]) -> IdArray | None:
    if not isinstance(value, list):
        return None
    # numpy would take True and 1.5 for numbers; an id is a true integer.
    if not set(map(type, value)) <= _INTEGER:
        notes.append(Note("invalid_token_id", f"{what} holds something that is no integer"))
        return None
    try:
        ids = np.array(value, dtype=np.int32)
    except OverflowError:
        ids = None
    if ids is None or (ids.size and int(ids.min()) < 0):
        notes.append(Note("invalid_token_id", f"{what} holds an id outside 0..2^31-1"))
        return None
    return ids


def _prompt_ids(
    body: Mapping[str, Any], choice: Mapping[str, Any], notes: list[Note]
) -> IdArray | None:
    top = _id_array(body.get("prompt_token_ids"), "prompt_token_ids", notes)
    inner = _id_array(choice.get("prompt_token_ids"), "choice prompt_token_ids", notes)
    if top is not None and inner is not None and not np.array_equal(top, inner):
        notes.append(Note("conflicting_prompt_ids", "top level and choice disagree"))
        return None
    found = top if top is not None else inner
    if found is not None and found.size == 0:
        notes.append(Note("prompt_ids_missing", "the engine sent an empty prompt"))
        return None
    return found


def _completion_ids(
    body: Mapping[str, Any],
    choice: Mapping[str, Any],
    entries: Sequence[Any] | None,
    notes: list[Note],
) -> IdArray | None:
    direct = _id_array(choice.get("token_ids"), "token_ids", notes)
    extension = _extension_ids(body, choice, notes)
    if direct is None:
        direct = extension
    elif extension is not None and not np.array_equal(direct, extension):
        notes.append(Note("ids_disagree", "token_ids and sglext differ"))
        return None
    named = _ids_from_strings(entries)
    if direct is not None and direct.size and named is not None:
        if not np.array_equal(direct, named):
            notes.append(Note("ids_disagree", "token_ids and token_id:N strings differ"))
            return None
        return direct
    if named is not None and named.size:
        notes.append(Note("ids_recovered_from_strings", f"{named.size} ids"))
        return named
    if direct is not None and not direct.size and entries:
        # Empty ids beside logprobs are missing ids, not an empty completion.
        return None
    return direct


def _extension_ids(
    body: Mapping[str, Any], choice: Mapping[str, Any], notes: list[Note]
) -> IdArray | None:
    """SGLang's place for the sampled ids: one list for each choice."""
    extension = body.get("sglext")
    lists = extension.get("completion_token_ids") if isinstance(extension, dict) else None
    index = choice.get("index") or 0
    if isinstance(lists, list) and type(index) is int and 0 <= index < len(lists):
        return _id_array(lists[index], "sglext.completion_token_ids", notes)
    return None


def _ids_from_strings(entries: Sequence[Any] | None) -> IdArray | None:
    if not entries:
        return None
    ids: list[int] = []
    for entry in entries:
        found = placeholder_id(entry.get("token") if isinstance(entry, dict) else None)
        if found is None:
            return None
        ids.append(found)
    return np.array(ids, dtype=np.int32)


def _column(entries: Sequence[Any], key: str) -> list[Any] | None:
    """One field of every entry, or None when some entry has it not."""
    try:
        return [entry[key] for entry in entries]
    except (KeyError, TypeError):
        return None


def _as_float32(values: list[float]) -> LogprobArray:
    # Beyond float32 is an infinity here, and a finding later.
    with np.errstate(over="ignore"):
        try:
            return np.array(values, dtype=np.float32)
        except OverflowError:
            return np.array([_number(value) for value in values], dtype=np.float32)


def _number(value: float) -> float:
    """`value`, an integer beyond any float as the infinity it is nearest to."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _logprobs(entries: Sequence[Any] | None, notes: list[Note]) -> LogprobArray | None:
    if entries is None:
        return None
    plain = _column(entries, "logprob")
    if plain is not None and set(map(type, plain)) <= _NUMBERS:
        return _as_float32(plain)
    values = np.empty(len(entries), dtype=np.float32)
    nulls = 0
    for position, entry in enumerate(entries):
        value = entry.get("logprob") if isinstance(entry, dict) else None
        if type(value) is float or type(value) is int:
            values[position] = _as_float32([value])[0]
        else:
            values[position] = _NULL
            nulls += 1
    if nulls:
        notes.append(Note("logprob_null", f"{nulls} of {len(entries)} logprobs are null"))
    return values


def _level(
    prompt_ids: IdArray | None,
    completion_ids: IdArray | None,
    logprobs: LogprobArray | None,
    notes: list[Note],
) -> CaptureLevel:
    if completion_ids is None:
        notes.append(Note("ids_missing", "the reply has no ids of the sampled tokens"))
    if prompt_ids is None and not any(
        note.code in ("prompt_ids_missing", "conflicting_prompt_ids") for note in notes
    ):
        notes.append(Note("prompt_ids_missing", "the reply has no ids of the prompt"))
    if logprobs is None:
        notes.append(Note("logprobs_missing", "the reply has no logprobs"))
    if completion_ids is not None and prompt_ids is not None:
        return CaptureLevel.TOKENS
    return CaptureLevel.LOGPROBS if logprobs is not None else CaptureLevel.TEXT


def _compare_counts(
    prompt_ids: IdArray | None,
    completion_ids: IdArray | None,
    logprobs: LogprobArray | None,
    usage: Mapping[str, int | None],
    notes: list[Note],
) -> None:
    told = usage["completion"]
    if completion_ids is not None:
        if told is None:
            notes.append(Note("usage_missing", "the engine did not say how many it sampled"))
        elif told != completion_ids.size:
            notes.append(Note("token_count_mismatch", f"{completion_ids.size} != {told}"))
        if logprobs is not None and logprobs.size != completion_ids.size:
            notes.append(
                Note("logprob_misalign", f"{logprobs.size} logprobs, {completion_ids.size} ids")
            )
    told = usage["prompt"]
    if prompt_ids is not None and told is not None and told != prompt_ids.size:
        notes.append(Note("prompt_count_mismatch", f"{prompt_ids.size} != {told}"))

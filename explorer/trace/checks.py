"""What is true of one call, as graded findings.

Owns: `check_call`, the table's aliases for the reply parser's notes.
Must not know: roles and policy beyond whether a call's faults may forbid training.

Nothing is repaired here: counts that disagree stay as they are and are reported.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from explorer.custody.digest import chain_hash
from explorer.records import (
    ABORTS,
    NULL_LOGPROB_BITS,
    SENTINEL_LOGPROB,
    Call,
    CallStatus,
    CaptureLevel,
    FailureKind,
    Finding,
    Grade,
    LogprobArray,
    Where,
)
from explorer.trace.findings import (
    FINDINGS,
    PRECEDENCE,
    FindingSpec,
    make_finding,
    render_markdown,
)
from explorer.trace.sequences import Sequences

__all__ = [
    "FINDINGS",
    "POSITIVE_TOLERANCE",
    "FindingSpec",
    "check_call",
    "crossed_versions",
    "cut_by_engine",
    "null_logprobs",
    "render_markdown",
    "sentinel_logprobs",
]

# A softmax rounded to float32 can end this much above zero.
POSITIVE_TOLERANCE = 1e-6

_NOTE_CODES = {
    "prompt_ids_missing": "no_prompt_ids",
    "logprobs_missing": "no_logprobs",
    "logprob_null": "logprob_missing",
}
# Codes a note may carry as they are; any other note code becomes `note`.
_NOTE_AS_IS = frozenset(
    {
        "token_count_mismatch",
        "token_in_differs",
        "prompt_count_mismatch",
        "conflicting_prompt_ids",
        "ids_recovered_from_strings",
        "ids_disagree",
        "ids_missing",
        "invalid_token_id",
        "logprob_misalign",
        "several_choices",
        "usage_missing",
        "exceeds_max_tokens",
        "duplicate_tool_call_id",
        "arguments_not_string",
        "tool_calls_with_stop",
        "finish_missing",
    }
)

# (code, detail, first and last+1 completion position or None)
Fact = tuple[str, str, tuple[int, int] | None]


def null_logprobs(logprobs: LogprobArray) -> NDArray[np.bool_]:
    """True where the engine sent null."""
    bits = np.ascontiguousarray(logprobs, dtype=np.float32).view(np.uint32)
    return np.equal(bits, np.uint32(NULL_LOGPROB_BITS))


def sentinel_logprobs(logprobs: LogprobArray) -> NDArray[np.bool_]:
    """True where the engine wrote its value for "no value"."""
    return np.isfinite(logprobs) & (logprobs <= SENTINEL_LOGPROB)


# Notes of the proxy's fence: the weights changed under the call, or nobody knows which they
# were.
_FENCE_NOTES = frozenset({"version_crossed", "version_unknown"})


def crossed_versions(call: Call) -> bool:
    """Whether two weight versions may have sampled the call: an unknown end beside a known
    start is a crossing nobody has disproved, the engine may name several itself, and the
    fence may have seen an update that the numbers do not show."""
    named = call.engine_weight_label or ""
    return (
        call.weight_version_start != call.weight_version_end
        or "," in named
        or len(call.weight_spans) > 1
        or any(note.code in _FENCE_NOTES for note in call.notes)
    )


def _crossing(call: Call) -> str:
    """Why, in words."""
    told = next((note.detail for note in call.notes if note.code in _FENCE_NOTES), "")
    if told:
        return f"{told[:1].upper()}{told[1:]}."
    if call.weight_version_start != call.weight_version_end:
        return f"From {call.weight_version_start} to {call.weight_version_end}."
    return f"The engine names {call.engine_weight_label}."


def cut_by_engine(call: Call) -> bool:
    """Whether the engine ended the generation early and still gave a whole reply of it, so
    that a policy may let what was sampled train."""
    return (
        call.status is CallStatus.ABORTED
        and call.failure_kind is FailureKind.ENGINE_ABORTED
        and call.finish_reason in ABORTS
        and call.completion is not None
    )


def kept_by_worker(call: Call) -> bool:
    """Whether a worker has its tokens and this record has none, so that none is missing."""
    told = any(note.code == "external_custody" for note in call.notes)
    return told and call.prompt_delta is None and call.completion is None


def check_call(
    call: Call,
    *,
    sequences: Sequences | None = None,
    parent: Call | None = None,
    blocking: bool = True,
    contradicted: str | None = None,
) -> tuple[Finding, ...]:
    """Every fact about one call, in the table's order of precedence.

    Args:
        sequences: to tell whether the stored parts fit; without it that is not checked.
        parent: the stored parent, to recompute the chain hash.
        blocking: whether a FATAL fact of this call forbids training; where it does not
            (any call that is not the agent's), it is graded WARN.
        contradicted: what the engine's own bytes say else, when they were read again.
    """
    facts: dict[str, Fact] = {}
    if contradicted:
        facts["bytes_disagree"] = ("bytes_disagree", contradicted, None)
    for fact in _facts(call, sequences, parent):
        facts.setdefault(fact[0], fact)
    if call.completion is not None and call.completion.size == 0:
        facts.pop("no_logprobs", None)  # no token, so no logprob is missing
    findings = []
    for code, detail, span in sorted(facts.values(), key=lambda fact: PRECEDENCE[fact[0]]):
        grade = FINDINGS[code].grade
        if grade is Grade.FATAL and not blocking:
            grade = Grade.WARN
        findings.append(make_finding(code, _where(call, span, sequences), detail, grade))
    return tuple(findings)


def _where(call: Call, span: tuple[int, int] | None, sequences: Sequences | None) -> Where:
    if span is None:
        return Where(call.rollout_id, call.call_id)
    prompt = call.prompt_len or 0
    if sequences is not None and sequences.problem(call.call_id) is None:
        prompt = sequences.prompt_length(call.call_id)
    return Where(call.rollout_id, call.call_id, prompt + span[0], prompt + span[1])


def _facts(call: Call, sequences: Sequences | None, parent: Call | None) -> Iterator[Fact]:
    if call.status is not CallStatus.COMMITTED:
        yield from _ended_badly(call)
        if not cut_by_engine(call):
            return
    if kept_by_worker(call):
        yield "external_custody", "", None
        return
    yield from _of_ids(call, sequences)
    yield from _of_chain(call, sequences, parent)
    yield from _of_counts(call)
    yield from _of_logprobs(call)
    yield from _of_finish(call)
    yield from _of_sampling(call)
    yield from _of_notes(call)


def _ended_badly(call: Call) -> Iterator[Fact]:
    kind = call.failure_kind or ""
    detail = call.failure_detail or ""
    said = f"{kind}: {detail}" if kind and detail else str(kind or detail)
    if call.failure_kind is FailureKind.LOST_ON_RESTART:
        yield "lost_on_restart", detail, None
    elif call.status is CallStatus.ABORTED:
        yield "call_aborted", said, None
    elif call.status is CallStatus.FAILED:
        yield "call_failed", said, None
    elif call.status is CallStatus.OPEN:
        yield "open_at_close", said, None


def _of_ids(call: Call, sequences: Sequences | None) -> Iterator[Fact]:
    delta, completion = call.prompt_delta, call.completion
    if delta is None or call.prefix_len + delta.size == 0:
        yield "no_prompt_ids", "", None
    elif sequences is not None:
        problem = sequences.problem(call.call_id)
        if problem is not None:
            yield "record_inconsistent", problem, None
    if completion is None:
        yield "ids_missing", "", None
    elif completion.size == 0:
        yield "no_sampled_ids", "", None
    if call.capture_level is not CaptureLevel.TOKENS:
        yield "capture_level_low", f"Level: {call.capture_level}.", None
    for ids in (delta, completion):
        if ids is not None and ids.size and int(ids.min()) < 0:
            yield "invalid_token_id", f"Lowest id: {int(ids.min())}.", None


def _of_chain(call: Call, sequences: Sequences | None, parent: Call | None) -> Iterator[Fact]:
    """Only where the stored cut is the one the hash was made over."""
    if sequences is None or call.chain_hash is None or call.prompt_delta is None:
        return
    if sequences.problem(call.call_id) is not None:
        return
    link = None
    if call.stored_parent_id is not None:
        if parent is None or parent.chain_hash is None:
            return
        if call.prefix_len != sequences.full_length(parent.call_id):
            return
        link = parent.chain_hash
    sampled = np.zeros(0, np.int32) if call.completion is None else call.completion
    delta = np.concatenate([call.prompt_delta, sampled])
    if delta.size and int(delta.min()) < 0:
        return
    if chain_hash(link, delta) != call.chain_hash:
        yield "chain_mismatch", "", None


def _of_counts(call: Call) -> Iterator[Fact]:
    completion, logprobs = call.completion, call.logprobs
    if completion is not None:
        held = int(completion.size)
        for told in (call.usage_completion, call.completion_len):
            if told is not None and told != held:
                yield "token_count_mismatch", f"{held} != {told}", None
        if logprobs is not None and logprobs.size != held:
            detail = f"{int(logprobs.size)} logprobs, {held} ids"
            yield "logprob_misalign", detail, None
    if call.prompt_delta is not None and call.usage_prompt is not None:
        held = call.prefix_len + int(call.prompt_delta.size)
        if held != call.usage_prompt:
            yield "prompt_count_mismatch", f"{held} != {call.usage_prompt}", None


def _of_logprobs(call: Call) -> Iterator[Fact]:
    logprobs = call.logprobs
    if logprobs is None:
        if call.completion is None or call.completion.size:
            yield "no_logprobs", "", None
        return
    if logprobs.size and not (
        # The usual case, told by two numbers; a NaN fails both comparisons.
        logprobs.max() <= POSITIVE_TOLERANCE and logprobs.min() > SENTINEL_LOGPROB
    ):
        yield from _odd_logprobs(logprobs)
    if logprobs.size > 1 and not logprobs.any():
        yield "suspicious_zero_logprobs", f"{logprobs.size} zeros.", None


def _odd_logprobs(logprobs: LogprobArray) -> Iterator[Fact]:
    nulls = null_logprobs(logprobs)
    yield from _at("logprob_missing", nulls, "null")
    yield from _at("invalid_logprob", ~np.isfinite(logprobs) & ~nulls, "not finite")
    with np.errstate(invalid="ignore"):
        yield from _at("positive_logprob", logprobs > POSITIVE_TOLERANCE, "positive")
    yield from _at("sentinel_logprob", sentinel_logprobs(logprobs), "without a value")


def _at(code: str, found: NDArray[np.bool_], what: str) -> Iterator[Fact]:
    places = np.flatnonzero(found)
    if places.size:
        first = int(places[0])
        detail = f"{places.size} of {found.size} {what}, first at sampled token {first}."
        yield code, detail, (first, first + 1)


def _of_finish(call: Call) -> Iterator[Fact]:
    if call.finish_reason in ABORTS:
        yield "engine_aborted", f"Finish reason: {call.finish_reason}.", None
    elif not call.finish_reason and not call.injected:
        yield "finish_missing", "", None
    elif call.finish_reason == "length":
        yield "truncated_turn", "", None


def _of_sampling(call: Call) -> Iterator[Fact]:
    if call.injected:
        yield "injected_call", "", None
    if call.constraints:
        yield "constrained_call", f"Constraints: {', '.join(call.constraints)}.", None
    if call.greedy:
        yield "greedy_call", "", None
    if crossed_versions(call):
        yield "version_crossed", _crossing(call), None


# What the notes of an unread tool call mean, in words.
_UNREAD = {
    "tool_call_as_text": "The text still holds {}.",
    "arguments_not_json": "The arguments of {} are no JSON.",
}


def _of_notes(call: Call) -> Iterator[Fact]:
    for note in call.notes:
        if note.code in _FENCE_NOTES:
            continue  # the finding of the crossing says it
        if note.code in _UNREAD:
            # Without tools, such a text is only a text.
            if call.n_tools:
                yield "unparsed_tool_call", _UNREAD[note.code].format(note.detail), None
            continue
        code = _NOTE_CODES.get(note.code, note.code)
        if code in _NOTE_AS_IS or note.code in _NOTE_CODES:
            yield code, note.detail, None
        else:
            yield "note", f"{note.code}: {note.detail}", None

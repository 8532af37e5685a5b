"""Do the stored rows still say what the engine's own bytes say?

Owns: reading a call's raw reply again, with the parser that read it when it came, and
comparing ids, logprobs, the end and the weight versions with the row.
Must not know: what follows from a disagreement (`trace` grades it), where bytes are kept.

A row is what training reads, the bytes are what the engine sent. They are written in one
transaction and can part only by damage or by a changed reader; either way nobody can say that
the row's tokens were sampled.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from explorer.capture.experts import committed_experts
from explorer.capture.livereply import LiveReply
from explorer.engine.reply import ParsedReply, parse_reply
from explorer.errors import EngineMalformed
from explorer.records import Call, CallId, IdArray, RolloutRecord
from explorer.trace.rowtext import ids_text
from explorer.trace.sequences import Sequences

# A reply's bytes, or the words that say why they cannot be read.
Reply = tuple[CallId, bytes | str]


def contradictions(record: RolloutRecord, replies: Iterable[Reply]) -> dict[CallId, str]:
    """By call, in words, where row and bytes differ; calls without bytes are left out."""
    calls = {call.call_id: call for call in record.calls if call.completion is not None}
    sequences = Sequences(record.calls)
    found: dict[CallId, str] = {}
    for call_id, raw in replies:
        call = calls.get(call_id)
        if call is None or call.injected:
            continue
        said = raw if isinstance(raw, str) else _compare(call, raw, sequences)
        if said:
            found[call_id] = said
    return found


# A stream is read in pieces, as it came: all of it at once would be searched line by line.
_PIECE = 64 * 1024


def _read(raw: bytes) -> ParsedReply:
    """A whole reply, or the stream that was passed on, which is no JSON."""
    whole = parse_reply(200, raw)
    if whole.body is not None:
        return whole
    live = LiveReply()
    try:
        for start in range(0, len(raw), _PIECE):
            live.feed(raw[start : start + _PIECE])
    except EngineMalformed:
        return ParsedReply()
    return live.parsed(None)


_KEY = b'"prompt_token_ids":'


def _compare(call: Call, raw: bytes, sequences: Sequences) -> str:
    prompt = _prompt(call, sequences)
    rest = None if prompt is None else _without_prompt(raw, prompt)
    parsed = _read(raw if rest is None else rest)
    if rest is not None and parsed.completion_ids is not None and not _emptied(parsed):
        # The key stood in another place than the one that is read.
        rest, parsed = None, _read(raw)
    ids = parsed.completion_ids
    if ids is None:
        return "The bytes of the reply hold no sampled ids."
    if call.completion is None or not np.array_equal(ids, call.completion):
        return f"The bytes of the reply hold {_first(ids, call.completion)}."
    if call.logprobs is not None:
        told = parsed.logprobs
        if told is None or told.size != call.logprobs.size:
            return "The bytes of the reply hold another number of logprobs."
        # By bits, so that a missing value is not taken for a number.
        differ = np.flatnonzero(told.view(np.uint32) != call.logprobs.view(np.uint32))
        if differ.size:
            return f"The bytes of the reply hold another logprob at token {int(differ[0])}."
    said = _compare_facts(call, parsed)
    if said:
        return said
    if prompt is None or rest is not None:
        return ""
    if parsed.prompt_ids is None:
        return "The bytes of the reply hold no ids of the prompt."
    if not np.array_equal(parsed.prompt_ids, prompt):
        return (
            f"The bytes of the reply hold another prompt: {_first(parsed.prompt_ids, prompt)}."
        )
    return ""


def _compare_facts(call: Call, parsed: ParsedReply) -> str:
    if parsed.finish_reason != call.finish_reason:
        # It decides whether a call trains: what was cut or aborted may not.
        return f"The bytes of the reply end for the reason {str(parsed.finish_reason)[:40]!r}."
    if parsed.weight_label != call.engine_weight_label:
        return "The bytes of the reply name other weight versions."
    told = [(span.label, span.start, span.end) for span in parsed.weight_spans]
    kept = [(span.version_label, span.start, span.end) for span in call.weight_spans]
    if told and kept and told != kept:
        return "The bytes of the reply name other spans of weight versions."
    if committed_experts(parsed)[0] != call.routed_experts:
        return "The bytes of the reply name other experts."
    return ""


def _prompt(call: Call, sequences: Sequences) -> IdArray | None:
    """The row's prompt; None where its parts do not fit, which is a finding of its own."""
    if call.prompt_delta is None or sequences.problem(call.call_id) is not None:
        return None
    return sequences.slice(call.call_id, 0, sequences.prompt_length(call.call_id))


def _without_prompt(raw: bytes, prompt: IdArray) -> bytes | None:
    """The reply without its prompt ids, where they stand in it once and are those of the
    row; None where only reading them can tell.

    Most of a reply's bytes are its prompt's ids, and comparing text costs a tenth of reading
    it. Inside a JSON text the key's second quotation mark would be escaped, so it is found
    as a key only.
    """
    if raw.count(_KEY) != 1:
        return None
    text = _KEY + b"[" + ids_text(prompt) + b"]"
    return raw.replace(text, _KEY + b"[]") if text in raw else None


def _emptied(parsed: ParsedReply) -> bool:
    """Whether the prompt that is read is the one that was taken out."""
    body = parsed.body
    return body is not None and any(
        place.get("prompt_token_ids") == [] for place in (body, body["choices"][0])
    )


def _first(told: IdArray, kept: IdArray | None) -> str:
    """The first difference of two id lists, in words."""
    if kept is None or told.size != kept.size:
        return f"{told.size} ids where the row has {0 if kept is None else kept.size}"
    place = int(np.flatnonzero(told != kept)[0])
    return f"id {int(told[place])} at {place} where the row has {int(kept[place])}"

"""The Capture audit: every call that reached us, and everything decided about it.

Owns: its shape. It holds the whole record, each token once, so that the record can be read
back from it (`audit_reader`) and judged again.
Must not know: how a verdict comes about, who may read the result, the Training trace.

A call's prompt is the first `prefix_len` ids of `prefix_of`'s prompt+completion, then
`prompt_delta`; its message digests are the first `digests_shared` of those of `digests_of`,
then `message_digests`. The document is streamed, one chunk per call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import orjson

from explorer.errors import RecordInconsistent
from explorer.records import Call, CallId, CallStatus, EventKind, RolloutRecord
from explorer.trace.assemble import findings_by_call, same_inputs, wide
from explorer.trace.checks import null_logprobs
from explorer.trace.custody_section import custody_chunks
from explorer.trace.jsontext import dump, non_finite
from explorer.trace.provenance import rollout_facts
from explorer.trace.verdict import Judgement
from explorer.trace.versions import behind_at_end, version_spans

AUDIT_SCHEMA_VERSION = 1
AUDIT_FORMAT = "rollout-explorer/capture-audit"

# Fields of a call that the document spells in a way of its own.
SPELT_APART = frozenset(
    {
        "rollout_id",
        "stored_parent_id",
        "prompt_delta",
        "completion",
        "logprobs",
        "top_logprobs",
        "message_digests",
    }
)
PLAIN_FIELDS: tuple[str, ...] = tuple(
    name for name in Call.__slots__ if name not in SPELT_APART
)


def capture_audit(
    record: RolloutRecord, judgement: Judgement, annotations: Any = None, told: Any = None
) -> Iterator[bytes]:
    """The audit as JSON, one chunk per call; any record has one.

    Args:
        annotations: labels and notes of people as JSON values, where they were asked for;
            nothing here reads them.
        told: trainers' logprobs as JSON values, likewise.

    Raises:
        RecordInconsistent: the judgement is not of this record; while it is written, that
            alternatives on record are no JSON.
    """
    same_inputs(record, judgement)
    more = {"annotations": annotations, "trainer_logprobs": told}
    return _chunks(record, judgement, more)


def _chunks(
    record: RolloutRecord, judgement: Judgement, more: Mapping[str, Any]
) -> Iterator[bytes]:
    head = {
        "schema_version": AUDIT_SCHEMA_VERSION,
        "format": AUDIT_FORMAT,
        **rollout_facts(record, judgement),
        "state": asdict(judgement.state),
        "verdict": {
            "trainable": judgement.trainable,
            "reasons": [asdict(reason) for reason in judgement.reasons],
            "notices": judgement.notices,
        },
        "findings": [asdict(finding) for finding in judgement.findings],
        "events": [asdict(event) for event in record.events],
        "open_calls": [asdict(admission) for admission in record.open_calls],
        "contradicted": record.contradicted,
        "totals": totals(record, judgement),
    }
    yield dump(head)[:-1] + b',"calls":['
    found = findings_by_call(judgement.findings)
    ordered = sorted(record.calls, key=lambda call: (call.sequence, call.call_id))
    digests = SharedDigests()
    for place, call in enumerate(ordered):
        codes = [item.code for item in found.get(call.call_id, ())]
        entry = _stored(call) | digests.of(call) | _decided(judgement, call, codes)
        yield (b"," if place else b"") + dump(entry)
    yield b'],"custody":'
    yield from custody_chunks(record)
    for name, found_there in more.items():
        if found_there is not None:
            yield b',"%s":' % name.encode() + dump(found_there)
    yield b"}"


def totals(record: RolloutRecord, judgement: Judgement) -> dict[str, Any]:
    """Sums over `calls`: each stored token is counted once, under its mask reason.

    ``calls`` = the sum of ``statuses``; ``calls`` - ``refused`` = the sum of ``roles``;
    ``stored_tokens`` = the sum of ``mask_reasons`` = ``prompt_tokens`` +
    ``generated_tokens``; ``generated_tokens`` = ``supervised_tokens`` + ``masked_tokens``.
    """
    statuses = Counter(str(call.status) for call in record.calls)
    stored = sum(judgement.mask_counts.values())
    return {
        "calls": len(record.calls),
        "open_calls": len(record.open_calls),
        "statuses": statuses,
        "refused": statuses[str(CallStatus.REFUSED)],
        "failure_kinds": Counter(
            str(call.failure_kind) for call in record.calls if call.failure_kind is not None
        ),
        "retries_joined": sum(event.kind is EventKind.JOINED for event in record.events),
        "roles": Counter(str(decision.role) for decision in judgement.roles.values()),
        "agent_calls": judgement.n_agent_calls,
        "stored_tokens": stored,
        "prompt_tokens": stored - judgement.generated_tokens,
        "generated_tokens": judgement.generated_tokens,
        "supervised_tokens": judgement.supervised_tokens,
        "masked_tokens": judgement.generated_tokens - judgement.supervised_tokens,
        "mask_reasons": judgement.mask_counts,
        "findings": Counter(str(item.grade) for item in judgement.findings),
        "roots": len(judgement.tree.roots),
    }


def _stored(call: Call) -> dict[str, Any]:
    """The call as it is on record."""
    logprobs = call.logprobs
    return {name: getattr(call, name) for name in PLAIN_FIELDS} | {
        "notes": [asdict(note) for note in call.notes],
        "prefix_of": call.stored_parent_id,
        "prompt_delta": call.prompt_delta,
        "completion_token_ids": call.completion,
        "per_token_logps": None if logprobs is None else wide(logprobs),
        "per_token_logps_not_finite": []
        if logprobs is None
        else non_finite(logprobs, null_logprobs(logprobs)),
        "top_logprobs": _alternatives(call),
    }


def _alternatives(call: Call) -> Any:
    try:
        return None if call.top_logprobs is None else orjson.loads(call.top_logprobs)
    except orjson.JSONDecodeError as error:
        raise RecordInconsistent(
            f"call {call.call_id}: its alternatives cannot be read", call_id=str(call.call_id)
        ) from error


class SharedDigests:
    """Message digests, each written once: a conversation repeats them in every call. Shared
    with calls that stand above only (a stored parent may have been admitted later), so that
    a reader needs one pass."""

    def __init__(self) -> None:
        self._by_id: dict[CallId, tuple[str, ...]] = {}
        self._before: CallId | None = None

    def of(self, call: Call) -> dict[str, Any]:
        parent = call.stored_parent_id
        other = parent if parent in self._by_id else self._before
        mine = call.message_digests
        shared = 0
        if other is not None:
            for one, two in zip(mine, self._by_id[other], strict=False):
                if one != two:
                    break
                shared += 1
        self._before = call.call_id
        self._by_id[call.call_id] = mine
        return {
            "digests_of": other if shared else None,
            "digests_shared": shared,
            "message_digests": mine[shared:],
        }


def _decided(judgement: Judgement, call: Call, codes: list[str]) -> dict[str, Any]:
    """What was decided about the call; None for one that was refused."""
    node = judgement.tree.nodes.get(call.call_id)
    decision = judgement.roles.get(call.call_id)
    mask = judgement.masks.get(call.call_id)
    broke = None if node is None else node.break_
    return {
        "version_spans": [
            [*span, behind_at_end(call, span.version)] for span in version_spans(call)
        ],
        "parent_id": None if node is None else node.parent_id,
        "root_id": None if node is None else node.root_id,
        "prefix_break": None if broke is None else asdict(broke),
        "role": None if decision is None else decision.role,
        "rule": None if decision is None else decision.rule,
        "why": None if decision is None else decision.why,
        "supervised_tokens": 0 if mask is None else mask.supervised,
        "mask_reason": None if mask is None else mask.reason,
        "mask_from": 0 if mask is None else mask.own_start,
        "mask_spans": []
        if mask is None
        else [[span.start, span.end, span.reason] for span in mask.own],
        "findings": codes,
    }

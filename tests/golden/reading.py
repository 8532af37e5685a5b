"""A golden rollout: a small file written and reviewed by hand becomes a record.

Owns: the format of `data/*/NAME.fails.json` and `NAME.passes.json`, strictly read.
Must not know: what the judge makes of the record.

A file says only what differs from a plain call: committed, with tools, captured at the level
`tokens`, every logprob -0.25, finished with `stop`. Prompts are whole. `expect` holds what a
person decided: for every call role, rule and the reason of every token of its row; for the
rollout, every reason against it with the calls that it names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from explorer.records import (
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Certificate,
    EventKind,
    FailureKind,
    LogprobKind,
    Note,
    Override,
    Purpose,
    Role,
    RolloutEvent,
    RolloutRecord,
)
from explorer.trace.policy import DEFAULT_POLICY, Crossing, Policy
from explorer.trace.refusals import Need
from tests.trace.build import CERTIFIED, ROLLOUT, SCRIPTED, make_call, record

DATA = Path(__file__).with_name("data")
CERTIFICATES: dict[str, Certificate | None] = {
    "processed": CERTIFIED,
    "raw": replace(CERTIFIED, certificate_id="raw", logprob_kind=LogprobKind.RAW),
    "scripted": SCRIPTED,
    "imported": replace(SCRIPTED, certificate_id="imported", engine_kind="imported"),
    "nothing": None,
}
_TOP = frozenset(
    (
        *("about", "at", "calls", "expect"),  # always
        *("certificate", "contradicted", "events", "needs", "overrides", "policy", "purpose"),
    )
)
_NAMED = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_FIELDS = frozenset(item.name for item in fields(Call))
_CLOSED: list[Any] = [["closed", {"ok": True, "reward": 1.0}]]


@dataclass(frozen=True, slots=True, eq=False)
class Golden:
    """One file.

    Attributes:
        document: as it stands there.
        at: the call and the token positions of its row that the file is about, or None
            where it is about the rollout.
        calls: by call, ``(role, rule, spans)`` as a person decided.
        reasons: every reason against the rollout, with the calls that it names.
    """

    path: Path
    document: dict[str, Any]
    record: RolloutRecord
    policy: Policy
    needs: tuple[Need, ...]
    at: tuple[CallId, int, int] | None
    trainable: bool
    reasons: dict[str, list[str]]
    calls: dict[CallId, tuple[str, str, list[tuple[int, int, str]]]]


def names(kind: str, end: str) -> set[str]:
    """The names of the pairs of one kind (`masks`, `verdicts`) that have a file so ending."""
    return {path.name[: -len(end) - 6] for path in (DATA / kind).glob(f"*.{end}.json")}


def read(kind: str, name: str, end: str) -> Golden:
    """One golden rollout; a key that the format does not know is an error."""
    path = DATA / kind / f"{name}.{end}.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    assert set(document) <= _TOP, f"{path.name}: unknown {set(document) - _TOP}"
    expect = document["expect"]
    assert set(expect) == {"trainable", "reasons", "calls"}, path.name
    at = document["at"]
    policy = document.get("policy", {})
    return Golden(
        path=path,
        document=document,
        record=_record(document),
        policy=_policy(policy) if policy else DEFAULT_POLICY,
        needs=tuple(Need(item) for item in document.get("needs", ())),
        at=None if at is None else (CallId(at[0]), int(at[1]), int(at[2])),
        trainable=expect["trainable"],
        reasons=expect["reasons"],
        calls={
            CallId(call_id): (role, rule, [(int(a), int(b), str(why)) for a, b, why in spans])
            for call_id, (role, rule, spans) in expect["calls"].items()
        },
    )


def _policy(given: dict[str, Any]) -> Policy:
    facts = dict(given)
    if "version_crossed" in facts:
        facts["version_crossed"] = Crossing(facts["version_crossed"])
    return Policy(name="golden", **facts)


def _record(document: dict[str, Any]) -> RolloutRecord:
    made = record(
        *(_call(place, facts) for place, facts in enumerate(document["calls"], 1)),
        certificate=CERTIFICATES[document.get("certificate", "processed")],
        overrides=[_override(facts) for facts in document.get("overrides", ())],
        events=[
            RolloutEvent(ROLLOUT, place, place, EventKind(kind), **facts)
            for place, (kind, facts) in enumerate(document.get("events", _CLOSED), 1)
        ],
        purpose=Purpose(document.get("purpose", "train")),
    )
    told = {CallId(name): words for name, words in document.get("contradicted", {}).items()}
    return replace(made, contradicted=told)


def _call(sequence: int, given: dict[str, Any]) -> Call:
    facts = dict(given)
    name, prompt, sampled = facts.pop("call"), facts.pop("prompt"), facts.pop("sampled")
    silent = "logprobs" in facts and facts["logprobs"] is None
    logprobs = facts.pop("logprobs", None)
    values = None if logprobs is None else [_NAMED.get(item, item) for item in logprobs]
    facts["n_tools"] = facts.pop("tools", 1)
    assert set(facts) <= _FIELDS, f"call {name}: unknown {set(facts) - _FIELDS}"
    for key, kind in (
        ("status", CallStatus),
        ("failure_kind", FailureKind),
        ("capture_level", CaptureLevel),
    ):
        if key in facts:
            facts[key] = kind(facts[key])
    for key in ("constraints", "message_digests"):
        if key in facts:
            facts[key] = tuple(facts[key])
    if "notes" in facts:
        facts["notes"] = tuple(Note(*note) for note in facts["notes"])
    if isinstance(facts.get("chain_hash"), str):
        facts["chain_hash"] = bytes.fromhex(facts["chain_hash"])
    call = make_call(name, sequence, prompt, sampled, logprobs=values, **facts)
    return replace(call, logprobs=None) if silent else call


def _override(given: dict[str, Any]) -> Override:
    facts = dict(given)
    kind, call = facts.pop("kind"), facts.pop("call", None)
    if "role" in facts:
        facts["role"] = Role(facts["role"])
    call_id = None if call is None else CallId(call)
    return Override(kind, "because", "ada", 1, call_id=call_id, **facts)

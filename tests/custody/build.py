"""Makes rollouts for the custody tests: staged calls, manifest rows, receipts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from explorer.custody.digest import chain_hash, cumulative_hash
from explorer.custody.fields import Record
from explorer.custody.records import CallRecord, RolloutReceipt, StagedCallBaseSnapshot
from explorer.custody.staging import build_delta, extras_digest, staging_digest

Any_ = TypeVar("Any_", bound=Record)
SHARED = (
    *("model_call_id", "parent_call_id", "mode", "prev_len", "delta_len", "cum_len"),
    *("weight_version", "digest", "extras_digest", "chain_hash", "cumulative_hash"),
)


def loose(fields: Mapping[str, Any]) -> StagedCallBaseSnapshot:
    """A staged call of these fields without any rule, for what no record allows."""
    call = object.__new__(StagedCallBaseSnapshot)
    call.__dict__.update(fields)
    return call


def forced(record: Any_, **values: Any) -> Any_:
    """A copy with fields that were never checked, as a damaged store would give them."""
    copy = object.__new__(type(record))
    copy.__dict__.update(record.__dict__)
    copy.__dict__.update(values)
    return copy


def rehashed(call: StagedCallBaseSnapshot, **values: Any) -> StagedCallBaseSnapshot:
    """A copy with other fields and the digest that belongs to them."""
    changed = forced(call, **values)
    return forced(changed, digest=staging_digest(changed))


@dataclass
class Rollout:
    """A growing tree of calls."""

    rollout_id: str = "r1"
    calls: list[StagedCallBaseSnapshot] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    chains: dict[str, bytes] = field(default_factory=dict)
    admitted: dict[str, float | None] = field(default_factory=dict)

    def add(
        self,
        call_id: str,
        carry: Sequence[int],
        generated: Sequence[int],
        parent: str | None = None,
        weight_version: int = 7,
        extras: Mapping[str, Any] | None = None,
    ) -> StagedCallBaseSnapshot:
        """One more call after `parent`."""
        before = self.tokens[parent] if parent is not None else []
        prompt = [*before, *carry]
        logprobs = [-0.1 * (index + 1) for index in range(len(generated))]
        delta = build_delta(prompt, generated, logprobs, len(before))
        chain = chain_hash(self.chains[parent] if parent is not None else None, delta.token_ids)
        whole = [*prompt, *generated]
        fields: dict[str, Any] = {
            "schema_version": 2,
            "digest_version": 2,
            "extras_digest_version": 1,
            "rollout_id": self.rollout_id,
            "model_call_id": call_id,
            "parent_call_id": parent,
            "mode": "text" if parent is None else "token_in",
            "prev_len": len(before),
            "delta_len": len(delta.token_ids),
            "cum_len": len(whole),
            "weight_version": weight_version,
            "token_ids_delta": delta.token_ids,
            "token_mask_delta": delta.mask,
            "generation_log_probs_delta": delta.logprobs,
            "extras_digest": extras_digest(extras),
            "chain_hash": chain.hex(),
            "cumulative_hash": cumulative_hash(whole).hex(),
        }
        digest = staging_digest(loose(fields))
        call = StagedCallBaseSnapshot(**fields, digest=digest)
        self.calls.append(call)
        self.tokens[call_id], self.chains[call_id] = whole, chain
        return call

    def row(self, call: StagedCallBaseSnapshot, **values: Any) -> CallRecord:
        """The manifest row of a staged call."""
        fields = {name: getattr(call, name) for name in SHARED}
        fields |= {"staging_key": call.staging_key, "response_id": f"resp-{call.model_call_id}"}
        fields["admitted_at"] = self.admitted.get(call.model_call_id)
        return CallRecord.parse(fields | values)

    def rows(self) -> tuple[CallRecord, ...]:
        """All manifest rows."""
        return tuple(map(self.row, self.calls))

    def receipt(self, terminal: str | None = None, **values: Any) -> RolloutReceipt:
        """A receipt that may train."""
        fields: dict[str, Any] = {
            "rollout_id": self.rollout_id,
            "manifest": self.rows(),
            "terminal_model_call_id": terminal or self.calls[-1].model_call_id,
            "terminal_selection": "declared",
        }
        return RolloutReceipt(**fields | values)


def linear(count: int = 3, carry: int = 2, generated: int = 2) -> Rollout:
    """A rollout of `count` calls in one line."""
    rollout, next_id, parent = Rollout(), 1, None
    for index in range(count):
        ids = range(next_id, next_id + carry + generated)
        rollout.add(f"c{index}", ids[:carry], ids[carry:], parent, weight_version=index)
        parent, next_id = f"c{index}", next_id + carry + generated
    return rollout


def branched() -> Rollout:
    """c0 - c1 - c2, and b1 as another child of c0."""
    rollout = linear()
    rollout.add("b1", [90], [91, 92], "c0")
    return rollout


def random_tree(seed: int, count: int | None = None) -> Rollout:
    """A forest of random calls with random ids, weights and extras."""
    source = random.Random(seed)
    rollout = Rollout(rollout_id=source.choice(["r1", "r-2", "ö/x"]))
    ids: list[str | None] = [None]
    for index in range(count or source.randint(1, 8)):
        parent = source.choice(ids) if source.random() < 0.8 else ids[-1]
        name = f"call-{index}"
        rollout.add(
            name,
            _ids(source, source.randint(0 if parent else 1, 5)),
            _ids(source, source.randint(1, 5)),
            parent,
            source.randint(0, 2**40),
            source.choice([None, {}, {"routed_experts": [[1, 2.0, None, True]], "é": "x"}]),
        )
        ids.append(name)
        rollout.admitted[name] = source.choice([None, 1.0, 2.5, float(index)])
    return rollout


def _ids(source: random.Random, count: int) -> list[int]:
    bounds = [2**17, 2**64 - 1]
    return [source.randint(0, source.choice(bounds)) for _ in range(count)]

"""What a Training trace says of itself, held against its tokens and its other words.

Owns: links and token hashes, roles and mask reasons, and whether the policy, certificates and
decisions that the first turn carries allow what the masks let train.
Must not know: how a document is read, records. Every value was somebody's file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from explorer.custody.digest import chain_hash
from explorer.errors import InvalidValue
from explorer.records import (
    ABORTS,
    Certificate,
    LogprobKind,
    MaskReason,
    Override,
    Role,
    Rollout,
)
from explorer.trace.audit_reader import read_part
from explorer.trace.mask import logprobs_accepted
from explorer.trace.policy import Crossing, Policy

_HASH = re.compile("[0-9a-f]{64}")
# Reasons that single sampled tokens of a call can have.
_SINGLE = frozenset(
    (
        *(MaskReason.SAMPLED, MaskReason.LOGPROB_NOT_FINITE),
        *(MaskReason.EXCLUDED_BY_USER, MaskReason.STOP_POLICY),
    )
)


@dataclass(frozen=True, slots=True, eq=False)
class ReadTurn:
    """A turn whose lists are sound; `ids` are prompt and completion, `bits` their mask."""

    name: str
    ids: np.ndarray[Any, Any]
    bits: np.ndarray[Any, Any]
    prompt_len: int
    metadata: Mapping[str, Any]
    response: Mapping[str, Any]

    @property
    def trains(self) -> bool:
        """Whether any of its tokens has a loss."""
        return bool(self.bits.any())


@dataclass(slots=True)
class Claims:
    """The turns of one trace; `chained` counts the token hashes that were computed again."""

    turns: Sequence[ReadTurn]
    chained: int = 0
    _by_name: dict[str, ReadTurn] = field(default_factory=dict)

    def contradictions(self) -> Iterator[str]:
        """Where the trace contradicts itself, in words with a place."""
        self._by_name = {turn.name: turn for turn in self.turns}
        head = self.turns[0].metadata
        try:
            made = _Made.read(head)
        except InvalidValue as error:
            yield f"{error.details.get('path')}: {error.message}"
            return
        yield from made.problems(head)
        branch: list[str] = []
        for place, turn in enumerate(self.turns):
            for text in (
                *_names(turn, made),
                *_spans(turn),
                *self._links(turn, branch),
                *self._hash(turn),
                *(made.against(turn) if turn.trains else ()),
            ):
                yield f"$.turns[{place}].metadata{text}"

    def _links(self, turn: ReadTurn, branch: list[str]) -> Iterator[str]:
        """Parent, root and depth; and that calls stand depth first."""
        parent_id, root_id = turn.metadata.get("parent_id"), turn.metadata.get("root_id")
        depth = turn.metadata.get("depth")
        spans = turn.metadata["mask_spans"]
        parent = self._by_name.get(parent_id) if isinstance(parent_id, str) else None
        # Below a call that is not in the trace (it failed, say) the branch goes on.
        if parent_id is None:
            branch.clear()
        while branch and parent is not None and branch[-1] != parent.name:
            branch.pop()
        if parent is not None and not branch:
            yield f".parent_id: branch_order: its parent {parent_id!r:.80} is not before it"
        branch.append(turn.name)
        if parent_id is None:
            if root_id != turn.name or depth != 0 or (spans and spans[0][0] != 0):
                yield ".parent_id: none, but its root, depth or spans are those of a child"
        elif not isinstance(parent_id, str):
            yield ".parent_id: must be a text or null"
        elif parent is not None:
            held = parent.ids
            if held.size > turn.prompt_len or not np.array_equal(turn.ids[: held.size], held):
                yield ".parent_id: the prompt does not begin with the tokens of its parent"
            if spans and spans[0][0] != held.size:
                yield ".mask_spans: do not begin where the parent's row ends"
            above = parent.metadata.get("depth")
            if type(above) is not int or type(depth) is not int or depth != above + 1:
                yield ".depth: is not one below its parent's"
            if root_id != parent.metadata.get("root_id"):
                yield ".root_id: is not that of its parent"

    def _hash(self, turn: ReadTurn) -> Iterator[str]:
        """The chain hash is that of the ids behind the stored parent's."""
        told, stored, shared = (
            turn.metadata.get(key) for key in ("chain_hash", "prefix_of", "prefix_len")
        )
        if told is None:
            return
        if not isinstance(told, str) or not _HASH.fullmatch(told):
            yield ".chain_hash: must be 64 hexadecimal digits"
            return
        if type(shared) is not int or not isinstance(stored, str | None):
            yield ".prefix_of: must be a text or null, `prefix_len` a number"
            return
        parent = None if stored is None else self._by_name.get(stored)
        if stored is not None and parent is None:
            return  # its stored parent is not in the trace
        held = np.zeros(0, np.int32) if parent is None else parent.ids[: max(shared, 0)]
        if held.size != shared or not np.array_equal(turn.ids[:shared], held):
            yield ".prefix_len: these ids are not the stored parent's"
            return
        link = None if parent is None else parent.metadata.get("chain_hash")
        if link is not None and not (isinstance(link, str) and _HASH.fullmatch(link)):
            return  # said of the parent
        self.chained += 1
        before = None if link is None else bytes.fromhex(link)
        if chain_hash(before, turn.ids[shared:]).hex() != told:
            yield ".chain_hash: is not the hash of these ids"


def _names(turn: ReadTurn, made: _Made) -> Iterator[str]:
    """Who the turn says that it is."""
    metadata = turn.metadata
    if metadata.get("node_id") != turn.name:
        yield ".node_id: is another than the turn's"
    if metadata.get("rollout_id") != made.rollout.rollout_id:
        yield ".rollout_id: is another than the first turn's rollout"
    role = metadata.get("role")
    allowed = [Role.AGENT, *([Role.SUBAGENT] if made.policy.include_subagents else [])]
    if role not in allowed:
        yield f".role: {role!r:.40} has no turn in a trace under this policy"
    for item in made.of(turn):
        if item.kind == "exclude_call":
            yield ".overrides: a person left this call out, and here it is"
        if item.kind == "exclude_span":
            first, last = item.start or 0, turn.bits.size if item.end is None else item.end
            if turn.bits[max(first, 0) : max(last, 0)].any():
                yield ".overrides: a person left a token out that has a loss"
    said = [item.role for item in made.of(turn) if item.kind == "role" and item.role]
    if said and role != said[-1]:
        yield f".role: a person said {said[-1]}"


def _spans(turn: ReadTurn) -> Iterator[str]:
    """Whether the reasons fit their places and the one reason for all."""
    whole = turn.metadata.get("mask_reason")
    kind = (
        MaskReason.PROMPT if turn.metadata.get("parent_id") is None else MaskReason.ENVIRONMENT
    )
    inside: set[str] = set()
    for start, end, reason in turn.metadata["mask_spans"]:
        if start < turn.prompt_len < end or (reason == kind) != (start < turn.prompt_len):
            yield f".mask_spans: {reason} cannot stand at [{start}, {end})"
        if start >= turn.prompt_len:
            inside.add(reason)
    if not (inside <= _SINGLE if whole is None else all(item == whole for item in inside)):
        yield ".mask_reason: is not what the spans say"


@dataclass(frozen=True, slots=True)
class _Made:
    """What the first turn says that the trace was made from and under."""

    rollout: Rollout
    policy: Policy
    certificates: Mapping[str | None, Certificate | None]
    overrides: tuple[Override, ...]

    @classmethod
    def read(cls, head: Mapping[str, Any]) -> _Made:
        """Raises:
        InvalidValue: names the place.
        """
        place = "$.turns[0].metadata"
        rollout = head.get("rollout")
        given = rollout | {"key_hash": ""} if isinstance(rollout, dict) else rollout
        certificates: dict[str | None, Certificate | None] = {None: None}
        listed = [("certificate", head.get("certificate"))]
        listed += [(f"certificates[{n}]", item) for n, item in _listed(head, "certificates")]
        for name, value in listed:
            if value is not None or name != "certificate":
                found = read_part(Certificate, value, f"{place}.{name}")
                certificates[found.certificate_id] = found
        return cls(
            read_part(Rollout, given, f"{place}.rollout"),
            read_part(Policy, head.get("policy"), f"{place}.policy"),
            certificates,
            tuple(
                read_part(Override, value, f"{place}.overrides[{number}]")
                for number, value in _listed(head, "overrides")
            ),
        )

    def problems(self, head: Mapping[str, Any]) -> Iterator[str]:
        """What is wrong with the head itself."""
        place = "$.turns[0].metadata"
        provenance = head.get("provenance")
        told = provenance.get("policy_sha256") if isinstance(provenance, dict) else None
        if told != self.policy.sha256:
            yield f"{place}.provenance.policy_sha256: is not the digest of the policy"
        inputs = head.get("inputs_sha256")
        if not isinstance(inputs, str) or not _HASH.fullmatch(inputs):
            yield f"{place}.inputs_sha256: must be 64 hexadecimal digits"

    def of(self, turn: ReadTurn) -> list[Override]:
        """The decisions about this call alone."""
        return [item for item in self.overrides if item.call_id == turn.name]

    def against(self, turn: ReadTurn) -> Iterator[str]:
        """Why a turn that trains should not, by what the trace itself says."""
        policy, metadata = self.policy, turn.metadata
        mine = [item for item in self.overrides if item.call_id in (None, turn.name)]
        named = metadata.get("certificate_id")
        if not isinstance(named, str | None) or named not in self.certificates:
            yield ".certificate_id: names no certificate of this trace"
        else:
            held = self.certificates[named]
            raw = held is not None and held.logprob_kind is LogprobKind.RAW
            if not logprobs_accepted(policy, mine, held) and not (
                raw and policy.accept_raw_at_one
            ):
                yield ".certificate_id: uncertified: it does not pass, and nobody accepted it"
        crossed = metadata.get("weight_version_start") != metadata.get("weight_version_end")
        accepted = any(item.kind == "accept_versions" for item in mine)
        if crossed and policy.version_crossed is not Crossing.TRAIN and not accepted:
            yield ".weight_version_end: version_crossed: nobody accepted two versions"
        finish = turn.response.get("finish_reason")
        cut = finish == "length" and not policy.train_truncated
        aborted = not finish or (str(finish) in ABORTS and not policy.train_aborted)
        if cut or aborted:
            yield f": a turn that ended with {finish!r:.40} has a loss"


def _listed(head: Mapping[str, Any], key: str) -> Iterator[tuple[int, Any]]:
    values = head.get(key)
    if not isinstance(values, list):
        raise InvalidValue("must be a list", path=f"$.turns[0].metadata.{key}")
    yield from enumerate(values)

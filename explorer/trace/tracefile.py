"""The rules of a Training trace, checked on the file itself.

Owns: OpenEnv's rules by OpenEnv's codes, the stricter ones that its classes leave out, and
that every masked token has a reason. What else our metadata lets anybody check is in
`traceclaims`.
Must not know: records, how a trace is made. The document is somebody's file: any value may
be of any type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from explorer.records import SENTINEL_LOGPROB, MaskReason
from explorer.trace.traceclaims import Claims, ReadTurn

_KEYS = {
    *("node_id", "prompt_token_ids", "completion_token_ids", "per_token_logps"),
    *("loss_mask", "request", "response", "metadata"),
}
_MOST = 50
_LARGEST_ID = 2**31 - 1
_REASONS = frozenset(MaskReason)


def is_trace(document: object) -> bool:
    """Whether a JSON document has the shape of a Training trace."""
    return isinstance(document, dict) and set(document) == {"schema_version", "turns"}


@dataclass(slots=True)
class Turns:
    """What a trace adds up to, and its sound turns."""

    rollout_id: str | None = None
    n_turns: int = 0
    supervised: int = 0
    generated: int = 0
    read: list[ReadTurn] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    head: dict[str, Any] = field(default_factory=dict)
    chained: int = 0

    def facts(self) -> dict[str, Any]:
        """Counts for people and programs."""
        policy = self.head.get("policy")
        name = policy.get("name") if isinstance(policy, dict) else None
        return {
            "rollout_id": self.rollout_id,
            "turns": self.n_turns,
            "supervised_tokens": self.supervised,
            "generated_tokens": self.generated,
            "chain_hashes_checked": self.chained,
            "policy": str(name)[:80],
            "reward": self.head.get("reward"),
            "inputs_sha256": self.head.get("inputs_sha256"),
        }


def check_trace(document: dict[str, Any], turns: Turns) -> list[str]:
    """Everything that is wrong with a trace, in words with a place; fills `turns`."""
    problems: list[str] = []
    version, listed = document.get("schema_version"), document.get("turns")
    if type(version) is not int or version != 1:
        problems.append("$.schema_version: must be the whole number 1")
    if not isinstance(listed, list):
        return [*problems, "$.turns: must be a list"]
    if not listed:
        return [*problems, "$.turns: no_turns: a trace without turns trains nothing"]
    for place, turn in enumerate(listed):
        if len(problems) >= _MOST:
            return [*problems, "… and more"]
        problems += [f"$.turns[{place}]{text}" for text in _turn(turn, turns)]
    if not problems and not turns.supervised:
        problems.append("$.turns: nothing_trainable: no token has a loss")
    problems += _head(turns.head, problems)
    if not problems:
        claims = Claims(turns.read)
        problems += islice(claims.contradictions(), _MOST)
        turns.chained = claims.chained
    return problems


def _turn(turn: Any, turns: Turns) -> Iterator[str]:
    if not isinstance(turn, dict) or set(turn) != _KEYS:
        yield f": must be an object with exactly {', '.join(sorted(_KEYS))}"
        return
    name = turn["node_id"]
    if not isinstance(name, str) or not name:
        yield ".node_id: must be a text"
        return
    if name in turns.names:
        yield ".node_id: stands twice, so its tokens would train twice"
        return
    turns.names.add(name)
    if not all(isinstance(turn[key], dict) for key in ("request", "response", "metadata")):
        yield ": `request`, `response` and `metadata` must be objects"
        return
    found = list(_lists(turn))
    yield from found
    if found:
        return
    prompt, completion = turn["prompt_token_ids"], turn["completion_token_ids"]
    bits = np.array(turn["loss_mask"], dtype=np.int8)
    turns.n_turns += 1
    turns.supervised += int(bits.sum())
    turns.generated += len(completion)
    metadata = turn["metadata"]
    if not turns.head:
        turns.head = metadata
        turns.rollout_id = str(metadata.get("rollout_id"))[:80]
    if "mask_spans" not in metadata:
        yield ".metadata: has no `mask_spans`, so nobody can say why a token is masked"
        return
    yield from _reasons(metadata, bits, len(prompt))
    ids = np.array([*prompt, *completion], dtype=np.int32)
    turns.read.append(ReadTurn(name, ids, bits, len(prompt), metadata, turn["response"]))


def _lists(turn: dict[str, Any]) -> Iterator[str]:
    """The token lists, by OpenEnv's codes where it has one."""
    for key in ("prompt_token_ids", "completion_token_ids", "per_token_logps", "loss_mask"):
        if not isinstance(turn[key], list):
            yield f".{key}: must be a list"
            return
    if not turn["prompt_token_ids"]:
        yield ".prompt_token_ids: no_prompt_ids: empty"
    for key in ("prompt_token_ids", "completion_token_ids"):
        if not all(type(item) is int and 0 <= item <= _LARGEST_ID for item in turn[key]):
            yield f".{key}: invalid_token_id: an id is a whole number of 31 bits"
    logprobs = turn["per_token_logps"]
    if not all(type(item) in (int, float) and _finite(item) for item in logprobs):
        yield ".per_token_logps: invalid_logprob: must be finite numbers"
        return
    if any(item > 0 for item in logprobs):
        yield ".per_token_logps: positive_logprob: above zero"
    sampled = len(turn["completion_token_ids"])
    if len(logprobs) != sampled:
        yield f".per_token_logps: logprob_misalign: {len(logprobs)} for {sampled} ids"
        return
    yield from _mask(turn["loss_mask"], len(turn["prompt_token_ids"]), logprobs)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def _mask(mask: list[Any], prompt_len: int, logprobs: list[float]) -> Iterator[str]:
    total = prompt_len + len(logprobs)
    if len(mask) != total:
        yield f".loss_mask: length_mismatch: {len(mask)} for {total} tokens"
        return
    if not all(type(item) is int and item in (0, 1) for item in mask):
        yield ".loss_mask: invalid_loss_mask: only 0 and 1"
        return
    if any(mask[:prompt_len]):
        yield ".loss_mask: trainable_prompt: a prompt token has a loss"
    without = [value <= SENTINEL_LOGPROB for value in logprobs]
    if any(bit and empty for bit, empty in zip(mask[prompt_len:], without, strict=True)):
        yield ".loss_mask: sentinel_logprob: a token without a value has a loss"


def _reasons(
    metadata: dict[str, Any], bits: np.ndarray[Any, Any], prompt_len: int
) -> Iterator[str]:
    """Whether the spans cover the row's own end and say the same as the mask."""
    spans = metadata["mask_spans"]
    if not isinstance(spans, list):
        yield ".metadata.mask_spans: must be a list of spans"
        return
    if not spans and bits.size == prompt_len:
        return  # nothing was sampled, and the whole prompt is its parent's row
    at = None
    for span in spans:
        if not (
            isinstance(span, list)
            and len(span) == 3
            and type(span[0]) is int
            and type(span[1]) is int
            and isinstance(span[2], str)
        ):
            yield ".metadata.mask_spans: a span is [start, end, reason]"
            return
        start, end, reason = span
        if (at is not None and start != at) or not 0 <= start < end <= bits.size:
            yield f".metadata.mask_spans: [{start}, {end}) does not go on from the last"
            return
        if reason not in _REASONS:
            yield f".metadata.mask_spans: unknown reason {reason[:40]!r}"
            return
        trains = reason == MaskReason.SAMPLED
        if trains and start < prompt_len:
            yield ".metadata.mask_spans: a prompt token is called sampled"
        if (bits[start:end] != trains).any():
            yield f".metadata.mask_spans: {reason} at [{start}, {end}), but not in the mask"
        at = end
    if not spans or at != bits.size or spans[0][0] > prompt_len:
        yield ".metadata.mask_spans: they do not cover the completion"


def _head(head: dict[str, Any], problems: list[str]) -> Iterator[str]:
    """What the first turn says of the whole rollout."""
    if problems:
        return
    place = "$.turns[0].metadata"
    if head.get("ok") is False:
        yield f"{place}.ok: the rollout failed, and a failed one is not exported"
    rollout = head.get("rollout")
    if isinstance(rollout, dict) and rollout.get("purpose") == "eval":
        yield f"{place}.rollout.purpose: an evaluation never trains"
    if not isinstance(head.get("policy"), dict):
        yield f"{place}.policy: a trace names the policy it was made under"
    if not isinstance(head.get("provenance"), dict):
        yield f"{place}.provenance: a trace says where it comes from"

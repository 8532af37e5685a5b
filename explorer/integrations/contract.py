"""Our own check of a Training trace, stricter than OpenEnv's classes.

Owns: what a trace must fulfil before a trainer sees it, and its immutable form.
Must not know: where the trace came from; openenv, trl, torch.

OpenEnv's `TrainingTrace` accepts what must never train: no turns, nothing supervised,
`schema_version` true or 1.0, ids beyond any vocabulary, a logprob of -9999 (an engine's
word for "none"). And it can be changed after it was checked. What is returned here holds
tuples only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

SCHEMA_VERSION = 1
HIGHEST_ID = 2**31 - 1
# Engines write this, or less, where they had no value at all.
NO_VALUE = -9999.0
_TURN_KEYS = (
    *("node_id", "prompt_token_ids", "completion_token_ids", "per_token_logps"),
    "loss_mask",
)
_EXTRA_KEYS = ("request", "response", "metadata")


class MalformedTrace(ValueError):
    """A trace that is not what the contract says; `code` names the rule.

    A `ValueError`, so that TRL stops its worker instead of skipping the rollout: the
    producer is broken, and the next trace would be no better.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"malformed training trace: {code}: {message}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of the engine, checked; `loss_mask` covers prompt and completion."""

    node_id: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    loss_mask: tuple[int, ...]
    request: Mapping[str, Any] = field(default_factory=dict)
    response: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def completion_mask(self) -> tuple[int, ...]:
        """The mask of the sampled tokens alone."""
        return self.loss_mask[len(self.prompt_ids) :]

    @property
    def supervised(self) -> int:
        """How many tokens train."""
        return sum(self.loss_mask)


@dataclass(frozen=True, slots=True)
class Trace:
    """A checked trace; `sha256` is the hash of the bytes that it was read from."""

    turns: tuple[Turn, ...]
    sha256: str

    @property
    def supervised(self) -> int:
        """How many tokens train."""
        return sum(turn.supervised for turn in self.turns)

    @property
    def reward(self) -> float | None:
        """The reward on record; None means that nobody scored the rollout, never zero."""
        found = self.turns[0].metadata.get("reward")
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        return float(found) if math.isfinite(found) else None


def read_trace(raw: bytes | str) -> Trace:
    """The trace in a JSON document.

    Raises:
        MalformedTrace: it breaks a rule of the contract.
    """
    data = raw.encode() if isinstance(raw, str) else raw
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MalformedTrace("invalid_json", str(error)) from error
    return check_trace(document, hashlib.sha256(data).hexdigest())


def check_trace(document: Any, sha256: str = "") -> Trace:
    """The trace in a parsed document.

    Raises:
        MalformedTrace: it breaks a rule of the contract.
    """
    if not isinstance(document, dict):
        raise MalformedTrace("invalid_document", "it must be an object")
    version = document.get("schema_version")
    # In Python True and 1.0 equal 1; in the contract they do not.
    if type(version) is not int or version != SCHEMA_VERSION:
        raise MalformedTrace("schema_version", f"it must be the number 1, not {version!r:.50}")
    unknown = sorted(map(str, set(document) - {"schema_version", "turns"}))
    if unknown:
        raise MalformedTrace("unknown_key", f"{unknown[0]!r:.80} is no key of schema 1")
    turns = document.get("turns")
    if not isinstance(turns, list) or not turns:
        raise MalformedTrace("no_turns", "there is no call in it")
    checked = tuple(_turn(turn, place) for place, turn in enumerate(turns))
    _check_together(checked)
    return Trace(checked, sha256)


def _turn(turn: Any, place: int) -> Turn:
    if not isinstance(turn, dict):
        raise MalformedTrace("invalid_document", f"turn {place} must be an object")
    missing = [key for key in _TURN_KEYS if key not in turn]
    if missing:
        raise MalformedTrace("missing_key", f"turn {place} lacks {missing[0]}")
    unknown = sorted(map(str, set(turn) - {*_TURN_KEYS, *_EXTRA_KEYS}))
    if unknown:
        raise MalformedTrace("unknown_key", f"turn {place}: {unknown[0]!r:.80}")
    extra = {key: turn.get(key, {}) for key in _EXTRA_KEYS}
    for key, value in extra.items():
        if not isinstance(value, dict):
            raise MalformedTrace("invalid_document", f"turn {place}: {key} must be an object")
    if not isinstance(turn["node_id"], str):
        raise MalformedTrace("invalid_node_id", f"turn {place}: node_id must be a text")
    check_turn(*(turn[key] for key in _TURN_KEYS))
    return Turn(
        turn["node_id"],
        tuple(turn["prompt_token_ids"]),
        tuple(turn["completion_token_ids"]),
        tuple(map(float, turn["per_token_logps"])),
        tuple(turn["loss_mask"]),
        **extra,
    )


def check_turn(
    node_id: str,
    prompt: Sequence[int],
    completion: Sequence[int],
    logprobs: Sequence[float],
    mask: Sequence[int],
) -> None:
    """One call's arrays.

    Raises:
        MalformedTrace: they break a rule of the contract.
    """

    shown = f"call {node_id!r:.80}"
    if not node_id:
        raise MalformedTrace("invalid_node_id", "a call has no id")
    arrays = {
        "prompt_token_ids": prompt,
        "completion_token_ids": completion,
        "per_token_logps": logprobs,
        "loss_mask": mask,
    }
    for name, values in arrays.items():
        if not isinstance(values, list | tuple):
            raise MalformedTrace("invalid_document", f"{shown}: {name} must be a list")
    if not prompt:
        raise MalformedTrace("no_prompt_ids", f"{shown}: the prompt has no ids")
    _check_ids(shown, [*prompt, *completion])
    _check_logprobs(shown, logprobs, len(completion))
    _check_mask(shown, mask, len(prompt), logprobs)


def _check_ids(shown: str, ids: Sequence[int]) -> None:
    if not _all_of(ids, int) or not 0 <= min(ids) <= max(ids) <= HIGHEST_ID:
        raise MalformedTrace(
            "invalid_token_id", f"{shown}: ids must be whole numbers from 0 to 2^31 - 1"
        )


def _check_logprobs(shown: str, logprobs: Sequence[float], count: int) -> None:
    if len(logprobs) != count:
        raise MalformedTrace(
            "logprob_misalign", f"{shown}: {len(logprobs)} logprobs for {count} tokens"
        )
    if not _all_of(logprobs, int, float) or not all(map(_finite, logprobs)):
        raise MalformedTrace("invalid_logprob", f"{shown}: logprobs must be finite numbers")
    if logprobs and max(logprobs) > 0:
        raise MalformedTrace("positive_logprob", f"{shown}: a logprob is above 0")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def _check_mask(
    shown: str, mask: Sequence[int], prompt: int, logprobs: Sequence[float]
) -> None:
    if len(mask) != prompt + len(logprobs):
        raise MalformedTrace(
            "length_mismatch", f"{shown}: loss_mask must cover prompt and completion"
        )
    if not _all_of(mask, int) or not 0 <= min(mask) <= max(mask) <= 1:
        raise MalformedTrace("invalid_loss_mask", f"{shown}: loss_mask must hold 0 and 1 only")
    if any(mask[:prompt]):
        raise MalformedTrace("trainable_prompt", f"{shown}: a token of the prompt would train")
    pairs = zip(mask[prompt:], logprobs, strict=True)
    if any(bit and value <= NO_VALUE for bit, value in pairs):
        raise MalformedTrace(
            "sentinel_logprob", f"{shown}: a token with a logprob of {NO_VALUE} would train"
        )


def _all_of(values: Sequence[Any], *kinds: type) -> bool:
    # Exact types: a bool is an int for isinstance, and no number here.
    return set(map(type, values)) <= set(kinds)


def _check_together(turns: tuple[Turn, ...]) -> None:
    ids = [turn.node_id for turn in turns]
    if len(set(ids)) != len(ids):
        raise MalformedTrace("duplicate_node_id", "two calls have the same node_id")
    if not any(turn.supervised for turn in turns):
        raise MalformedTrace("nothing_trainable", "no token in it would train")
    _check_branch_order(turns)


def _check_branch_order(turns: tuple[Turn, ...]) -> None:
    """Calls must come depth first: a trainer that joins each call to the row before it
    would otherwise cut interleaved branches to pieces.

    Raises:
        MalformedTrace: a call does not follow its branch.
    """
    present = {turn.node_id for turn in turns}
    seen: set[str] = set()
    branch: list[str] = []
    for turn in turns:
        parent = turn.metadata.get("parent_id")
        if isinstance(parent, str) and parent in present:
            if parent not in seen:
                raise MalformedTrace(
                    "branch_order", f"call {turn.node_id} precedes its parent {parent}"
                )
            while branch and branch[-1] != parent:
                branch.pop()
            if not branch:
                raise MalformedTrace(
                    "branch_order", f"call {turn.node_id} is torn from its branch"
                )
        else:
            branch.clear()
        branch.append(turn.node_id)
        seen.add(turn.node_id)

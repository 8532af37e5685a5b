"""The rules that training rows keep, whatever judged them.

Owns: lengths, mask against reasons, logprobs where it trains, and that a call trains once.
Must not know: how a verdict comes about, files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from explorer.export.dataset.schema import REASON_CODES
from explorer.export.dataset.values import logprobs_of
from explorer.records import MaskReason

_LISTS = ("token_ids", "loss_mask", "mask_reasons", "logprobs", "weight_versions")
_PLAIN = (
    "sequence_id", "rollout_id", "call_ids", "completion_starts", "completion_ends", "owned",
    "length", "supervised_tokens", "reward", "inputs_sha256", "policy_sha256",
)  # fmt: skip
_SAMPLED = REASON_CODES[MaskReason.SAMPLED]
_CODES = np.array(sorted(REASON_CODES.values()), np.int8)


def broken_rules(rollout: Mapping[str, Any], table: Any) -> Iterator[str]:
    """In words, what the sequences of one rollout do not keep.

    Args:
        rollout: its row in `rollouts`.
        table: its rows in `sequences`.
    """
    if table.num_rows and not rollout["trainable"]:
        yield "may not train and has rows in `sequences`"
    if (table.num_rows == 0) == bool(rollout["trainable"]):
        yield "its verdict and its number of sequences do not fit"
    rows = table.select(_PLAIN).to_pylist()
    arrays = {name: _one(table.column(name)) for name in _LISTS}
    owners: dict[str, str] = {}
    supervised = 0
    for place, row in enumerate(rows):
        name = f"sequence {str(row['sequence_id'])[:120]}"
        for words in _row(row, {key: array[place] for key, array in arrays.items()}):
            yield f"{name}: {words}"
        for key in ("reward", "inputs_sha256", "policy_sha256"):
            if row[key] != rollout[key]:
                yield f"{name}: its `{key}` is not that of the rollout"
        supervised += row["supervised_tokens"]
        for call_id, owned in zip(row["call_ids"], row["owned"], strict=False):
            if owned and owners.setdefault(call_id, name) != name:
                yield f"{name}: call {str(call_id)[:80]} trains in another row, too"
    never = {call_id for row in rows for call_id in row["call_ids"]} - owners.keys()
    if never:
        yield f"call {sorted(map(str, never))[0][:80]} trains in no row"
    if supervised != rollout["supervised_tokens"]:
        yield f"{supervised} tokens train, its row says {rollout['supervised_tokens']}"


def _row(row: Mapping[str, Any], lists: Mapping[str, Any]) -> Iterator[str]:
    sizes = {name: len(item) for name, item in lists.items()}
    if set(sizes.values()) != {row["length"]}:
        yield f"lists of different lengths: {sizes}"
        return
    ids, mask, reasons = (
        lists[name].values.to_numpy(zero_copy_only=False)
        for name in ("token_ids", "loss_mask", "mask_reasons")
    )
    if lists["token_ids"].values.null_count or ids.dtype != np.int32 or (ids < 0).any():
        yield "holds something that is no token id"
        return
    if not np.isin(mask, (0, 1)).all():
        yield "`loss_mask` holds something else than 0 and 1"
    if not np.isin(reasons, _CODES).all():
        yield "`mask_reasons` holds a code that is none"
    if ((mask == 1) != (reasons == _SAMPLED)).any():
        yield "`loss_mask` and `mask_reasons` do not fit together"
    trains = int((mask == 1).sum())
    if trains != row["supervised_tokens"] or not trains:
        yield f"{trains} tokens train, the row says {row['supervised_tokens']}"
    yield from _stretches(row, mask, lists["logprobs"])


def _stretches(row: Mapping[str, Any], mask: Any, logprobs: Any) -> Iterator[str]:
    """Only what a call sampled may train, and only where the call is this row's own."""
    names, owned = row["call_ids"], row["owned"]
    starts, ends = row["completion_starts"], row["completion_ends"]
    if any(part is None for parts in (names, owned, starts, ends) for part in parts):
        yield "a call or its place is not told"
        return
    edges = [0, *(edge for pair in zip(starts, ends, strict=False) for edge in pair)]
    if not (len(names) == len(owned) == len(starts) == len(ends)) or not names:
        yield "its calls and their places are not of one number"
        return
    if any(one > two for one, two in pairwise(edges)) or edges[-1] != row["length"]:
        yield "the places of its calls are out of order"
        return
    allowed = np.zeros(row["length"], np.bool_)
    sampled = np.zeros(row["length"], np.bool_)
    for start, end, own in zip(starts, ends, owned, strict=True):
        sampled[start:end] = True
        allowed[start:end] = own
    if ((mask == 1) & ~allowed).any():
        yield "a token trains that no call of this row sampled"
    values = logprobs_of([logprobs], 0)
    assert values is not None  # its length was compared
    if not np.isfinite(values[mask == 1]).all():
        yield "a token trains without a logprob"
    if (np.isfinite(values) & ~sampled).any():
        yield "a token that nobody sampled has a logprob"


def _one(column: Any) -> Any:
    return column.combine_chunks()

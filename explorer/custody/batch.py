"""The columns of many staged calls, checked and encoded together.

Owns: `encode_all`, which spares a long rollout numpy's price per call.
Must not know: what the columns are hashed into, and who asks.

It says of a group of calls only that every column is sound. Where one may not be, it says
nothing, and its caller checks each call alone, which names the call and the rule it breaks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from operator import attrgetter

import numpy as np

from explorer.custody.digest import encode_u64
from explorer.custody.staging import F32_LIMIT, Columns, StagedFields

# As many as keep a group's arrays small enough for the processor's caches.
GROUP = 64

_TOKENS, _FLOATS = np.dtype(np.uint64), np.dtype(np.float64)
_TOKEN_BYTES, _FLOAT_BYTES = 8, 4
_columns_of = attrgetter("token_ids_delta", "token_mask_delta", "generation_log_probs_delta")
_dtype_of = attrgetter("dtype")


def encode_all(calls: Sequence[StagedFields]) -> Iterator[Columns | None]:
    """What `encode_columns` gives for each call, or None where it may be that it refuses.

    None, too, for columns in another form than that in which a record holds them.
    """
    for start in range(0, len(calls), GROUP):
        group = calls[start : start + GROUP]
        yield from _encoded(group) or itertools.repeat(None, len(group))


def _encoded(calls: Sequence[StagedFields]) -> list[Columns] | None:
    """The columns of each call; None if one of them is not surely sound."""
    columns = [_columns_of(call) for call in calls]
    for call, (tokens, mask, logprobs) in zip(calls, columns, strict=True):
        # A subclass, such as a masked array, may mean something else by its values.
        if not type(tokens) is type(mask) is type(logprobs) is np.ndarray:
            return None
        if not (call.delta_len,) == tokens.shape == mask.shape == logprobs.shape != (0,):
            return None
    ids, masks, floats = zip(*columns, strict=True)
    if {*map(_dtype_of, ids)} != {_TOKENS} or {*map(_dtype_of, masks + floats)} != {_FLOATS}:
        return None
    mask, logprobs = np.concatenate(masks), np.concatenate(floats)
    carry = mask == 0
    if not (carry | (mask == 1)).all() or logprobs[carry].any():
        return None
    # Not a number is not below the limit either.
    if not np.abs(logprobs).max() < F32_LIMIT:
        return None
    sizes = [len(column) for column in ids]
    encoded = np.concatenate(ids).astype(">u8"), mask.astype(">f4"), logprobs.astype(">f4")
    return _cut(sizes, *(column.tobytes() for column in encoded))


def _cut(sizes: Sequence[int], ids: bytes, mask: bytes, logprobs: bytes) -> list[Columns]:
    """The columns of each call out of those of all calls, end to end."""
    found: list[Columns] = []
    for size, end in zip(sizes, itertools.accumulate(sizes), strict=True):
        tokens = slice((end - size) * _TOKEN_BYTES, end * _TOKEN_BYTES)
        floats = slice((end - size) * _FLOAT_BYTES, end * _FLOAT_BYTES)
        found.append(Columns(encode_u64(size), ids[tokens], mask[floats], logprobs[floats]))
    return found

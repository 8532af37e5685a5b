"""Training sequences: which paths of a rollout's tree become rows, and who trains where.

Owns: the choice of paths, and that every sampled token that trains does so in one row.
Must not know: Arrow, files, which columns there are.

A row ends with the last call of its path that trains: behind it, nothing does. A row that
would train nothing is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from explorer.errors import RecordInconsistent
from explorer.export.dataset.schema import REASON_CODES
from explorer.records import Call, CallId, IdArray, LogprobArray, MaskReason, RolloutRecord
from explorer.trace.assemble import exported_calls
from explorer.trace.mask import CallMask
from explorer.trace.verdict import Judgement
from explorer.trace.versions import VersionSpan, version_spans

_SAMPLED = REASON_CODES[MaskReason.SAMPLED]


class Stretch(NamedTuple):
    """The sampled tokens of one call of a path, and whether they train in this row.

    Attributes:
        versions: the weight versions that sampled them, as spans of the call's completion.
    """

    call: Call
    start: int
    end: int
    owned: bool
    versions: tuple[VersionSpan, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One training sequence."""

    stretches: tuple[Stretch, ...]
    token_ids: IdArray
    loss_mask: NDArray[np.int8]
    reasons: NDArray[np.int8]
    logprobs: LogprobArray

    @property
    def leaf(self) -> Call:
        """The call that the row ends with."""
        return self.stretches[-1].call

    @property
    def supervised(self) -> int:
        """Tokens that train in it."""
        return int(np.count_nonzero(self.loss_mask))


def training_rows(record: RolloutRecord, judgement: Judgement) -> Iterator[Row]:
    """The rows of a rollout, depth first; none where the verdict forbids training.

    Raises:
        RecordInconsistent: the record's parts do not fit; said before the first row.
    """
    leaves = training_leaves(record, judgement)
    by_id = {call.call_id: call for call in record.calls}
    return _rows(by_id, judgement, leaves)


def training_leaves(record: RolloutRecord, judgement: Judgement) -> list[CallId]:
    """The calls that the rows of a rollout end with, depth first; none where the verdict
    forbids training.

    Raises:
        RecordInconsistent: the record's parts do not fit.
    """
    return _leaves(record, judgement) if judgement.trainable else []


def path_row(record: RolloutRecord, judgement: Judgement, leaf: CallId) -> Row:
    """The row of one path alone: whatever may train on it does, as if there were no other.

    Only for a reader that takes no other row of this rollout.

    Args:
        leaf: one of `training_leaves`.
    """
    by_id = {call.call_id: call for call in record.calls}
    return _row(by_id, judgement, leaf, set())


def _leaves(record: RolloutRecord, judgement: Judgement) -> list[CallId]:
    """The calls that rows end with."""
    masks, tree = judgement.masks, judgement.tree
    trains = [node.call_id for node in tree.walk() if masks[node.call_id].supervised]
    exported = {call.call_id for call in exported_calls(record, judgement)}
    if not exported.issuperset(trains):
        raise RecordInconsistent("a call trains that no export may hold")
    by_id = {call.call_id: call for call in record.calls}
    inner: set[CallId] = set()
    covered: set[CallId] = set()
    for call_id in trains:
        length = tree.sequences.full_length(call_id)
        _check(by_id[call_id], masks[call_id], length, covered)
        above = tree.nodes[call_id].parent_id
        while above is not None and above not in inner:
            inner.add(above)
            above = tree.nodes[above].parent_id
    return [call_id for call_id in trains if call_id not in inner]


def _check(call: Call, mask: CallMask, length: int, covered: set[CallId]) -> None:
    """Raises:
    RecordInconsistent: ids, logprobs and the masks of the path are not of one length, or
        a token would train that has no logprob.

    Args:
        covered: calls whose masks were seen to cover their rows; adds to them.
    """
    here: CallMask | None = mask
    while here is not None and here.call_id not in covered:
        at = here.own_start
        for span in here.own:
            if span.start != at:
                break
            at = span.end
        if at != here.length:
            raise RecordInconsistent(f"call {here.call_id}: its mask does not cover its row")
        covered.add(here.call_id)
        here = here.parent
    logprobs = call.logprobs
    if mask.length != length or logprobs is None or logprobs.size != length - mask.prompt_len:
        raise RecordInconsistent(f"call {call.call_id}: ids, logprobs and mask do not fit")
    known = np.isfinite(logprobs)
    every = np.count_nonzero(known) == known.size
    if not every and not known[mask.completion_bits() == 1].all():
        raise RecordInconsistent(f"call {call.call_id}: a token trains without a logprob")


def _rows(
    by_id: dict[CallId, Call], judgement: Judgement, leaves: list[CallId]
) -> Iterator[Row]:
    owned: set[CallId] = set()
    supervised = 0
    for leaf in leaves:
        row = _row(by_id, judgement, leaf, owned)
        owned.update(stretch.call.call_id for stretch in row.stretches)
        supervised += row.supervised
        yield row
    if leaves and supervised != judgement.supervised_tokens:
        raise RecordInconsistent(
            f"{supervised} tokens train in rows, the verdict says {judgement.supervised_tokens}"
        )


def _row(
    by_id: dict[CallId, Call], judgement: Judgement, leaf: CallId, owned: set[CallId]
) -> Row:
    tree = judgement.tree
    token_ids = tree.sequences.full(leaf)
    length = int(token_ids.size)
    reasons = np.full(length, -1, np.int8)
    logprobs = np.full(length, np.nan, np.float32)
    stretches = []
    for call_id in tree.path(leaf):
        call, mask = by_id[call_id], judgement.masks[call_id]
        again = call_id in owned
        for span in mask.own:
            reason = span.reason
            if again and reason is MaskReason.SAMPLED:
                reason = MaskReason.OWNED_BY_OTHER_ROW
            reasons[span.start : span.end] = REASON_CODES[reason]
        start, end = mask.prompt_len, mask.length
        stretches.append(Stretch(call, start, end, not again, version_spans(call)))
        if call.logprobs is not None and call.logprobs.size == end - start:
            logprobs[start:end] = call.logprobs
    trains = (reasons == _SAMPLED).astype(np.int8)
    return Row(tuple(stretches), token_ids, trains, reasons, logprobs)

"""Branches ready to be shown, the last few kept.

Owns: which branch an address means, its arrays and pieces, and their cache.
Must not know: HTML.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from explorer.errors import NotFound
from explorer.export.deltas import TrainerSet, sets_of, usual_set
from explorer.export.judged import Judged
from explorer.records import CallId
from explorer.trace.decode import Piece, pieces
from explorer.web.branch import BranchView, branch_view
from explorer.web.contexts_rollout import TurnSection
from explorer.web.markup import Look
from explorer.web.services import Services
from explorer.web.turn_tree import TurnTree

KEPT = 6

Vocabulary = Mapping[int, tuple[bytes, bool]]


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A branch with the pieces of its tokens and the vocabulary that made them.

    `told` is what a trainer told last. `sections` keeps finished sections by their look: a
    reload or a second reader of a long rollout costs no markup.
    """

    view: BranchView
    pieces: list[Piece]
    vocabulary: Vocabulary
    labels: Mapping[CallId, str]
    told: TrainerSet | None = None
    sections: dict[Look, tuple[TurnSection, ...]] = field(default_factory=dict)


_kept: OrderedDict[tuple[str, str, str], Shown] = OrderedDict()
_lock = Lock()


def forget_kept() -> None:
    """Keeps nothing: a rollout was deleted."""
    with _lock:
        _kept.clear()


def leaf_of(tree: TurnTree, wanted: str) -> CallId | None:
    """The branch an address means: any call of it will do, none means the default.

    Raises:
        NotFound: the rollout has no such call.
    """
    if not wanted:
        return tree.default_leaf()
    call_id = CallId(wanted)
    if call_id not in tree.tree.nodes:
        raise NotFound(f"this rollout has no call “{wanted}” in its tree")
    return tree.main_leaf(call_id)


def shown_branch(services: Services, judged: Judged, tree: TurnTree, leaf: CallId) -> Shown:
    """The branch, from the cache when its inputs are the same."""
    rollout = judged.record.rollout
    told = usual_set(sets_of(services.store.trainer_logps(rollout.rollout_id)))
    key = (
        rollout.rollout_id,
        f"{judged.judgement.inputs_sha256}.{'' if told is None else told.time_us}",
        leaf,
    )
    with _lock:
        kept = _kept.get(key)
        if kept is not None:
            _kept.move_to_end(key)
            return kept
    view = branch_view(judged, leaf, None if told is None else told.logps)
    vocabulary = services.vocabulary(rollout.tokenizer_id)
    cut = pieces(view.ids.tolist(), vocabulary)
    made = Shown(view, cut, vocabulary, tree.labels, told)
    if vocabulary:
        with _lock:
            _kept[key] = made
            while len(_kept) > KEPT:
                _kept.popitem(last=False)
    return made


def decode_one(services: Services, judged: Judged, token_id: int | None) -> str:
    """One token in visible text, with its id when the vocabulary does not know it."""
    if token_id is None:
        return ""
    vocabulary = services.vocabulary(judged.record.rollout.tokenizer_id)
    return pieces([token_id], vocabulary)[0].display or f"⟨{token_id}⟩"

"""A rollout as a reader without leave sees it: the same verdict, the secrets hidden.

Owns: which fields of a record are masked, and the id that stands for a hidden token.
Must not know: who the reader is, pages, raw bodies (`secret_bodies`).

Nothing is judged again: tree, masks, positions and lengths are those of the whole record.
A hidden record can be shown and never exported: its verdict names other inputs, which every
exporter refuses.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import orjson

from explorer.records import Call, CallId, Finding, IdArray, Note, RolloutRecord
from explorer.trace.breaks import PrefixBreak
from explorer.trace.secret_kinds import title_of
from explorer.trace.secret_scan import Mark, Scanned
from explorer.trace.secret_text import BLOCK, Masker, joined
from explorer.trace.sequences import Sequences
from explorer.trace.tree import Tree
from explorer.trace.verdict import Judgement

T = TypeVar("T")
Spans = tuple[tuple[int, int], ...]

# No tokenizer has it, and no array is indexed by it: a place that forgot to ask for the
# vocabulary of a hidden record shows it as an unknown id.
HIDDEN_ID = -1
_HIDDEN = (BLOCK.encode(), False)
_MOST_LEVELS = 40

_ROLLOUT_WORDS = (
    "run", "task", "group", "harness", "harness_version", "metadata", "sampling", "budgets",
    "model", "engine_name", "engine_version",
)  # fmt: skip
_CALL_WORDS = (
    "failure_detail", "finish_reason", "stop_reason", "response_id", "upstream_id",
    "model_requested", "model_served", "engine_weight_label", "requested_sampling",
    "submitted_sampling", "constraints", "claims", "preview",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Cover:
    """What a page may tell of what it hides.

    Attributes:
        told: each kind that is hidden, in words.
        marks: by call the hidden tokens that it stores itself.
    """

    told: tuple[str, ...]
    marks: Mapping[CallId, tuple[Mark, ...]]

    def kind_at(self, path: Sequence[CallId], position: int) -> str:
        """What the hidden token at a position of a branch looks like."""
        for call_id in path:
            for mark in self.marks.get(call_id, ()):
                if mark.start <= position < mark.end:
                    return f"looks like {title_of(mark.kind)}"
        return "is part of what looks like a secret"


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """What of a rollout is hidden: which tokens, and a masker that knows its secrets.

    Attributes:
        marks: by call; what a person let go is not among them.
        told: each kind, in words.
        digest: differs whenever something else is hidden, and tells nothing of what.
    """

    marks: Mapping[CallId, tuple[Mark, ...]]
    masker: Masker
    told: tuple[str, ...]
    digest: str

    def spans(self, call_id: CallId) -> Spans:
        """Tokens that are hidden of those that a call itself stores."""
        return tuple(joined((mark.start, mark.end) for mark in self.marks.get(call_id, ())))


def hidden_of(scanned: Scanned, free: frozenset[str] = frozenset()) -> Hidden | None:
    """What is to be hidden, None for nothing.

    Args:
        free: ids of findings that a person let go.
    """
    kept = {value for value, name in scanned.ids.items() if name not in free}
    if not kept:
        return None
    marks = {
        call_id: left
        for call_id, found in scanned.marks.items()
        if (left := tuple(mark for mark in found if mark.finding_id not in free))
    }
    named = repr((sorted(marks.items()), sorted(scanned.ids[value] for value in kept)))
    return Hidden(
        marks=marks,
        masker=Masker(sorted(kept), frozenset(scanned.ids) - kept),
        told=_told(scanned, free),
        digest=hashlib.sha256(named.encode()).hexdigest()[:12],
    )


def _told(scanned: Scanned, free: frozenset[str]) -> tuple[str, ...]:
    left = [found.kind for found in scanned.secrets if found.finding_id not in free]
    return tuple(
        title_of(kind) + (f" ({count} different ones)" if count > 1 else "")
        for kind, count in Counter(left).items()
    )


class HiddenVocabulary(Mapping[int, tuple[bytes, bool]]):
    """A vocabulary in which a hidden token is a block."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Mapping[int, tuple[bytes, bool]]) -> None:
        self._inner = inner

    def __getitem__(self, token_id: int) -> tuple[bytes, bool]:
        return _HIDDEN if token_id == HIDDEN_ID else self._inner[token_id]

    def __iter__(self) -> Iterator[int]:
        yield from self._inner
        if self._inner:
            yield HIDDEN_ID

    def __len__(self) -> int:
        # Empty as long as nothing is known: pages then say that ids cannot be decoded.
        return len(self._inner) + 1 if self._inner else 0

    def __contains__(self, token_id: object) -> bool:
        return token_id == HIDDEN_ID or token_id in self._inner


def still_tells(
    ids: IdArray, vocabulary: Mapping[int, tuple[bytes, bool]], masker: Masker
) -> bool:
    """Whether ids as they stand in a file decode to a secret: the proof to be made on what
    was written, whatever made it.

    Args:
        masker: `Masker()` for what looks like one, or with the secrets of a rollout.
    """
    raw = b"".join(
        vocabulary[each][0] if each in vocabulary else b"\xff" for each in ids.tolist()
    )
    return bool(masker.spans(raw))


def masked(value: T, masker: Masker, depth: int = 0) -> T:
    """`value` with every text in it masked: texts, containers and frozen records."""
    found: Any = value
    if isinstance(found, str):
        # An enumeration's member is no text of the trace.
        return cast("T", masker.text(found)) if type(found) is str else value
    if depth > _MOST_LEVELS:
        return value
    if isinstance(found, dict):
        return cast(
            "T",
            {
                masked(name, masker, depth + 1): masked(item, masker, depth + 1)
                for name, item in found.items()
            },
        )
    if isinstance(found, list | tuple):
        items = [masked(item, masker, depth + 1) for item in found]
        if hasattr(found, "_fields"):
            return cast("T", type(found)(*items))
        return cast("T", type(found)(items))
    if is_dataclass(found) and not isinstance(found, type):
        changed = {
            field.name: masked(getattr(found, field.name), masker, depth + 1)
            for field in fields(found)
            if not field.name.endswith("_id")
        }
        return cast("T", replace(found, **changed))
    return value


def _words(holder: T, names: tuple[str, ...], masker: Masker) -> T:
    """`holder` with these fields masked, itself when nothing changes."""
    record: Any = holder
    changed = {}
    for name in names:
        before = getattr(record, name)
        if before and (after := masked(before, masker)) != before:
            changed[name] = after
    return cast("T", replace(record, **changed)) if changed else holder


def hidden_record(record: RolloutRecord, hidden: Hidden) -> RolloutRecord:
    """The record without what is secret; ids inside a secret are `HIDDEN_ID`."""
    masker = hidden.masker
    return replace(
        record,
        rollout=_words(record.rollout, _ROLLOUT_WORDS, masker),
        events=tuple(_words(each, ("reason", "payload"), masker) for each in record.events),
        calls=tuple(
            _hidden_call(call, hidden.spans(call.call_id), masker) for call in record.calls
        ),
        overrides=tuple(_words(each, ("reason", "who"), masker) for each in record.overrides),
        contradicted=masked(record.contradicted, masker),
    )


def _hidden_call(call: Call, spans: Spans, masker: Masker) -> Call:
    call = _words(call, _CALL_WORDS, masker)
    if any(note.detail for note in call.notes):
        notes = tuple(Note(note.code, masker.text(note.detail)) for note in call.notes)
        call = replace(call, notes=notes)
    if call.weight_spans:
        named = tuple(
            replace(span, version_label=masker.text(span.version_label))
            for span in call.weight_spans
        )
        call = replace(call, weight_spans=named)
    if not spans:
        return call
    delta_end = call.prefix_len + (
        0 if call.prompt_delta is None else int(call.prompt_delta.size)
    )
    return replace(
        call,
        prompt_delta=_hidden_ids(call.prompt_delta, spans, call.prefix_len),
        completion=_hidden_ids(call.completion, spans, delta_end),
        top_logprobs=_hidden_alternatives(call.top_logprobs, spans, delta_end),
    )


def _hidden_ids(ids: IdArray | None, spans: Spans, first: int) -> IdArray | None:
    """A copy of `ids`, which begin at `first` of the row, with the spans hidden."""
    if ids is None:
        return None
    made = ids.copy()
    for start, end in spans:
        made[max(0, start - first) : max(0, end - first)] = HIDDEN_ID
    made.flags.writeable = False
    return made


def _hidden_alternatives(data: bytes | None, spans: Spans, first: int) -> bytes | None:
    """The alternatives without those of hidden tokens: they often hold the token itself."""
    if data is None:
        return None
    try:
        rows = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(rows, list):
        return None
    for start, end in spans:
        for place in range(max(0, start - first), min(len(rows), max(0, end - first))):
            rows[place] = []
    return orjson.dumps(rows)


def hidden_judgement(judgement: Judgement, record: RolloutRecord, hidden: Hidden) -> Judgement:
    """The same verdict about a hidden record: nothing is decided again.

    Args:
        record: the hidden one.
    """
    sequences, masker = Sequences(record.calls), hidden.masker
    tree = _hidden_tree(judgement.tree, sequences)
    return replace(
        judgement,
        tree=tree,
        roles={name: masked(role, masker) for name, role in judgement.roles.items()},
        findings=tuple(
            _hidden_finding(masked(found, masker), judgement.tree, tree)
            for found in judgement.findings
        ),
        reasons=masked(judgement.reasons, masker),
        notices=masked(judgement.notices, masker),
        state=masked(judgement.state, masker),
        inputs_sha256=f"{judgement.inputs_sha256}-hidden-{hidden.digest}",
    )


def _hidden_tree(tree: Tree, sequences: Sequences) -> Tree:
    nodes = {
        call_id: node
        if node.break_ is None
        else replace(node, break_=_hidden_break(node.break_, call_id, sequences))
        for call_id, node in tree.nodes.items()
    }
    return replace(tree, nodes=nodes, sequences=sequences)


def _hidden_finding(found: Finding, whole: Tree, shown: Tree) -> Finding:
    """A finding without the ids that a break tells, where they are hidden."""
    name = found.where.call_id
    node = whole.nodes.get(name) if name is not None else None
    if node is None or node.break_ is None or name is None:
        return found
    after = shown.nodes[name].break_
    assert after is not None  # the hidden tree has the same breaks
    message = found.message
    for word, before, now in (
        ("expected", node.break_.expected_id, after.expected_id),
        ("got", node.break_.actual_id, after.actual_id),
    ):
        if now == HIDDEN_ID:
            message = re.sub(rf"\b{word} {before}\b", f"{word} a hidden token", message)
    return replace(found, message=message)


def _hidden_break(found: PrefixBreak, call_id: CallId, sequences: Sequences) -> PrefixBreak:
    """The two ids where a prompt broke off, hidden where their tokens are."""

    def shown(token_id: int | None, owner: CallId) -> int | None:
        if token_id is None or sequences.problem(owner) is not None:
            return token_id
        at = sequences.slice(owner, found.offset, found.offset + 1)
        return HIDDEN_ID if np.equal(at, HIDDEN_ID).any() else token_id

    return replace(
        found,
        expected_id=shown(found.expected_id, found.nearest_call_id),
        actual_id=shown(found.actual_id, call_id),
    )

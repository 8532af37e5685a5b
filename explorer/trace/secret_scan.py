"""What in a rollout looks like a secret, in its words and in what its token ids decode to.

Owns: the findings of one rollout, and which stored tokens they cover.
Must not know: raw bodies' formats (`secret_bodies`), the store, who may see a finding.

Each text is read once. Of a call that continues another only the new tokens are decoded,
with a stretch before them, so that a secret across the border is found as a whole.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from explorer.records import Call, CallId, IdArray, Rollout, RolloutRecord
from explorer.trace.jsontext import dump
from explorer.trace.secret_kinds import KINDS, MANY, RULES, Kind, title_of
from explorer.trace.secret_text import (
    MOST_VALUES,
    SHORTEST_VALUE,
    places_of,
    scan,
)
from explorer.trace.sequences import Sequences

# Of these rules; what was scanned by older ones is scanned again.
SCAN_VERSION = 1
OVERLAP_TOKENS = 256
MOST_FINDINGS = 400
MOST_PLACES = 20
# An id whose bytes are not known; no rule matches it.
_GAP = b"\xff"
_SHOWN_FROM, _SHOWN = 20, 4
_LISTED = ("metadata", "note")
_ORDER = {rule.kind.name: order for order, rule in reversed(list(enumerate(RULES)))}

Vocabulary = Mapping[int, tuple[bytes, bool]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a finding stands: `source` is `metadata`, `event`, `call`, `request`,
    `submitted`, `reply`, `note` or `tokens`; for tokens `start` and `end` are positions in
    the call's prompt and completion together."""

    source: str
    call_id: CallId | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class SecretFinding:
    """One secret of one rollout, without the secret.

    Attributes:
        finding_id: the same for the same secret in the same rollout; nobody without the
            store can tell from it what the secret is.
        preview: at most its first four characters, empty for a short one.
        length: its characters.
        places: the first ones; `n_places` counts all.
        listed: it stands in what lists of rollouts show, filter or sort by.
    """

    finding_id: str
    kind: str
    preview: str
    length: int
    places: tuple[Place, ...]
    n_places: int
    listed: bool = False

    @property
    def title(self) -> str:
        """Its kind in words."""
        return title_of(self.kind)

    @property
    def blocks(self) -> bool:
        """Whether a person must decide about it."""
        return self.kind not in KINDS or KINDS[self.kind].blocks


@dataclass(frozen=True, slots=True)
class Mark:
    """Tokens of a call that spell a secret, as positions in its prompt and completion; only
    those that the call itself stores, never what it shares with its stored parent."""

    start: int
    end: int
    finding_id: str
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Scanned:
    """What a scan found.

    Attributes:
        marks: by call, in order.
        unknown: how many ids have no bytes in the vocabulary, so that more may be found
            when it has learned them.
        ids: by secret the id of its finding. The secrets stay in memory; nothing prints
            them.
    """

    findings: tuple[SecretFinding, ...]
    marks: Mapping[CallId, tuple[Mark, ...]]
    unknown: int
    ids: Mapping[bytes, str] = field(repr=False)

    @property
    def secrets(self) -> tuple[SecretFinding, ...]:
        """The findings that a person must decide about."""
        return tuple(found for found in self.findings if found.blocks)


@dataclass(slots=True)
class _Noted:
    kind: Kind
    value: bytes = field(repr=False)
    places: list[Place] = field(default_factory=list)
    n_places: int = 0
    listed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Decoded tokens of a call: from `first` on, token `i` ends at byte `ends[i]`."""

    call: Call
    first: int
    raw: bytes = field(repr=False)
    ends: np.ndarray[Any, np.dtype[np.int64]]

    def tokens(self, start: int, end: int) -> tuple[int, int]:
        """The whole tokens that hold the bytes, as positions in the call's row."""
        low = int(np.searchsorted(self.ends, start, side="right"))
        high = int(np.searchsorted(self.ends, end, side="left"))
        return self.first + low, self.first + high + 1


class RolloutScan:
    """Collects what one rollout says; give it everything, then ask for the `result`.

    Args:
        vocabulary: each id's bytes; may be empty.
    """

    def __init__(self, record: RolloutRecord, vocabulary: Vocabulary) -> None:
        self._record = record
        self._vocabulary = vocabulary
        self._calls = {call.call_id: call for call in record.calls}
        self._noted: dict[bytes, _Noted] = {}
        self._stretches: list[_Stretch] = []
        self._spans: dict[CallId, list[tuple[int, int, bytes]]] = {}
        self._rows: dict[CallId, list[tuple[int, int]]] = {}
        self._unknown = 0

    def text(self, data: bytes, place: Place) -> None:
        """Scans some text."""
        for hit in scan(data):
            self.note(hit.kind, hit.value, place)

    def whole_record(self) -> None:
        """Scans everything that the record itself holds: its words, then its tokens."""
        for place, data in record_texts(self._record):
            self.text(data, place)
        sequences = Sequences(self._record.calls)
        for call in self._record.calls:
            for stretch in self._decoded(call, sequences):
                self._stretches.append(stretch)
                self._scan_tokens(stretch)

    def note(self, kind: Kind, value: bytes, place: Place) -> None:
        """Keeps one match that was found by the caller."""
        noted = self._noted.get(value)
        if noted is None:
            noted = self._noted[value] = _Noted(kind, value)
        elif _ORDER[kind.name] < _ORDER[noted.kind.name]:
            noted.kind = kind
        noted.n_places += 1
        noted.listed = noted.listed or place.source in _LISTED
        if len(noted.places) < MOST_PLACES and place not in noted.places:
            noted.places.append(place)

    # -- tokens

    def _decoded(self, call: Call, sequences: Sequences) -> Iterator[_Stretch]:
        """The tokens that the call itself stores, with some before them."""
        if sequences.problem(call.call_id) is None:
            assert call.prompt_delta is not None  # `problem` said so
            first = self._first(call)
            length = sequences.full_length(call.call_id)
            yield self._stretch(call, first, sequences.slice(call.call_id, first, length))
            return
        # What it stores is read also where it fits to nothing.
        at = call.prefix_len
        for part in (call.prompt_delta, call.completion):
            if part is not None and part.size:
                yield self._stretch(call, at, part)
                at += int(part.size)

    def _first(self, call: Call) -> int:
        """Where to begin: early enough for a secret that the shared part only begins."""
        first = max(0, call.prefix_len - OVERLAP_TOKENS)
        parent = call.stored_parent_id
        while parent is not None and self._calls[parent].prefix_len >= call.prefix_len:
            parent = self._calls[parent].stored_parent_id
        for start, end in self._rows.get(parent, ()) if parent is not None else ():
            if start < call.prefix_len <= end:
                first = min(first, start)
        return first

    def _stretch(self, call: Call, first: int, ids: IdArray) -> _Stretch:
        known = self._vocabulary
        parts = [known[each][0] if each in known else _GAP for each in ids.tolist()]
        self._unknown += sum(part is _GAP for part in parts)
        sizes = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
        return _Stretch(call, first, b"".join(parts), np.cumsum(sizes))

    def _scan_tokens(self, stretch: _Stretch) -> None:
        for hit in scan(stretch.raw):
            start, end = stretch.tokens(hit.start, hit.end)
            if end <= stretch.call.prefix_len:
                continue  # the call that stores these tokens has it
            self.note(hit.kind, hit.value, Place("tokens", stretch.call.call_id, start, end))
            if hit.kind.blocks:
                self._rows.setdefault(stretch.call.call_id, []).append((start, end))
                self._cover(stretch.call, start, end, hit.value)

    def _cover(self, call: Call, start: int, end: int, value: bytes) -> None:
        """Marks tokens in the calls that store them."""
        here: Call | None = call
        while here is not None and start < end:
            first = max(start, here.prefix_len)
            if first < end:
                self._spans.setdefault(here.call_id, []).append((first, end, value))
                end = first
            parent = here.stored_parent_id
            here = self._calls.get(parent) if parent is not None else None

    def _cover_values(self, values: tuple[bytes, ...]) -> None:
        """Marks tokens that repeat a secret without the words that gave it away."""
        for stretch in self._stretches:
            for start, end, value in places_of(stretch.raw, values):
                self._cover(stretch.call, *stretch.tokens(start, end), value)

    # -- the result

    def result(self) -> Scanned:
        """Everything that was found."""
        noted = sorted(self._noted.values(), key=lambda each: not each.kind.blocks)
        values = [each.value for each in noted if each.kind.blocks]
        long = [value for value in values if len(value) >= SHORTEST_VALUE]
        self._cover_values(tuple(long[:MOST_VALUES]))
        findings, ids = _findings(self._record.rollout, noted)
        marks = {
            call_id: tuple(
                Mark(start, end, ids[value], self._noted[value].kind.name)
                for start, end, value in sorted(set(found))
            )
            for call_id, found in self._spans.items()
        }
        return Scanned(findings, marks, self._unknown, {value: ids[value] for value in values})


def _findings(
    rollout: Rollout, noted: list[_Noted]
) -> tuple[tuple[SecretFinding, ...], dict[bytes, str]]:
    """The findings, and by value the id of its finding."""
    made, ids = [], {}
    for each in noted[:MOST_FINDINGS]:
        value = each.value
        name = ids[value] = finding_id(rollout, value)
        places = tuple(each.places)
        made.append(
            SecretFinding(
                finding_id=name,
                kind=each.kind.name,
                preview=_preview(value),
                length=len(value),
                places=places,
                n_places=each.n_places,
                listed=each.listed,
            )
        )
    rest = [each for each in noted[MOST_FINDINGS:] if each.kind.blocks]
    if rest:
        places = tuple(place for each in rest[:MOST_PLACES] for place in each.places[:1])
        total = sum(each.n_places for each in rest)
        name = finding_id(rollout, b"\n".join(sorted(each.value for each in rest)))
        listed = any(each.listed for each in rest)
        made.append(SecretFinding(name, MANY.name, "", 0, places, total, listed))
        ids |= {each.value: name for each in rest}
    return tuple(made), ids


def finding_id(rollout: Rollout, value: bytes) -> str:
    """A name for a secret that tells nothing about it.

    Keyed by what only the store holds: whoever sees the id cannot try out guesses.
    """
    keyed = hmac.new(rollout.key_hash.encode(), b"secret\0" + value, hashlib.sha256)
    return f"sf_{keyed.hexdigest()[:24]}"


def _preview(value: bytes) -> str:
    if len(value) < _SHOWN_FROM:
        return ""
    return value[:_SHOWN].decode("ascii", "replace")


_ROLLOUT_TEXT = (
    "run", "task", "group", "harness", "harness_version", "metadata", "sampling", "budgets",
    "model", "engine_name", "engine_version",
)  # fmt: skip
_CALL_TEXT = (
    "preview", "failure_detail", "finish_reason", "stop_reason", "response_id", "upstream_id",
    "model_requested", "model_served", "engine_weight_label", "requested_sampling",
    "submitted_sampling", "constraints", "claims",
)  # fmt: skip


def record_texts(record: RolloutRecord) -> Iterator[tuple[Place, bytes]]:
    """Everything in a record that is words, as JSON."""
    yield Place("metadata"), _json(record.rollout, _ROLLOUT_TEXT)
    for event in record.events:
        if event.reason or event.payload:
            yield Place("event"), _json(event, ("reason", "payload"))
    for override in record.overrides:
        yield Place("event", override.call_id), _json(override, ("reason", "who"))
    for call in record.calls:
        notes = [note.detail for note in call.notes if note.detail]
        notes += [span.version_label for span in call.weight_spans]
        yield Place("call", call.call_id), _json(call, _CALL_TEXT) + dump(notes)


def _json(holder: object, names: Iterable[str]) -> bytes:
    return dump({name: found for name in names if (found := getattr(holder, name))})

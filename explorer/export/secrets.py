"""What looks like a secret in each rollout: scanned once, decided by people, hidden.

Owns: when a rollout is scanned again, and a rollout as readers without leave see it.
Must not know: pages, HTTP, who a reader is.

A scan is kept in memory for as long as the rollout's rows stay the same; the store keeps
marks and decisions, never a secret. Everything here works without writing, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from explorer.errors import NotFound, SecretsUndecided, StoreReadOnly
from explorer.export.judged import Judged
from explorer.export.secret_review import Review, Reviewed
from explorer.records import Body, CallId, RolloutId, RolloutRecord, TokenizerId
from explorer.store.interface import RecordStamp, Store
from explorer.store.secret_marks import SecretDecision, SecretMark, SecretRow
from explorer.trace.secret_bodies import BodyScan, ShownBody, shown_body
from explorer.trace.secret_hiding import (
    Cover,
    Hidden,
    hidden_judgement,
    hidden_of,
    hidden_record,
)
from explorer.trace.secret_scan import (
    SCAN_VERSION,
    Place,
    RolloutScan,
    Scanned,
)
from explorer.trace.sequences import Sequences

Vocabulary = Mapping[int, tuple[bytes, bool]]
_KEPT_SCANS = 256
_KEPT_SHOWN = 16
_KEPT_TOKENS = 2_000_000


@dataclass(slots=True, eq=False)
class _Kept:
    """What is known of one rollout."""

    stamp: tuple[object, ...]
    vocabulary: int
    scanned: Scanned
    prefixes: dict[CallId, tuple[CallId | None, int]]


class SecretScans:
    """The one place that scans rollouts and hides what it found; safe from any thread.

    Args:
        vocabulary: bytes and special flag of each id of a tokenizer.
        now_us: clock of the rows that are written.
    """

    def __init__(
        self,
        store: Store,
        vocabulary: Callable[[TokenizerId | None], Vocabulary],
        now_us: Callable[[], int],
    ) -> None:
        self._store = store
        self._vocabulary = vocabulary
        self._now_us = now_us
        self._lock = threading.Lock()
        self._busy: dict[RolloutId, threading.Lock] = {}
        self._kept: OrderedDict[RolloutId, _Kept] = OrderedDict()
        self._shown: OrderedDict[tuple[RolloutId, str], Judged] = OrderedDict()

    # -- scanning; every method below may take long: call it in a worker thread

    def scanned(self, rollout_id: RolloutId) -> Scanned | None:
        """What a rollout holds as it is now; None when there is no such rollout."""
        kept = self._current(rollout_id)
        return None if kept is None else kept.scanned

    def _current(self, rollout_id: RolloutId) -> _Kept | None:
        with self._lock:
            busy = self._busy.setdefault(rollout_id, threading.Lock())
        # Two readers of one rollout wait for one scan; others go on.
        with busy:
            try:
                return self._scan(rollout_id)
            finally:
                with self._lock:
                    if self._busy.get(rollout_id) is busy:
                        del self._busy[rollout_id]

    def _scan(self, rollout_id: RolloutId) -> _Kept | None:
        stamp = self._stamp(rollout_id)
        with self._lock:
            kept = self._kept.get(rollout_id)
            if kept is not None:
                self._kept.move_to_end(rollout_id)
        if kept is not None and kept.stamp == stamp:
            if not kept.scanned.unknown:
                return kept
            rollout = self._store.rollout(rollout_id)
            if rollout is None:
                return None
            if len(self._vocabulary(rollout.tokenizer_id)) == kept.vocabulary:
                return kept
        record = self._store.record(rollout_id)
        if record is None:
            with self._lock:
                self._kept.pop(rollout_id, None)
            return None
        made = self._made(record, stamp)
        with self._lock:
            self._kept[rollout_id] = made
            while len(self._kept) > _KEPT_SCANS:
                self._kept.popitem(last=False)
        return made

    def forget(self, rollout_id: RolloutId) -> None:
        """Holds nothing of a rollout any more: it was deleted."""
        with self._lock:
            self._kept.pop(rollout_id, None)
            for key in [key for key in self._shown if key[0] == rollout_id]:
                del self._shown[key]

    def _stamp(self, rollout_id: RolloutId) -> tuple[object, ...]:
        noted = self._store.annotations(rollout_id)
        return (
            *self._store.record_stamp(rollout_id),
            tuple(note.annotation_id for note in noted),
        )

    def _made(self, record: RolloutRecord, stamp: tuple[object, ...]) -> _Kept:
        rollout_id = record.rollout.rollout_id
        vocabulary = self._vocabulary(record.rollout.tokenizer_id)
        size = len(vocabulary)
        scan = RolloutScan(record, vocabulary)
        bodies = BodyScan(scan)
        for call_id, found in self._store.every_body(rollout_id):
            if not isinstance(found, str):  # damaged ones are never shown
                bodies.call(call_id, found)
        for note in self._store.annotations(rollout_id):
            words = f"{note.label or ''}\n{note.note or ''}\n{note.who}"
            scan.text(words.encode("utf-8", "surrogatepass"), Place("note", note.call_id))
        scan.whole_record()
        prefixes = {
            call.call_id: (call.stored_parent_id, call.prefix_len) for call in record.calls
        }
        return _Kept(stamp, size, scan.result(), prefixes)

    # -- what stands

    def review(self, rollout_id: RolloutId) -> Review | None:
        """The findings of a rollout with what people decided; None when there is none."""
        kept = self._current(rollout_id)
        return None if kept is None else self._review(rollout_id, kept)

    def _review(self, rollout_id: RolloutId, kept: _Kept) -> Review:
        latest = {each.finding_id: each for each in self._store.secret_decisions(rollout_id)}
        return Review(
            rollout_id,
            tuple(
                Reviewed(found, latest.get(found.finding_id)) for found in kept.scanned.findings
            ),
        )

    def export_refusal(self, rollout_id: RolloutId) -> str | None:
        """Why a download under a grant is refused: `refusal` of its review."""
        review = self.review(rollout_id)
        return None if review is None else review.refusal

    def require_released(self, rollout_id: RolloutId) -> None:
        """For a download under a grant, and for publishing whoever does it.

        Raises:
            SecretsUndecided: something in it waits for a person, or is withheld.
        """
        refusal = self.export_refusal(rollout_id)
        if refusal is not None:
            raise SecretsUndecided(refusal, rollout_id=rollout_id)

    def let_go(self, rollout_id: RolloutId) -> frozenset[bytes]:
        """What looks like a secret and may leave, because a person said so."""
        kept = self._current(rollout_id)
        if kept is None:
            return frozenset()
        review = self._review(rollout_id, kept)
        free = {item.finding.finding_id for item in review.items if not item.hidden}
        return frozenset(value for value, name in kept.scanned.ids.items() if name in free)

    # -- what is shown

    def hidden(self, rollout_id: RolloutId, *, everything: bool = False) -> Hidden | None:
        """What readers without leave do not see of a rollout; with `everything`, also what
        a person let go."""
        kept = self._current(rollout_id)
        if kept is None or not kept.scanned.secrets:
            return None
        if everything:
            return hidden_of(kept.scanned)
        review = self._review(rollout_id, kept)
        free = frozenset(item.finding.finding_id for item in review.secrets if not item.hidden)
        return hidden_of(kept.scanned, free)

    def record(self, record: RolloutRecord) -> RolloutRecord:
        """A record as readers without leave see it."""
        hidden = self.hidden(record.rollout.rollout_id)
        return record if hidden is None else hidden_record(record, hidden)

    def judged(self, judged: Judged) -> Judged:
        """A judged rollout as readers without leave see it: the same verdict, masks and
        positions. Give pages a `HiddenVocabulary` with it. No exporter takes it."""
        rollout_id = judged.record.rollout.rollout_id
        hidden = self.hidden(rollout_id)
        if hidden is None:
            return judged
        key = (rollout_id, f"{judged.judgement.inputs_sha256}.{hidden.digest}")
        with self._lock:
            known = self._shown.get(key)
            if known is not None:
                self._shown.move_to_end(key)
                return known
        record = hidden_record(judged.record, hidden)
        verdict = hidden_judgement(judged.judgement, record, hidden)
        made = Judged(
            record,
            verdict,
            Sequences(record.calls),
            cover=Cover(hidden.told, hidden.marks),
        )
        with self._lock:
            self._shown[key] = made
            total = sum(each.stored_tokens for each in self._shown.values())
            while len(self._shown) > 1 and (
                len(self._shown) > _KEPT_SHOWN or total > _KEPT_TOKENS
            ):
                _, dropped = self._shown.popitem(last=False)
                total -= dropped.stored_tokens
        return made

    def bodies(self, rollout_id: RolloutId, bodies: tuple[Body, ...]) -> tuple[Body, ...]:
        """Exact bytes as readers without leave see them."""
        return tuple(each.body for each in self.shown_bodies(rollout_id, bodies))

    def shown_bodies(
        self, rollout_id: RolloutId, bodies: tuple[Body, ...]
    ) -> tuple[ShownBody, ...]:
        """The same, with what is hidden of each in words."""
        hidden = self.hidden(rollout_id)
        if hidden is None:
            return tuple(ShownBody(body) for body in bodies)
        kept = self._current(rollout_id)
        return tuple(
            shown_body(
                body,
                hidden.masker,
                tokens_hidden=kept is not None and _row_hides(body.call_id, kept, hidden),
            )
            for body in bodies
        )

    def text(self, rollout_id: RolloutId, text: str) -> str:
        """Words about one rollout as readers without leave see them."""
        hidden = self.hidden(rollout_id)
        return text if hidden is None else hidden.masker.text(text)

    def unlisted(self) -> frozenset[RolloutId]:
        """Rollouts that lists do not tell readers without leave of: their names, metadata
        or labels hold a secret, and a filter, an order or a cursor would give it away."""
        # What this process scanned counts also where the store takes no marks.
        with self._lock:
            recent = [
                name
                for name, kept in self._kept.items()
                if any(found.blocks and found.listed for found in kept.scanned.findings)
            ]
        shown = [
            name
            for name in recent
            if (review := self.review(name)) is not None
            and any(item.hidden and item.finding.listed for item in review.items)
        ]
        return self._store.secrets_in_lists() | frozenset(shown)

    # -- what is written

    def stamps(self, stamp: RecordStamp) -> tuple[str, str]:
        """How a mark of the rollout as it stands reads: when every id could be decoded, and
        when some could not with the vocabulary of now."""
        size = len(self._vocabulary(stamp.tokenizer_id))
        return stamp.text, f"{stamp.text}/{size}"

    async def mark(self, stamp: RecordStamp) -> str:
        """Scans a rollout off the event loop and keeps what was found, without secrets;
        returns the stamp that its mark has."""
        rollout_id = stamp.rollout_id
        whole, partly = self.stamps(stamp)
        kept = await asyncio.to_thread(self._current, rollout_id)
        if kept is None:
            return whole
        rows = await asyncio.to_thread(self._store.secret_rows, rollout_id)
        known = {row.finding_id for row in rows}
        told = partly if kept.scanned.unknown else whole
        now, found = self._now_us(), kept.scanned.findings
        secrets = len(kept.scanned.secrets)
        paths = len(found) - secrets
        with suppress(StoreReadOnly):
            for each in found:
                if each.finding_id not in known:
                    await self._store.add_secret(
                        SecretRow(
                            *(rollout_id, each.finding_id, now, each.kind),
                            *(each.blocks, each.listed),
                        )
                    )
            await self._store.add_secret(
                SecretMark(rollout_id, now, SCAN_VERSION, told, secrets, paths)
            )
        return told

    async def decide(self, decision: SecretDecision) -> SecretDecision:
        """Keeps what a person decided about a finding.

        Raises:
            NotFound: the rollout has no such finding, or nothing to decide about it.
        """
        review = await asyncio.to_thread(self.review, decision.rollout_id)
        items = () if review is None else review.secrets
        if all(item.finding.finding_id != decision.finding_id for item in items):
            raise NotFound(
                "this rollout has no such finding to decide about; "
                "its findings tab lists those it has"
            )
        made = replace(decision, time_us=self._now_us())
        await self._store.add_secret(made)
        return made


def _row_hides(call_id: CallId, kept: _Kept, hidden: Hidden) -> bool:
    """Whether any token of a call's prompt or completion is hidden."""
    here: CallId | None = call_id
    until: int | None = None
    while here is not None:
        marks = hidden.marks.get(here, ())
        if any(until is None or mark.start < until for mark in marks):
            return True
        parent, prefix = kept.prefixes.get(here, (None, 0))
        until = prefix if until is None else min(until, prefix)
        here = parent
    return False

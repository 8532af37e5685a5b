"""Brings the search's side file up to date with the store. Wiring only.

Written after commits, by a task that leaves calls and pages most of the time: a closed
rollout soon after its last row, an open one when it has been quiet, or once a minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from explorer.errors import ExplorerError
from explorer.export.judged import JudgedRollouts
from explorer.export.secrets import SecretScans
from explorer.records import RolloutId, TokenizerId
from explorer.rounds import ROUND_S, Rounds
from explorer.store.interface import RecordStamp, Store
from explorer.store.passages import Passage
from explorer.store.search_index import Indexed, SearchIndex
from explorer.trace.secret_text import Masker
from explorer.web.passages import Reading

log = logging.getLogger(__name__)

Vocabulary = Mapping[int, tuple[bytes, bool]]


class Indexing(Rounds):
    """The background task of one server.

    Args:
        vocabulary: bytes and special flag of each id of a tokenizer.
        in_flight: calls that are being worked on now.
    """

    def __init__(
        self,
        store: Store,
        judged: JudgedRollouts,
        index: SearchIndex,
        secrets: SecretScans,
        vocabulary: Callable[[TokenizerId | None], Vocabulary],
        in_flight: Callable[[], int],
    ) -> None:
        super().__init__(store, in_flight, "the search index is not brought up to date")
        self._judged = judged
        self._index = index
        self._secrets = secrets
        self._vocabulary = vocabulary
        self._failed: dict[RolloutId, str] = {}

    def start(self) -> None:
        """Opens the file and begins; needs a running loop."""
        self._index.open()
        if self._index.usable:
            super().start()

    async def stop(self) -> None:
        """Ends it wherever it is, and closes the file."""
        await super().stop()
        await asyncio.to_thread(self._index.close)

    def _goes_on(self) -> bool:
        return self._index.usable

    def _broken(self) -> None:
        super()._broken()
        self._index.note = (
            "the index is no longer brought up to date (the server's log says why); "
            "exact text finds everything, and a restart begins anew"
        )

    async def _round(self) -> bool:
        stamps = await asyncio.to_thread(self._store.record_stamps)
        known = await asyncio.to_thread(self._index.indexed)
        on_record = {stamp.rollout_id for stamp in stamps}
        gone = [rollout_id for rollout_id in known if rollout_id not in on_record]
        if gone:
            await asyncio.to_thread(self._index.forget, gone)
        left = False
        began_round = time.monotonic()
        for stamp in stamps:
            if time.monotonic() - began_round > ROUND_S:
                return True  # what was deleted meanwhile leaves before more comes in
            if self._is_fresh(stamp, known.get(stamp.rollout_id)):
                continue
            if self._failed.get(stamp.rollout_id) == stamp.text:
                continue
            if not self._is_due(stamp):
                left = True
                continue
            began = self._begin(stamp)
            await self._put(stamp)
            await self._rest(began)
        self._looked_at(stamps)
        return left

    def _is_fresh(self, stamp: RecordStamp, known: Indexed | None) -> bool:
        if known is None or known.stamp != stamp.text:
            return False
        if not known.unknown:
            return True
        # Bytes of ids may have been learned since from other rollouts' replies.
        return len(self._vocabulary(stamp.tokenizer_id)) == known.vocabulary

    async def _put(self, stamp: RecordStamp) -> None:
        rollout_id = stamp.rollout_id
        try:
            judged = await self._judged.get(rollout_id)
            if judged is None:
                return
            vocabulary = self._vocabulary(stamp.tokenizer_id)
            # The judged record may be newer than the stamp: then its next round comes.
            reading = Reading(self._store, judged, vocabulary)

            def write() -> None:
                hidden = self._secrets.hidden(rollout_id, everything=True)
                masker = Masker() if hidden is None else hidden.masker
                found = [_clean(p, masker) for p in reading.passages() if not p.repeated]
                self._index.put(rollout_id, stamp.text, len(vocabulary), found)

            await asyncio.to_thread(write)
        except ExplorerError as error:
            self._failed[rollout_id] = stamp.text
            log.warning("rollout %s is not in the search index: %s", rollout_id, error)


def _clean(passage: Passage, masker: Masker) -> Passage:
    """Without what looks like a secret, and without the rollout's secrets wherever they
    stand, every other character in its place: the file outlives the pages' checks, and
    nobody may learn from a search whether a guess is right."""
    text = masker.text(passage.text, mark="*")
    return passage if text == passage.text else replace(passage, text=text)

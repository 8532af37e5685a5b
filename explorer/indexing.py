"""Brings the search's side file up to date with the store. Wiring only.

Written after commits, by a task that leaves calls and pages most of the time: a closed
rollout soon after its last row, an open one when it has been quiet, or once a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from explorer.errors import ExplorerError
from explorer.export.judged import JudgedRollouts
from explorer.export.secrets import SecretScans
from explorer.records import RolloutId, TokenizerId
from explorer.store.interface import RecordStamp, Store
from explorer.store.passages import Passage
from explorer.store.search_index import Indexed, SearchIndex
from explorer.trace.secret_text import Masker
from explorer.web.passages import Reading

log = logging.getLogger(__name__)

Vocabulary = Mapping[int, tuple[bytes, bool]]

POLL_S = 0.5
OPEN_EVERY_S = 60.0
ROUND_S = 10.0
# Between two rollouts, as for judging again; longer while calls are in flight.
_PAUSE_S = 0.01
_PAUSE_SHARE = 3.0
_BUSY_SHARE = 12.0


class Indexing:
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
        self._store = store
        self._judged = judged
        self._index = index
        self._secrets = secrets
        self._vocabulary = vocabulary
        self._in_flight = in_flight
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[RolloutId, str] = {}
        self._written: dict[RolloutId, float] = {}
        self._failed: dict[RolloutId, str] = {}

    def start(self) -> None:
        """Opens the file and begins; needs a running loop."""
        self._index.open()
        if self._index.usable:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Ends it wherever it is, and closes the file."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(self._index.close)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Says it when the work ended by a fault of ours, instead of going stale unseen."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._index.note = (
                "the index is no longer brought up to date (the server's log says why); "
                "exact text finds everything, and a restart begins anew"
            )
            log.error("indexing for the search ended", exc_info=error)

    async def _run(self) -> None:
        commits = -1
        waiting = True
        while self._index.usable:
            try:
                now = self._store.health().commits
                if now != commits or waiting:
                    commits = now
                    waiting = await self._round()
            except ExplorerError as error:
                log.warning("the search index is not brought up to date now: %s", error)
                waiting = True
            await asyncio.sleep(POLL_S)

    async def _round(self) -> bool:
        """Does what is due, the newest rollouts first; whether something is left."""
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
            began = time.monotonic()
            await self._put(stamp)
            took = time.monotonic() - began
            share = _BUSY_SHARE if self._in_flight() else _PAUSE_SHARE
            await asyncio.sleep(max(_PAUSE_S, share * took))
        self._seen = {stamp.rollout_id: stamp.text for stamp in stamps}
        return left

    def _is_fresh(self, stamp: RecordStamp, known: Indexed | None) -> bool:
        if known is None or known.stamp != stamp.text:
            return False
        if not known.unknown:
            return True
        # Bytes of ids may have been learned since from other rollouts' replies.
        return len(self._vocabulary(stamp.tokenizer_id)) == known.vocabulary

    def _is_due(self, stamp: RecordStamp) -> bool:
        if stamp.closed or self._seen.get(stamp.rollout_id) == stamp.text:
            return True
        return time.monotonic() - self._written.get(stamp.rollout_id, 0.0) > OPEN_EVERY_S

    async def _put(self, stamp: RecordStamp) -> None:
        rollout_id = stamp.rollout_id
        self._written[rollout_id] = time.monotonic()
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

"""The bytes of token ids, from whoever gives them exactly. Wiring only.

Owns: which vocabulary a new rollout names, and learning one from replies where the engine
has none and no tokenizer was named.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Container, Mapping, Sequence

from explorer.engine.protocol import Engine, TokenPiece
from explorer.errors import StoreFailed
from explorer.records import Certificate, TokenizerId, VocabularyEntry
from explorer.store.interface import Store

log = logging.getLogger(__name__)

LEARNED = "learned:"
WRITE_EVERY_S = 0.5

Vocabulary = Mapping[int, tuple[bytes, bool]]


class Vocabularies:
    """Vocabularies by tokenizer, kept in memory once read.

    Args:
        store: where they are kept.
        engine: asked for its own.
    """

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store = store
        self._engine = engine
        self._known: dict[TokenizerId, dict[int, tuple[bytes, bool]]] = {}
        self._fresh: list[VocabularyEntry] = []
        self._writing: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.current: TokenizerId | None = None

    async def keep(self, certificate: Certificate) -> None:
        """Makes the engine's vocabulary durable; without one, learns from replies.

        The name of a learned one says so: it holds what was seen, not everything.
        """
        pieces = await self._engine.vocabulary()
        digest = certificate.numbers.get("tokenizer_sha256")
        if pieces and digest:
            self.current = TokenizerId(str(digest))
            entries = [
                VocabularyEntry(self.current, p.token_id, p.raw, p.special) for p in pieces
            ]
            await self._store.add_vocabulary(entries)
        elif certificate.model != "unknown":
            self.current = TokenizerId(LEARNED + certificate.model)
            await asyncio.to_thread(self.get, self.current)

    def get(self, tokenizer_id: TokenizerId | None) -> Vocabulary:
        """Bytes and special flag of every id that is known; empty when none is."""
        if tokenizer_id is None:
            return {}
        known = self._known.get(tokenizer_id)
        if known is None:
            entries = self._store.vocabulary(tokenizer_id)
            known = {entry.token_id: (entry.raw, entry.special) for entry in entries}
            if known or tokenizer_id == self.current:
                known = self._known.setdefault(tokenizer_id, known)
        return known

    @property
    def known(self) -> Container[int] | None:
        """Ids that are known already; None when the vocabulary is not a learned one."""
        if self.current is None or not self.current.startswith(LEARNED):
            return None
        return self._known.setdefault(self.current, {})

    def learn(self, pieces: Sequence[TokenPiece]) -> None:
        """Takes bytes that a reply showed; written in the background."""
        if self.current is None:
            return
        known = self._known.setdefault(self.current, {})
        for piece in pieces:
            if piece.token_id not in known:
                known[piece.token_id] = (piece.raw, piece.special)
                self._fresh.append(
                    VocabularyEntry(self.current, piece.token_id, piece.raw, piece.special)
                )
        if self._fresh and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        while self._fresh:
            # Gathered for a while: new ids come with almost every early reply.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), WRITE_EVERY_S)
            fresh, self._fresh = self._fresh, []
            try:
                await self._store.add_vocabulary(fresh)
            except StoreFailed as error:
                # Kept for the next time; ids are shown by number until then.
                log.warning("bytes of %d ids are not stored yet: %s", len(fresh), error)
                self._fresh = fresh + self._fresh
                return

    async def stop(self) -> None:
        """Waits until what was learned is written."""
        self._stopping.set()
        if self._writing is not None:
            await self._writing

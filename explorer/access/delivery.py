"""The one way out: every document that leaves passes here and leaves a row behind.

Owns: spending a grant before the first byte, looking at it again before every chunk, and the
audit row with what was sent. Must not know: what the document is, HTTP.

Two rows tell of a download: one before its first byte, so that a server which dies while it
sends leaves a trace, and one after its last, with the bytes that left and their SHA-256.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.grant_book import GrantBook
from explorer.access.people import Caller
from explorer.access.policy import Kind
from explorer.errors import StoreFailed

log = logging.getLogger(__name__)

# Why the document must not be sent on, or nothing.
Still = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Parcel:
    """What is to leave.

    Attributes:
        name: of the file.
        about: what it is of, where that is no rollout.
        grant_id: which grant is spent; empty where a role allows it.
        etag: hash of the whole document, empty where it is not known.
        encoding: how the bytes are packed on the way.
        length: bytes that are to be sent, None where that is not known before.
    """

    caller: Caller
    rollout_id: str
    kind: Kind
    name: str
    grant_id: str = ""
    etag: str = ""
    encoding: str = "identity"
    first_byte: int = 0
    length: int | None = None
    about: str = ""


class Deliveries:
    """Lets documents out.

    Args:
        grants: are spent.
        audit: gets the rows.
    """

    def __init__(self, grants: GrantBook, audit: AuditLog) -> None:
        self._grants = grants
        self._audit = audit

    async def begin(self, parcel: Parcel, still: Still) -> Delivery:
        """Spends the grant and writes the first row; nothing has left yet.

        Raises:
            GrantNeeded: the grant may not be used now.
            StoreFailed: it cannot be written down, so nothing may leave.
        """
        use_id = await asyncio.to_thread(self._spend, parcel)
        return Delivery(parcel, still, self._audit, use_id)

    def _spend(self, parcel: Parcel) -> str:
        use_id = ""
        if parcel.grant_id:
            use_id = self._grants.spend(
                parcel.caller, parcel.grant_id, parcel.rollout_id, parcel.kind
            ).use_id
        self._audit.append(_entry(parcel, Event.DOWNLOAD_BEGUN, use_id))
        return use_id


class Delivery:
    """One document on its way out."""

    def __init__(self, parcel: Parcel, still: Still, audit: AuditLog, use_id: str) -> None:
        self.parcel = parcel
        self._still = still
        self._audit = audit
        self._use_id = use_id
        self._digest = hashlib.sha256()
        self._size = 0

    async def send(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """The chunks, until they end or must not be sent on; then the second row.

        What is counted was handed to the connection. A reader that knows the length goes
        away with the last byte, so a document of known length is whole with that, and not
        only when somebody asks for more.

        Raises:
            DownloadStopped: the grant ended in the middle; the connection must be cut, so
                that nobody takes the part for the whole.
        """
        why, complete = "the reader went away", False
        try:
            async for chunk in chunks:
                stopped = self._still()
                if stopped:
                    why = stopped
                    raise DownloadStopped(stopped)
                self._digest.update(chunk)
                self._size += len(chunk)
                if self._size == self.parcel.length:
                    why, complete = "", True
                yield chunk
            why, complete = "", True
        finally:
            row = self._row(complete, why)
            await asyncio.shield(asyncio.to_thread(self._write, row))

    def _row(self, complete: bool, why: str) -> Entry:
        return _entry(
            self.parcel,
            Event.DOWNLOAD,
            self._use_id,
            reason=why,
            bytes_=self._size,
            sha256=self._digest.hexdigest(),
            complete=complete,
        )

    def _write(self, row: Entry) -> None:
        try:
            self._audit.append(row)
        except StoreFailed as error:
            # The first row stands; that it has no second is itself a mark.
            log.error("the end of a download could not be written down: %s", error.message)


class DownloadStopped(Exception):
    """A download that must not go on; not an answer, for its head has left already."""


def _entry(
    parcel: Parcel,
    event: Event,
    use_id: str,
    *,
    reason: str = "",
    bytes_: int | None = None,
    sha256: str | None = None,
    complete: bool | None = None,
) -> Entry:
    return Entry.by(
        parcel.caller,
        event,
        parcel.about or f"rollout {parcel.rollout_id}",
        reason=reason,
        detail={
            "kind": parcel.kind.value,
            "file": parcel.name,
            "grant": parcel.grant_id,
            "use": use_id,
            "how": parcel.caller.how.value,
            "etag": parcel.etag,
            "encoding": parcel.encoding,
            "first_byte": parcel.first_byte,
        },
        bytes=bytes_,
        sha256=sha256,
        complete=complete,
    )

"""Documents on their way out: two rows, a hash of what left, and a cut that leaves a mark."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from explorer.access.audit import Entry, Event
from explorer.access.delivery import DownloadStopped, Parcel
from explorer.access.grants import State, Terms
from explorer.access.people import Caller
from explorer.access.policy import Kind
from explorer.errors import GrantNeeded, StoreFailed
from tests.access.granting import ANA, OPERATOR, Book, book, wanted

CHUNKS = [bytes([n]) * 1000 for n in range(5)]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Book]:
    with book(tmp_path / "access.duckdb") as made:
        yield made


def parcel(caller: Caller = ANA, grant_id: str = "") -> Parcel:
    return Parcel(caller, "r1", Kind.TRAINING_TRACE, "r1.json", grant_id, etag="e" * 64)


async def chunks(before: Any = None) -> AsyncIterator[bytes]:
    for n, chunk in enumerate(CHUNKS):
        if before is not None:
            before(n)
        yield chunk


async def drained(sending: AsyncIterator[bytes], into: list[bytes]) -> None:
    async for part in sending:
        into.append(part)


def last(opened: Book) -> dict[str, Any]:
    row = list(opened.audit.every())[-1]
    return row | {"detail": json.loads(row["detail"])}


def test_a_whole_document_leaves_two_rows(opened: Book) -> None:
    given = opened.grants.give(OPERATOR, wanted(), Terms(None, 2))

    async def go() -> bytes:
        delivery = await opened.deliveries.begin(parcel(grant_id=given.grant_id), str)
        assert opened.events()[-1] == "download_begun"
        return b"".join([part async for part in delivery.send(chunks())])

    assert asyncio.run(go()) == b"".join(CHUNKS)
    row = last(opened)
    assert row["event"] == "download"
    assert row["complete"] is True
    assert row["bytes"] == 5000
    assert row["sha256"] == hashlib.sha256(b"".join(CHUNKS)).hexdigest()
    use = opened.grants.get(given.grant_id).uses[0]
    assert row["detail"]["use"] == use.use_id
    begun = list(opened.audit.every())[-2]
    assert begun["event"] == "download_begun"
    assert (begun["bytes"], begun["sha256"], begun["complete"]) == (None, None, None)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_grant_that_ends_in_the_middle_stops_the_next_chunk(opened: Book, after: int) -> None:
    given = opened.grants.give(OPERATOR, wanted(), Terms())

    def revoke(n: int) -> None:
        if n == after:
            opened.grants.decide(OPERATOR, given.grant_id, State.REVOKED, "it leaked")

    async def go() -> list[bytes]:
        delivery = await opened.deliveries.begin(
            parcel(grant_id=given.grant_id), lambda: opened.grants.stands(given.grant_id)
        )
        got: list[bytes] = []
        with pytest.raises(DownloadStopped, match="the grant is revoked"):
            await drained(delivery.send(chunks(revoke)), got)
        return got

    got = asyncio.run(go())
    assert got == CHUNKS[:after]
    row = last(opened)
    assert row["complete"] is False
    assert row["reason"] == "the grant is revoked"
    assert row["bytes"] == 1000 * after
    assert row["sha256"] == hashlib.sha256(b"".join(got)).hexdigest()


def test_a_reader_that_goes_away_leaves_what_it_got(opened: Book) -> None:
    async def go() -> None:
        delivery = await opened.deliveries.begin(parcel(OPERATOR), str)
        sending = delivery.send(chunks())
        await anext(sending)
        await anext(sending)
        await sending.aclose()

    asyncio.run(go())
    row = last(opened)
    assert (row["complete"], row["reason"]) == (False, "the reader went away")
    # What was handed to the connection, whether or not it reached the reader.
    assert row["bytes"] == 2000


def test_a_reader_that_knows_the_length_goes_away_with_the_last_byte(opened: Book) -> None:
    """As curl and browsers do; nobody asks for more than was announced."""

    async def go() -> None:
        whole = replace(parcel(OPERATOR), length=3000)
        delivery = await opened.deliveries.begin(whole, str)
        sending = delivery.send(chunks())
        for _ in range(3):
            await anext(sending)
        await sending.aclose()

    asyncio.run(go())
    row = last(opened)
    assert (row["complete"], row["reason"], row["bytes"]) == (True, "", 3000)


def test_a_document_that_breaks_off_is_not_whole(opened: Book) -> None:
    def fail(n: int) -> None:
        if n == 2:
            raise ValueError("the document cannot be made")

    async def go() -> None:
        delivery = await opened.deliveries.begin(parcel(OPERATOR), str)
        with pytest.raises(ValueError, match="cannot be made"):
            async for _ in delivery.send(chunks(fail)):
                pass

    asyncio.run(go())
    assert last(opened)["complete"] is False
    assert last(opened)["bytes"] == 2000


def test_nothing_leaves_without_a_use_or_a_row(opened: Book) -> None:
    given = opened.grants.give(OPERATOR, wanted(), Terms())
    opened.grants.decide(OPERATOR, given.grant_id, State.REVOKED, "over")
    written = opened.events()
    with pytest.raises(GrantNeeded):
        asyncio.run(opened.deliveries.begin(parcel(grant_id=given.grant_id), str))
    assert opened.events() == written
    opened.database.close()
    with pytest.raises(StoreFailed):
        asyncio.run(opened.deliveries.begin(parcel(OPERATOR), str))


KILLED = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from explorer.access.delivery import Parcel
    from explorer.access.grants import Terms
    from explorer.access.policy import Kind
    from tests.access.granting import ANA, OPERATOR, book, wanted

    async def chunks():
        yield b"x" * 1000
        print("sending", flush=True)
        await asyncio.sleep(60)
        yield b"y"

    async def main(opened):
        given = opened.grants.give(OPERATOR, wanted(), Terms(None, 1))
        parcel = Parcel(ANA, "r1", Kind.TRAINING_TRACE, "r1.json", given.grant_id)
        delivery = await opened.deliveries.begin(parcel, str)
        async for _ in delivery.send(chunks()):
            pass

    with book(Path(sys.argv[1])) as opened:
        asyncio.run(main(opened))
    """
)


def test_a_server_that_is_killed_while_it_sends_leaves_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "access.duckdb"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"sending"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    with book(path) as opened:
        assert opened.events() == ["grant_given", "download_begun"]
        assert opened.audit.check().whole
        # The use was spent before the first byte left.
        assert len(opened.grants.all[0].uses) == 1
        opened.audit.append(Entry.by_server(Event.SERVER_STARTED))
        assert opened.audit.check().whole

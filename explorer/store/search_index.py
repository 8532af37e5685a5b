"""The side file of the search: text by rollout, and its words in an FTS5 index.

Owns: the file, its versions, what of it is up to date, and the syntax of FTS5 queries.
Must not know: how text is read from calls, pages, when it is brought up to date.

Everything in it is derived: a file that is missing, damaged or of another version is made
anew, and the note says so. Queries are put together from quoted words, so nothing a person
types is syntax.
"""
# ruff: noqa: S608 (the fragments are constants of this module; values are parameters)

from __future__ import annotations

import json
import logging
import os
import secrets
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.records import CallId, RolloutId
from explorer.store.passages import (
    Passage,
    pack_lengths,
    pack_stretches,
    read_lengths,
    read_stretches,
)
from explorer.store.search_shown import open_shown

log = logging.getLogger(__name__)

# 2: without secrets that only their context or the ids of their tokens give away.
VERSION = 2
# Words split at everything that is no letter or digit, so `foo_bar` is found by `bar` and
# by itself; accents do not count. See docs/explanation/search.md for what else was measured.
TOKENIZER = "unicode61 remove_diacritics 2"
MOST_WORDS = 32
SNIPPET_WORDS = 24
_SCHEMA = f"""
CREATE TABLE rollout (rollout_id TEXT PRIMARY KEY, stamp TEXT NOT NULL,
  unknown INTEGER NOT NULL, vocabulary INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE passage (id INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL,
  call_id TEXT NOT NULL, label TEXT NOT NULL, turn INTEGER NOT NULL,
  first_token INTEGER NOT NULL, text TEXT NOT NULL, lengths BLOB NOT NULL,
  stretches BLOB NOT NULL, message TEXT NOT NULL, unknown INTEGER NOT NULL);
CREATE INDEX passage_rollout ON passage (rollout_id);
CREATE VIRTUAL TABLE words USING fts5(text, content='passage', content_rowid='id',
  tokenize='{TOKENIZER}');
CREATE TRIGGER passage_added AFTER INSERT ON passage BEGIN
  INSERT INTO words(rowid, text) VALUES (new.id, new.text); END;
CREATE TRIGGER passage_removed AFTER DELETE ON passage BEGIN
  INSERT INTO words(words, rowid, text) VALUES ('delete', old.id, old.text); END;
PRAGMA user_version = {VERSION};
"""
_COLUMNS = "call_id, label, turn, first_token, text, lengths, stretches, message, unknown"
# What a full disk or another reader brings about, and a new file would not mend.
_PASSING = ("locked", "busy", "full", "readonly", "interrupted")
_SURROGATES = {code: "\ufffd" for code in range(0xD800, 0xE000)}


@dataclass(frozen=True, slots=True)
class Indexed:
    """What the file has of one rollout: the state of its rows, and tokens nobody knew."""

    stamp: str
    unknown: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Ranked:
    """A passage that has the words asked for: the smaller `rank`, the better."""

    rollout_id: RolloutId
    passage_id: int
    rank: float


@dataclass(frozen=True, slots=True)
class Found:
    """A ranked passage with the place of the word that its best part begins with."""

    passage: Passage
    start: int
    end: int


def index_path(store: Path) -> Path:
    """The side file of a store."""
    return store.with_name(store.name + ".search.sqlite")


def match_of(words: str) -> str:
    """The FTS5 query for what a person typed: all words, quoted ones in their order.

    Empty when nothing in it could be found.
    """
    parts: list[str] = []
    for number, chunk in enumerate(words.replace("\x00", " ").split('"')):
        # Between an odd and an even quote stands a phrase, if the quote was closed.
        parts += [chunk] if number % 2 else chunk.split()
    useful = [part for part in parts if any(letter.isalnum() for letter in part)]
    return " ".join(f'"{part}"' for part in useful[:MOST_WORDS])


class SearchIndex:
    """One side file. Methods are safe from any thread; all block."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        self.note = ""
        self.problem = ""

    # -- the file

    @property
    def usable(self) -> bool:
        """Whether it is open; else `problem` says why not."""
        return self._connection is not None

    def open(self) -> None:
        """Open the file, or make it; what is in the way of that is in `problem`."""
        with self._lock:
            self._closed = False
            try:
                self._connection = self._opened()
                self.problem = ""
            except (sqlite3.Error, OSError) as error:
                self._connection = None
                self.problem = f"the ranked search is off: {_words(error)}"
                log.warning("%s (%s)", self.problem, self.path)

    def _opened(self) -> sqlite3.Connection:
        if self._read_only:
            return open_shown(self.path, VERSION)
        existed = self.path.exists()
        if existed:
            try:
                found = self._connect()
            except sqlite3.DatabaseError as error:
                self._set_aside(f"it could not be read ({error})")
            else:
                version = found.execute("PRAGMA user_version").fetchone()[0]
                if version == VERSION:
                    return found
                found.close()
                self._set_aside(f"it is of version {version}, this is version {VERSION}")
        return self._made()

    def _set_aside(self, why: str) -> None:
        if self._read_only:
            raise PermissionError("the search index is open for reading only")
        self.note = f"The search index was made anew: {why}."
        log.warning("%s", self.note)
        for suffix in ("", "-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=5, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # Derived: after a loss of power it is made again, so nothing waits for the disk.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA secure_delete = ON")
            if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
                connection.execute("SELECT count(*) FROM rollout").fetchone()
                connection.execute("SELECT rowid FROM words LIMIT 1").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _made(self) -> sqlite3.Connection:
        # Prompts and replies are in it: for nobody but the one who runs the server.
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = self._connect()
        try:
            connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Release the file; a closed index answers nothing and is not opened by a read."""
        with self._lock:
            connection, self._connection, self._closed = self._connection, None, True
            if connection is not None:
                connection.close()

    def rebuild(self) -> None:
        """Throw the file away and begin a new one."""
        with self._lock:
            self.close()
            self._set_aside("somebody asked for it")
            self.open()

    @contextmanager
    def _using(self, *, asked: bool = False) -> Iterator[sqlite3.Connection | None]:
        """The open file; one that turns out to be damaged is made anew, empty.

        `asked` is a person's query: what FTS5 cannot do with it says nothing of the file.
        """
        with self._lock:
            try:
                yield self._connection
            except sqlite3.DatabaseError as error:
                log.warning("the search index failed: %s", error)
                passing = isinstance(error, sqlite3.OperationalError)
                if passing and (asked or any(word in str(error) for word in _PASSING)):
                    return
                connection, self._connection = self._connection, None
                if connection is not None:
                    with suppress(sqlite3.Error):
                        connection.close()
                if not self._closed:
                    try:
                        self._set_aside(f"it was damaged ({error})")
                    except OSError as again:
                        self.problem = f"the ranked search is off: {_words(again)}"
                    else:
                        self.open()

    # -- what is in it

    def indexed(self) -> dict[RolloutId, Indexed]:
        """What it has, by rollout."""
        found: dict[RolloutId, Indexed] = {}
        with self._using() as connection:
            if connection is not None:
                rows = connection.execute(
                    "SELECT rollout_id, stamp, unknown, vocabulary FROM rollout"
                ).fetchall()
                found = {RolloutId(row[0]): Indexed(*row[1:]) for row in rows}
        return found

    def put(
        self,
        rollout_id: RolloutId,
        stamp: str,
        vocabulary: int,
        passages: Sequence[Passage],
    ) -> None:
        """Have these passages of a rollout, in place of whatever was there."""
        rows = [(str(rollout_id), *_row(passage)) for passage in passages]
        unknown = sum(passage.unknown for passage in passages)
        with self._using() as connection:
            if connection is None:
                return
            with connection:
                connection.execute("DELETE FROM passage WHERE rollout_id = ?", [rollout_id])
                connection.executemany(
                    f"INSERT INTO passage (rollout_id, {_COLUMNS}) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    rows,
                )
                connection.execute(
                    "INSERT OR REPLACE INTO rollout VALUES (?, ?, ?, ?)",
                    [rollout_id, stamp, unknown, vocabulary],
                )

    def forget(self, rollouts: Iterable[RolloutId]) -> None:
        """Have nothing of these rollouts, words included."""
        names = [[str(each)] for each in rollouts]
        with self._using() as connection:
            if connection is None or not names:
                return
            with connection:
                connection.executemany("DELETE FROM passage WHERE rollout_id = ?", names)
                connection.executemany("DELETE FROM rollout WHERE rollout_id = ?", names)
                # Deleted words lie in old segments until these are written anew.
                connection.execute("INSERT INTO words(words) VALUES ('optimize')")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def passages(self, rollout_id: RolloutId, stamp: str) -> tuple[Passage, ...] | None:
        """The passages of a rollout, None unless it has them as of `stamp`."""
        made: tuple[Passage, ...] | None = None
        with self._using() as connection:
            known = (
                connection
                and connection.execute(
                    "SELECT stamp FROM rollout WHERE rollout_id = ?", [rollout_id]
                ).fetchone()
            )
            if connection is not None and known and known[0] == stamp:
                rows = connection.execute(
                    f"SELECT {_COLUMNS} FROM passage WHERE rollout_id = ? ORDER BY id",
                    [rollout_id],
                ).fetchall()
                made = tuple(_passage(row) for row in rows)
        return made

    def ranked(
        self, match: str, most: int, within: Iterable[RolloutId] | None = None
    ) -> list[Ranked]:
        """The best passages for an FTS5 query, best first; of the rollouts `within` alone."""
        rows: list[tuple[str, int, float]] = []
        given = [] if within is None else [json.dumps(sorted(within))]
        narrow = "AND p.rollout_id IN (SELECT value FROM json_each(?)) " if given else ""
        with self._using(asked=True) as connection:
            if connection is not None and match:
                rows = connection.execute(
                    "SELECT p.rollout_id, p.id, w.rank FROM words w "
                    "JOIN passage p ON p.id = w.rowid WHERE words MATCH ? "
                    f"{narrow}ORDER BY w.rank LIMIT ?",
                    [match, *given, most],
                ).fetchall()
        return [Ranked(RolloutId(row[0]), row[1], row[2]) for row in rows]

    def found(self, match: str, ids: Sequence[int]) -> dict[int, Found]:
        """Passages by id with the place of their best part."""
        # Nobody can write into a trace what is made up for one query.
        start, end, cut = (f"\x01{secrets.token_hex(8)}\x02" for _ in range(3))
        made: dict[int, Found] = {}
        with self._using(asked=True) as connection:
            if connection is None:
                return {}
            for each in ids:
                row = connection.execute(
                    f"SELECT {', '.join('p.' + name for name in _COLUMNS.split(', '))}, "
                    "snippet(words, 0, ?, ?, ?, ?) FROM words w JOIN passage p "
                    "ON p.id = w.rowid WHERE words MATCH ? AND w.rowid = ?",
                    [start, end, cut, SNIPPET_WORDS, match, each],
                ).fetchone()
                if row is not None:
                    passage = _passage(row[:-1])
                    place = _place(passage.text, row[-1], (start, end, cut))
                    made[each] = Found(passage, *place)
        return made

    def size_bytes(self) -> int:
        """Size of the file."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0


def _place(text: str, part: str, marks: tuple[str, str, str]) -> tuple[int, int]:
    """Where the first marked words of an FTS5 snippet stand in the text."""
    start, end, cut = marks
    part = part.removeprefix(cut).removesuffix(cut)
    head, _, tail = part.partition(start)
    word = tail.partition(end)[0]
    at = text.find(part.replace(start, "").replace(end, ""))
    return (max(0, at) + len(head), max(0, at) + len(head) + len(word))


def _storable(text: str) -> str:
    """SQLite keeps UTF-8, which has no halves of characters; each stays one character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.translate(_SURROGATES)
    return text


def _row(passage: Passage) -> tuple[Any, ...]:
    return (
        passage.call_id,
        passage.label,
        passage.turn,
        passage.first_token,
        _storable(passage.text),
        pack_lengths(passage.lengths),
        pack_stretches(passage.stretches),
        passage.message,
        passage.unknown,
    )


def _passage(row: tuple[Any, ...]) -> Passage:
    try:
        call_id, lengths, stretches = (
            CallId(row[0]),
            read_lengths(row[5]),
            read_stretches(row[6]),
        )
        return Passage(
            call_id, row[1], row[2], row[3], row[4], lengths, stretches, row[7], row[8]
        )
    except (TypeError, ValueError, zlib.error) as error:
        raise sqlite3.DatabaseError(f"a row cannot be read: {error!r}") from error


def _words(error: Exception) -> str:
    if "fts5" in str(error):
        return "the SQLite of this Python has no FTS5"
    return str(error)

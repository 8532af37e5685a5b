"""The side file of the search: what goes in comes out, what is removed is gone, and a file
that cannot be used is made anew."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.records import CallId, RolloutId
from explorer.store.passages import NO_TOKENS, Passage, Stretch
from explorer.store.search_index import VERSION, SearchIndex, index_path, match_of

ONE, TWO = RolloutId("1" * 32), RolloutId("2" * 32)


def passage(text: str, *, first: int = 5) -> Passage:
    """A passage of one-character tokens."""
    return Passage(
        call_id=CallId("c" * 32),
        label="1",
        turn=1,
        first_token=first,
        text=text,
        lengths=np.ones(len(text), dtype=np.uint16),
        stretches=(Stretch(0, len(text), "user", "user"),),
    )


@pytest.fixture
def index(tmp_path: Path) -> SearchIndex:
    made = SearchIndex(index_path(tmp_path / "s.duckdb"))
    made.open()
    assert made.usable, made.problem
    return made


def ranked(index: SearchIndex, text: str) -> list[str]:
    """Rollouts with the words, best first."""
    return [row.rollout_id for row in index.ranked(match_of(text), 100)]


def test_what_goes_in_comes_out(index: SearchIndex) -> None:
    given = (passage("the lock\x00 is \udfff taken"), passage("alone", first=NO_TOKENS))
    index.put(ONE, "3.1", 9, given)
    assert index.passages(ONE, "3.2") is None
    found = index.passages(ONE, "3.1")
    assert found is not None
    # Half a character has no place in UTF-8; everything else is as it was.
    assert [each.text for each in found] == ["the lock\x00 is \ufffd taken", "alone"]
    assert found[0].tokens(4, 8) == (9, 13)
    assert found[1].tokens(0, 3) is None
    assert found[0].stretches == given[0].stretches
    known = index.indexed()[ONE]
    assert (known.stamp, known.vocabulary) == ("3.1", 9)


def test_only_the_server_may_read_it(index: SearchIndex) -> None:
    assert stat.S_IMODE(index.path.stat().st_mode) == 0o600


def test_words_are_ranked_and_found_by_their_place(index: SearchIndex) -> None:
    index.put(
        ONE, "1.1", 0, [passage("the lock is taken. " + "nothing else to see here. " * 40)]
    )
    index.put(TWO, "1.1", 0, [passage("lock, lock and lock")])
    assert ranked(index, "lock") == [TWO, ONE]
    assert ranked(index, "LOCK taken") == [ONE]
    assert ranked(index, '"taken lock"') == []
    assert ranked(index, '"is taken"') == [ONE]
    (row,) = index.ranked(match_of("taken"), 9)
    found = index.found(match_of("taken"), [row.passage_id])[row.passage_id]
    assert found.passage.text[found.start : found.end] == "taken"
    assert found.passage.tokens(found.start, found.end) == (5 + 12, 5 + 17)


def test_parts_of_names_and_letters_with_accents(index: SearchIndex) -> None:
    index.put(ONE, "1.1", 0, [passage("def get_user_name(): return naïve.café")])
    for text in ("user", "get_user_name", "naive", "CAFE", "naïve"):
        assert ranked(index, text) == [ONE], text
    # Whole words only: for the rest there is the exact search.
    assert ranked(index, "use") == []


def test_a_new_state_takes_the_place_of_the_old(index: SearchIndex) -> None:
    index.put(ONE, "1.1", 0, [passage("zebra")])
    index.put(ONE, "2.1", 0, [passage("giraffe")])
    assert ranked(index, "zebra") == []
    assert ranked(index, "giraffe") == [ONE]
    assert index.passages(ONE, "1.1") is None


def test_what_is_forgotten_is_gone_from_the_file(index: SearchIndex) -> None:
    secret = "xylophonequartz"
    index.put(ONE, "1.1", 0, [passage(f"{secret} and more")])
    index.put(TWO, "1.1", 0, [passage("something else")])
    index.forget([ONE])
    assert ranked(index, secret) == []
    assert ranked(index, "something") == [TWO]
    assert set(index.indexed()) == {TWO}
    index.close()
    files = [path for path in index.path.parent.iterdir() if path.name.startswith("s.duckdb")]
    assert index.path in files
    for path in files:
        assert secret.encode() not in path.read_bytes(), path.name


@pytest.mark.parametrize("damage", ["bytes", "empty", "cut", "version", "table"])
def test_a_file_that_cannot_be_used_is_made_anew(index: SearchIndex, damage: str) -> None:
    index.put(ONE, "1.1", 0, [passage("zebra " * 5000)])
    index.close()
    path = index.path
    if damage == "bytes":
        path.write_bytes(b"not a database, but long enough to be read as one" * 100)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    elif damage == "version":
        with sqlite3.connect(path) as line:
            line.execute(f"PRAGMA user_version = {VERSION + 1}")
        line.close()
    else:
        with sqlite3.connect(path) as line:
            line.execute("DROP TABLE passage")
        line.close()
    again = SearchIndex(path)
    again.open()
    assert again.usable, again.problem
    # What is cut may only be noticed when it is read.
    again.passages(ONE, "1.1")
    ranked(again, "zebra")
    assert again.usable, again.problem
    assert again.indexed() == {}
    assert "made anew" in again.note
    again.put(TWO, "1.1", 0, [passage("giraffe")])
    assert ranked(again, "giraffe") == [TWO]
    again.close()


def test_no_place_for_the_file_is_said_and_not_fatal(tmp_path: Path) -> None:
    made = SearchIndex(tmp_path / "no-folder" / "x.sqlite")
    made.open()
    assert not made.usable
    assert "the ranked search is off" in made.problem
    assert made.indexed() == {}
    assert made.ranked('"a"', 5) == []
    assert made.passages(ONE, "1.1") is None
    made.put(ONE, "1.1", 0, [])
    made.forget([ONE])
    made.close()


def test_the_index_can_be_thrown_away(index: SearchIndex) -> None:
    index.put(ONE, "1.1", 0, [passage("zebra")])
    index.rebuild()
    assert index.usable
    assert index.indexed() == {}


@given(st.text(max_size=60))
def test_nothing_typed_is_fts5_syntax(text: str) -> None:
    line = sqlite3.connect(":memory:")
    try:
        line.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
        line.execute("INSERT INTO words VALUES ('some words')")
        match = match_of(text)
        if match:
            line.execute("SELECT rowid FROM words WHERE words MATCH ?", [match]).fetchall()
        # No column, no prefix, no operator stands outside quotes.
        assert match.count('"') % 2 == 0
        assert all(not part.strip() for part in match.split('"')[::2])
    finally:
        line.close()

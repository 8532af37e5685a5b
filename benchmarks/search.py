"""How fast the two searches across rollouts are, and what the index costs.

    python benchmarks/search.py [documents]

Ratios are printed, since machines differ:

1. A ranked query against looking for the same word in every text.
2. Adding one rollout against building the whole index.
3. The file's size against the text in it, for three tokenizers of FTS5.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from explorer.records import CallId, RolloutId
from explorer.store.passages import Passage, Stretch
from explorer.store.search_index import SearchIndex, match_of
from explorer.web.search_text import Needle

TOKENIZERS = ("unicode61 remove_diacritics 2", "porter unicode61", "trigram")
QUERY = "zebraxylo"
PER_ROLLOUT = 4


def words(chance: random.Random) -> list[str]:
    """A vocabulary as skewed as text and code are."""
    letters = "abcdefghijklmnopqrstuvwxyz_"
    return ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(20_000)]


def texts(count: int) -> list[str]:
    """Documents of about 800 characters; one in a hundred has the word that is asked for."""
    chance = random.Random(7)
    known = words(chance)
    weights = [1 / (place + 1) for place in range(len(known))]
    made = []
    for number in range(count):
        text = " ".join(chance.choices(known, weights, k=140))
        made.append(text + (f" {QUERY}" if number % 100 == 0 else ""))
    return made


def passage(text: str) -> Passage:
    """A text as a passage."""
    return Passage(
        call_id=CallId("c" * 32),
        label="1",
        turn=1,
        first_token=0,
        text=text,
        lengths=np.ones(len(text), dtype=np.uint16),
        stretches=(Stretch(0, len(text), "user", "user"),),
    )


def median_ms(work: Callable[[], object], times: int = 7) -> float:
    """The middle of some runs."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - began))
    return sorted(took)[len(took) // 2]


def tokenizers(made: list[str]) -> None:
    """Build time, size and whether a part of a word is found, by tokenizer."""
    characters = sum(map(len, made))
    for name in TOKENIZERS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.sqlite"
            line = sqlite3.connect(path)
            line.execute(f"CREATE VIRTUAL TABLE t USING fts5(x, content='', tokenize='{name}')")
            began = time.perf_counter()
            line.executemany("INSERT INTO t(x) VALUES (?)", [[text] for text in made])
            line.commit()
            took = time.perf_counter() - began
            query = "SELECT rowid FROM t WHERE t MATCH ? ORDER BY rank LIMIT 20"
            ms = median_ms(lambda: line.execute(query, [f'"{QUERY}"']).fetchall())  # noqa: B023
            part = len(line.execute(query, ['"ebraxyl"']).fetchall())
            line.close()
            size = path.stat().st_size / characters
            print(
                f"  {name:<30} build {took:5.2f} s  words {size:4.2f} of the text  "
                f"query {ms:6.2f} ms  part of a word {'found' if part else 'not found'}"
            )


def main() -> None:
    """Print the figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000
    made = texts(count)
    passages = [passage(text) for text in made]
    groups = [passages[at : at + PER_ROLLOUT] for at in range(0, count, PER_ROLLOUT)]
    with tempfile.TemporaryDirectory() as folder:
        index = SearchIndex(Path(folder) / "search.sqlite")
        index.open()
        began = time.perf_counter()
        for number, group in enumerate(groups):
            index.put(RolloutId(f"{number:032x}"), "1.1", 0, group)
        build = time.perf_counter() - began
        one = median_ms(lambda: index.put(RolloutId("f" * 32), "1.1", 0, groups[0]))
        ranked = median_ms(lambda: index.ranked(match_of(QUERY), 5_000))

        def contains() -> int:
            needle, found = Needle(QUERY, case=False), 0
            for number in range(len(groups)):
                read = index.passages(RolloutId(f"{number:032x}"), "1.1") or ()
                found += sum(needle.count(each.text) for each in read)
            return found

        exact = median_ms(contains, 3)
        hits = len(index.ranked(match_of(QUERY), 5_000))
        index.close()
        size = index.path.stat().st_size / sum(map(len, made))
    print(f"{count} documents in {len(groups)} rollouts, {hits} with the word")
    print(f"  build              {build:8.2f} s")
    print(f"  one rollout added  {one:8.2f} ms   1/{1000 * build / one:.0f} of the build")
    print(f"  ranked             {ranked:8.2f} ms")
    print(f"  contains           {exact:8.2f} ms   {exact / ranked:.0f} times the ranked query")
    print(f"  file               {size:8.2f} of the text")
    print("tokenizers")
    tokenizers(made)


if __name__ == "__main__":
    main()

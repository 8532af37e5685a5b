"""A small byte-level vocabulary: every byte, common words, special tokens.

Words that are not in it fall apart into bytes, so that emoji and CJK text gives tokens
which are no valid UTF-8 alone, as with any real byte-level tokenizer.
"""

from __future__ import annotations

import re
from functools import lru_cache

from explorer.records import TokenizerId, VocabularyEntry

TOKENIZER = TokenizerId("test-bytes")
SPECIAL = (
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|end|>",
    "<think>",
    "</think>",
)
_WORDS = """
the a to of and is in that it was for on with as at by from this test tests fails because lock
taken twice let me look call graph first next run suite again compare expected rows got off one
page edge fix won't do function description population variance sample standard deviation data
calculate naive you are careful agent use tools when needed please repair make pass file line
error return value number retry delete read write list total python def import assert not none
true false result output exit code ok done answer think should would could check now then
""".split()  # noqa: SIM905 - a list of words reads best as text
# First bytes of an emoji with the space before it, as real vocabularies have.
_ODD = (b" \xf0\x9f", b"\xe2\x80", b"\xe4\xb8", b"```", b"\n\n", b"    ", b".\n", b";\n", b"==")
_SPLIT = re.compile(r"<\|?/?[a-z]+\|?>| ?[A-Za-z']+| ?\d|\n+| +|[^A-Za-z\d\s]|\s", re.ASCII)


@lru_cache(maxsize=1)
def entries() -> tuple[VocabularyEntry, ...]:
    """The vocabulary, by id."""
    raws: list[tuple[bytes, bool]] = [(bytes([value]), False) for value in range(256)]
    raws += [(raw, False) for raw in _ODD]
    for word in _WORDS:
        for form in {word, " " + word, word.capitalize(), " " + word.capitalize()}:
            raws.append((form.encode(), False))
    raws = sorted(set(raws), key=lambda item: (len(item[0]), item[0]))
    raws += [(name.encode(), True) for name in SPECIAL]
    return tuple(
        VocabularyEntry(TOKENIZER, number, raw, special)
        for number, (raw, special) in enumerate(raws)
    )


@lru_cache(maxsize=1)
def table() -> dict[int, tuple[bytes, bool]]:
    """Bytes and special flag of each id."""
    return {entry.token_id: (entry.raw, entry.special) for entry in entries()}


@lru_cache(maxsize=1)
def _ids() -> dict[bytes, int]:
    return {entry.raw: entry.token_id for entry in entries()}


def encode(text: str) -> list[int]:
    """Ids of a text; special names in it become special tokens."""
    known = _ids()
    found: list[int] = []
    for part in _SPLIT.findall(text):
        raw = part.encode()
        if raw in known:
            found.append(known[raw])
            continue
        while raw:
            for odd in _ODD:
                if raw.startswith(odd):
                    break
            else:
                odd = raw[:1]
            found.append(known[odd])
            raw = raw[len(odd) :]
    return found


def decode(ids: list[int]) -> bytes:
    """The bytes of a sequence."""
    return b"".join(table()[token_id][0] for token_id in ids)

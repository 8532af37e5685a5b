"""Token display; nothing is lost and nothing hides."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.trace.decode import REST_MARK, Piece, pieces, visible


def drawn(*raws: bytes, special: bool = False) -> list[Piece]:
    vocabulary = {place: (raw, special) for place, raw in enumerate(raws)}
    return pieces(range(len(raws)), vocabulary)


def displays(*raws: bytes) -> list[str]:
    return [piece.display for piece in drawn(*raws)]


def test_uni_06_a_character_over_several_tokens_is_drawn_once() -> None:
    made = drawn(b"\xf0\x9f\x91\xa9", b"\xe2\x80\x8d", b"\xf0\x9f\x92", b"\xbb")
    assert [piece.display for piece in made] == ["👩", "\\u200d", "💻", REST_MARK]
    assert [piece.partial for piece in made] == [None, None, "first", "rest"]
    assert "".join(piece.text for piece in made) == "👩\u200d💻"


def test_partial_characters_inside_longer_tokens() -> None:
    made = drawn(b" \xf0\x9f", b"\xa6", b"\x8a ok \xc3", b"\xa9!")
    assert [piece.display for piece in made] == [
        " 🦊",
        REST_MARK,
        f"{REST_MARK} ok é",
        f"{REST_MARK}!",
    ]
    assert [piece.partial for piece in made] == ["first", "rest", "rest", "rest"]
    assert "".join(piece.text for piece in made) == " 🦊 ok é!"


def test_invalid_bytes() -> None:
    assert displays(b"\xff\xfe\x00") == ["\\xff\\xfe\\x00"]
    assert displays(b"\xf0\x9f", b"a") == ["\\xf0\\x9f", "a"]
    assert displays(b"\xf0\x9f", b"\xf0\x9f", b"\xa6\x8a") == ["\\xf0\\x9f", "🦊", REST_MARK]
    assert displays(b"\xc0\x80", b"\xed\xa0\x80") == ["\\xc0\\x80", "\\xed\\xa0\\x80"]
    assert drawn(b"\xff")[0].text == "\ufffd"


def test_uni_02_nul_is_shown() -> None:
    assert displays(b"a\x00b") == ["a\\x00b"]


def test_uni_04_bidi_and_zero_width_are_visible() -> None:
    assert visible("safe \u202e# hctap\u202c") == "safe \\u202e# hctap\\u202c"
    for character in "\u200b\u200e\u2066\u2069\ufeff\u00ad\u2028\u3164\U000e0041\x1b\x7f\u00a0":
        assert character not in visible(f"x{character}y")
        assert visible(f"x{character}y").startswith("x\\")
    for text in ("مرحبا", "שלום", "日本語", "é", "e\u0301", "a\u3000b", "❤\ufe0f"):
        assert visible(text) == text


@pytest.mark.parametrize(
    ("raw", "display", "newline", "whitespace"),
    [
        (b"  ", "··", False, True),
        (b"\n", "↵", True, True),
        (b"\t\n", "→↵", True, True),
        (b" the", " the", False, False),
        (b"end.\n", "end.↵", True, False),
        (b"\r\n", "\\x0d↵", True, True),
        (b"", "", False, False),
    ],
)
def test_white_space(raw: bytes, display: str, newline: bool, whitespace: bool) -> None:
    (piece,) = drawn(raw)
    assert (piece.display, piece.newline, piece.whitespace) == (display, newline, whitespace)


def test_special_and_unknown() -> None:
    (piece,) = drawn(b"<|im_end|>", special=True)
    assert (piece.display, piece.special, piece.known) == ("<|im_end|>", True, True)
    first, unknown, last = pieces(
        [0, 99, 1], {0: (b"\xf0\x9f", False), 1: (b"\xa6\x8a", False)}
    )
    assert (unknown.display, unknown.text, unknown.raw, unknown.known) == (
        "⟨99⟩",
        "",
        b"",
        False,
    )
    assert (first.display, last.display) == ("\\xf0\\x9f", "\\xa6\\x8a")


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=4),
            st.text(max_size=3).map(str.encode),
            st.sampled_from([b"\xf0", b"\x9f", b"\xa6\x8a", b"a", b"\xe2\x80"]),
        ),
        max_size=12,
    )
)
def test_joined_bytes_and_text_are_the_sequence(raws: list[bytes]) -> None:
    made = drawn(*raws)
    assert [piece.raw for piece in made] == raws
    joined = b"".join(raws)
    try:
        text = joined.decode()
    except UnicodeDecodeError:
        return
    if all(raws):
        assert "".join(piece.text for piece in made) == text


@given(st.text(min_size=1, max_size=40), st.data())
def test_any_cut_of_valid_text_loses_nothing(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(raw) - 1, 1)), max_size=8)))
    edges = [0, *[cut for cut in cuts if cut < len(raw)], len(raw)]
    parts = [raw[start:end] for start, end in pairwise(edges)]
    made = drawn(*parts)
    assert "".join(piece.text for piece in made) == text
    assert "\ufffd" in text or not any("\ufffd" in piece.text for piece in made)
    for piece, part in zip(made, parts, strict=True):
        assert (piece.partial == "rest") == ((part[0] & 0xC0) == 0x80)


def test_a_hundred_thousand_tokens_are_fast() -> None:
    random = np.random.default_rng(0)
    vocabulary = {number: (f" w{number}".encode(), False) for number in range(20_000)}
    vocabulary |= {20_000: (b"\xf0\x9f", False), 20_001: (b"\xa6\x8a", False)}
    ids = random.integers(0, 20_000, 100_000, dtype=np.int32)
    places = random.integers(0, 99_999, 1_370)
    ids[places], ids[places + 1] = 20_000, 20_001
    started = time.process_time()
    assert len(pieces(ids, vocabulary)) == 100_000
    assert time.process_time() - started < 1.0

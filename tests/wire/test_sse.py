"""The SSE decoder, cut everywhere, and the cases of area sse that concern it."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.errors import EngineMalformed
from explorer.wire import sse


def decode(*chunks: bytes) -> list[str]:
    decoder = sse.Decoder()
    return [event.data for chunk in chunks for event in decoder.feed(chunk)]


def test_sse_01_line_separator_inside_json_is_no_line_end() -> None:
    body = b'data: {"content":"left\xe2\x80\xa8right"}\n\n'
    assert decode(body) == ['{"content":"left\u2028right"}']


def test_sse_03_a_character_cut_between_reads_survives() -> None:
    body = 'data: {"content":"👩"}\n\n'.encode()
    for cut in range(len(body) + 1):
        assert decode(body[:cut], body[cut:]) == ['{"content":"👩"}']


def test_sse_04_at_most_one_space_is_removed() -> None:
    assert decode(b"data:a\n\ndata:  b\n\n") == ["a", " b"]


def test_sse_06_a_comment_is_never_data() -> None:
    assert decode(b": upstream is warming up\n\ndata: a\n\n") == ["a"]
    assert sse.comment("one\ntwo\rthree") == b": one two three\n\n"


def test_sse_09_a_megabyte_event_is_parsed_whole() -> None:
    big = b"x" * 1_048_576
    assert decode(b"data: " + big + b"\n\n") == [big.decode()]


def test_sse_10_an_endless_event_is_cut_at_the_named_limit() -> None:
    decoder = sse.Decoder(event_limit=1000)
    for _ in range(10):
        decoder.feed(b"x" * 100)
    with pytest.raises(EngineMalformed, match="1000 bytes"):
        decoder.feed(b"x")


def test_sse_10_many_short_lines_of_one_event_are_limited_too() -> None:
    decoder = sse.Decoder(event_limit=1000)
    for _ in range(200):
        decoder.feed(b"data: xxxx\n")
    with pytest.raises(EngineMalformed):
        decoder.feed(b"data: xxxx\n")


def test_sse_11_a_trailing_cr_waits_for_the_next_byte() -> None:
    assert decode(b"data: a\r", b"\n\r", b"\n") == ["a"]
    assert decode(b"data: a\r\r") == ["a"]


LINES = st.lists(
    st.text(
        alphabet=st.characters(codec="utf-8", exclude_characters="\r\n\0"),
        max_size=12,
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(LINES, max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_any_cut_of_any_body_gives_the_same_events(
    events: list[list[str]], ending: str, data: st.DataObject
) -> None:
    text = "".join(
        "".join(f"data: {line}{ending}" for line in lines) + ending for lines in events
    )
    body = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    edges = [0, *cuts, len(body)]
    # A final byte: a body that ends in CR waits to see whether LF follows.
    chunks = [body[a:b] for a, b in itertools.pairwise(edges)] + [b":"]
    assert decode(*chunks) == ["\n".join(lines) for lines in events]


def test_encode_gives_what_decode_reads() -> None:
    decoder = sse.Decoder()
    (event,) = decoder.feed(sse.encode(b'{"a":1}', name="message_start"))
    assert (event.data, event.name) == ('{"a":1}', "message_start")


def test_a_stream_that_is_fed_whole_costs_its_length() -> None:
    """A stored stream is read again at once; it took 50 times as long."""
    raw = (b"data: " + b"x" * 200 + b"\n\n") * 60_000
    began = time.process_time()
    assert len(sse.Decoder().feed(raw)) == 60_000
    assert time.process_time() - began < 3

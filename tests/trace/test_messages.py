"""What continues what by meaning, and that the answer is found quickly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from explorer.records import Call
from explorer.trace.messages import continuations
from tests.trace.build import make_call


def told(name: str, sequence: int, said: str, reply: str | None = None) -> Call:
    """A call whose messages are the letters of `said`."""
    return make_call(name, sequence, [1], [2], message_digests=tuple(said), reply_digest=reply)


def test_the_longest_beginning_is_continued() -> None:
    calls = [
        told("1", 1, "u", "a"),
        told("2", 2, "uat", "b"),
        told("3", 3, "uatbt", "c"),
        told("side", 4, "uatx", "d"),
        told("new", 5, "v", "a"),
        told("short", 6, "ua"),
    ]
    assert continuations(reversed(calls)) == {"2": "1", "3": "2", "side": "1", "short": "1"}


def test_of_equal_answers_the_latest_is_continued_and_never_a_later_call() -> None:
    first, again = told("1", 1, "u", "a"), told("2", 2, "u", "a")
    between = told("3", 3, "uat", "b")
    late = told("4", 4, "u", "a")
    assert continuations([first, again, between, late]) == {"3": "2"}


def test_calls_without_messages_or_reply_continue_and_are_continued_by_nothing() -> None:
    calls = [
        told("1", 1, "", "a"),
        told("2", 2, "u", None),
        told("3", 3, "a"),
        told("4", 4, "ut"),
    ]
    assert continuations(calls) == {}


words = st.text("uab", max_size=5)


@given(st.lists(st.tuples(words, st.sampled_from([None, "u", "a", "b"])), max_size=9))
def test_it_finds_what_a_plain_search_finds(drawn: list[tuple[str, str | None]]) -> None:
    calls = [told(str(n), n, said, reply) for n, (said, reply) in enumerate(drawn)]
    expected = {}
    for n, call in enumerate(calls):
        fits = [
            (len(other.message_digests), m)
            for m, other in enumerate(calls[:n])
            if other.message_digests
            and other.reply_digest is not None
            and call.message_digests[: len(other.message_digests) + 1]
            == (*other.message_digests, other.reply_digest)
        ]
        if fits:
            expected[str(n)] = str(max(fits)[1])
    assert continuations(calls) == expected

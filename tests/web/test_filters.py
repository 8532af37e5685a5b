"""The filter language: what is written, what is meant, and what is refused in words."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.errors import InvalidValue
from explorer.store.queries import Field, Range, SortKey, Term
from explorer.web import filters
from explorer.web.list_query import checked, read_address, read_query

NOW = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()) * 1_000_000
DAY = 86_400_000_000
NOON = NOW - DAY // 2  # the start of that day


@pytest.mark.parametrize(
    ("name", "text", "term"),
    [
        ("run", "nightly #3", Term(Field.RUN, ("nightly #3",))),
        ("run", "a, b ,c", Term(Field.RUN, ("a", "b", "c"))),
        ("run", '"a, b",c', Term(Field.RUN, ("a, b", "c"))),
        ("run", '"say ""hi"""', Term(Field.RUN, ('say "hi"',))),
        ("run", "!a,b", Term(Field.RUN, ("a", "b"), negated=True)),
        ("run", '"!a"', Term(Field.RUN, ("!a",))),
        ("task", "(none)", Term(Field.TASK, (None,))),
        ("task", '"(none)"', Term(Field.TASK, ("(none)",))),
        ("task", 'a"b', Term(Field.TASK, ('a"b',))),
        ("trainable", "unknown", Term(Field.TRAINABLE, (None,))),
        ("findings", "fatal,warn", Term(Field.FINDINGS, ("fatal", "warn"))),
        ("reward", "0..0.2", Term(Field.REWARD, (Range(0, 0.2),))),
        ("reward", "-1.5..-1", Term(Field.REWARD, (Range(-1.5, -1),))),
        ("reward", "..0.5", Term(Field.REWARD, (Range(None, 0.5),))),
        ("reward", "1", Term(Field.REWARD, (Range(1, 1),))),
        ("reward", ">0..<1", Term(Field.REWARD, (Range(0, 1, True, True),))),
        ("reward", ">=0", Term(Field.REWARD, (Range(0, None),))),
        (
            "reward",
            "<0,>1",
            Term(Field.REWARD, (Range(None, 0, False, True), Range(1, None, True))),
        ),
        ("reward", "(none)", Term(Field.REWARD, (None,))),
        ("reward_min", "0.4", Term(Field.REWARD, (Range(0.4, None),))),
        ("reward_max", "-2", Term(Field.REWARD, (Range(None, -2),))),
        ("share", "..50%", Term(Field.SHARE, (Range(None, 0.5),))),
        ("calls", "10..", Term(Field.CALLS, (Range(10, None),))),
        ("created", "2026-11-30", Term(Field.CREATED, (Range(NOON, NOON + DAY, False, True),))),
        ("created", "2026-11-30..", Term(Field.CREATED, (Range(NOON, None),))),
        ("created", "..2026-11-29", Term(Field.CREATED, (Range(None, NOON, False, True),))),
        ("created", "2026-11-30T12:00", Term(Field.CREATED, (Range(NOW, NOW),))),
        ("created", "24h", Term(Field.CREATED, (Range(NOW - DAY, None),))),
        ("created", "7d..1d", Term(Field.CREATED, (Range(NOW - 7 * DAY, NOW - DAY),))),
        ("meta.seed", "7", Term(Field.META, ("7",), key="seed")),
        ("meta.a.b", "!x", Term(Field.META, ("x",), negated=True, key="a.b")),
        ("label", "odd", Term(Field.LABEL, ("odd",))),
    ],
)
def test_what_is_written_is_meant(name: str, text: str, term: Term) -> None:
    assert filters.read_term(name, text, NOW) == term


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("state", "asleep", "open, closed, deleted"),
        ("reward", "high", "not a number"),
        ("reward", "nan", "not a number"),
        ("reward", "1..0", "ends before it begins"),
        ("reward", "1..x", "not a number"),
        ("reward_min", "x", "not a number"),
        ("reward_min", "!1", "must be a number"),
        ("created", "yesterday", "not a date"),
        ("created", "(none)", "(none)"),
        ("created", "2026-11-30..2026-11-01", "ends before it begins"),
        ("run", '"a', "quote"),
        ("run", '"a" b', "quote"),
        ("run", "!", "no value"),
        ("run", ",,", "no value"),
        ("run", ",".join(map(str, range(101))), "more than 100"),
        ("run", "x" * 5000, "longer"),
    ],
)
def test_what_cannot_be_read_says_what_can(name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidValue) as error:
        filters.read_term(name, text, NOW)
    assert says in error.value.message
    assert f"`{name}`" in error.value.message or name == "reward_min"


@given(st.text(max_size=40).filter(lambda text: text.strip()))
def test_a_written_value_is_read_back(value: str) -> None:
    term = filters.read_term("run", filters.written(value), NOW)
    assert term == Term(Field.RUN, (value,))


@given(st.sampled_from(sorted(filters.NAMES)), st.text(max_size=30))
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    try:
        term = filters.read_term(name, text, NOW)
    except InvalidValue:
        term = None
    assert term is None or term.values


def test_terms_typed_into_the_text_box() -> None:
    typed = 'lock task:"fix, it" -state:open http://x reward:0..0.2 meta.seed:7 twice'
    given, rest = filters.typed_terms(typed)
    assert given == (
        ("task", '"fix, it"'),
        ("state", "!open"),
        ("reward", "0..0.2"),
        ("meta.seed", "7"),
    )
    assert rest == "lock http://x twice"
    assert filters.typed_terms("no  terms") == ((), "no  terms")


def test_an_address_is_read_once_for_all() -> None:
    address = read_address(
        [
            ("q", "x run:a"),
            ("reward", ".."),
            ("state", "asleep"),
            ("sort", "-share"),
            ("z", "1"),
        ],
        NOW,
    )
    assert address.given == (("run", "a"), ("reward", ".."))
    assert address.unread == (("state", "asleep"),)
    assert (address.text, address.typed) == ("x", True)
    assert (address.sort, address.descending) == (SortKey.SHARE, True)
    assert [problem.name for problem in address.problems] == ["z", "state"]
    assert address.pairs == (("q", "x"), *address.given, ("sort", "-share"))
    with pytest.raises(InvalidValue, match="there is no filter `z`; there are q, sort"):
        checked(address)


@pytest.mark.parametrize(
    "pairs",
    [
        [("limit", "0")],
        [("limit", "²")],
        [("sort", "size")],
        [("order", "up")],
        [("sort", "-reward"), ("order", "asc")],
        [("q", "x" * 2001)],
        [("run", str(number)) for number in range(41)],
    ],
)
def test_programs_are_refused_what_pages_ignore(pairs: list[tuple[str, str]]) -> None:
    assert read_address(pairs, NOW).problems
    with pytest.raises(InvalidValue):
        read_query(pairs, NOW)


def test_repeated_parameters_must_all_hold() -> None:
    query = read_query(
        [("reward", "0.."), ("reward", "..1"), ("run", "!a"), ("run", "!b")], NOW
    )
    assert len(query.terms) == 4


def test_every_field_is_in_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "filters.md").read_text("utf-8")
    for field, spec in filters.FIELDS.items():
        row = next(
            line for line in page.splitlines() if line.startswith(f"| `{field.value}` |")
        )
        for choice in spec.choices:
            assert f"`{choice}`" in row, (field, choice)
    for key in SortKey:
        assert f"`{key.value}`" in page.split("## Order")[1], key

"""A list's address: filters, text, order, columns and page, read once for all its readers.

Owns: the parameters of lists and how they change into those of a neighbouring list.
Must not know: contexts, the store.

The page names what it cannot read and ignores it; programs are refused with the first
such name, because silently answering more than was asked for is worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from explorer.errors import InvalidValue
from explorer.store.queries import RolloutQuery, SortKey, Term
from explorer.web import filters

Pairs = tuple[tuple[str, str], ...]
OTHERS = ("q", "sort", "order", "cols", "limit", "cursor")
MOST_ROWS = 500
MOST_TERMS = 40
MOST_TEXT = 2000


@dataclass(frozen=True, slots=True)
class Problem:
    """A parameter that cannot be read."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class ListAddress:
    """What an address asks for.

    Attributes:
        given: the filters that were read, as parameters.
        unread: filters that cannot be read.
        typed: whether the text box held `key:value` terms, now among `given`.
        sort: None when the address names none.
    """

    given: Pairs
    unread: Pairs
    terms: tuple[Term, ...]
    text: str
    typed: bool
    sort: SortKey | None
    descending: bool
    columns: tuple[str, ...]
    limit: int | None
    cursor: str | None
    problems: tuple[Problem, ...]

    def query(self, limit: int) -> RolloutQuery:
        """The store's query; `limit` where the address gives none."""
        return RolloutQuery(
            terms=self.terms,
            text=self.text or None,
            sort=self.sort or SortKey.CREATED,
            descending=self.descending,
            cursor=self.cursor,
            limit=self.limit or limit,
        )

    @property
    def filter_pairs(self) -> Pairs:
        """What narrows the list."""
        text: Pairs = (("q", self.text),) if self.text else ()
        return (*text, *self.given)

    @property
    def order_pairs(self) -> Pairs:
        """What orders the list, in one parameter."""
        if self.sort is None and self.descending:
            return ()
        key = (self.sort or SortKey.CREATED).value
        return (("sort", f"-{key}" if self.descending else key),)

    @property
    def column_pairs(self) -> Pairs:
        """What columns the list shows."""
        return (("cols", ",".join(self.columns)),) if self.columns else ()

    @property
    def pairs(self) -> Pairs:
        """The whole state of the list, without the page of it."""
        return (*self.filter_pairs, *self.order_pairs, *self.column_pairs)


def href(path: str, pairs: Iterable[tuple[str, str]]) -> str:
    """An address with parameters."""
    text = urlencode([(name, value) for name, value in pairs if value != ""])
    return f"{path}?{text}" if text else path


def read_address(pairs: Iterable[tuple[str, str]], now_us: int) -> ListAddress:
    """What the parameters of a list ask for, and which of them cannot be read."""
    problems: list[Problem] = []
    given: list[tuple[str, str]] = []
    others: dict[str, list[str]] = {}
    words: list[str] = []
    typed = False
    for name, value in pairs:
        if value.strip() == "":
            continue
        if name == "q" and len(value) > MOST_TEXT:
            problems.append(Problem(name, f"`q` is longer than {MOST_TEXT} characters"))
        elif name == "q":
            found, rest = filters.typed_terms(value)
            given += found
            typed = typed or bool(found)
            words += [rest] if rest else []
        elif filters.is_filter(name):
            given.append((name, value.strip()))
        elif name in OTHERS:
            others.setdefault(name, []).append(value.strip())
        else:
            problems.append(Problem(name, f"there is no filter `{name[:80]}`"))
    readable, terms = _terms(given, now_us, problems)
    sort, descending = _order(_last(others, "sort"), _last(others, "order"), problems)
    return ListAddress(
        given=tuple(readable),
        unread=tuple(pair for pair in dict.fromkeys(given) if pair not in readable),
        terms=tuple(terms),
        text=" ".join(words),
        typed=typed,
        sort=sort,
        descending=descending,
        columns=tuple(
            dict.fromkeys(
                part for value in others.get("cols", ()) for part in value.split(",") if part
            )
        ),
        limit=_limit(_last(others, "limit"), problems),
        cursor=_last(others, "cursor") or None,
        problems=tuple(problems),
    )


def _terms(
    given: Sequence[tuple[str, str]], now_us: int, problems: list[Problem]
) -> tuple[list[tuple[str, str]], list[Term]]:
    readable: list[tuple[str, str]] = []
    terms: list[Term] = []
    for name, value in dict.fromkeys(given):
        if len(terms) == MOST_TERMS:
            problems.append(Problem(name, f"a list takes at most {MOST_TERMS} filters"))
            break
        try:
            terms.append(filters.read_term(name, value, now_us))
        except InvalidValue as error:
            problems.append(Problem(name, error.message))
        else:
            readable.append((name, value))
    return readable, terms


def _last(others: dict[str, list[str]], name: str) -> str:
    return others[name][-1] if name in others else ""


def _order(sort: str, order: str, problems: list[Problem]) -> tuple[SortKey | None, bool]:
    """From `-reward`, or `reward` with `order`; the newest first when neither is given."""
    if order not in ("", "asc", "desc"):
        problems.append(Problem("order", "`order` must be asc or desc"))
        order = ""
    if not sort:
        return (SortKey.CREATED, False) if order == "asc" else (None, True)
    try:
        key = SortKey(sort.removeprefix("-"))
    except ValueError:
        known = ", ".join(each.value for each in SortKey)
        message = f"`sort` “{sort[:80]}” is not one of {known}, with - for descending"
        problems.append(Problem("sort", message))
        return None, True
    if order == "asc" and sort.startswith("-"):
        problems.append(
            Problem("order", f"`sort={sort}` and `order=asc` contradict each other")
        )
    return key, sort.startswith("-") or order == "desc"


def _limit(text: str, problems: list[Problem]) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or not text.isascii() or len(text) > 9 or int(text) < 1:
        problems.append(Problem("limit", f"`limit` must be a number from 1 to {MOST_ROWS}"))
        return None
    return min(int(text), MOST_ROWS)


def read_query(pairs: Iterable[tuple[str, str]], now_us: int, limit: int = 50) -> RolloutQuery:
    """The query of a program.

    Raises:
        InvalidValue: names the first parameter that cannot be read.
    """
    return checked(read_address(pairs, now_us)).query(limit)


def checked(address: ListAddress) -> ListAddress:
    """The address, when all of it was read.

    Raises:
        InvalidValue: names the first parameter that was not.
    """
    for problem in address.problems:
        known = ", ".join((*OTHERS, *filters.NAMES, f"{filters.META}KEY"))
        message = problem.message
        if message.startswith("there is no filter"):
            message = f"{message}; there are {known}"
        raise InvalidValue(message, path=problem.name)
    return address

"""What a dataset would be made of: the rollouts of a filter, counted from their summaries.

Owns: reading every row that a filter shows, and the counts that are told before anything is
written. Must not know: how a dataset is written, pages.

The counts are those of the list, so they are there at once; the plan of a job judges and
scans every rollout, and may say less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl

from explorer.capture.ids import now_us
from explorer.errors import InvalidValue, NotFound
from explorer.export.publishing.scheduling import ViewNow
from explorer.records import RolloutId
from explorer.store.interface import Store
from explorer.store.listing import MAX_PAGE
from explorer.store.queries import RolloutQuery, RolloutStatus, RolloutSummary
from explorer.web.list_query import checked, href, read_address

MOST_ROLLOUTS = 50_000
UNJUDGED = "not_judged_yet"


@dataclass(slots=True)
class Counts:
    """Sums over the rollouts of a filter.

    Each rollout is open, undecided, trainable, or has a reason why it is not.
    """

    trainable: int = 0
    supervised_tokens: int = 0
    generated_tokens: int = 0
    calls: int = 0
    open: int = 0
    undecided: list[RolloutId] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, row: RolloutSummary, undecided: Collection[RolloutId]) -> None:
        """One more rollout."""
        self.calls += row.n_calls
        self.generated_tokens += row.generated_tokens
        judged = row.judgement
        if row.status is RolloutStatus.OPEN:
            self.open += 1
        elif row.rollout_id in undecided:
            self.undecided.append(row.rollout_id)
        elif judged is None:
            self.reasons[UNJUDGED] += 1
        elif judged.trainable:
            self.trainable += 1
            self.supervised_tokens += judged.supervised_tokens
        else:
            self.reasons[judged.reasons[0] if judged.reasons else "unknown"] += 1


@dataclass(frozen=True, slots=True)
class Matching:
    """The rollouts of a filter.

    Attributes:
        view: name of the saved view; empty where the filter is none.
        query: the filter, in the one spelling of it.
    """

    view: str
    query: str
    rollouts: tuple[RolloutId, ...]
    counts: Counts


def query_of(store: Store, view: str, query: str) -> str:
    """The filter of a saved view, or the one that is given, in the one spelling of it.

    Raises:
        NotFound: there is no such view.
        InvalidValue: the filter cannot be read.
    """
    if view:
        found = next((each for each in store.views() if each.name == view), None)
        if found is None:
            raise NotFound(f"there is no saved view “{view[:80]}”")
        query = found.query
    address = checked(read_address(parse_qsl(query.removeprefix("?")), now_us()))
    return href("", (*address.filter_pairs, *address.order_pairs)).removeprefix("?")


def matching(store: Store, view: str, query: str, undecided: Collection[RolloutId]) -> Matching:
    """Every rollout that a saved view or a filter shows; blocks.

    Args:
        store: as the caller may see it.
        undecided: rollouts of the whole store in which something waits for a person.

    Raises:
        NotFound, InvalidValue: the view or filter is none, or shows too many.
    """
    text = query_of(store, view, query)
    counts, found = Counts(), []
    for row in _rows(store, text):
        counts.add(row, undecided)
        found.append(row.rollout_id)
        if len(found) > MOST_ROLLOUTS:
            raise InvalidValue(
                f"the filter shows more than {MOST_ROLLOUTS:,} rollouts; narrow it, or use "
                "the command `rollout-explorer publish`"
            )
    return Matching(view, text, tuple(found), counts)


def _rows(store: Store, text: str) -> Iterator[RolloutSummary]:
    query: RolloutQuery = read_address(parse_qsl(text), now_us()).query(MAX_PAGE)
    query = replace(query, limit=MAX_PAGE)
    while True:
        page = store.list_rollouts(query)
        yield from page.rows
        if page.next_cursor is None:
            return
        query = replace(query, cursor=page.next_cursor)


def view_now(store: Store, name: str) -> ViewNow | None:
    """A saved view for the schedules: its filter and all that it shows; blocks."""
    try:
        text = query_of(store, name, "")
    except (NotFound, InvalidValue):
        return None
    return ViewNow(text, [row.rollout_id for row in _rows(store, text)])

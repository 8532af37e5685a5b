"""Builds the rollout list: chips, facets, columns, rows and the same as commands.

Owns: what the list offers for one address, in words. Must not know: HTML, HTTP, SQL.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from explorer.store.interface import Store
from explorer.store.queries import Facet, Field, RolloutPage, SortKey
from explorer.web import filters
from explorer.web.contexts import Choice, Command, Frame
from explorer.web.contexts_lists import (
    Chip,
    FacetBox,
    FacetValue,
    ListColumn,
    RangeField,
    RolloutListPage,
)
from explorer.web.list_query import ListAddress, Pairs, href
from explorer.web.lists import now_us, rollout_row, view_link
from explorer.web.pretty import safe_text

PATH = "/rollouts"
PAGE_ROWS = 60
FACET_VALUES = 10

# Name, head, sort key, whether it is flush right, and whether narrow screens leave it out.
_COLUMNS: tuple[tuple[str, str, SortKey | None, bool, bool], ...] = (
    ("status", "Status", None, False, False),
    ("id", "Rollout", None, False, False),
    ("task", "Task", SortKey.TASK, False, False),
    ("group", "Group", SortKey.GROUP, False, True),
    ("run", "Run", SortKey.RUN, False, True),
    ("harness", "Harness", SortKey.HARNESS, False, True),
    ("model", "Model", SortKey.MODEL, False, True),
    ("purpose", "Purpose", None, False, True),
    ("reward", "Reward", SortKey.REWARD, True, False),
    ("trainable", "Trainable tokens", SortKey.SUPERVISED, False, False),
    ("share", "Share", SortKey.SHARE, True, True),
    ("tokens", "Sampled", SortKey.TOKENS, True, True),
    ("calls", "Calls", SortKey.CALLS, True, False),
    ("failed", "Failed", SortKey.FAILED, True, True),
    ("findings", "Findings", SortKey.FINDINGS, True, False),
    ("version", "Weights", SortKey.VERSION, True, True),
    ("stale", "Behind", SortKey.STALE, True, True),
    ("delta_p99", "|δ| p99", SortKey.DELTA_P99, True, True),
    ("delta_outside", "Outside band", SortKey.DELTA_OUTSIDE, True, True),
    ("created", "Created", SortKey.CREATED, False, True),
    ("age", "Age", SortKey.CREATED, True, False),
)
COLUMN_NAMES = tuple(name for name, *_ in _COLUMNS)
ALWAYS = ("id",)
USUAL = (
    *("status", "id", "task", "run", "harness", "model", "reward", "trainable", "share"),
    *("calls", "failed", "findings", "age"),
)
_RANGES = (
    ("reward", "Reward", "0..0.2"),
    ("share", "Trainable share", "..0.5"),
    ("calls", "Calls", "10.."),
    ("tokens", "Sampled tokens", "1000.."),
    ("version", "Weight version", "7.."),
    ("stale", "Versions behind", ">2"),
    ("delta_p99", "|δ| p99", ">0.1"),
    ("delta_outside", "Share outside the δ band", ">0.05"),
    ("created", "Created", "24h.."),
)
_TITLES = {
    Field.REASON: "Why not trainable",
    Field.FINDINGS: "Worst finding",
    Field.TRAINABLE: "Trainable",
    Field.CROSSED: "Crossed an update",
}
_UNKNOWN = {
    Field.TRAINABLE: "not judged",
    Field.FINDINGS: "not judged",
    Field.REASON: "no reason",
    Field.REWARD: "no reward",
}
_REWARDS = {
    "<0": "below 0",
    ">0..<0.5": "0 to 0.5",
    "0.5..<1": "0.5 to 1",
    ">1": "above 1",
}


def rollout_list(
    store: Store, frame: Frame, address: ListAddress, base: str
) -> RolloutListPage:
    """The rollout list of one address; `base` is the server's own."""
    query = address.query(PAGE_ROWS)
    found = store.list_rollouts(query)
    now = now_us()
    unknown = [name for name in address.columns if name not in COLUMN_NAMES]
    problems = [problem.message for problem in address.problems]
    problems += [f"there is no column `{name[:80]}`" for name in unknown]
    return RolloutListPage(
        frame=frame,
        q=address.text,
        chips=tuple(_chips(address)),
        problems=tuple(safe_text(problem) for problem in problems),
        filtered=bool(address.filter_pairs),
        facets=tuple(
            _facet(facet, address)
            for facet in store.facets(query, FACET_VALUES)
            if not _says_nothing(facet)
        ),
        ranges=tuple(_ranges(address)),
        columns=tuple(_columns(address)),
        rows=tuple(rollout_row(row, now) for row in found.rows),
        total=found.total,
        first=found.before + 1 if found.rows else 0,
        last=found.before + len(found.rows),
        **_pager(address, found),
        clear_href=href(PATH, (*address.order_pairs, *address.column_pairs)),
        kept=tuple(Choice(name, value) for name, value in address.pairs if name != "q"),
        csv_href=href(f"{PATH}.csv", (*address.filter_pairs, *address.order_pairs)),
        publish_href=_publish_href(store, address),
        parquet_href=href(f"{PATH}.parquet", (*address.filter_pairs, *address.order_pairs)),
        commands=commands(
            base, (*address.filter_pairs, *address.order_pairs), store.health().path
        ),
        query=href("", address.pairs).lstrip("?"),
        views=tuple(view_link(view) for view in store.views()),
    )


def _says_nothing(facet: Facet) -> bool:
    """Crossings are rare: a server without any need not say so beside every list."""
    return facet.name == Field.CROSSED.value and all(
        item.value == "no" for item in facet.counts
    )


def _publish_href(store: Store, address: ListAddress) -> str:
    """The form for a dataset of the list: by the view's name where a view is shown, so that
    it may publish itself later."""
    pairs: Pairs = (*address.filter_pairs, *address.order_pairs)
    query = href("", address.pairs).lstrip("?")
    named = next((view.name for view in store.views() if view.query == query), "")
    return href("/datasets/publish", (("view", named),) if named and query else pairs)


def _pager(address: ListAddress, found: RolloutPage) -> dict[str, str | None]:
    limit: Pairs = (("limit", str(address.limit)),) if address.limit else ()

    def at(cursor: str | None) -> str | None:
        return href(PATH, (*address.pairs, *limit, ("cursor", cursor))) if cursor else None

    behind = found.before > 0 or (address.cursor is not None and not found.rows)
    return {
        "next_href": at(found.next_cursor),
        "previous_href": at(found.previous_cursor),
        "first_href": href(PATH, (*address.pairs, *limit)) if behind else None,
    }


def _without(pairs: Pairs, place: int) -> Pairs:
    return (*pairs[:place], *pairs[place + 1 :])


def _chips(address: ListAddress) -> Iterable[Chip]:
    rest = (*address.order_pairs, *address.column_pairs)
    for place, (name, value) in enumerate(address.filter_pairs):
        others = _without(address.filter_pairs, place)
        text = f"text “{value}”" if name == "q" else _in_words(name, value)
        yield Chip(name, safe_text(text), href(PATH, (*others, *rest)))


def _in_words(name: str, value: str) -> str:
    """A filter for people; the address has it as it was written."""
    title = name
    if name in filters.NAMES:
        title = filters.FIELDS[Field(name)].words
    negated, values = filters.values_of(value)
    if not values:
        return f"{title}: {value}"
    return f"{title} {'is not' if negated else 'is'} {' or '.join(values)}"


def _facet(facet: Facet, address: ListAddress) -> FacetBox:
    field = Field(facet.name)
    chosen = dict.fromkeys(
        value
        for name, text in address.given
        if name == facet.name
        for negated, values in (filters.values_of(text),)
        if not negated
        for value in values
    )
    values: list[FacetValue] = []
    for item in facet.counts:
        text = _written(field, item.value)
        selected = chosen.pop(text, "") is None
        values.append(
            FacetValue(
                text=_facet_text(field, item.value),
                value=text,
                count=item.count,
                selected=selected,
                href=_toggled(address, facet.name, text, selected),
            )
        )
    values += [
        FacetValue(safe_text(text), text, None, True, _toggled(address, facet.name, text, True))
        for text in chosen
    ]
    return FacetBox(
        name=facet.name,
        title=_TITLES.get(field, facet.name.capitalize()),
        values=tuple(values),
        more=facet.more,
        shown=len(facet.counts),
    )


def _written(field: Field, value: str | None) -> str:
    return value if value is not None and field is Field.REWARD else filters.written(value)


def _facet_text(field: Field, value: str | None) -> str:
    if value is None:
        return _UNKNOWN.get(field, "none given")
    if field is Field.REWARD:
        return _REWARDS.get(value, value)
    shown = value.replace("_", " ") if field is Field.REASON else value
    return safe_text(shown) or "(empty)"


def _toggled(address: ListAddress, name: str, value: str, selected: bool) -> str:
    """The list with the value added to those of its field, or taken away."""
    others = tuple(
        (key, text)
        for key, text in address.filter_pairs
        if key != name or filters.values_of(text)[0]
    )
    values = [
        each
        for key, text in address.given
        if key == name and not filters.values_of(text)[0]
        for each in filters.values_of(text)[1]
        if each != value
    ]
    if not selected:
        values.append(value)
    added: Pairs = ((name, filters.joined(values)),) if values else ()
    return href(PATH, (*others, *added, *address.order_pairs, *address.column_pairs))


def _columns(address: ListAddress) -> Iterable[ListColumn]:
    asked = [name for name in address.columns if name in COLUMN_NAMES]
    wanted = {*asked, *ALWAYS} if asked else set(USUAL)
    sort = address.sort or SortKey.CREATED
    rest = (*address.filter_pairs, *address.column_pairs)
    for name, label, key, numeric, wide in _COLUMNS:
        here = key is sort and not (name == "created" and "age" in wanted)
        turned = "" if here and address.descending else "-"
        text_first = key in (SortKey.TASK, SortKey.GROUP, SortKey.RUN, SortKey.HARNESS)
        if not here and (text_first or key is SortKey.MODEL):
            turned = ""
        yield ListColumn(
            name=name,
            label=label,
            shown=name in wanted,
            numeric=numeric,
            # What a reader asked for by name is shown on every screen.
            wide=wide and not asked,
            sort_href=None
            if key is None
            else href(PATH, (*rest, ("sort", turned + key.value))),
            # The newest first is the youngest first.
            sorted=""
            if not here
            else ("descending" if address.descending != (name == "age") else "ascending"),
        )


def _ranges(address: ListAddress) -> Iterable[RangeField]:
    for name, label, hint in _RANGES:
        value = next((text for key, text in address.given if key == name), "")
        yield RangeField(name, label, value, hint)


def commands(base: str, pairs: Pairs, store: str) -> tuple[Command, ...]:
    """How a program asks for the same rollouts."""
    url = f"{base}{href('/api/v1/rollouts', pairs)}"
    view = href("", pairs).lstrip("?")
    return (
        Command("curl", f"curl -s {shlex.quote(url)}"),
        Command(
            "Python",
            "import json, urllib.request\n\n"
            f"with urllib.request.urlopen({url!r}) as reply:\n"
            '    rollouts = json.load(reply)["rollouts"]',
        ),
        Command(
            "Export every one of them",
            f"rollout-explorer export --view {shlex.quote(view)} --out exported/ "
            f"--store {shlex.quote(store)}",
        ),
    )

"""Builds the contexts of the home page, runs and the rollout list.

Owns: turning the store's summaries into rows for people.
Must not know: HTML, HTTP, SQL.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from explorer.records import Certificate
from explorer.store.interface import (
    RolloutQuery,
    RolloutStatus,
    RolloutSummary,
    RunSummary,
    SortKey,
    Store,
    StoreHealth,
)
from explorer.web import words
from explorer.web.contexts import (
    Choice,
    EngineCard,
    Filters,
    Frame,
    GroupRow,
    RolloutListPage,
    RolloutRow,
    RunPage,
    RunRow,
    StoreCard,
)
from explorer.web.frames import list_href, rollout_href, run_href

PAGE_ROWS = 60
GRID_ROLLOUTS = 600


def now_us() -> int:
    """The clock of the pages: only ages are computed from it."""
    return time.time_ns() // 1000


def rollout_row(row: RolloutSummary, now: int) -> RolloutRow:
    """One summary as a line."""
    judged = row.judgement
    generated = judged.generated_tokens if judged else row.generated_tokens
    supervised = judged.supervised_tokens if judged else None
    known = supervised is not None
    return RolloutRow(
        rollout_id=row.rollout_id,
        short_id=words.short_id(row.rollout_id),
        href=rollout_href(row.rollout_id, "tokens"),
        run=row.run,
        run_href=run_href(row.run),
        task=row.task,
        group=row.group,
        attempt=row.attempt,
        purpose=row.purpose.value,
        harness=row.harness,
        model=row.model or words.UNKNOWN,
        status=row.status.value,
        ok=row.ok,
        reward=row.reward,
        reward_text=words.reward_text(row.reward),
        trainable=judged.trainable if judged else None,
        supervised_tokens=supervised,
        generated_tokens=generated,
        share=words.share(supervised, generated) if supervised is not None else None,
        share_text=words.percent(supervised or 0, generated) if known else words.NONE,
        reason=judged.reasons[0] if judged and judged.reasons else "",
        n_calls=row.n_calls,
        n_failed=row.n_failed,
        n_findings=judged.n_fatal + judged.n_warn if judged else None,
        n_fatal=judged.n_fatal if judged else None,
        created=words.iso(row.created_us),
        age=words.age(row.created_us, now),
    )


def run_row(row: RunSummary, now: int) -> RunRow:
    """One run as a line."""
    return RunRow(
        run=row.run,
        href=run_href(row.run),
        n_rollouts=row.n_rollouts,
        n_open=row.n_open,
        n_trainable=row.n_trainable,
        n_calls=row.n_calls,
        generated_tokens=row.generated_tokens,
        n_rewarded=row.n_rewarded,
        reward_mean=row.reward_mean,
        reward_text=words.reward_text(
            None if row.reward_mean is None else round(row.reward_mean, 2)
        ),
        last_created=words.iso(row.last_created_us),
        age=words.age(row.last_created_us, now),
    )


def engine_card(found: Certificate | None, *, allow_uncertified: bool) -> EngineCard:
    """What a certificate says, in words a harness developer can act on."""
    if found is None:
        return EngineCard(
            known=False,
            name=words.UNKNOWN,
            version=words.UNKNOWN,
            model=words.UNKNOWN,
            passing=False,
            certifiable=False,
            logprob_kind=words.UNKNOWN,
            capture_level=words.UNKNOWN,
            measured=None,
            certificate_id=None,
            failures=(),
            sentence="No engine has been probed yet, so nothing counts as trainable.",
        )
    if found.passing:
        sentence = "Certified: ids and processed logprobs were measured, so calls can train."
    elif allow_uncertified:
        sentence = "Not certified; the operator lets its calls count all the same."
    else:
        sentence = "Not certified, so its calls do not count as trainable."
    return EngineCard(
        known=True,
        name=" · ".join(dict.fromkeys(p for p in (found.engine_kind, found.engine_name) if p)),
        version=found.engine_version or words.UNKNOWN,
        model=found.model or words.UNKNOWN,
        passing=found.passing,
        certifiable=found.certifiable,
        logprob_kind=found.logprob_kind.value,
        capture_level=found.capture_level.value,
        measured=words.iso(found.time_us),
        certificate_id=found.certificate_id,
        failures=found.failures,
        sentence=sentence,
    )


def store_card(health: StoreHealth) -> StoreCard:
    """The store's gauges that a reader needs."""
    return StoreCard(
        path=health.path,
        size_bytes=health.size_bytes,
        size_text=words.size(health.size_bytes),
        free_text=words.size(health.free_bytes),
        quarantined=health.quarantined,
        spilling=health.spilling,
        refused_for_space=health.refused_for_space,
        schema_version=health.schema_version,
        messages=health.messages,
    )


def read_filters(query: Mapping[str, str]) -> tuple[Filters, RolloutQuery, tuple[str, ...]]:
    """Filters from the address; what cannot be read is named and ignored."""
    filters = Filters(
        **{item.name: query.get(item.name, "").strip() for item in fields(Filters)}
    )
    problems: list[str] = []

    def one_of(name: str, value: str, allowed: tuple[str, ...], default: str) -> str:
        if value and value not in allowed:
            problems.append(f"{name} “{value}” is not one of {', '.join(allowed)}")
            return default
        return value or default

    def number(name: str, value: str) -> float | None:
        if not value:
            return None
        try:
            return float(value)
        except ValueError:
            problems.append(f"{name} “{value}” is not a number")
            return None

    state = one_of("state", filters.state, tuple(s.value for s in RolloutStatus), "")
    verdict = one_of("trainable", filters.trainable, ("yes", "no"), "")
    sort = one_of("sort", filters.sort, tuple(s.value for s in SortKey), "created")
    order = one_of("order", filters.order, ("desc", "asc"), "desc")
    filters = replace(filters, state=state, trainable=verdict, sort=sort, order=order)
    asked = RolloutQuery(
        run=filters.run or None,
        task=filters.task or None,
        group=filters.group or None,
        state=RolloutStatus(state) if state else None,
        reward_min=number("reward from", filters.reward_min),
        reward_max=number("reward to", filters.reward_max),
        trainable={"yes": True, "no": False}.get(verdict),
        text=filters.q or None,
        sort=SortKey(sort),
        descending=order == "desc",
        cursor=query.get("cursor") or None,
        limit=PAGE_ROWS,
    )
    return filters, asked, tuple(problems)


def rollout_list(store: Store, frame: Frame, query: Mapping[str, str]) -> RolloutListPage:
    """The run list for one address."""
    filters, asked, problems = read_filters(query)
    found = store.list_rollouts(asked)
    now = now_us()
    given = {item.name: getattr(filters, item.name) for item in fields(Filters)}
    base = {name: value for name, value in given.items() if value}
    base = {
        name: value
        for name, value in base.items()
        if (name, value) not in (("sort", "created"), ("order", "desc"))
    }
    narrowing = [name for name in base if name not in ("sort", "order")]
    return RolloutListPage(
        frame=frame,
        filters=filters,
        problems=problems,
        filtered=bool(narrowing),
        run_choices=tuple(Choice(row.run, row.run) for row in store.list_runs()[:200]),
        rows=tuple(rollout_row(row, now) for row in found.rows),
        total=found.total,
        next_href=list_href(**base, cursor=found.next_cursor) if found.next_cursor else None,
        first_href=list_href(**base) if asked.cursor else None,
        sort_hrefs={key.value: _sort_href(base, filters, key.value) for key in SortKey},
    )


def _sort_href(base: dict[str, str], filters: Filters, key: str) -> str:
    """The same list by `key`; the key in force turns around."""
    rest = {name: value for name, value in base.items() if name not in ("sort", "order")}
    turned = "asc" if filters.sort == key and filters.order == "desc" else "desc"
    return list_href(**rest, sort=key, order=turned)


def run_page(store: Store, frame: Frame, run: str, summary: RunSummary) -> RunPage:
    """The grid of one run: groups × samples."""
    now = now_us()
    rows: list[RolloutSummary] = []
    cursor: str | None = None
    total = 0
    while len(rows) < GRID_ROLLOUTS:
        found = store.list_rollouts(
            RolloutQuery(run=run, descending=False, cursor=cursor, limit=200)
        )
        rows.extend(found.rows)
        total, cursor = found.total, found.next_cursor
        if cursor is None:
            break
    grouped: dict[str, list[RolloutSummary]] = {}
    for row in rows:
        grouped.setdefault(row.group or row.task or "(no task given)", []).append(row)
    groups = tuple(group_row(name, members, now) for name, members in grouped.items())
    width = max((len(group.samples) for group in groups), default=0)
    return RunPage(
        frame=frame,
        summary=run_row(summary, now),
        groups=groups,
        width=width,
        columns=_columns(groups, width),
        n_zero_variance=sum(group.zero_variance for group in groups),
        shown=len(rows),
        total=total,
        list_href=list_href(run=run),
    )


def _columns(groups: Sequence[GroupRow], width: int) -> tuple[str, ...]:
    """Attempts as heads when each column holds one attempt only, else plain numbers."""
    attempts: list[set[int | None]] = [set() for _ in range(width)]
    for group in groups:
        for place, sample in enumerate(group.samples):
            attempts[place].add(sample.attempt)
    if any(len(found) != 1 or None in found for found in attempts):
        return tuple(str(place + 1) for place in range(width))
    return tuple(f"#{attempt}" for found in attempts for attempt in found)


def group_row(name: str, members: list[RolloutSummary], now: int) -> GroupRow:
    """One line of the grid."""
    ordered = sorted(
        members, key=lambda row: (row.attempt is None, row.attempt or 0, row.created_us)
    )
    rewards = [row.reward for row in ordered if row.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    return GroupRow(
        name=name,
        samples=tuple(rollout_row(row, now) for row in ordered),
        n_rewarded=len(rewards),
        reward_mean=mean,
        reward_text=words.reward_text(None if mean is None else round(mean, 2)),
        zero_variance=len(rewards) > 1 and min(rewards) == max(rewards),
        n_trainable=sum(bool(row.judgement and row.judgement.trainable) for row in ordered),
        generated_tokens=sum(row.generated_tokens for row in ordered),
    )

"""Turns the store's summaries into the rows and cards that several pages show.

Owns: rollouts, runs, groups, the engine and the store as rows for people.
Must not know: HTML, HTTP, SQL, which page shows a row.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from explorer.records import Certificate
from explorer.store.interface import StoreHealth
from explorer.store.queries import JudgementRow, RolloutSummary, RunSummary
from explorer.store.remarks import SavedView
from explorer.web import words
from explorer.web.contexts import EngineCard, RolloutRow, RunRow, StoreCard, ViewLink
from explorer.web.contexts_lists import GroupRow
from explorer.web.delta_words import nats, share_text
from explorer.web.frames import rollout_href, run_href
from explorer.web.pretty import safe_text


def now_us() -> int:
    """The clock of the pages: only ages are computed from it."""
    return time.time_ns() // 1000


def trained_tokens(judged: JudgementRow | None) -> int | None:
    """Tokens that train; none of a rollout whose verdict is against it."""
    if judged is None:
        return None
    return judged.supervised_tokens if judged.trainable else 0


def rollout_row(row: RolloutSummary, now: int) -> RolloutRow:
    """One summary as a line."""
    judged = row.judgement
    generated = judged.generated_tokens if judged else row.generated_tokens
    supervised = trained_tokens(judged)
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
        n_warn=judged.n_warn if judged else None,
        version_low=row.version_low,
        version_high=row.version_high,
        behind=row.behind,
        delta_p99=row.delta_p99,
        delta_p99_text=nats(row.delta_p99),
        delta_outside=row.delta_outside,
        delta_outside_text=share_text(row.delta_outside),
        n_crossed=row.n_crossed,
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
        mean_length=row.generated_tokens / row.n_rollouts if row.n_rollouts else None,
        mean_length_text=words.thousands(round(row.generated_tokens / row.n_rollouts))
        if row.n_rollouts
        else words.NONE,
        n_rewarded=row.n_rewarded,
        reward_mean=row.reward_mean,
        reward_text=words.reward_text(
            None if row.reward_mean is None else round(row.reward_mean, 2)
        ),
        n_judged=row.n_judged,
        supervised_tokens=row.supervised_tokens,
        share=words.share(row.supervised_tokens, row.judged_tokens),
        share_text=words.percent(row.supervised_tokens, row.judged_tokens),
        n_findings=row.n_fatal + row.n_warn if row.n_judged else None,
        n_fatal=row.n_fatal if row.n_judged else None,
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


def view_link(view: SavedView) -> ViewLink:
    """A saved view as a link."""
    return ViewLink(
        name=safe_text(view.name),
        href=f"/rollouts?{view.query}" if view.query else "/rollouts",
        query=view.query,
        who=safe_text(view.who),
        drop_name=view.name,
    )


def group_row(
    name: str, members: Sequence[RolloutSummary], now: int, href: str = ""
) -> GroupRow:
    """One line of the grid, of a group that is here whole."""
    ordered = sorted(
        members, key=lambda row: (row.attempt is None, row.attempt or 0, row.created_us)
    )
    rewards = [row.reward for row in ordered if row.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    judged = [row.judgement for row in ordered if row.judgement is not None]
    supervised = sum(trained_tokens(row) or 0 for row in judged)
    generated = sum(row.generated_tokens for row in judged)
    length = sum(row.generated_tokens for row in ordered) / max(1, len(ordered))
    return GroupRow(
        name=name,
        href=href,
        samples=tuple(rollout_row(row, now) for row in ordered),
        n_samples=len(ordered),
        n_rewarded=len(rewards),
        reward_mean=mean,
        reward_text=words.reward_text(None if mean is None else round(mean, 2)),
        zero_variance=len(rewards) > 1 and min(rewards) == max(rewards),
        n_trainable=sum(row.trainable for row in judged),
        share=words.share(supervised, generated),
        share_text=words.percent(supervised, generated),
        n_fatal=sum(row.n_fatal for row in judged) if judged else None,
        n_warn=sum(row.n_warn for row in judged) if judged else None,
        length_mean=round(length),
    )

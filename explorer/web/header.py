"""The header that every tab of a rollout shows, verdict included.

Owns: `Header` and the frame of a rollout page.
Must not know: what a tab shows below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast
from urllib.parse import urlencode

from fastapi import Request

from explorer.access.people import Role
from explorer.access.policy import Kind
from explorer.export.judged import Judged
from explorer.records import Grade
from explorer.store.interface import RolloutSummary, Store
from explorer.store.remarks import Annotation
from explorer.trace.verdict import Judgement
from explorer.trace.versions import Line, rollout_versions
from explorer.web import words
from explorer.web.access import Access
from explorer.web.contexts import Crumb, Frame, Taking
from explorer.web.contexts_rollout import (
    Download,
    Header,
    LiveBar,
    Neighbours,
    Tab,
    Verdict,
)
from explorer.web.frames import frame, rollout_href, run_href
from explorer.web.gate import pass_of
from explorer.web.live import position_of
from explorer.web.permissions import answers, held_back
from explorer.web.pretty import safe_text
from explorer.web.timing import budget_rows
from explorer.web.version_words import rollout_words

TABS = (
    ("conversation", "Conversation"),
    ("tokens", "Tokens"),
    ("timing", "Timing"),
    ("requests", "Requests"),
    ("group", "Group"),
    ("provenance", "Provenance"),
    ("delta", "Trainer δ"),
    ("findings", "Findings"),
    ("notes", "Notes"),
    ("custody", "Custody"),
    ("access", "Access"),
)
NO_LINE = Line()
# Tabs that show one branch, so that a link between them keeps it.
BRANCH_TABS = frozenset({"conversation", "tokens"})


def rollout_frame(request: Request, judged: Judged, tab: str, last: str | None = None) -> Frame:
    """Title, breadcrumb line and twin of a tab."""
    rollout = judged.record.rollout
    short = words.short_id(rollout.rollout_id)
    crumbs = [Crumb("Runs", "/runs"), Crumb(rollout.run, run_href(rollout.run))]
    if last is None:
        crumbs.append(Crumb(f"rollout {short}", None))
    else:
        crumbs.append(Crumb(f"rollout {short}", rollout_href(rollout.rollout_id, "tokens")))
        crumbs.append(Crumb(last, None))
    label = dict(TABS)[tab]
    made = frame(
        request, title=f"{label} · rollout {short}", section="rollouts", crumbs=tuple(crumbs)
    )
    return replace(made, taking=_taking(request, made))


def _taking(request: Request, made: Frame) -> tuple[Taking, ...]:
    """What a reader who may not take everything may take, and how to ask for the rest."""
    held = pass_of(request)
    if held is None or held.place is None or held.caller.role >= Role.CURATOR:
        return ()
    access = cast("Access", request.app.state.access)
    _, found = answers(access, held.caller, held.place)
    under_grant = any(each.decision.grant_id for each in found)
    refusal = held_back(request, held.place.rollout_id) if under_grant else ""
    rows: list[Taking] = []
    for answer in found:
        kind = answer.question.rule.kind
        if kind is None:
            continue
        ask = f"/grants/new?rollout={held.place.rollout_id}&kind={kind.value}"
        if not held.caller.signed_in:
            ask = f"/sign-in?{urlencode({'next': ask})}"
        told = answer.decision.words
        label = "Ask for a grant" if held.caller.signed_in else "Sign in to ask"
        if answer.decision.waiting:
            ask, label = f"/grants/{answer.decision.waiting}", "Your request"
        allowed = answer.decision.allowed
        if allowed and refusal:
            allowed, told, label = False, refusal, "Findings"
            ask = rollout_href(held.place.rollout_id, "findings")
        rows.append(Taking(kind.value, allowed, safe_text(told), ask, label))
    return tuple(rows)


def members_of(store: Store, judged: Judged) -> tuple[RolloutSummary, ...]:
    """The samples this rollout is compared with, itself included."""
    rollout = judged.record.rollout
    if rollout.group is None and rollout.task is None:
        return ()
    return store.group_members(rollout.run, task=rollout.task, group=rollout.group)


def verdict_of(judgement: Judgement) -> Verdict:
    """The verdict in the words of the page; nothing here decides anything."""
    supervised, generated = judgement.supervised_tokens, judgement.generated_tokens
    n_calls = sum(mask.supervised > 0 for mask in judgement.masks.values())
    if judgement.trainable:
        text = (
            f"Trainable {supervised:,} of {generated:,} tokens · "
            f"{words.plural(n_calls, 'call')}"
        )
    else:
        text = f"Not trainable: {judgement.reasons[0].message}"
    return Verdict(
        trainable=judgement.trainable,
        text=text,
        supervised_tokens=supervised,
        generated_tokens=generated,
        n_calls=n_calls,
        reasons=tuple(reason.message for reason in judgement.reasons),
        notices=judgement.notices,
        href=rollout_href(judgement.rollout_id, "findings"),
    )


def outcome_words(judgement: Judgement) -> str:
    """How the rollout ended, in one word."""
    state = judgement.state
    if not state.closed:
        return "open"
    if state.ok is None:
        return "closed"
    return "finished" if state.ok else "failed"


def rollout_header(
    judged: Judged,
    tab: str,
    members: Sequence[RolloutSummary],
    branch: str | None = None,
    query: str = "",
    notes: Sequence[Annotation] = (),
    line: Line = NO_LINE,
) -> Header:
    """The header of one tab.

    Args:
        branch: the branch shown, kept by links to the other tabs that show one.
        query: view state that links to neighbours keep.
        notes: what people wrote; labels of the whole rollout become chips.
        line: the weights that ages are counted against.
    """
    rollout, judgement = judged.record.rollout, judged.judgement
    grades = [finding.grade for finding in judgement.findings]
    n_fatal, n_warn = grades.count(Grade.FATAL), grades.count(Grade.WARN)
    counts = {
        "requests": len(judged.record.calls),
        "findings": n_fatal + n_warn or None,
        "group": len(members) if len(members) > 1 else None,
        "notes": len(notes) or None,
    }
    state = judgement.state
    return Header(
        rollout_id=rollout.rollout_id,
        short_id=words.short_id(rollout.rollout_id),
        run=rollout.run,
        run_href=run_href(rollout.run),
        task=rollout.task,
        harness=rollout.harness,
        model=rollout.model or words.UNKNOWN,
        purpose=rollout.purpose.value,
        status="closed" if state.closed else "open",
        ok=state.ok,
        outcome=outcome_words(judgement),
        reward=state.reward,
        reward_text=words.reward_text(state.reward),
        verdict=verdict_of(judgement),
        n_fatal=n_fatal,
        n_warn=n_warn,
        tabs=_tabs(rollout.rollout_id, tab, branch, counts),
        neighbours=_neighbours(rollout.rollout_id, tab, members, query),
        group_href=rollout_href(rollout.rollout_id, "group"),
        downloads=_downloads(judgement, noted=bool(notes)),
        labels=_labels(notes),
        notes_href=rollout_href(rollout.rollout_id, "notes"),
        live=None if state.closed else _live(judged),
        hidden=_hidden(judged),
        weights=rollout_words(rollout_versions(judged.record.calls, judgement.masks, line)),
    )


def _tabs(
    rollout_id: str, current: str, branch: str | None, counts: Mapping[str, int | None]
) -> tuple[Tab, ...]:
    return tuple(
        Tab(
            name=name,
            label=label,
            href=rollout_href(rollout_id, name, branch=branch if name in BRANCH_TABS else None),
            count=counts.get(name),
            current=name == current,
        )
        for name, label in TABS
    )


def _labels(notes: Sequence[Annotation]) -> tuple[str, ...]:
    """Those of the whole rollout, each once."""
    found = (safe_text(each.label) for each in notes if each.label and each.call_id is None)
    return tuple(dict.fromkeys(found))


def _hidden(judged: Judged) -> str:
    return "" if judged.cover is None else "; ".join(judged.cover.told)


def _live(judged: Judged) -> LiveBar:
    rollout_id = judged.record.rollout.rollout_id
    position = str(position_of(judged.record))
    return LiveBar(
        href=rollout_href(rollout_id, "live", since=position),
        open_calls=len(judged.record.open_calls),
        budgets=tuple(
            f"{row.name} {row.used_text} of {row.limit_text}" + (", spent" if row.spent else "")
            for row in budget_rows(judged)
        ),
    )


def _neighbours(
    rollout_id: str, tab: str, members: Sequence[RolloutSummary], query: str
) -> Neighbours | None:
    names = [member.rollout_id for member in members]
    if len(names) < 2 or rollout_id not in names:
        return None
    at = [str(name) for name in names].index(rollout_id)

    def link(place: int) -> str | None:
        if not 0 <= place < len(names):
            return None
        href = rollout_href(names[place], tab)
        return f"{href}?{query}" if query else href

    return Neighbours(at + 1, len(names), link(at - 1), link(at + 1))


def _downloads(judgement: Judgement, *, noted: bool) -> tuple[Download, ...]:
    base = f"/api/v1/rollouts/{judgement.rollout_id}"
    # Word for word what the address answers.
    refused = " ".join(reason.message for reason in judgement.reasons)
    refused = f"Refused: {refused}" if refused else ""
    trace = Download(
        kind=Kind.TRAINING_TRACE.value,
        label="Training trace",
        href=f"{base}/training-trace",
        enabled=judgement.trainable,
        reason=refused,
        about="Ids, mask and logprobs of the calls that train, as JSON.",
    )
    audit = replace(
        trace,
        kind=Kind.CAPTURE_AUDIT.value,
        label="Capture audit",
        href=f"{base}/capture-audit",
        enabled=True,
        reason="",
        about="Every call with roles, masks and findings, whatever the verdict.",
    )
    if not noted:
        return (trace, audit)
    with_notes = replace(
        audit,
        label="Capture audit with notes",
        href=f"{base}/capture-audit?notes=1",
        about="The same, and what people wrote beside it.",
    )
    return (trace, audit, with_notes)

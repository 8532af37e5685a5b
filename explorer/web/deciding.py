"""What people decided about a rollout, and the form to decide more.

Owns: how decisions read on the page, and what the form offers.
Must not know: what a decision does to a mask, how it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping

from explorer.export.judged import Judged
from explorer.records import Override, Role
from explorer.web import words
from explorer.web.contexts import Choice
from explorer.web.contexts_tabs import DecisionForm, DecisionRow
from explorer.web.frames import rollout_href
from explorer.web.pretty import safe_text
from explorer.web.turn_tree import TurnTree

KIND_WORDS: dict[str, str] = {
    "exclude_call": "leave a call out of training",
    "exclude_span": "leave tokens of a call out of training",
    "role": "say what a call was for",
    "accept_versions": "accept that a call saw two weight versions",
    "accept_logprobs": "accept logprobs that are not certified",
}


def decision_rows(judged: Judged) -> tuple[DecisionRow, ...]:
    """Every recorded decision, the newest first."""
    labels = TurnTree(judged).labels
    rollout_id = judged.record.rollout.rollout_id
    rows = []
    for item in reversed(judged.record.overrides):
        href = None
        concerns = "the rollout"
        if item.call_id is not None:
            href = rollout_href(rollout_id, f"requests/{item.call_id}")
            concerns = f"turn {labels.get(item.call_id, words.short_id(item.call_id))}"
        rows.append(
            DecisionRow(
                what=_what(item),
                concerns=concerns + _tokens(item),
                call_href=href,
                who=safe_text(item.who),
                when=words.clock(item.time_us),
                reason=safe_text(item.reason),
            )
        )
    return tuple(rows)


def _what(item: Override) -> str:
    said = KIND_WORDS.get(item.kind, item.kind)
    return f"{said}: {item.role.value}" if item.role is not None else said


def _tokens(item: Override) -> str:
    if item.kind != "exclude_span" or item.start is None or item.end is None:
        return ""
    if item.end - item.start == 1:
        return f", token {item.start:,}"
    return f", tokens {item.start:,}–{item.end - 1:,}"


def decision_form(judged: Judged, query: Mapping[str, str]) -> DecisionForm:
    """The form, filled from the address where a link led here from a token or a call."""
    labels = TurnTree(judged).labels
    roles = judged.judgement.roles
    calls = [
        Choice(
            str(call.call_id),
            f"turn {labels[call.call_id]} · {roles[call.call_id].role.value} · "
            f"{call.completion_len or 0} sampled",
        )
        for call in judged.record.calls
        if call.call_id in labels and call.call_id in roles
    ]
    start, end = query.get("start", ""), query.get("end", "")
    spans = start.isdecimal() and end.isdecimal()
    chosen = query.get("call", "")
    default = "exclude_span" if spans else "exclude_call"
    kind = query.get("kind", default)
    return DecisionForm(
        action=rollout_href(judged.record.rollout.rollout_id, "overrides"),
        kinds=tuple(Choice(name, text) for name, text in KIND_WORDS.items()),
        kind=kind if kind in KIND_WORDS else default,
        calls=tuple(calls),
        call=chosen if any(choice.value == chosen for choice in calls) else "",
        roles=tuple(Choice(role.value, role.value) for role in Role),
        start=start if spans else "",
        end=end if spans else "",
    )

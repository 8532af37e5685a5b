"""Builds the group tab: the samples of one task, and where each parts from the one at hand.

Owns: which samples are compared with the one at hand. Must not know: HTML, HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from explorer.export.judged import Judged
from explorer.store.interface import RolloutSummary
from explorer.web import words
from explorer.web.compare import Member, compare_href, member, pair
from explorer.web.contexts import Choice, Frame
from explorer.web.contexts_compare import GroupPair
from explorer.web.contexts_rollout import Header
from explorer.web.contexts_tabs import GroupPage
from explorer.web.lists import group_row, now_us
from explorer.web.services import Services

# Each sibling is judged and put together from its ids; more would keep a reader waiting.
MOST_SIBLINGS: Final = 7


def siblings(rollout_id: str, members: Sequence[RolloutSummary]) -> list[RolloutSummary]:
    """The other samples nearest to the one at hand, in the order of the group."""
    ids = [str(each.rollout_id) for each in members]
    if rollout_id not in ids:
        return []
    at = ids.index(rollout_id)
    near = sorted(range(len(members)), key=lambda place: abs(place - at))
    chosen = sorted(place for place in near if place != at)
    if len(chosen) > MOST_SIBLINGS:
        chosen = sorted([place for place in near if place != at][:MOST_SIBLINGS])
    return [members[place] for place in chosen]


def group_page(
    services: Services,
    frame: Frame,
    header: Header,
    judged: Sequence[Judged],
    members: Sequence[RolloutSummary],
) -> GroupPage:
    """The samples this rollout is compared with; the first of `judged` is the one at hand."""
    rollout = judged[0].record.rollout
    name = rollout.group or rollout.task or "(no task given)"
    row = group_row(name, list(members), now_us())
    here = member(services, judged[0], "this")
    others = [member(services, each, _label(each)) for each in judged[1:]]
    return GroupPage(
        frame=frame,
        header=header,
        name=name,
        rows=row.samples,
        current=rollout.rollout_id,
        n_rewarded=row.n_rewarded,
        mean_text=row.reward_text,
        zero_variance=row.zero_variance,
        samples=tuple(
            Choice(
                each.rollout_id,
                f"{'' if each.attempt is None else f'#{each.attempt} '}"
                f"{each.short_id} · {each.reward_text}",
            )
            for each in row.samples
        ),
        pairs=tuple(_pair(here, other) for other in others),
        uncompared=max(0, len(members) - 1 - len(others)),
    )


def _label(judged: Judged) -> str:
    rollout = judged.record.rollout
    attempt = "" if rollout.attempt is None else f"#{rollout.attempt} "
    return f"{attempt}{words.short_id(rollout.rollout_id)}"


def _pair(here: Member, other: Member) -> GroupPair:
    return GroupPair(
        rollout_id=other.rollout_id,
        label=other.name,
        reward_text=words.reward_text(other.judged.judgement.state.reward),
        href=compare_href([here.rollout_id, other.rollout_id]),
        pair=pair(here, other),
    )

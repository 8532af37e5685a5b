"""Grants: a person's dated, counted, revocable right to take something.

Owns: the records of grants, what state they are in, whom and what they cover.
Must not know: HTTP, where they are kept, the policy they feed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from explorer.access.people import Caller
from explorer.access.policy import GrantFacts, Kind

DAY_US = 24 * 3600 * 1_000_000
# Another request for the same document within this time is the same use.
SAME_USE_US = 3600 * 1_000_000


class State(StrEnum):
    """Where a grant stands; `expired` and `spent` follow from the clock and the uses."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    REVOKED = "revoked"
    EXPIRED = "expired"
    SPENT = "spent"


class SubjectKind(StrEnum):
    """Whom a grant names."""

    PERSON = "person"
    ORGANISATION = "organisation"
    HUB_GATE = "hub_gate"


class ObjectKind(StrEnum):
    """What a grant covers."""

    ROLLOUTS = "rollouts"
    RUN = "run"
    VIEW = "view"
    DATASET = "dataset"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for or given, before anybody decided.

    Attributes:
        subject: `<provider>:<sub>`, `<provider>:org:<sub>` or `<namespace>/<dataset>`.
        objects: ids of rollouts, or one name of a run, view or dataset.
        purpose: what it is for, in the words of who asks.
    """

    subject_kind: SubjectKind
    subject: str
    subject_name: str
    object_kind: ObjectKind
    objects: tuple[str, ...]
    kinds: tuple[Kind, ...]
    purpose: str


@dataclass(frozen=True, slots=True)
class Terms:
    """Until when (microseconds since the epoch) and how many times; None: no limit."""

    expires_us: int | None = None
    max_uses: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened to a grant."""

    state: State
    who: str
    reason: str
    time_us: int
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Use:
    """One use: the first byte of one document."""

    use_id: str
    subject: str
    rollout_id: str
    kind: Kind
    time_us: int


@dataclass(frozen=True, slots=True)
class Grant:
    """One grant with everything that happened to it."""

    grant_id: str
    created_us: int
    wanted: Wanted
    asked_by: str
    steps: tuple[Step, ...]
    uses: tuple[Use, ...] = ()

    @property
    def terms(self) -> Terms:
        """What the approval allowed; no limits where it was never approved."""
        for step in reversed(self.steps):
            if step.state is State.APPROVED:
                return step.terms
        return Terms()

    def state(self, now_us: int) -> State:
        """Where it stands at a time; the limits bind only what was approved."""
        state = self.steps[-1].state
        if state is not State.APPROVED:
            return state
        terms = self.terms
        if terms.expires_us is not None and now_us >= terms.expires_us:
            return State.EXPIRED
        if terms.max_uses is not None and len(self.uses) >= terms.max_uses:
            return State.SPENT
        return State.APPROVED

    def same_use(self, subject: str, rollout_id: str, kind: Kind, now_us: int) -> Use | None:
        """The use that a request resumes, if it does."""
        for use in reversed(self.uses):
            if now_us - use.time_us >= SAME_USE_US:
                return None
            if (use.subject, use.rollout_id, use.kind) == (subject, rollout_id, kind):
                return use
        return None

    def names(self, caller: Caller, gates: Collection[str] = ()) -> bool:
        """Whether it names `caller`, who passed these Hub `gates` just now."""
        if caller.person is None:
            return False
        wanted = self.wanted
        if wanted.subject_kind is SubjectKind.PERSON:
            return wanted.subject == caller.person.subject
        if wanted.subject_kind is SubjectKind.ORGANISATION:
            provider = caller.person.provider
            return any(
                wanted.subject == f"{provider}:org:{each.subject}"
                for each in caller.person.memberships
            )
        return wanted.subject in gates

    def covers(self, rollout_id: str, run: str, views: Collection[str]) -> bool:
        """Whether it covers a rollout of `run` that these `views` match."""
        wanted = self.wanted
        if wanted.object_kind is ObjectKind.ROLLOUTS:
            return rollout_id in wanted.objects
        if wanted.object_kind is ObjectKind.RUN:
            return run in wanted.objects
        if wanted.object_kind is ObjectKind.VIEW:
            return any(name in views for name in wanted.objects)
        return False


@dataclass(frozen=True, slots=True)
class Place:
    """A rollout as grants see it."""

    rollout_id: str
    run: str
    views: frozenset[str] = frozenset()


def facts(
    grants: Iterable[Grant],
    caller: Caller,
    place: Place,
    kind: Kind | None,
    now_us: int,
    gates: Collection[str] = (),
) -> GrantFacts:
    """What some grants say about `caller` and a rollout.

    Of several that allow it, one that is in use already is used on; else the one that ends
    last is spent first among those without a count, so that counted ones are kept. `grants`
    come the newest first.
    """
    sees, why_not, waiting = False, "", ""
    usable: list[Grant] = []
    for grant in grants:
        if not grant.names(caller, gates):
            continue
        if not grant.covers(place.rollout_id, place.run, place.views):
            continue
        state = grant.state(now_us)
        resumed = _resumes(grant, caller, place, kind, now_us)
        if state is State.APPROVED or (state is State.SPENT and resumed):
            sees = True
            if kind is not None and kind in grant.wanted.kinds:
                usable.append(grant)
            continue
        if state is State.SPENT:
            # Looking is not taking: a spent grant still lets its holder see the pages.
            sees = True
        # What waits says more than what is over; else the newest counts.
        concerns = kind is None or kind in grant.wanted.kinds
        if state is State.PENDING and concerns:
            waiting = waiting or grant.grant_id
            why_not = _why_not(grant, state)
        elif not waiting and concerns:
            why_not = why_not or _why_not(grant, state)
    usable.sort(key=partial(_preference, caller, place, kind, now_us))
    return GrantFacts(usable[0].grant_id if usable else "", sees, why_not, waiting)


def _resumes(
    grant: Grant, caller: Caller, place: Place, kind: Kind | None, now_us: int
) -> bool:
    if kind is None:
        return False
    return grant.same_use(caller.subject, place.rollout_id, kind, now_us) is not None


def _preference(
    caller: Caller, place: Place, kind: Kind | None, now_us: int, grant: Grant
) -> tuple[bool, bool, int, int]:
    terms = grant.terms
    ends = terms.expires_us if terms.expires_us is not None else 2**62
    resumes = _resumes(grant, caller, place, kind, now_us)
    return (not resumes, terms.max_uses is not None, -ends, grant.created_us)


def _why_not(grant: Grant, state: State) -> str:
    last = grant.steps[-1]
    if state is State.PENDING:
        return f"your request {grant.grant_id} waits for a decision"
    if state is State.REJECTED:
        return f"your request {grant.grant_id} was rejected: {last.reason}"
    if state is State.REVOKED:
        return f"your grant {grant.grant_id} was revoked: {last.reason}"
    if state is State.EXPIRED:
        return f"your grant {grant.grant_id} has expired"
    return f"your grant {grant.grant_id} was used as often as it allows"

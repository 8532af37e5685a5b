"""What a listing is asked and answers: filters, orders, pages, facets and groups.

Owns: the frozen records of listings. Must not know: SQL, addresses, words for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from explorer.records import Purpose, RolloutId

# Ids of the rollouts that a reader may see; None: all of them.
Within = frozenset[RolloutId] | None


class RolloutStatus(StrEnum):
    """A rollout's state as its event rows give it."""

    OPEN = "open"
    CLOSED = "closed"
    DELETED = "deleted"


class SortKey(StrEnum):
    """What a listing of rollouts is ordered by; the rollout id breaks ties.

    A rollout that has no value of the key comes last in both directions.
    """

    CREATED = "created"
    REWARD = "reward"
    CALLS = "calls"
    FAILED = "failed"
    TOKENS = "tokens"
    SUPERVISED = "supervised"
    SHARE = "share"
    FINDINGS = "findings"
    VERSION = "version"
    STALE = "stale"
    DELTA_P99 = "delta_p99"
    DELTA_OUTSIDE = "delta_outside"
    RUN = "run"
    TASK = "task"
    GROUP = "group"
    HARNESS = "harness"
    MODEL = "model"


class Field(StrEnum):
    """What a term of a filter reads; META reads one key of the rollout's metadata."""

    ID = "id"
    RUN = "run"
    TASK = "task"
    GROUP = "group"
    ATTEMPT = "attempt"
    HARNESS = "harness"
    MODEL = "model"
    PURPOSE = "purpose"
    STATE = "state"
    OK = "ok"
    TRAINABLE = "trainable"
    REASON = "reason"
    FINDINGS = "findings"
    REWARD = "reward"
    SHARE = "share"
    CALLS = "calls"
    FAILED = "failed"
    TOKENS = "tokens"
    SUPERVISED = "supervised"
    VERSION = "version"
    STALE = "stale"
    DELTA_P99 = "delta_p99"
    DELTA_OUTSIDE = "delta_outside"
    CROSSED = "crossed"
    CREATED = "created"
    LABEL = "label"
    META = "meta"


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between two bounds; None is open, `*_open` leaves the bound itself out."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: the field has any of `values`, or none of them when `negated`.

    None among the values is "there is no value". ``key`` is the metadata key of META.
    """

    field: Field
    values: tuple[str | Range | None, ...]
    negated: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True)
class JudgementRow:
    """The summary of one verdict, kept so that a listing need not judge again.

    Derived, never a source: the verdict is computed again wherever it decides.
    """

    rollout_id: RolloutId
    inputs_sha256: str
    policy: str
    time_us: int
    trainable: bool
    supervised_tokens: int
    generated_tokens: int
    n_calls: int
    n_fatal: int
    n_warn: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Filters, order and page of a listing.

    All ``terms`` must hold. ``text`` is a case-insensitive substring of the rollout id,
    run, task, group, harness or model. Fields of the verdict read the latest judgement; a
    rollout without one has no value there. Deleted rollouts are listed only where a term
    asks for their state. ``cursor`` is opaque and belongs to one order. ``within``, where it
    is given, holds the ids of all rollouts that may be seen; there are no others then.
    """

    terms: tuple[Term, ...] = ()
    text: str | None = None
    sort: SortKey = SortKey.CREATED
    descending: bool = True
    cursor: str | None = None
    limit: int = 50
    within: Within = None


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """One line of a listing. ``n_calls`` counts every ended call; ``n_failed`` those
    that failed, aborted or were refused; ``generated_tokens`` sums completions.

    ``version_low`` and ``version_high`` span the weight versions that its calls began or
    ended with, ``n_crossed`` counts calls that ended under another than they began with.
    ``behind``: how many versions the oldest is behind the one announced last; None where it
    is not known, or where the weights went back since."""

    rollout_id: RolloutId
    run: str
    task: str | None
    group: str | None
    attempt: int | None
    purpose: Purpose
    harness: str | None
    model: str
    created_us: int
    status: RolloutStatus
    closed_us: int | None
    reward: float | None
    ok: bool | None
    n_calls: int
    n_failed: int
    generated_tokens: int
    judgement: JudgementRow | None = None
    version_low: int | None = None
    version_high: int | None = None
    n_crossed: int = 0
    behind: int | None = None
    delta_p99: float | None = None
    delta_outside: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """One page of a listing; a cursor is None where nothing more is to be had.

    ``before`` counts the matches in front of the first row.
    """

    rows: tuple[RolloutSummary, ...]
    total: int
    before: int = 0
    next_cursor: str | None = None
    previous_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class FacetCount:
    """How many rollouts have a value; None: those that have none."""

    value: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Facet:
    """The commonest values of a field within a filter; ``more`` says that some are cut."""

    name: str
    counts: tuple[FacetCount, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run: its rollouts counted, without the deleted ones.

    ``supervised_tokens`` are those of rollouts judged trainable, ``judged_tokens`` the
    sampled tokens of all that were judged.
    """

    run: str
    n_rollouts: int
    n_open: int
    n_trainable: int
    n_calls: int
    generated_tokens: int
    reward_mean: float | None
    n_rewarded: int
    first_created_us: int
    last_created_us: int
    supervised_tokens: int = 0
    n_fatal: int = 0
    n_warn: int = 0
    n_judged: int = 0
    judged_tokens: int = 0


class GroupSort(StrEnum):
    """What the groups of a run are ordered by; their name breaks ties."""

    NAME = "name"
    REWARD = "reward"
    VARIANCE = "variance"
    FINDINGS = "findings"
    LENGTH = "length"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class GroupPart:
    """Which groups of a run, in which order."""

    sort: GroupSort
    descending: bool
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The rollouts of a run that share a group (else a task), counted.

    ``name`` is None for those that have neither. ``members`` are its first rollouts by
    attempt; ``n_rollouts`` counts all.
    """

    name: str | None
    n_rollouts: int
    n_rewarded: int
    reward_mean: float | None
    reward_low: float | None
    reward_high: float | None
    n_trainable: int
    n_judged: int
    supervised_tokens: int
    judged_tokens: int
    n_fatal: int
    n_warn: int
    length_mean: float
    members: tuple[RolloutSummary, ...] = ()

    @property
    def zero_variance(self) -> bool:
        """Two or more rewards, all equal: nothing to learn by comparison."""
        return self.n_rewarded > 1 and self.reward_low == self.reward_high


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Some groups of a run."""

    groups: tuple[GroupSummary, ...]
    total: int
    n_zero_variance: int


@dataclass(frozen=True, slots=True)
class RunSpread:
    """Every reward and every length (sampled tokens) of a run's rollouts."""

    rewards: tuple[float, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One rollout of a run as its charts read it, in the order of creation.

    ``step`` is the whole number under `global_step` in its metadata. ``versions`` holds, for
    each weight version that its committed calls sampled under, the sampled tokens; None:
    untold, or a call that ended under another version than it began with.
    """

    rollout_id: RolloutId
    created_us: int
    step: int | None
    open: bool
    reward: float | None
    length: int
    cohort: str | None
    versions: tuple[tuple[int | None, int], ...] = ()

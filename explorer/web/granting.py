"""Asking for, giving and deciding grants: what comes in, checked, and what goes out.

Owns: fields of requests and decisions about grants, who may ask for what, and the JSON shape
of a grant. Must not know: routes, pages, rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from explorer.access.grants import (
    DAY_US,
    Grant,
    ObjectKind,
    State,
    SubjectKind,
    Terms,
    Wanted,
)
from explorer.access.people import OPERATOR_SUBJECT, Caller, Role
from explorer.access.policy import Kind, Level
from explorer.errors import InvalidValue, NotFound
from explorer.records import RolloutId
from explorer.web.access import Access
from explorer.web.api_requests import only, text

MOST_OBJECTS = 500
MOST_LETTERS = 2000
MOST_DAYS = 3650
DEFAULT_DAYS = 7
DEFAULT_USES = 500
_PERSON = re.compile(r"[a-z][a-z0-9-]{0,30}:(?!org:)\S{1,200}")
_ORGANISATION = re.compile(r"[a-z][a-z0-9-]{0,30}:org:\S{1,200}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DATASET = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_ASKED = {"rollouts", "run", "view", "dataset", "kinds", "purpose"}
_GIVEN = _ASKED | {"subject", "subject_name", "expires_days", "expires", "max_uses"}
_DECIDED = {"reason", "expires_days", "expires", "max_uses"}
_FORMS = {
    SubjectKind.PERSON: _PERSON,
    SubjectKind.ORGANISATION: _ORGANISATION,
}


@dataclass(frozen=True, slots=True)
class Decided:
    """How somebody decided."""

    reason: str
    terms: Terms


def read_wanted(body: Mapping[str, Any], caller: Caller) -> tuple[Wanted, bool]:
    """What is asked for, and whether it is given at once (an operator names a subject).

    Raises:
        InvalidValue: names the field.
    """
    gives = caller.role >= Role.OPERATOR and body.get("subject") is not None
    only(body, _GIVEN if gives else _ASKED)
    object_kind, objects = _objects(body)
    kinds = _kinds(body)
    if (object_kind is ObjectKind.DATASET) != (kinds == (Kind.PUBLISH,)):
        raise InvalidValue(
            "a `dataset` goes with the kind `publish` alone, and `publish` with a `dataset`",
            path="$.kinds",
        )
    purpose = _words(body, "purpose")
    if gives:
        kind, subject = _subject(str(body["subject"]))
        name = text(body, "subject_name") or subject
        if kind is SubjectKind.HUB_GATE and object_kind is ObjectKind.DATASET:
            raise InvalidValue(
                "publishing is for persons and organisations: whoever passes a gate only reads",
                path="$.subject",
            )
    else:
        if caller.person is None:
            raise InvalidValue(
                "name the `subject` who gets the grant: `provider:sub` of a person, "
                "`provider:org:sub` of an organisation, or `hub:namespace/dataset`",
                path="$.subject",
            )
        kind, subject = SubjectKind.PERSON, caller.person.subject
        name = caller.person.name or subject
    return Wanted(kind, subject, name, object_kind, objects, kinds, purpose), gives


def _subject(given: str) -> tuple[SubjectKind, str]:
    if given.startswith("hub:"):
        dataset = given.removeprefix("hub:")
        if not _DATASET.fullmatch(dataset):
            raise InvalidValue(
                "`subject` after `hub:` is `namespace/dataset`", path="$.subject"
            )
        return SubjectKind.HUB_GATE, dataset
    for kind, form in _FORMS.items():
        if form.fullmatch(given):
            return kind, given
    raise InvalidValue(
        "`subject` is `provider:sub` of a person (their account page shows it), "
        "`provider:org:sub` of an organisation, or `hub:namespace/dataset` for whoever passes "
        "that dataset's gate",
        path="$.subject",
    )


def _objects(body: Mapping[str, Any]) -> tuple[ObjectKind, tuple[str, ...]]:
    named = [kind for kind in ObjectKind if body.get(kind.value) not in (None, "", [])]
    if len(named) != 1:
        raise InvalidValue(
            "name one of `rollouts` (a list of ids), `run`, `view` or `dataset`",
            path="$.rollouts",
        )
    kind = named[0]
    value = body[kind.value]
    if kind is ObjectKind.ROLLOUTS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidValue("`rollouts` is a list of rollout ids", path="$.rollouts")
        ids = tuple(dict.fromkeys(value))
        if len(ids) > MOST_OBJECTS:
            raise InvalidValue(
                f"`rollouts` names at most {MOST_OBJECTS}; name a run or a view instead",
                path="$.rollouts",
            )
        for item in ids:
            if not _ID.fullmatch(item):
                raise NotFound(f"there is no rollout {item[:80]!r}")
        return kind, ids
    if not isinstance(value, str) or len(value) > 200:
        raise InvalidValue(f"`{kind.value}` is a name", path=f"$.{kind.value}")
    if kind is ObjectKind.DATASET and not _DATASET.fullmatch(value):
        raise InvalidValue("`dataset` is `namespace/name` on the Hub", path="$.dataset")
    return kind, (value,)


def _kinds(body: Mapping[str, Any]) -> tuple[Kind, ...]:
    given = body.get("kinds")
    if isinstance(given, str):
        given = [given]
    known = ", ".join(f"`{kind.value}`" for kind in Kind)
    if not isinstance(given, list) or not given:
        raise InvalidValue(f"`kinds` is a list of {known}", path="$.kinds")
    try:
        return tuple(dict.fromkeys(Kind(item) for item in given))
    except ValueError as error:
        raise InvalidValue(f"`kinds` may be {known}", path="$.kinds") from error


def _words(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(f"`{name}` says in words what it is for or why", path=f"$.{name}")
    if len(value) > MOST_LETTERS:
        raise InvalidValue(
            f"`{name}` has {len(value):,} letters; at most {MOST_LETTERS:,} are kept",
            path=f"$.{name}",
        )
    return value.strip()


def read_decision(
    body: Mapping[str, Any], state: State, now_us: int, *, given: bool = False
) -> Decided:
    """How a person decides, with the terms of an approval.

    Raises:
        InvalidValue: names the field.
    """
    if not given:
        only(body, _DECIDED if state is State.APPROVED else {"reason"})
    if state is not State.APPROVED:
        return Decided(_words(body, "reason"), Terms())
    said = body.get("reason")
    reason = _words(body, "reason") if said else ""
    return Decided(reason, read_terms(body, now_us))


def read_terms(body: Mapping[str, Any], now_us: int) -> Terms:
    """Until when and how often; the defaults where nothing is said, none for `null`.

    Raises:
        InvalidValue: names the field.
    """
    uses = body.get("max_uses", DEFAULT_USES)
    if uses is not None and (type(uses) is not int or not 1 <= uses <= 1_000_000):
        raise InvalidValue(
            "`max_uses` is a number from 1 to 1,000,000, or null for no limit",
            path="$.max_uses",
        )
    if body.get("expires") is not None:
        return Terms(_moment(body["expires"], now_us), uses)
    days = body.get("expires_days", DEFAULT_DAYS)
    if days is None:
        return Terms(None, uses)
    if isinstance(days, bool) or not isinstance(days, (int, float)):
        raise InvalidValue("`expires_days` is a number of days", path="$.expires_days")
    if not 0 < days <= MOST_DAYS:
        raise InvalidValue(
            f"`expires_days` is more than 0 and at most {MOST_DAYS}, or null for no end",
            path="$.expires_days",
        )
    return Terms(now_us + int(days * DAY_US), uses)


def _moment(given: Any, now_us: int) -> int:
    try:
        moment = datetime.fromisoformat(str(given))
    except ValueError as error:
        raise InvalidValue(
            "`expires` is a time such as 2030-01-31T12:00:00Z", path="$.expires"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    found = int(moment.timestamp() * 1_000_000)
    if found <= now_us:
        raise InvalidValue("`expires` is past already", path="$.expires")
    if found > now_us + MOST_DAYS * DAY_US:
        raise InvalidValue(
            f"`expires` is at most {MOST_DAYS} days from now, or null for no end",
            path="$.expires",
        )
    return found


def check_asked(access: Access, caller: Caller, wanted: Wanted) -> None:
    """Whether the objects are there for this caller: what is private is not, except for
    who sees everything. They may also name a run or a view that is yet to come.

    Raises:
        NotFound: one of them is not.
    """
    reach, all_seen = access.reach, caller.role >= Role.CURATOR
    if wanted.object_kind is ObjectKind.ROLLOUTS:
        for item in wanted.objects:
            place = reach.place(RolloutId(item))
            if place is None or (not all_seen and reach.holds(place).level is Level.PRIVATE):
                raise NotFound(f"there is no rollout {item}")
        return
    if all_seen:
        return
    name = wanted.objects[0]
    if wanted.object_kind is ObjectKind.RUN and not reach.askable_run(name):
        raise NotFound(f"there is no run {name!r} that one may ask for")
    if wanted.object_kind is ObjectKind.VIEW and not reach.askable_view(name):
        raise NotFound(f"there is no view {name!r} that one may ask for")


def may_read_grant(caller: Caller, grant: Grant) -> bool:
    """Operators read every grant, others those that name them or that they asked for."""
    if caller.role >= Role.OPERATOR:
        return True
    return grant.asked_by == caller.subject or grant.names(caller)


def visible_grants(access: Access, caller: Caller) -> tuple[Grant, ...]:
    """The grants that a caller may read, the newest first."""
    return tuple(each for each in access.grants.all if may_read_grant(caller, each))


def grant_json(grant: Grant, now_us: int, caller: Caller) -> dict[str, Any]:
    """A grant as the API gives it; who decided is for operators."""
    wanted, terms = grant.wanted, grant.terms
    return {
        "grant_id": grant.grant_id,
        "state": grant.state(now_us).value,
        "subject_kind": wanted.subject_kind.value,
        "subject": wanted.subject,
        "subject_name": wanted.subject_name,
        "object_kind": wanted.object_kind.value,
        "objects": list(wanted.objects),
        "kinds": [kind.value for kind in wanted.kinds],
        "purpose": wanted.purpose,
        "asked_by": told_who(grant.asked_by, caller),
        "created_us": grant.created_us,
        "expires_us": terms.expires_us,
        "max_uses": terms.max_uses,
        "uses": len(grant.uses),
        "steps": [
            {
                "state": step.state.value,
                "who": told_who(step.who, caller),
                "reason": step.reason,
                "time_us": step.time_us,
            }
            for step in grant.steps
        ],
    }


def told_who(who: str, caller: Caller) -> str:
    """Who did something about a grant: told to those who decide, and to themselves."""
    knows = caller.role >= Role.OPERATOR or who == caller.subject
    return who if knows else OPERATOR_SUBJECT


_KIND_NAMES = {
    Kind.TRAINING_TRACE: "Training trace",
    Kind.CAPTURE_AUDIT: "Capture audit",
    Kind.RAW: "raw bodies",
    Kind.PUBLISH: "publishing",
}


def kind_words(kinds: Sequence[Kind]) -> str:
    """The kinds in words."""
    return ", ".join(_KIND_NAMES[kind] for kind in kinds)

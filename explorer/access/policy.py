"""The one policy: who may do what, and which rule says so. Pure.

Owns: levels of visibility, actions, kinds of documents, and the decision over them with the
name of the rule that made it. Must not know: HTTP, routes, the database, the clock.

Every surface asks here, so a page, its button, its twin, the API and the exporter cannot
disagree, and the permission page can show the same decision that a route will make.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from explorer.access.people import Caller, How, Role, Scope


class Level(StrEnum):
    """Who may see a rollout's pages. From the most open to the most closed."""

    PUBLIC = "public"
    SIGNED_IN = "signed-in"
    GRANTED = "granted"
    PRIVATE = "private"


CLOSEDNESS = {level: place for place, level in enumerate(Level)}
LEVEL_WORDS = {
    Level.PUBLIC: "anybody may look",
    Level.SIGNED_IN: "anybody who signed in may look",
    Level.GRANTED: "whoever holds a grant may look",
    Level.PRIVATE: "curators and operators only; no grant reaches it",
}


class Kind(StrEnum):
    """What a grant allows somebody to take, or to publish."""

    TRAINING_TRACE = "training_trace"
    CAPTURE_AUDIT = "capture_audit"
    RAW = "raw"
    PUBLISH = "publish"


class Action(StrEnum):
    """What a route does, as far as leave is concerned."""

    OPEN = "open"  # asks for nothing: it tells nothing about any rollout
    LIST = "list"  # shows many rollouts: those that the caller may see
    SEE = "see"  # shows one rollout
    TAKE = "take"  # hands out a whole document of one rollout
    OWN = "own"  # the caller's own account
    ASK = "ask"  # asks for a grant
    PUBLISH = "publish"  # writes or publishes a dataset of rollouts that the caller may see
    CURATE = "curate"  # writes what people decided or noted
    DECIDE = "decide"  # says who may see and take what; reads the audit log
    OPERATE = "operate"  # everything else that changes the server or reads all of it


@dataclass(frozen=True, slots=True)
class Rule:
    """What a route needs.

    Attributes:
        changes: the route changes something, so the request must come from a page of this
            server or carry a token.
        kind: of the document that is taken.
    """

    action: Action
    changes: bool = False
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class GrantFacts:
    """What grants say about one caller and one object.

    Attributes:
        grant_id: a grant that may be used for the wanted kind now.
        sees: some grant of any kind may be used now, so that the pages may be seen.
        why_not: why no grant may be used, where there was one.
        waiting: a request of the caller's that nobody has decided about.
    """

    grant_id: str = ""
    sees: bool = False
    why_not: str = ""
    waiting: str = ""


NO_GRANT = GrantFacts()


@dataclass(frozen=True, slots=True)
class Decision:
    """Allowed or not, by which rule, and in words.

    Attributes:
        rule: a stable name, documented with the access rules.
        code: of the error, where it is refused.
        grant_id: which grant is to be spent.
        waiting: a request that waits for a decision, where it is refused.
    """

    allowed: bool
    rule: str
    words: str
    code: str = ""
    grant_id: str = ""
    waiting: str = ""


# Every rule there is, in the words of the reference page.
RULES = {
    "open": "Asks for nothing.",
    "role_operator": "An operator may do everything.",
    "role_curator": "A curator may see and take everything, label, override and publish.",
    "own_account": "Whoever signed in looks after their own account.",
    "may_ask": "Whoever signed in may ask for a grant.",
    "may_publish": "Whoever signed in may ask; the dataset that is named decides.",
    "narrowed": "A list shows those rollouts that the caller may see.",
    "level_public": "The rollout is public.",
    "level_signed_in": "The rollout may be seen by whoever signed in.",
    "grant": "A grant that stands allows it.",
    "no_credentials": "A program on this machine must show a token to change something.",
    "scope_missing": "The API token was not made for this.",
    "not_signed_in": "Nobody is signed in, and this needs somebody who is.",
    "role_missing": "It takes a role that the caller has not.",
    "not_there": "There is no such rollout, or it is private.",
    "grant_missing": "It takes a grant, and the caller holds none that stands.",
    "no_rule": "The route has no rule; nobody may use it until it has one.",
}

_SCOPES = {
    Action.LIST: Scope.READ,
    Action.SEE: Scope.READ,
    Action.OWN: Scope.READ,
    Action.ASK: Scope.READ,
    Action.TAKE: Scope.DOWNLOAD,
    Action.PUBLISH: Scope.DOWNLOAD,
    Action.CURATE: Scope.CURATE,
    Action.DECIDE: Scope.OPERATE,
    Action.OPERATE: Scope.OPERATE,
}
_ROLES = {
    Action.CURATE: Role.CURATOR,
    Action.DECIDE: Role.OPERATOR,
    Action.OPERATE: Role.OPERATOR,
}
_KIND_WORDS = {
    Kind.TRAINING_TRACE: "the Training trace",
    Kind.CAPTURE_AUDIT: "the Capture audit",
    Kind.RAW: "raw bodies",
    Kind.PUBLISH: "publishing",
}


def decide(
    caller: Caller,
    rule: Rule,
    level: Level | None = None,
    grants: GrantFacts = NO_GRANT,
) -> Decision:
    """Whether `caller` may do what `rule` names.

    Args:
        level: of the rollout that is asked for; None where there is none of that id.
        grants: of the caller on that rollout.
    """
    if rule.action is Action.OPEN:
        return _yes("open")
    narrowed = _narrowed(caller, rule)
    if narrowed is not None:
        return narrowed
    if rule.action in (Action.SEE, Action.TAKE):
        return _about_rollout(caller, rule, level, grants)
    if rule.action is Action.LIST:
        return _yes("narrowed") if caller.role < Role.CURATOR else _by_role(caller)
    if rule.action in (Action.OWN, Action.ASK):
        if not caller.signed_in:
            return _sign_in("this page is about your own account")
        return _yes("own_account" if rule.action is Action.OWN else "may_ask")
    if rule.action is Action.PUBLISH:
        if not caller.signed_in:
            return _sign_in("publishing a dataset needs somebody who does it")
        return _by_role(caller) if caller.role >= Role.CURATOR else _yes("may_publish")
    needed = _ROLES[rule.action]
    if caller.role >= needed:
        return _by_role(caller)
    if not caller.signed_in:
        return _sign_in(f"this needs the role `{needed.word}`")
    return Decision(
        False,
        "role_missing",
        f"this needs the role `{needed.word}`, and {caller.name or caller.subject} is "
        f"`{caller.role.word}`; an operator can give it",
        "role_needed",
    )


def _narrowed(caller: Caller, rule: Rule) -> Decision | None:
    """What the way a request came in forbids, whatever its role allows."""
    if rule.changes and not caller.may_change and caller.how is How.LOOPBACK:
        return Decision(
            False,
            "no_credentials",
            "this route needs the operator's token: send `Authorization: Bearer <token>` "
            "with ROLLOUT_EXPLORER_ADMIN_TOKEN, or the token printed at start",
            "admin_token_needed",
        )
    if caller.scopes is None:
        return None
    wanted = _SCOPES[rule.action]
    # An account is changed by its owner in a browser: a token must not make more of itself.
    if rule.action is Action.OWN and rule.changes:
        wanted = Scope.OPERATE
    if wanted in caller.scopes:
        return None
    return Decision(
        False,
        "scope_missing",
        f"this API token was not made for `{wanted.value}`; make one that is at /account",
        "scope_needed",
    )


def _about_rollout(
    caller: Caller, rule: Rule, level: Level | None, grants: GrantFacts
) -> Decision:
    if level is None:
        return _not_there()
    if caller.role >= Role.CURATOR:
        return _by_role(caller)
    if level is Level.PRIVATE:
        return _not_there()
    seen = _seen(caller, level, grants)
    if rule.action is Action.SEE:
        return seen
    if grants.grant_id:
        return Decision(True, "grant", RULES["grant"], grant_id=grants.grant_id)
    what = _KIND_WORDS[rule.kind] if rule.kind is not None else "this"
    be = "are" if rule.kind is Kind.RAW else "is"
    if not caller.signed_in:
        return _sign_in(f"{what} of this rollout {be} handed to people who hold a grant")
    return _grant_missing(f"{what} of this rollout {be} handed out under a grant", grants)


def _seen(caller: Caller, level: Level, grants: GrantFacts) -> Decision:
    if level is Level.PUBLIC:
        return _yes("level_public")
    if level is Level.SIGNED_IN and caller.signed_in:
        return _yes("level_signed_in")
    if grants.sees or grants.grant_id:
        return _yes("grant")
    if not caller.signed_in:
        return _sign_in(f"of this rollout, {LEVEL_WORDS[level]}")
    return _grant_missing(f"of this rollout, {LEVEL_WORDS[level]}", grants)


def _yes(rule: str) -> Decision:
    return Decision(True, rule, RULES[rule])


def _by_role(caller: Caller) -> Decision:
    return _yes("role_operator" if caller.role is Role.OPERATOR else "role_curator")


def _not_there() -> Decision:
    return Decision(False, "not_there", "there is no such rollout here", "not_found")


def _sign_in(why: str) -> Decision:
    return Decision(
        False, "not_signed_in", f"{why}; sign in first, at /sign-in", "sign_in_needed"
    )


def _grant_missing(why: str, grants: GrantFacts) -> Decision:
    had = f" ({grants.why_not})" if grants.why_not else ""
    next_step = "" if grants.waiting else "; ask for one at /grants/new"
    return Decision(
        False,
        "grant_missing",
        f"{why}, and you hold none that stands{had}{next_step}",
        "grant_needed",
        waiting=grants.waiting,
    )


def sees_all(caller: Caller) -> bool:
    """Whether lists and pages need no narrowing for this caller."""
    if caller.scopes is not None and Scope.READ not in caller.scopes:
        return False
    return caller.role >= Role.CURATOR


def most_closed(levels: list[Level]) -> Level:
    """The most closed of some levels (at least one)."""
    return max(levels, key=CLOSEDNESS.__getitem__)

"""Who may publish what, and to where.

Owns: the question that is asked before a dry run, a publication and a schedule.
Must not know: forms, pages, how a dataset is made.

Curators and operators may publish what they see. Somebody else may publish to a dataset of
the Hub that a grant of theirs names, and only rollouts that they may see.
"""

from __future__ import annotations

from typing import cast

from fastapi import Request

from explorer.access.calling import caller_of
from explorer.access.grants import Grant, ObjectKind, State
from explorer.access.people import Caller, Role
from explorer.access.policy import Kind
from explorer.access.signing_in import SignIn
from explorer.errors import AccessDenied, GrantNeeded, NotFound, StoreReadOnly
from explorer.export.publishing.desk import PublishingDesk
from explorer.export.publishing.jobs import Job
from explorer.export.publishing.where import Place, Where
from explorer.settings import Settings
from explorer.sign_in_settings import HUGGING_FACE
from explorer.web.access import Access, access_of
from explorer.web.calling import sign_in_or_none
from explorer.web.frames import with_query
from explorer.web.gate import pass_of
from explorer.web.services import services_of

# What lets a token of the Hub write: to repositories that it made, or to all.
_WRITE = frozenset(("contribute-repos", "write-repos", "manage-repos"))
READ_ONLY = (
    "this server only shows its store: it writes no dataset and publishes none; take a copy "
    "of the store, and publish from a server of your own"
)


def desk_of(request: Request) -> PublishingDesk:
    """The application's one desk.

    Raises:
        NotFound: an application of pages alone has none.
    """
    found = getattr(request.app.state, "publishing", None)
    if found is None:
        raise NotFound("this server publishes no datasets")
    return cast("PublishingDesk", found)


def require_writable(request: Request) -> None:
    """Raises:
    StoreReadOnly: the server only shows a store.
    """
    if services_of(request).settings.read_only:
        raise StoreReadOnly(READ_ONLY)


def staff(caller: Caller) -> bool:
    """Whether somebody may publish by their role."""
    return caller.role >= Role.CURATOR


def own_grants(access: Access, caller: Caller) -> tuple[Grant, ...]:
    """Grants to publish that the caller may use now, the newest first."""
    now = access.grants.clock()
    return tuple(
        grant
        for grant in access.grants.all
        if grant.wanted.object_kind is ObjectKind.DATASET
        and Kind.PUBLISH in grant.wanted.kinds
        and grant.state(now) is State.APPROVED
        and grant.names(caller)
    )


def require_leave(request: Request, where: Where | None) -> str:
    """The grant that lets the caller publish there; empty where their role does.

    Args:
        where: None for a dry run that names no place.

    Raises:
        GrantNeeded: it takes a grant, and they hold none that stands.
        AccessDenied: nobody publishes there from a page.
    """
    caller, settings = caller_of(request.scope), services_of(request).settings
    if where is not None and where.place is Place.FOLDER:
        _require_folder(caller, settings)
    if staff(caller):
        return ""
    if where is None or where.place is not Place.DATASET:
        raise GrantNeeded(
            "name the dataset of the Hub that a grant of yours lets you publish to",
            ask="/grants/new?kind=publish",
        )
    for grant in own_grants(access_of(request), caller):
        if where.name in grant.wanted.objects:
            return grant.grant_id
    raise GrantNeeded(
        f"publishing to {where.name} takes a grant for that dataset, and you hold none that "
        "stands; ask for one at /grants/new",
        ask=with_query("/grants/new", dataset=where.name, kind="publish"),
    )


def _require_folder(caller: Caller, settings: Settings) -> None:
    if caller.role < Role.OPERATOR or not settings.on_loopback:
        raise AccessDenied(
            "a page writes to a folder of its server only for the operator, on a server that "
            "only its own machine can reach; use the command `rollout-explorer publish`",
            rule="role_missing",
        )


def require_seen(request: Request, rollouts: tuple[str, ...]) -> None:
    """That the caller may still see everything that a job is pinned to.

    Raises:
        AccessDenied: some of it is not open to them any more.
    """
    held = pass_of(request)
    if held is None or (held.visible is None and held.whole):
        return
    visible = held.visible or frozenset()
    gone = sum(each not in visible for each in rollouts)
    if gone:
        raise AccessDenied(
            f"{gone} of its {len(rollouts)} rollouts are not open to you any more: begin "
            "again with what the filter shows you now",
            rule="not_there",
        )


def may_see_job(caller: Caller, job: Job) -> bool:
    """Whether a job is told to somebody: theirs, or any to those who may publish all."""
    return staff(caller) or (caller.person is not None and job.who == caller.subject)


def known_job(request: Request, job_id: str) -> Job:
    """A job that the caller may see.

    Raises:
        NotFound: there is none, or it is somebody else's.
    """
    job = desk_of(request).book.get(job_id)
    if not may_see_job(caller_of(request.scope), job):
        raise NotFound(f"there is no dataset job {job_id[:60]}")
    return job


def require_staff(request: Request, what: str) -> Caller:
    """Raises:
    AccessDenied: it takes a role.
    """
    caller = caller_of(request.scope)
    if not staff(caller):
        raise AccessDenied(f"{what} takes the role `curator`", rule="role_missing")
    return caller


def signed_in_token(request: Request) -> bool:
    """Whether the caller's session has a token of theirs that lets them publish."""
    caller, sign_in = caller_of(request.scope), sign_in_or_none(request)
    if sign_in is None or not caller.session_hash:
        return False
    return publishing_token(sign_in, caller.session_hash) is not None


def publishing_token(sign_in: SignIn, session_hash: str) -> str | None:
    """The Hub's token of a session, where leave to publish was given with it."""
    session = sign_in.sessions.get(session_hash)
    found = sign_in.sessions.provider_token(session_hash)
    if found is None or session is None or session.person is None:
        return None
    if session.person.provider != HUGGING_FACE or not found.scopes & _WRITE:
        return None
    return found.access_token

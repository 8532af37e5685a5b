"""What pages and programs do with datasets: the same steps for both.

Owns: asking for leave, pinning what the caller sees, and handing it to the desk.
Must not know: forms, JSON shapes, how a dataset is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fastapi import Request

from explorer.access.calling import caller_of
from explorer.access.people import Caller
from explorer.access.policy import Kind
from explorer.errors import AccessDenied, CapacityReached, InvalidValue, SignInNeeded
from explorer.export.publishing.desk import Found, PublishingDesk
from explorer.export.publishing.jobs import Job, Wants
from explorer.export.publishing.schedules import Schedule
from explorer.export.publishing.where import needs_token, read_where
from explorer.web.access import access_of
from explorer.web.dataset_finding import Matching, matching, query_of
from explorer.web.dataset_leave import (
    desk_of,
    known_job,
    require_leave,
    require_seen,
    require_staff,
    require_writable,
)
from explorer.web.dataset_orders import (
    Wanted,
    checked_where,
    read_reason,
    read_target,
    read_token,
    read_wanted,
    require_confirmed,
    with_links,
)
from explorer.web.gate import pass_of
from explorer.web.list_query import href
from explorer.web.services import services_of

# Jobs of somebody who is no curator whose files are kept at once.
MOST_KEPT = 5


async def found(request: Request, view: str, query: str) -> Matching:
    """What a filter shows to the caller.

    Raises:
        NotFound, InvalidValue: it is none.
    """
    store = services_of(request).store
    undecided = request.app.state.services.store.secrets_undecided
    return await asyncio.to_thread(lambda: matching(store, view, query, undecided()))


def written(pairs: Iterable[tuple[str, str]]) -> str:
    """Parameters of an address as a filter."""
    return href("", pairs).removeprefix("?")


async def begin(request: Request, body: Mapping[str, Any], *, dry_run: bool) -> Job:
    """A new job, pinned to what the caller sees now.

    Raises:
        AccessDenied, InvalidValue, PublishFailed: it cannot be done like this.
    """
    require_writable(request)
    wanted = read_wanted(body)
    grant_id = require_leave(request, wanted.where)
    caller, desk = caller_of(request.scope), desk_of(request)
    if grant_id:
        _require_room(desk, caller)
    if not dry_run and wanted.where is None:
        raise InvalidValue("`target` says where it is published", path="$.target")
    if not dry_run:
        _require_token(request, wanted.choices.target, wanted.token)
    seen = await found(request, wanted.view, wanted.query)
    if not seen.rollouts:
        raise InvalidValue("the filter shows no rollout that you may see: nothing to write")
    job = await desk.begin(
        caller,
        Found(seen.query, seen.view, [str(each) for each in seen.rollouts]),
        with_links(wanted.choices, services_of(request).settings.public_url),
        grant_id=grant_id,
        wants=Wants.FILES if dry_run else Wants.PUBLISH,
    )
    if dry_run:
        return job
    return await _publish(request, job, wanted)


def _require_room(desk: PublishingDesk, caller: Caller) -> None:
    """That somebody who publishes under a grant does not fill the server's disk.

    Raises:
        CapacityReached: the files of too many of their jobs are kept.
    """
    kept = [job for job in desk.book.all if job.who == caller.subject and job.files]
    if len(kept) >= MOST_KEPT:
        raise CapacityReached(
            f"the files of {len(kept)} of your jobs are kept on this server: remove some on "
            "their pages first"
        )


async def publish(request: Request, job_id: str, body: Mapping[str, Any]) -> Job:
    """Lets a job publish what its dry run wrote.

    `{target?, private?, confirm?, token?}`: the target where the dry run named none.

    Raises:
        AccessDenied, InvalidValue, PublishFailed: it cannot be done like this.
    """
    require_writable(request)
    job = known_job(request, job_id)
    where = read_target(body)
    if where is None and job.choices.target:
        where = checked_where(read_where(job.choices.target))
    if where is None:
        raise InvalidValue("`target` says where it goes", path="$.target")
    if job.choices.target and where.text != job.choices.target:
        raise InvalidValue(
            f"its card names {job.choices.target}; for another place, begin a new dry run",
            path="$.target",
        )
    private = body.get("private", job.choices.private)
    if type(private) is not bool:
        raise InvalidValue("`private` is true or false", path="$.private")
    if not private:
        require_confirmed(where, body)
    token = read_token(body)
    require_leave(request, where)
    _require_token(request, where.text, token)
    choices = replace(job.choices, target=where.text, private=private)
    wanted = Wanted(job.view, job.query, where, choices, token)
    return await _publish(request, job, wanted)


async def _publish(request: Request, job: Job, wanted: Wanted) -> Job:
    """Spends the grant, where one lets the caller, and hands the job on."""
    caller, access = caller_of(request.scope), access_of(request)
    desk = desk_of(request)
    rollouts = await asyncio.to_thread(desk.book.rollouts, job.job_id)
    require_seen(request, rollouts)
    grant_id = require_leave(request, wanted.where)
    if grant_id:
        await asyncio.to_thread(
            access.grants.spend, caller, grant_id, f"dataset {job.job_id}", Kind.PUBLISH
        )
    return await desk.publish(
        caller, job.job_id, wanted.choices, grant_id=grant_id, typed=wanted.token
    )


def _require_token(request: Request, target: str, typed: str) -> None:
    """That there is a token to publish with, before anything is begun.

    Raises:
        SignInNeeded: there is none.
    """
    caller = caller_of(request.scope)
    if needs_token(target) and not desk_of(request).leaves.usable(caller, typed):
        raise SignInNeeded(
            "publishing takes your own token of the Hub: sign in with Hugging Face and let "
            "this server publish for you, or give a token that may write; it is used for "
            "this and kept in memory only, and this server's own is never used"
        )


async def go_on(request: Request, job_id: str, body: Mapping[str, Any]) -> Job:
    """Lets a job that waits, failed or was stopped go on.

    Raises:
        AccessDenied, InvalidValue: it cannot be done like this.
    """
    require_writable(request)
    job = known_job(request, job_id)
    if job.wants is Wants.PUBLISH:
        return await publish(
            request, job_id, {"private": job.choices.private, **body} | _confirmed(job, body)
        )
    require_leave(request, read_where(job.choices.target) if job.choices.target else None)
    desk = desk_of(request)
    require_seen(request, await asyncio.to_thread(desk.book.rollouts, job_id))
    return await desk.write_again(caller_of(request.scope), job_id)


def _confirmed(job: Job, body: Mapping[str, Any]) -> dict[str, Any]:
    """Going on with what was confirmed before needs no second typing; a change does."""
    if not job.choices.private and body.get("private", False) is False:
        return {"confirm": read_where(job.choices.target).name}
    return {}


async def stop(request: Request, job_id: str) -> Job:
    """Stops a job."""
    known_job(request, job_id)
    return desk_of(request).stop(job_id)


async def remove_files(request: Request, job_id: str) -> Job:
    """Removes a job's files from this machine."""
    known_job(request, job_id)
    return await desk_of(request).remove_files(job_id)


async def forget(request: Request, job_id: str) -> None:
    """Takes a job and its files away; the audit log keeps what it did."""
    job = known_job(request, job_id)
    if job.published:
        raise InvalidValue(
            "what it published is out: take that back first, or remove its files only"
        )
    await desk_of(request).forget(job_id)


async def take_back(
    request: Request, job_id: str, body: Mapping[str, Any], *, whole: bool
) -> Job:
    """Yanks what a job published, or deletes the whole of it, with the name typed again.

    Raises:
        AccessDenied, InvalidValue, PublishFailed: it cannot be done like this.
    """
    require_writable(request)
    job = known_job(request, job_id)
    if not job.published:
        raise InvalidValue("it is not published, so nothing can be taken back")
    where, reason = read_where(job.choices.target), read_reason(body)
    if whole and body.get("confirm") != where.name:
        raise InvalidValue(
            f"this deletes all of it, with its history: type its name, {where.name}, again in "
            "`confirm`",
            path="$.confirm",
        )
    require_leave(request, where)
    token = read_token(body)
    _require_token(request, where.text, token)
    caller, desk = caller_of(request.scope), desk_of(request)
    await desk.hold(caller, job.choices.target)
    desk.leaves.give(job_id, caller, token)
    try:
        target = desk.target_of(job, desk.leaves.token(job_id))
        await asyncio.to_thread(target.remove, reason, whole)
    finally:
        desk.leaves.drop(job_id)
    return await desk.removed(caller, job_id, "deleted" if whole else "yanked", reason)


# -- schedules


async def make_schedule(request: Request, body: Mapping[str, Any]) -> Schedule:
    """Lets a saved view publish itself.

    Raises:
        AccessDenied, InvalidValue, PublishFailed: it cannot be done like this.
    """
    require_writable(request)
    caller = require_staff(request, "letting a view publish itself")
    wanted = read_wanted(body)
    if not wanted.view:
        raise InvalidValue(
            "a schedule needs a saved `view`: save the filter first", path="$.view"
        )
    if wanted.where is None:
        raise InvalidValue("`target` says where it goes", path="$.target")
    require_leave(request, wanted.where)
    _require_whole(request)
    _require_token(request, wanted.choices.target, wanted.token)
    store = services_of(request).store
    query = await asyncio.to_thread(query_of, store, wanted.view, "")
    choices = with_links(wanted.choices, services_of(request).settings.public_url)
    return await desk_of(request).schedule(caller, wanted.view, query, choices, wanted.token)


def _require_whole(request: Request) -> None:
    """A schedule publishes whatever its view shows to the server itself.

    Raises:
        AccessDenied: the caller's token narrows what they see.
    """
    held = pass_of(request)
    if held is None or held.visible is not None or not held.whole:
        raise AccessDenied(
            "a schedule publishes all that its view shows, and your API token may not see all "
            "of it: use one that may `read`",
            rule="scope_missing",
        )


def known_schedule(request: Request, schedule_id: str) -> Schedule:
    """A schedule; all of them are told to those who may make them.

    Raises:
        NotFound: there is none.
    """
    require_staff(request, "schedules")
    return desk_of(request).schedules.get(schedule_id)


async def resume(request: Request, schedule_id: str, body: Mapping[str, Any]) -> Schedule:
    """Lets a paused schedule go on, with the caller's token and the view as it is now."""
    require_writable(request)
    schedule, token = known_schedule(request, schedule_id), read_token(body)
    require_leave(request, read_where(schedule.choices.target))
    _require_whole(request)
    _require_token(request, schedule.choices.target, token)
    store = services_of(request).store
    query = await asyncio.to_thread(query_of, store, schedule.view, "")
    await desk_of(request).resume(caller_of(request.scope), schedule, query, token)
    return desk_of(request).schedules.get(schedule_id)


async def pause(request: Request, schedule_id: str) -> Schedule:
    """Lets a schedule publish nothing until somebody lets it go on."""
    schedule = known_schedule(request, schedule_id)
    await desk_of(request).pause(caller_of(request.scope), schedule)
    return desk_of(request).schedules.get(schedule_id)


async def drop_schedule(request: Request, schedule_id: str) -> None:
    """Takes a schedule away."""
    schedule = known_schedule(request, schedule_id)
    await desk_of(request).drop(caller_of(request.scope), schedule)

"""Builds the contexts of the pages about datasets.

Owns: what each of these pages says. Must not know: HTML, routes, how a dataset is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request

from explorer.access.calling import caller_of
from explorer.access.people import Role
from explorer.export.adapters.registry import ADAPTERS
from explorer.export.card.licences import LICENCES
from explorer.export.dataset.manifest import CARD
from explorer.export.dataset.schema import CONFIGS, TYPE_WORDS, Column
from explorer.export.hub.names import RULE
from explorer.export.judged import Judged
from explorer.export.publishing.jobs import ENDED, GOES_ON, Job, State
from explorer.export.publishing.where import read_where
from explorer.records import RolloutId
from explorer.sign_in_settings import HUGGING_FACE
from explorer.web import words
from explorer.web.access import access_of
from explorer.web.calling import sign_in_or_none
from explorer.web.contexts import Choice, Frame
from explorer.web.contexts_datasets import (
    ConfigRow,
    CountRow,
    DatasetJobPage,
    DatasetsPage,
    ExcludedRow,
    FileRow,
    FormatChoice,
    Leave,
    NewDatasetPage,
    Written,
)
from explorer.web.dataset_finding import Matching
from explorer.web.dataset_leave import (
    READ_ONLY,
    desk_of,
    may_see_job,
    own_grants,
    signed_in_token,
    staff,
)
from explorer.web.dataset_secrets import secrets_of
from explorer.web.dataset_words import (
    PHASES,
    code_words,
    job_row,
    progress_words,
    safe_url,
    schedule_row,
)
from explorer.web.frames import list_href, rollout_href, with_query
from explorer.web.pretty import safe_text
from explorer.web.services import services_of

SHOWN_JOBS = 100
SHOWN_UNDECIDED = 40
SHOWN_EXCLUDED = 30
SHOWN_SECRETS = 10
SHOWN_FILES = 40
MOST_CARD = 200_000
_UNDECIDED = "secrets_undecided"
_CONFIG_ABOUT = {
    "rollouts": "a row a rollout: what it was, its reward and its verdict",
    "calls": "a row a call: the record, with ids, logprobs and mask reasons",
    "sequences": "a row a training sequence, with its loss mask",
}


def leave_of(request: Request) -> Leave:
    """Whether the reader may publish, in words."""
    caller, settings = caller_of(request.scope), services_of(request).settings
    grants = () if staff(caller) else own_grants(access_of(request), caller)
    targets = tuple(dict.fromkeys(name for each in grants for name in each.wanted.objects))
    token = signed_in_token(request)
    said = ""
    if settings.read_only:
        said = READ_ONLY
    elif not staff(caller) and not targets:
        said = (
            "publishing takes the role `curator`, or a grant for the dataset that you publish "
            "to"
        )
    return Leave(
        allowed=not said,
        words=said,
        token=token,
        sign_in_href=_sign_in_href(request),
        schedules=staff(caller) and not settings.read_only,
        targets=targets,
        ask_href="" if staff(caller) else with_query("/grants/new", kind="publish"),
    )


def _sign_in_href(request: Request) -> str:
    """Where leave to publish is asked for, with the way back."""
    sign_in = sign_in_or_none(request)
    if sign_in is None or all(each.name != HUGGING_FACE for each in sign_in.providers.all):
        return ""
    path = request.url.path.removesuffix(".json")
    back = f"{path}?{request.url.query}" if request.url.query else path
    return with_query(f"/sign-in/{HUGGING_FACE}", publish=1, next=back)


def datasets_page(request: Request, outline: Frame) -> DatasetsPage:
    """`/datasets`; blocks."""
    desk, caller = desk_of(request), caller_of(request.scope)
    seen = [job for job in desk.book.all if may_see_job(caller, job)]
    rows = tuple(job_row(job, desk.folder(job.job_id)) for job in seen[:SHOWN_JOBS])
    return DatasetsPage(
        frame=outline,
        leave=leave_of(request),
        jobs=rows,
        n_jobs=len(seen),
        kept_text=words.size(sum(row.kept for row in rows)),
        keep_days=services_of(request).settings.dataset_days,
        schedules=tuple(map(schedule_row, desk.schedules.all)) if staff(caller) else (),
    )


def new_dataset_page(request: Request, outline: Frame, seen: Matching) -> NewDatasetPage:
    """`/datasets/publish`."""
    counts = seen.counts
    return NewDatasetPage(
        frame=outline,
        leave=leave_of(request),
        view=safe_text(seen.view),
        query=seen.query,
        list_href=f"/rollouts?{seen.query}" if seen.query else "/rollouts",
        title=safe_text(seen.view),
        rollouts=len(seen.rollouts),
        trainable=counts.trainable,
        supervised_tokens=counts.supervised_tokens,
        generated_tokens=counts.generated_tokens,
        calls=counts.calls,
        open=counts.open,
        undecided=len(counts.undecided),
        undecided_rollouts=tuple(
            Choice(rollout_href(each, "findings") + "#secrets", words.short_id(each))
            for each in counts.undecided[:SHOWN_UNDECIDED]
        ),
        untrained=_by_reason(counts.reasons, seen.query),
        licences=tuple(Choice(each, f"{name} ({each})") for each, name in LICENCES.items()),
        name_rule=RULE,
        formats=tuple(
            FormatChoice(name, *_parted(kind.about), kind.needs_texts)
            for name, kind in ADAPTERS.items()
        ),
    )


def _parted(about: str) -> tuple[str, str]:
    """The first sentence of what is said about a format, and the rest."""
    for mark in (": ", ". "):
        first, found, rest = about.partition(mark)
        if found and 20 < len(first) <= 160:
            return f"{first}.", rest[:1].upper() + rest[1:]
    return about, ""


def _by_reason(found: Mapping[str, int], query: str) -> tuple[CountRow, ...]:
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    before = f"/rollouts?{query}&" if query else "/rollouts?"
    return tuple(
        CountRow(
            code,
            code_words(code),
            count,
            None if code == "not_judged_yet" else f"{before}{list_href(reason=code)[10:]}",
        )
        for code, count in ordered
    )


def undecided_of(job: Job) -> tuple[RolloutId, ...]:
    """The first rollouts that a job left out because of what looks like a secret."""
    rows = job.result.get("excluded", ())
    found = [RolloutId(row["rollout_id"]) for row in rows if row["code"] == _UNDECIDED]
    return tuple(found[:SHOWN_SECRETS])


def job_page(
    request: Request, outline: Frame, job: Job, undecided: Sequence[Judged]
) -> DatasetJobPage:
    """`/datasets/{job}`; scans the `undecided`, which were left out, so it may take long."""
    desk, caller = desk_of(request), caller_of(request.scope)
    folder, leave = desk.folder(job.job_id), leave_of(request)
    progress, percent = progress_words(job)
    there = job.files and job.state in ENDED | {State.WAITING} and bool(job.result)
    writable = not services_of(request).settings.read_only
    return DatasetJobPage(
        frame=outline,
        leave=leave,
        job=job_row(job, folder),
        active=job.active,
        part_href=f"/datasets/{job.job_id}/progress",
        phase=PHASES.get(job.phase, safe_text(job.phase)) if job.active else "",
        done=job.done,
        total=job.total,
        progress=progress,
        percent=percent,
        code=job.code,
        message=safe_text(job.message),
        view=safe_text(job.view),
        query=job.query,
        list_href=f"/rollouts?{job.query}" if job.query else "/rollouts",
        licence=safe_text(_licence(job)),
        gated=job.choices.gated or "no",
        formats=job.choices.formats,
        bodies=job.choices.bodies,
        schedule_id=job.schedule_id,
        written=_written(request, job, undecided) if "rollouts" in job.result else None,
        card=_card(job, folder) if there else "",
        name=read_where(job.choices.target).name if job.choices.target else "",
        url=safe_url(job),
        revision=safe_text(str(job.result.get("revision") or "")),
        uploaded=job.result.get("uploaded"),
        skipped=job.result.get("skipped"),
        nothing_new=bool(job.result.get("nothing_new")),
        removed=job.removed,
        may_publish=leave.allowed and job.state is State.WRITTEN and bool(_count(job)),
        may_go_on=leave.allowed and job.state in GOES_ON,
        may_stop=writable and (job.active or job.state is State.WAITING),
        may_take_back=leave.allowed and job.published,
        may_remove=writable and job.files and not job.active,
        may_forget=writable and not job.active and not job.published,
        zip_href=f"/datasets/{job.job_id}/files.zip" if there and staff(caller) else "",
        verify="rollout-explorer verify FOLDER",
        folder=str(folder) if there and caller.role >= Role.OPERATOR else "",
    )


def _count(job: Job) -> int:
    return int(job.result.get("rollouts") or 0)


def _licence(job: Job) -> str:
    card = job.choices.card
    named = str(card.get("licence_name") or "")
    return named or str(card.get("licence") or "")


def _card(job: Job, folder: Any) -> str:
    try:
        found = (folder / CARD).read_bytes()[:MOST_CARD]
    except OSError:
        return ""
    return safe_text(found.decode("utf-8", "replace"))


def _written(request: Request, job: Job, undecided: Sequence[Judged]) -> Written:
    result = job.result
    excluded = result["excluded"]
    size = int(result["size"])
    return Written(
        rollouts=int(result["rollouts"]),
        trainable=int(result["trainable"]),
        supervised_tokens=int(result["supervised_tokens"]),
        added=int(result["added"]),
        already=int(result["already"]),
        kept_otherwise=int(result["n_kept_otherwise"]),
        excluded=int(result["n_excluded"]),
        left_out=_counted(result["left_out"]),
        excluded_rows=tuple(
            ExcludedRow(
                row["rollout_id"],
                rollout_href(
                    row["rollout_id"],
                    "findings" if row["code"] == _UNDECIDED else "",
                ),
                row["code"],
                safe_text(row["reason"]),
            )
            for row in excluded[:SHOWN_EXCLUDED]
        ),
        untrained=_counted(result["untrained"]),
        secrets=tuple(
            each for judged in undecided if (each := secrets_of(request, judged)) is not None
        ),
        decoded=int(result["secrets"].get("rollouts", 0)),
        unknown_ids=int(result["secrets"].get("ids_unknown", 0)),
        size=size,
        size_text=words.size(size),
        configs=tuple(map(_config, result["configs"])),
        files=tuple(
            FileRow(row["path"], row["size"], words.size(row["size"]), row["sha256"])
            for row in result["files"][:SHOWN_FILES]
        ),
        n_files=int(result["n_files"]),
        policies=tuple(result["policies"]),
        manifest_sha256=result["manifest_sha256"],
    )


def _counted(found: Mapping[str, int]) -> tuple[CountRow, ...]:
    return tuple(CountRow(code, code_words(code), count, None) for code, count in found.items())


def _config(row: Mapping[str, Any]) -> ConfigRow:
    name = row["name"]
    columns: tuple[Column, ...] = ()
    if row["native"]:
        about = _CONFIG_ABOUT.get(name, "")
        columns = CONFIGS.get(name, ())
    else:
        kind = ADAPTERS.get(name)
        about = _parted(kind.about)[0] if kind is not None else ""
        columns = kind.columns if kind is not None else ()
    return ConfigRow(
        name=safe_text(name),
        native=bool(row["native"]),
        about=about,
        rows=row["rows"],
        files=row["files"],
        size=row["size"],
        size_text=words.size(row["size"]),
        columns=tuple(
            Choice(column.name, f"{TYPE_WORDS[column.kind]} · {column.meaning}".strip(" ·"))
            for column in columns
        ),
    )

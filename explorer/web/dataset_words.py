"""How jobs and their results read on pages and in the API.

Owns: words and tones of states and phases, rows of lists, the JSON shape of a job.
Must not know: routes, who may see what.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from explorer.access.people import OPERATOR_SUBJECT
from explorer.export.publishing.jobs import Job, State, Wants
from explorer.export.publishing.schedules import Schedule
from explorer.web import words
from explorer.web.contexts_datasets import DatasetRow, ScheduleRow
from explorer.web.pretty import safe_text

STATES: dict[State, tuple[str, str]] = {
    State.QUEUED: ("waits for its turn", ""),
    State.WORKING: ("being written", ""),
    State.WRITTEN: ("dry run, not published", ""),
    State.PUBLISHING: ("being uploaded", ""),
    State.WAITING: ("waits for a token", "warn"),
    State.DONE: ("published", "good"),
    State.FAILED: ("failed", "bad"),
    State.STOPPED: ("stopped", "warn"),
}
PHASES = {
    "planning": "judging and scanning rollouts",
    "writing": "writing rollouts",
    "checking": "checking what was written",
    "uploading": "uploading",
}
CODES = {
    "rollout_open": "still open",
    "secrets_undecided": "a secret is undecided or withheld",
    "not_found": "deleted meanwhile",
    "not_judged_yet": "not judged yet",
    "record_inconsistent": "its stored parts do not fit together",
}


def code_words(code: str) -> str:
    """A reason as people read it."""
    return CODES.get(code, safe_text(code.replace("_", " ")))


def kept_bytes(folder: Path) -> int:
    """Bytes of the files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except OSError:
                continue  # it was removed meanwhile
    return total


def state_words(job: Job) -> tuple[str, str]:
    """The state in words, and its tone."""
    if job.state is State.DONE and job.removed:
        return f"{job.removed}: taken back", "warn"
    if job.state is State.DONE and job.result.get("nothing_new"):
        return "nothing new to add", ""
    if job.state is State.DONE:
        where = "private" if job.choices.private else "public"
        return f"published, {where}", "good"
    return STATES[job.state]


def job_row(job: Job, folder: Path) -> DatasetRow:
    """A job as a line; reads the sizes of its files, so call it in a thread."""
    said, tone = state_words(job)
    kept = kept_bytes(folder) if job.files or job.active else 0
    size = job.result.get("size")
    return DatasetRow(
        job_id=job.job_id,
        href=f"/datasets/{job.job_id}",
        title=safe_text(str(job.choices.card.get("title", ""))),
        target=safe_text(job.choices.target),
        url=safe_url(job),
        private=job.choices.private,
        wants=job.wants.value,
        state=job.state.value,
        words=said,
        tone=tone,
        who=safe_text(job.who_name or job.who),
        scheduled=bool(job.schedule_id),
        when=words.clock(job.created_us),
        asked=job.n_rollouts,
        rollouts=job.result.get("rollouts"),
        supervised_tokens=job.result.get("supervised_tokens"),
        size=size,
        size_text=words.size(size) if size is not None else words.NONE,
        kept=kept,
        kept_text=words.size(kept) if kept else "",
    )


def safe_url(job: Job) -> str:
    """The address of what was published, where it is one that a link may have."""
    url = str(job.result.get("url") or "")
    return url if job.published and url.startswith(("https://", "http://")) else ""


def schedule_row(schedule: Schedule) -> ScheduleRow:
    """A schedule as a line."""
    waits = schedule.next_us is not None and schedule.runs
    return ScheduleRow(
        schedule_id=schedule.schedule_id,
        view=safe_text(schedule.view),
        view_href=f"/rollouts?{schedule.query}" if schedule.query else "/rollouts",
        target=safe_text(schedule.choices.target),
        private=schedule.choices.private,
        title=safe_text(str(schedule.choices.card.get("title", ""))),
        state="runs" if schedule.runs else "paused",
        tone="good" if schedule.runs else "warn",
        paused=safe_text(schedule.paused),
        retry=words.clock(schedule.next_us) if waits else "",
        who=safe_text(schedule.who_name or schedule.who or OPERATOR_SUBJECT),
        when=words.clock(schedule.created_us),
        published=len(schedule.published),
        failures=schedule.failures,
        last_href=f"/datasets/{schedule.last_job}" if schedule.last_job else None,
    )


def progress_words(job: Job) -> tuple[str, int]:
    """How far it is in words, and in per cent."""
    show: Callable[[int], str] = words.size if job.unit == "bytes" else words.thousands
    if not job.total:
        return "", 0
    share = min(100, 100 * job.done // job.total)
    return (
        f"{show(job.done)} of {show(job.total)}{' rollouts' if job.unit == 'rollouts' else ''}",
        share,
    )


def job_json(job: Job) -> dict[str, Any]:
    """A job for programs; never a token."""
    result: Mapping[str, Any] = job.result
    return {
        "job_id": job.job_id,
        "url": f"/datasets/{job.job_id}",
        "state": job.state.value,
        "dry_run": job.wants is Wants.FILES,
        "created_us": job.created_us,
        "updated_us": job.updated_us,
        "who": job.who,
        "view": job.view,
        "query": job.query,
        "asked": job.n_rollouts,
        "progress": {
            "phase": job.phase,
            "done": job.done,
            "of": job.total,
            "unit": job.unit,
        },
        "error": {"code": job.code, "message": job.message} if job.message else None,
        "choices": _choices(asdict(job.choices)),
        "result": {name: value for name, value in result.items() if name != "approved"},
        "files": job.files,
        "removed": job.removed or None,
        "schedule_id": job.schedule_id or None,
    }


def _choices(plain: dict[str, Any]) -> dict[str, Any]:
    return {**plain.pop("card"), **plain, "formats": list(plain["formats"])}


def schedule_json(schedule: Schedule) -> dict[str, Any]:
    """A schedule for programs; never a token."""
    return {
        "schedule_id": schedule.schedule_id,
        "view": schedule.view,
        "query": schedule.query,
        "state": "runs" if schedule.runs else "paused",
        "paused": schedule.paused or None,
        "next_us": schedule.next_us,
        "created_us": schedule.created_us,
        "who": schedule.who,
        "failures": schedule.failures,
        "last_job": schedule.last_job or None,
        "published": len(schedule.published),
        "choices": _choices(asdict(schedule.choices)),
    }

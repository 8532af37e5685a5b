"""Dataset jobs in every state for the pages that show them, with hostile names.

The dry run is a real one: its files lie where its page reads the card.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, replace

from explorer.errors import InvalidValue
from explorer.export.card.choice import CardChoice
from explorer.export.dataset.planning import Source
from explorer.export.judged import JudgedRollouts
from explorer.export.publishing.jobs import Choices, Job, State, Wants
from explorer.export.publishing.procedure import Order, prepare
from explorer.export.publishing.results import told_of
from explorer.export.publishing.schedules import Schedule
from explorer.export.secrets import SecretScans
from explorer.trace.policy import DEFAULT_POLICY
from tests.web.seeds import HOSTILE, START_US
from tests.web.serving import Served

JOBS = ("dry_run", "going", "broken", "public")
CARD = CardChoice("Traces of a tiny agent", "cc-by-4.0", description="**Bold** <b>words</b>")
CHOICES = Choices("ada/tiny-agent", asdict(CARD), formats=("sft",))


def _job(**more: object) -> Job:
    plain = Job("", 0, 0, "operator", HOSTILE, "q=lock", HOSTILE, 0, CHOICES, Wants.FILES)
    return replace(plain, **more)  # type: ignore[arg-type]


def dataset_jobs(running: Served) -> dict[str, str]:
    """Ids of the jobs by what they show; made where there are none."""
    desk = running.app.state.publishing
    if not desk.book.all:
        _make(running)
    return dict(zip(JOBS, (job.job_id for job in reversed(desk.book.all)), strict=True))


def _make(running: Served) -> None:
    desk, store = running.app.state.publishing, running.store
    ids = [str(row) for row in store.rollout_runs()]
    job = desk.book.add(_job(), ids)
    source = Source(
        store,
        JudgedRollouts(store, lambda: DEFAULT_POLICY, lambda: START_US),
        SecretScans(store, lambda name: running.tables.get(name or "", {}), lambda: START_US),
        lambda name: running.tables.get(name or "", {}),
    )
    folder = desk.folder(job.job_id)
    folder.parent.mkdir(exist_ok=True)
    order = Order(tuple(store.rollout_runs()), CARD, ("sft",))

    async def write() -> dict[str, object]:
        made = await prepare(
            source, order, folder, repo_id="ada/tiny-agent", told=lambda _: None,
            stop=threading.Event(),
        )  # fmt: skip
        return told_of(made, folder)

    told = running.call(write)
    desk.book.change(job.job_id, state=State.WRITTEN, result=told, files=True)
    going = desk.book.add(_job(wants=Wants.PUBLISH, state=State.PUBLISHING), ids)
    desk.book.progress(going.job_id, "uploading", 3_000_000, 12_000_000, "bytes")
    wrong = InvalidValue(f"{HOSTILE}: the Hub takes no such token; give another")
    desk.book.add(
        _job(wants=Wants.PUBLISH, state=State.FAILED, code=wrong.code, message=wrong.message),
        ids,
    )
    out = {"url": "https://huggingface.co/datasets/ada/tiny-agent", "revision": "0" * 40,
           "uploaded": 5, "skipped": 1}  # fmt: skip
    public = replace(CHOICES, private=False, gated="manual")
    desk.book.add(
        _job(wants=Wants.PUBLISH, state=State.DONE, result=told | out, choices=public), ids
    )
    plain = Schedule("", 0, HOSTILE, "q=lock", CHOICES, "operator", HOSTILE)
    desk.schedules.add(plain)
    desk.schedules.add(replace(plain, paused=f"{HOSTILE} was changed", failures=2))

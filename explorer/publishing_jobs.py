"""Datasets that are written and published from pages, in the background. Wiring only.

Owns: what the desk, the worker and the schedules of one server are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from explorer.access.people import Role
from explorer.access.signing_in import SignIn
from explorer.export.dataset.planning import Source
from explorer.export.hub.repository import Gate
from explorer.export.hub.target import Target
from explorer.export.hub.targets import target_of
from explorer.export.publishing.desk import PublishingDesk
from explorer.export.publishing.jobs import Job, JobBook
from explorer.export.publishing.leaves import Leaves
from explorer.export.publishing.schedules import ScheduleBook
from explorer.export.publishing.scheduling import Looks, ViewNow, Watching
from explorer.export.publishing.worker import Means, Worker
from explorer.settings import Settings
from explorer.web.access import Access
from explorer.web.dataset_finding import view_now
from explorer.web.dataset_leave import publishing_token


def datasets_path(store: Path) -> Path:
    """Where the files of a store's dataset jobs lie."""
    return store.with_name(store.name + ".datasets")


class PublishingJobs:
    """The desk of one server, with who does the work."""

    def __init__(
        self, settings: Settings, source: Source, access: Access, sign_in: SignIn
    ) -> None:
        self._access = access
        self._sign_in = sign_in
        self._endpoint = settings.hub_endpoint
        database, clock = access.database, access.audit.clock
        leaves = Leaves(lambda session: publishing_token(sign_in, session))
        root = datasets_path(settings.store)
        self.desk = desk = PublishingDesk(
            JobBook(database, clock),
            ScheduleBook(database, clock),
            leaves,
            access.audit,
            self._target_of,
            root,
        )
        view: Callable[[str], ViewNow | None] = lambda name: view_now(source.store, name)  # noqa: E731
        looks = Looks(
            Watching(
                book=desk.book,
                schedules=desk.schedules,
                leaves=leaves,
                source=source,
                audit=access.audit,
                view=view,
                ended=self._ended,
            )
        )
        self.worker = Worker(
            Means(
                book=desk.book,
                source=source,
                leaves=leaves,
                audit=access.audit,
                folder=root,
                target_of=self._target_of,
                still=self._still,
                look=looks.look,
                ended=desk.ended,
                keep_days=settings.dataset_days,
                # Calls are refused below the setting: this must end well before.
                min_free=2 * settings.min_free_bytes,
            )
        )
        desk.staffed(self.worker, looks)

    def start(self) -> None:
        """Begins; needs a running loop."""
        self.worker.start()

    async def stop(self) -> None:
        """Ends what is under way; it goes on after the next start."""
        await self.worker.stop()

    def _target_of(self, job: Job, token: str | None) -> Target:
        choices = job.choices
        return target_of(
            choices.target,
            token=token,
            private=choices.private,
            gated=cast("Gate", choices.gated),
            endpoint=self._endpoint,
        )

    def _still(self, job: Job) -> str:
        """Why a job must not go on publishing, or nothing."""
        if job.grant_id:
            return self._access.grants.stands(job.grant_id)
        return self._ended(job.job_id)

    def _ended(self, key: str) -> str:
        """Why whoever gave the token may not publish any more, or nothing. A session may end
        meanwhile: what was asked for stays asked for."""
        caller = self.desk.leaves.caller(key)
        if caller is None or caller.person is None:
            return ""
        if caller.token_id and not self._sign_in.tokens.stands(caller.token_id):
            return "the API token that it was asked with has ended or was taken back"
        if self._sign_in.roles.of(caller.person) < Role.CURATOR:
            return f"{caller.name or caller.subject} may not publish any more"
        return ""

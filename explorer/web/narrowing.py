"""The store and the verdicts as somebody may see them: the rest is not there.

Owns: wrappers that hide rollouts, and what of the others is for curators only.
Must not know: HTTP, why a rollout may be seen.

A route is given these in the place of the whole store. So a list, a facet, a count, a twin or
a search cannot tell of a rollout that its caller may not see, whether its author thought of
that or not; and whoever adds a method to the store must say here what it may tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from explorer.access.policy import Level
from explorer.export.judged import Judged, JudgedSource
from explorer.records import (
    Body,
    Call,
    CallId,
    Certificate,
    Rollout,
    RolloutId,
    RolloutRecord,
    TokenizerId,
    VocabularyEntry,
    WeightUpdate,
)
from explorer.store.deltas import DeltaSummary, TrainerLogps
from explorer.store.interface import (
    RecordStamp,
    RolloutState,
    Store,
    StoreHealth,
)
from explorer.store.queries import (
    Facet,
    GroupPage,
    GroupPart,
    RolloutPage,
    RolloutQuery,
    RolloutSummary,
    RunPoint,
    RunSpread,
    RunSummary,
    Within,
)
from explorer.store.remarks import Annotation, LabelCount, SavedView
from explorer.store.seals import Seal
from explorer.web.network import without_places
from explorer.web.whole_only import WholeOnly, whole_only

Ids = frozenset[RolloutId]


class Hiding:
    """What is covered up in a rollout that may be seen; nothing, unless told otherwise."""

    def record(self, record: RolloutRecord) -> RolloutRecord:
        """The record as it is shown."""
        return record

    def judged(self, judged: Judged) -> Judged:
        """The judged rollout as it is shown."""
        return judged

    def bodies(self, rollout_id: RolloutId, bodies: tuple[Body, ...]) -> tuple[Body, ...]:
        """A call's bodies as they are shown."""
        return bodies

    def text(self, text: str, rollout_id: RolloutId | None = None) -> str:
        """Words of people about a rollout, and names in lists; with the rollout, what is
        covered up elsewhere in it is covered up here, too."""
        return text

    def unlisted(self) -> Ids:
        """Rollouts that no list tells of: what it shows, sorts or filters by would give a
        secret away."""
        return frozenset()


class NarrowJudged:
    """Verdicts of the rollouts that may be seen."""

    def __init__(self, judged: JudgedSource, visible: Ids, hiding: Hiding) -> None:
        self._judged = judged
        self._visible = visible
        self._hiding = hiding

    async def get(self, rollout_id: RolloutId) -> Judged | None:
        """The judged rollout, or None when there is none for this reader."""
        if rollout_id not in self._visible:
            return None
        judged = await self._judged.get(rollout_id)
        if judged is None:
            return None
        # It may have to look for secrets first.
        return await asyncio.to_thread(self._hiding.judged, judged)


class NarrowStore(WholeOnly):
    """The store without the rollouts that may not be seen; nothing can be written to it.

    Args:
        store: whole.
        visible: ids of the rollouts that may be seen.
        view_level: the level that was set on a saved view, None where none was.
        levels: levels whose views the reader may know by name and query.
        hiding: what is covered up in the rest.
    """

    def __init__(
        self,
        store: Store,
        visible: Ids,
        view_level: Callable[[str], Level | None],
        levels: frozenset[Level],
        hiding: Hiding,
    ) -> None:
        self._store = store
        self._visible = visible
        self._view_level = view_level
        self._levels = levels
        self._hiding = hiding
        self._listed: Ids | None = None

    # -- one rollout

    def rollout(self, rollout_id: RolloutId) -> Rollout | None:
        record = self.record(rollout_id)
        return record.rollout if record is not None else None

    def rollout_state(self, rollout_id: RolloutId) -> RolloutState | None:
        state = self._store.rollout_state(rollout_id) if self._sees(rollout_id) else None
        if state is None or state.reason is None:
            return state
        return replace(state, reason=self._hiding.text(state.reason, rollout_id))

    def record(self, rollout_id: RolloutId) -> RolloutRecord | None:
        record = self._store.record(rollout_id) if self._sees(rollout_id) else None
        return self._hiding.record(record) if record is not None else None

    def record_stamp(self, rollout_id: RolloutId) -> tuple[int, int]:
        return self._store.record_stamp(rollout_id) if self._sees(rollout_id) else (0, 0)

    def record_stamps(self) -> tuple[RecordStamp, ...]:
        return tuple(s for s in self._store.record_stamps() if self._sees(s.rollout_id))

    def call(self, call_id: CallId) -> Call | None:
        found = self._store.call(call_id)
        if found is None or not self._sees(found.rollout_id):
            return None
        record = self.record(found.rollout_id)
        calls = record.calls if record is not None else ()
        return next((call for call in calls if call.call_id == call_id), None)

    def bodies(self, call_id: CallId) -> tuple[Body, ...]:
        found = self._store.call(call_id)
        if found is None or not self._sees(found.rollout_id):
            return ()
        shown = self._hiding.bodies(found.rollout_id, self._store.bodies(call_id))
        return without_places(shown)

    def every_body(
        self, rollout_id: RolloutId
    ) -> Iterator[tuple[CallId, tuple[Body, ...] | str]]:
        if not self._sees(rollout_id):
            return
        for call_id, found in self._store.every_body(rollout_id):
            if isinstance(found, str):
                yield call_id, found
            else:
                yield call_id, without_places(self._hiding.bodies(rollout_id, found))

    def replies(self, rollout_id: RolloutId) -> Iterator[tuple[CallId, bytes | str]]:
        # They feed the check against the engine's own bytes, which is made on the whole.
        whole_only()

    def annotations(self, rollout_id: RolloutId) -> tuple[Annotation, ...]:
        if not self._sees(rollout_id):
            return ()
        return tuple(self._covered(each) for each in self._store.annotations(rollout_id))

    def seals(self, rollout_id: RolloutId) -> tuple[Seal, ...]:
        return self._store.seals(rollout_id) if self._sees(rollout_id) else ()

    def trainer_logps(self, rollout_id: RolloutId) -> tuple[TrainerLogps, ...]:
        found = self._store.trainer_logps(rollout_id) if self._sees(rollout_id) else ()
        return tuple(replace(row, source=self._hiding.text(row.source)) for row in found)

    def has_trainer_logps(self, rollout_id: RolloutId) -> bool:
        return self._sees(rollout_id) and self._store.has_trainer_logps(rollout_id)

    def delta_summaries(
        self, rollout_ids: Collection[RolloutId]
    ) -> Mapping[RolloutId, DeltaSummary]:
        found = self._store.delta_summaries([each for each in rollout_ids if self._sees(each)])
        return {
            each: replace(row, source=self._hiding.text(row.source))
            for each, row in found.items()
        }

    def run_deltas(self, run: str, within: Within = None) -> tuple[DeltaSummary, ...]:
        found = self._store.run_deltas(run, self._ids(within))
        return tuple(replace(row, source=self._hiding.text(row.source)) for row in found)

    def annotation(self, annotation_id: str) -> Annotation | None:
        found = self._store.annotation(annotation_id)
        if found is None or not self._sees(found.rollout_id):
            return None
        return self._covered(found)

    def next_sequence(self, rollout_id: RolloutId) -> int:
        return self._store.next_sequence(rollout_id) if self._sees(rollout_id) else 0

    # -- many rollouts

    @property
    def listed(self) -> Ids:
        """The rollouts that lists tell of."""
        return self._ids(None)

    def rollout_runs(self) -> dict[RolloutId, str]:
        runs = self._store.rollout_runs()
        listed = self._ids(None)
        return {rollout_id: run for rollout_id, run in runs.items() if rollout_id in listed}

    def list_rollouts(self, query: RolloutQuery) -> RolloutPage:
        page = self._store.list_rollouts(self._within(query))
        return replace(page, rows=tuple(self._row(row) for row in page.rows))

    def facets(self, query: RolloutQuery, most: int = 12) -> tuple[Facet, ...]:
        return self._store.facets(self._within(query), most)

    def list_runs(self, within: Within = None) -> tuple[RunSummary, ...]:
        return self._store.list_runs(self._ids(within))

    def run_summary(self, run: str, within: Within = None) -> RunSummary | None:
        return self._store.run_summary(run, self._ids(within))

    def run_groups(self, run: str, part: GroupPart, within: Within = None) -> GroupPage:
        page = self._store.run_groups(run, part, self._ids(within))
        groups = (
            replace(group, members=tuple(self._row(row) for row in group.members))
            for group in page.groups
        )
        return replace(page, groups=tuple(groups))

    def run_spread(self, run: str, within: Within = None) -> RunSpread:
        return self._store.run_spread(run, self._ids(within))

    def run_points(self, run: str, within: Within = None) -> tuple[RunPoint, ...]:
        return self._store.run_points(run, self._ids(within))

    def group_members(
        self,
        run: str,
        *,
        task: str | None = None,
        group: str | None = None,
        within: Within = None,
    ) -> tuple[RolloutSummary, ...]:
        found = self._store.group_members(run, task=task, group=group, within=self._ids(within))
        return tuple(self._row(row) for row in found)

    def labels(self, within: Within = None) -> tuple[LabelCount, ...]:
        return self._store.labels(self._ids(within))

    def views(self) -> tuple[SavedView, ...]:
        """Those that have a level the reader meets; a name and a query can tell much. Who
        saved them is for curators."""
        return tuple(
            replace(view, who="")
            for view in self._store.views()
            if self._view_level(view.name) in self._levels
        )

    # -- about no rollout

    def certificate(self, certificate_id: str) -> Certificate | None:
        return self._store.certificate(certificate_id)

    def latest_certificate(
        self, *, engine_name: str | None = None, model: str | None = None
    ) -> Certificate | None:
        return self._store.latest_certificate(engine_name=engine_name, model=model)

    def vocabulary(self, tokenizer_id: TokenizerId) -> tuple[VocabularyEntry, ...]:
        return self._store.vocabulary(tokenizer_id)

    def weight_updates(self, limit: int = 100) -> tuple[WeightUpdate, ...]:
        """When which version came; what was done is about the server's machine."""
        found = self._store.weight_updates(limit)
        return tuple(replace(each, detail={}, engine_weight_label=None) for each in found)

    def health(self) -> StoreHealth:
        """Without the path, sizes and words that are about the server's machine."""
        health = self._store.health()
        return replace(
            health,
            path=_name(health.path),
            size_bytes=0,
            wal_bytes=0,
            free_bytes=0,
            quarantined=0,
            messages=(),
        )

    # -- how

    def _sees(self, rollout_id: RolloutId) -> bool:
        return rollout_id in self._visible

    def _ids(self, within: Within) -> Ids:
        if self._listed is None:
            self._listed = self._visible - self._hiding.unlisted()
        return self._listed if within is None else self._listed & within

    def _within(self, query: RolloutQuery) -> RolloutQuery:
        return replace(query, within=self._ids(query.within))

    def _row(self, row: RolloutSummary) -> RolloutSummary:
        return replace(
            row,
            run=self._hiding.text(row.run),
            task=self._words(row.task),
            group=self._words(row.group),
            harness=self._words(row.harness),
            model=self._hiding.text(row.model),
        )

    def _covered(self, annotation: Annotation) -> Annotation:
        about = annotation.rollout_id
        return replace(
            annotation,
            note=self._words(annotation.note, about),
            label=self._words(annotation.label, about),
            who="",
        )

    def _words(self, text: str | None, about: RolloutId | None = None) -> str | None:
        return self._hiding.text(text, about) if text is not None else None


def _name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]

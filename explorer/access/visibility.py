"""Who may see which rollouts: levels set on rollouts, runs and saved views.

Owns: the levels that were set, and which one holds for a rollout.
Must not know: what a view matches (it is told), who asks.

A level on the rollout itself wins. Else the most closed of those on its run and on the views
that match it holds. Else the setting's default.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.database import AccessDatabase, Rows, now_us
from explorer.access.people import Caller
from explorer.access.policy import Level, most_closed
from explorer.access.tables import VISIBILITY


class Target(StrEnum):
    """What a level may be set on."""

    ROLLOUT = "rollout"
    RUN = "run"
    VIEW = "view"


@dataclass(frozen=True, slots=True)
class LevelRow:
    """A level that stands, and who set it."""

    target: Target
    object_id: str
    level: Level
    who: str
    reason: str
    time_us: int


@dataclass(frozen=True, slots=True)
class Holds:
    """The level that holds for a rollout, and what it was set on."""

    level: Level
    because: str


class Visibility:
    """The levels of one server; safe from any thread, answered from memory.

    Args:
        database: where levels are kept.
        audit: gets a row for every change.
        default: holds where nothing was set.
    """

    def __init__(
        self,
        database: AccessDatabase,
        audit: AuditLog,
        default: Level,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self.default = default
        self._database = database
        self._audit = audit
        self._clock = clock
        self._lock = threading.Lock()
        self._rows = database.read(_standing)
        self.version = 0

    @property
    def rows(self) -> tuple[LevelRow, ...]:
        """Every level that stands."""
        return tuple(self._rows.values())

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views that have a level."""
        return tuple(name for target, name in list(self._rows) if target is Target.VIEW)

    def set(
        self, caller: Caller, target: Target, object_id: str, level: Level | None, reason: str
    ) -> None:
        """Sets a level, or takes it away where `level` is None.

        Raises:
            StoreFailed: it cannot be written; nothing changed.
        """
        now = self._clock()

        def write(rows: Rows) -> None:
            key = {"object_kind": target.value, "object_id": object_id}
            rows.insert(
                VISIBILITY,
                {
                    **key,
                    "sequence": rows.count(VISIBILITY, key),
                    "set_time": now,
                    "level": level.value if level is not None else None,
                    "who": caller.subject,
                    "reason": reason,
                },
            )
            said = level.value if level is not None else "unset"
            self._audit.append(
                Entry.by(
                    caller,
                    Event.VISIBILITY_SET,
                    f"{target.value} {object_id}",
                    reason=reason,
                    detail={"level": said},
                ),
                rows,
            )

        with self._lock:
            self._database.write(write)
            changed = dict(self._rows)
            if level is None:
                changed.pop((target, object_id), None)
            else:
                changed[target, object_id] = LevelRow(
                    target, object_id, level, caller.subject, reason, now
                )
            self._rows = changed
            self.version += 1

    def own(self, target: Target, object_id: str) -> Level | None:
        """The level that was set on this very object."""
        row = self._rows.get((target, object_id))
        return row.level if row is not None else None

    def holds(self, rollout_id: str, run: str, views: Iterable[str]) -> Holds:
        """Which level holds for a rollout of `run` that these `views` match."""
        rows = self._rows
        row = rows.get((Target.ROLLOUT, rollout_id))
        if row is not None:
            return Holds(row.level, "set on the rollout")
        found: list[tuple[Level, str]] = []
        row = rows.get((Target.RUN, run))
        if row is not None:
            found.append((row.level, f"set on the run {run}"))
        for name in views:
            row = rows.get((Target.VIEW, name))
            if row is not None:
                found.append((row.level, f"set on the view {name}"))
        if not found:
            return Holds(self.default, "the server's default")
        level = most_closed([level for level, _ in found])
        return Holds(level, next(why for each, why in found if each is level))

    def levels(
        self, rollouts: Mapping[str, str], views: Mapping[str, frozenset[str]]
    ) -> dict[str, Level]:
        """The level of every rollout (its id and run); `views` says what each matches."""
        matched: dict[str, list[str]] = {}
        for name, members in views.items():
            for rollout_id in members:
                matched.setdefault(rollout_id, []).append(name)
        return {
            rollout_id: self.holds(rollout_id, run, matched.get(rollout_id, ())).level
            for rollout_id, run in rollouts.items()
        }


def _standing(rows: Rows) -> dict[tuple[Target, str], LevelRow]:
    found: dict[tuple[Target, str], LevelRow] = {}
    for row in rows.select(VISIBILITY, None, "ORDER BY object_kind, object_id, sequence"):
        target = Target(row["object_kind"])
        key = (target, row["object_id"])
        if row["level"] is None:
            found.pop(key, None)
            continue
        found[key] = LevelRow(
            target, key[1], Level(row["level"]), row["who"], row["reason"], row["set_time"]
        )
    return found

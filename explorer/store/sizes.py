"""How much each rollout takes, for limits on what is kept.

Owns: the sum of the bytes of a rollout's rows. Must not know: limits.

DuckDB compresses what it writes, so the file grows by less than these numbers; they are the
same whoever asks, which the file's size is not.
"""
# ruff: noqa: S608 (the fragments are constants of this package)

from __future__ import annotations

from dataclasses import dataclass

from explorer import columns
from explorer.columns import Kind
from explorer.records import RolloutId
from explorer.store.database import Database

_SIZED = {Kind.BLOB: "octet_length", Kind.TEXT: "strlen", Kind.JSON: "strlen"}
_ROW = 64  # numbers, times and flags of a row, roughly
_CALL_BYTES = " + ".join(
    f"coalesce({_SIZED[column.kind]}({column.name}), 0)"
    for column in columns.CALL.columns
    if column.kind in _SIZED
)
_SQL = f"""
SELECT r.rollout_id, r.run, epoch_us(r.created_time), coalesce(e.closed, false),
  coalesce(c.size, 0) + {_ROW}
FROM rollout r
LEFT JOIN (SELECT rollout_id, bool_or(kind = 'closed') AS closed,
    bool_or(kind = 'deleted') AS deleted FROM rollout_event GROUP BY rollout_id) e
  USING (rollout_id)
LEFT JOIN (SELECT rollout_id, sum({_CALL_BYTES} + {_ROW}) AS size FROM call
  GROUP BY rollout_id) c USING (rollout_id)
WHERE NOT coalesce(e.deleted, false)
ORDER BY r.created_time, r.rollout_id"""


@dataclass(frozen=True, slots=True)
class RolloutSize:
    """What one rollout takes (bytes)."""

    rollout_id: RolloutId
    run: str
    created_us: int
    closed: bool
    size: int


class SizeReader:
    """The part of a store that measures; mixed into it."""

    _database: Database

    def sizes(self) -> tuple[RolloutSize, ...]:
        """Every rollout that is not deleted, the oldest first."""
        with self._database.reading() as cursor:
            rows = cursor.execute(_SQL).fetchall()
        return tuple(RolloutSize(RolloutId(row[0]), *row[1:]) for row in rows)

    def n_deleted(self) -> int:
        """Deleted rollouts whose bytes are still in the file."""
        with self._database.reading() as cursor:
            found = cursor.execute(
                "SELECT count(DISTINCT rollout_id) FROM rollout_event WHERE kind = 'deleted'"
            ).fetchone()
        return int(found[0]) if found else 0

"""Rows of issued receipts, and reading them.

Owns: these queries. Must not know: what a receipt holds, how it is signed.
"""

from __future__ import annotations

from explorer import columns
from explorer.records import RolloutId
from explorer.store.database import Database, select_list
from explorer.store.rows import CHECK, Row
from explorer.store.seals import Seal


def encode_seal(seal: Seal) -> tuple[columns.Table, Row]:
    """The table and the row of a seal."""
    row: Row = (
        *(seal.rollout_id, seal.number, seal.time_us, seal.sha256),
        *(seal.algorithm, seal.key_id, seal.signature),
    )
    return columns.RECEIPT, CHECK["receipt"](row)


class SealReader:
    """Reads issued receipts from an open database."""

    _database: Database

    def seals(self, rollout_id: RolloutId) -> tuple[Seal, ...]:
        """Every receipt that was issued for a rollout, by number."""
        sql = (
            f"SELECT {select_list(columns.RECEIPT)} FROM receipt "  # noqa: S608
            "WHERE rollout_id = ? ORDER BY number"
        )
        with self._database.reading() as cursor:
            rows = cursor.execute(sql, [rollout_id]).fetchall()
        return tuple(Seal(RolloutId(row[0]), *row[1:]) for row in rows)

    def seals_due(self) -> tuple[RolloutId, ...]:
        """Closed rollouts for which fewer receipts were issued than are due: one for the
        closing, one for each reward that was told afterwards."""
        sql = (
            "SELECT e.rollout_id FROM rollout_event e JOIN ("
            "  SELECT rollout_id, min(sequence) AS place FROM rollout_event"
            "  WHERE kind = 'closed' GROUP BY rollout_id"
            ") c ON e.rollout_id = c.rollout_id "
            "WHERE e.kind IN ('closed', 'reward') AND (e.sequence = c.place "
            "  OR (e.sequence > c.place AND e.reward IS NOT NULL)) "
            "AND NOT EXISTS (SELECT 1 FROM rollout_event d "
            "  WHERE d.rollout_id = e.rollout_id AND d.kind = 'deleted') "
            "GROUP BY e.rollout_id HAVING count(*) > ("
            "  SELECT count(*) FROM receipt r WHERE r.rollout_id = e.rollout_id) "
            "ORDER BY e.rollout_id DESC"
        )
        with self._database.reading() as cursor:
            return tuple(RolloutId(row[0]) for row in cursor.execute(sql).fetchall())

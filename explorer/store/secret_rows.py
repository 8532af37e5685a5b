"""Rows of what is kept about secrets, and reading them.

Owns: these queries, and which rollouts still wait for a person.
Must not know: how a secret is found, what is done about one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer import columns
from explorer.records import RolloutId
from explorer.store.database import Database, select_list
from explorer.store.rows import CHECK, Row
from explorer.store.secret_marks import SecretDecision, SecretMark, SecretRecord, SecretRow


def encode_secret(record: SecretRecord) -> tuple[columns.Table, Row]:
    """The table and the row of a record."""
    r: Any = record
    row: Row
    if isinstance(record, SecretMark):
        row = (r.rollout_id, r.time_us, r.version, r.stamp, r.n_secrets, r.n_paths)
        return columns.SECRET_SCAN, CHECK["secret_scan"](row)
    if isinstance(record, SecretRow):
        row = (r.rollout_id, r.finding_id, r.time_us, r.kind, r.blocks, r.listed)
        return columns.SECRET_FINDING, CHECK["secret_finding"](row)
    row = (
        r.decision_id, r.rollout_id, r.finding_id, r.time_us, r.decision, r.who, r.reason,
    )  # fmt: skip
    return columns.SECRET_DECISION, CHECK["secret_decision"](row)


class SecretReader:
    """Reads what is kept about secrets from an open database."""

    _database: Database

    def secret_marks(self) -> Mapping[RolloutId, SecretMark]:
        """The latest mark of every rollout that was scanned."""
        sql = (
            f"SELECT {select_list(columns.SECRET_SCAN)} FROM secret_scan "  # noqa: S608
            "QUALIFY row_number() OVER (PARTITION BY rollout_id ORDER BY scanned_time DESC) = 1"
        )
        with self._database.reading() as cursor:
            rows = cursor.execute(sql).fetchall()
        return {RolloutId(row[0]): SecretMark(RolloutId(row[0]), *row[1:]) for row in rows}

    def secret_mark(self, rollout_id: RolloutId) -> SecretMark | None:
        """The latest mark of one rollout."""
        sql = (
            f"SELECT {select_list(columns.SECRET_SCAN)} FROM secret_scan "  # noqa: S608
            "WHERE rollout_id = ? ORDER BY scanned_time DESC LIMIT 1"
        )
        with self._database.reading() as cursor:
            row = cursor.execute(sql, [rollout_id]).fetchone()
        return None if row is None else SecretMark(RolloutId(row[0]), *row[1:])

    def secret_rows(self, rollout_id: RolloutId) -> tuple[SecretRow, ...]:
        """Every finding that was ever marked in a rollout."""
        sql = (
            f"SELECT {select_list(columns.SECRET_FINDING)} FROM secret_finding "  # noqa: S608
            "WHERE rollout_id = ? ORDER BY found_time, finding_id"
        )
        with self._database.reading() as cursor:
            rows = cursor.execute(sql, [rollout_id]).fetchall()
        return tuple(SecretRow(RolloutId(row[0]), *row[1:]) for row in rows)

    def secret_decisions(self, rollout_id: RolloutId) -> tuple[SecretDecision, ...]:
        """Every decision about a rollout's findings, in the order they were made."""
        sql = (
            f"SELECT {select_list(columns.SECRET_DECISION)} FROM secret_decision "  # noqa: S608
            "WHERE rollout_id = ? ORDER BY decided_time, decision_id"
        )
        with self._database.reading() as cursor:
            rows = cursor.execute(sql, [rollout_id]).fetchall()
        return tuple(SecretDecision(row[0], RolloutId(row[1]), *row[2:]) for row in rows)

    def secrets_undecided(self) -> frozenset[RolloutId]:
        """The rollouts in which something that was marked waits for a person."""
        return self._with_secrets(
            "f.blocks AND NOT EXISTS (SELECT 1 FROM secret_decision d "
            "WHERE d.rollout_id = f.rollout_id AND d.finding_id = f.finding_id)"
        )

    def secrets_in_lists(self) -> frozenset[RolloutId]:
        """The rollouts of which a list would tell a secret that nobody let go."""
        return self._with_secrets(
            "f.blocks AND f.listed AND coalesce((SELECT arg_max(d.decision, d.decided_time) "
            "FROM secret_decision d WHERE d.rollout_id = f.rollout_id "
            "AND d.finding_id = f.finding_id), 'undecided') IN ('undecided', 'withhold')"
        )

    def _with_secrets(self, which: str) -> frozenset[RolloutId]:
        sql = f"SELECT DISTINCT f.rollout_id FROM secret_finding f WHERE {which}"  # noqa: S608
        with self._database.reading() as cursor:
            return frozenset(RolloutId(row[0]) for row in cursor.execute(sql).fetchall())

"""Rows of weight updates, and reading them.

Owns: these queries. Must not know: what a fence does with them.
"""

from __future__ import annotations

from explorer import columns
from explorer.records import WeightUpdate
from explorer.store import jsontext
from explorer.store.database import Database, select_list
from explorer.store.rows import CHECK, Row


def encode_weight_update(update: WeightUpdate) -> tuple[columns.Table, Row]:
    """The table and the row of an update."""
    row: Row = (
        *(update.number, update.time_us, update.state, update.weight_version),
        *(update.engine_weight_label, jsontext.dump(update.detail)),
    )
    return columns.WEIGHT_UPDATE, CHECK["weight_update"](row)


class WeightReader:
    """Reads weight updates from an open database."""

    _database: Database

    def weight_updates(self, limit: int = 100) -> tuple[WeightUpdate, ...]:
        """What was told about the engine's weights, the newest first."""
        sql = (
            f"SELECT {select_list(columns.WEIGHT_UPDATE)} FROM weight_update "  # noqa: S608
            "ORDER BY number DESC LIMIT ?"
        )
        with self._database.reading() as cursor:
            rows = cursor.execute(sql, [limit]).fetchall()
        return tuple(
            WeightUpdate(number, time_us, state, version, label, jsontext.load(detail))
            for number, time_us, state, version, label, detail in rows
        )

"""Labels, notes and saved views as rows, and reading them back.

Owns: their encoding and queries. Must not know: the judge, pages, HTTP.

Rows are only ever added. Taking an annotation back is a row that names the one it
withdraws; saving a view again, or dropping it, is a later row of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from explorer import columns
from explorer.records import CallId, RolloutId
from explorer.store.database import Database, select_list
from explorer.store.queries import Within
from explorer.store.remarks import Annotation, LabelCount, SavedView
from explorer.store.rows import CHECK, Row

ALIVE = (
    "a.rollout_id NOT IN (SELECT rollout_id FROM rollout_event WHERE kind = 'deleted') "
    "AND a.withdraws IS NULL AND a.annotation_id NOT IN "
    "(SELECT withdraws FROM annotation WHERE withdraws IS NOT NULL)"
)


def encode_annotation(annotation: Annotation) -> Row:
    """Encode an annotation as an `annotation` row."""
    a = annotation
    row = (
        a.annotation_id, a.rollout_id, a.time_us, a.who, a.label, a.note, a.call_id,
        a.start, a.end, a.withdraws,
    )  # fmt: skip
    return CHECK["annotation"](row)


def decode_annotation(row: Row) -> Annotation:
    """Decode an `annotation` row."""
    return Annotation(
        row[0], RolloutId(row[1]), row[2], row[3], row[4], row[5],
        None if row[6] is None else CallId(row[6]), row[7], row[8], row[9],
    )  # fmt: skip


def encode_view(view: SavedView) -> Row:
    """Encode a saved view as a `saved_view` row."""
    return CHECK["saved_view"]((view.name, view.time_us, view.who, view.query, view.dropped))


def decode_view(row: Row) -> SavedView:
    """Decode a `saved_view` row."""
    return SavedView(name=row[0], time_us=row[1], who=row[2], query=row[3], dropped=row[4])


class AnnotationReader:
    """Reads annotations and saved views from an open database."""

    _database: Database

    def annotations(self, rollout_id: RolloutId) -> tuple[Annotation, ...]:
        """Return what stands about a rollout, in the order it was written."""
        return tuple(
            decode_annotation(row) for row in self._annotated("a.rollout_id = ?", [rollout_id])
        )

    def annotation(self, annotation_id: str) -> Annotation | None:
        """Return one annotation that was not withdrawn."""
        found = self._annotated("a.annotation_id = ?", [annotation_id])
        return decode_annotation(found[0]) if found else None

    def _annotated(self, where: str, values: Sequence[Any]) -> list[Row]:
        sql = (
            f"SELECT {select_list(columns.ANNOTATION)} FROM annotation a "  # noqa: S608
            f"WHERE {where} AND {ALIVE} ORDER BY a.annotated_time, a.annotation_id"
        )
        with self._database.reading() as cursor:
            return list(cursor.execute(sql, list(values)).fetchall())

    def labels(self, within: Within = None) -> tuple[LabelCount, ...]:
        """Return every label in use with the number of its rollouts, the commonest first."""
        only, ids = "", []
        if within is not None:
            only, ids = "AND a.rollout_id IN (SELECT unnest(?::VARCHAR[]))", [sorted(within)]
        sql = (
            "SELECT a.label, count(DISTINCT a.rollout_id) FROM annotation a "  # noqa: S608
            f"WHERE a.label IS NOT NULL {only} AND {ALIVE} GROUP BY a.label ORDER BY 2 DESC, 1"
        )
        with self._database.reading() as cursor:
            return tuple(LabelCount(*row) for row in cursor.execute(sql, ids).fetchall())

    def views(self) -> tuple[SavedView, ...]:
        """Return the saved views by name."""
        sql = (
            f"SELECT {select_list(columns.SAVED_VIEW)} FROM saved_view "  # noqa: S608
            "QUALIFY row_number() OVER (PARTITION BY name ORDER BY saved_time DESC) = 1 "
            "ORDER BY name"
        )
        with self._database.reading() as cursor:
            found = [decode_view(row) for row in cursor.execute(sql).fetchall()]
        return tuple(view for view in found if not view.dropped)

"""What the page of the SQL console says.

Owns: the context of `/sql` and its parts. Must not know: where the values come from.
"""

# ruff: noqa: RUF009 - `said` only calls `dataclasses.field`

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from explorer.web.contexts import Frame, page, said


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """One column of a table that can be asked."""

    name: str = said("Name of the column.")
    type: str = said("DuckDB's type.")
    unit: str = said("Unit or encoding, empty when there is none.")
    doc: str = said("What it holds.")
    numeric: bool = said("Whether its values are numbers.")


@dataclass(frozen=True, slots=True)
class SqlTable:
    """One table that can be asked."""

    name: str = said("Name of the table.")
    doc: str = said("What a row is.")
    columns: tuple[SqlColumn, ...] = said("Its columns.")


@dataclass(frozen=True, slots=True)
class SqlExample:
    """A query to start from."""

    title: str = said("What it answers.")
    sql: str = said("The query.")
    href: str = said("Address of the form with the query in it; it does not run it.")


@dataclass(frozen=True, slots=True)
class SqlCell:
    """One value of the answer."""

    kind: str = said(
        "`null`, `empty` (a text without characters), `number`, `text` or `bytes`."
    )
    text: str = said("The value as text; hidden characters spelled out, long ones cut.")
    cut: int = said("Characters that were cut off, 0 when none were.")
    href: str = said("Address of the rollout that it names, else empty.")


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The answer of a query that ran."""

    columns: tuple[SqlColumn, ...] = said("Columns with their types.")
    rows: tuple[tuple[SqlCell, ...], ...] = said("Rows, as many as a page shows.")
    n_rows: int = said("Rows shown.")
    truncated: str = said("In words, what cut the answer; empty when it is whole.")
    milliseconds: int = said("From starting the query's process to its end.")
    isolation: str = said("What the query's process was shut off from.")
    taken: str = said("When the copy that it ran over was made, ISO 8601.")
    covers: str = said("How much of the store that copy holds.")


@page
@dataclass(frozen=True, slots=True)
class SqlPage:
    """`/sql`: the form; what was posted to it has a result or an error."""

    template: ClassVar[str] = "sql.html"
    frame: Frame = said("What surrounds the page.")
    sql: str = said("The query in the form.")
    hidden: str = said("The query with hidden characters spelled out, empty if it has none.")
    link: str = said("Address of the form with this query in it.")
    most_rows: int = said("Rows that a page shows at most.")
    file_rows: int = said("Rows that a file holds at most.")
    limits: str = said("What one query may use, in words.")
    result: SqlResult | None = said("The answer, null when nothing ran.")
    error: str = said("Why there is no answer, empty when there is one or nothing ran.")
    examples: tuple[SqlExample, ...] = said("Queries to start from.")
    tables: tuple[SqlTable, ...] = said("What can be asked.")

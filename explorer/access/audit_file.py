"""The audit log as a file: one JSON object a line, checked without the server.

Owns: writing and checking that file. Must not know: who asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from explorer.access.audit import ZEROS, ChainReport, check_chain
from explorer.access.tables import AUDIT
from explorer.errors import InvalidValue


def file_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """The lines of the file, exactly what the chain was made of."""
    for row in rows:
        yield json.dumps(dict(row), ensure_ascii=True).encode() + b"\n"


def check_file(path: Path, head: str | None) -> dict[str, Any]:
    """Whether the rows of a file follow from each other, and whether `head` is among them.

    Raises:
        InvalidValue: the file is no export of an audit log.
    """
    if not path.is_file():
        raise InvalidValue(f"there is no file {path}; /audit has the log to take along")
    seen: set[str] = {ZEROS}

    def rows() -> Iterator[dict[str, Any]]:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                row = _row(line, number)
                seen.add(row["hash"])
                yield row

    return report_json(check_chain(rows()), head, seen)


def _row(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidValue(f"line {number} is no JSON: export /audit.jsonl again") from error
    if not isinstance(row, dict) or set(row) != set(AUDIT.names):
        raise InvalidValue(f"line {number} is no row of an audit log; export /audit.jsonl")
    return row


def report_json(report: ChainReport, head: str | None, seen: Iterable[str]) -> dict[str, Any]:
    """What a check found; `head_found` is null where no hash was to be looked for."""
    return {
        "rows": report.rows,
        "head": report.head,
        "whole": report.whole,
        "broken_at": report.broken_at,
        "why": report.why,
        "head_found": None if head is None else head in set(seen),
    }

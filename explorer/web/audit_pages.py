"""The page of the audit log, and the log as CSV.

Owns: how a row is told and narrowed. Must not know: the chain, who may read the log.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from explorer.access.audit import AuditLog, Event
from explorer.access.audit_file import file_lines
from explorer.access.tables import AUDIT
from explorer.export.cells import safe_cell
from explorer.web import words
from explorer.web.access import access_of
from explorer.web.contexts import Choice, Crumb
from explorer.web.contexts_grants import AuditPage, AuditRow
from explorer.web.frames import frame, rollout_href, with_query
from explorer.web.grant_routes import audit_filter
from explorer.web.pages import page_and_twin
from explorer.web.pretty import safe_text
from explorer.web.render import respond

router = APIRouter(include_in_schema=False)

ROWS = 100
_GOOD = frozenset(
    (Event.GRANT_APPROVED, Event.GRANT_GIVEN, Event.SIGNED_IN, Event.DATASET_PUBLISHED)
)
_BAD = frozenset(
    (
        Event.REFUSED,
        Event.SIGN_IN_FAILED,
        Event.GRANT_REJECTED,
        Event.GRANT_REVOKED,
        Event.ROLLOUT_DELETED,
        Event.DATASET_FAILED,
    )
)


@page_and_twin(router, "/audit")
async def audit(request: Request) -> Response:
    """Who did what, the newest first, and whether the chain is whole."""
    log = access_of(request).audit
    key = audit_filter(request)
    cursor = request.query_params.get("cursor", "")
    before = int(cursor) if cursor.isdecimal() and len(cursor) < 16 else None
    outline = frame(
        request, title="Audit log", section="audit", crumbs=(Crumb("Audit log", None),)
    )

    def work() -> AuditPage:
        rows = log.page(key, before, ROWS)
        report = log.check()
        following = str(rows[-1]["sequence"]) if len(rows) == ROWS else None
        return AuditPage(
            frame=outline,
            rows=tuple(audit_row(row) for row in rows),
            events=tuple(Choice(each.value, each.value.replace("_", " ")) for each in Event),
            event=key.get("event", ""),
            who=safe_text(key.get("who", "")),
            total=report.rows,
            whole=report.whole,
            newest_hash=report.head,
            why_not="" if report.whole else f"row {report.broken_at}: {report.why}",
            next_href=with_query("/audit", **key, cursor=following) if following else None,
            csv_href=with_query("/audit.csv", **key),
        )

    return await respond(request, work)


def audit_row(row: dict[str, Any]) -> AuditRow:
    """One row of the log as the page tells it."""
    event, detail = row["event"], json.loads(row["detail"])
    outcome = {True: "whole", False: "cut", None: ""}[row["complete"]]
    return AuditRow(
        sequence=row["sequence"],
        when=words.clock(row["event_time"]),
        event=event,
        tone="good" if event in _GOOD else "bad" if event in _BAD else "",
        who=safe_text(row["who"]),
        name=safe_text(row["name"]),
        address=safe_text(row["address"]),
        object=safe_text(row["object"]),
        short=safe_text(_short(row["object"])),
        href=_href(row["object"]),
        reason=safe_text(row["reason"]),
        detail=safe_text(detail_words(detail)),
        size=words.size(row["bytes"]) if row["bytes"] is not None else "",
        sha256=row["sha256"] or "",
        document=safe_text(str(detail.get("etag", ""))),
        outcome=outcome,
        hash=row["hash"],
    )


def detail_words(detail: Mapping[str, Any]) -> str:
    """Further values of a row, those that say something, without what stands elsewhere."""
    parts = []
    for name, value in detail.items():
        if value in (None, "", [], False) or name == "etag":
            continue
        if name.endswith("_us") and isinstance(value, int):
            name, value = name.removesuffix("_us"), words.clock(value)
        elif isinstance(value, list):
            value = ", ".join(str(each) for each in value)
        parts.append(f"{name.replace('_', ' ')} {value}")
    return " · ".join(parts)


def _short(about: str) -> str:
    kind, _, name = about.partition(" ")
    return f"rollout {words.short_id(name)}" if kind == "rollout" else about


def _href(about: str) -> str | None:
    kind, _, name = about.partition(" ")
    if kind == "rollout" and name:
        return rollout_href(name)
    if kind == "grant" and name:
        return f"/grants/{quote(name, safe='')}"
    if kind == "dataset" and name:
        return f"/datasets/{quote(name, safe='')}"
    return None


@router.get("/audit.csv")
async def audit_csv(request: Request) -> Response:
    """The log as CSV, the oldest row first, with what the chain is checked by."""
    log = access_of(request).audit
    lines = csv_lines(log, audit_filter(request))
    headers = {
        "content-disposition": 'attachment; filename="audit.csv"',
        "cache-control": "private, no-store",
    }
    return StreamingResponse(_in_threads(lines), media_type="text/csv", headers=headers)


@router.get("/audit.jsonl")
async def audit_lines(request: Request) -> Response:
    """The whole log, one JSON object a line: what `audit check FILE` reads."""
    log = access_of(request).audit
    lines = (line.decode() for line in file_lines(log.every()))
    headers = {
        "content-disposition": 'attachment; filename="audit.jsonl"',
        "cache-control": "private, no-store",
    }
    return StreamingResponse(
        _in_threads(lines), media_type="application/x-ndjson", headers=headers
    )


def csv_lines(log: AuditLog, key: dict[str, str]) -> Iterator[str]:
    """The lines of the file."""
    yield _line(AUDIT.names)
    for row in log.every():
        if all(row[name] == value for name, value in key.items()):
            yield _line([safe_cell(row[name]) for name in AUDIT.names])


def _line(cells: Sequence[Any]) -> str:
    made = io.StringIO()
    csv.writer(made).writerow(["" if cell is None else cell for cell in cells])
    return made.getvalue()


async def _in_threads(lines: Iterator[str]) -> AsyncIterator[bytes]:
    def step() -> bytes:
        part = [line for _, line in zip(range(500), lines, strict=False)]
        return "".join(part).encode("utf-8", "replace")

    while part := await asyncio.to_thread(step):
        yield part

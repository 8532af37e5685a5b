"""The SQL console: a form that runs one query of the operator, and its answer.

Owns: its addresses, who may use it, how an answer reads on the page.
Must not know: processes, copies, how a query is kept from doing harm.

A query in the address only fills the form: a link must not make anybody run anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from explorer.capture.ids import is_id
from explorer.errors import AccessDenied, BodyTooLarge, InvalidValue, QueryFailed
from explorer.export.console import FILE_BYTES, FILE_ROWS, Answer, Cell, Console, Typed
from explorer.export.console_files import csv, parquet, text_of
from explorer.web import words
from explorer.web.contexts import Frame
from explorer.web.contexts_sql import SqlCell, SqlColumn, SqlPage, SqlResult
from explorer.web.desk_access import require_change
from explorer.web.frames import frame, rollout_href, with_query
from explorer.web.pages import page_and_twin
from explorer.web.pretty import safe_text
from explorer.web.render import respond
from explorer.web.services import services_of
from explorer.web.sql_schema import NUMBER, examples, tables

router = APIRouter(include_in_schema=False)

MOST_FORM = 128 * 1024
SHOWN_CHARACTERS = 400


def console_of(request: Request) -> Console:
    """The application's one console; made when first asked for.

    Raises:
        AccessDenied: it is off.
    """
    services = services_of(request)
    if not services.settings.sql_console_on:
        raise AccessDenied(
            "the SQL console is off on this server; its operator turns it on with "
            "ROLLOUT_EXPLORER_SQL_CONSOLE=1, or `--sql-console`"
        )
    state = request.app.state
    if not hasattr(state, "console"):
        store = services.store
        state.console = Console(store.snapshot, lambda: store.health().commits)
    return cast("Console", state.console)


async def _read_sql(request: Request) -> str:
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MOST_FORM:
            raise BodyTooLarge(f"the form of a query has at most {MOST_FORM} bytes")
    try:
        given = parse_qs(raw.decode("utf-8"), keep_blank_values=True, max_num_fields=4)
    except ValueError as error:
        raise InvalidValue(f"the form cannot be read: {error}") from error
    return given.get("sql", [""])[0].replace("\r\n", "\n")


def _frame(request: Request, sql: str) -> Frame:
    outline = frame(request, title="SQL", section="sql", crumbs=())
    return replace(outline, twin=with_query("/sql.json", sql=sql))


def _page(outline: Frame, console: Console, sql: str) -> SqlPage:
    limits = console.limits
    return SqlPage(
        frame=outline,
        sql=sql,
        hidden=spelled if (spelled := safe_text(sql)) != sql else "",
        link=with_query("/sql", sql=sql),
        most_rows=limits.rows,
        file_rows=FILE_ROWS,
        limits=(
            f"{limits.execution_s:g} s, {limits.cpu_s} s of CPU, "
            f"{limits.memory // 2**20} MiB beside the copy, one statement"
        ),
        result=None,
        error="",
        examples=examples(),
        tables=tables(),
    )


@page_and_twin(router, "/sql")
async def form(request: Request) -> Response:
    """The form, filled from the address; runs nothing."""
    console = console_of(request)
    sql = request.query_params.get("sql", "").replace("\r\n", "\n")
    outline = _frame(request, sql)
    return await respond(request, lambda: _page(outline, console, sql))


@router.post("/sql", dependencies=[Depends(require_change)])
@router.post("/sql.json", dependencies=[Depends(require_change)])
async def run(request: Request) -> Response:
    """Runs the query and shows its answer, or why there is none."""
    console = console_of(request)
    sql = await _read_sql(request)
    outline = _frame(request, sql)
    shown = _page(outline, console, sql)
    status = 200
    try:
        answer = await asyncio.to_thread(console.run, sql)
        shown = replace(shown, result=await asyncio.to_thread(_result, answer))
    except QueryFailed as error:
        shown = replace(shown, error=safe_text(error.message))
        status = error.status
    return await respond(request, lambda: shown, status=status)


@router.post("/sql.csv", dependencies=[Depends(require_change)])
async def run_csv(request: Request) -> Response:
    """Runs the query and sends its answer as CSV."""
    return await _file(request, "csv")


@router.post("/sql.parquet", dependencies=[Depends(require_change)])
async def run_parquet(request: Request) -> Response:
    """Runs the query and sends its answer as Parquet."""
    return await _file(request, "parquet")


async def _file(request: Request, kind: str) -> Response:
    console = console_of(request)
    sql = await _read_sql(request)

    def work() -> tuple[bytes, str]:
        answer = console.run(sql, FILE_ROWS, FILE_BYTES)
        return (csv(answer) if kind == "csv" else parquet(answer)), answer.truncated

    body, truncated = await asyncio.to_thread(work)
    media = "text/csv; charset=utf-8" if kind == "csv" else "application/vnd.apache.parquet"
    headers = {
        "content-disposition": f'attachment; filename="query.{kind}"',
        "cache-control": "private, no-store",
        "x-truncated": truncated or "no",
    }
    return Response(body, media_type=media, headers=headers)


def _result(answer: Answer) -> SqlResult:
    snapshot = answer.snapshot
    covers = f"all {words.plural(snapshot.total_rollouts, 'rollout')}"
    if snapshot.n_rollouts < snapshot.total_rollouts:
        covers = (
            f"the newest {snapshot.n_rollouts:,} of {snapshot.total_rollouts:,} rollouts, "
            "because the copy may not grow further"
        )
    kinds = [kind for _, kind in answer.columns]
    cut = {
        "rows": f"Only the first {len(answer.rows):,} rows are here; there are more.",
        "bytes": (
            f"The answer was cut after {len(answer.rows):,} rows: it is too large. "
            "Select fewer columns, or shorten texts with left(…)."
        ),
    }
    return SqlResult(
        columns=tuple(
            SqlColumn(
                name=safe_text(name),
                type=safe_text(kind),
                unit="",
                doc="",
                numeric=NUMBER.fullmatch(kind) is not None,
            )
            for name, kind in answer.columns
        ),
        rows=tuple(
            tuple(
                _cell(value, kind, name)
                for value, kind, (name, _) in zip(row, kinds, answer.columns, strict=True)
            )
            for row in answer.rows
        ),
        n_rows=len(answer.rows),
        truncated=cut.get(answer.truncated, ""),
        milliseconds=round(answer.seconds * 1000),
        isolation=(
            f"a process of its own; user: {answer.isolation.get('user', 'unknown')}; "
            f"network: {answer.isolation.get('network', 'unknown')}"
        ),
        taken=words.iso(snapshot.taken_us) or "",
        covers=covers,
    )


def _cell(value: Cell | Typed, kind: str, column: str) -> SqlCell:
    if value is None:
        return SqlCell("null", "", 0, "")
    text = text_of(value, kind)
    if text == "":
        return SqlCell("empty", "", 0, "")
    what = "text"
    if isinstance(value, bytes):
        what = "bytes"
    elif NUMBER.fullmatch(kind):
        what = "number"
    href = rollout_href(text) if column == "rollout_id" and is_id(text) else ""
    cut = max(0, len(text) - SHOWN_CHARACTERS)
    return SqlCell(what, safe_text(text[:SHOWN_CHARACTERS]), cut, href)

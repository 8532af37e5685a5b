"""The SQL console through HTTP: who may ask, what comes back, and that nobody else notices."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Iterator
from html import unescape
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from explorer.engine.tiny import TinyEngine
from explorer.settings import load
from explorer.web.sql_schema import EXAMPLES, tables
from tests.live import Live, serving
from tests.web import seeds
from tests.web.parsing import lookup, read

PAGE = {"sec-fetch-site": "same-origin"}
HOSTILE = "SELECT '<script>alert(1)</script>' AS \"<img src=x>\", 'a\u202eb' AS bidi, NULL, ''"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("sql") / "store.duckdb"
    with serving(TinyEngine(), store) as running:
        filling = seeds.fill(running.store)
        asyncio.run_coroutine_threadsafe(filling, running.loop).result(60)
        yield running


def post(live: Live, sql: str, kind: str = "", headers: Any = PAGE) -> httpx.Response:
    return httpx.post(f"{live.url}/sql{kind}", data={"sql": sql}, headers=headers, timeout=60)


def test_the_address_fills_the_form_and_runs_nothing(live: Live) -> None:
    sql = "SELECT '</textarea><script>alert(1)</script>'"
    page = httpx.get(f"{live.url}/sql", params={"sql": sql})
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "</textarea><script>" not in page.text
    twin = httpx.get(f"{live.url}/sql.json", params={"sql": sql}).json()
    assert (twin["sql"], twin["result"], twin["error"]) == (sql, None, "")


def test_an_answer_is_shown_as_text(live: Live) -> None:
    page = post(live, HOSTILE)
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "<img" not in page.text
    # The form has the query as it was written, and says what cannot be seen in it.
    assert "\u202e" not in page.text.partition("</textarea>")[2]
    assert "hidden or reordering characters" in page.text
    assert ">NULL<" in page.text
    assert ">empty text<" in page.text
    twin = post(live, HOSTILE, ".json").json()["result"]
    assert [cell["kind"] for cell in twin["rows"][0]] == ["text", "text", "null", "empty"]
    for number in read(page.text).numbers:
        key = number.attributes["data-k"] or ""
        if not key.endswith("milliseconds"):
            value = lookup(post(live, HOSTILE, ".json").json(), key)
            assert number.attributes["value"] == str(value)


def test_rollouts_are_linked(live: Live) -> None:
    name, _ = live.create(task="linked")
    found = post(live, f"SELECT rollout_id FROM rollout WHERE rollout_id = '{name}'", ".json")
    assert found.json()["result"]["rows"][0][0]["href"] == f"/rollouts/{name}"


def test_an_error_is_the_databases_and_keeps_the_form(live: Live) -> None:
    refused = post(live, "SELECT nothing FROM rollout")
    assert refused.status_code == 422
    assert "Binder Error" in refused.text
    assert "SELECT nothing FROM rollout" in unescape(refused.text)
    for kind in (".csv", ".parquet"):
        assert post(live, "SELECT nothing", kind).status_code == 422


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/never-written.csv'",
        "ATTACH '{store}'",
        "SELECT * FROM read_blob('{store}')",
        "COPY (SELECT 1) TO '{store}.wal'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "CALL enable_logging(storage = 'file')",
        "SELECT length(repeat('x', 4000000000))",
        "SELECT 1; SELECT 2",
    ],
)
def test_attacks_are_refused_over_http(live: Live, sql: str) -> None:
    refused = post(live, sql.format(store=live.store.path))
    assert refused.status_code == 422
    assert "root:" not in refused.text
    assert httpx.get(f"{live.url}/healthz").status_code == 200


def test_the_server_answers_while_queries_run(live: Live) -> None:
    heavy = "SELECT count(*) FROM range(10000000) a, range(10000000) b"
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(post(live, heavy).status_code))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    slowest = 0.0
    while any(thread.is_alive() for thread in threads):
        answer = httpx.get(f"{live.url}/healthz", timeout=10)
        assert answer.status_code == 200
        slowest = max(slowest, answer.elapsed.total_seconds())
    assert codes == [422, 422]
    assert slowest < 2


def test_files(live: Live) -> None:
    sql = "SELECT rollout_id, reward FROM summary ORDER BY rollout_id"
    csv = post(live, sql, ".csv")
    assert csv.headers["content-disposition"] == 'attachment; filename="query.csv"'
    assert csv.text.splitlines()[0] == '"rollout_id","reward"'
    table = pq.read_table(io.BytesIO(post(live, sql, ".parquet").content))
    assert table.num_rows == len(csv.text.splitlines()) - 1 >= len(seeds.SEEDS)
    many = post(live, "SELECT range FROM range(100001)", ".csv")
    assert many.headers["x-truncated"] == "rows"


@pytest.mark.parametrize("kind", ["", ".json", ".csv", ".parquet"])
def test_only_the_operator_asks(live: Live, kind: str) -> None:
    # A program on this machine without the token, and another site's page.
    assert post(live, "SELECT 1", kind, {}).status_code == 401
    assert post(live, "SELECT 1", kind, {"sec-fetch-site": "cross-site"}).status_code == 403
    behind = PAGE | {"x-forwarded-for": "192.0.2.1"}
    assert post(live, "SELECT 1", kind, behind).status_code == 401
    token = {"authorization": f"Bearer {live.token}"}
    assert post(live, "SELECT 1", kind, token).status_code == 200


def test_the_form_is_the_operators(live: Live) -> None:
    elsewhere = {"x-forwarded-for": "192.0.2.1"}
    assert httpx.get(f"{live.url}/sql", headers=elsewhere).status_code == 401


def test_a_form_has_a_size(live: Live) -> None:
    assert post(live, "x" * 200_000).status_code == 413
    assert post(live, "SELECT 1" + " " * 20_000).status_code == 422


@pytest.mark.parametrize("title", [title for title, _ in EXAMPLES])
def test_every_example_works(live: Live, title: str) -> None:
    twin = post(live, dict(EXAMPLES)[title], ".json").json()
    assert twin["error"] == ""
    assert twin["result"]["columns"]


def test_the_schema_on_the_page_is_the_schema(live: Live) -> None:
    sql = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
    rows = post(live, sql, ".json").json()["result"]["rows"]
    found = {tuple(cell["text"] for cell in row) for row in rows}
    said = {(table.name, col.name, col.type) for table in tables() for col in table.columns}
    assert found == said
    assert all(column.doc for table in tables() for column in table.columns)


def test_it_is_off_on_a_public_address_and_where_it_is_switched_off(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    assert load().sql_console_on
    assert not load(host="0.0.0.0", admin_token="x").sql_console_on
    assert load(host="0.0.0.0", admin_token="x", sql_console=True).sql_console_on
    store = tmp_path_factory.mktemp("off") / "store.duckdb"
    with serving(TinyEngine(), store, sql_console=False) as off:
        token = {"authorization": f"Bearer {off.token}"}
        assert post(off, "SELECT 1", "", token).status_code == 403
        said = httpx.get(f"{off.url}/sql", headers=token)
        assert said.status_code == 403
        assert "--sql-console" in said.text

"""A list as CSV and Parquet: all matching rows, the same filters, and no formulas."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from explorer.export.cells import safe_cell
from explorer.records import EventKind, RolloutEvent
from explorer.store.queries import JudgementRow
from explorer.web import list_files
from explorer.web.list_files import COLUMNS
from tests.web import seeds
from tests.web.conftest import Site
from tests.web.serving import serving


def table(site: Site, query: str) -> list[dict[str, str]]:
    """The rows of the CSV file."""
    return list(csv.DictReader(io.StringIO(site.text(f"/rollouts.csv?{query}"))))


@pytest.mark.parametrize("query", ["", "state=closed&sort=-reward", "trainable=no", "q=fix"])
def test_files_hold_what_the_list_shows(site: Site, query: str) -> None:
    shown = site.json(f"/rollouts.json?{query}")["rows"]
    assert isinstance(shown, list)
    rows = table(site, query)
    assert [row["rollout_id"] for row in rows] == [row["rollout_id"] for row in shown]
    body = site.client.get(f"/rollouts.parquet?{query}")
    assert body.headers["content-disposition"] == 'attachment; filename="rollouts.parquet"'
    columns = pq.read_table(io.BytesIO(body.content)).to_pydict()
    assert columns["rollout_id"] == [row["rollout_id"] for row in shown]
    for name, twin in (
        ("reward", "reward"),
        ("supervised_tokens", "supervised_tokens"),
        ("trainable", "trainable"),
        ("calls", "n_calls"),
        ("share", "share"),
    ):
        assert columns[name] == [row[twin] for row in shown], name
        wanted = ["" if row[twin] is None else row[twin] for row in shown]
        told = [
            str(value).lower() if isinstance(value, bool) else str(value) for value in wanted
        ]
        assert [row[name] for row in rows] == told, name


def test_files_refuse_what_cannot_be_read(site: Site) -> None:
    for kind in ("csv", "parquet"):
        reply = site.client.get(f"/rollouts.{kind}?state=asleep")
        assert reply.status_code == 422
        assert "asleep" in reply.text


def test_empty_lists_are_files_too(site: Site) -> None:
    assert table(site, "q=nothing-like-this") == []
    body = site.client.get("/rollouts.parquet?q=nothing-like-this").content
    assert pq.read_table(io.BytesIO(body)).num_rows == 0


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ('=HYPERLINK("https://evil.example","x")', '\'=HYPERLINK("https://evil.example","x")'),
        ("-1+1", "'-1+1"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("  =1", "'  =1"),
        ("+1", "'+1"),
        ("@x", "'@x"),
        ("＝1", "'＝1"),
        ("a=1", "a=1"),
        ("", ""),
        (None, ""),
        (-1.5, -1.5),
        (-3, -3),
        (True, "true"),
    ],
)
def test_csv_01_text_that_would_run_gets_an_apostrophe(value: object, cell: object) -> None:
    assert safe_cell(value) == cell


def test_csv_01_in_the_file(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        made = seeds.maker("formula")
        risky = replace(made.rollout, task="=1+1", harness="\t=1", model="-1+1")
        served.call(partial(served.store.add_rollout, risky))
        event = RolloutEvent(risky.rollout_id, -1, 5, EventKind.REWARD, -2.5)
        served.call(partial(served.store.add_event, event))
        (row,) = csv.DictReader(io.StringIO(httpx.get(f"{served.url}/rollouts.csv").text))
        assert (row["task"], row["harness"], row["model"]) == ("'=1+1", "'\t=1", "'-1+1")
        assert row["reward"] == "-2.5"
        body = httpx.get(f"{served.url}/rollouts.parquet").content
        assert pq.read_table(io.BytesIO(body)).column("task").to_pylist() == ["=1+1"]


def test_files_come_in_parts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table(site, "")
    monkeypatch.setattr(list_files, "ROWS_AT_ONCE", 2)
    assert len(whole) > 4
    assert table(site, "") == whole
    body = site.client.get("/rollouts.parquet").content
    file = pq.ParquetFile(io.BytesIO(body))
    assert file.num_row_groups == (len(whole) + 1) // 2
    assert file.read().num_rows == len(whole)


def test_the_columns_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "filters.md").read_text("utf-8")
    for column in COLUMNS:
        assert f"| `{column.name}` | {column.help} |" in page, column.name


def test_a_verdict_against_a_rollout_leaves_nothing_trainable(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        made = seeds.maker("refused")
        served.call(partial(served.store.add_rollout, made.rollout))
        row = JudgementRow(
            made.rollout.rollout_id, "x", "p", 9, False, 60, 100, 1, 1, 0, ("no_reward",)
        )
        served.call(partial(served.store.add_judgement, row))
        twin = httpx.get(f"{served.url}/rollouts.json").json()["rows"][0]
        assert (twin["supervised_tokens"], twin["share"], twin["share_text"]) == (0, 0.0, "0 %")
        (line,) = csv.DictReader(io.StringIO(httpx.get(f"{served.url}/rollouts.csv").text))
        assert (line["supervised_tokens"], line["share"]) == ("0", "0.0")

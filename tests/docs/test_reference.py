"""The reference names everything there is, and is what the code says now."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import pytest

from explorer import columns, records
from explorer.app import Application
from explorer.engine.scripted import ScriptedEngine
from explorer.settings import PREFIX, Settings, load
from explorer.store.duckdb_store import DuckDBStore
from explorer.trace.findings import FINDINGS
from explorer.trace.policy import Policy
from explorer.web import contexts
from explorer.wire.routes import ROUTES_IN_WORDS, find_route
from scripts import make_docs
from tests.docs.markdown import REFERENCE


def read(name: str) -> str:
    """A page of the reference."""
    return (REFERENCE / name).read_text(encoding="utf-8")


def test_generated_pages_are_up_to_date() -> None:
    assert make_docs.stale(REFERENCE) == [], "run `python scripts/make_docs.py`"


def test_check_names_the_stale_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path)]
    assert make_docs.main(out) == 0
    assert make_docs.main(["--check", *out]) == 0
    (tmp_path / "errors.md").write_text("old\n", encoding="utf-8")
    (tmp_path / "policy.md").unlink()
    assert make_docs.main(["--check", *out]) == 1
    said = capsys.readouterr().out
    assert "docs/reference/errors.md" in said
    assert "docs/reference/policy.md" in said
    assert "settings.md" not in said
    assert (tmp_path / "errors.md").read_text(encoding="utf-8") == "old\n"


WRITTEN_BY_HAND = {
    "filters.md",
    "vocabulary.md",
    "capture-audit.md",
    "cases.md",
    "openenv-codes.md",
}


def test_every_generated_page_is_committed_under_its_name() -> None:
    on_disk = {file.name for file in REFERENCE.glob("*.md")}
    assert on_disk == set(make_docs.PAGES) | WRITTEN_BY_HAND


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_setting_is_documented(name: str) -> None:
    page = read("settings.md")
    assert f"`{PREFIX}{name.upper()}`" in page
    assert f"| `{name}` |" in page
    assert Settings.model_fields[name].description


@pytest.mark.parametrize("table", columns.TABLES, ids=lambda table: table.name)
def test_columns_are_documented(table: columns.Table) -> None:
    section = read("columns.md").split(f"\n## {table.name}\n")[1].split("\n## ")[0]
    assert table.doc in section
    for column in (*table.columns, *table.detail):
        shown = re.search(rf"^\| \**{column.name}\** \|.*\| (.+) \|$", section, re.MULTILINE)
        assert shown, f"{table.name}.{column.name}"
        assert shown[1] == column.doc


@pytest.mark.parametrize("code", sorted(FINDINGS))
def test_finding_is_documented(code: str) -> None:
    assert f"| `{code}` | {FINDINGS[code].grade} |" in read("findings.md")


@pytest.mark.parametrize("reason", list(records.MaskReason))
def test_mask_reason_is_documented(reason: records.MaskReason) -> None:
    mask = 1 if reason is records.MaskReason.SAMPLED else 0
    assert re.search(rf"^\| `{reason.value}` \| {mask} \| \S", read("mask-reasons.md"), re.M)


def test_errors_are_documented() -> None:
    page = read("errors.md")
    for _, error in make_docs.error_classes():
        assert f"| `{error.code}` | {error.status} |" in page, error.__name__
        assert f"`{error.__name__}`" in page
        assert make_docs.error_meaning(error)


def test_error_codes_are_used_once() -> None:
    codes = [error.code for _, error in make_docs.error_classes()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("field", dataclasses.fields(Policy), ids=lambda field: field.name)
def test_policy_switch_is_documented(field: dataclasses.Field[Any]) -> None:
    assert re.search(rf"^\| `{field.name}` \| `.*` \| \S", read("policy.md"), re.M)


def test_contexts_are_documented() -> None:
    page = read("contexts.md")
    for context in contexts.PAGES:
        for each in (context, *make_docs.parts_of(context)):
            section = page.split(f"\n### {each.__name__}\n")[1].split("\n### ")[0]
            for field in dataclasses.fields(each):
                assert f"| `{field.name}` |" in section, f"{each.__name__}.{field.name}"
                assert field.metadata.get("help"), f"{each.__name__}.{field.name}"


# -- routes --------------------------------------------------------------------------


def served_paths(tmp_path: Path) -> Iterator[str]:
    """Every path of the real application, the wire left out."""
    settings = load(store=tmp_path / "never-opened.duckdb")
    # Routes are declared before anything is asked of the store.
    application = Application(
        settings, ScriptedEngine([{"text": "x"}]), cast(DuckDBStore, None)
    )

    def walk(routes: Any) -> Iterator[str]:
        for route in routes:
            inner = getattr(route, "original_router", None)
            if inner is not None:
                yield from walk(inner.routes)
            else:
                yield route.path

    yield from walk(cast(Any, application)._pages.routes)


def test_every_route_is_documented(tmp_path: Path) -> None:
    page = read("routes.md")
    found = list(served_paths(tmp_path))
    assert len(found) > 30
    for path in found:
        shown = f"`{path}/…`" if path == "/static" else f"`{path}`"
        assert shown in page, path


def test_every_route_says_what_it_does() -> None:
    for route in make_docs.served_routes():
        assert make_docs.first_line(route.endpoint).endswith("."), route.path


def test_wire_routes_are_those_of_the_proxy() -> None:
    told = {path for _, path, _ in make_docs.WIRE_ROUTES}
    for methods, path, _ in make_docs.WIRE_ROUTES:
        if path == "/v1":
            continue  # the base address is no route of a dialect
        for method in methods.split(", "):
            assert find_route(method, path.replace("{model}", "m")) is not None, path
    in_code = set(re.findall(r"[/:][\w/{}:]+", ROUTES_IN_WORDS))
    assert len(in_code) == 11
    for path in in_code:
        assert any(each.endswith(path) for each in told), path


# -- commands and words ---------------------------------------------------------------


def test_commands_and_options_are_documented() -> None:
    page = read("commands.md")
    for name, command in make_docs.commands():
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert command.help, name
        for parameter in command.params:
            if parameter.param_type_name == "option":
                for spelled in parameter.opts:
                    assert spelled in section, f"{name} {spelled}"


@pytest.mark.parametrize(
    "vocabulary",
    [
        records.Dialect,
        records.Purpose,
        records.CaptureLevel,
        records.CallStatus,
        records.FailureKind,
        records.Role,
        records.Grade,
        records.LogprobKind,
        records.EventKind,
        records.BodyKind,
    ],
    ids=lambda each: each.__name__,
)
def test_closed_lists_are_explained(vocabulary: type[StrEnum]) -> None:
    page = read("vocabulary.md")
    for member in vocabulary:
        assert f"`{member.value}`" in page, member.value

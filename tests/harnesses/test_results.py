"""Writing down what was proved, and installing harnesses where nothing can be had."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import make_docs
from tests.harnesses.conftest import merge
from tests.harnesses.installed import PI, REQUIRE, ROOT, Node, require

GONE = Node("pi", "pi", "@nobody/no-such-package", "no-such-folder", heavy=False)


def rows(path: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(path.read_text())
    return found


def test_what_ran_is_merged_and_what_did_not_run_stays(tmp_path: Path) -> None:
    path = tmp_path / "data" / "results.json"
    merge(
        path, {("pi", "chat", "loop"): "passed", ("pi", "chat", "cut"): "passed"}, "2026-01-01"
    )
    merge(path, {("pi", "chat", "loop"): "failed"}, "2026-01-02")
    assert [(row["check"], row["outcome"], row["date"]) for row in rows(path)] == [
        ("cut", "passed", "2026-01-01"),
        ("loop", "failed", "2026-01-02"),
    ]
    assert {row["version"] for row in rows(path)} == {PI.version()}


def test_the_page_says_which_wires_a_check_was_made_on_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    outcomes = {("pi", wire, "loop"): "passed" for wire in ("chat", "responses")}
    merge(path, outcomes | {("pi", "messages", "loop"): "failed"}, "2026-01-01")
    monkeypatch.setattr(make_docs, "HARNESS_RESULTS", path)
    text = "\n".join(make_docs.harness_results())
    assert "| `chat`, `responses` | loop | 2026-01-01 |" in text
    assert "| `messages` | loop: **failed** | 2026-01-01 |" in text
    assert "- Codex CLI: not run so far" in text


def test_what_is_not_installed_is_skipped_and_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="scripts/install-harnesses no-such-folder"):
        require(GONE)
    monkeypatch.setenv(REQUIRE, "1")
    with pytest.raises(pytest.fail.Exception, match="is set, but @nobody/no-such-package"):
        require(GONE)


def test_without_npm_nothing_is_installed_and_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "install-harnesses", tmp_path / "scripts")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "cat", "mkdir", "rm", "tail", "cmp", "cp", "basename"):
        (tools / name).symlink_to(shutil.which(name) or name)
    done = subprocess.run(
        [tools / "sh", script, "heavy", "opencode"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "no npm here, so opencode is not installed and its tests are skipped" in done.stderr
    assert not (tmp_path / ".harnesses").exists()

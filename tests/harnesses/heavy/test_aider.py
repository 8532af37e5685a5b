"""aider, real: no tools, and a history that it writes anew before every call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.heavy.basics import checks
from tests.harnesses.live_harness import Ended, Stage, assert_nothing_lost, stage
from tests.harnesses.pythons import AIDER

TASK = (
    "aider",
    "--yes-always",
    "--no-dirty-commits",
    "--message",
    "Write hello.txt",
    "hello.txt",
)
NAMES = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "a"), ("EMAIL", "a@example.org"))
}
EDIT = {"text": "Here it is.\n\nhello.txt\n```\nline one\n```\n"}
COMMIT = {"text": "feat: add hello"}


def run(here: Stage) -> Ended:
    (here.work / "hello.txt").write_text("")
    return here.run(*TASK, wire="chat", env=NAMES)


@checks(AIDER, "each call is a root of its own, and the commit message is unary", "chat")
def test_an_edit_and_its_commit(tmp_path: Path) -> None:
    with stage(AIDER, tmp_path, [EDIT, COMMIT]) as here:
        ended = run(here)
        assert ended.code == 0, ended.err
        assert (here.work / "hello.txt").read_text() == "line one\n"
        record = ended.record
        main, message = record.calls
        assert ended.statuses == ["committed"] * 2
        assert [each["stream"] for each in record.calls] == [True, False]
        assert [record.node(each)["parent_id"] for each in record.calls] == [None, None]
        assert record.node(message)["break"]["cause"] != "unknown"
        assert {each["n_tools"] for each in record.calls} == {0}
        # It asks for temperature 0, and that is on record.
        assert main["requested_sampling"]["temperature"] == 0
        assert main["greedy"]
        assert "feat: add hello" in ended.out
        assert_nothing_lost(record)


@checks(AIDER, "its own retry after {fault}", "chat")
@pytest.mark.parametrize("fault", ["429", "cut"])
def test_its_own_retry(tmp_path: Path, fault: str) -> None:
    faults: dict[str, dict[str, Any]] = {
        "429": {"status": 429, "headers": {"retry-after": "1"}},
        "cut": {"fault": "cut", "text": "lost"},
    }
    broken = faults[fault]
    with stage(AIDER, tmp_path, [broken, EDIT, COMMIT]) as here:
        ended = run(here)
        assert ended.statuses == ["failed", "committed", "committed"]
        assert (here.work / "hello.txt").read_text() == "line one\n"
        assert "lost" not in ended.out
        assert_nothing_lost(ended.record)


@checks(AIDER, "a spent budget stops it", "chat")
def test_a_spent_budget(tmp_path: Path) -> None:
    with stage(AIDER, tmp_path, [EDIT, COMMIT]) as here:
        (here.work / "hello.txt").write_text("")
        started = here.start_with(*TASK, wire="chat", budgets={"calls": 1})
        ended = started.finish()
        assert ended.statuses[0] == "committed"
        assert set(ended.statuses[1:]) == {"refused"}
        assert len(ended.statuses) <= 3

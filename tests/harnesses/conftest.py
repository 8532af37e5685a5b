"""What the tests of real harnesses prove, written down.

A test marked `harness(profile, check=…, wire=…)` is a check of that harness; without `wire`
a parameter of the test says it: `wire`, `session`, or one with an attribute `wire`. With
ROLLOUT_EXPLORER_RECORD_HARNESSES set, what ran is merged into the results that
docs/reference/harnesses.md is made from; what did not run stays as it was.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.harnesses import pythons
from tests.harnesses.installed import HARNESSES, ROOT, Harness, Node, Python

RESULTS = ROOT / "docs" / "reference" / "data" / "harness-results.json"
RECORD = "ROLLOUT_EXPLORER_RECORD_HARNESSES"
Key = tuple[str, str, str]
_KNOWN: dict[str, Harness] = HARNESSES | {
    each.profile: each for each in vars(pythons).values() if isinstance(each, Node | Python)
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "harness(profile, check, wire): what a test proves of which harness"
    )


class _Found:
    """The outcomes of this run, by harness, wire and check."""

    def __init__(self) -> None:
        self.outcomes: dict[Key, str] = {}

    def add(self, key: Key, outcome: str) -> None:
        """A check fails where one of its tests does."""
        if self.outcomes.get(key) != "failed":
            self.outcomes[key] = outcome


_found = _Found()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    mark = item.get_closest_marker("harness")
    if mark is not None and not report.skipped and (report.failed or report.when == "call"):
        _found.add(_key(item, mark), report.outcome)
    return report


def _key(item: pytest.Item, mark: pytest.Mark) -> Key:
    callspec = getattr(item, "callspec", None)
    parameters: dict[str, Any] = callspec.params if callspec is not None else {}
    wire = mark.kwargs.get("wire") or parameters.get("wire") or parameters.get("session")
    for value in parameters.values():
        wire = wire or getattr(value, "wire", None)
    assert wire, f"{item.nodeid} does not say which wire it is about"
    texts = {name: value for name, value in parameters.items() if isinstance(value, str)}
    return str(mark.args[0]), str(wire), str(mark.kwargs["check"]).format(**texts)


def pytest_sessionfinish() -> None:
    if os.environ.get(RECORD) and _found.outcomes:
        merge(RESULTS, _found.outcomes, datetime.datetime.now(datetime.UTC).date().isoformat())


def merge(path: Path, outcomes: dict[Key, str], today: str) -> None:
    """Puts what ran into the file; several processes may do so at once."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        rows = {_row_key(row): row for row in json.loads(file.read() or "[]")}
        for (harness, wire, check), outcome in outcomes.items():
            row = {"harness": harness, "wire": wire, "check": check, "outcome": outcome}
            version = _KNOWN[harness].version()
            rows[harness, wire, check] = row | {"version": version, "date": today}
        text = json.dumps([rows[key] for key in sorted(rows)], indent=1, ensure_ascii=False)
        file.truncate(0)
        file.write(text + "\n")


def _row_key(row: dict[str, str]) -> Key:
    return row["harness"], row["wire"], row["check"]

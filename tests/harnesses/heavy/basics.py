"""The one task that every harness is given, and what is asserted of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.installed import Harness
from tests.harnesses.live_harness import (
    DONE,
    Ended,
    Script,
    assert_ids_came_back,
    assert_nothing_lost,
    chain,
    stage,
)

TASK = "Write hello.txt"
TEXT = "héllo\nline two\n"
LOOP = "tool loop: files made, ids came back, everything on record"
PARALLEL = "parallel tool calls"
Call = dict[str, str]


@dataclass(frozen=True)
class Tools:
    """How a harness's tools are called; paths are absolute."""

    write: Callable[[str, str], Call]
    read: Callable[[str], Call]
    shell: Callable[[str], Call]


@dataclass(frozen=True)
class Case:
    """A harness as it is run here.

    Attributes:
        command: its command line.
        exact: its echo extends token by token.
        thinks: reasoning comes back.
        beside: entries for the calls that it makes beside the agent's.
        env: what else it wants in its environment.
    """

    harness: Harness
    command: tuple[str, ...]
    tools: Tools
    exact: bool = True
    thinks: bool = True
    beside: tuple[Mapping[str, Any], ...] = ()
    env: Mapping[str, str] | None = None


def checks(harness: Harness, what: str, wire: str | None = None) -> pytest.MarkDecorator:
    """What the test proves, for the results; without `wire` the test has it as parameter."""
    return pytest.mark.harness(harness.profile, check=what, wire=wire)


def own(ended: Ended) -> list[dict[str, Any]]:
    """The agent's own calls."""
    return [each for each in ended.record.calls if each["role"] == "agent"]


def basic_loop(case: Case, folder: Path, wire: str) -> Ended:
    """Write, read and check a file, two of it at once, then finish."""
    work = folder / "work"
    tools = case.tools
    first: dict[str, Any] = {
        "text": "Writing.",
        "tool_calls": [tools.write(str(work / "hello.txt"), TEXT)],
    }
    if case.thinks:
        first["reasoning"] = "First I write."
    both = [tools.read(str(work / "hello.txt")), tools.shell("echo two > two.txt")]
    script: Script = [*map(dict, case.beside), first, {"tool_calls": both}, DONE]
    with stage(case.harness, folder, script) as here:
        ended = here.run(*case.command, wire=wire, env=case.env)
        assert (work / "hello.txt").read_text() == TEXT
        assert (work / "two.txt").read_text() == "two\n"
        assert DONE["text"] in ended.out, ended.err
        record = ended.record
        assert_nothing_lost(record)
        assert set(ended.statuses) == {"committed"}
        assert {each["dialect"] for each in record.calls} == {wire}
        calls = own(ended)
        assert len(calls) == 3
        assert_ids_came_back(record, calls[0], 1)
        assert_ids_came_back(record, calls[1], 2)
        if case.exact:
            parents = [None, *(each["call_id"] for each in calls[:-1])]
            assert chain(record, calls) == parents, [record.node(each) for each in calls]
        assert record.shown["harness"] == case.harness.profile
        # What is asserted further is read while the server is there.
        for each in record.calls:
            each_details = record.details(each)
            ended.claims.append(each_details["claims"] or {})
            ended.roles.append(each["role"])
    return ended

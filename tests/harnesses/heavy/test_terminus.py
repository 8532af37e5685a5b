"""Terminus 2, real, on a tmux of its own: it sums up in three calls, and reads token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.heavy.basics import checks
from tests.harnesses.live_harness import Ended, Stage, assert_nothing_lost, chain, stage
from tests.harnesses.pythons import TERMINUS, program

TASK = "Write hello.txt"
SESSION = "session-one"
# Context at which it sums up, in tokens as litellm counts them.
PLENTY, LITTLE = 100_000, 3_000


def turn(*keys: str, done: bool = False) -> dict[str, Any]:
    """A turn of its protocol: JSON in the text."""
    commands = [{"keystrokes": f"{each}\n", "duration": 0.3} for each in keys]
    said = {"analysis": "a", "plan": "p", "commands": commands, "task_complete": done}
    return {"text": json.dumps(said)}


WRITE = turn("printf 'a\\nb\\n' > hello.txt")
# It asks whether that is really the end, and wants to hear it twice.
DONE = [turn(done=True), turn(done=True)]


def run(here: Stage, folder: Path, room: int) -> Ended:
    logs = folder / "logs"
    logs.mkdir()
    command = program("terminus_agent", str(logs), SESSION, str(room), TASK)
    told = ("--trajectory", str(logs / "trajectory.json"))
    return here.run(*command, wire="chat", env={"TMUX_TMPDIR": str(folder)}, flags=told)


def about_its_trajectory(ended: Ended) -> dict[str, dict[str, Any]]:
    """The findings about the file that it wrote itself, by code."""
    path = f"/api/v1/rollouts/{ended.record.rollout_id}/findings"
    found = ended.record.live.api("GET", path)["findings"]
    codes = ("turns_match", "prompt_len_mismatch", "turn_mismatch", "no_atif")
    return {
        item["code"]: item
        for item in found
        if item["code"].startswith("atif") or item["code"] in codes
    }


def collected(ended: Ended) -> list[dict[str, Any]]:
    """The segments of token ids that it reports."""
    last = ended.out.splitlines()[-1]
    assert last.startswith("details "), ended.err
    found: list[dict[str, Any]] = json.loads(last.removeprefix("details "))
    return found


def assert_the_same_ids(ended: Ended) -> None:
    """Every id and logprob that it read is what is on record for one of the calls, and no
    call is missing."""
    ours = {}
    for call in ended.record.committed:
        details = ended.record.details(call)
        key = tuple(details["prompt_token_ids"]), tuple(details["completion_token_ids"])
        ours[key] = details["per_token_logps"]
    theirs = {}
    for segment in collected(ended):
        for prompt, completion, logprobs in zip(
            segment["prompt_token_ids"],
            segment["completion_token_ids"],
            segment["logprobs"],
            strict=True,
        ):
            theirs[tuple(prompt), tuple(completion)] = logprobs
    assert set(theirs) == set(ours)
    for key, logprobs in theirs.items():
        assert logprobs == pytest.approx(ours[key], rel=1e-5)


@checks(TERMINUS, "the token ids that it collects are those on record", "chat")
def test_its_token_ids_are_ours(tmp_path: Path) -> None:
    with stage(TERMINUS, tmp_path, [WRITE, turn("cat hello.txt"), *DONE]) as here:
        ended = run(here, tmp_path, PLENTY)
        assert ended.code == 0, ended.err
        assert (here.work / "hello.txt").read_text() == "a\nb\n"
        record = ended.record
        calls = record.calls
        assert ended.statuses == ["committed"] * 4
        parents = [None, *(each["call_id"] for each in calls[:-1])]
        assert chain(record, calls) == parents
        assert {each["role"] for each in calls} == {"agent"}
        assert {each["n_tools"] for each in calls} == {0}
        assert_the_same_ids(ended)
        for call in calls:
            claims = record.details(call)["claims"]
            assert claims["session_id"] == claims["x-session-id"] == SESSION
        assert record.shown["harness_version"] == TERMINUS.version()
        assert_nothing_lost(record)


@checks(TERMINUS, "its own trajectory agrees with the record, ids and all", "chat")
def test_its_trajectory_agrees(tmp_path: Path) -> None:
    with stage(TERMINUS, tmp_path, [WRITE, turn("cat hello.txt"), *DONE]) as here:
        ended = run(here, tmp_path, PLENTY)
        assert ended.code == 0, ended.err
        assert ended.record.shown["trajectory"] == "match"
        assert set(about_its_trajectory(ended)) == {"atif_version", "turns_match"}
        # Which says something, since every step of it has its ids.
        path = tmp_path / "logs" / "trajectory.json"
        given = json.loads(path.read_text())
        steps = [step for step in given["steps"] if step["source"] == "agent"]
        assert len(steps) == 4
        assert all(step["metrics"]["completion_token_ids"] for step in steps)


@checks(TERMINUS, "a handoff in three calls: tree, causes and token ids", "chat")
def test_a_handoff(tmp_path: Path) -> None:
    script: list[Any] = [
        WRITE,
        # A screen full of numbers, which is what its context is filled with.
        turn("seq -s , 1 2500"),
        turn("clear"),
        {"text": "SUMMARY: hello.txt is written."},
        {"text": "1. Is it there?"},
        {"text": "1. Yes, it is."},
        turn("cat hello.txt"),
        *DONE,
    ]
    with stage(TERMINUS, tmp_path, script) as here:
        ended = run(here, tmp_path, LITTLE)
        assert ended.code == 0, ended.err
        record = ended.record
        assert ended.statuses == ["committed"] * 9
        one, two, three, summary, questions, answers, *anew = record.calls
        ids = [each["call_id"] for each in record.calls]
        # The summary and the answers extend the conversation; the questions begin one.
        assert chain(record, [one, two, three, summary]) == [None, *ids[:3]]
        assert chain(record, [questions, answers]) == [None, summary["call_id"]]
        assert record.node(questions)["break"]["cause"] == "unrelated"
        # And then it goes on from the summary, questions and answers.
        assert chain(record, anew) == [None, ids[6], ids[7]]
        assert record.node(anew[0])["break"]["cause"] == "compaction"
        said = [str(m["content"]) for m in record.submitted(anew[0])["messages"]]
        assert any("SUMMARY: hello.txt is written." in each for each in said)
        assert any("1. Yes, it is." in each for each in said)
        assert_the_same_ids(ended)
        # Its trajectory does not list the three calls: they must not train as the agent's.
        unlisted = about_its_trajectory(ended)["atif_aux_calls"]
        assert all(ids[place] in unlisted["message"] for place in (3, 4, 5))
        assert_nothing_lost(record)


@checks(TERMINUS, "its own retry after {fault}", "chat")
@pytest.mark.parametrize("fault", ["429", "cut"])
def test_its_own_retry(tmp_path: Path, fault: str) -> None:
    faults: dict[str, dict[str, Any]] = {
        "429": {"status": 429, "headers": {"retry-after": "1"}},
        "cut": {"fault": "cut", "text": "lost"},
    }
    broken = faults[fault]
    with stage(TERMINUS, tmp_path, [WRITE, broken, *DONE]) as here:
        ended = run(here, tmp_path, PLENTY)
        assert ended.code == 0, ended.err
        assert ended.statuses == ["committed", "failed", "committed", "committed"]
        _, failed, again, _ = ended.record.calls
        assert ended.record.submitted(failed) == ended.record.submitted(again)
        assert_the_same_ids(ended)

"""The harness's own trajectory, from the file it leaves to the verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer import runfile
from explorer.errors import ConfigurationError
from explorer.harness import trajectory
from explorer.harness.trajectory import find_document, read_document
from explorer.trace import atif_document
from tests.harness.test_run import Place, closings, command, served, told

# A harness in a few lines: asks once, and writes the trajectory that its arguments describe.
PROGRAM = """
import json, os, pathlib, sys, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "ping"}]}).encode()
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions", body,
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
     "content-type": "application/json"})
usage = json.load(urllib.request.urlopen(request))["usage"]
path, more = pathlib.Path(sys.argv[1]), int(sys.argv[2])
path.parent.mkdir(parents=True, exist_ok=True)
count = usage["completion_tokens"] + more
step = {"step_id": 1, "source": "agent", "message": "pong",
        "metrics": {"completion_tokens": count, "prompt_tokens": usage["prompt_tokens"]}}
path.write_text(json.dumps({"schema_version": "ATIF-v1.7", "agent": {"name": "few-lines"},
                            "steps": [step]}))
"""
PROFILE = """
name = "few-lines"
wires = ["chat"]
commands = ["few-lines"]
trajectory = "jobs/*/trajectory.json"
[env]
OPENAI_BASE_URL = "{openai_base}"
OPENAI_API_KEY = "{key}"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("trajectory"))
    made.program(PROGRAM)
    (made.folder / "few-lines.toml").write_text(PROFILE)
    program = made.folder / "few-lines"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o700)
    with served(made):
        yield made


def findings(place: Place, rollout_id: str) -> dict[str, str]:
    run = runfile.read(place.store)
    assert run is not None
    answer = httpx.get(
        f"{run.url}/api/v1/rollouts/{rollout_id}/findings",
        headers={"authorization": f"Bearer {run.token}"},
    )
    return {item["code"]: item["message"] for item in answer.json()["findings"]}


def run(place: Place, *words: str, path: str = "t.json", more: int = 0) -> dict[str, Any]:
    done = place.run(*words, "--json", "--", sys.executable, "prog.py", path, str(more))
    assert done.returncode == 0, done.stderr
    return told(done)


def test_a_file_that_agrees(place: Place) -> None:
    report = run(place, "--trajectory", "t.json")
    assert report["trajectory"] == "match"
    assert place.shown(report["rollout_id"])["trajectory"] == "match"
    assert "turns_match" in findings(place, report["rollout_id"])


def test_a_file_that_counts_other_tokens_forbids_training(place: Place) -> None:
    report = run(place, "--trajectory", "t.json", more=1)
    assert report["trajectory"] == "MISMATCH"
    assert "turn_mismatch" in {reason["code"] for reason in report["verdict"]["reasons"]}


def test_without_a_file_nothing_is_said(place: Place) -> None:
    report = run(place)
    assert report["trajectory"] == "none"
    assert "no_atif" not in findings(place, report["rollout_id"])


def test_a_profile_says_where_it_lies(place: Place) -> None:
    words = ("--harness", str(place.folder / "few-lines.toml"), "--json", "--")
    program = str(place.folder / "few-lines")
    report = told(place.run(*words, program, "jobs/one/trajectory.json", "0"))
    assert report["trajectory"] == "match"
    # The next run does not take the file of the one before.
    report = told(place.run(*words, program, "elsewhere.json", "0"))
    assert report["trajectory"] == "none"
    assert "wrote no file jobs/*/trajectory.json" in report["trajectory_problem"]
    assert "no_atif" in findings(place, report["rollout_id"])
    # A script around the harness is not the harness: nothing is expected of it.
    script = (*words, sys.executable, "prog.py", "elsewhere.json", "0")
    assert "trajectory_problem" not in told(place.run(*script))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not json", "is no JSON"),
        ("[]", "is no JSON object"),
        ('{"steps": 7}', "must be an ATIF document"),
    ],
)
def test_a_file_that_is_none_does_not_keep_the_rollout_open(
    place: Place, text: str, words: str
) -> None:
    script = f"import pathlib; pathlib.Path('bad.json').write_text({text!r})"
    done = place.run("--trajectory", "bad.json", "--json", "--", sys.executable, "-c", script)
    report = told(done)
    assert place.shown(report["rollout_id"])["status"] == "closed"
    assert words in report["trajectory_problem"]
    assert words in findings(place, report["rollout_id"])["no_atif"]


def test_rollouts_close_takes_a_file(place: Place) -> None:
    running = runfile.read(place.store)
    assert running is not None
    headers = {"authorization": f"Bearer {running.token}"}
    made = httpx.post(f"{running.url}/api/v1/rollouts", headers=headers).json()
    path = place.work / "given.json"
    path.write_text(json.dumps({"steps": [{"source": "agent", "metrics": {}}]}))

    def close(name: str) -> subprocess.CompletedProcess[str]:
        words = ("rollouts", "close", made["rollout_id"], "--store", str(place.store))
        return subprocess.run(
            command(*words, "--trajectory", name),
            cwd=place.work,
            env=place.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    refused = close("nowhere.json")
    assert refused.returncode == 2
    assert "nowhere.json: No such file" in refused.stderr
    done = close("given.json")
    assert done.returncode == 0, done.stderr
    assert "trajectory: none" in done.stderr
    assert "no_turns_upstream" in findings(place, made["rollout_id"])


def test_the_store_keeps_counts_and_a_digest_and_not_the_document(tmp_path: Path) -> None:
    alone = Place(tmp_path)
    alone.program(PROGRAM)
    done = alone.run(
        "--trajectory", "t.json", "--json", "--", sys.executable, "prog.py", "t.json", "0"
    )
    report = told(done)
    kept = closings(alone)[report["rollout_id"]]["trajectory"]
    assert set(kept) == {"sha256", "version", "agent", "steps"}
    assert set(kept["steps"][0]) == {"step", "completion", "prompt"}
    assert "pong" not in json.dumps(kept)
    assert "trajectory" in done.stderr


# -- the file ------------------------------------------------------------------------------


def test_the_limit_is_that_of_the_server() -> None:
    assert trajectory.MAX_BYTES == atif_document.MAX_BYTES


def test_a_file_that_goes_on_in_others_is_read_to_its_end(tmp_path: Path) -> None:
    def write(name: str, steps: list[int], ref: str | None) -> None:
        document = {"steps": steps} | ({"continued_trajectory_ref": ref} if ref else {})
        (tmp_path / name).write_text(json.dumps(document))

    write("trajectory.json", [1], "trajectory.cont-1.json")
    write("trajectory.cont-1.json", [2], "trajectory.cont-2.json")
    write("trajectory.cont-2.json", [3], None)
    found = read_document(tmp_path / "trajectory.json")
    assert (found["steps"], found["continued_trajectory_ref"]) == ([1, 2, 3], None)
    # Nothing outside the folder is read, and nothing twice.
    write("outside.json", [1], "../trajectory.json")
    assert read_document(tmp_path / "outside.json")["steps"] == [1]
    write("round.json", [1], "round.json")
    assert read_document(tmp_path / "round.json")["steps"] == [1, 1]
    write("gone.json", [1], "nowhere.json")
    assert read_document(tmp_path / "gone.json")["continued_trajectory_ref"] == "nowhere.json"


def test_a_file_that_cannot_be_used_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectory, "MAX_BYTES", 10)
    long = tmp_path / "long.json"
    long.write_text(json.dumps({"steps": [1, 2, 3]}))
    with pytest.raises(ConfigurationError, match="longer than 10 bytes"):
        read_document(long)
    with pytest.raises(ConfigurationError, match="Is a directory"):
        read_document(tmp_path)
    assert "older than the run" in str(find_document(long, "", 2e9 * 2).problem)
    assert "no file nowhere.json" in str(
        find_document(tmp_path / "nowhere.json", "", 0).problem
    )


def test_several_files_are_not_guessed_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.json").write_text('{"steps": []}')
    assert "wrote 2 files" in str(find_document(None, "*.json", 0).problem)
    assert find_document(None, "a*.json", 0).document == {"steps": []}
    assert find_document(None, "", 0) == trajectory.Found()

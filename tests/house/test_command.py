"""The command as a person meets it: start, stop, wrong engines, a store in use."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from explorer import runfile

SCRIPT = {"replies": [{"when": {"contains": ""}, "text": "ok"}]}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "explorer", *words]


def started(store: Path, script: Path, *words: str) -> subprocess.Popen[str]:
    """A server that is up."""
    script.write_text(json.dumps(SCRIPT))
    child = subprocess.Popen(
        command("serve", "--engine", f"scripted:{script}", "--store", str(store), *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.time() + 60
    while runfile.read(store) is None and time.time() < deadline:
        assert child.poll() is None, child.communicate()
        time.sleep(0.05)
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_server_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    store = tmp_path / "store.duckdb"
    child = started(store, tmp_path / "script.json", "--port", "0")
    run = runfile.read(store)
    assert run is not None
    for path in (store, runfile.path_of(store)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert httpx.get(run.url + "/healthz").status_code == 200
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 0
    assert "Traceback" not in err
    assert f"pages     {run.url}/" in out
    assert not runfile.path_of(store).exists()


def test_db_01_a_second_process_is_told_who_has_the_file(tmp_path: Path) -> None:
    store, script = tmp_path / "store.duckdb", tmp_path / "script.json"
    child = started(store, script, "--port", "0")
    try:
        second = subprocess.run(
            command(
                "serve", "--engine", f"scripted:{script}", "--store", str(store), "--port", "0"
            ),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 2
        assert "is in use by" in second.stderr
        assert len(second.stderr.strip().splitlines()) == 1
        # Commands go through the server that has it.
        listed = subprocess.run(
            command("rollouts", "create", "--store", str(store), "--run", "r", "--meta", "a=b"),
            capture_output=True,
            text=True,
            timeout=60,
        )
        made = json.loads(listed.stdout)
        shown = subprocess.run(
            command("rollouts", "show", made["rollout_id"], "--store", str(store)),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert json.loads(shown.stdout)["metadata"] == {"a": "b"}
        copy = tmp_path / "copy.duckdb"
        subprocess.run(
            command("backup", str(copy), "--store", str(store)), check=True, timeout=60
        )
        assert copy.exists()
    finally:
        child.terminate()
        child.communicate(timeout=30)
    # And by themselves once nobody serves.
    alone = subprocess.run(
        command("rollouts", "list", "--store", str(store), "--json"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(alone.stdout)["total"] == 1
    for words in (("compact",), ("migrate",)):
        done = subprocess.run(
            command(*words, "--store", str(store)), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "--engine", "nonsense"), "unknown engine"),
        (("serve", "--engine", "tiny:/nonexistent"), "/nonexistent"),
        (("serve", "--engine", "scripted:/nonexistent.json"), "cannot be read"),
        (("serve", "--engine", "vllm:model"), "rollout-explorer[vllm]"),
        (("serve", "--engine", "http://"), "http://host:port"),
        (("serve", "--host", "0.0.0.0"), "ROLLOUT_EXPLORER_ADMIN_TOKEN"),
        (("serve", "--top-logprobs", "50"), "TOP_LOGPROBS"),
        (("rollouts", "list"), "there is no store"),
        (("compact",), "there is no store"),
    ],
)
def test_mistakes_are_one_sentence_that_says_what_to_do(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PATH"}
    port = ("--port", "0") if words[0] == "serve" else ()
    done = subprocess.run(
        command(*words, *port),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=environment | {"PATH": str(tmp_path)},
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_says_what_is_trainable(tmp_path: Path) -> None:
    good = subprocess.run(command("doctor"), capture_output=True, text=True, timeout=60)
    assert good.returncode == 0, good.stderr
    assert "logprobs      processed" in good.stdout
    assert "therefore     calls through this engine are trainable" in good.stdout
    script = tmp_path / "script.json"
    script.write_text(json.dumps(SCRIPT))
    made_up = subprocess.run(
        command("doctor", "--engine", f"scripted:{script}", "--json"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made_up.returncode == 1
    assert json.loads(made_up.stdout)["passing"] is False

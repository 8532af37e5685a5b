"""The script for the real Hub, run against the local one; and the local one as a program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.hub.faults import failing
from tests.hub.server import LocalHub

ROOT = Path(__file__).parents[2]


def run(hub: LocalHub, token: str, home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scripts.check_real_hub", "--endpoint", hub.url, *more],
        cwd=ROOT,
        env=os.environ
        | {"HF_TOKEN": token, "HF_HOME": str(home), "HF_XET_TELEMETRY_ENABLED": "0"},
        input="n\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_says_each_step_and_leaves_nothing(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    ran = run(hub, ada, tmp_path, "--yes", "--bucket")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.rstrip().endswith("As expected.")
    assert ran.stderr == ""
    assert ran.stdout.count("deleted\n") == 3
    assert hub.shelf.repos == {}
    assert hub.buckets == {}
    assert hub.faults.asked("POST /cas/v1/xorbs/")
    assert ada not in ran.stdout


def test_it_asks_first(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    ran = run(hub, ada, tmp_path)
    assert ran.returncode == 1
    assert "Go on? [y/N]" in ran.stdout
    assert hub.faults.log == ["GET /api/whoami-v2"]


def test_what_is_not_as_expected_is_told_and_it_still_cleans_up(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    hub.faults.add("PUT /api/datasets/.*/settings", failing(422, "no gate here"), times=99)
    ran = run(hub, ada, tmp_path, "--yes")
    assert ran.returncode == 1
    assert "NOT AS EXPECTED: could not set the gate" in ran.stdout
    assert "no gate here" in ran.stdout
    assert "Not as expected: prepare a gated dataset" in ran.stdout
    assert hub.shelf.repos == {}


def test_the_local_hub_is_a_program_too() -> None:
    served = subprocess.Popen(
        [sys.executable, "-m", "tests.hub", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stdout is not None
        said = [served.stdout.readline() for _ in range(5)]
        url = said[0].split()[-1]
        token = re.findall(r"with write: (\S+)", said[1])[0]
        me = httpx.get(f"{url}/api/whoami-v2", headers={"authorization": f"Bearer {token}"})
        assert me.json()["name"] == "ada"
    finally:
        served.send_signal(signal.SIGINT)
        ended = served.wait(10)
        assert served.stdout is not None
        served.stdout.close()
    assert ended == 0

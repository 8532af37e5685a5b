"""What the how-to pages show is run as it stands there, against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from explorer.demo.group import Outcome
from tests.consumers.making import needs_openenv, needs_trl
from tests.docs.markdown import DOCS, fences
from tests.live import Live

TRL, OPENENV = DOCS / "how-to" / "train-with-trl.md", DOCS / "how-to" / "use-with-openenv.md"
TRAIN = """
from trl import GRPOConfig, GRPOTrainer
from explorer.integrations.trl import captured_reward
from importlib.resources import files
trainer = GRPOTrainer(
    model=str(files("explorer.engine.tiny") / "weights"),
    args=GRPOConfig(
        "out", num_generations=2, per_device_train_batch_size=4, max_steps=1,
        bf16=False, use_cpu=True,
    ),
    reward_funcs=[captured_reward], train_dataset=dataset, rollout_func=rollouts,
)
trainer.train()
"""


def block(page: Path, having: str) -> str:
    """The python block of a page that holds some words."""
    found = [
        content
        for language, content in fences(page.read_text(encoding="utf-8"))
        if language == "python" and having in content
    ]
    assert len(found) == 1, having
    return found[0]


def run(program: str, live: Live, folder: Path) -> str:
    """What a program prints; it must end well."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    keep = {"PATH", "HOME", "PYTHONPATH", "LANG"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name in keep}
        | {"EXPLORER_URL": live.url, "EXPLORER_TOKEN": live.token, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_trl
def test_the_fifteen_lines_train(live: Live, tmp_path: Path) -> None:
    program = block(TRL, "def agent(prompt, endpoint)")
    printed = run(program, live, tmp_path)
    assert "'train_loss'" in printed
    listed = live.api("GET", "/api/v1/rollouts?run=training&limit=100")["rollouts"]
    ours = [row for row in listed if row["task"] == "What is 2 + 3?"]
    assert len(ours) == 8
    assert all(row["reward"] is not None for row in ours)
    assert all(row["judgement"]["trainable"] for row in ours)
    assert len({row["group"] for row in ours}) == 2


@needs_trl
def test_the_replay_trains(live: Live, demo: dict[str, Outcome], tmp_path: Path) -> None:
    assert demo
    printed = run(block(TRL, "ReplayedRollouts.of_run") + TRAIN, live, tmp_path)
    assert "not trainable" in printed
    assert "'train_loss'" in printed


@needs_trl
@needs_openenv
def test_the_factory_of_the_asynchronous_trainer_is_made(live: Live, tmp_path: Path) -> None:
    program = (
        block(TRL, "functools.partial(") + "\nprint(factory(sampling={'temperature': 1.0}))"
    )
    assert "ExplorerSessionFactory" in run(program, live, tmp_path)


@needs_openenv
def test_the_session_runs_its_agent(live: Live, tmp_path: Path) -> None:
    printed = run(block(OPENENV, "session.wait_for_completion"), live, tmp_path).splitlines()
    assert printed[0] == "0"
    assert printed[1] in ("0.0", "1.0")
    assert printed[2].endswith("tokens train")
    assert live.token not in "".join(printed)


@needs_trl
@needs_openenv
def test_openenvs_own_rollout_function_trains_single_calls(live: Live, tmp_path: Path) -> None:
    program = block(OPENENV, "guarded_harness_rollout_func(")
    assert len(program.splitlines()) <= 24
    printed = run(program, live, tmp_path)
    assert "'train_loss'" in printed
    rows = live.api("GET", "/api/v1/rollouts?run=harness&limit=10")["rollouts"]
    assert len(rows) == 2
    assert all(row["judgement"]["trainable"] for row in rows)


@needs_openenv
def test_the_harbor_factory_is_made(live: Live, tmp_path: Path) -> None:
    run(block(OPENENV, "HarborSessionFactory("), live, tmp_path)


@needs_trl
def test_a_command_agent_is_made(live: Live, tmp_path: Path) -> None:
    run(block(TRL, "def verifier(finished)"), live, tmp_path)

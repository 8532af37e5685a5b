"""The real AsyncGRPOTrainer on a CPU, with our worker and its weights behind our fence.

Only its attention is not the one it has on a GPU (`cpu_attention`).
"""

from __future__ import annotations

import functools
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from explorer.demo.lesson_tasks import LessonAgent, held_out_tasks, training_tasks
from explorer.engine.tiny import TinyEngine
from explorer.errors import ConfigurationError
from explorer.integrations.attempts import Attempt, Ended, Endpoint, task_text
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.contract import check_trace, read_trace
from explorer.integrations.rows import all_rows
from explorer.integrations.trl import (
    ExplorerRolloutWorker,
    FencedTransfer,
    GroupOptions,
    calling,
)
from tests.consumers.cpu_attention import on_cpu
from tests.consumers.making import document, needs_openenv, needs_trl, say, talk, turn
from tests.consumers.test_async import trained_tokens
from tests.live import Live, serving

pytestmark = needs_trl
STEPS = 3


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Live]:
    """A server of its own: its engine's weights change."""
    with serving(TinyEngine(), tmp_path / "s.duckdb") as live:
        yield live


class Watched(ExplorerRolloutWorker):
    """Remembers what went into the queue."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.samples: list[Any] = []

    def _put(self, samples: Any) -> None:
        self.samples += samples
        super()._put(samples)


def async_trainer(
    weights: Path, folder: Path, dataset: Any, worker: Any, transfer: Any, **more: Any
) -> Any:
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    return AsyncGRPOTrainer(
        model=str(weights),
        args=AsyncGRPOConfig(
            str(folder / "out"), num_generations=4, per_device_train_batch_size=4,
            gradient_accumulation_steps=1, use_cpu=True, bf16=False, dtype="float32",
            learning_rate=4e-4, report_to=[], save_strategy="no", weight_sync_steps=1,
            temperature=1.0, token_budget=0, disable_tqdm=True, **more,
        ),
        train_dataset=dataset,
        processing_class=AutoTokenizer.from_pretrained(weights),
        rollout_worker=worker,
        weight_transfer=transfer,
    )  # fmt: skip


def test_async_grpo_trains_on_trees_while_weights_change(
    fresh: Live, weights: Path, tmp_path: Path
) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    server = ExplorerServer(fresh.url, fresh.token)
    tasks = training_tasks(5, 8, held_out_tasks())
    agent = LessonAgent(tasks)
    questions = [task.question for task in tasks]
    worker = Watched(server, calling(agent), questions, GroupOptions(generations=4))
    transfer = FencedTransfer(server, folder=tmp_path / "weights")
    with on_cpu():
        dataset = Dataset.from_list([{"prompt": question} for question in questions])
        trainer = async_trainer(weights, tmp_path, dataset, worker, transfer, max_steps=STEPS)
        trainer.train()
    agent.close()
    # Once before the first rollout, then after every step.
    assert transfer.version == trainer.model_version == STEPS + 1
    assert transfer.fence.closings == STEPS + 1
    told = server.weights()
    assert (told["state"], told["weight_version"]) == ("ready", STEPS + 1)
    assert not worker._thread.is_alive()  # type: ignore[union-attr]

    # What was trained is what the server lets train, every token once.
    may_train = set()
    for row in server.rollouts(run="async"):
        if row["reward"] is not None and row["judgement"]["trainable"]:
            trace = read_trace(server.training_trace(row["rollout_id"]))
            may_train |= {held for held, _ in trained_tokens(trace)}
    assert worker.samples
    for sample in worker.samples:
        ids = sample.input_ids.tolist()
        ones = [place for place, bit in enumerate(sample.completion_mask.tolist()) if bit]
        assert ones
        assert all(tuple(ids[: place + 1]) in may_train for place in ones)
    assert {sample.model_version for sample in worker.samples} >= {1, 2}

    # The engine has the trainer's weights.
    pushed = tmp_path / "weights" / f"version-{STEPS + 1:08d}.safetensors"
    from safetensors.torch import load_file

    held = load_file(pushed)
    assert held
    parameters = dict(trainer.model.named_parameters())
    assert all(bool((value == parameters[name]).all()) for name, value in held.items())
    shipped = dict(AutoModelForCausalLM.from_pretrained(weights).named_parameters())
    assert any(bool((value != shipped[name]).any()) for name, value in held.items())


class Talker:
    """An agent that travels to TRL's child process."""

    def __call__(self, attempt: Attempt) -> Ended:
        talk(attempt.endpoint, task_text(attempt.task))
        return Ended(reward=float(int(attempt.endpoint.rollout_id[-1], 16)))


@needs_openenv
def test_trls_own_harness_worker_feeds_the_same_trainer(
    fresh: Live, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its real child process over OpenEnv sessions of ours; it only asks for an installed
    vLLM, which it does not use when the agent owns its loop."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo import async_rollout_worker
    from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker

    from explorer.integrations.openenv import ExplorerSessionFactory

    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda *_, **__: True)
    server = ExplorerServer(fresh.url, fresh.token)
    tokenizer = AutoTokenizer.from_pretrained(weights)
    # Only needed where TRL parses text itself.
    tokenizer.response_template = {}
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"What is {n} + 3?"}]} for n in range(4)]
    )
    worker = HarnessRolloutWorker(
        harness_session_factory=functools.partial(
            ExplorerSessionFactory, server, Talker(), run="harness"
        ),
        model_name="tiny", dataset=dataset, reward_funcs=[], processing_class=tokenizer,
        eos_token_ids=[2], num_generations=4, max_inflight_tasks=4, temperature=1.0,
    )  # fmt: skip
    transfer = FencedTransfer(server, folder=tmp_path / "weights")
    with on_cpu():
        trainer = async_trainer(weights, tmp_path, dataset, worker, transfer, max_steps=2)
        trainer.train()
    assert transfer.version == trainer.model_version == 3
    rows = [row for row in server.rollouts(run="harness") if row["reward"] is not None]
    assert len(rows) >= 4
    trained = [row for row in rows if row["judgement"]["trainable"]]
    assert trained
    seen = {
        call["weight_version_end"] for row in trained for call in fresh.calls(row["rollout_id"])
    }
    assert 1 in seen
    assert seen <= {1, 2, 3}


def run_until(worker: ExplorerRolloutWorker, done: Any, timeout_s: float = 60) -> None:
    worker.start()
    until = time.monotonic() + timeout_s
    try:
        while not done() and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        worker.stop()
    assert done()


def test_failed_and_unscored_attempts_are_in_no_mean(server: ExplorerServer) -> None:
    lock, started = threading.Lock(), []

    def agent(task: Any, endpoint: Endpoint) -> float | None:
        with lock:
            started.append(endpoint.rollout_id)
            number = len(started)
        talk(endpoint, str(task), 1)
        if number == 1:
            raise RuntimeError("the sandbox died")
        return None if number == 2 else float(number)

    options = GroupOptions(generations=4, at_once=4)
    worker = Watched(server, calling(agent), ["a task"], options)
    run_until(worker, lambda: worker.samples)
    rows = [sample for sample in worker.samples if sample.group_id == 0]
    assert {sample.metrics["reward"] for sample in rows} == {3.0, 4.0}
    assert sorted({round(sample.advantage, 3) for sample in rows}) == [-1.0, 1.0]
    assert server.show(started[0])["ok"] is False
    # The trainer's version before it said one.
    assert {sample.model_version for sample in rows} == {0}


def test_a_tree_is_several_rows_and_every_token_trains_once(server: ExplorerServer) -> None:
    def agent(task: Any, endpoint: Endpoint) -> float:
        first = [{"role": "user", "content": "What is 2 + 3?"}]
        reply = say(endpoint, first)
        kept = {"role": "assistant", "content": reply["content"] or ""}
        if reply.get("reasoning"):
            kept["reasoning"] = reply["reasoning"]
        for words in ("Go on.", "Stop."):
            say(endpoint, [*first, kept, {"role": "user", "content": words}])
        return float(endpoint.rollout_id.encode()[-1])

    worker = Watched(server, calling(agent), ["a task"], GroupOptions(generations=2))
    run_until(worker, lambda: worker.samples)
    rows = [sample for sample in worker.samples if sample.group_id == 0]
    assert len(rows) >= 4
    assert len({sample.group_id for sample in rows}) == 1


def test_shared_calls_train_in_one_row_only() -> None:
    def call(node_id: str, prompt: list[int], ids: list[int]) -> dict[str, Any]:
        return turn(
            node_id,
            prompt_token_ids=prompt,
            completion_token_ids=ids,
            per_token_logps=[-0.1] * len(ids),
            loss_mask=[0] * len(prompt) + [1] * len(ids),
        )

    trace = check_trace(
        document(
            call("a", [1], [2, 3]), call("b", [1, 2, 3, 4], [5]), call("c", [1, 2, 3, 6], [7])
        )
    )
    first, second = all_rows(trace)
    assert (first.completion_ids, first.env_mask) == ((2, 3, 4, 5), (1, 1, 0, 1))
    assert (second.completion_ids, second.env_mask) == ((2, 3, 6, 7), (0, 0, 0, 1))


def test_a_worker_that_nobody_scores_ends_with_the_reason(server: ExplorerServer) -> None:
    def agent(task: Any, endpoint: Endpoint) -> float:
        raise RuntimeError("no sandbox today")

    options = GroupOptions(generations=2)
    why = end_of(ExplorerRolloutWorker(server, calling(agent), ["a"], options))
    assert "8 groups in a row have no score" in why
    assert "no sandbox today" in why


def end_of(worker: ExplorerRolloutWorker) -> str:
    """What the trainer is told when the worker ends by itself."""
    worker.start()
    until = time.monotonic() + 60
    try:
        while time.monotonic() < until:
            worker.check_health(600)
            time.sleep(0.05)
    except RuntimeError as error:
        return str(error)
    finally:
        worker.stop()
    return ""


def test_a_silent_worker_and_a_server_that_refuses_are_told(live: Live) -> None:
    refused = ExplorerServer(live.url, "not-the-token")
    worker = ExplorerRolloutWorker(refused, calling(lambda *_: 1.0), ["a"])
    with pytest.raises(RuntimeError, match="no attempt ended"):
        worker.check_health(-1)
    assert "the rollout worker ended" in end_of(worker)


def test_a_transfer_that_fails_leaves_the_fence_shut(fresh: Live) -> None:
    """What the engine has then is not known, and no call is sampled as if it were."""

    class Broken:
        def init_weight_transfer(self) -> None: ...

        def pause(self) -> None: ...

        def send_weights(self, iterator: Any) -> None:
            raise RuntimeError("NCCL")

    server = ExplorerServer(fresh.url, fresh.token)
    transfer = FencedTransfer(server, Broken())
    transfer.init_weight_transfer()
    transfer.pause()
    with pytest.raises(RuntimeError, match="NCCL"):
        transfer.send_weights(iter(()))
    told = server.weights()
    assert (told["state"], told["weight_version"], told["coming"]) == ("syncing", None, 1)
    with pytest.raises(ConfigurationError, match="folder"):
        FencedTransfer(server)

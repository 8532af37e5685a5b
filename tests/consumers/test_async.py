"""TRL's asynchronous code path, as far as a CPU goes: the real rollout loop runs our
sessions and puts scored samples into the trainer's queue. What is missing is the parent
process (its constructor wants vLLM installed) and the packed forward pass (a GPU kernel).
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import queue
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.demo.group import Outcome
from explorer.integrations.attempts import Agent, Attempt, Ended, Endpoint
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.contract import read_trace
from explorer.integrations.trl import calling
from tests.consumers.making import (
    TOOL,
    document,
    needs_openenv,
    needs_trl,
    say,
    scored,
    talk,
    turn,
)

pytestmark = [needs_trl, needs_openenv]
PROMPT = [{"role": "user", "content": "What is 2 + 3?"}]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def loop_of(weights: Path, session_factory: Any, **more: Any) -> Any:
    """TRL's `_HarnessRolloutLoop` with the queues that its worker would give it."""
    from accelerate.state import PartialState
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.async_grpo.openenv_harness import _HarnessRolloutLoop

    PartialState()
    tokenizer = AutoTokenizer.from_pretrained(weights)
    # Only needed where TRL parses text itself; the tiny model's template is not one it knows.
    tokenizer.response_template = {}
    context = multiprocessing.get_context("spawn")
    return _HarnessRolloutLoop(
        **{
            "harness_session_factory": session_factory,
            "model_name": "tiny",
            "dataset": Dataset.from_list([{"prompt": PROMPT}]),
            "reward_funcs": [],
            "processing_class": tokenizer,
            "eos_token_ids": [2],
            "rollout_buffer": context.Queue(),
            "model_version_value": context.Value("i", 0),
            "heartbeat_value": context.Value("d", 0.0),
            "failed_event": context.Event(),
            "exception_info_queue": context.Queue(1),
            "metrics_queue": context.Queue(64),
            "num_generations": 4,
            "max_inflight_tasks": 4,
            "temperature": 1.0,
            **more,
        }
    )


def factory(server: ExplorerServer, agent: Agent) -> Any:
    """As a user passes it; TRL adds `sampling`."""
    from explorer.integrations.openenv import ExplorerSessionFactory

    return functools.partial(ExplorerSessionFactory, server, agent, run="async")


def one(loop: Any) -> tuple[Any, Any]:
    """One rollout through the worker's own path: its result and its metrics."""
    try:
        found: tuple[Any, Any] = loop._run_session(PROMPT, 3)
    finally:
        loop._loop.close()
    return found


@dataclass
class Recording:
    """An agent that remembers which rollouts it ran."""

    agent: Agent

    def __post_init__(self) -> None:
        self.ids: list[str] = []

    def __call__(self, attempt: Attempt) -> Ended:
        self.ids.append(attempt.endpoint.rollout_id)
        return self.agent(attempt)


def test_the_workers_path_gives_our_tokens_masks_and_logprobs(
    server: ExplorerServer, weights: Path
) -> None:
    agent = Recording(calling(scored(0.5, turns=3)))
    result, metrics = one(loop_of(weights, factory(server, agent)))
    _, completion_ids, sequences, _, _, reward = result
    trace = read_trace(server.training_trace(agent.ids[0]))
    assert reward == 0.5
    assert metrics["turns"] == 3
    assert completion_ids == [token for call in trace.turns for token in call.completion_ids]
    assert_rows(sequences, trace)


def trained_tokens(trace: Any) -> list[tuple[tuple[int, ...], float]]:
    """Every token that trains, with all that came before it, and its logprob."""
    return sorted(
        (call.prompt_ids + call.completion_ids[: place + 1], logprob)
        for call in trace.turns
        for place, (bit, logprob) in enumerate(
            zip(call.completion_mask, call.logprobs, strict=True)
        )
        if bit
    )


def assert_rows(sequences: list[Any], trace: Any) -> None:
    """TRL's rows hold every token that trains, once, with its logprob, and no other."""
    found = []
    for row in sequences:
        assert len(row.input_ids) == len(row.completion_mask) == len(row.old_log_probs)
        for place, bit in enumerate(row.completion_mask):
            if bit:
                held = tuple(row.input_ids[: place + 1])
                found.append((held, row.old_log_probs[place]))
    assert sorted(found) == trained_tokens(trace)


def test_trees_of_the_demo_come_through_whole_in_branch_order(
    server: ExplorerServer, demo: dict[str, Outcome]
) -> None:
    from trl.experimental.async_grpo.async_rollout_worker import _chain_to_sequences
    from trl.experimental.async_grpo.openenv_harness import _turns_from_training_trace

    from explorer.integrations.openenv import captured_session

    forked = 0
    for rollout_id in demo:
        if not server.show(rollout_id)["verdict"]["trainable"]:
            continue
        sealed = captured_session(server, rollout_id).fetch_training_trace()
        sequences, _ = _chain_to_sequences(_turns_from_training_trace(sealed), rollout_id, 0)
        assert_rows(sequences, read_trace(server.training_trace(rollout_id)))
        forked += len(sequences) > 1
    assert forked >= 3


def test_branch_order_keeps_rows_whole_where_the_clock_would_cut_them() -> None:
    from openenv.core.harness import TrainingTrace
    from trl.experimental.async_grpo.async_rollout_worker import _chain_to_sequences
    from trl.experimental.async_grpo.openenv_harness import _turns_from_training_trace

    def call(node_id: str, prompt: list[int], ids: list[int], parent: str | None) -> Any:
        return turn(
            node_id,
            prompt_token_ids=prompt,
            completion_token_ids=ids,
            per_token_logps=[-0.1] * len(ids),
            loss_mask=[0] * len(prompt) + [1] * len(ids),
            metadata={"parent_id": parent},
        )

    calls = {
        "a": call("a", [1], [2], None),
        "s": call("s", [9], [8], None),
        "b": call("b", [1, 2, 3], [4], "a"),
        "t": call("t", [9, 8, 7], [6], "s"),
    }

    def rows(order: str) -> int:
        trace = TrainingTrace.model_validate(document(*(calls[name] for name in order)))
        return len(_chain_to_sequences(_turns_from_training_trace(trace), "r", 0)[0])

    assert rows("abst") == 2
    assert rows("asbt") == 4
    from explorer.integrations.contract import MalformedTrace, check_trace

    check_trace(document(*(calls[name] for name in "abst")))
    with pytest.raises(MalformedTrace, match="branch_order"):
        check_trace(document(*(calls[name] for name in "asbt")))


def test_the_whole_loop_fills_the_trainers_queue(server: ExplorerServer, weights: Path) -> None:
    lock = threading.Lock()
    rewards = itertools.count()

    def agent(task: Any, endpoint: Endpoint) -> float:
        talk(endpoint, task[0]["content"])
        with lock:
            return float(next(rewards))

    recording = Recording(calling(agent))
    loop = loop_of(weights, factory(server, recording))
    running = threading.Thread(target=loop.run)
    running.start()
    samples: list[Any] = []
    try:
        # A rollout may be several rows: the next group's first row says that this one is whole.
        while len({sample.group_id for sample in samples}) < 2:
            samples.append(loop.rollout_buffer.get(timeout=60))
    finally:
        loop._loop.call_soon_threadsafe(loop._stop_event.set)
        running.join(60)
    assert not running.is_alive()
    samples = [sample for sample in samples if sample.group_id == samples[0].group_id]
    may_train = {
        (held, float(np.float32(logprob)))
        for rollout_id in recording.ids
        if server.show(rollout_id)["verdict"]["trainable"]
        for held, logprob in trained_tokens(read_trace(server.training_trace(rollout_id)))
    }
    for sample in samples:
        ids, logprobs = sample.input_ids.tolist(), sample.old_log_probs.tolist()
        ones = [place for place, bit in enumerate(sample.completion_mask.tolist()) if bit]
        assert ones
        for place in ones:
            assert (tuple(ids[: place + 1]), logprobs[place]) in may_train
    advantages = {round(sample.advantage, 4) for sample in samples}
    assert len(advantages) == 4
    assert sum(advantages) == pytest.approx(0, abs=1e-3)


def test_a_failed_rollout_is_unscorable_and_not_zero(
    server: ExplorerServer, weights: Path
) -> None:
    def broken(task: Any, endpoint: Endpoint) -> float:
        talk(endpoint, task[0]["content"])
        raise RuntimeError("the sandbox died")

    result, metrics = one(loop_of(weights, factory(server, calling(broken))))
    assert result == ([], [], [], 0, 0, None)
    assert metrics is None


def test_seed_4_a_command_that_failed_is_unscorable(
    server: ExplorerServer, weights: Path
) -> None:
    """TRL ignores the exit status that `wait_for_completion` returns; the trace is refused."""
    from explorer.integrations.command import CommandAgent
    from tests.consumers.making import COMMAND

    agent = CommandAgent((*COMMAND[:2], "exit 3"), lambda _: 1.0)
    result, _ = one(loop_of(weights, factory(server, agent)))
    assert result == ([], [], [], 0, 0, None)


def test_a_rollout_that_nobody_scored_has_no_reward(
    server: ExplorerServer, weights: Path
) -> None:
    result, _ = one(loop_of(weights, factory(server, calling(scored(None)))))
    assert result[-1] is None
    assert result[2]


class Tampering(ExplorerServer):
    """A server whose traces would train a token of the prompt."""

    def training_trace(self, rollout_id: str, *, needs_reward: bool = False) -> bytes:
        raw = super().training_trace(rollout_id, needs_reward=needs_reward)
        return raw.replace(b'"loss_mask":[0', b'"loss_mask":[1', 1)


def test_a_malformed_trace_stops_the_worker(server: ExplorerServer, weights: Path) -> None:
    from trl.experimental.async_grpo.openenv_harness import CaptureContractError

    broken = Tampering(server.url, server.token)
    loop = loop_of(weights, factory(broken, calling(scored(1.0))))
    with pytest.raises(CaptureContractError, match="trainable_prompt"):
        one(loop)
    whole = loop_of(weights, factory(broken, calling(scored(1.0))))
    stopped: list[BaseException] = []

    def run() -> None:
        try:
            whole.run()
        except CaptureContractError as error:
            stopped.append(error)

    running = threading.Thread(target=run)
    running.start()
    running.join(60)
    assert not running.is_alive()
    assert stopped
    assert whole._failed_event.is_set()
    with pytest.raises(queue.Empty):
        whole.rollout_buffer.get(timeout=0.2)


def test_messages_travel_where_they_are_asked_for(
    server: ExplorerServer, weights: Path
) -> None:
    """TRL counts tool calls and fills its logs from them; no token changes."""
    recording = Recording(calling(scored(1.0)))
    made = functools.partial(factory(server, recording), with_messages=True)
    (completion, ids, sequences, *_), _ = one(loop_of(weights, made))
    trace = read_trace(server.training_trace(recording.ids[0]))
    assert completion[0] == {"role": "user", "content": str(PROMPT)}
    assert completion[-1]["role"] == "assistant"
    assert len(completion) == 4
    assert ids == [token for call in trace.turns for token in call.completion_ids]
    assert_rows(sequences, trace)


def test_an_auxiliary_call_does_not_reach_the_trainer(
    server: ExplorerServer, weights: Path
) -> None:
    def agent(task: Any, endpoint: Endpoint) -> float:
        say(endpoint, [{"role": "user", "content": "A title, please."}])
        say(endpoint, task, tools=[TOOL])
        return 1.0

    result, metrics = one(loop_of(weights, factory(server, calling(agent))))
    assert metrics["turns"] == 1
    assert len(result[2]) == 1

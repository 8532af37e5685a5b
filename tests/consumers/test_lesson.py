"""The trainer loop with everything real: proxy, tiny engine, TRL, fence, δ. Two steps here;
the whole lesson, which must teach, is `tests/lesson`."""

from __future__ import annotations

import asyncio
import re
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer.demo.lesson_tasks import LessonAgent, held_out_tasks, training_tasks
from explorer.demo.lesson_training import RUN, Wanted, evaluate, teach
from explorer.engine.tiny import TinyEngine
from explorer.errors import ConfigurationError
from explorer.integrations.attempts import Endpoint
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.client import ExplorerClient
from explorer.integrations.contract import read_trace
from explorer.integrations.rows import choose_row
from explorer.integrations.trl import (
    LiveRollouts,
    TrainerLogprobs,
    WeightFence,
    WeightPush,
    calling,
    captured_reward,
)
from explorer.integrations.trl.logprobs import trainer_logprobs
from tests.consumers.making import needs_trl, say, talk
from tests.consumers.training import config, model_and_tokenizer, rows_of, trainer_class
from tests.live import Live, serving

pytestmark = needs_trl
STEPS = 2


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass
class Trained:
    """A training of two steps, after it ended; its server still runs."""

    live: Live
    server: ExplorerServer
    trainer: Any
    push: WeightPush
    batches: list[dict[str, Any]]
    folder: Path


class Kept(list[dict[str, Any]]):
    """A rollout function that keeps what it returned."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        self.append(self.function(prompts, trainer))
        return self[-1]


def make(
    server: ExplorerServer,
    weights: Path,
    folder: Path,
    rollouts: Any,
    push: WeightPush,
    **more: Any,
) -> Any:
    from datasets import Dataset

    model, tokenizer = model_and_tokenizer(weights)
    prompts = more.pop("prompts")
    return trainer_class()(
        model=model,
        args=config(folder, **more),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=tokenizer,
        reward_funcs=[captured_reward],
        rollout_func=rollouts,
        callbacks=[push],
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, weights: Path) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("lesson")
    with serving(TinyEngine(), folder / "s.duckdb") as live:
        server = ExplorerServer(live.url, live.token)
        tasks = training_tasks(7, 4, held_out_tasks())
        agent = LessonAgent(tasks)
        push = WeightPush(server, folder / "weights")
        rollouts = Kept(
            LiveRollouts(
                server,
                calling(agent),
                run=RUN,
                weights=push,
                logprobs=TrainerLogprobs(server, push.version_of, repeat=True),
            )
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = make(
                server, weights, folder, rollouts, push,
                prompts=[task.question for task in tasks], learning_rate=4e-4,
                num_generations=4, per_device_train_batch_size=8, max_steps=STEPS,
            )  # fmt: skip
            trainer.train()
        agent.close()
        yield Trained(live, server, trainer, push, list(rollouts), folder)


def test_the_version_rises_with_every_step_behind_the_fence(trained: Trained) -> None:
    assert trained.push.pushed == [0, 1, 2]
    assert trained.push.fence.closings == 3
    assert trained.push.fence.undrained == 0
    told = trained.server.weights()
    assert (told["state"], told["weight_version"], told["coming"]) == ("ready", 2, None)
    states = [(update["state"], update["weight_version"]) for update in told["updates"]]
    assert states[::-1] == [
        (state, version) for version in range(3) for state in ("syncing", "ready")
    ]


def test_every_call_has_the_version_of_its_step_and_none_crosses(trained: Trained) -> None:
    seen = set()
    for step, batch in enumerate(trained.batches):
        for rollout_id in batch["rollout_id"]:
            assert trained.server.show(rollout_id)["metadata"]["global_step"] == step
            for call in trained.live.calls(rollout_id):
                assert call["weight_version_start"] == call["weight_version_end"] == step
                seen.add(call["weight_version_end"])
    assert seen == {0, 1}


def test_the_engine_samples_with_the_trainers_new_weights(trained: Trained) -> None:
    """After the last push the engine says of fresh tokens what the trainer's model says."""
    endpoint = Endpoint.create(trained.server, {"sampling": {"temperature": 1.0}})
    talk(endpoint, "What is 47 + 38? Use the calculator.")
    trained.server.reward(endpoint.rollout_id, 1.0)
    trained.server.close(endpoint.rollout_id, ok=True)
    trace = read_trace(trained.server.training_trace(endpoint.rollout_id))
    found = trainer_logprobs(trained.trainer.model, [trace])[0]
    for turn in trace.turns:
        assert found[turn.node_id] == pytest.approx(turn.logprobs, abs=1e-4)
    # The weights that the training began with would say something else.
    model, _ = model_and_tokenizer(trained.folder / "weights" / "version-00000002")
    assert changed(model, trained.trainer.model) == 0
    shipped, _ = model_and_tokenizer(Path(trained.trainer.model.name_or_path))
    assert changed(shipped, trained.trainer.model) > 10
    old = trainer_logprobs(shipped, [trace])[0]
    assert any(
        value is not None and abs(value - logprob) > 1e-3
        for turn in trace.turns
        for value, logprob in zip(old[turn.node_id], turn.logprobs, strict=True)
    )


def changed(model: Any, other: Any) -> int:
    theirs = dict(other.named_parameters())
    return sum(
        bool((value.detach() != theirs[name].detach()).any())
        for name, value in model.named_parameters()
    )


def test_trainer_against_engine_is_under_1e_4_at_version_equality(trained: Trained) -> None:
    ids = [rollout_id for batch in trained.batches for rollout_id in batch["rollout_id"]]
    summaries = trained.live.store.delta_summaries(ids)
    assert set(summaries) == set(ids)
    compared = 0
    for summary in summaries.values():
        assert summary.source == "trl"
        assert summary.n_same_version == summary.n_compared == summary.n_training
        assert summary.abs_p99 is not None
        assert summary.abs_max is not None
        assert summary.abs_p99 < 1e-4
        # One token in a million is an unsure digit at which float32 rounds by twice that.
        assert summary.abs_max < 1e-3
        assert summary.n_outside == 0
        assert summary.noise_kind == "trainer_repeat"
        assert summary.noise_abs_p99 is not None
        assert summary.noise_abs_p99 < 1e-4
        compared += summary.n_compared
    assert compared > 500


def test_gradients_stand_only_where_the_mask_is_one(trained: Trained) -> None:
    assert len(trained.trainer.steps) == STEPS
    trains = masked = 0
    for batch, step in zip(trained.batches, trained.trainer.steps, strict=True):
        expected = {
            (tuple(prompt), tuple(ids)): tuple(mask)
            for prompt, ids, mask in zip(
                *(batch[key] for key in ("prompt_ids", "completion_ids", "env_mask")),
                strict=True,
            )
        }
        for row in rows_of(step):
            mask = expected[row["prompt"], row["ids"]]
            assert row["mask"] == mask
            assert not any(row["beyond"])
            for bit, gradient in zip(mask, row["gradient"], strict=True):
                assert (gradient != 0) == (bit == 1 and row["advantage"] != 0)
            trains += sum(mask)
            masked += len(mask) - sum(mask)
    assert trains > 500
    assert masked > 100


def test_a_batch_names_our_rows(trained: Trained) -> None:
    for batch in trained.batches:
        for rollout_id, nodes, ids in zip(
            *(batch[key] for key in ("rollout_id", "node_ids", "completion_ids")), strict=True
        ):
            calls = [call["call_id"] for call in trained.live.calls(rollout_id)]
            assert set(nodes) <= set(calls)
            row = choose_row(read_trace(trained.server.training_trace(rollout_id)))
            assert row.completion_ids == tuple(ids)


def test_the_run_page_draws_the_training_over_its_steps(trained: Trained) -> None:
    page = httpx.get(
        f"{trained.live.url}/runs/{RUN}.json",
        headers={"authorization": f"Bearer {trained.live.token}"},
    )
    charts = page.json()["charts"]
    assert (charts["axis"], charts["steps"], charts["left_out"]) == ("step", STEPS, 0)
    assert [(row["first"], row["last"]) for row in charts["rows"]] == [(0, 0), (1, 1)]


def test_a_pushed_folder_is_a_whole_model(trained: Trained) -> None:
    """What is left on the disk can be served: `--engine tiny:FOLDER`."""
    kept = sorted(path.name for path in (trained.folder / "weights").glob("version-*"))
    assert kept == ["version-00000001", "version-00000002"]
    newest = trained.folder / "weights" / kept[-1]
    with serving(TinyEngine(newest), trained.folder / "again.duckdb") as live:
        server = ExplorerServer(live.url, live.token)
        tasks = held_out_tasks(2)
        agent = LessonAgent(tasks)
        wanted = Wanted(newest, trained.folder, evaluations=1)
        assert evaluate(server, agent, tasks, wanted, "again") in (0.0, 0.5, 1.0)
        agent.close()
        rows = list(server.rollouts())
        assert len(rows) == 2
        assert all(row["judgement"]["trainable"] for row in rows)


def test_both_clients_ask_and_tell(trained: Trained) -> None:
    asyncio.run(ask_and_tell(trained))


async def ask_and_tell(trained: Trained) -> None:
    async with ExplorerClient(trained.live.url, trained.live.token) as client:
        assert (await client.weights())["weight_version"] == trained.push.pushed[-1]
        rollout_id = trained.batches[0]["rollout_id"][0]
        call = trained.live.calls(rollout_id)[-1]
        answer = await client.post_trainer_logprobs(
            rollout_id,
            0,
            [{"call_id": call["call_id"], "per_token_logps": [-0.5] * call["completion_len"]}],
            source="by hand",
            kind="reference",
        )
        assert answer["stored"] == 1


def test_weights_that_trl_sends_itself_are_announced_when_they_were_sent(
    weights: Path, tmp_path: Path
) -> None:
    """As with vLLM: the fence closes after the step, and opens when the next batch begins."""
    seen: list[tuple[str, int]] = []
    with serving(TinyEngine(), tmp_path / "s.duckdb") as live:
        server = ExplorerServer(live.url, live.token)
        push = WeightPush(server)

        def agent(prompt: Any, endpoint: Endpoint) -> float:
            told = server.weights()
            seen.append((told["state"], told["weight_version"]))
            talk(endpoint, str(prompt), 1)
            return float(len(seen))

        rollouts = LiveRollouts(server, calling(agent), weights=push, at_once=1)
        trainer = make(
            server, weights, tmp_path, rollouts, push, prompts=["a", "b", "c", "d"],
            num_generations=2, per_device_train_batch_size=2, max_steps=2,
        )  # fmt: skip
        trainer.train()
        assert seen == [("ready", 0)] * 2 + [("ready", 1)] * 2
        # After the last step nothing is sent: the engine still has what it had.
        told = server.weights()
        assert (told["state"], told["weight_version"], told["coming"]) == ("ready", 1, None)


def test_a_push_without_its_callback_says_what_to_do(trained: Trained) -> None:
    push = WeightPush(trained.server)
    with pytest.raises(ConfigurationError, match=re.escape("callbacks=[push]")):
        push.version_of(trained.trainer)
    with pytest.raises(ConfigurationError, match="every"):
        WeightPush(trained.server, every=0)


def test_calls_in_flight_delay_an_update_and_do_not_stop_it(trained: Trained) -> None:
    server = trained.server
    endpoint = Endpoint.create(server, {})
    messages = [{"role": "user", "content": "Write a long text."}]
    long = {"max_tokens": 1500, "ignore_eos": True}
    call = threading.Thread(target=say, args=(endpoint, messages), kwargs=long)
    call.start()
    until = time.monotonic() + 20
    while not server.weights()["in_flight"] and time.monotonic() < until:
        time.sleep(0.01)
    version = server.weights()["weight_version"] + 1
    fence = WeightFence(server, patience_s=0.0, wait_s=0)
    fence.close(version)
    assert fence.undrained == 1
    fence.open(version)
    call.join(60)
    (crossed,) = trained.live.calls(endpoint.rollout_id)
    assert crossed["status"] == "committed"
    assert crossed["completion_len"] == long["max_tokens"]
    assert crossed["supervised"] == 0
    assert "version_crossed" in {note["code"] for note in crossed["notes"]}


def test_the_lesson_without_a_step_changes_nothing(weights: Path, tmp_path: Path) -> None:
    """What the evaluation measures is the training: with a learning rate of 0 all weights
    stay, whatever the rewards were."""
    with serving(TinyEngine(), tmp_path / "s.duckdb") as live:
        server = ExplorerServer(live.url, live.token)
        lines: list[str] = []
        wanted = Wanted(
            weights, tmp_path / "w", steps=1, prompts=1, generations=4, learning_rate=0.0,
            held_out=4, evaluations=1, repeat=False,
        )  # fmt: skip
        result = teach(server, wanted, lines.append)
        assert len(result.steps) == 1
        assert result.steps[0].version == 0
        assert re.fullmatch(r"held-out: \d+% -> \d+% after 1 steps in \d+ s", result.told())
        model, _ = model_and_tokenizer(weights)
        pushed, _ = model_and_tokenizer(tmp_path / "w" / "version-00000001")
        assert changed(model, pushed) == 0
        held_out = {task.question for task in held_out_tasks(4)}
        trained_on = {row["task"] for row in server.rollouts(run=RUN)}
        assert trained_on
        assert not held_out & trained_on

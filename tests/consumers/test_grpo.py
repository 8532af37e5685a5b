"""The real GRPOTrainer trains on captured rollouts: exactly the tokens that we say."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from explorer.demo.group import Outcome
from explorer.errors import ConfigurationError
from explorer.integrations.attempts import Endpoint
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.client import ApiError
from explorer.integrations.command import CommandAgent, Finished
from explorer.integrations.contract import read_trace
from explorer.integrations.rows import choose_row
from explorer.integrations.trl import (
    LiveRollouts,
    NothingToTrain,
    ReplayedRollouts,
    RowOptions,
    UnscoredRollout,
    calling,
    captured_reward,
    skip_unscored,
)
from tests.consumers.making import COMMAND, needs_trl, talk
from tests.consumers.training import config, model_and_tokenizer, rows_of, trainer_class
from tests.live import Live

pytestmark = needs_trl


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Third parties' deprecations are not ours; our own warnings are logged, not warned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def make(weights: Path, folder: Path, rollouts: Any, prompts: list[Any], **more: Any) -> Any:
    from datasets import Dataset

    rewards = more.pop("reward_funcs", [captured_reward])
    model, tokenizer = model_and_tokenizer(weights)
    return trainer_class()(
        model=model,
        args=config(folder, **more),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=tokenizer,
        reward_funcs=rewards,
        rollout_func=rollouts,
    )


def copy_of(model: Any) -> dict[str, Any]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def changed(model: Any, before: dict[str, Any]) -> bool:
    return any(
        bool((value.detach() != before[name]).any()) for name, value in model.named_parameters()
    )


class Kept:
    """A rollout function that keeps what it returned."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.batches: list[dict[str, Any]] = []

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        batch: dict[str, Any] = self.function(prompts, trainer)
        self.batches.append(batch)
        return batch


def mixed_groups(server: ExplorerServer, demo: dict[str, Outcome]) -> dict[str, list[str]]:
    """Groups of two trainable rollouts with different rewards, trees first."""
    by_task: dict[str, dict[float, list[str]]] = {}
    for rollout_id, outcome in demo.items():
        if outcome.reward is not None and server.show(rollout_id)["verdict"]["trainable"]:
            found = by_task.setdefault(outcome.task, {})
            found.setdefault(outcome.reward, []).append(rollout_id)
    groups = {}
    for task, rewards in by_task.items():
        if len(rewards) > 1:
            groups[task] = [rewards[1.0][-1], rewards[0.0][-1]]
    assert len(groups) >= 2
    return groups


def test_two_steps_train_exactly_the_tokens_of_the_mask(
    server: ExplorerServer, demo: dict[str, Outcome], weights: Path, tmp_path: Path
) -> None:
    groups = mixed_groups(server, demo)
    rollouts = Kept(ReplayedRollouts(server, groups))
    trainer = make(weights, tmp_path, rollouts, list(groups))
    before = copy_of(trainer.model)
    trainer.train()

    assert len(trainer.steps) == 2
    assert changed(trainer.model, before)
    supervised = masked = 0
    for batch, step in zip(rollouts.batches, trainer.steps, strict=True):
        expected = {
            (tuple(prompt), tuple(ids)): (tuple(mask), logprobs, reward)
            for prompt, ids, mask, logprobs, reward in zip(
                *(batch[key] for key in ("prompt_ids", "completion_ids", "env_mask")),
                *(batch[key] for key in ("logprobs", "reward")),
                strict=True,
            )
        }
        for row in rows_of(step):
            mask, logprobs, reward = expected[row["prompt"], row["ids"]]
            assert row["mask"] == mask
            # Rewards differ inside every group, so that every row moves the policy.
            assert (row["advantage"] > 0) == (reward == 1.0)
            assert abs(row["advantage"]) > 0.1
            assert [gradient != 0 for gradient in row["gradient"]] == [bit == 1 for bit in mask]
            assert not any(row["beyond"])
            assert row["captured"] == pytest.approx(logprobs, abs=1e-6)
            supervised += sum(mask)
            masked += len(mask) - sum(mask)
    assert supervised > 100
    assert masked > 50


def test_the_trainer_computes_the_logprobs_that_were_captured(
    server: ExplorerServer, demo: dict[str, Outcome], weights: Path, tmp_path: Path
) -> None:
    groups = mixed_groups(server, demo)
    trainer = make(
        weights, tmp_path, ReplayedRollouts(server, groups), list(groups), max_steps=1
    )
    trainer.train()
    compared = 0
    for row in rows_of(trainer.steps[0]):
        for bit, found, captured in zip(
            row["mask"], row["logps"], row["captured"], strict=True
        ):
            if bit:
                assert found == pytest.approx(captured, abs=2e-3)
                compared += 1
    assert compared > 50


def test_without_the_mask_the_same_rows_would_train_tool_results(
    server: ExplorerServer, demo: dict[str, Outcome], weights: Path, tmp_path: Path
) -> None:
    """What the mask is for: the same rows with a mask of ones."""
    groups = mixed_groups(server, demo)
    ours = ReplayedRollouts(server, groups)

    def maskless(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        batch = dict(ours(prompts, trainer))
        batch["env_mask"] = [[1] * len(mask) for mask in batch["env_mask"]]
        return batch

    trainer = make(weights, tmp_path, maskless, list(groups), max_steps=1)
    trainer.train()
    rows = rows_of(trainer.steps[0])
    assert all(all(row["gradient"]) for row in rows)


def test_trl_itself_trains_what_a_short_mask_leaves_out(
    server: ExplorerServer, demo: dict[str, Outcome], weights: Path, tmp_path: Path
) -> None:
    """Why our batch asserts equal lengths: TRL pads a short mask with ones."""
    groups = mixed_groups(server, demo)
    ours = ReplayedRollouts(server, groups)
    cut: list[list[int]] = []

    def short(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        batch = dict(ours(prompts, trainer))
        masks = [list(mask) for mask in batch["env_mask"]]
        place = min(range(len(masks)), key=lambda n: len(masks[n]))
        # All of it was context, says the mask, but it ends three tokens too early.
        masks[place] = [0] * (len(masks[place]) - 3)
        cut.append(batch["completion_ids"][place])
        batch["env_mask"] = masks
        return batch

    trainer = make(weights, tmp_path, short, list(groups), max_steps=1)
    trainer.train()
    row = next(row for row in rows_of(trainer.steps[0]) if row["ids"] == tuple(cut[0]))
    assert sum(gradient != 0 for gradient in row["gradient"]) == 3


def test_agents_run_through_the_proxy_while_training(
    server: ExplorerServer, weights: Path, tmp_path: Path
) -> None:
    def agent(prompt: Any, endpoint: Endpoint) -> float:
        talk(endpoint, str(prompt))
        # Any verifier; this one differs inside each group.
        return float(int(endpoint.rollout_id[-1], 16))

    rollouts = Kept(LiveRollouts(server, calling(agent), run="live"))
    trainer = make(
        weights, tmp_path, rollouts, ["What is 2 + 3?", "What is 4 + 4?"], max_steps=1
    )
    trainer.train()
    batch = rollouts.batches[0]
    assert len(batch["rollout_id"]) == 4
    assert len(set(batch["rollout_id"])) == 4
    for rollout_id, reward, ids, mask in zip(
        *(batch[key] for key in ("rollout_id", "reward", "completion_ids", "env_mask")),
        strict=True,
    ):
        shown = server.show(rollout_id)
        assert shown["run"] == "live"
        assert shown["reward"] == reward
        assert shown["sampling"]["temperature"] == 1.0
        row = choose_row(read_trace(server.training_trace(rollout_id)))
        assert (tuple(ids), tuple(mask)) == (row.completion_ids, row.env_mask)
    groups = {server.show(rollout_id)["group"] for rollout_id in batch["rollout_id"]}
    assert len(groups) == 2


def test_a_command_trains_too(server: ExplorerServer, weights: Path, tmp_path: Path) -> None:
    counted: list[Finished] = []

    def verifier(finished: Finished) -> float:
        counted.append(finished)
        return float(len(counted))

    rollouts = LiveRollouts(server, CommandAgent(COMMAND, verifier))
    trainer = make(weights, tmp_path, rollouts, ["a", "b"], max_steps=1)
    before = copy_of(trainer.model)
    trainer.train()
    assert len(counted) == 4
    assert changed(trainer.model, before)


def test_a_server_that_refuses_stops_training_at_once(
    live: Live, weights: Path, tmp_path: Path
) -> None:
    rollouts = LiveRollouts(ExplorerServer(live.url, "not-the-token"), CommandAgent(COMMAND))
    trainer = make(weights, tmp_path, rollouts, ["a", "b"])
    with pytest.raises(ApiError) as refused:
        trainer.train()
    assert refused.value.http_status in (401, 403)


def test_evaluation_runs_agents_too(
    server: ExplorerServer, weights: Path, tmp_path: Path
) -> None:
    rollouts = Kept(LiveRollouts(server, calling(failing_never), run="evaluated"))
    trainer = make(
        weights, tmp_path, rollouts, ["a", "b"], num_generations_eval=2,
        per_device_eval_batch_size=4,
    )  # fmt: skip
    trainer.evaluate(trainer.train_dataset)
    groups = {server.show(name)["group"] for name in rollouts.batches[0]["rollout_id"]}
    assert len(groups) == 2
    assert all("evaluation at step 0" in group for group in groups)


def failing_never(prompt: Any, endpoint: Endpoint) -> float:
    talk(endpoint, str(prompt))
    return 1.0


# Rollouts without a score.


def failing(place: int, reward: float | None = 1.0) -> Any:
    """An agent that fails on one row of a batch, or is given no reward there."""
    started: list[int] = []

    def agent(prompt: Any, endpoint: Endpoint) -> float | None:
        number = len(started)
        started.append(number)
        talk(endpoint, str(prompt))
        if number == place and reward is None:
            return None
        if number == place:
            raise RuntimeError("the sandbox died")
        return float(number)

    return calling(agent)


@pytest.mark.parametrize("reward", [1.0, None])
def test_a_rollout_without_a_score_is_in_no_mean_and_trains_nothing(
    server: ExplorerServer, weights: Path, tmp_path: Path, reward: float | None
) -> None:
    rollouts = Kept(LiveRollouts(server, failing(0, reward), at_once=1))
    trainer = make(weights, tmp_path, rollouts, ["one prompt"], num_generations=4, max_steps=1)
    trainer.train()
    batch = rollouts.batches[0]
    assert batch["reward"] == [None, 1.0, 2.0, 3.0]
    why = batch["unscored"][0]
    assert ("agent_failed: RuntimeError" if reward else "reward_missing") in why
    assert batch["unscored"][1:] == [None] * 3
    rows = rows_of(trainer.steps[0])
    # The mean of the three that have a score is 2, so that 1 and 3 lie evenly around it.
    advantages = sorted(row["advantage"] for row in rows if sum(row["mask"]))
    assert advantages == pytest.approx([-1.0, 0.0, 1.0], abs=1e-3)
    stand_in = next(row for row in rows if not sum(row["mask"]))
    assert stand_in["advantage"] == 0
    assert not any(stand_in["gradient"])
    assert trainer.state.log_history[0]["reward"] == pytest.approx(2.0)


def test_an_unscored_rollout_may_stop_training(
    server: ExplorerServer, weights: Path, tmp_path: Path
) -> None:
    options = RowOptions(on_unscored="raise")
    rollouts = LiveRollouts(server, failing(0), options, at_once=1)
    trainer = make(weights, tmp_path, rollouts, ["one prompt"], num_generations=4)
    with pytest.raises(UnscoredRollout, match="the sandbox died"):
        trainer.train()


def test_a_batch_with_nothing_to_train_stops_training(
    server: ExplorerServer, weights: Path, tmp_path: Path
) -> None:
    def silent(_prompt: Any, _endpoint: Endpoint) -> float:
        return 1.0

    trainer = make(weights, tmp_path, LiveRollouts(server, calling(silent)), ["a", "b"])
    with pytest.raises(NothingToTrain, match="no_turns"):
        trainer.train()


def test_a_reward_function_that_would_score_the_unscored_is_refused(
    server: ExplorerServer, weights: Path, tmp_path: Path
) -> None:
    seen: list[Any] = []

    def length(completion_ids: list[list[int]], **_: Any) -> list[float]:
        seen.append(len(completion_ids))
        return [float(len(ids)) for ids in completion_ids]

    rollouts = LiveRollouts(server, failing(0), at_once=1)
    trainer = make(weights, tmp_path, rollouts, ["a", "b"], reward_funcs=[length])
    with pytest.raises(ConfigurationError, match="skip_unscored"):
        trainer.train()
    trainer = make(
        weights,
        tmp_path,
        rollouts,
        ["one prompt"],
        reward_funcs=[captured_reward, skip_unscored(length)],
        num_generations=4,
        max_steps=1,
    )
    trainer.train()
    assert seen == [4]
    stand_in = next(row for row in rows_of(trainer.steps[0]) if not sum(row["mask"]))
    assert stand_in["advantage"] == 0


# Settings under which TRL would not do what it is told.


def test_rollouts_of_another_temperature_are_refused(
    server: ExplorerServer, demo: dict[str, Outcome], weights: Path, tmp_path: Path
) -> None:
    groups = mixed_groups(server, demo)
    trainer = make(
        weights, tmp_path, ReplayedRollouts(server, groups), list(groups), temperature=0.7
    )
    with pytest.raises(ConfigurationError, match=r"temperature=1\.0"):
        trainer.train()


def test_a_trainer_with_tools_is_refused_because_it_ignores_the_mask() -> None:
    class Trainer:
        tools = (len,)

    with pytest.raises(ConfigurationError, match="ignores `env_mask`"):
        ReplayedRollouts(ExplorerServer("http://127.0.0.1:9"), {})(["a"], Trainer())


def test_rollouts_of_another_model_are_refused(
    server: ExplorerServer, demo: dict[str, Outcome]
) -> None:
    class Config:
        vocab_size = 100

    class Model:
        training = True
        config = Config()

    class Trainer:
        num_generations = 2
        model = Model()

    groups = mixed_groups(server, demo)
    name = next(iter(groups))
    with pytest.raises(ConfigurationError, match="another model"):
        ReplayedRollouts(server, groups)([name, name], Trainer())


def test_one_process_of_several_does_not_stop_alone(
    server: ExplorerServer, demo: dict[str, Outcome]
) -> None:
    class Accelerator:
        num_processes = 2
        process_index = 1

    class Trainer:
        num_generations = 2
        accelerator = Accelerator()

    groups = mixed_groups(server, demo)
    name = next(iter(groups))
    replay = ReplayedRollouts(server, groups, RowOptions(max_tokens=10))
    batch = replay([name, name], Trainer())
    assert batch["reward"] == [None, None]
    assert batch["env_mask"] == [[0], [0]]


def test_replay_gives_no_rollout_twice_in_a_batch(
    server: ExplorerServer, demo: dict[str, Outcome]
) -> None:
    class Trainer:
        num_generations = 2

    groups = mixed_groups(server, demo)
    name, ids = next(iter(groups.items()))
    replay = ReplayedRollouts(server, groups)
    assert replay([name, name], Trainer())["rollout_id"] == ids
    # The next epoch begins again.
    assert replay([name, name], Trainer())["rollout_id"] == ids
    with pytest.raises(ConfigurationError, match="2 rollouts"):
        replay([name] * 4, Trainer())
    with pytest.raises(ConfigurationError, match="split between processes"):
        replay([name], Trainer())
    with pytest.raises(ConfigurationError, match="no rollout was captured"):
        replay(["another", "another"], Trainer())


def test_a_run_is_replayed_by_its_groups(
    server: ExplorerServer, demo: dict[str, Outcome]
) -> None:
    replay = ReplayedRollouts.of_run(server, "demo", num_generations=3)
    assert sum(map(len, replay.groups.values())) + sum(replay.passed_over.values()) == len(demo)
    assert replay.passed_over["not trainable"] > 0
    assert [row["prompt"] for row in replay.rows()] == list(replay.groups)
    with pytest.raises(ConfigurationError, match="no group of 99"):
        ReplayedRollouts.of_run(server, "demo", num_generations=99)


def test_a_row_beyond_the_limit_is_unscored_and_never_cut(
    server: ExplorerServer, demo: dict[str, Outcome]
) -> None:
    class Trainer:
        num_generations = 2

    groups = mixed_groups(server, demo)
    name = next(iter(groups))
    replay = ReplayedRollouts(server, groups, RowOptions(max_tokens=10))
    with pytest.raises(NothingToTrain, match="too_long"):
        replay([name, name], Trainer())

"""OpenEnv's maskless rollout function is let through for single calls and no further."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

from explorer.errors import ConfigurationError
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.command import CommandAgent
from explorer.integrations.trl import (
    MasklessRollouts,
    RowOptions,
    captured_reward,
    guard_rollout_func,
    guarded_harness_rollout_func,
    skip_unscored,
)
from explorer.integrations.trl.batch import check_trainer
from explorer.integrations.trl.guard import _Counting
from explorer.integrations.trl.rewards import leaves_unscored_out
from tests.consumers.making import COMMAND, needs_openenv


def batch(**changes: Any) -> dict[str, Any]:
    return {
        "prompt_ids": [[1, 2]],
        "completion_ids": [[3, 4]],
        "logprobs": [[-0.1, -0.2]],
        "env_mask": [[1, 0]],
    } | changes


def test_a_batch_that_fits_together_passes_unchanged() -> None:
    good = batch(reward=[1.0])
    assert guard_rollout_func(lambda _prompts, _trainer: good)(["a"], None) == good


@pytest.mark.parametrize(
    "changes",
    [
        {"env_mask": [[1]]},
        {"env_mask": [[1, 0, 0]]},
        {"env_mask": [[1, 2]]},
        {"env_mask": [[True, False]]},
        {"env_mask": [[1, 0], [1, 0]]},
        {"env_mask": []},
        {"logprobs": [[-0.1]]},
        {"logprobs": None},
        {"logprobs": [[None, -0.2]]},
        {"logprobs": [[float("nan"), -0.2]]},
        {"logprobs": [[-0.1, float("nan")]]},
        {"logprobs": [[-0.1, float("-inf")]]},
        {"logprobs": [["-0.1", -0.2]]},
        {"completion_ids": [[]], "env_mask": [[]], "logprobs": [[]]},
        {"prompt_ids": [[]]},
        {"prompt_ids": [[1], [1]]},
    ],
)
def test_a_batch_that_trl_would_misread_is_refused(changes: dict[str, Any]) -> None:
    guarded = guard_rollout_func(lambda _prompts, _trainer: batch(**changes))
    with pytest.raises(ValueError, match=r"row 0|`\w+`"):
        guarded(["a"], None)


def test_a_count_that_an_adapter_tells_takes_nothing_from_what_was_counted() -> None:
    class Adapter:
        def run_white_box(self, model_step: Any, session: Any, limits: Any) -> Any:
            for _ in range(3):
                model_step()
            return SimpleNamespace(metrics={"model_calls": 1})

    counting = _Counting(Adapter())
    counting.run_white_box(counting.counted(lambda: None), None)
    assert counting.taken() == [3]


def test_what_wraps_a_safe_reward_function_is_not_safe_by_that() -> None:
    """`functools.wraps` copies marks: such a function made zeros of unscored rows."""

    @functools.wraps(captured_reward)
    def zeros(reward: Any, **_: Any) -> list[float]:
        return [value or 0.0 for value in reward]

    assert leaves_unscored_out(captured_reward)
    assert leaves_unscored_out(skip_unscored(zeros))
    assert not leaves_unscored_out(zeros)
    with pytest.raises(ConfigurationError, match="skip_unscored"):
        check_trainer(SimpleNamespace(reward_funcs=[zeros]), RowOptions())


def test_a_batch_without_a_mask_is_refused() -> None:
    guarded = guard_rollout_func(lambda _prompts, _trainer: batch(env_mask=None))
    with pytest.raises(MasklessRollouts, match="tool results included"):
        guarded(["a"], None)


@needs_openenv
class TestOpenEnvsFunction:
    """`build_harness_rollout_func` of the real package."""

    def model_step(self, calls: int) -> Any:
        """Samples a turn: a tool call until `calls` calls were made, then an answer."""
        from openenv.core.harness import ModelStepResult
        from openenv.core.llm_client import LLMResponse, ToolCall

        made: list[int] = []

        def step(messages: list[Any], _tools: list[Any], _sampling: dict[str, Any]) -> Any:
            made.append(len(messages))
            wants = [ToolCall(id="c", name="look", args={})] if len(made) < calls else []
            number = len(made)
            return ModelStepResult(
                LLMResponse(content="x", tool_calls=wants),
                prompt_ids=[10 * number, 1],
                completion_ids=[10 * number + 5],
                logprobs=[-0.1],
            )

        return step

    def session_factory(self, reward: float = 1.0) -> Any:
        from openenv.core.harness import ResourceSession, ToolResult, VerifyResult

        class Session(ResourceSession):  # type: ignore[misc]
            def initial_messages(self) -> list[Any]:
                return [{"role": "user", "content": "x"}]

            def list_tools(self) -> list[Any]:
                return []

            def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
                return ToolResult(data={"seen": name})

            def verify(self, transcript: list[Any], final_state: Any = None) -> Any:
                return VerifyResult(env_reward=reward)

            def close(self) -> None:
                return None

        class Factory:
            def create(self, task: Any, **_: Any) -> Any:
                return Session()

        return Factory()

    def built(self, make: Any, calls: int) -> Any:
        from openenv.core.harness import MCPHarnessAdapter

        return make(
            session_factory=self.session_factory(),
            harness_adapter=MCPHarnessAdapter(),
            model_step_builder=lambda _trainer, _session: self.model_step(calls),
        )

    def test_its_rows_of_several_calls_are_no_sequence_that_an_engine_saw(self) -> None:
        from openenv.core.harness import build_harness_rollout_func

        found = self.built(build_harness_rollout_func, 2)(["a"], None)
        # Two calls: [10, 1] gave [15], [20, 1] gave [25]. Joined, with no mask:
        assert found["prompt_ids"] == [[10, 1, 20, 1]]
        assert found["completion_ids"] == [[15, 25]]
        assert "env_mask" not in found

    def test_single_calls_pass_and_are_given_their_mask(self) -> None:
        found = self.built(guarded_harness_rollout_func, 1)(["a", "b"], None)
        assert found["env_mask"] == [[1], [1]]
        assert found["env_reward"] == [1.0, 1.0]

    @pytest.mark.parametrize("calls", [2, 3])
    def test_more_calls_are_refused(self, calls: int) -> None:
        guarded = self.built(guarded_harness_rollout_func, calls)
        for _ in range(2):
            with pytest.raises(MasklessRollouts, match=f"{calls} model calls"):
                guarded(["a"], None)

    def test_a_bare_one_is_refused_whatever_it_did(self) -> None:
        from openenv.core.harness import build_harness_rollout_func

        guarded = guard_rollout_func(self.built(build_harness_rollout_func, 1))
        with pytest.raises(MasklessRollouts, match="guarded_harness_rollout_func"):
            guarded(["a"], None)

    def test_our_command_harness_under_it(self, server: ExplorerServer) -> None:
        from explorer.integrations.openenv import ExplorerHarness, ExplorerSessionFactory

        factory = ExplorerSessionFactory(server, CommandAgent(COMMAND, lambda _: 0.5))
        guarded = guarded_harness_rollout_func(
            session_factory=factory,
            harness_adapter=ExplorerHarness(factory),
            model_step_builder=lambda _trainer, _session: None,
        )
        found = guarded(["once"], None)
        assert found["env_reward"] == [0.5]
        assert found["env_mask"] == [[1] * len(found["completion_ids"][0])]
        with pytest.raises(MasklessRollouts, match="2 model calls"):
            guarded(["two calls"], None)
        # No trace, no reward: OpenEnv's own function refuses to make one up.
        with pytest.raises(ValueError, match="did not produce an environment reward"):
            guarded(["exit 3"], None)

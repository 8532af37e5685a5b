"""Sessions of ours under the real OpenEnv 0.10: its protocols, its trace, its adapter."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.errors import ConfigurationError
from explorer.integrations.attempts import Attempt, Ended, Endpoint
from explorer.integrations.blocking import ExplorerServer, TraceRefused
from explorer.integrations.command import CommandAgent, Finished
from explorer.integrations.contract import read_trace
from explorer.integrations.trl.rollout import calling
from tests.consumers.making import (
    COMMAND,
    document,
    needs_openenv,
    say,
    scored,
    talk,
    text,
    turn,
)
from tests.live import Live

pytestmark = needs_openenv


def factory(server: ExplorerServer, agent: Any, **more: Any) -> Any:
    from explorer.integrations.openenv import ExplorerSessionFactory

    return ExplorerSessionFactory(server, agent, **more)


def ran(server: ExplorerServer, reward: float | None = 1.0, turns: int = 2) -> Any:
    session = factory(server, calling(scored(reward, turns))).create("What is 2 + 3?", 7, "e1")
    assert session.wait_for_completion() == 0
    return session


def test_a_session_is_what_openenv_asks_for(server: ExplorerServer) -> None:
    from openenv.core.harness import (
        LoopOwningSession,
        ResourceSession,
        ResourceSessionFactory,
        SessionMCPBridge,
        TrainableSession,
    )

    made = factory(server, calling(scored(1.0)))
    assert isinstance(made, ResourceSessionFactory)
    session = made.create("hello", seed=3, episode_id="e9")
    assert isinstance(session, ResourceSession)
    assert isinstance(session, TrainableSession)
    assert isinstance(session, LoopOwningSession)
    assert session.initial_messages() == [{"role": "user", "content": "hello"}]
    assert session.list_tools() == []
    assert "owns its loop" in session.call_tool("look", {}).error
    with pytest.raises(KeyError, match="Reserved"):
        session.call_tool("step", {})
    bridge = SessionMCPBridge(session)
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert bridge.handle_request(asked)["result"] == {"tools": []}
    shown = server.show(session.rollout_id)
    assert shown["group"] == "3: hello"
    assert shown["metadata"] == {"seed": 3, "episode_id": "e9"}
    session.close()
    assert server.show(session.rollout_id)["ok"] is False


def test_its_trace_is_openenvs_and_equals_the_download(server: ExplorerServer) -> None:
    from openenv.core.harness import TrainingTrace

    session = ran(server)
    trace = session.fetch_training_trace()
    assert isinstance(trace, TrainingTrace)
    downloaded = TrainingTrace.model_validate_json(server.training_trace(session.rollout_id))
    assert trace.model_dump() == downloaded.model_dump()
    assert len(trace.turns) == 2
    for one in trace.turns:
        assert len(one.loss_mask) == len(one.prompt_token_ids) + len(one.completion_token_ids)
    entries = trace.to_trace_entries()
    assert TrainingTrace.from_entries(entries).model_dump() == downloaded.model_dump()


def test_the_raw_trace_shows_every_call_also_failed_ones(server: ExplorerServer) -> None:
    def agent(task: Any, endpoint: Endpoint) -> float:
        talk(endpoint, str(task))
        say(endpoint, [{"role": "user", "content": "A title, please."}])
        with pytest.raises(httpx.HTTPStatusError):
            say(endpoint, [{"role": "user", "content": "long " * 20_000}])
        return 1.0

    session = factory(server, calling(agent)).create("hi")
    assert session.wait_for_completion() == 0
    entries = session.fetch_proxy_trace()
    assert [entry["metadata"]["role"] for entry in entries] == [
        "agent",
        "agent",
        "auxiliary",
        "failed",
    ]
    *answered, failed = entries
    assert failed["response"]["choices"] == []
    assert failed["response"]["upstream_error"]
    assert "completion_token_ids" not in failed
    for entry in answered:
        assert entry["request"]["messages"][0]["role"] == "user"
        assert entry["response"]["choices"][0]["message"]["role"] == "assistant"
        length = len(entry["prompt_token_ids"]) + len(entry["completion_token_ids"])
        assert len(entry["loss_mask"]) == length
        assert "reward" not in entry
    by_id = {one.node_id: one for one in session.fetch_training_trace().turns}
    assert list(by_id) == [entry["metadata"]["node_id"] for entry in entries[:2]]
    for entry in entries[:2]:
        exported = by_id[entry["metadata"]["node_id"]]
        assert entry["loss_mask"] == exported.loss_mask
        assert entry["prompt_token_ids"] == exported.prompt_token_ids
        assert entry["per_token_logps"] == exported.per_token_logps
    assert not any(entries[2]["loss_mask"])


def test_verify_gives_the_reward_on_record(server: ExplorerServer) -> None:
    session = ran(server, 0.25)
    found = session.verify([], {"done": True})
    assert found.env_reward == 0.25
    assert found.done is True
    assert found.metrics["trainable"] is True
    assert found.artifacts["rollout_id"] == session.rollout_id


def test_a_missing_verifier_result_is_never_zero(server: ExplorerServer) -> None:
    session = ran(server, None)
    assert session.verify([]).env_reward is None
    assert session.fetch_training_trace().turns[0].metadata["reward"] is None


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), True, "1"])
def test_a_reward_that_is_no_number_fails_the_rollout(
    server: ExplorerServer, wrong: Any
) -> None:
    session = factory(server, calling(scored(wrong))).create("hi")
    with pytest.raises(ValueError, match="finite number or None"):
        session.wait_for_completion()
    assert session.verify([]).env_reward is None
    with pytest.raises(TraceRefused) as refused:
        session.fetch_training_trace()
    assert "rollout_failed" in refused.value.codes


def test_an_agent_that_raises_closes_its_rollout_as_failed(server: ExplorerServer) -> None:
    def broken(task: Any, endpoint: Endpoint) -> float:
        talk(endpoint, str(task))
        raise RuntimeError("the sandbox died")

    session = factory(server, calling(broken)).create("hi")
    with pytest.raises(RuntimeError, match="the sandbox died"):
        session.wait_for_completion()
    shown = server.show(session.rollout_id)
    assert (shown["status"], shown["ok"]) == ("closed", False)
    assert shown["reason"] == "the agent raised RuntimeError"
    with pytest.raises(TraceRefused):
        session.fetch_training_trace()
    entries = session.fetch_proxy_trace()
    assert len(entries) == 2
    # OpenEnv makes a trace of entries, and nothing of a refused rollout may be in it.
    assert not any(any(entry["loss_mask"]) for entry in entries)
    assert sum(map(len, (entry["completion_token_ids"] for entry in entries))) > 0


def test_an_open_rollout_is_refused_and_runs_once(server: ExplorerServer) -> None:
    session = factory(server, calling(scored(1.0))).create("hi")
    with pytest.raises(TraceRefused) as refused:
        session.fetch_training_trace()
    assert "rollout_open" in refused.value.codes
    assert session.wait_for_completion() == 0
    with pytest.raises(RuntimeError, match="once"):
        session.wait_for_completion()


def test_closing_a_session_stops_its_agent(server: ExplorerServer) -> None:
    session = factory(server, CommandAgent(COMMAND)).create("sleep")
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(session.wait_for_completion()))
    waiting.start()
    deadline = time.monotonic() + 20
    while len(list(server.calls(session.rollout_id))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    session.close()
    waiting.join(20)
    assert found == [143]
    shown = server.show(session.rollout_id)
    assert (shown["ok"], shown["reason"]) == (False, "the command was stopped")


def test_a_captured_rollout_is_a_session_too(server: ExplorerServer) -> None:
    from openenv.core.harness import TrainableSession

    from explorer.integrations.openenv import captured_session

    rollout_id = ran(server, 0.5).rollout_id
    session = captured_session(server, rollout_id)
    assert isinstance(session, TrainableSession)
    assert session.wait_for_completion() == 0
    assert session.verify([]).env_reward == 0.5
    assert session.fetch_training_trace().turns
    failed = factory(server, CommandAgent(COMMAND)).create("exit 3")
    failed.wait_for_completion()
    assert captured_session(server, failed.rollout_id).wait_for_completion() == 1


def test_a_training_policy_that_would_change_logprobs_is_refused(
    server: ExplorerServer,
) -> None:
    from openenv.core.harness.capture.upstream import training_sampling

    made = factory(
        server, calling(scored(1.0)), sampling=training_sampling({"temperature": 0.5})
    )
    session = made.create("hi")
    assert session.wait_for_completion() == 0
    sent = session.fetch_training_trace().turns[0].request["submitted_sampling"]
    assert sent["temperature"] == 0.5
    with pytest.raises(ConfigurationError, match="top_p"):
        factory(server, calling(scored(1.0)), sampling={"temperature": 1.0, "top_p": 0.9})


def test_a_factory_travels_to_another_process(server: ExplorerServer) -> None:
    made = factory(server, CommandAgent(COMMAND))
    again = pickle.loads(pickle.dumps(made))
    session = again.create("hi")
    assert session.wait_for_completion() == 0
    assert session.fetch_training_trace().turns


# The command harness.


def test_run_white_box_starts_the_command_and_ignores_the_trainers_model(
    server: ExplorerServer,
) -> None:
    from openenv.core.harness import CLIHarnessAdapter, HarnessRunLimits

    from explorer.integrations.openenv import ExplorerHarness

    def never(*_: Any, **__: Any) -> Any:
        pytest.fail("the harness owns its loop")

    seen: list[Finished] = []

    def verifier(finished: Finished) -> float:
        seen.append(finished)
        return 1.0 if "done" in finished.stdout else 0.0

    made = factory(server, CommandAgent(COMMAND, verifier))
    harness = ExplorerHarness(made)
    assert isinstance(harness, CLIHarnessAdapter)
    session = made.create("add 2 and 3")
    result = harness.run_white_box(never, session, HarnessRunLimits())
    assert result.done is True
    assert result.metrics["exit_code"] == 0
    assert result.metrics["model_calls"] == 2
    assert result.messages[0] == {"role": "user", "content": "add 2 and 3"}
    assert result.messages[-1]["role"] == "assistant"
    # No place for a mask: a rollout of two calls is read from the trace alone.
    assert result.completion_ids == []
    assert session.verify(result.messages).env_reward == 1.0
    assert seen[0].stdout.startswith("done add 2 and 3 True ***")
    assert len(session.fetch_training_trace().turns) == 2


def test_a_single_call_fills_openenvs_result(server: ExplorerServer) -> None:
    from explorer.integrations.openenv import ExplorerHarness

    made = factory(server, CommandAgent(COMMAND))
    session = made.create("once")
    result = ExplorerHarness(made).run_white_box(None, session)
    only = session.fetch_training_trace().turns[0]
    assert result.prompt_ids == only.prompt_token_ids
    assert result.completion_ids == only.completion_token_ids
    assert result.logprobs == only.per_token_logps


def test_run_black_box_and_a_session_that_is_not_ours(server: ExplorerServer) -> None:
    from openenv.core.harness import ResourceSession, VerifyResult

    from explorer.integrations.openenv import ExplorerHarness

    class Theirs(ResourceSession):  # type: ignore[misc]
        def initial_messages(self) -> list[dict[str, Any]]:
            return [{"role": "user", "content": "from their task"}]

        def list_tools(self) -> list[Any]:
            return []

        def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
            raise KeyError(name)

        def verify(self, transcript: list[Any], final_state: Any = None) -> Any:
            return VerifyResult(env_reward=1.0)

        def close(self) -> None:
            return None

    harness = ExplorerHarness(factory(server, CommandAgent(COMMAND)))
    for run in (partial(harness.run_white_box, None), harness.run_black_box):
        result = run(Theirs())
        assert result.done
        assert result.messages[0]["content"] == "from their task"
        shown = server.show(result.metrics["rollout_id"])
        assert shown["task"] == "from their task"


@pytest.mark.parametrize(
    ("task", "agent", "exit_code", "reason"),
    [
        ("exit 3", CommandAgent(COMMAND), 3, "the command ended with status 3"),
        ("sleep", CommandAgent(COMMAND, timeout_s=3.0), 124, "did not end within 3 seconds"),
        ("hi", CommandAgent(["no-such-program"]), 127, "command not found"),
        ("hi", CommandAgent(["/"]), 126, "cannot run /"),
    ],
)
def test_a_command_that_fails_leaves_a_refused_rollout(
    server: ExplorerServer, task: str, agent: CommandAgent, exit_code: int, reason: str
) -> None:
    from explorer.integrations.openenv import ExplorerHarness

    made = factory(server, agent)
    session = made.create(task)
    result = ExplorerHarness(made).run_white_box(None, session)
    assert result.done is False
    assert result.metrics["exit_code"] == exit_code
    assert "rollout_failed" in result.metrics["refused"]
    assert (result.prompt_ids, result.completion_ids, result.logprobs) == ([], [], [])
    shown = server.show(session.rollout_id)
    assert (shown["status"], shown["ok"]) == ("closed", False)
    assert reason in shown["reason"]
    assert session.verify([]).env_reward is None
    with pytest.raises(TraceRefused):
        session.fetch_training_trace()
    assert session.fetch_capture_audit()["verdict"]["trainable"] is False


def test_an_exit_code_may_be_named_as_good(server: ExplorerServer) -> None:
    agent = CommandAgent(COMMAND, lambda _: 0.0, ok_exit_codes=(0, 3))
    session = factory(server, agent).create("exit 3")
    assert session.wait_for_completion() == 3
    assert session.verify([]).env_reward == 0.0
    assert session.fetch_training_trace().turns


def test_a_command_that_calls_nobody_has_nothing_to_train(server: ExplorerServer) -> None:
    session = factory(server, CommandAgent(COMMAND, lambda _: 1.0)).create("silent")
    assert session.wait_for_completion() == 0
    with pytest.raises(TraceRefused) as refused:
        session.fetch_training_trace()
    assert "no_turns" in refused.value.codes


def test_words_of_a_task_are_not_filled_in_again(server: ExplorerServer) -> None:
    said: list[str] = []
    program = [sys.executable, "-c", "import sys; print(sys.argv[1])", "<{task}|{model}>"]
    agent = CommandAgent(program, lambda finished: said.append(finished.stdout))
    session = factory(server, agent).create("{key} {base_url}")
    assert session.wait_for_completion() == 0
    assert said == ["<{key} {base_url}|tiny>\n"]


NOISY = """
import os, sys
key = os.environ["OPENAI_API_KEY"].encode()
sys.stdout.buffer.write((key + b"\\x00\\xff\\xed\\xa0\\x80;") * int(sys.argv[1]))
"""


@pytest.mark.parametrize("times", [1, 150, 151, 200, 201])
def test_any_output_is_kept_without_the_key(server: ExplorerServer, times: int) -> None:
    seen: list[Finished] = []
    agent = CommandAgent([sys.executable, "-c", NOISY, "{task}"], seen.append)
    session = factory(server, agent).create(str(times))
    assert session.wait_for_completion() == 0
    key = session.attempt.endpoint.key
    said = seen[0].stdout
    assert said.endswith(";")
    assert "***" in said
    assert "\0" not in said
    assert not any(key[place : place + 8] in said for place in range(len(key) - 7))
    assert key not in repr(session.attempt)


# Sealed traces.


def sealed(**changes: Any) -> Any:
    from explorer.integrations.openenv import seal

    return seal(text(turn(metadata={"x": {"y": [1]}}, **changes)))


CHANGES: list[Callable[[Any], Any]] = [
    lambda trace: trace.turns[0].loss_mask.__setitem__(0, 1),
    lambda trace: trace.turns[0].loss_mask.extend([1]),
    lambda trace: trace.turns[0].completion_token_ids.append(9),
    lambda trace: trace.turns[0].per_token_logps.clear(),
    lambda trace: trace.turns[0].prompt_token_ids.sort(),
    lambda trace: trace.turns.pop(),
    lambda trace: trace.turns[0].metadata.update(reward=1.0),
    lambda trace: trace.turns[0].metadata["x"]["y"].append(2),
    lambda trace: setattr(trace.turns[0], "loss_mask", [1, 1, 1, 1]),
    lambda trace: setattr(trace, "turns", []),
    lambda trace: delattr(trace, "turns"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_checked_trace_cannot_be_changed(change: Callable[[Any], Any]) -> None:
    trace = sealed()
    before = trace.model_dump_json()
    with pytest.raises((TypeError, ValueError)):
        change(trace)
    assert trace.model_dump_json() == before
    trace.verify()


def test_what_goes_around_the_seal_is_found() -> None:
    from explorer.integrations.openenv import ChangedTrace

    trace = sealed()
    list.__setitem__(trace.turns[0].loss_mask, 0, 1)
    with pytest.raises(ChangedTrace):
        trace.verify()
    other = sealed()
    with pytest.raises(ChangedTrace):
        other.model_copy(update={"turns": []}).verify()
    for copied in (copy.deepcopy(other), pickle.loads(pickle.dumps(other)), copy.copy(other)):
        copied.verify()
        assert copied == other


def test_sealed_classes_refuse_however_they_are_made() -> None:
    from openenv.core.harness import TrainingTrace, TrainingTurn

    from explorer.integrations.openenv import SealedTrace

    for broken in (
        document(),
        document(turn(loss_mask=[0, 0, 0, 0])),
        document(turn(), schema_version=True),
        document(turn(), schema_version=1.0),
        document(turn(prompt_token_ids=[1, 2**70])),
        document(turn(per_token_logps=[-0.5, -9999.0])),
    ):
        # OpenEnv's own class takes every one of these.
        TrainingTrace.model_validate(broken)
        for make in (
            lambda given: SealedTrace(**given),
            SealedTrace.model_validate,
            lambda given: SealedTrace.model_validate_json(json.dumps(given)),
        ):
            with pytest.raises(ValueError, match="malformed training trace"):
                make(broken)
    theirs = TrainingTurn(**turn(loss_mask=[0, 0, 0, 0]))
    with pytest.raises(ValueError, match="nothing_trainable"):
        SealedTrace(turns=[theirs])
    good = SealedTrace(turns=[TrainingTurn(**turn())])
    assert type(good).model_validate_json(good.model_dump_json()) == good


def test_each_fetch_is_its_own_object(server: ExplorerServer) -> None:
    session = ran(server)
    one, two = session.fetch_training_trace(), session.fetch_training_trace()
    list.__setitem__(one.turns[0].loss_mask, 0, 1)
    assert two.turns[0].loss_mask[0] == 0
    two.verify()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "tool_calls"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(json_values)
def test_any_answer_of_an_engine_gives_a_message_or_none(answer: Any) -> None:
    from explorer.integrations.openenv.entries import message_of

    for given_answer in ({"choices": answer}, {"choices": [answer]}, {"x": answer}):
        found = message_of(given_answer)
        assert found == {} or set(found) >= {"role", "content"}
        assert all(isinstance(call, dict) for call in found.get("tool_calls", ()))


# The server's word.


def test_the_hash_that_the_server_announces_is_compared(server: ExplorerServer) -> None:
    import hashlib

    from explorer.integrations.blocking import _CONTENT_HASH

    rollout_id = ran(server).rollout_id
    raw, etag = server.read("GET", f"/api/v1/rollouts/{rollout_id}/training-trace")
    announced = _CONTENT_HASH.fullmatch(etag or "")
    assert announced
    assert announced[1] == hashlib.sha256(raw).hexdigest()


def test_a_format_that_needs_a_reward_is_refused_without_one(server: ExplorerServer) -> None:
    rollout_id = ran(server, None).rollout_id
    assert read_trace(server.training_trace(rollout_id)).reward is None
    with pytest.raises(TraceRefused) as refused:
        server.training_trace(rollout_id, needs_reward=True)
    assert refused.value.codes == ["reward_missing"]


def test_the_old_contract_is_read_by_openenvs_class(server: ExplorerServer) -> None:
    from openenv.core.harness import TrainingTrace

    session = ran(server)
    old = server.capture_audit(session.rollout_id, format="contract")
    trace = TrainingTrace.from_entries(old["trace_entries"])
    ours = session.fetch_training_trace()
    assert [one.node_id for one in trace.turns] == [one.node_id for one in ours.turns]
    assert [one.loss_mask for one in trace.turns] == [one.loss_mask for one in ours.turns]
    assert old["n_trainable_tokens"] == sum(sum(one.loss_mask) for one in ours.turns)
    assert old["reward"] == 1.0


def test_a_damaged_transfer_is_noticed(
    server: ExplorerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from explorer.integrations.blocking import DamagedTransfer

    rollout_id = ran(server).rollout_id
    raw, _ = server.read("GET", f"/api/v1/rollouts/{rollout_id}/training-trace")
    monkeypatch.setattr(
        ExplorerServer, "read", lambda *_a, **_k: (raw[:-1], f'"{"0" * 64}"'), raising=True
    )
    with pytest.raises(DamagedTransfer):
        server.training_trace(rollout_id)


def test_a_server_that_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="refused"):
        ExplorerServer("http://127.0.0.1:9").show("x")
    for wrong in ("127.0.0.1:7860", "", "ftp://x"):
        with pytest.raises(ConfigurationError, match="http"):
            ExplorerServer(wrong)


def test_an_attempt_is_closed_even_when_its_reward_is_refused(
    live: Live, server: ExplorerServer
) -> None:
    def agent(attempt: Attempt) -> Ended:
        # Someone closes and deletes the rollout meanwhile.
        live.api("DELETE", f"/api/v1/rollouts/{attempt.endpoint.rollout_id}", status=204)
        return Ended(reward=1.0)

    from explorer.integrations.client import ApiError

    session = factory(server, agent).create("hi")
    with pytest.raises(ApiError):
        session.wait_for_completion()

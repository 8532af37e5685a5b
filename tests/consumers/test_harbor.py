"""Harbor rollouts recorded here, and Harbor results that others captured."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from explorer.integrations.blocking import ExplorerServer, TraceRefused
from explorer.integrations.contract import MalformedTrace
from tests.consumers.making import TOOL, needs_openenv

pytestmark = needs_openenv


class Env:
    """What a Harbor server does with `run_rollout`: it probes the engine with OpenEnv's own
    code, lets an agent call it, and reports what it saw. Sandbox and verifier are left out."""

    def __init__(self, tools: tuple[Any, ...] = (TOOL,), **wanted: Any) -> None:
        self.tools = {"tools": list(tools)} if tools else {}
        self.wanted = wanted
        self.closed = 0
        self.given: dict[str, Any] = {}

    def run_rollout(self, *, task_index: int, llm_url: str, model: str, **more: Any) -> Any:
        from openenv.core.harness.capture.validate_llm import validate_llm
        from openenv.harbor.models import HarborRolloutResult

        self.given = {"task_index": task_index, **more}
        report = validate_llm(llm_url, model)
        assert report.capture_level == "tokens"
        assert report.logprobs_mode == "processed"
        turns = self.agent(llm_url, model)
        told = {"reward": 1.0, "turns": turns, "session_id": "theirs"} | self.wanted
        return HarborRolloutResult(**told)

    def agent(self, llm_url: str, model: str) -> list[Any]:
        from openenv.harbor.models import HarborTurn

        messages = [{"role": "user", "content": "Solve it."}]
        turns = []
        for number in range(2):
            body = {
                **{"model": model, "messages": messages, "max_tokens": 12, **self.tools},
                **{"return_token_ids": True, "logprobs": True},
            }
            reply = httpx.post(f"{llm_url}/chat/completions", json=body, timeout=60).json()
            choice = reply["choices"][0]
            prompt, ids = reply["prompt_token_ids"], choice["token_ids"]
            turns.append(
                HarborTurn(
                    turn=number,
                    node_id=f"theirs-{number}",
                    prompt_token_ids=prompt,
                    completion_token_ids=ids,
                    per_token_logps=[one["logprob"] for one in choice["logprobs"]["content"]],
                    loss_mask=[0] * len(prompt) + [1] * len(ids),
                )
            )
            kept = {"role": "assistant", "content": choice["message"]["content"] or ""}
            if choice["message"].get("reasoning"):
                kept["reasoning"] = choice["message"]["reasoning"]
            messages += [kept, {"role": "user", "content": "Go on."}]
        return turns

    def num_tasks(self, _split: str) -> int:
        return 2

    def get_task_range(self, _split: str, start: int, stop: int) -> list[Any]:
        from openenv.harbor.models import HarborTaskRef

        return [
            HarborTaskRef(index=n, task_id=f"t{n}", task_name=f"t{n}", instruction=f"Do {n}.")
            for n in range(start, stop)
        ]

    def close(self) -> None:
        self.closed += 1


def made(server: ExplorerServer, env: Any, **settings: Any) -> Any:
    from explorer.integrations.openenv import HarborSessionFactory

    class Factory(HarborSessionFactory):
        def new_client(self) -> Any:
            return env

    return Factory(server, settings=settings)


def test_a_harbor_session_answers_the_same_trace(server: ExplorerServer) -> None:
    from openenv.core.harness import LoopOwningSession, TrainableSession
    from openenv.harbor.contract import to_training_trace

    env = Env()
    session = made(server, env, harness="pi", sandbox="docker").create(1)
    assert isinstance(session, TrainableSession)
    assert isinstance(session, LoopOwningSession)
    assert session.result is None
    assert session.wait_for_completion(30) == 0
    assert env.given == {
        "task_index": 1,
        "harness": "pi",
        "sandbox": "docker",
        "agent_timeout_sec": 30,
    }
    assert env.closed == 1
    trace = session.fetch_training_trace()
    theirs = to_training_trace(session.result)
    # Two records of one rollout, made independently, say the same of every token.
    for ours, other in zip(trace.turns, theirs.turns, strict=True):
        assert ours.prompt_token_ids == other.prompt_token_ids
        assert ours.completion_token_ids == other.completion_token_ids
        assert ours.loss_mask == other.loss_mask
        assert ours.per_token_logps == pytest.approx(other.per_token_logps, abs=1e-6)
    assert session.verify([]).env_reward == 1.0
    assert [one["metadata"]["role"] for one in session.fetch_proxy_trace()].count("agent") == 2


def test_probes_of_the_harbor_server_do_not_train(server: ExplorerServer) -> None:
    session = made(server, Env()).create(0)
    session.wait_for_completion()
    entries = session.fetch_proxy_trace()
    probes = [entry for entry in entries if len(entry["request"]["messages"]) == 1][:4]
    tools = [entry for entry in probes if entry["request"].get("tools")]
    assert len(probes) == 4
    assert len(tools) == 1
    assert all(not any(entry.get("loss_mask", ())) for entry in probes)
    audit = session.fetch_capture_audit()
    assert {item["who"] for item in audit["overrides"]} == {"harbor session"}


def test_an_agent_without_tools_trains_although_the_probe_has_some(
    server: ExplorerServer,
) -> None:
    class Titled(Env):
        def agent(self, llm_url: str, model: str) -> list[Any]:
            title = {"model": model, "messages": [{"role": "user", "content": "A title."}]}
            answer = httpx.post(f"{llm_url}/chat/completions", json=title, timeout=60)
            assert answer.status_code == 200
            return super().agent(llm_url, model)

    session = made(server, Titled(tools=())).create(0)
    assert session.wait_for_completion() == 0
    trace = session.fetch_training_trace()
    known = [
        (turn.prompt_token_ids, turn.completion_token_ids) for turn in session.result.turns
    ]
    assert [(one.prompt_token_ids, one.completion_token_ids) for one in trace.turns] == known
    supervised = [entry for entry in session.fetch_proxy_trace() if any(entry["loss_mask"])]
    assert len(supervised) == 2


def test_a_reward_that_harbor_did_not_give_stays_missing(server: ExplorerServer) -> None:
    session = made(server, Env(reward=None)).create(0)
    assert session.wait_for_completion() == 0
    assert session.verify([]).env_reward is None


def test_seed_4_a_harbor_result_that_is_not_ok_is_refused(server: ExplorerServer) -> None:
    session = made(server, Env(ok=False, error="the sandbox died", reward=1.0)).create(0)
    assert session.wait_for_completion() == 1
    assert session.verify([]).env_reward is None
    with pytest.raises(TraceRefused) as refused:
        session.fetch_training_trace()
    assert "rollout_failed" in refused.value.codes
    assert server.show(session.rollout_id)["reason"] == "harbor: the sandbox died"


def test_calls_that_harbor_does_not_know_refuse_the_rollout(server: ExplorerServer) -> None:
    class Forgetful(Env):
        def agent(self, llm_url: str, model: str) -> list[Any]:
            return super().agent(llm_url, model)[:1]

    variants: list[dict[str, Any]] = [{}, {"rollout_type": "eval"}]
    for more in variants:
        session = made(server, Forgetful(**more)).create(0)
        assert session.wait_for_completion() == 1
        assert "harbor_mismatch" in server.show(session.rollout_id)["reason"]
        with pytest.raises(TraceRefused):
            session.fetch_training_trace()


def test_a_harbor_server_that_cannot_be_reached_fails_the_rollout(
    server: ExplorerServer,
) -> None:
    class Gone(Env):
        def run_rollout(self, **_: Any) -> Any:
            raise ConnectionError("gone")

    env = Gone()
    session = made(server, env).create(0)
    with pytest.raises(ConnectionError):
        session.wait_for_completion()
    assert env.closed == 1
    assert server.show(session.rollout_id)["ok"] is False


def test_a_task_is_found_by_index_reference_or_instruction(server: ExplorerServer) -> None:
    env = Env()
    factory = made(server, env)
    reference = env.get_task_range("", 1, 2)[0]
    prompt = [{"role": "user", "content": "Do 1."}]
    for task in (1, reference, {"index": 1}, "Do 1.", prompt):
        session = factory.create(task)
        assert session._run.task_index == 1
        session.close()
    with pytest.raises(KeyError, match="no task that says"):
        factory.create("Do something else.")


# Results that others captured.


def result(*turns: Any, **more: Any) -> Any:
    from openenv.harbor.models import HarborRolloutResult

    return HarborRolloutResult(**({"reward": 1.0, "turns": list(turns)} | more))


def harbor_turn(number: int = 0, **more: Any) -> Any:
    from openenv.harbor.models import HarborTurn

    made = {
        "turn": number,
        "node_id": f"n{number}",
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [3, 4],
        "per_token_logps": [-0.5, -0.25],
        "loss_mask": [0, 0, 1, 1],
    }
    return HarborTurn(**(made | more))


def test_captures_without_masks_are_audited_and_never_traced() -> None:
    from openenv.harbor.contract import to_trace_entries

    from explorer.integrations.openenv import audit_of_result, trace_of_result

    old = result(harbor_turn(loss_mask=None), harbor_turn(1))
    # OpenEnv's old exporter makes the mask up: every sampled token.
    assert to_trace_entries(old)[0]["loss_mask"] == [0, 0, 1, 1]
    audit = audit_of_result(old)
    assert audit["turns"][0]["loss_mask"] is None
    assert audit["turns"][0]["reasons"] == ["mask_missing"]
    assert audit["n_supervised_tokens"] == 2
    with pytest.raises(TraceRefused) as refused:
        trace_of_result(old)
    assert refused.value.codes == ["mask_missing"]


def test_a_result_with_masks_is_traced() -> None:
    from explorer.integrations.openenv import trace_of_result

    partial = harbor_turn(1, loss_mask=[0, 0, 0, 1], trainable=True)
    kept = harbor_turn(2, loss_mask=[0, 0, 0, 0], trainable=False)
    aside = [harbor_turn(3, role="auxiliary"), harbor_turn(4, discarded=True, loss_mask=None)]
    trace = trace_of_result(result(harbor_turn(), partial, kept, *aside))
    assert [one.node_id for one in trace.turns] == ["n0", "n1", "n2"]
    assert [one.loss_mask for one in trace.turns][1:] == [[0, 0, 0, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"ok": False}, "rollout_failed"),
        ({"rollout_type": "eval"}, "eval_purpose"),
        ({"capture_level": "text"}, "capture_level"),
        ({"findings": ["[FATAL] no_turns: x"]}, "fatal_finding"),
        ({"findings": ["[sequence s1] [FATAL] nothing_trainable: x"]}, "fatal_finding"),
        ({"turns": []}, "no_turns"),
    ],
)
def test_a_result_that_may_not_train_is_audited_only(more: dict[str, Any], code: str) -> None:
    from explorer.integrations.openenv import audit_of_result, trace_of_result

    made = result(harbor_turn(), **more) if "turns" not in more else result(**more)
    assert code in audit_of_result(made)["reasons"]
    with pytest.raises(TraceRefused, match=code):
        trace_of_result(made)


def test_an_ineligible_turn_may_not_be_supervised() -> None:
    from explorer.integrations.openenv import audit_of_result, trace_of_result

    made = result(harbor_turn(trainable=False))
    assert audit_of_result(made)["turns"][0]["reasons"] == ["supervised_though_ineligible"]
    with pytest.raises(TraceRefused, match="supervised_though_ineligible"):
        trace_of_result(made)
    with pytest.raises(MalformedTrace, match="nothing_trainable"):
        trace_of_result(result(harbor_turn(trainable=False, loss_mask=[0, 0, 0, 0])))

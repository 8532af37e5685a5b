"""The known weak points of the peer's capture that concern a consumer, one test each.

The numbers are those of the list in docs/explanation/trainers.md. First what the real
openenv 0.10.0 does, then what we do.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from explorer.engine.tiny import TinyEngine
from explorer.integrations.attempts import Endpoint
from explorer.integrations.blocking import ExplorerServer, TraceRefused
from explorer.integrations.contract import MalformedTrace, check_trace, read_trace
from explorer.integrations.trl.rollout import calling
from tests.consumers.making import TOOL, document, needs_openenv, say, scored, talk, turn
from tests.live import Live, serving

pytestmark = needs_openenv


def session_of(server: ExplorerServer, agent: Any, task: str = "hi") -> Any:
    from explorer.integrations.openenv import ExplorerSessionFactory

    return ExplorerSessionFactory(server, calling(agent)).create(task)


def test_seed_1_empty_and_all_zero_traces(server: ExplorerServer) -> None:
    from openenv.core.harness import TrainingTrace

    empty, zero = document(), document(turn(loss_mask=[0, 0, 0, 0]))
    assert TrainingTrace.model_validate(empty).turns == []
    assert TrainingTrace.model_validate(zero).turns
    for broken, code in ((empty, "no_turns"), (zero, "nothing_trainable")):
        with pytest.raises(MalformedTrace) as refused:
            check_trace(broken)
        assert refused.value.code == code
    silent = session_of(server, lambda _task, _endpoint: 1.0)
    silent.wait_for_completion()
    with pytest.raises(TraceRefused) as no:
        silent.fetch_training_trace()
    assert "no_turns" in no.value.codes

    def greedy(_task: Any, endpoint: Endpoint) -> float:
        talk(endpoint, "hi", temperature=0)
        return 1.0

    session = session_of(server, greedy)
    session.wait_for_completion()
    with pytest.raises(TraceRefused) as no:
        session.fetch_training_trace()
    assert "nothing_trainable" in no.value.codes


def test_seed_2_raw_logprobs_of_another_temperature_never_train(tmp_path: Any) -> None:
    from explorer.integrations.openenv import ExplorerSessionFactory

    with serving(TinyEngine(logprobs_mode="raw_logprobs"), tmp_path / "s.duckdb") as live:
        server = ExplorerServer(live.url, live.token)
        made = ExplorerSessionFactory(
            server, calling(scored(1.0)), sampling={"temperature": 0.5}
        )
        session = made.create("hi")
        assert session.wait_for_completion() == 0
        with pytest.raises(TraceRefused) as refused:
            session.fetch_training_trace()
        assert "raw_logprobs" in refused.value.codes
        assert session.fetch_capture_audit()["totals"]["calls"] == 2


def test_seed_2_the_certificate_travels_with_the_trace(server: ExplorerServer) -> None:
    session = session_of(server, scored(1.0))
    session.wait_for_completion()
    first = session.fetch_training_trace().turns[0].metadata
    assert first["certificate"]["logprob_kind"] == "processed"
    assert first["certificate"]["time_us"] > 0


def test_seed_3_a_title_call_does_not_become_the_agents_work(server: ExplorerServer) -> None:
    def agent(_task: Any, endpoint: Endpoint) -> float:
        with pytest.raises(httpx.HTTPStatusError):
            say(endpoint, [{"role": "user", "content": "long " * 20_000}], tools=[TOOL])
        say(endpoint, [{"role": "user", "content": "A title, please."}])
        return 1.0

    session = session_of(server, agent)
    session.wait_for_completion()
    roles = [entry["metadata"]["role"] for entry in session.fetch_proxy_trace()]
    assert roles == ["failed", "auxiliary"]
    with pytest.raises(TraceRefused):
        session.fetch_training_trace()


def test_seed_4_the_exporter_heeds_ok_reward_and_level(
    live: Live, server: ExplorerServer
) -> None:
    from openenv.harbor.contract import to_training_trace
    from openenv.harbor.models import HarborRolloutResult, HarborTurn

    from explorer.integrations.openenv import trace_of_result

    bad = HarborTurn(
        turn=0, node_id="a", prompt_token_ids=[1], completion_token_ids=[2],
        per_token_logps=[-0.1], loss_mask=[0, 1],
    )  # fmt: skip
    for more in ({"ok": False}, {"capture_level": "text"}):
        result = HarborRolloutResult(turns=[bad], **more)
        assert to_training_trace(result).turns
        with pytest.raises(TraceRefused):
            trace_of_result(result)
    rollout_id, key = live.create()
    live.chat(key, tools=[TOOL], max_tokens=8)
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/reward", {"reward": 1.0})
    live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": False})
    with pytest.raises(TraceRefused) as refused:
        server.training_trace(rollout_id)
    assert "rollout_failed" in refused.value.codes


def test_seed_5_one_call_is_a_warning_and_trains(server: ExplorerServer) -> None:
    session = session_of(server, scored(1.0, turns=1))
    session.wait_for_completion()
    assert len(session.fetch_training_trace().turns) == 1


def test_weak_6_a_bad_auxiliary_call_poisons_nothing(server: ExplorerServer) -> None:
    def agent(_task: Any, endpoint: Endpoint) -> float:
        talk(endpoint, "hi")
        # An auxiliary call of which nothing could train.
        say(endpoint, [{"role": "user", "content": "A title."}], temperature=0)
        with pytest.raises(httpx.HTTPStatusError):
            say(endpoint, [{"role": "user", "content": "long " * 20_000}])
        return 1.0

    session = session_of(server, agent)
    session.wait_for_completion()
    assert len(session.fetch_training_trace().turns) == 2
    findings = server.request("GET", f"/api/v1/rollouts/{session.rollout_id}/findings")
    for finding in findings["findings"]:
        assert set(finding["where"]) >= {"rollout_id", "call_id"}


def test_weak_11_a_session_survives_its_maker(server: ExplorerServer) -> None:
    from explorer.integrations.openenv import captured_session

    session = session_of(server, scored(0.5))
    assert session.wait_for_completion() == 0
    again = captured_session(ExplorerServer(server.url, server.token), session.rollout_id)
    assert again.verify([]).env_reward == 0.5
    assert again.fetch_training_trace() == session.fetch_training_trace()


def test_weak_14_two_unanswered_siblings_are_not_both_supervised(
    server: ExplorerServer,
) -> None:
    def agent(_task: Any, endpoint: Endpoint) -> float:
        first = [{"role": "user", "content": "hi"}]
        reply = say(endpoint, first, tools=[TOOL])
        again = [*first, {"role": "assistant", "content": reply["content"] or "ok"}]
        again.append({"role": "user", "content": "And?"})
        for _ in range(2):
            say(endpoint, again, tools=[TOOL])
        return 1.0

    session = session_of(server, agent)
    session.wait_for_completion()
    entries = session.fetch_proxy_trace()
    supervised = [any(entry["loss_mask"]) for entry in entries]
    assert supervised[1:] == [False, False]


def test_weak_15_the_raw_trace_loses_no_text(server: ExplorerServer) -> None:
    session = session_of(server, scored(1.0))
    session.wait_for_completion()
    first, second = session.fetch_proxy_trace()
    message = first["response"]["choices"][0]["message"]
    assert message["reasoning"]
    assert second["request"]["messages"][1]["reasoning"] == message["reasoning"]


def test_weak_16_a_mask_cannot_be_changed_after_the_check(server: ExplorerServer) -> None:
    from openenv.core.harness import TrainingTrace

    from explorer.integrations.openenv import ChangedTrace

    theirs = TrainingTrace.model_validate(document(turn()))
    theirs.turns[0].loss_mask[0] = 1
    session = session_of(server, scored(1.0))
    session.wait_for_completion()
    ours = session.fetch_training_trace()
    with pytest.raises(TypeError, match="cannot be changed"):
        ours.turns[0].loss_mask[0] = 1
    list.__setitem__(ours.turns[0].loss_mask, 0, 1)
    with pytest.raises(ChangedTrace):
        ours.verify()


@pytest.mark.parametrize(
    ("changes", "turn_changes"),
    [
        ({"schema_version": True}, {}),
        ({"schema_version": 1.0}, {}),
        ({}, {"prompt_token_ids": [1, 2**70]}),
        ({}, {"per_token_logps": [-0.5, -9999.0]}),
    ],
)
def test_second_check_what_openenvs_classes_accept_is_refused(
    changes: dict[str, Any], turn_changes: dict[str, Any]
) -> None:
    from openenv.core.harness import TrainingTrace

    broken = document(turn(**turn_changes), **changes)
    assert TrainingTrace.model_validate(broken).turns
    with pytest.raises(MalformedTrace):
        check_trace(broken)


def test_a_round_trip_through_entries_changes_no_token(server: ExplorerServer) -> None:
    from openenv.core.harness import TrainingTrace

    session = session_of(server, scored(1.0))
    session.wait_for_completion()
    trace = session.fetch_training_trace()
    again = TrainingTrace.from_entries(trace.to_trace_entries())
    assert again.model_dump() == trace.model_dump()
    assert read_trace(again.model_dump_json()).supervised == sum(
        sum(one.loss_mask) for one in trace.turns
    )

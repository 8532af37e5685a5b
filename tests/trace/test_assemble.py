"""The Training trace and the Capture audit."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from explorer.errors import NotTrainable, RecordInconsistent, RolloutOpen
from explorer.records import Call, CallStatus, CaptureLevel, FailureKind, RolloutRecord
from explorer.trace.assemble import training_trace
from explorer.trace.audit import capture_audit
from explorer.trace.policy import DEFAULT_POLICY, Policy
from explorer.trace.verdict import judge
from tests.trace.build import (
    RAW,
    admission,
    failed_call,
    logprobs_of,
    make_call,
    override,
    record,
    two_turns,
)


def strict(chunks: Any) -> Any:
    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} in strict JSON")

    return json.loads(b"".join(chunks), parse_constant=refuse)


def trace(made: RolloutRecord, policy: Policy = DEFAULT_POLICY) -> Any:
    return strict(training_trace(made, judge(made, policy)))


def audit(made: RolloutRecord) -> Any:
    return strict(capture_audit(made, judge(made)))


def node_ids(made: RolloutRecord, policy: Policy = DEFAULT_POLICY) -> list[str]:
    return [turn["node_id"] for turn in trace(made, policy)["turns"]]


def test_the_contract() -> None:
    document = trace(record(*two_turns()))
    assert set(document) == {"schema_version", "turns"}
    assert document["schema_version"] == 1
    first, second = document["turns"]
    assert set(second) == {
        "node_id",
        "prompt_token_ids",
        "completion_token_ids",
        "per_token_logps",
        "loss_mask",
        "request",
        "response",
        "metadata",
    }
    assert second["prompt_token_ids"] == [1, 2, 3, 4, 5]
    assert second["completion_token_ids"] == [6]
    assert second["per_token_logps"] == [-0.25]
    assert second["loss_mask"] == [0, 0, 0, 0, 0, 1]
    assert (second["metadata"]["parent_id"], second["metadata"]["depth"]) == ("a", 1)
    assert second["metadata"]["weight_version_start"] == 7
    assert first["metadata"]["certificate"]["numbers"] == {"ratio": 1.0}
    assert first["metadata"]["policy"] == DEFAULT_POLICY.describe()
    assert "certificate" not in second["metadata"]
    assert "secret-hash" not in json.dumps(document)


def test_branch_order_and_shared_nodes_once() -> None:
    first, second = two_turns()
    fork = make_call("c", 3, [1, 2, 3, 4, 9], [6], parent=first, n_tools=2)
    deeper = make_call("d", 4, [1, 2, 3, 4, 5, 6, 7], [8], parent=second, n_tools=2)
    assert node_ids(record(first, second, fork, deeper)) == ["a", "b", "d", "c"]


def test_what_is_left_out_and_what_stays_as_context() -> None:
    first, second = two_turns()
    title = make_call("t", 0, [90], [91])
    greedy = make_call("g", 3, [1, 2, 3, 4, 5, 6, 7], [8], n_tools=2, greedy=True)
    failed = failed_call("f", 4, n_tools=2)
    sub = make_call("s", 5, [70], [71], n_tools=1, claims={"parent": "main"})
    injected = make_call("i", 6, [1, 2, 3, 4, 5, 6, 7, 8, 9], [3], n_tools=2, injected=True)
    made = record(title, first, second, greedy, failed, sub, injected)
    document = trace(made)
    assert [turn["node_id"] for turn in document["turns"]] == ["a", "b", "g"]
    assert document["turns"][2]["loss_mask"] == [0] * 8
    assert document["turns"][2]["metadata"]["mask_reason"] == "greedy"
    assert node_ids(made, Policy(include_subagents=True)) == ["a", "b", "g", "s"]


def test_an_excluded_call_is_dropped_and_the_rest_leaves() -> None:
    first, second = two_turns()
    bad = replace(second, logprobs=logprobs_of([None]))
    with pytest.raises(NotTrainable) as caught:
        trace(record(first, bad))
    assert [item["code"] for item in caught.value.details["reasons"]] == ["logprob_missing"]
    drop = override("exclude_call", "b")
    assert node_ids(record(first, bad, overrides=[drop])) == ["a"]


def test_an_excluded_call_is_dropped_even_if_its_data_is_whole() -> None:
    drop = override("exclude_call", "a")
    assert node_ids(record(*two_turns(), overrides=[drop])) == ["b"]


def test_an_unusable_ambiguous_sibling_has_no_row() -> None:
    first, second = two_turns()
    again = make_call("c", 3, [1, 2, 3, 4, 5], [7], n_tools=2, logprobs=[None])
    assert node_ids(record(first, second, again)) == ["a", "b"]


def test_refusals_come_before_the_first_byte() -> None:
    made = record(*two_turns(), events=())
    with pytest.raises(RolloutOpen) as caught:
        training_trace(made, judge(made))
    assert caught.value.code == "rollout_open"
    assert caught.value.details["reasons"][0]["code"] == "rollout_open"
    made = record(*two_turns(), certificate=RAW)
    with pytest.raises(NotTrainable, match="before temperature"):
        training_trace(made, judge(made))


def test_mask_01_a_judgement_of_another_record_is_refused() -> None:
    first, second = two_turns()
    judgement = judge(record(first, second))
    longer = replace(second, logprobs=logprobs_of([-1.0, -1.0]))
    for write in (training_trace, capture_audit):
        with pytest.raises(RecordInconsistent):
            write(record(first, longer), judgement)


def test_sentinels_stay_and_rounding_is_named() -> None:
    call = make_call("a", 1, [1], [2, 3, 4], logprobs=[-9999.0, 5e-7, -0.1])
    (turn,) = trace(record(call))["turns"]
    # The engine's float32 as an exact JSON number, not its shortest spelling.
    assert turn["per_token_logps"] == [-9999.0, 0.0, float(np.float32(-0.1))]
    assert turn["loss_mask"] == [0, 0, 1, 1]
    assert list(turn["metadata"]["rounded_to_zero"]) == ["1"]


def test_logprobs_keep_their_float32_bits() -> None:
    values = np.random.default_rng(0).uniform(-9, 0, 500).astype(np.float32)
    call = make_call("a", 1, [1], [2] * 500, logprobs=values.tolist())
    (turn,) = trace(record(call))["turns"]
    assert np.array(turn["per_token_logps"], np.float32).tobytes() == values.tobytes()


def test_hostile_text_makes_no_bad_json() -> None:
    call = make_call(
        "a",
        1,
        [1],
        [2],
        stop_reason="\ud800 </script>",
        requested_sampling={"seed": 10**30, "x": float("nan"), "\udfff": [1, "\ud83d"]},
    )
    (turn,) = trace(record(call))["turns"]
    assert turn["response"]["stop_reason"] == "\\ud800 </script>"
    assert turn["request"]["requested_sampling"]["x"] is None


def audited_rollout() -> tuple[Call, ...]:
    first, second = two_turns()
    strange = make_call(
        "n", 3, [7], [8, 9, 10, 11], logprobs=[None, float("-inf"), float("nan"), -1]
    )
    refused = failed_call("r", 5, status=CallStatus.REFUSED, failure_kind=FailureKind.BUDGET)
    text = failed_call("t", 6, status=CallStatus.COMMITTED, capture_level=CaptureLevel.TEXT)
    return first, second, strange, failed_call("f", 4, n_tools=1), refused, text


def test_the_audit_shows_every_call() -> None:
    made = record(*audited_rollout(), open_calls=[admission("o", 9)])
    document = audit(made)
    calls = {call["call_id"]: call for call in document["calls"]}
    assert list(calls) == ["a", "b", "n", "f", "r", "t"]
    assert (calls["r"]["role"], calls["r"]["failure_kind"]) == (None, "budget")
    assert calls["f"]["role"] == "failed"
    assert calls["b"]["parent_id"] == "a"
    assert calls["b"]["prompt_len"] == 5
    assert calls["b"]["mask_spans"] == [[4, 5, "environment"], [5, 6, "sampled"]]
    assert calls["n"]["per_token_logps"] == [None, None, None, -1.0]
    assert calls["n"]["per_token_logps_not_finite"] == [[1, "-inf"], [2, "nan"]]
    assert "logprob_missing" in calls["n"]["findings"]
    assert document["open_calls"][0]["call_id"] == "o"
    assert "secret-hash" not in json.dumps(document)


def test_the_audit_of_a_rollout_that_may_not_train_leaves_too() -> None:
    made = record(*two_turns(), certificate=None, events=())
    document = audit(made)
    assert not document["verdict"]["trainable"]
    assert "rollout_open" in [item["code"] for item in document["verdict"]["reasons"]]


def test_totals_add_up() -> None:
    document = audit(record(*audited_rollout()))
    totals, calls = document["totals"], document["calls"]
    assert totals["calls"] == len(calls) == sum(totals["statuses"].values())
    assert sum(totals["roles"].values()) == sum(call["role"] is not None for call in calls)
    counted: Counter[str] = Counter()
    for call in calls:
        for start, end, reason in call["mask_spans"]:
            counted[reason] += end - start
    assert counted == Counter(totals["mask_reasons"])
    assert totals["generated_tokens"] == sum(call["completion_len"] or 0 for call in calls)
    assert totals["supervised_tokens"] == sum(call["supervised_tokens"] for call in calls)
    assert totals["supervised_tokens"] + totals["masked_tokens"] == totals["generated_tokens"]
    assert totals["supervised_tokens"] == counted["sampled"]


def test_prompts_can_be_put_together_from_the_audit() -> None:
    document = audit(record(*two_turns()))
    first, second = document["calls"]
    assert second["prefix_of"] == "a"
    full = first["prompt_delta"] + first["completion_token_ids"]
    assert full[: second["prefix_len"]] + second["prompt_delta"] == [1, 2, 3, 4, 5]

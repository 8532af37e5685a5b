"""Findings of a call; the recorded cases by their ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from explorer.records import (
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    FailureKind,
    Grade,
    MaskReason,
    Note,
)
from explorer.trace.checks import check_call, render_markdown
from explorer.trace.findings import FINDINGS, PRECEDENCE
from explorer.trace.sequences import Sequences
from explorer.trace.verdict import Judgement, judge
from tests.trace.build import failed_call, ids, logprobs_of, make_call, record, two_turns


def codes(call: Call, **more: Any) -> dict[str, str]:
    return {finding.code: str(finding.grade) for finding in check_call(call, **more)}


def judged(call: Call) -> Judgement:
    return judge(record(call))


def reason_codes(judgement: Judgement) -> set[str]:
    return {reason.code for reason in judgement.reasons}


GOOD = make_call("a", 1, [1, 2], [5, 6, 7], logprobs=[-0.1, -0.2, -0.3])


def test_a_good_call_has_no_finding() -> None:
    assert check_call(GOOD, sequences=Sequences([GOOD])) == ()


@pytest.mark.parametrize(
    ("held", "told"), [([5, 6, 7], 7), (range(37), 40), ([5, 5, 6, 5, 6, 7], 3)]
)
def test_tok_01_tok_15_tok_17_a_count_that_disagrees_is_fatal(held: Any, told: int) -> None:
    call = make_call("a", 1, [1, 2], list(held), usage_completion=told)
    (finding,) = [f for f in check_call(call) if f.code == "token_count_mismatch"]
    assert finding.grade is Grade.FATAL
    assert f"{len(list(held))} != {told}" in finding.message
    judgement = judged(call)
    assert "token_count_mismatch" in reason_codes(judgement)
    assert judgement.supervised_tokens == 0
    assert judgement.masks[CallId("a")].reason is MaskReason.COUNT_MISMATCH


def test_tok_02_tok_16_no_ids_lowers_the_level_and_refuses() -> None:
    call = make_call(
        "a",
        1,
        [1, 2, 3],
        None,
        capture_level=CaptureLevel.TEXT,
        usage_completion=2,
        notes=(Note("ids_missing", "the reply has no ids of the sampled tokens"),),
    )
    assert codes(call)["ids_missing"] == "FATAL"
    assert codes(call)["capture_level_low"] == "FATAL"
    judgement = judged(call)
    assert not judgement.trainable
    assert judgement.tree.sequences.prompt(call.call_id).tolist() == [1, 2, 3]  # evidence


def test_tok_04_two_places_that_differ() -> None:
    call = replace(GOOD, notes=(Note("conflicting_prompt_ids", "top level and choice"),))
    assert codes(call)["conflicting_prompt_ids"] == "FATAL"
    assert judged(call).masks[CallId("a")].reason is MaskReason.PROMPT_IDS_MISSING


def test_tok_08_an_empty_prompt_is_fatal() -> None:
    for call in (make_call("a", 1, [], [5]), make_call("a", 1, None, [5])):
        assert codes(call)["no_prompt_ids"] == "FATAL"
        judgement = judged(call)
        assert "no_prompt_ids" in reason_codes(judgement)
        assert judgement.masks[CallId("a")].reason is MaskReason.PROMPT_IDS_MISSING


def test_tok_09_more_than_asked_for_is_noted_and_kept_whole() -> None:
    call = make_call(
        "a",
        1,
        [1, 2],
        [1, 2, 3, 4, 5],
        finish_reason="length",
        notes=(Note("exceeds_max_tokens", "5 > 4"),),
    )
    assert codes(call) == {"truncated_turn": "WARN", "exceeds_max_tokens": "WARN"}
    assert judged(call).supervised_tokens == 5


def test_lp_01_minus_infinity_is_fatal() -> None:
    call = replace(GOOD, logprobs=logprobs_of([-0.1, float("-inf"), -0.3]))
    assert codes(call) == {"invalid_logprob": "FATAL"}


def test_lp_02_null_is_never_zero() -> None:
    call = replace(GOOD, logprobs=logprobs_of([-0.1, None, -0.3]))
    assert codes(call) == {"logprob_missing": "FATAL"}
    judgement = judged(call)
    assert judgement.masks[CallId("a")].reason is MaskReason.LOGPROB_MISSING
    (finding,) = [f for f in judgement.findings if f.code == "logprob_missing"]
    assert (finding.where.call_id, finding.where.start, finding.where.end) == ("a", 3, 4)


def test_lp_03_sentinel() -> None:
    call = replace(GOOD, logprobs=logprobs_of([-0.1, -9999.0, -0.2]))
    assert codes(call) == {"sentinel_logprob": "WARN"}
    assert judged(call).trainable
    assert judged(call).supervised_tokens == 2


def test_lp_04_absent_and_suspicious_zeros() -> None:
    assert codes(replace(GOOD, logprobs=None)) == {"no_logprobs": "FATAL"}
    zeros = replace(GOOD, logprobs=logprobs_of([0.0, -0.0, 0.0]))
    assert codes(zeros) == {"suspicious_zero_logprobs": "WARN"}
    assert codes(make_call("a", 1, [1], [2], logprobs=[0.0])) == {}


def test_lp_09_positive_above_a_tolerance() -> None:
    assert codes(replace(GOOD, logprobs=logprobs_of([0.3, -0.1, -1]))) == {
        "positive_logprob": "FATAL"
    }
    assert codes(replace(GOOD, logprobs=logprobs_of([5e-7, -0.1, -1]))) == {}


def test_fin_01_an_incomplete_call_is_not_trainable() -> None:
    cut = make_call(
        "a", 1, [1], [2], status=CallStatus.FAILED, failure_kind=FailureKind.INCOMPLETE
    )
    assert codes(cut) == {"call_failed": "WARN"}
    assert reason_codes(judged(cut)) == {"no_turns"}


def test_fin_02_truncation_is_the_finish_reason_not_the_last_id() -> None:
    assert codes(replace(GOOD, completion=ids([5, 6, 151643]))) == {}
    assert codes(replace(GOOD, finish_reason="length")) == {"truncated_turn": "WARN"}


def test_empty_completion_misses_no_logprob() -> None:
    call = make_call("a", 1, [1], [], notes=(Note("logprobs_missing"),))
    call = replace(call, logprobs=None)
    assert codes(call) == {"no_sampled_ids": "WARN"}


def test_negative_ids() -> None:
    assert codes(make_call("a", 1, [1, -2], [5]))["invalid_token_id"] == "FATAL"
    assert codes(make_call("a", 1, [1, 2], [-5]))["invalid_token_id"] == "FATAL"


def test_lengths_and_damage() -> None:
    first, second = two_turns()
    calls = Sequences([first, second])
    assert codes(second, sequences=calls, parent=first) == {}
    moved = replace(second, prompt_len=8)
    assert "record_inconsistent" in codes(moved, sequences=Sequences([first, moved]))
    assert second.completion is not None
    changed = replace(second, completion=second.completion + np.int32(1))
    found = codes(changed, sequences=Sequences([first, changed]), parent=first)
    assert found == {"chain_mismatch": "FATAL"}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (
            {"status": CallStatus.ABORTED, "failure_kind": FailureKind.CLIENT_GONE},
            "call_aborted",
        ),
        ({"failure_kind": FailureKind.LOST_ON_RESTART}, "lost_on_restart"),
        ({"status": CallStatus.OPEN}, "open_at_close"),
        ({}, "call_failed"),
    ],
)
def test_how_a_call_ended(fields: dict[str, Any], code: str) -> None:
    assert codes(failed_call("a", 1, **fields)) == {code: "WARN"}


NOTES = {
    "token_count_mismatch": "token_count_mismatch",
    "prompt_count_mismatch": "prompt_count_mismatch",
    "conflicting_prompt_ids": "conflicting_prompt_ids",
    "ids_recovered_from_strings": "ids_recovered_from_strings",
    "ids_disagree": "ids_disagree",
    "ids_missing": "ids_missing",
    "prompt_ids_missing": "no_prompt_ids",
    "logprobs_missing": "no_logprobs",
    "logprob_misalign": "logprob_misalign",
    "logprob_null": "logprob_missing",
    "exceeds_max_tokens": "exceeds_max_tokens",
    "duplicate_tool_call_id": "duplicate_tool_call_id",
    "arguments_not_string": "arguments_not_string",
    "tool_calls_with_stop": "tool_calls_with_stop",
    "finish_missing": "finish_missing",
    "invalid_token_id": "invalid_token_id",
    "invented_later": "note",
    "FATAL": "note",
}


@pytest.mark.parametrize(("note", "code"), NOTES.items())
def test_every_note_of_the_parser_becomes_a_finding(note: str, code: str) -> None:
    call = replace(GOOD, notes=(Note(note, "what was seen"),))
    (finding,) = check_call(call)
    assert finding.code == code
    assert "what was seen" in finding.message


def test_the_table_is_closed_and_documented() -> None:
    page = render_markdown()
    for code, spec in FINDINGS.items():
        assert spec.meaning.endswith(".")
        assert f"| `{code}` | {spec.grade} |" in page
    assert list(PRECEDENCE) == list(FINDINGS)
    fatal = {code for code, spec in FINDINGS.items() if spec.grade is Grade.FATAL}
    # Whatever forbids training also masks, or is about the rollout as a whole.
    assert {code for code in fatal if FINDINGS[code].mask_reason is None} == {
        "no_turns",
        "nothing_trainable",
        # What the harness itself counted sets the whole rollout in doubt.
        "no_agent_sequence",
        "atif_coverage_too_low",
        "atif_ids_differ",
        "atif_subagents",
        "turn_mismatch",
    }


def test_a_fault_of_another_role_is_a_warning() -> None:
    call = replace(GOOD, logprobs=None)
    assert codes(call, blocking=False) == {"no_logprobs": "WARN"}

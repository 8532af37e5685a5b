"""Reading an engine's reply: recorded vLLM bodies and small bodies from bug reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from explorer.engine.reply import ParsedReply, parse_reply
from explorer.engine.replyfacts import LabelledSpan
from explorer.records import NULL_LOGPROB_BITS, CaptureLevel, FailureKind

RECORDED = Path(__file__).parents[1] / "data" / "vllm"
MESSAGE = {"role": "assistant", "content": "hi"}


def entry(logprob: Any, token: str = "a") -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": [97], "top_logprobs": []}


def parse(choice: dict[str, Any] | None = None, **top: Any) -> ParsedReply:
    base = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
    body = {"choices": [base | (choice or {})]} | top
    return parse_reply(200, json.dumps(body).encode())


def codes(parsed: ParsedReply) -> set[str]:
    return {note.code for note in parsed.notes}


@pytest.mark.parametrize(
    "case", sorted(path.parent.name for path in RECORDED.glob("*/response.json"))
)
def test_recorded_vllm_bodies_are_whole(case: str) -> None:
    asked = orjson.loads((RECORDED / case / "request.json").read_bytes())
    parsed = parse_reply(200, (RECORDED / case / "response.json").read_bytes())
    if asked.get("include_reasoning") is False:
        # vLLM's known loss, which is why the proxy never sends it.
        assert parsed.level is CaptureLevel.TEXT
    elif asked.get("return_token_ids") and asked.get("logprobs"):
        assert parsed.level is CaptureLevel.TOKENS
        assert codes(parsed) <= {"tool_calls_with_stop", "tool_call_as_text"}
        assert parsed.completion_ids is not None
        assert parsed.logprobs is not None
        assert parsed.completion_ids.size == parsed.logprobs.size
        assert parsed.completion_ids.size == parsed.usage["completion"]
        assert parsed.prompt_ids is not None
        assert parsed.prompt_ids.size == parsed.usage["prompt"]


def test_tok_01_fewer_ids_than_usage_is_noted_and_never_padded() -> None:
    parsed = parse(
        {"token_ids": [5, 6, 7], "logprobs": {"content": [entry(-0.1)] * 3}},
        prompt_token_ids=[1],
        usage={"prompt_tokens": 1, "completion_tokens": 7},
    )
    assert [n.detail for n in parsed.notes if n.code == "token_count_mismatch"] == ["3 != 7"]
    assert parsed.completion_ids is not None
    assert parsed.completion_ids.tolist() == [5, 6, 7]


def test_tok_02_missing_ids_drop_to_text_and_keep_the_prompt() -> None:
    parsed = parse(
        {"token_ids": None}, prompt_token_ids=[1, 2, 3], usage={"completion_tokens": 2}
    )
    assert parsed.level is CaptureLevel.TEXT
    assert parsed.completion_ids is None
    assert parsed.prompt_ids is not None
    assert parsed.prompt_ids.tolist() == [1, 2, 3]
    assert "ids_missing" in codes(parsed)


def test_tok_04_prompt_ids_in_either_place_and_conflicts_named() -> None:
    above = parse({"token_ids": [3]}, prompt_token_ids=[1, 2])
    inside = parse({"token_ids": [3], "prompt_token_ids": [1, 2]})
    for parsed in (above, inside):
        assert parsed.prompt_ids is not None
        assert parsed.prompt_ids.tolist() == [1, 2]
    both = parse({"token_ids": [3], "prompt_token_ids": [1, 9]}, prompt_token_ids=[1, 2])
    assert both.prompt_ids is None
    assert "conflicting_prompt_ids" in codes(both)


def test_tok_08_an_empty_prompt_is_no_prompt() -> None:
    parsed = parse(
        {"token_ids": [3], "logprobs": {"content": [entry(-1)]}}, prompt_token_ids=[]
    )
    assert parsed.prompt_ids is None
    assert "prompt_ids_missing" in codes(parsed)


def test_tok_09_more_tokens_than_asked_is_noted_not_trimmed() -> None:
    body = {
        "choices": [
            {
                "index": 0,
                "message": MESSAGE,
                "finish_reason": "length",
                "token_ids": [1, 2, 3, 4, 5],
                "logprobs": {"content": [entry(-0.1)] * 5},
            }
        ],
        "prompt_token_ids": [1],
    }
    parsed = parse_reply(200, orjson.dumps(body), max_tokens=4)
    assert "exceeds_max_tokens" in codes(parsed)
    assert parsed.completion_ids is not None
    assert parsed.completion_ids.size == 5


def test_tok_14_ids_in_a_known_extension_attach_to_the_choice() -> None:
    parsed = parse(
        {"logprobs": {"content": [entry(-0.1), entry(-0.2)]}},
        prompt_token_ids=[1],
        sglext={"completion_token_ids": [[5, 6]]},
    )
    assert parsed.completion_ids is not None
    assert parsed.completion_ids.tolist() == [5, 6]


def test_ids_are_recovered_from_placeholders_and_must_agree() -> None:
    named = {"content": [entry(-0.1, "token_id:5"), entry(-0.2, "token_id:6")]}
    recovered = parse({"logprobs": named, "token_ids": []}, prompt_token_ids=[1])
    assert recovered.completion_ids is not None
    assert recovered.completion_ids.tolist() == [5, 6]
    assert "ids_recovered_from_strings" in codes(recovered)
    agree = parse({"logprobs": named, "token_ids": [5, 6]}, prompt_token_ids=[1])
    assert agree.level is CaptureLevel.TOKENS
    differ = parse({"logprobs": named, "token_ids": [5, 7]}, prompt_token_ids=[1])
    assert differ.completion_ids is None
    assert differ.level is CaptureLevel.LOGPROBS
    assert "ids_disagree" in codes(differ)


@pytest.mark.parametrize("bad", [[True], [1.5], ["5"], [-1], [2**31], [[1]], [None]])
def test_only_true_integers_are_ids(bad: list[Any]) -> None:
    parsed = parse({"token_ids": bad}, prompt_token_ids=[1])
    assert parsed.completion_ids is None
    assert "invalid_token_id" in codes(parsed)


def test_lp_01_infinity_literals_are_read_and_kept() -> None:
    raw = (
        b'{"choices":[{"message":{"content":"a"},"token_ids":[5],'
        b'"logprobs":{"content":[{"token":"a","logprob":-Infinity}]}}],"prompt_token_ids":[1]}'
    )
    parsed = parse_reply(200, raw)
    assert parsed.failure is None
    assert parsed.logprobs is not None
    assert np.isneginf(parsed.logprobs[0])


def test_lp_02_null_never_becomes_zero() -> None:
    content = [entry(-0.1), entry(None), entry(-0.3)]
    parsed = parse(
        {"token_ids": [5, 6, 7], "logprobs": {"content": content}}, prompt_token_ids=[1]
    )
    assert parsed.logprobs is not None
    bits = parsed.logprobs.view(np.uint32).tolist()
    assert bits[1] == NULL_LOGPROB_BITS
    assert "logprob_null" in codes(parsed)


@pytest.mark.parametrize("value", ["-0.5", True, [], {}])
def test_a_logprob_that_is_no_number_is_null(value: Any) -> None:
    parsed = parse(
        {"token_ids": [5], "logprobs": {"content": [entry(value)]}}, prompt_token_ids=[1]
    )
    assert parsed.logprobs is not None
    assert parsed.logprobs.view(np.uint32)[0] == NULL_LOGPROB_BITS


def test_lp_04_absent_logprobs_stay_absent() -> None:
    parsed = parse({"token_ids": [5, 6, 7]}, prompt_token_ids=[1])
    assert parsed.logprobs is None
    assert "logprobs_missing" in codes(parsed)


def test_tool_04_duplicate_tool_call_ids_are_noted() -> None:
    calls = [
        {"id": "x", "function": {"name": "a", "arguments": "{}"}},
        {"id": "x", "function": {"name": "b", "arguments": "{}"}},
        {"id": "", "function": {"name": "c", "arguments": "{}"}},
    ]
    parsed = parse({"message": MESSAGE | {"tool_calls": calls}})
    assert "duplicate_tool_call_id" in codes(parsed)
    assert parsed.message["tool_calls"] == calls


def test_tool_06_arguments_that_are_no_string_are_kept_and_noted() -> None:
    calls = [{"id": "c1", "function": {"name": "look", "arguments": {"q": 1}}}]
    parsed = parse({"message": MESSAGE | {"tool_calls": calls}})
    assert {"arguments_not_string", "tool_calls_with_stop"} <= codes(parsed)
    assert parsed.message["tool_calls"][0]["function"]["arguments"] == {"q": 1}


@pytest.mark.parametrize("finish", ["abort", "error", "cancelled", "timeout"])
def test_an_aborted_generation_is_a_failure_although_it_is_a_200(finish: str) -> None:
    parsed = parse({"finish_reason": finish, "token_ids": [5]}, prompt_token_ids=[1])
    assert parsed.failure is FailureKind.ENGINE_ABORTED
    assert parsed.completion_ids is not None


@pytest.mark.parametrize(
    ("status", "raw", "failure", "words"),
    [
        (200, b"<html>", FailureKind.UPSTREAM_MALFORMED, "not JSON"),
        (200, b"[]", FailureKind.UPSTREAM_MALFORMED, "without choices"),
        (200, b'{"choices":[]}', FailureKind.UPSTREAM_MALFORMED, "without choices"),
        (200, b'{"choices":[{}]}', FailureKind.UPSTREAM_MALFORMED, "without choices"),
        (401, b'{"error":"Unauthorized"}', FailureKind.UPSTREAM_STATUS, "Unauthorized"),
        (404, b'{"detail":"Not Found"}', FailureKind.UPSTREAM_STATUS, "Not Found"),
        (500, b'{"error":{"message":"boom"}}', FailureKind.UPSTREAM_STATUS, "boom"),
        (502, b"bad gateway", FailureKind.UPSTREAM_STATUS, "not JSON"),
    ],
)
def test_failures_are_typed(status: int, raw: bytes, failure: FailureKind, words: str) -> None:
    parsed = parse_reply(status, raw)
    assert parsed.failure is failure
    assert words in (parsed.failure_detail or "")


def test_weight_versions_are_kept_as_the_engine_spelled_them() -> None:
    spans = [
        {"version": "default", "start": 0, "end": 3},
        {"version": "step-1", "start": 3, "end": 5},
    ]
    parsed = parse({"weight_versions": spans})
    assert parsed.weight_spans == (LabelledSpan("default", 0, 3), LabelledSpan("step-1", 3, 5))
    assert parsed.weight_label == "default,step-1"


def hostile_choices() -> list[dict[str, Any]]:
    """Choices that no engine should send."""
    entries: list[Any] = [
        {"token": "token_id:" + "1" * 5000, "logprob": -1},
        {"token": "t", "logprob": -(10**300)},
        {"token": "t", "logprob": -1, "top_logprobs": 5},
        {"token": "t", "logprob": -1, "top_logprobs": [5]},
        *(
            {"token": "t", "logprob": -1, "top_logprobs": [{"token": token, "logprob": "x"}]}
            for token in ("token_id:\u00b2", "token_id:" + "9" * 30, "\ud800", 7)
        ),
        {"token": "t", "logprob": -1, "top_logprobs": [{"token_id": 2**70, "logprob": 2**70}]},
        5,
    ]
    return [
        {"index": "a"},
        {"message": {"tool_calls": 5}},
        {"message": {"content": "\ud800", "tool_calls": [5, {"function": {"name": 5}}]}},
        {"finish_reason": "\ud800", "stop_reason": "\ud800"},
        {"finish_reason": ["stop"], "stop_reason": {"a": 1}},
        {"weight_versions": [{"version": "\ud800"}, {"version": [1]}, 5]},
        *({"token_ids": None, "logprobs": {"content": [entry]}} for entry in entries),
    ]


@pytest.mark.parametrize("choice", hostile_choices())
def test_no_reply_is_too_odd_to_be_read(choice: dict[str, Any]) -> None:
    body = {
        "id": "\ud800",
        "model": "\ud800",
        "system_fingerprint": "\ud800",
        "choices": [{"message": {"content": "x"}, "finish_reason": "stop"} | choice],
        "usage": {"prompt_tokens": 2**70, "completion_tokens": "6"},
        "sglext": {"completion_token_ids": [[1], 5]},
    }
    parsed = parse_reply(200, json.dumps(body).encode())
    assert parsed.body is not None
    assert parsed.usage["prompt"] is None
    for text in (parsed.upstream_id, parsed.model, parsed.finish_reason, parsed.weight_label):
        (text or "").encode()


@pytest.mark.parametrize("junk", [5, None, "x", [1]])
def test_a_choice_that_is_no_object_makes_the_reply_malformed(junk: Any) -> None:
    body = {"choices": [{"message": {"content": "x"}}, junk]}
    parsed = parse_reply(200, json.dumps(body).encode())
    assert parsed.failure is FailureKind.UPSTREAM_MALFORMED


def test_tok_04_ids_in_an_extension_must_agree_with_the_choices() -> None:
    parsed = parse({"token_ids": [5]}, sglext={"completion_token_ids": [[6]]})
    assert parsed.completion_ids is None
    assert "ids_disagree" in codes(parsed)
    parsed = parse({"index": -1}, sglext={"completion_token_ids": [[6], [7]]})
    assert parsed.completion_ids is None


def test_more_choices_than_asked_are_noted() -> None:
    choice = {"message": {"content": "x"}, "finish_reason": "stop"}
    parsed = parse_reply(200, json.dumps({"choices": [choice, choice]}).encode())
    assert "several_choices" in codes(parsed)


@pytest.mark.parametrize("finish", ["", None])
def test_an_empty_finish_reason_is_none(finish: str | None) -> None:
    parsed = parse({"finish_reason": finish})
    assert parsed.finish_reason is None
    assert "finish_missing" in codes(parsed)


def test_an_engine_that_does_not_count_is_noted() -> None:
    counted = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"token_ids": [5], "logprobs": {"content": [entry(-0.1)]}}
    assert "usage_missing" not in codes(parse(choice, prompt_token_ids=[1], usage=counted))
    for usage in (None, {}, {"completion_tokens": None}, {"completion_tokens": "1"}):
        assert "usage_missing" in codes(parse(choice, prompt_token_ids=[1], usage=usage))

"""What is sent in a request's place: no spelling of a limit or a constraint gets around."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from explorer.capture.budgets import Ledger
from explorer.capture.sampling import SamplingPlan, Shaped, cap, shape
from explorer.errors import BadRequest
from explorer.records import CaptureLevel, Purpose
from explorer.wire import chat, completions, google, messages, responses
from explorer.wire.protocol import Target, Wire
from tests.capture.playbook import TIME

ASK: dict[Wire, dict[str, Any]] = {
    chat: {"messages": [{"role": "user", "content": "hi"}]},
    completions: {"prompt": "hi"},
    responses: {"input": "hi"},
    messages: {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    google: {"contents": [{"parts": [{"text": "hi"}]}]},
}


def shaped(wire: Wire, fixed: dict[str, Any] | None = None, **more: Any) -> Shaped:
    plan = SamplingPlan(CaptureLevel.TOKENS, Purpose.TRAIN, fixed or {})
    raw = orjson.dumps(ASK[wire] | more)
    return shape(wire.parse_request(raw, Target(model="m", stream=False), None), plan)


def limits(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key.startswith("max_")}


@pytest.mark.parametrize(
    "asked",
    [
        {"max_tokens": -1},
        {"max_tokens": 0},
        {"max_tokens": -(10**9)},
        {"max_completion_tokens": 0, "max_tokens": 100_000},
        {"max_completion_tokens": 5, "max_tokens": 100_000},
        {"max_completion_tokens": "5", "max_tokens": 100_000},
        {"max_tokens": 1e9},
        {"max_tokens": True},
    ],
)
def test_no_spelling_of_a_limit_goes_beyond_a_budget(asked: dict[str, Any]) -> None:
    ledger = Ledger({"output_tokens": 50})
    request = shaped(chat, **asked)
    held = ledger.reserve(TIME, 0, request.max_tokens)
    assert held.output > 0
    sent = limits(cap(request, held.max_tokens).body)
    assert sent == {"max_completion_tokens": held.max_tokens}
    assert 0 < sent["max_completion_tokens"] <= 50


def test_without_a_budget_limits_go_as_they_came() -> None:
    request = shaped(chat, max_tokens=-1, max_completion_tokens=7)
    held = Ledger({"calls": 3}).reserve(TIME, 0, request.max_tokens)
    assert cap(request, held.max_tokens).body == request.body


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("wire", list(ASK), ids=lambda wire: str(wire.DIALECT))
def test_a_rollouts_own_limit_wins_under_either_name(wire: Wire, name: str) -> None:
    asked = {"max_completion_tokens": 5000, "max_tokens": 5000} if wire is chat else {}
    sent = limits(shaped(wire, {name: 100}, **asked).body)
    own = "max_tokens" if wire is completions else "max_completion_tokens"
    assert sent == {own: 100}


GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: A"}}


@pytest.mark.parametrize(
    ("asked", "constraint"),
    [
        ({"lora_path": "elsewhere"}, "unknown_field:lora_path"),
        ({"best_of": True}, "best_of"),
        ({"kv_transfer_params": {"remote_block_ids": [1]}}, "kv_transfer_params"),
        ({"kv_transfer_params": [1]}, "kv_transfer_params"),
        ({"ec_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"temperature": 0.001}, "temperature"),
        ({"tools": [{"type": "custom", "custom": {"format": GRAMMAR}}]}, "tool_grammar"),
        ({"tools": [{"type": "custom", "custom": {"format": "odd"}}]}, "tool_grammar"),
    ],
)
def test_what_shapes_the_sampling_is_a_constraint(
    asked: dict[str, Any], constraint: str
) -> None:
    assert shaped(chat, **asked).constraints == (constraint,)


@pytest.mark.parametrize("given", [None, {}, {"prompt_token_ids": [1, 2]}])
def test_token_in_is_a_prompt_and_no_constraint(given: Any) -> None:
    assert shaped(chat, kv_transfer_params=given).constraints == ()


@pytest.mark.parametrize("form", [None, {"type": "text"}])
def test_a_free_text_tool_is_none(form: Any) -> None:
    tools = [{"type": "custom", "custom": {"name": "t", "format": form}}]
    assert shaped(chat, tools=tools).constraints == ()


FORCED: list[tuple[Wire, dict[str, Any]]] = [
    (chat, {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}),
    (chat, {"function_call": {"name": "a"}, "functions": [{"name": "a"}]}),
    (
        responses,
        {"tools": [{"type": "function", "name": "a"}], "tool_choice": "required"},
    ),
    (
        responses,
        {
            "tools": [{"type": "function", "name": "a"}],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "a"}],
            },
        },
    ),
    (responses, {"tools": [{"type": "function", "name": "a", "strict": True}]}),
    (responses, {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}),
    (messages, {"tools": [{"name": "a"}], "tool_choice": {"type": "any"}}),
    (messages, {"tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": "a"}}),
    (messages, {"tools": [{"name": "a", "strict": True}]}),
    (messages, {"output_config": {"format": {"type": "json_schema", "schema": {}}}}),
    (
        google,
        {
            "tools": [{"functionDeclarations": [{"name": "a"}]}],
            "tool_config": {"function_calling_config": {"mode": "any"}},
        },
    ),
    (google, {"generationConfig": {"responseMimeType": "application/json"}}),
    (google, {"generation_config": {"response_schema": {"type": "OBJECT"}}}),
]


@pytest.mark.parametrize(("wire", "asked"), FORCED)
def test_every_wires_way_to_force_an_answer_is_a_constraint(
    wire: Wire, asked: dict[str, Any]
) -> None:
    assert shaped(wire, **asked).constraints


def test_more_than_one_sample_is_refused_in_every_spelling() -> None:
    for count in (2, 0, True, "1"):
        with pytest.raises(BadRequest, match="`n` must be 1"):
            shaped(chat, n=count)

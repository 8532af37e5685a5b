"""Bodies that are answered, and bodies that are refused in vLLM's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from explorer.engine.tiny.runtime import TinyOptions, TinyRuntime

MODEL = Path(__file__).parent.parent / "data" / "tiny_model"
HI: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "temperature": 0,
    "max_tokens": 20,
}


@pytest.fixture(scope="module")
def runtime() -> TinyRuntime:
    return TinyRuntime(TinyOptions(folder=MODEL))


def ask(runtime: TinyRuntime, **fields: Any) -> tuple[int, dict[str, Any]]:
    answer = runtime.submit("a", "a", {**HI, **fields})
    while answer is None:
        answer = next(iter(runtime.step()), None)
    return answer.status, json.loads(answer.body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"n": 2}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"messages": []}, "body.messages"),
        ({"messages": ["x"]}, "body.messages.0"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, "input_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_refusals(runtime: TinyRuntime, fields: dict[str, Any], param: str) -> None:
    status, body = ask(runtime, **fields)
    assert status == 400
    assert body["error"]["param"] == param
    assert body["error"]["code"] == 400
    assert not runtime.busy


@pytest.mark.parametrize(
    "field",
    [
        *("response_format", "kv_transfer_params", "logit_bias", "stop", "stop_token_ids"),
        *("allowed_token_ids", "chat_template_kwargs", "tools", "model", "top_logprobs"),
    ],
)
@pytest.mark.parametrize("value", [[1], [[]], {"a": 1}, "x", 1.5, True, {"type": []}])
def test_a_value_of_another_kind_never_ends_the_engine(
    runtime: TinyRuntime, field: str, value: Any
) -> None:
    """The process serves everybody: one harness's request must not take it down."""
    status, body = ask(runtime, **{"logprobs": True, field: value})
    assert status == 200 or body["error"]["message"]
    assert not runtime.busy


def test_pictures_are_refused(runtime: TinyRuntime) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:"}}
    status, body = ask(runtime, messages=[{"role": "user", "content": [part]}])
    assert status == 400
    assert "multimodal" in body["error"]["message"]


def test_unknown_model(runtime: TinyRuntime) -> None:
    status, body = ask(runtime, model="nope")
    assert status == 404
    assert body["error"] == {
        "message": "The model `nope` does not exist. Valid aliases: tiny.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


def test_unknown_fields_and_text_parts_are_fine(runtime: TinyRuntime) -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    plain = ask(runtime, return_token_ids=True)[1]
    status, body = ask(
        runtime,
        messages=[{"role": "user", "content": parts}],
        model="tiny",
        return_token_ids=True,
        cache_salt="x",
        store=False,
    )
    assert status == 200
    assert body["prompt_token_ids"] == plain["prompt_token_ids"]
    assert body["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]


def test_ids_are_sent_only_when_asked_for(runtime: TinyRuntime) -> None:
    body = ask(runtime)[1]
    assert body["prompt_token_ids"] is None
    assert body["choices"][0]["token_ids"] is None
    assert body["choices"][0]["logprobs"] is None


def test_ids_in_replace_the_template(runtime: TinyRuntime) -> None:
    plain = ask(runtime, return_token_ids=True)[1]
    given = {"prompt_token_ids": plain["prompt_token_ids"]}
    other = ask(
        runtime,
        return_token_ids=True,
        kv_transfer_params=given,
        messages=[{"role": "user", "content": "something else"}],
    )[1]
    assert other["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]


def test_completion_limits(runtime: TinyRuntime) -> None:
    body = ask(runtime, max_completion_tokens=2)[1]
    assert body["usage"]["completion_tokens"] == 2
    assert body["choices"][0]["finish_reason"] == "length"
    body = ask(runtime, max_tokens=100_000, ignore_eos=True, min_tokens=3)[1]
    assert body["usage"]["total_tokens"] == runtime.max_model_len


def test_weight_version_span(runtime: TinyRuntime) -> None:
    choice = ask(runtime, return_weight_versions=True, return_token_ids=True)[1]["choices"][0]
    assert choice["weight_versions"] == [
        {"version": "default", "start": 0, "end": len(choice["token_ids"])}
    ]


def test_split_characters_appear_with_their_last_token(runtime: TinyRuntime) -> None:
    tokenizer = runtime.prompts.tokenizer
    forced = tokenizer.encode("\N{GRINNING FACE}")
    assert len(forced) == 4
    bias = {str(token_id): 100 for token_id in forced}
    entries = ask(
        runtime,
        logit_bias=bias,
        frequency_penalty=2,
        max_tokens=40,
        logprobs=True,
        temperature=1,
        seed=3,
    )[1]["choices"][0]["logprobs"]["content"]
    assert any(entry["token"] == "" and entry["bytes"] == [] for entry in entries)
    for entry in entries:
        assert bytes(entry["bytes"]).decode() == entry["token"]

"""Which way an engine takes ids, the body of each way, and a text that comes back from one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from explorer.engine.probe import certify
from explorer.engine.protocol import EngineReply, EngineRequest
from explorer.engine.reply import parse_reply
from explorer.engine.tiny import TinyEngine
from explorer.engine.token_in import (
    TakesIds,
    Way,
    as_completion,
    find_parser,
    needs_chat,
)

BOTH = ("--reasoning-parser", "qwen3", "--tool-call-parser=hermes")
CALL = '<tool_call>\n{"name": "ls", "arguments": {"a": 1}}\n</tool_call>'


class Deaf(TinyEngine):
    """As an engine that passes over ids on chat, and perhaps takes no plain prompts."""

    def __init__(self, *, completions: bool) -> None:
        super().__init__()
        self._completions = completions

    async def generate(self, request: EngineRequest) -> EngineReply:
        body = dict(request.body)
        body.pop("kv_transfer_params", None)
        if "prompt" in body and not self._completions:
            return EngineReply(404, (), b'{"error": {"message": "no such route"}}')
        return await super().generate(replace(request, body=body, raw=None))


@pytest.mark.parametrize(("completions", "way"), [(True, Way.COMPLETIONS), (False, None)])
def test_the_probe_believes_only_ids_that_come_back(completions: bool, way: Way | None) -> None:
    async def probe() -> Mapping[str, Any]:
        engine = Deaf(completions=completions)
        await engine.start()
        try:
            return (await certify(engine, 1)).numbers
        finally:
            await engine.stop()

    numbers = asyncio.run(probe())
    assert TakesIds.told_by(numbers).way is way


def test_a_chat_body_as_a_plain_completion() -> None:
    body = {
        "model": "m",
        "messages": [],
        "tools": [{}],
        "temperature": 0.7,
        "top_k": -1,
        "logprobs": True,
        "top_logprobs": 5,
        "return_token_ids": True,
        "max_completion_tokens": 9,
        "stream": True,
    }
    assert as_completion(body, [1, 2], 9) == {
        "model": "m",
        "temperature": 0.7,
        "top_k": -1,
        "return_token_ids": True,
        "prompt": [1, 2],
        "max_tokens": 9,
        "logprobs": 5,
    }
    assert not needs_chat(body)
    assert needs_chat(body | {"tool_choice": "required"})
    assert needs_chat(body | {"response_format": {"type": "json_object"}})
    assert needs_chat(body | {"n": 2})


def answered(text: str, finish: str = "stop") -> Any:
    ids = [5, 6]
    choice = {
        "index": 0,
        "text": text,
        "finish_reason": finish,
        "token_ids": ids,
        "prompt_token_ids": [1, 2],
        "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.25]},
    }
    usage = {"prompt_tokens": 2, "completion_tokens": 2}
    return parse_reply(200, orjson.dumps({"choices": [choice], "usage": usage}))


def test_reasoning_and_calls_are_told_apart_and_nothing_else_changes() -> None:
    parse = find_parser(BOTH, {"tools": [{}]})
    assert parse is not None
    before = answered(f"<think>\nhm\n</think>\n\n{CALL}")
    after = parse(before)
    assert after.message["reasoning"] == "\nhm\n"
    assert after.message["content"] is None
    (call,) = after.message["tool_calls"]
    assert call["function"] == {"name": "ls", "arguments": '{"a": 1}'}
    assert after.body is not None
    assert after.body["choices"][0]["finish_reason"] == "tool_calls"
    # What trains and what the row says of the end are the engine's own.
    assert after.finish_reason == before.finish_reason == "stop"
    assert after.completion_ids is before.completion_ids
    assert after.logprobs is before.logprobs
    cut = parse(answered(f"<think>\nhm\n</think>\n\n{CALL}", "length"))
    assert "tool_calls" not in cut.message


def test_an_unknown_parser_is_none() -> None:
    tools: dict[str, Any] = {"tools": [{}]}
    assert find_parser(None, {}) is None
    assert find_parser((), tools) is None
    assert find_parser(("--reasoning-parser", "deepseek_r1"), {}) is None
    assert find_parser(("--tool-call-parser", "mistral"), tools) is None
    assert find_parser((), {}) is not None
    assert find_parser(("structured_outputs_config.reasoning_parser=qwen3",), {}) is not None
    plain = find_parser((), {})
    assert plain is not None
    assert plain(answered("just text")).message["content"] == "just text"

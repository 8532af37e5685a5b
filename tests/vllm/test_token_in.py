"""Token-in on a real vLLM: ids on chat, ids on plain completions with our own parser, and the
suffix by vLLM's own tokenize route.

make test-engines
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from explorer.engine.http import HttpEngine
from explorer.engine.local.prompts import LocalPrompts
from explorer.engine.protocol import EngineRequest
from explorer.engine.reply import parse_reply
from explorer.engine.suffix import EngineSuffix, Extend, TemplateSuffix
from explorer.engine.token_in import as_completion, find_parser, with_ids
from explorer.records import RolloutId
from explorer.trace.sequences import Sequences
from explorer.trace.token_in import counted
from explorer.trace.verdict import judge
from tests.live import Live
from tests.vllm.conftest import MODEL
from tests.vllm.test_vllm import ASKED, WEATHER

TOOLS = [{"type": "function", "function": WEATHER}]


def converse(live: Live, key: str) -> None:
    """Turns of a harness that drops reasoning and dumps arguments anew."""
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    for round_ in range(3):
        answer = live.chat(
            key, messages=messages, tools=TOOLS, temperature=0.8, seed=round_ + 7, max_tokens=60
        )
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        turn: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
        calls = message.get("tool_calls") or []
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"))
        if calls:
            turn["tool_calls"] = calls
        messages.append(turn)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees"}
            for call in calls
        ] or [{"role": "user", "content": "And in Oslo?"}]


def test_the_probe_finds_ids_on_chat(live: Live) -> None:
    certificate = live.application.certificate
    assert certificate is not None
    assert certificate.numbers["token_in"] == "kv_transfer_params"


def test_breaks_are_gone(live: Live) -> None:
    records = []
    for token_in in (False, True):
        rollout, key = live.create(token_in=token_in)
        converse(live, key)
        record = live.store.record(RolloutId(rollout))
        assert record is not None
        records.append(record)
    broken = [
        sum(node.break_ is not None for node in judge(each).tree.nodes.values())
        for each in records
    ]
    assert broken[0] > 0
    assert broken[1] == 0
    record = records[1]
    counts = counted(record.calls)
    assert counts.sent == 2
    assert counts.avoided == 2
    assert counts.differing == counts.unknown == 0
    whole = Sequences(record.calls)
    for call in record.calls:
        if call.token_in is not None and call.token_in.sent:
            prompt = whole.prompt(call.call_id)
            parent = whole.full(call.token_in.parent_id)  # type: ignore[arg-type]
            assert np.array_equal(prompt[: parent.size], parent)


def test_both_suffixes_agree_and_both_ways_say_the_same(vllm: str) -> None:
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    first = [{"role": "user", "content": ASKED}]
    body: dict[str, Any] = {
        "messages": [
            *first,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "18 degrees"},
        ],
        "tools": TOOLS,
        "temperature": 0.8,
        "seed": 7,
        "max_completion_tokens": 60,
        "logprobs": True,
        "top_logprobs": 0,
        "return_token_ids": True,
        "model": "tiny",
    }
    prompts = LocalPrompts(MODEL)
    end = prompts.tokenizer.id_of("<|im_end|>")
    assert end is not None

    async def ask() -> tuple[Any, ...]:
        engine = HttpEngine(vllm, tokenizer=str(MODEL))
        await engine.start()
        try:
            asked = Extend(body, 1, end, prompts.ids(body | {"messages": first}))
            there = await EngineSuffix(engine).extend(asked)
            ids = list(prompts.ids(body))
            replies = []
            for sent in (with_ids(body, ids), as_completion(body, ids, 60)):
                reply = await engine.generate(EngineRequest(sent, "token-in", 60))
                replies.append(parse_reply(reply.status, reply.body))
            return TemplateSuffix(prompts).extend(asked), there, ids, *replies
        finally:
            await engine.stop()

    here, there, ids, chat, plain = asyncio.run(ask())
    assert here.suffix is not None
    assert here == there
    assert chat.prompt_ids.tolist() == plain.prompt_ids.tolist() == ids
    assert chat.completion_ids.tolist() == plain.completion_ids.tolist()
    flags = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    parse = find_parser(flags, body)
    assert parse is not None
    mine, theirs = parse(plain).message, chat.message
    for name in ("content", "reasoning"):
        assert mine.get(name) == theirs.get(name)
    assert len(mine.get("tool_calls") or []) == len(theirs.get("tool_calls") or [])


@pytest.mark.parametrize("wrong", [[999_999], [1, -1]])
def test_ids_out_of_range_are_refused_as_here(vllm: str, wrong: list[int]) -> None:
    import httpx

    answer = httpx.post(
        vllm + "/v1/chat/completions",
        json={
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hi"}],
            "kv_transfer_params": {"prompt_token_ids": wrong},
        },
        timeout=60,
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "kv_transfer_params.prompt_token_ids"

"""Plain completions: vLLM's recorded replies are read whole, and every engine answers them."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from explorer.engine.completion import as_chat, is_prompt
from explorer.engine.http import HttpEngine
from explorer.engine.protocol import Engine, EngineReply, EngineRequest
from explorer.engine.reply import ParsedReply, parse_reply
from explorer.engine.scripted import ScriptedEngine
from explorer.engine.tiny import TinyEngine
from explorer.errors import BadRequest
from explorer.records import NULL_LOGPROB_BITS, CaptureLevel, FailureKind
from explorer.wire import completions, sse

DATA = Path(__file__).parents[1] / "data"
RECORDED = DATA / "vllm_completions"
MODEL = DATA / "tiny_model"
CHAT = [1, 291, 201, 446, 2, 201, 1, 299, 201]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


def recorded(case: str) -> tuple[dict[str, Any], bytes]:
    asked = orjson.loads((RECORDED / case / "request.json").read_bytes())
    streamed = RECORDED / case / "response.sse"
    if streamed.exists():
        events = sse.Decoder().feed(streamed.read_bytes())
        return asked, orjson.dumps(completions.merge_stream(events))
    return asked, (RECORDED / case / "response.json").read_bytes()


def codes(parsed: ParsedReply) -> set[str]:
    return {note.code for note in parsed.notes}


def read(parsed: ParsedReply) -> tuple[list[int], list[float]]:
    assert parsed.completion_ids is not None
    assert parsed.logprobs is not None
    return parsed.completion_ids.tolist(), parsed.logprobs.tolist()


@pytest.mark.parametrize("case", ["unary_ids", "stream_ids", "text_prompt"])
def test_recorded_completions_are_whole(case: str) -> None:
    asked, raw = recorded(case)
    sent = orjson.loads(raw)["choices"][0]
    parsed = parse_reply(200, raw, max_tokens=asked["max_tokens"])
    assert parsed.failure is None
    assert parsed.level is CaptureLevel.TOKENS
    # The recorded model writes tool calls, and this route parses none.
    assert codes(parsed) <= {"tool_call_as_text"}
    ids, logprobs = read(parsed)
    assert ids == sent["token_ids"]
    told = np.array(sent["logprobs"]["token_logprobs"], dtype=np.float32)
    assert logprobs == told.tolist()
    assert len(ids) == parsed.usage["completion"]
    assert parsed.prompt_ids is not None
    assert parsed.prompt_ids.tolist() == sent["prompt_token_ids"]
    if isinstance(asked["prompt"], list):
        assert parsed.prompt_ids.tolist() == asked["prompt"]
    assert parsed.message == {"role": "assistant", "content": sent["text"]}
    assert parsed.finish_reason == "stop"


def test_a_stream_and_its_unary_twin_say_the_same() -> None:
    unary, streamed = (
        parse_reply(200, recorded(case)[1]) for case in ("unary_ids", "stream_ids")
    )
    assert read(unary) == read(streamed)
    assert unary.message == streamed.message
    assert unary.top_logprobs == streamed.top_logprobs


def test_alternatives_keep_the_texts_and_the_ids_that_name_themselves() -> None:
    parsed = parse_reply(200, recorded("unary_ids")[1])
    rows = orjson.loads(parsed.top_logprobs or b"")
    assert [row[1] for row in rows[2]] == ["The", "I"]
    assert {row[0] for row in rows[2]} == {None}
    named = orjson.loads(parse_reply(200, recorded("text_prompt")[1]).top_logprobs or b"")
    assert named[0][0][0] == 475


def test_an_echo_is_never_taken_for_what_was_sampled() -> None:
    parsed = parse_reply(200, recorded("unary_echo")[1])
    ids, logprobs = read(parsed)
    assert ids == [43, 367, 316]
    assert len(logprobs) == 11
    assert {"logprob_misalign", "logprob_null"} <= codes(parsed)
    assert parsed.logprobs is not None
    assert parsed.logprobs[:1].view(np.uint32)[0] == NULL_LOGPROB_BITS


def test_of_several_prompts_the_first_is_read_and_the_rest_noted() -> None:
    parsed = parse_reply(200, recorded("multi_prompt")[1])
    assert read(parsed)[0] == [43, 367, 316]
    assert {"several_choices", "token_count_mismatch"} <= codes(parsed)


def test_a_scored_prompt_has_no_logprobs_of_its_sample() -> None:
    parsed = parse_reply(200, recorded("score_only")[1])
    assert parsed.logprobs is None
    assert "logprobs_missing" in codes(parsed)
    assert parsed.level is CaptureLevel.TOKENS


def test_ids_are_recovered_only_from_strings_that_name_them() -> None:
    body = orjson.loads(recorded("text_prompt")[1])
    body["choices"][0]["token_ids"] = None
    parsed = parse_reply(200, orjson.dumps(body))
    assert read(parsed)[0] == [475, 3, 521, 519, 370, 520, 33, 2]
    assert "ids_recovered_from_strings" in codes(parsed)
    body = orjson.loads(recorded("unary_ids")[1])
    body["choices"][0]["token_ids"] = None
    assert parse_reply(200, orjson.dumps(body)).completion_ids is None


@pytest.mark.parametrize(
    ("logprobs", "count", "code"),
    [
        ({"tokens": ["a", "b"], "token_logprobs": [-0.5]}, 2, "logprob_null"),
        ({"tokens": ["a"], "token_logprobs": [-0.5, -1.0]}, 2, None),
        ({"tokens": ["a", "b"], "token_logprobs": [None, "x"]}, 2, "logprob_null"),
        ({"tokens": ["a", "b"]}, 2, "logprob_null"),
        ({"token_logprobs": [-0.5, -1.0]}, 2, None),
        ({"tokens": ["a"], "token_logprobs": [-0.5]}, 1, "logprob_misalign"),
    ],
)
def test_old_logprobs_of_any_length_are_kept_and_never_filled_up(
    logprobs: dict[str, Any], count: int, code: str | None
) -> None:
    choice = {"index": 0, "text": "ab", "finish_reason": "stop", "token_ids": [7, 8]}
    body = {"choices": [choice | {"logprobs": logprobs, "prompt_token_ids": [1]}]}
    parsed = parse_reply(200, orjson.dumps(body))
    assert parsed.logprobs is not None
    assert parsed.logprobs.size == count
    nulls = int((parsed.logprobs.view(np.uint32) == NULL_LOGPROB_BITS).sum())
    assert nulls == 2 - sum(type(x) is float for x in logprobs.get("token_logprobs", [])) or (
        count == 1
    )
    assert code is None or code in codes(parsed)


def test_prompt_ids_that_disagree_are_dropped() -> None:
    body = orjson.loads(recorded("unary_ids")[1]) | {"prompt_token_ids": [9]}
    parsed = parse_reply(200, orjson.dumps(body))
    assert parsed.prompt_ids is None
    assert "conflicting_prompt_ids" in codes(parsed)


def test_a_chat_completion_is_not_touched() -> None:
    body = {"choices": [{"message": {"content": "x"}, "text": "y"}]}
    assert as_chat(body) is body
    no_text: dict[str, Any] = {"object": "text_completion", "choices": [{"text": None}]}
    parsed = parse_reply(200, orjson.dumps(no_text))
    assert parsed.failure is FailureKind.UPSTREAM_MALFORMED


@given(
    st.sampled_from(["logprobs", "token_ids", "prompt_token_ids", "finish_reason", "index"]),
    json_values,
)
def test_any_value_in_a_reply_is_read_or_noted(key: str, value: Any) -> None:
    body = orjson.loads(recorded("unary_ids")[1])
    body["choices"][0][key] = value
    raw = json.dumps(body).encode()
    parsed = parse_reply(200, raw)
    if parsed.completion_ids is not None and key != "token_ids":
        assert parsed.completion_ids.size == 40


@given(
    st.sampled_from(["tokens", "token_logprobs", "top_logprobs", "text_offset"]), json_values
)
def test_any_value_in_old_logprobs_is_read_or_noted(key: str, value: Any) -> None:
    body = orjson.loads(recorded("unary_ids")[1])
    body["choices"][0]["logprobs"][key] = value
    parsed = parse_reply(200, json.dumps(body).encode())
    assert parsed.failure is None
    assert parsed.completion_ids is not None
    assert parsed.completion_ids.size == 40


# Engines --------------------------------------------------------------------------------


def run(engine: Engine, scenario: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        await engine.start()
        try:
            await scenario(engine)
        finally:
            await engine.stop()

    asyncio.run(main())


def asking(prompt: Any, **more: Any) -> EngineRequest:
    body = {"prompt": prompt, "logprobs": 1, "return_token_ids": True, "temperature": 0.8}
    return EngineRequest(body | {"seed": 7, "max_tokens": 48} | more, "r1", 30.0)


def parsed(reply: EngineReply) -> ParsedReply:
    found = parse_reply(reply.status, reply.body)
    assert found.failure is None, found.failure_detail
    return found


def test_http_engines_are_asked_at_the_address_of_plain_completions() -> None:
    heard: list[tuple[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        heard.append((request.path, await request.json()))
        if request.path == "/tokenize":
            return web.json_response({"tokens": [5, 6]})
        return web.Response(body=recorded("unary_ids")[1], content_type="application/json")

    async def main() -> None:
        application = web.Application()
        application.router.add_post("/{path:.*}", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        engine = HttpEngine(f"http://127.0.0.1:{port}/v1", model="m")
        await engine.start()
        try:
            reply = await engine.generate(asking([1, 2]))
            assert parsed(reply).level is CaptureLevel.TOKENS
            assert [x async for x in engine.stream(asking("x"))]
            chat = {"messages": [{"role": "user", "content": "x"}]}
            await engine.generate(EngineRequest(chat, "r2", 5.0))
            both = chat | {"prompt": "x"}
            await engine.generate(EngineRequest(both, "r3", 5.0))
            assert await engine.tokenize({"prompt": [3, 4]}) == (3, 4)
            assert await engine.tokenize({"prompt": "hi"}) == (5, 6)
        finally:
            await engine.stop()
            await runner.cleanup()

    asyncio.run(main())
    plain, chat = "/v1/completions", "/v1/chat/completions"
    assert [path for path, _ in heard] == [plain, plain, chat, chat, "/tokenize"]
    assert heard[0][1]["prompt"] == [1, 2]
    assert heard[-1][1] == {"prompt": "hi", "model": "m"}


def test_the_tiny_engine_draws_what_vllm_drew_for_the_same_ids() -> None:
    asked, raw = recorded("text_prompt")
    twin = parse_reply(200, raw)

    async def scenario(engine: TinyEngine) -> None:
        asked_ids = asking(CHAT, temperature=0, max_tokens=12, logprobs=0)
        from_ids = parsed(await engine.generate(asked_ids))
        text = asking(asked["prompt"], temperature=0, max_tokens=12, logprobs=0)
        from_text = parsed(await engine.generate(text))
        for own in (from_ids, from_text):
            assert read(own)[0] == read(twin)[0]
            assert np.allclose(read(own)[1], read(twin)[1], atol=2e-5)
            assert own.prompt_ids is not None
            assert own.prompt_ids.tolist() == CHAT
            assert own.message == twin.message
            assert codes(own) == set()

    run(TinyEngine(MODEL), scenario)


def test_the_tiny_engine_answers_in_vllms_shape() -> None:
    _, raw = recorded("unary_ids")
    sent = orjson.loads(raw)

    async def scenario(engine: TinyEngine) -> None:
        prompt = sent["choices"][0]["prompt_token_ids"]
        reply = orjson.loads((await engine.generate(asking(prompt))).body)
        assert set(reply) == set(sent)
        assert set(reply["choices"][0]) == set(sent["choices"][0])
        assert set(reply["usage"]) == set(sent["usage"])
        own, theirs = reply["choices"][0]["logprobs"], sent["choices"][0]["logprobs"]
        assert set(own) == set(theirs)
        # The seed draws other tokens here; those before the first choice are the same.
        assert own["tokens"][:2] == theirs["tokens"][:2]
        assert own["text_offset"][:3] == theirs["text_offset"][:3]
        events = [x async for x in engine.stream(asking(prompt))]
        merged = completions.merge_stream(sse.Decoder().feed(b"".join(events)))
        assert merged["_complete"]
        assert merged["choices"][0]["text"] == reply["choices"][0]["text"]
        assert merged["choices"][0]["token_ids"] == reply["choices"][0]["token_ids"]
        streamed = merged["choices"][0]["logprobs"]
        assert streamed["tokens"] == own["tokens"]
        assert streamed["text_offset"] == own["text_offset"]
        # The second run starts from a kept prefix, whose sums are made in other chunks.
        assert np.allclose(streamed["token_logprobs"], own["token_logprobs"], atol=1e-4)
        assert merged["choices"][0]["prompt_token_ids"] == prompt
        assert await engine.tokenize({"prompt": "Hi"}) == (446,)
        assert await engine.tokenize({"prompt": [4, 5]}) == (4, 5)

    run(TinyEngine(MODEL), scenario)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"prompt": [1, 100_000]}, "token ids"),
        ({"prompt": [1, -1]}, "token ids"),
        ({"prompt": [True]}, "token ids"),
        ({"prompt": ["a", "b"]}, "token ids"),
        ({"prompt": {"a": 1}}, "token ids"),
        ({"prompt": []}, "no room|has 0"),
        ({"prompt": "x", "n": 2}, "one choice"),
        ({"prompt": "x", "best_of": 2}, "one choice"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
    ],
)
def test_the_tiny_engine_refuses_with_words(more: dict[str, Any], words: str) -> None:
    from explorer.engine.tiny.runtime import TinyOptions, TinyRuntime

    runtime = TinyRuntime(TinyOptions(folder=MODEL))
    answer = runtime.submit("1", "r1", more)
    assert answer is not None
    assert answer.status == 400
    message = orjson.loads(answer.body)["error"]["message"]
    assert any(word in message for word in words.split("|"))


def test_without_a_limit_a_plain_completion_has_sixteen_tokens() -> None:
    body = {"prompt": CHAT, "ignore_eos": True, "return_token_ids": True}

    async def scenario(engine: TinyEngine) -> None:
        reply = orjson.loads((await engine.generate(EngineRequest(body, "r", 30.0))).body)
        assert len(reply["choices"][0]["token_ids"]) == 16
        assert reply["choices"][0]["finish_reason"] == "length"
        assert reply["choices"][0]["logprobs"] is None

    run(TinyEngine(MODEL), scenario)


def test_tools_are_not_parsed_out_of_a_plain_completion() -> None:
    calls = [{"name": "f", "arguments": {}}]
    entry: dict[str, Any] = {"text": "sure", "tool_calls": calls, "reasoning": "r"}

    async def scenario(engine: ScriptedEngine) -> None:
        found = parsed(await engine.generate(asking("x", max_tokens=400)))
        text = found.message["content"]
        assert text.startswith("<think>\nr\n</think>")
        assert 'sure\n<tool_call>\n{"name": "f"' in text
        assert found.finish_reason == "stop"
        assert "tool_calls" not in found.message
        assert found.level is CaptureLevel.TOKENS
        assert codes(found) == {"tool_call_as_text"}

    run(ScriptedEngine([entry]), scenario)


def test_a_script_is_matched_with_the_prompt_whether_text_or_ids() -> None:
    script: list[dict[str, Any]] = [
        {"when": {"contains": "Hi"}, "text": "hit"},
        {"text": "other"},
    ]

    async def scenario(engine: ScriptedEngine) -> None:
        hi = engine.prompt_ids({"prompt": "Hi"})
        for prompt, text in (("Hi you", "hit"), (hi, "hit"), ([1], "other")):
            found = parsed(await engine.generate(asking(prompt)))
            assert found.message["content"] == text
        assert list(await engine.tokenize({"prompt": "Hi"})) == hi

    run(ScriptedEngine(script), scenario)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("no_ids", "ids_missing"),
        ("no_prompt_ids", "prompt_ids_missing"),
        ("no_logprobs", "logprobs_missing"),
        ("wrong_usage", "token_count_mismatch"),
        ("placeholder_ids", "ids_recovered_from_strings"),
    ],
)
def test_scripted_faults_reach_plain_completions(fault: str, code: str) -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        assert code in codes(parsed(await engine.generate(asking("x"))))

    run(ScriptedEngine([{"text": "a", "fault": fault}]), scenario)


def test_a_scripted_engine_refuses_unknown_ids() -> None:
    async def scenario(engine: ScriptedEngine) -> None:
        reply = await engine.generate(asking([10**6]))
        assert reply.status == 400
        assert "token ids" in orjson.loads(reply.body)["error"]["message"]

    run(ScriptedEngine([{"text": "a"}]), scenario)


def test_a_local_model_begins_a_plain_prompt_as_its_tokenizer_says(tmp_path: Path) -> None:
    from explorer.engine.local.prompts import LocalPrompts

    shutil.copytree(MODEL, tmp_path / "model")
    path = tmp_path / "model" / "tokenizer.json"
    document = json.loads(path.read_text())
    begin = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {
            "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
        },
    }
    path.write_text(json.dumps(document))
    prompts = LocalPrompts(tmp_path / "model")
    assert prompts.ids({"prompt": "Hi"}) == (1, 446)
    assert prompts.ids({"prompt": "Hi", "add_special_tokens": False}) == (446,)
    assert prompts.ids({"prompt": [5, 6]}) == (5, 6)
    with pytest.raises(BadRequest, match="token ids"):
        prompts.ids({"prompt": [10**6]})
    chat = prompts.ids({"messages": [{"role": "user", "content": "Hi"}]})
    assert chat[:2] != (1, 1)


def test_a_body_with_messages_is_chat() -> None:
    assert is_prompt({"prompt": "x"})
    assert is_prompt({"prompt": [1], "messages": []})
    assert not is_prompt({"prompt": "x", "messages": [{"role": "user"}]})
    assert not is_prompt({"prompt": None})

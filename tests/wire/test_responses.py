"""Responses out: the object, its stream, and the official client that reads both."""

from __future__ import annotations

import math
from typing import Any

import openai
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from explorer.errors import EngineMalformed
from explorer.records import Dialect
from explorer.wire import ids, openai_errors, responses, sse
from explorer.wire.echo import unsign
from explorer.wire.neutral import NeutralRequest
from explorer.wire.protocol import CONTEXT_OVERFLOW, WireError
from tests.wire.openai_live import CALL, serving

ID = CALL.format(0)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "patch", "description": "Edits."},
    {
        "type": "namespace",
        "name": "agents",
        "description": "x",
        "tools": [{"type": "function", "name": "spawn", "parameters": {}, "strict": False}],
    },
    {"type": "local_shell"},
]


def tool(name: str, arguments: Any) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-tool-{name}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def completion(finish: Any = "stop", **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": None, "reasoning": None} | message
    choice = {"index": 0, "message": said, "finish_reason": finish, "logprobs": None}
    return {
        "id": "chatcmpl-upstream",
        "created": 1795975927,
        "model": "lab-model",
        "choices": [choice],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 4,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
        "prompt_token_ids": [1, 2],
    }


WHOLE = completion(
    "tool_calls",
    content="  I will… \n\n",
    reasoning="Need a file first. \n",
    tool_calls=[
        tool("read", '{ "path": "h\\u00e9" }'),
        tool("patch", '{"input": "*** Begin ✓\\n"}'),
        tool("agents__spawn", "{}"),
        tool("local_shell", '{"command": ["ls", "-l"], "timeout_ms": 7}'),
    ],
)


def parse(**body: Any) -> NeutralRequest:
    return responses.parse_request(orjson.dumps({"model": "m", "input": "x"} | body))


def serve(reply: dict[str, Any], request: NeutralRequest) -> dict[str, Any]:
    return responses.serve(ids.with_our_ids(reply, ID), request, ID)


def events_of(*parts: bytes) -> list[sse.Event]:
    decoder = sse.Decoder()
    return [event for part in parts for event in decoder.feed(part)]


# The object -----------------------------------------------------------------------------


def test_every_kind_of_item_leads_back_to_its_call() -> None:
    served = serve(WHOLE, parse(tools=TOOLS))
    assert served["id"] == f"resp_{ID}"
    assert served["output"] == [
        {
            "id": f"rs_{ID}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Need a file first. \n"}],
        },
        {
            "id": f"msg_{ID}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {
                    "type": "output_text",
                    "text": "  I will… \n\n",
                    "annotations": [],
                    "logprobs": [],
                }
            ],
        },
        {
            "id": f"fc_{ID}_0",
            "type": "function_call",
            "status": "completed",
            "call_id": ids.tool_call_id(ID, 0),
            "name": "read",
            "arguments": '{ "path": "h\\u00e9" }',
        },
        {
            "id": f"ct_{ID}_1",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": ids.tool_call_id(ID, 1),
            "name": "patch",
            "input": "*** Begin ✓\n",
        },
        {
            "id": f"fc_{ID}_2",
            "type": "function_call",
            "status": "completed",
            "call_id": ids.tool_call_id(ID, 2),
            "name": "spawn",
            "namespace": "agents",
            "arguments": "{}",
        },
        {
            "id": f"fc_{ID}_3",
            "type": "local_shell_call",
            "status": "completed",
            "call_id": ids.tool_call_id(ID, 3),
            "action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 7},
        },
    ]
    for item in served["output"]:
        assert ids.origin_of_item(item["id"]) == ID
    assert b"token_ids" not in responses.encode_reply(served)


def test_the_strict_models_of_the_official_client_take_the_object() -> None:
    request = parse(tools=TOOLS, include=["reasoning.encrypted_content"], metadata={"a": "b"})
    found = Response.model_validate(serve(WHOLE, request))
    assert found.output_text == "  I will… \n\n"
    assert found.usage is not None
    assert found.usage.model_dump() == {
        "input_tokens": 9,
        "input_tokens_details": {
            "cached_tokens": 2,
            "cache_write_tokens": 0,
            "cache_write_tokens_details": None,
        },
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 13,
    }
    assert found.created_at == 1795975927
    assert found.model == "lab-model"


def test_the_request_is_echoed() -> None:
    body: dict[str, Any] = {
        "instructions": "i",
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "read"},
        "parallel_tool_calls": False,
        "store": False,
        "temperature": 0.25,
        "top_p": 0.5,
        "text": {"format": {"type": "json_object"}},
        "reasoning": {"effort": "low"},
        "metadata": {"k": "v"},
        "truncation": "auto",
        "max_output_tokens": 77,
        "user": "u",
    }
    served = serve(WHOLE, parse(**body))
    body["reasoning"]["summary"] = None
    assert {key: served[key] for key in body} == body
    plain = serve(WHOLE, parse())
    assert (plain["tools"], plain["tool_choice"], plain["store"]) == ([], "auto", True)
    assert plain["text"] == {"format": {"type": "text"}}


def test_reasoning_is_sealed_only_where_it_was_asked_for() -> None:
    assert "encrypted_content" not in serve(WHOLE, parse())["output"][0]
    sealed = serve(WHOLE, parse(include=["reasoning.encrypted_content"]))["output"][0]
    assert unsign(sealed["encrypted_content"]) == "Need a file first. \n"


@pytest.mark.parametrize(
    ("finish", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        (None, "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
        ("abort", "incomplete", None),
        ([1], "completed", None),
    ],
)
def test_how_a_reply_ended(finish: Any, status: str, details: Any) -> None:
    served = serve(completion(finish, content="x"), parse())
    assert served["status"] == status
    assert served["incomplete_details"] == details
    assert served["output"][0]["status"] == status
    last = events_of(responses.streamer(parse(), ID, "m").finish(served))[-1]
    assert last.name == f"response.{status}"


@pytest.mark.parametrize(
    "arguments", ["{broken", '{"input": 5}', '{"input": "x", "more": 1}', "", '["input"]']
)
def test_arguments_that_are_no_free_text_are_given_as_they_are(arguments: str) -> None:
    served = serve(completion(tool_calls=[tool("patch", arguments)]), parse(tools=TOOLS))
    assert served["output"][0]["input"] == arguments


@pytest.mark.parametrize("arguments", ["{", '{"command": "ls"}', '{"command": [1]}', "[]"])
def test_a_shell_call_without_a_command_stays_a_function_call(arguments: str) -> None:
    served = serve(completion(tool_calls=[tool("local_shell", arguments)]), parse(tools=TOOLS))
    item = served["output"][0]
    assert (item["type"], item["arguments"]) == ("function_call", arguments)


def test_an_empty_reply_has_no_output() -> None:
    served = serve(completion(content=""), parse())
    assert served["output"] == []
    assert Response.model_validate(served).output_text == ""


def entry(token: str, logprob: Any = -0.5, **more: Any) -> dict[str, Any]:
    other = {"token": "z", "logprob": -2.0, "bytes": [122]}
    return {
        "token": token,
        "logprob": logprob,
        "bytes": list(token.encode("utf-8", "surrogatepass")),
        "top_logprobs": [other, other],
    } | more


THINKING = ["<think>", "no", "</think>", "\n\n"]


@pytest.mark.parametrize(
    ("tokens", "text", "found"),
    [
        (["he", "llo", "<|im_end|>"], "hello", ["he", "llo"]),
        ([*THINKING, "he", "llo", "<|im_end|>"], "hello", ["he", "llo"]),
        ([*THINKING, "no"], "no", []),  # said twice: nobody can tell which
        (["hell", "o!"], "hello", []),  # ends inside a token
        (["xhe", "llo"], "hello", []),  # begins inside one
        (["token_id:5", "token_id:6"], "hello", []),
        (["he", "", "llo"], "hello", ["he", "llo"]),
        (["he", 5, "llo"], "hello", []),
        ([], "hello", []),
    ],
)
def test_logprobs_stand_only_where_they_belong_for_certain(
    tokens: list[Any], text: str, found: list[str]
) -> None:
    reply = completion(content=text)
    content = [entry(t) if isinstance(t, str) else {"token": t} for t in tokens]
    reply["choices"][0]["logprobs"] = {"content": content}
    asked = parse(include=["message.output_text.logprobs"], top_logprobs=1)
    given = serve(reply, asked)["output"][0]["content"][0]["logprobs"]
    assert [one["token"] for one in given] == found
    assert all(len(one["top_logprobs"]) == 1 for one in given)
    assert serve(reply, parse())["output"][0]["content"][0]["logprobs"] == []
    Response.model_validate(serve(reply, asked))


# The stream -----------------------------------------------------------------------------

REQUESTS = [
    parse(stream=True),
    parse(stream=True, tools=TOOLS, include=["reasoning.encrypted_content"]),
]
REPLIES = [
    WHOLE,
    completion(content="only text"),
    completion(reasoning="only reasoning"),
    completion(content=""),
    completion("length", content="cut", reasoning="r"),
    completion(content="a", refusal="no"),
    completion(refusal="no"),
    completion(tool_calls=[tool("read", ""), tool("patch", "x")]),
]


def check_order(events: list[sse.Event]) -> None:
    """What every client relies on: numbers, names, and items that are closed in order."""
    told = [orjson.loads(event.data) for event in events]
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    assert [one["type"] for one in told] == [event.name for event in events]
    assert [one["type"] for one in told[:2]] == ["response.created", "response.in_progress"]
    open_items: list[int] = []
    for one in told[2:-1]:
        if one["type"] == "response.output_item.added":
            assert not open_items
            open_items.append(one["output_index"])
        elif one["type"] == "response.output_item.done":
            assert open_items.pop() == one["output_index"]
        else:
            assert open_items == [one["output_index"]]
    assert not open_items


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("reply", REPLIES)
def test_a_stream_gives_back_the_object(
    reply: dict[str, Any], request_: NeutralRequest
) -> None:
    served = serve(reply, request_)
    events = events_of(responses.streamer(request_, ID, "m").finish(served))
    check_order(events)
    assert responses.merge_stream(events) == served
    # Also without the last event, which repeats everything.
    assert responses.merge_stream(events[:-1])["output"] == served["output"]


@settings(deadline=None)
@given(st.integers(0, 20), st.integers(0, 12), st.integers(1, 5))
def test_pieces_that_come_live_change_nothing_in_the_end(
    thought: int, said: int, size: int
) -> None:
    request = REQUESTS[1]
    served = serve(WHOLE, request)
    reasoning, text = "Need a file first. \n", "  I will… \n\n"
    thought = thought if said == 0 else len(reasoning)
    stream = responses.streamer(request, ID, "m")
    parts = [stream.live("", "")]
    parts += [stream.live(reasoning[i : i + size], "") for i in range(0, thought, size)]
    thought = max(0, min(len(reasoning), -(-thought // size) * size))
    parts += [stream.live("", text[i : i + size]) for i in range(0, said, size)]
    parts.append(stream.finish(served))
    events = events_of(*parts)
    check_order(events)
    assert responses.merge_stream(events) == served
    assert responses.merge_stream(events[:-1])["output"] == served["output"]


def test_reasoning_after_text_began_is_only_in_the_whole_reply() -> None:
    served = serve(WHOLE, parse())
    stream = responses.streamer(parse(), ID, "m")
    first = stream.live("Need", "  I") + stream.live(" a file", " will")
    events = events_of(first, stream.finish(served))
    check_order(events)
    assert responses.merge_stream(events) == served


def test_pieces_are_shown_as_they_come() -> None:
    stream = responses.streamer(parse(), ID, "early-name")
    names = [event.name for event in events_of(stream.live("think", ""))]
    assert names[2:] == [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
    ]
    names = [event.name for event in events_of(stream.live("", "say"))]
    assert names[-3:] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
    ]
    assert "response.output_item.done" in names


def test_a_stream_cut_at_any_byte_shows_a_beginning_and_nothing_else() -> None:
    request = REQUESTS[1]
    served = serve(WHOLE, request)
    raw = responses.streamer(request, ID, "m").finish(served)
    seen = set()
    for cut in range(len(raw)):
        merged = responses.merge_stream(sse.Decoder().feed(raw[:cut]))
        assert merged.get("status", "in_progress") == "in_progress"
        for item, whole in zip(merged.get("output", []), served["output"], strict=False):
            assert item["id"] == whole["id"]
            for key in ("arguments", "input"):
                assert whole.get(key, "").startswith(item.get(key, ""))
        seen.add(len(merged.get("output", [])))
    assert seen == set(range(len(served["output"]) + 1))
    for cut in range(0, len(raw), 97):
        assert responses.merge_stream(events_of(raw[:cut], raw[cut:])) == served


@pytest.mark.parametrize(
    ("status", "code", "told", "words"),
    [
        (500, "internal_error", "server_error", "500 service overloaded, try again"),
        (504, "engine_timeout", "server_error", "504 service overloaded, try again"),
        (429, "capacity_reached", "rate_limit_exceeded", "it broke"),
        (400, CONTEXT_OVERFLOW, "context_length_exceeded", "maximum context length"),
        (400, "rollout_closed", "invalid_prompt", "it broke"),
    ],
)
def test_an_error_in_a_stream_says_whether_to_try_again(
    status: int, code: str, told: str, words: str
) -> None:
    raw = responses.error_event(WireError(status, code, "it broke"))
    (event,) = events_of(raw)
    assert event.name == "response.failed"
    merged = responses.merge_stream([event])
    assert merged["status"] == "failed"
    assert merged["_error"]["code"] == told
    assert words in merged["_error"]["message"]


def test_whole_errors_are_openais() -> None:
    assert responses.refusal is openai_errors.refusal
    assert responses.DIALECT is Dialect.RESPONSES
    assert orjson.loads(responses.count_reply(12)) == {
        "object": "response.input_tokens",
        "input_tokens": 12,
    }


# Hostile replies ------------------------------------------------------------------------

PLACES = [
    *("content", "reasoning", "tool_calls", "refusal", "message", "finish_reason"),
    *("logprobs", "choices", "usage", "created", "model", "function", "arguments", "name"),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(PLACES), json_values)
def test_any_value_in_a_reply_is_served_and_streamed_alike(key: str, value: Any) -> None:
    reply = orjson.loads(orjson.dumps(WHOLE))
    call = reply["choices"][0]["message"]["tool_calls"][0]
    places = [call["function"], call, reply["choices"][0]["message"], reply["choices"][0]]
    place = next((one for one in places if key in one), reply)
    place[key] = value
    request = parse(tools=TOOLS, include=["message.output_text.logprobs"])
    served = responses.serve(reply, request, ID)
    raw = responses.encode_reply(served)
    assert orjson.loads(raw)["id"] == f"resp_{ID}"
    events = events_of(responses.streamer(request, ID, "m").finish(served))
    check_order(events)
    assert responses.merge_stream(events) == orjson.loads(raw)


def test_numbers_and_texts_that_json_cannot_hold() -> None:
    reply = completion(content="\ud800", reasoning="\udfff")
    reply["choices"][0]["logprobs"] = {"content": [entry("\ud800", math.nan)]}
    request = parse(include=["message.output_text.logprobs", "reasoning.encrypted_content"])
    served = orjson.loads(responses.encode_reply(serve(reply, request)).replace(b"\\ud", b"ud"))
    assert served["output"][1]["content"][0]["logprobs"][0]["logprob"] is None
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(EngineMalformed):
        responses.encode_reply(serve(completion(content=deep), request))


# The official client --------------------------------------------------------------------


def test_the_official_client_reads_a_whole_reply() -> None:
    with serving(responses, WHOLE) as live:
        client: Any = live.client
        found = client.responses.create(
            model="m", input="x", tools=TOOLS, include=["reasoning.encrypted_content"]
        )
        assert found.output_text == "  I will… \n\n"
        kinds = [type(item).__name__ for item in found.output]
        assert kinds == [
            "ResponseReasoningItem",
            "ResponseOutputMessage",
            "ResponseFunctionToolCall",
            "ResponseCustomToolCall",
            "ResponseFunctionToolCall",
            "LocalShellCall",
        ]
        assert found.output[4].namespace == "agents"


@pytest.mark.parametrize("live_pieces", [(), (("Need a ", ""), ("file first. \n", "  I"))])
def test_the_official_client_builds_the_same_from_a_stream(
    live_pieces: tuple[tuple[str, str], ...],
) -> None:
    with serving(responses, WHOLE) as live:
        live.live = live_pieces
        client: Any = live.client
        with client.responses.stream(
            model="m", input="x", tools=TOOLS, include=["reasoning.encrypted_content"]
        ) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert kinds[-1] == "response.completed"
        assert "response.custom_tool_call_input.delta" in kinds
        told = Response.model_validate(live.served[0]).model_dump(exclude_none=True)
        own = final.model_dump(exclude_none=True, exclude={"output": {"__all__": {"parsed"}}})
        assert final.output_text == "  I will… \n\n"
        assert [item["id"] for item in own["output"]] == [item["id"] for item in told["output"]]
        assert own["usage"] == told["usage"]
        assert final.output[2].arguments == '{ "path": "h\\u00e9" }'


def test_the_official_client_reads_logprobs() -> None:
    reply = completion(content="hi")
    reply["choices"][0]["logprobs"] = {"content": [entry("h"), entry("i", -0.25)]}
    with serving(responses, reply, reply) as live:
        client: Any = live.client
        include = ["message.output_text.logprobs"]
        found = client.responses.create(model="m", input="x", include=include)
        part = found.output[0].content[0]
        assert [one.logprob for one in part.logprobs] == [-0.5, -0.25]
        stream = client.responses.create(model="m", input="x", include=include, stream=True)
        done = [event for event in stream if event.type == "response.output_text.done"]
        assert [one.logprob for one in done[0].logprobs] == [-0.5, -0.25]


def test_the_official_client_sees_a_failed_stream() -> None:
    with serving(responses, WHOLE) as live:
        live.live = (("Need", ""),)
        live.fail = WireError(502, "engine_unavailable", "the engine died")
        events = list(live.client.responses.create(model="m", input="x", stream=True))
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"


def test_the_official_client_goes_on_from_an_earlier_reply() -> None:
    first = completion("tool_calls", reasoning="why", tool_calls=[tool("read", "{ }")])
    with serving(responses, first, completion(content="done"), completion(content="x")) as live:
        create: Any = live.client.responses.create
        one = create(model="m", instructions="i", input="go", tools=TOOLS)
        output = {
            "type": "function_call_output",
            "call_id": one.output[-1].call_id,
            "output": "r",
        }
        two = create(model="m", instructions="j", input=[output], previous_response_id=one.id)
        assert two.previous_response_id == one.id
        echoed = [{"role": "user", "content": "go"}, *one.output, output]
        create(model="m", instructions="j", input=echoed)
        by_id, in_full = live.requests[1].messages, live.requests[2].messages
        assert by_id == in_full
        assert by_id[0] == {"role": "system", "content": "j"}
        with pytest.raises(openai.BadRequestError) as error:
            create(model="m", input="x", previous_response_id="resp_unknown")
        assert "Previous response with id 'resp_unknown' not found." in str(error.value)

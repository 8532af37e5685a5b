"""Anthropic Messages: requests, the served message and errors."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.errors import BadRequest, EngineMalformed
from explorer.wire import messages
from explorer.wire.neutral import NeutralRequest
from explorer.wire.protocol import CONTEXT_OVERFLOW, Wire, WireError
from tests.wire.replies import (
    CALL_ID,
    REPLY,
    events_of,
    hostile,
    hostile_replies,
    recorded,
    replies,
    reply,
)

WIRE: Wire = messages
OURS = f"call_{CALL_ID.replace('-', '')}_0"


def ask(**fields: Any) -> NeutralRequest:
    body = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "go"}]}
    return messages.parse_request(orjson.dumps(body | fields))


def turns(*sent: dict[str, Any], **fields: Any) -> list[Any]:
    return ask(messages=list(sent), **fields).messages


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def model(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value} | more


def result(tool_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": tool_id, "content": content} | more


MARK = {"cache_control": {"type": "ephemeral"}}


def test_a_plain_text_and_one_block_and_a_marked_block_are_the_same() -> None:
    plain = turns(
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "note"},
        user(result("t", "out")),
        system="be brief",
    )
    marked = turns(
        user(text("hi", **MARK)),
        {"role": "system", "content": [text("note", **MARK)]},
        user(result("t", [text("out", **MARK)], is_error=False, **MARK)),
        system=[text("be brief", **MARK)],
    )
    assert marked == plain
    assert plain == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "note"},
        {"role": "tool", "tool_call_id": "t", "content": "out"},
    ]


def test_text_added_behind_a_tool_result_only_adds_a_message() -> None:
    before = turns(user(text("go")), user(result("b", "2"), result("a", "1")))
    after = turns(
        user(text("go")), user(result("b", "2"), result("a", [text("1")]), text("reminder"))
    )
    assert after == [*before, {"role": "user", "content": "reminder"}]
    assert [message.get("tool_call_id") for message in before] == [None, "b", "a"]


def test_runs_of_text_and_results_keep_their_order() -> None:
    made = turns(user(text("x"), text("y"), result("a", None, is_error=True), text("z")))
    assert made == [
        {"role": "user", "content": [text("x"), text("y")]},
        {"role": "tool", "tool_call_id": "a", "content": ""},
        {"role": "user", "content": "z"},
    ]


def test_images_and_documents() -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "AA"},
    }
    linked = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf"}}
    note = {"type": "document", "source": {"type": "text", "data": "words"}}
    request = ask(
        messages=[user(image, linked, pdf, note), user(result("t", [text("a"), image]))]
    )
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    assert request.messages == [
        {
            "role": "user",
            "content": [
                shown,
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                text("words"),
            ],
        },
        {"role": "tool", "tool_call_id": "t", "content": [text("a"), shown]},
    ]
    assert [(note.code, note.detail) for note in request.notes] == [
        ("block_dropped", "document")
    ]


def test_an_assistant_turn_is_one_message() -> None:
    (made,) = turns(
        model(
            {"type": "thinking", "thinking": "hm", "signature": "foreign"},
            text("a "),
            {"type": "tool_use", "id": "t0", "name": "f", "input": {"z": 1, "a": "é"}},
            text("b"),
            {"type": "tool_use", "id": "t1", "name": "g", "input": {}},
        )
    )
    assert made == {
        "role": "assistant",
        "content": "a b",
        "reasoning": "hm",
        "tool_calls": [
            {
                "id": "t0",
                "type": "function",
                "function": {"name": "f", "arguments": '{"z":1,"a":"é"}'},
            },
            {"id": "t1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


@pytest.mark.parametrize("inner", ['{"a": "b', {"raw": '{"a": "b', "len": 8}])
@pytest.mark.parametrize("key", ["__unparsedToolInput", "__unparsed_arguments"])
def test_arguments_that_could_not_be_parsed_come_back_as_they_were(
    inner: Any, key: str
) -> None:
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {key: inner}}
    (made,) = turns(model(block))
    assert made["tool_calls"][0]["function"]["arguments"] == '{"a": "b'


def test_foreign_hidden_thinking_is_dropped_with_a_note() -> None:
    request = ask(messages=[model({"type": "redacted_thinking", "data": "Zm9v"}, text("x"))])
    assert request.messages == [{"role": "assistant", "content": "x"}]
    assert [note.code for note in request.notes] == ["thinking_dropped"]


TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}, **MARK}


def test_tools_and_choice() -> None:
    request = ask(
        tools=[
            TOOL,
            TOOL | {"name": "g", "strict": True, "type": "custom"},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        tool_choice={"type": "tool", "name": "g", "disable_parallel_tool_use": True},
    )
    functions = [tool["function"] for tool in request.tools]
    assert functions[0] == {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert functions[1]["strict"] is True
    assert [function["name"] for function in functions] == ["f", "g", "bash"]
    assert functions[2]["parameters"]["additionalProperties"] is True
    assert request.body["tool_choice"] == {"type": "function", "function": {"name": "g"}}
    assert request.body["parallel_tool_calls"] is False
    assert ("tool_dropped", "web_search_20250305") in [
        (n.code, n.detail) for n in request.notes
    ]
    for given_choice, neutral in (("auto", "auto"), ("any", "required"), ("none", "none")):
        made = ask(tools=[TOOL], tool_choice={"type": given_choice})
        assert made.body["tool_choice"] == neutral
    without = ask(tools=[], tool_choice={"type": "auto"})
    assert "tools" not in without.body
    assert "tool_choice" not in without.body


def test_a_deferred_tool_is_sent_once_it_was_loaded() -> None:
    later = TOOL | {"name": "later", "defer_loading": True}
    reference = {"type": "tool_reference", "tool_name": "later"}
    before = ask(tools=[TOOL, later])
    after = ask(
        tools=[TOOL, later], messages=[user(text("go")), user(result("t", [reference]))]
    )
    assert [tool["function"]["name"] for tool in before.tools] == ["f"]
    assert [tool["function"]["name"] for tool in after.tools] == ["f", "later"]
    assert "later" in after.messages[-1]["content"]
    assert after.messages[: len(before.messages)] == before.messages


def test_parameters() -> None:
    request = ask(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["END"],
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"a": 1}}},
        metadata={"user_id": '{"session_id":"s-1"}'},
        context_management={"edits": []},
        betas=["x"],
        service_tier="auto",
        stream=True,
        anything={"at": "all"},
    )
    assert request.body == {
        "model": "m",
        "messages": [{"role": "user", "content": "go"}],
        "max_tokens": 64,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop": ["END"],
        "chat_template_kwargs": {"enable_thinking": True},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": {"a": 1}},
        },
    }
    assert request.stream is True
    assert request.claims["session_id"] == "s-1"
    off = ask(thinking={"type": "disabled"}, chat_template_kwargs={"x": 1})
    assert off.body["chat_template_kwargs"] == {"x": 1, "enable_thinking": False}
    assert "chat_template_kwargs" not in ask().body


def test_an_assistant_turn_at_the_end_is_continued() -> None:
    begun = ask(messages=[user(text("go")), model(text("Sure,"))])
    assert begun.body["continue_final_message"] is True
    assert begun.body["add_generation_prompt"] is False
    assert "continue_final_message" not in ask().body


def test_a_body_for_counting_needs_no_limit() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
    assert "max_tokens" not in messages.parse_request(orjson.dumps(body)).body
    assert orjson.loads(messages.count_reply(17)) == {"input_tokens": 17}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role"),
        ({"messages": [user({"type": "text", "text": 5})]}, "messages[0].content[0].text"),
        ({"messages": [user(result(1, "x"))]}, "messages[0].content[0].tool_use_id"),  # type: ignore[arg-type]
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": True}, "temperature"),
        ({"stop_sequences": [1]}, "stop_sequences[0]"),
    ],
)
def test_bad_requests_name_the_place(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ask(**fields)
    assert f"`{path}`" in caught.value.message
    assert caught.value.details["param"] == path


RICH: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "stream": True,
    "system": [text("s", **MARK)],
    "messages": [
        user(text("a"), {"type": "image", "source": {"type": "url", "url": "u"}}),
        model(
            {"type": "thinking", "thinking": "", "signature": "rx1_aGk="},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1]}},
        ),
        user(result("t", [text("r"), {"type": "tool_reference", "tool_name": "f"}]), text("b")),
        {"role": "system", "content": "late"},
    ],
    "tools": [TOOL | {"defer_loading": True}, {"type": "bash_1", "name": "bash"}],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"format": {"type": "json_schema", "schema": {}}},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["x"],
    "temperature": 1,
}


@settings(max_examples=300)
@given(hostile(RICH))
def test_any_json_anywhere_is_a_request_or_a_bad_request(raw: bytes) -> None:
    try:
        request = messages.parse_request(raw)
    except BadRequest:
        return
    assert all(message["role"] for message in request.messages)
    messages.serve(REPLY, request, CALL_ID)
    messages.streamer(request, CALL_ID, "m").live("a", "b")


def test_deep_nesting_is_refused_or_taken() -> None:
    deep = "[" * 900 + "]" * 900
    raw = (
        '{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f",'
        f'"input":{deep}}}]}}]}}'
    )
    try:
        made = messages.parse_request(raw.encode()).messages[0]["tool_calls"][0]["function"]
    except BadRequest:
        made = {"arguments": deep}
    assert made["arguments"] == deep


def test_the_served_message() -> None:
    served = messages.serve(REPLY, ask(), CALL_ID)
    assert served["id"] == "msg_" + CALL_ID
    assert [block["type"] for block in served["content"]] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert served["content"][1]["text"] == "  Reading both. \n"
    assert served["content"][2] == {
        "type": "tool_use",
        "id": OURS,
        "name": "read",
        "input": {"path": "a/b", "n": 1},
    }
    assert served["stop_reason"] == "tool_use"
    assert served["usage"] == {
        "input_tokens": 36,
        "cache_read_input_tokens": 64,
        "cache_creation_input_tokens": 0,
        "output_tokens": 30,
    }
    assert orjson.loads(messages.encode_reply(served)) == served


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_an_echoed_reply_gives_back_what_the_model_wrote(display: str) -> None:
    """Reasoning too, where the client never saw its text."""
    request = ask(thinking={"type": "adaptive", "display": display})
    served = messages.serve(REPLY, request, CALL_ID)
    assert bool(served["content"][0]["thinking"]) is (display == "summarized")
    sent = orjson.loads(messages.encode_reply(served))
    (echoed,) = turns({"role": "assistant", "content": sent["content"]})
    wrote = REPLY["choices"][0]["message"]
    assert echoed["reasoning"] == wrote["reasoning"]
    assert echoed["content"] == wrote["content"]
    assert [call["id"] for call in echoed["tool_calls"]] == [
        call["id"] for call in wrote["tool_calls"]
    ]
    for call, original in zip(echoed["tool_calls"], wrote["tool_calls"], strict=True):
        assert orjson.loads(call["function"]["arguments"]) == orjson.loads(
            original["function"]["arguments"]
        )


def test_dia_02_reasoning_without_a_signature_gets_ours_never_an_empty_one() -> None:
    served = messages.serve(reply(content="x", reasoning="R"), ask(), CALL_ID)
    signature = served["content"][0]["signature"]
    assert signature == "rx1_" + base64.b64encode(b"R").decode()
    plain = messages.serve(reply(content="x"), ask(), CALL_ID)
    assert [block["type"] for block in plain["content"]] == ["text"]
    assert "signature" not in orjson.dumps(plain).decode()


@pytest.mark.parametrize(
    ("finish", "stopped", "calls", "expected"),
    [
        ("stop", None, False, ("end_turn", None)),
        ("stop", "END", False, ("stop_sequence", "END")),
        ("stop", "other", False, ("end_turn", None)),
        ("length", None, False, ("max_tokens", None)),
        ("length", None, True, ("max_tokens", None)),
        ("stop", None, True, ("tool_use", None)),
        ("tool_calls", None, True, ("tool_use", None)),
        ("abort", None, True, (None, None)),
        (None, None, False, (None, None)),
    ],
)
def test_stop_reasons(finish: Any, stopped: Any, calls: bool, expected: Any) -> None:
    made = [{"id": "x", "function": {"name": "f", "arguments": "{}"}}] if calls else None
    told = reply(content="x", tool_calls=made, finish_reason=finish, stop_reason=stopped)
    served = messages.serve(told, ask(stop_sequences=["END"]), CALL_ID)
    assert (served["stop_reason"], served["stop_sequence"]) == expected


def call_with(arguments: Any) -> dict[str, Any]:
    function = {"name": "now", "arguments": arguments}
    told = reply(content=None, tool_calls=[{"id": "x", "function": function}])
    block: dict[str, Any] = messages.serve(told, ask(), CALL_ID)["content"][0]
    return block


def test_tool_08_empty_arguments_are_no_arguments() -> None:
    block = call_with("")
    assert block["input"] == {}
    assert block["input"].written == ""
    assert b'"input":{}' in orjson.dumps(block)


@pytest.mark.parametrize(
    "broken", ['{"a": ', "[1]", "null", '{"a": NaN}', '{"a": 1e999}', "\x00"]
)
def test_arguments_that_are_no_object_stand_whole_under_their_own_name(broken: str) -> None:
    assert call_with(broken)["input"] == {"__unparsed_arguments": broken}


def test_large_whole_numbers_in_arguments_stay_exact() -> None:
    block = call_with('{"n": 123456789012345678901234567890}')
    assert b'{"n":123456789012345678901234567890}' in messages.encode_reply(block)


def test_an_empty_reply_has_no_blocks() -> None:
    served = messages.serve(reply(content=""), ask(), CALL_ID)
    assert served["content"] == []
    assert messages.serve({}, ask(), CALL_ID)["stop_reason"] is None


@settings(max_examples=200)
@given(hostile_replies)
def test_no_reply_breaks_it(told: dict[str, Any]) -> None:
    served = messages.serve(told, ask(), CALL_ID)
    try:
        written = messages.encode_reply(served)
    except EngineMalformed:
        return
    assert orjson.loads(written)["type"] == "message"


@given(replies, st.sampled_from(["summarized", "omitted"]))
def test_every_reply_survives_the_way_out_and_back(told: dict[str, Any], display: str) -> None:
    served = messages.serve(
        told, ask(thinking={"type": "enabled", "display": display}), CALL_ID
    )
    sent = orjson.loads(messages.encode_reply(served))["content"]
    (echoed,) = turns({"role": "assistant", "content": sent})
    wrote = told["choices"][0]["message"]
    assert echoed["content"] == (wrote["content"] or "")
    assert echoed.get("reasoning", "") == (wrote["reasoning"] or "")
    assert [call["id"] for call in echoed.get("tool_calls", [])] == [
        call["id"] for call in wrote["tool_calls"]
    ]


@pytest.mark.parametrize(
    ("status", "code", "expected", "kind"),
    [
        (400, "bad_request", 400, "invalid_request_error"),
        (401, "unknown_key", 401, "authentication_error"),
        (403, "access_denied", 403, "permission_error"),
        (404, "not_found", 404, "not_found_error"),
        (413, "body_too_large", 413, "request_too_large"),
        (429, "capacity", 429, "rate_limit_error"),
        (502, "engine_unavailable", 502, "api_error"),
        (503, "store_failed", 503, "overloaded_error"),
        (400, "rollout_closed", 403, "permission_error"),
        (429, "budget_exhausted", 403, "permission_error"),
    ],
)
def test_refusals(status: int, code: str, expected: int, kind: str) -> None:
    refusal = messages.refusal(WireError(status, code, "words"))
    assert refusal.status == expected
    told = orjson.loads(refusal.body)
    assert told["type"] == "error"
    assert told["error"] == {"type": kind, "message": "words"}


def test_a_prompt_that_is_too_long_is_worded_so_that_agents_shorten_it() -> None:
    error = WireError(413, CONTEXT_OVERFLOW, "x", prompt_tokens=9000, limit_tokens=8192)
    refusal = messages.refusal(error)
    assert refusal.status == 400
    told = orjson.loads(refusal.body)["error"]
    assert told["type"] == "invalid_request_error"
    assert told["message"] == "prompt is too long: 9000 tokens > 8192 maximum"
    bare = orjson.loads(messages.refusal(WireError(400, CONTEXT_OVERFLOW, "x")).body)
    assert bare["error"]["message"] == "prompt is too long"


def agent_calls(harness: str) -> list[tuple[NeutralRequest, Any]]:
    """Requests with tools, each with the reply as its own echo would be read."""
    found = []
    for call in recorded(harness):
        if not call["path"].split("?")[0].endswith("/messages") or "tools" not in call["body"]:
            continue
        request = messages.parse_request(orjson.dumps(call["body"]))
        body = call["response"]["body"]
        merged = messages.merge_stream(events_of(body.encode()))
        (read,) = turns({"role": "assistant", "content": merged["content"]})
        found.append((request, read))
    return found


def what_stays(message: dict[str, Any]) -> dict[str, Any]:
    """A message without arguments: clients re-order them, and their paths were masked."""
    calls = [(call["id"], call["function"]["name"]) for call in message.get("tool_calls", [])]
    return message | {"tool_calls": calls}


@pytest.mark.parametrize(
    "harness", ["pi-anthropic", "opencode-anthropic", "sdk-anthropic-stream"]
)
def test_each_recorded_call_extends_the_one_before(harness: str) -> None:
    calls = agent_calls(harness)
    assert len(calls) == 5
    for (before, read), (after, _) in pairwise(calls):
        expected = [what_stays(message) for message in (*before.messages, read)]
        got = [what_stays(message) for message in after.messages]
        assert got[: len(expected)] == expected
        assert {message["role"] for message in after.messages[len(expected) :]} == {"tool"}
        assert after.tools == before.tools
        assert not after.notes

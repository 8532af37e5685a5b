"""Anthropic Messages: requests, and recorded traffic."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from explorer.errors import BadRequest
from explorer.wire import messages
from explorer.wire.neutral import NeutralRequest
from explorer.wire.protocol import Wire
from tests.wire.messaging import ask, model, result, text, turns, user
from tests.wire.replies import (
    CALL_ID,
    REPLY,
    events_of,
    hostile,
    recorded,
)

WIRE: Wire = messages
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

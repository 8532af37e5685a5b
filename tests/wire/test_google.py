"""Google generateContent: requests, and recorded traffic."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from explorer.errors import BadRequest
from explorer.wire import google
from explorer.wire.protocol import Target, Wire
from tests.wire.googling import EVENTS, GO, answer, ask, call, turns
from tests.wire.replies import (
    CALL_ID,
    REPLY,
    events_of,
    hostile,
    recorded,
)

WIRE: Wire = google


def test_the_address_says_model_and_form() -> None:
    request = ask(Target(model="models/policy", stream=True, sse=False))
    assert request.model == "policy"
    assert request.stream is True
    assert ask(Target(model="policy")).stream is False
    assert ask(Target(model="policy"), stream=True).stream is False


def test_camel_and_snake_case_are_the_same() -> None:
    camel = ask(
        systemInstruction={"parts": [{"text": "s"}]},
        contents=[
            {
                "role": "user",
                "parts": [{"inlineData": {"mimeType": "image/png", "data": "-_"}}],
            },
            {"role": "model", "parts": [call("f", {}, id="a")]},
            {"role": "user", "parts": [answer("f", {"output": "x"}, id="a")]},
        ],
        tools=[{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"a": 1}}]}],
        toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        generationConfig={"maxOutputTokens": 9, "thinkingConfig": {"thinkingBudget": 0}},
    )
    snake = ask(
        system_instruction={"parts": [{"text": "s"}]},
        contents=[
            {
                "role": "user",
                "parts": [{"inline_data": {"mime_type": "image/png", "data": "-_"}}],
            },
            {
                "role": "model",
                "parts": [{"function_call": call("f", {}, id="a")["functionCall"]}],
            },
            {
                "role": "user",
                "parts": [
                    {
                        "function_response": answer("f", {"output": "x"}, id="a")[
                            "functionResponse"
                        ]
                    }
                ],
            },
        ],
        tools=[{"function_declarations": [{"name": "f", "parameters_json_schema": {"a": 1}}]}],
        tool_config={
            "function_calling_config": {"mode": "ANY", "allowed_function_names": ["f"]}
        },
        generation_config={"max_output_tokens": 9, "thinking_config": {"thinking_budget": 0}},
    )
    assert snake.body == camel.body
    assert camel.body == {
        "model": "policy",
        "messages": [
            {"role": "system", "content": "s"},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,+/"}}
                ],
            },
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "f", "arguments": "{}"},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "x"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 9,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_results_without_ids_find_their_calls_by_name_and_order() -> None:
    model = {
        "role": "model",
        "parts": [call("f", {"n": 1}), call("g", {}), call("f", {"n": 2})],
    }
    results = [
        answer("g", {"result": "G"}),
        answer("f", {"output": "1"}),
        answer("f", {"x": 2}),
    ]
    made = turns(GO, model, {"role": "function", "parts": [*results, {"text": "and?"}]})
    ids = [entry["id"] for entry in made[1]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [(message.get("tool_call_id"), message["content"]) for message in made[2:]] == [
        (ids[1], "G"),
        (ids[0], "1"),
        (ids[2], '{"x":2}'),
        (None, "and?"),
    ]
    renamed = turns({"role": "model", "parts": [call("f", {})]}, {"parts": [answer("h", {})]})
    assert renamed[1]["tool_call_id"] == renamed[0]["tool_calls"][0]["id"]
    orphan = ask(contents=[{"parts": [answer("f", "text")]}])
    assert orphan.messages[0]["content"] == "text"
    assert [note.code for note in orphan.notes] == ["tool_result_unpaired"]


def test_a_model_turn_is_one_message() -> None:
    parts = [
        {"text": "hm", "thought": True},
        {"text": "a "},
        {"text": "b"},
        call("f", {"z": 1, "a": "é"}, id="i"),
    ]
    (made,) = turns({"role": "model", "parts": parts})
    assert made["content"] == "a b"
    assert made["reasoning"] == "hm"
    assert made["tool_calls"][0]["function"]["arguments"] == '{"z":1,"a":"é"}'


def test_schemas_become_json_schema() -> None:
    parameters = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "nullable": True, "enum": ["A"]},
            "list": {"type": "ARRAY", "items": {"type": "INTEGER"}, "min_items": "1"},
            "any": {"any_of": [{"type": "NUMBER"}, {"type": "BOOLEAN"}]},
        },
        "propertyOrdering": ["type"],
        "required": ["type"],
    }
    request = ask(
        tools=[
            {
                "functionDeclarations": [
                    {"name": "f", "description": "d", "parameters": parameters}
                ]
            },
            {"googleSearch": {}},
        ]
    )
    assert request.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "enum": ["A"]},
            "list": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "any": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
        },
        "required": ["type"],
    }
    assert [(note.code, note.detail) for note in request.notes] == [
        ("tool_dropped", "googleSearch")
    ]


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"mode": "AUTO"}, "auto"),
        ({"mode": "any"}, "required"),
        ({"mode": "NONE"}, "none"),
        ({"mode": "VALIDATED"}, "auto"),
        ({"mode": "ANY", "allowedFunctionNames": ["f", "g"]}, "required"),
    ],
)
def test_calling_modes(config: dict[str, Any], choice: str) -> None:
    tools = [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}]
    request = ask(tools=tools, toolConfig={"functionCallingConfig": config})
    assert request.body["tool_choice"] == choice
    assert "tool_choice" not in ask(toolConfig={"functionCallingConfig": config}).body


def test_generation_parameters() -> None:
    request = ask(
        generationConfig={
            "temperature": 1,
            "topP": 0.95,
            "topK": 64.0,
            "stopSequences": ["END"],
            "seed": 7,
            "presencePenalty": 0.1,
            "frequencyPenalty": 0.2,
            "candidateCount": 1,
            "responseMimeType": "application/json",
            "responseSchema": {"type": "STRING"},
            "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192},
        },
        safetySettings=[{"category": "x"}],
        cachedContent="c",
    )
    body = dict(request.body)
    del body["messages"]
    assert body == {
        "model": "policy",
        "temperature": 1,
        "top_p": 0.95,
        "top_k": 64,
        "stop": ["END"],
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": {"type": "string"}},
        },
        "chat_template_kwargs": {"enable_thinking": True},
    }
    plain = ask(generationConfig={"responseMimeType": "application/json"})
    assert plain.body["response_format"] == {"type": "json_object"}


def test_counting_may_wrap_a_request() -> None:
    inner = {"model": "models/m", "contents": [GO], "systemInstruction": "be brief"}
    raw = orjson.dumps({"generateContentRequest": inner})
    request = google.parse_request(raw, Target(model="m"))
    assert [message["content"] for message in request.messages] == ["be brief", "go"]
    assert orjson.loads(google.count_reply(5)) == {"totalTokens": 5}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [7]}, "contents[0]"),
        ({"contents": [{"role": "wizard", "parts": []}]}, "contents[0].role"),
        ({"contents": [{"parts": [{"text": 5}]}]}, "contents[0].parts[0].text"),
        (
            {"contents": [{"role": "model", "parts": [{"functionCall": {}}]}]},
            "contents[0].parts[0].functionCall.name",
        ),
        ({"generationConfig": {"candidateCount": 2}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"topK": "x"}}, "generationConfig.topK"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
    ],
)
def test_bad_requests_name_the_place(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ask(**fields)
    assert f"`{path}`" in caught.value.message
    assert caught.value.details["param"] == path


RICH: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "s"}]},
    "contents": [
        {
            "role": "user",
            "parts": [{"text": "a"}, {"inlineData": {"mimeType": "text/x", "data": "YQ=="}}],
        },
        {
            "role": "model",
            "parts": [{"text": "t", "thought": True}, call("f", {"a": [1]}, id="i")],
        },
        {
            "role": "user",
            "parts": [answer("f", {"output": "o"}, id="i", parts=[{"text": "p"}])],
        },
        {"role": "user", "parts": [{"fileData": {"mimeType": "image/png", "fileUri": "u"}}]},
    ],
    "tools": [
        {
            "functionDeclarations": [
                {
                    "name": "f",
                    "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
                }
            ]
        }
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
    "generationConfig": {
        "topK": 1,
        "stopSequences": ["x"],
        "responseSchema": {"type": "STRING", "anyOf": [{"type": "NUMBER"}]},
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 1},
    },
}


@settings(max_examples=300)
@given(hostile(RICH))
def test_any_json_anywhere_is_a_request_or_a_bad_request(raw: bytes) -> None:
    try:
        request = google.parse_request(raw, EVENTS)
    except BadRequest:
        return
    assert all(message["role"] for message in request.messages)
    google.serve(REPLY, request, CALL_ID)
    google.streamer(request, CALL_ID, "m").live("a", "b")


def test_a_deep_schema_is_refused() -> None:
    deep = '{"items":' * 300 + "{}" + "}" * 300
    raw = '{"contents":"x","tools":[{"functionDeclarations":[{"name":"f","parameters":%s}]}]}'
    with pytest.raises(BadRequest, match="nested too deeply"):
        google.parse_request((raw % deep).encode(), EVENTS)


def what_stays(message: dict[str, Any]) -> dict[str, Any]:
    """Without arguments, whose paths were masked, and reasoning, which this client drops
    unless the signature is ours."""
    calls = [
        (entry["id"], entry["function"]["name"]) for entry in message.get("tool_calls", [])
    ]
    kept = {key: value for key, value in message.items() if key != "reasoning"}
    return kept | {"tool_calls": calls}


def test_each_recorded_call_extends_the_one_before() -> None:
    calls = []
    for made in recorded("gemini"):
        request = google.parse_request(orjson.dumps(made["body"]), EVENTS)
        merged = google.merge_stream(events_of(made["response"]["body"].encode()))
        (read,) = turns(merged["candidates"][0]["content"])
        calls.append((request, read))
    assert len(calls) == 5
    for (before, read), (after, _) in pairwise(calls):
        expected = [what_stays(message) for message in (*before.messages, read)]
        got = [what_stays(message) for message in after.messages]
        assert got[: len(expected)] == expected
        assert {message["role"] for message in after.messages[len(expected) :]} == {"tool"}
        assert after.tools == before.tools
        assert not after.notes

"""Responses requests become chat messages: turns, tools, references, and what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.errors import BadRequest
from explorer.records import Dialect
from explorer.wire import ids, responses
from explorer.wire.echo import sign
from explorer.wire.neutral import Earlier, NeutralRequest, ToolOrigin

A = "01a22881-d7a4-7cf1-a4ef-b90de0be96cf"
B = "01a22881-d7a4-7cf1-a4ef-000000000002"
USER = {"role": "user", "content": "x"}
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


def parse(earlier: dict[str, Earlier] | None = None, **body: Any) -> NeutralRequest:
    body = {"model": "m", "input": "x"} | body
    return responses.parse_request(orjson.dumps(body), earlier=earlier)


def messages(*items: Any, **body: Any) -> list[Any]:
    return parse(input=list(items), **body).messages


def said(role: str, text: str, **more: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    part = {"type": kind, "text": text}
    return {"type": "message", "role": role, "content": [part]} | more


def thought(text: str, **more: Any) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "summary": summary} | more


def call(tool_id: str, name: str = "f", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    made = {"type": "function_call", "call_id": tool_id, "name": name, "arguments": arguments}
    return made | more


def result(tool_id: str, output: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": tool_id, "output": output}


def called(tool_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": tool_id, "type": "function", "function": function}


# Messages -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "hello",
        [{"role": "user", "content": "hello"}],
        [{"type": "message", "role": "user", "content": "hello"}],
        [said("user", "hello")],
        [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        [{"type": None, "role": "user", "content": ["hello"]}],
    ],
)
def test_one_text_reads_the_same_however_it_is_written(value: Any) -> None:
    assert parse(input=value).messages == [{"role": "user", "content": "hello"}]


def test_instructions_lead_and_developers_speak_as_the_system() -> None:
    found = messages(
        said("developer", "d"), said("system", "s"), said("user", "u"), instructions="i"
    )
    assert [(m["role"], m["content"]) for m in found] == [
        ("system", "i"),
        ("system", "d"),
        ("system", "s"),
        ("user", "u"),
    ]


def test_parts_are_kept_and_what_no_engine_reads_is_noted() -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,xx", "detail": "low"},
        {"type": "input_file", "file_id": "f1"},
        {"type": "input_image", "file_id": "f2"},
        {"type": "refusal", "refusal": "no"},
    ]
    request = parse(input=[{"role": "user", "content": parts}])
    assert request.messages == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {
                    "type": "image_url",
                    "image_url": {"url": "data:image/png;base64,xx", "detail": "low"},
                },
                {"type": "text", "text": "no"},
            ],
        }
    ]
    assert [(note.code, note.detail) for note in request.notes] == [
        ("content_part_dropped", "input_file"),
        ("content_part_dropped", "input_image"),
    ]


def test_unknown_items_are_left_out_with_a_note_told_once() -> None:
    items = [{"type": "web_search_call", "id": "ws"}] * 3 + [{"type": 5}, {"type": "message"}]
    request = parse(input=[USER, *items[:4]])
    assert request.messages == [USER]
    assert [note.detail for note in request.notes] == ["web_search_call", "of type int"]
    with pytest.raises(BadRequest, match="`role`"):
        parse(input=items)


# Turns ----------------------------------------------------------------------------------


def test_one_turn_stays_one_message() -> None:
    found = messages(
        USER, thought("why"), said("assistant", "so"), call("c1"), call("c2", "g", "[]"),
        result("c1"), result("c2"),
    )  # fmt: skip
    assert found == [
        USER,
        {
            "role": "assistant",
            "content": "so",
            "reasoning": "why",
            "tool_calls": [called("c1"), called("c2", "g", "[]")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "tool", "tool_call_id": "c2", "content": "done"},
    ]


@pytest.mark.parametrize(
    ("run", "turns"),
    [
        ([thought("a"), thought("b")], 2),
        ([thought("a"), said("assistant", "b")], 1),
        ([said("assistant", "a"), said("assistant", "b")], 2),
        ([said("assistant", "a"), thought("b")], 2),
        ([call("1"), call("2")], 1),
        ([call("1"), thought("b"), call("2")], 2),
        ([call("1"), said("assistant", "b")], 2),
        ([thought("a"), call("1"), said("assistant", "b"), call("2")], 2),
        ([call("1"), result("1"), call("2"), result("2")], 2),
        ([said("assistant", "a", id=f"msg_{A}"), call(ids.tool_call_id(A, 0))], 1),
        ([said("assistant", "a", id=f"msg_{A}"), call(ids.tool_call_id(B, 0))], 2),
        ([call(ids.tool_call_id(A, 0)), call(ids.tool_call_id(A, 1))], 1),
        ([call(ids.tool_call_id(A, 0)), call(ids.tool_call_id(B, 0))], 2),
        ([call("1", id=f"fc_{A}_0"), call("2", id=f"fc_{B}_0")], 2),
        ([thought("a", id=f"rs_{A}"), said("assistant", "b", id=f"msg_{B}")], 2),
    ],
)
def test_where_a_turn_ends(run: list[Any], turns: int) -> None:
    found = messages(USER, *run)
    assert sum(message["role"] == "assistant" for message in found) == turns


def test_calls_of_one_reply_with_results_between_them_are_one_turn() -> None:
    first, second = ids.tool_call_id(A, 0), ids.tool_call_id(A, 1)
    found = messages(
        USER, thought("t"), call(first), result(first, "1"), call(second), result(second, "2")
    )
    assert [m["role"] for m in found] == ["user", "assistant", "tool", "tool"]
    assert found[1]["tool_calls"] == [called(first), called(second)]
    # Another user turn in between, and it is no longer the same one.
    found = messages(call(first), result(first), USER, call(second), result(second))
    assert [m["role"] for m in found] == ["assistant", "tool", "user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (thought("sum", content=[{"type": "reasoning_text", "text": "all"}]), "all"),
        (thought("sum", encrypted_content=sign("sealed ✓ \n")), "sealed ✓ \n"),
        (thought("sum", encrypted_content="rx1_***"), "sum"),
        (thought("sum", encrypted_content="gAAAA-of-another", content=None), "sum"),
    ],
)
def test_reasoning_is_read_from_the_most_exact_place(item: dict[str, Any], text: str) -> None:
    assert messages(USER, item)[1] == {"role": "assistant", "content": None, "reasoning": text}


def test_reasoning_that_nobody_can_read_is_noted_and_no_turn() -> None:
    request = parse(input=[USER, {"type": "reasoning", "id": "rs_x", "summary": []}])
    assert request.messages == [USER]
    assert [note.code for note in request.notes] == ["reasoning_unreadable"]


def test_results_may_be_text_or_parts() -> None:
    image = {"type": "input_image", "image_url": "u"}
    found = messages(
        USER,
        call("a"),
        result("a", [{"type": "input_text", "text": "t"}]),
        result("b", [image]),
        result("c", {"odd": True}),
        result("d", None),
    )
    assert [m["content"] for m in found if m["role"] == "tool"] == [
        "t",
        [{"type": "image_url", "image_url": {"url": "u"}}],
        '{"odd": true}',
        "",
    ]


# Tools ----------------------------------------------------------------------------------

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CUSTOM = {
    "type": "custom",
    "name": "patch",
    "description": "Edits.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
}
SPACE = {"type": "namespace", "name": "agents", "tools": [FUNCTION | {"name": "spawn"}]}


def test_tools_become_functions_that_lead_back_to_their_names() -> None:
    strict = FUNCTION | {"name": "s", "strict": True, "description": "d"}
    request = parse(
        tools=[FUNCTION | {"strict": False}, strict, CUSTOM, SPACE, {"type": "local_shell"}]
    )
    functions = [tool["function"] for tool in request.tools]
    assert [f["name"] for f in functions] == ["f", "s", "patch", "agents__spawn", "local_shell"]
    assert functions[0] == {"name": "f", "parameters": {"type": "object"}}
    assert functions[1]["strict"] is True
    assert "start: X" in functions[2]["description"]
    assert list(functions[2]["parameters"]["properties"]) == ["input"]
    assert request.tools_by_name == {
        "patch": ToolOrigin("patch", "custom"),
        "agents__spawn": ToolOrigin("spawn", "function", "agents"),
        "local_shell": ToolOrigin("local_shell", "local_shell"),
    }


def test_hosted_tools_are_left_out_with_a_note() -> None:
    request = parse(tools=[{"type": "web_search"}, {"type": 3}, FUNCTION, FUNCTION])
    assert len(request.tools) == 1
    assert [n.detail for n in request.notes] == [
        "web_search",
        "of type int",
        "f is listed twice",
    ]
    assert "tools" not in parse(tools=[{"type": "web_search"}], tool_choice="required").body


def test_names_that_meet_stay_apart() -> None:
    request = parse(tools=[FUNCTION | {"name": "agents__spawn"}, SPACE])
    names = [tool["function"]["name"] for tool in request.tools]
    assert names == ["agents__spawn", "agents__spawn_"]
    history = [USER, call("c", "spawn", namespace="agents")]
    found = parse(input=history, tools=[FUNCTION | {"name": "agents__spawn"}, SPACE])
    assert found.messages[1]["tool_calls"] == [called("c", "agents__spawn_")]


@pytest.mark.parametrize("tools", [[SPACE], []])
def test_history_names_a_tool_alike_with_and_without_the_list(tools: list[Any]) -> None:
    found = messages(USER, call("c", "spawn", namespace="agents"), tools=tools)
    assert found[1]["tool_calls"] == [called("c", "agents__spawn")]


def test_a_call_that_lost_its_namespace_finds_it() -> None:
    found = messages(USER, call("c", "spawn"), tools=[SPACE])
    assert found[1]["tool_calls"] == [called("c", "agents__spawn")]


def test_custom_and_shell_calls_in_the_history() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** é\n"}
    action = {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5}
    shell = {"type": "local_shell_call", "call_id": "s", "action": action}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}
    found = messages(USER, custom, shell, output, result("s"))
    assert found[1]["tool_calls"] == [
        called("c", "patch", '{"input": "*** é\\n"}'),
        called("s", "local_shell", '{"command": ["ls"], "timeout_ms": 5}'),
    ]
    assert found[2] == {"role": "tool", "tool_call_id": "c", "content": "ok"}


def test_a_shell_result_that_names_the_item_is_paired_with_its_call() -> None:
    output = {"type": "local_shell_call_output", "id": f"fc_{A}_2", "output": "ok"}
    found = messages(USER, call(ids.tool_call_id(A, 2)), output)
    assert found[2]["tool_call_id"] == ids.tool_call_id(A, 2)


@pytest.mark.parametrize(
    ("choice", "neutral"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, "f"),
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, "agents__spawn"),
        ({"type": "web_search"}, None),
        ({"type": "function", "name": "unknown"}, None),
    ],
)
def test_tool_choice(choice: Any, neutral: str | None) -> None:
    found = parse(tools=[FUNCTION, CUSTOM, SPACE], tool_choice=choice).body.get("tool_choice")
    if isinstance(choice, dict) and neutral is not None:
        assert found == {"type": "function", "function": {"name": neutral}}
    else:
        assert found == neutral


def test_allowed_tools_leave_only_those() -> None:
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}, 5],
    }
    request = parse(tools=[FUNCTION, CUSTOM], tool_choice=allowed)
    assert [tool["function"]["name"] for tool in request.tools] == ["f"]
    assert request.body["tool_choice"] == "required"
    assert [note.code for note in request.notes] == ["tools_left_out"]


# Settings -------------------------------------------------------------------------------


def test_settings_reach_the_engine_under_its_names() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    request = parse(
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": schema, "verbosity": "low"},
        truncation="auto",
        service_tier="flex",
        store=True,
        stream=True,
        top_k=5,
        prompt_cache_key="conv-1",
        metadata={"session_id": "s"},
    )
    assert request.dialect is Dialect.RESPONSES
    assert request.stream
    assert request.body == {
        "model": "m",
        "messages": [USER],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
    }
    assert request.claims == {"prompt_cache_key": "conv-1", "session_id": "s"}
    assert [note.detail for note in request.notes] == ["text.verbosity", "top_k"]
    assert "response_format" not in parse(text={"format": {"type": "text"}}).body


def test_logprobs_are_asked_for_only_by_name() -> None:
    plain = parse(top_logprobs=3)
    assert not plain.wants.logprobs
    assert "top_logprobs" not in plain.body
    wanted = parse(include=["message.output_text.logprobs"], top_logprobs=3)
    assert wanted.wants.logprobs
    assert wanted.body["top_logprobs"] == 3


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"background": True}, "background", "not supported"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "instructions"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"input": []}, "input", "must hold a message"),
        ({"input": 5}, "input", "array of items"),
        ({"input": [5]}, "input", "must be an object"),
        ({"input": [{"role": "user", "content": 5}]}, "input", "`content`"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input", "`role`"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input", "call_id"),
        ({"input": [{"type": "function_call", "call_id": "f"}]}, "input", "`name`"),
        ({"instructions": 5}, "instructions", "text"),
        ({"tools": {}}, "tools", "array"),
        ({"tool_choice": 5}, "tool_choice", "object"),
        ({"max_output_tokens": "9"}, "max_output_tokens", "whole number"),
        ({"temperature": "0"}, "temperature", "number"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format", "json_schema"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "'resp_x' not found"),
        ({"previous_response_id": f"msg_{A}"}, "previous_response_id", "not found"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input", "'x' not found"),
    ],
)
def test_refusals_say_what_to_change(body: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as error:
        parse(**body)
    assert error.value.details["param"] == param


# Earlier replies ------------------------------------------------------------------------

REPLY = {
    "role": "assistant",
    "content": "so",
    "reasoning": "why",
    "refusal": None,
    "tool_calls": [called(ids.tool_call_id(A, 0)), called(ids.tool_call_id(A, 1), "g")],
}
EARLIER = {A: Earlier(({"role": "user", "content": "before"},), REPLY)}
TURN = {key: REPLY[key] for key in ("role", "content", "reasoning", "tool_calls")}


def test_an_earlier_reply_is_recalled_and_goes_before() -> None:
    body: dict[str, Any] = {
        "previous_response_id": f"resp_{A}",
        "instructions": "now",
        "input": [result(ids.tool_call_id(A, 0))],
    }
    assert parse(**body).recall == (A,)
    assert parse(previous_response_id=f"resp_{A}", input=None).recall == (A,)
    found = parse(EARLIER, **body)
    assert found.recall == ()
    assert [m["role"] for m in found.messages] == ["system", "user", "assistant", "tool"]
    assert found.messages[0]["content"] == "now"
    assert found.messages[2] == TURN
    with pytest.raises(BadRequest, match=r"Previous response with id 'resp_01a2.*' not found"):
        parse({}, **body)


def test_items_by_reference_build_the_same_turn_as_items_in_full() -> None:
    def reference(item_id: str) -> dict[str, str]:
        return {"type": "item_reference", "id": item_id}

    first, second = ids.tool_call_id(A, 0), ids.tool_call_id(A, 1)
    parts = [f"rs_{A}", f"msg_{A}", f"fc_{A}_0", f"fc_{A}_1"]
    referred = [USER, *map(reference, parts), result(first), result(second)]
    assert parse(input=referred).recall == (A,)
    in_full = [
        USER,
        thought("why", id=f"rs_{A}"),
        said("assistant", "so", id=f"msg_{A}"),
        call(first),
        call(second, "g"),
        result(first),
        result(second),
    ]
    by_reference = parse(EARLIER, input=referred)
    assert by_reference.recall == ()
    assert by_reference.messages == messages(*in_full)
    # The type of a reference may be missing.
    short = parse(EARLIER, input=[USER, {"id": f"rs_{A}"}])
    assert short.messages[1]["reasoning"] == "why"
    for missing in (f"fc_{A}_7", f"fc_{A}", f"resp_{A}", f"msg_{B}"):
        with pytest.raises(BadRequest, match="not found"):
            parse(EARLIER, input=[USER, reference(missing)])


def test_an_echo_of_a_reply_is_the_turn_that_was_recalled() -> None:
    request = parse(include=["reasoning.encrypted_content"])
    choice = {"index": 0, "message": REPLY, "finish_reason": "tool_calls"}
    served = responses.serve({"choices": [choice]}, request, A)
    echoed = messages(USER, *served["output"])
    recalled = parse(EARLIER, previous_response_id=f"resp_{A}")
    assert echoed[1] == recalled.messages[1] == TURN


# Hostile input --------------------------------------------------------------------------

FULL: dict[str, Any] = {
    "model": "m",
    "instructions": "i",
    "input": [
        said("user", "u"),
        thought("t", id=f"rs_{A}", encrypted_content=sign("t")),
        said("assistant", "a", id=f"msg_{A}"),
        call(ids.tool_call_id(A, 0), id=f"fc_{A}_0", namespace="agents"),
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"},
        {"type": "local_shell_call", "call_id": "s", "action": {"command": ["ls"]}},
        result("c", [{"type": "input_text", "text": "t"}]),
        {"type": "item_reference", "id": f"msg_{A}"},
    ],
    "tools": [FUNCTION, CUSTOM, SPACE, {"type": "local_shell"}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION]},
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    "reasoning": {"effort": "low"},
    "metadata": {"a": "b"},
    "previous_response_id": f"resp_{A}",
    "max_output_tokens": 5,
}


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, ...]] = [here] if here else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in pairs:
        if isinstance(child, dict | list):
            inner += paths(child, (*here, key))
        else:
            inner.append((*here, key))
    return inner


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(paths(FULL)), json_values, st.sampled_from([None, EARLIER, {}]))
def test_any_value_anywhere_is_understood_or_refused(
    path: tuple[Any, ...], value: Any, earlier: dict[str, Earlier] | None
) -> None:
    body = orjson.loads(orjson.dumps(FULL))
    place = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    try:
        raw = orjson.dumps(body)
    except TypeError:
        return
    try:
        request = responses.parse_request(raw, earlier=earlier)
    except BadRequest:
        return
    assert isinstance(request.messages, list)
    for message in request.messages:
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str | list | None)
    served = responses.serve({"choices": []}, request, A)
    stream = responses.streamer(request, A, "m").finish(served)
    assert stream.endswith(b"\n\n")


@pytest.mark.parametrize("depth", [200, 500, 1000])
def test_deep_nesting_is_understood_or_refused_in_words(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    item = f'{{"type":"function_call","call_id":"c","name":"f","arguments":{deep}}}'
    raw = f'{{"input":[{item}],"metadata":{{"x":{deep}}}}}'.encode()
    try:
        request = responses.parse_request(raw)
    except BadRequest as error:
        told = error.message
    else:
        told = request.messages[0]["tool_calls"][0]["function"]["arguments"]
    assert "nested too deeply" in told or told == deep or "JSON" in told

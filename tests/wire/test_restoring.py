"""When an echoed object may stand for the text that it was parsed from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.wire.restoring import sampled_arguments, with_sampled_arguments

ID = "call_01a2290000007000800000000000000a_0"


def turn(arguments: Any, name: str = ID) -> dict[str, Any]:
    call = {"id": name, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def restored(arguments: Any, sampled: str, name: str = ID) -> Any:
    (message,) = with_sampled_arguments([turn(arguments, name)], {ID: sampled})
    return message["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    ("echoed", "sampled"),
    [
        ('{"a":1,"b":"é"}', '{ "b" : "\\u00e9" , "a":1 }'),
        ('{"a":[1,{"x":null}]}', '{"a": [1, {"x": null}]}'),
        ("{}", "{ }"),
    ],
)
def test_the_same_object_gets_the_sampled_text_back(echoed: str, sampled: str) -> None:
    assert restored(echoed, sampled) == sampled


@pytest.mark.parametrize(
    ("echoed", "sampled"),
    [
        ('{"a":1,"replace_all":false}', '{"a": 1}'),  # a default was added
        ('{"a":1}', '{"a": true}'),
        ('{"a":1}', '{"a": 1.0}'),
        ('{"a":"1"}', '{"a": 1}'),
        ('{"a":1}', '{"a": 1'),  # what was sampled is no JSON
        ("{", "{"),
        ({"a": 1}, '{"a": 1}'),
        (None, "null"),
        (7, "7"),
    ],
)
def test_anything_else_is_written_as_it_came(echoed: Any, sampled: str) -> None:
    assert restored(echoed, sampled) == echoed


def test_an_id_that_is_not_known_changes_nothing() -> None:
    assert restored('{"a":1}', '{"a": 1}', name="toolu_other") == '{"a":1}'


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_what_goes_to_the_engine_always_says_what_was_echoed(value: dict[str, Any]) -> None:
    echoed = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    sampled = json.dumps(value, indent=1)
    assert json.loads(restored(echoed, sampled)) == value


@given(VALUES)
def test_hostile_messages_pass_through(value: Any) -> None:
    for message in (value, {"tool_calls": value}, turn(value), {"tool_calls": [value]}):
        with_sampled_arguments([message], {ID: "{}"})
        sampled_arguments({"choices": [{"message": message}, value]})
    assert sampled_arguments({"choices": [{"message": turn("{ }")}]}) == {ID: "{ }"}

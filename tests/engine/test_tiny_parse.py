"""Text to reasoning, content and calls, with vLLM's quirks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.engine.tiny.parse import parse_message

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_reasoning_and_content() -> None:
    parsed = parse_message("<think>\nwhy\n</think>\n\nbecause", tools=True)
    assert (parsed.reasoning, parsed.content) == ("\nwhy\n", "\n\nbecause")
    assert parsed.tool_calls == ()


def test_text_without_a_think_block_is_all_reasoning() -> None:
    parsed = parse_message("Hello!", tools=False)
    assert (parsed.reasoning, parsed.content) == ("Hello!", None)


def test_unfinished_thinking_is_all_reasoning() -> None:
    parsed = parse_message("<think>\nI nee", tools=True)
    assert (parsed.reasoning, parsed.content) == ("\nI nee", None)


def test_call_takes_blank_content_away() -> None:
    parsed = parse_message(f"<think>\nx\n</think>\n\n{CALL}", tools=True)
    assert parsed.content is None
    [call] = parsed.tool_calls
    assert (call.name, call.arguments) == ("f", '{"a": 1}')
    assert call.call_id.startswith("chatcmpl-tool-")


def test_words_in_front_of_a_call_stay() -> None:
    parsed = parse_message(f"</think>I call.\n{CALL}{CALL}", tools=True)
    assert parsed.content == "I call.\n"
    assert len(parsed.tool_calls) == 2
    assert len({call.call_id for call in parsed.tool_calls}) == 2


@pytest.mark.parametrize(
    "broken",
    [
        '<tool_call>\n{"name": "f", "argum',
        '<tool_call>\n{"name": "f"}\n</tool_call>',
        "<tool_call>\n[1, 2]\n</tool_call>",
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        "<tool_call>",
        CALL + "<tool_call>{</tool_call>",
    ],
)
def test_a_broken_call_stays_as_text(broken: str) -> None:
    parsed = parse_message("</think>" + broken, tools=True)
    assert parsed.tool_calls == ()
    assert parsed.content == broken


def test_calls_are_text_when_no_tools_were_offered() -> None:
    parsed = parse_message("</think>" + CALL, tools=False)
    assert (parsed.content, parsed.tool_calls) == (CALL, ())


def test_an_unclosed_but_whole_call_counts() -> None:
    open_call = CALL.removesuffix("\n</tool_call>")
    assert parse_message("</think>" + open_call, tools=True).tool_calls


@given(st.text(alphabet='<>/{}":,abtoolcallthink_ \n', max_size=80), st.booleans())
def test_any_text_is_split_without_an_error(text: str, tools: bool) -> None:
    parsed = parse_message(text, tools=tools)
    for call in parsed.tool_calls:
        json.loads(call.arguments)

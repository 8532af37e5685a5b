"""The shipped tokenizer and template: bytes, prefixes and what harnesses send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from explorer.engine.tiny.parse import parse_message
from explorer.engine.tiny.runtime import PromptMaker
from explorer.engine.tiny.template import ChatTemplate
from explorer.engine.tiny.weights import SHIPPED
from explorer.errors import BadRequest, ConfigurationError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "parameters": {"type": "object", "properties": {"a": {}, "b": {}, "op": {}}},
        },
    }
]
ASK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 47 + 38?"},
]
CALL = (
    '<think>\nI need 47 + 38, so I call calculator.\n</think>\n\n<tool_call>\n{"name": '
    '"calculator", "arguments": {"a": 47, "b": 38, "op": "add"}}\n</tool_call><|im_end|>'
)
FINAL = "<think>\nThe tool says 85.\n</think>\n\nThe answer is 85.<|im_end|>"


@pytest.fixture(scope="module")
def prompts() -> PromptMaker:
    return PromptMaker(SHIPPED)


def echo(text: str, key: str = "reasoning") -> dict[str, Any]:
    """The assistant message a harness builds from a reply, reasoning included."""
    parsed = parse_message(text.removesuffix("<|im_end|>"), tools=True)
    return {
        "role": "assistant",
        "content": parsed.content,
        key: parsed.reasoning,
        "tool_calls": [call.as_json() for call in parsed.tool_calls],
    }


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_next_prompt_extends_prompt_and_completion(prompts: PromptMaker, key: str) -> None:
    first = prompts.ids({"messages": ASK, "tools": TOOLS})
    completion = tuple(prompts.tokenizer.encode(CALL))
    turns = [*ASK, echo(CALL, key), {"role": "tool", "tool_call_id": "x", "content": "85"}]
    second = prompts.ids({"messages": turns, "tools": TOOLS})
    assert second[: len(first) + len(completion)] == first + completion
    last = tuple(prompts.tokenizer.encode(FINAL))
    third = prompts.ids(
        {"messages": [*turns, echo(FINAL, key)], "tools": TOOLS, "add_generation_prompt": False}
    )
    assert third[: len(second) + len(last)] == second + last


def test_without_reasoning_the_prefix_breaks(prompts: PromptMaker) -> None:
    first = prompts.ids({"messages": ASK, "tools": TOOLS})
    completion = tuple(prompts.tokenizer.encode(CALL))
    bare = {**echo(CALL), "reasoning": None}
    second = prompts.ids(
        {"messages": [*ASK, bare, {"role": "tool", "content": "85"}], "tools": TOOLS}
    )
    assert second[: len(first)] == first
    assert second[: len(first) + len(completion)] != first + completion


def test_reasoning_before_the_last_user_message_is_dropped(prompts: PromptMaker) -> None:
    turns = [*ASK, echo(FINAL), {"role": "user", "content": "Thanks"}]
    text = prompts.text({"messages": turns})
    assert "<think>" not in text
    assert "The answer is 85.<|im_end|>" in text
    kept = prompts.text({"messages": turns, "chat_template_kwargs": {"keep_reasoning": True}})
    assert "<think>\nThe tool says 85.\n</think>\n\nThe answer is 85.<|im_end|>" in kept


def test_bytes_of_ids_join_to_the_prompt(prompts: PromptMaker) -> None:
    messages = [
        {"role": "system", "content": "naïve \N{GRINNING FACE} café\n\n\tx = 1 "},
        {"role": "user", "content": "日本語 1234 <|im_end|> </think>"},
    ]
    body = {"messages": messages, "tools": TOOLS}
    joined = b"".join(prompts.tokenizer.raw(i) for i in prompts.ids(body))
    assert joined == prompts.text(body).encode()


def test_tools_are_listed_by_name_and_parameters(prompts: PromptMaker) -> None:
    text = prompts.text(
        {
            "messages": ASK,
            "tools": [
                *TOOLS,
                {
                    "type": "function",
                    "function": {"name": "bare", "description": "long " * 500},
                },
            ],
        }
    )
    assert "\n\nTools: calculator(a, b, op), bare()<|im_end|>" in text
    assert "long" not in text


def test_arguments_may_be_text_or_an_object(prompts: PromptMaker) -> None:
    turn = echo(CALL)
    as_text = prompts.text({"messages": [*ASK, turn]})
    call = turn["tool_calls"][0]["function"]
    call["arguments"] = json.loads(call["arguments"])
    assert prompts.text({"messages": [*ASK, turn]}) == as_text


def test_content_parts_and_odd_messages(prompts: PromptMaker) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "47 + 38?"}]
    split = [ASK[0], {"role": "user", "content": parts}]
    assert prompts.ids({"messages": split}) == prompts.ids({"messages": ASK})
    bare = prompts.text({"messages": [{"role": "assistant", "tool_calls": None}]})
    assert bare.endswith("<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(BadRequest):
        prompts.ids({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})


def test_going_on_with_the_final_message(prompts: PromptMaker) -> None:
    text = prompts.text(
        {
            "messages": [*ASK, {"role": "assistant", "content": "The answer"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
        }
    )
    assert text.endswith("<|im_start|>assistant\nThe answer")


def test_a_template_cannot_reach_out() -> None:
    for source in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}"):
        with pytest.raises(BadRequest):
            ChatTemplate(source).render({"messages": [{"role": "user", "content": "x"}]})
    with pytest.raises(ConfigurationError):
        ChatTemplate("{% if %}")
    with pytest.raises(BadRequest, match="no system"):
        ChatTemplate("{{ raise_exception('no system') }}").render({"messages": [{}]})


def test_about_three_characters_a_token(prompts: PromptMaker) -> None:
    english = (
        "The engine reads every prompt in pieces, so that other requests can go on "
        "while a long one is being read, and it remembers what it has read before."
    )
    code = "def add(self, name):\n    if name is None:\n        return self._names.get(name)\n"
    for text in (english, code):
        assert len(text) / len(prompts.tokenizer.encode(text)) > 2.6


@pytest.mark.parametrize("value", [[1], "x", 7, True])
def test_template_variables_must_be_an_object(value: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": value}
    with pytest.raises(BadRequest, match="must be an object"):
        ChatTemplate.read(SHIPPED).render(body)

"""Anthropic tools and tool choice as chat functions.

Owns: which tools the engine is told of, and under what schema.
Must not know: messages beyond the tool references in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from explorer.wire import reading
from explorer.wire.reading import Notes
from explorer.wire.turns import function_tool

# Typed tools that the harness itself runs; their schema is known to Anthropic's models only.
_RUN_BY_HARNESS = ("bash_", "text_editor_", "computer_", "memory_")
_ANYTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}


def add_tools(body: dict[str, Any], asked: Mapping[str, Any], notes: Notes) -> None:
    """Puts tools and tool choice into `body`, neither when no tool is left.

    Raises:
        BadRequest: a tool or the choice has a wrong type.
    """
    choice = asked.get("tool_choice")
    choice = {} if choice is None else reading.mapping(choice, "tool_choice")
    loaded = {*_loaded(asked.get("messages"))}
    if isinstance(choice.get("name"), str):
        loaded.add(choice["name"])
    tools: list[dict[str, Any]] = []
    for place, entry in enumerate(reading.items(asked.get("tools"), "tools")):
        made = _tool(reading.mapping(entry, f"tools[{place}]"), f"tools[{place}]", notes)
        if made is None:
            continue
        if entry.get("defer_loading") is True and made["function"]["name"] not in loaded:
            continue
        tools.append(made)
    if not tools:
        return
    body["tools"] = tools
    chosen = _choice(choice, {tool["function"]["name"] for tool in tools}, notes)
    if chosen is not None:
        body["tool_choice"] = chosen
    for source in (asked, choice):
        if source.get("disable_parallel_tool_use") is True:
            body["parallel_tool_calls"] = False


def _tool(tool: Mapping[str, Any], path: str, notes: Notes) -> dict[str, Any] | None:
    kind = tool.get("type")
    schema = tool.get("input_schema")
    if schema is None and isinstance(kind, str) and kind != "custom":
        if not kind.startswith(_RUN_BY_HARNESS) or not isinstance(tool.get("name"), str):
            # Anthropic's servers would run it; here nobody does.
            notes.add("tool_dropped", kind)
            return None
        notes.add("tool_schema_unknown", kind)
        schema = _ANYTHING
    name = reading.text(tool.get("name"), f"{path}.name")
    if schema is not None:
        reading.mapping(schema, f"{path}.input_schema")
    made = function_tool(name, tool.get("description"), schema)
    if tool.get("strict") is True:
        made["function"]["strict"] = True
    return made


def _choice(choice: Mapping[str, Any], names: set[str], notes: Notes) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        name = reading.text(choice.get("name"), "tool_choice.name")
        if name not in names:
            notes.add("tool_choice_dropped", name)
            return None
        return {"type": "function", "function": {"name": name}}
    if kind in ("auto", "none"):
        return kind
    if kind == "any":
        return "required"
    if kind is not None:
        notes.add("tool_choice_dropped", kind)
    return None


def _loaded(messages: Any) -> Iterator[str]:
    """Names that tool references anywhere in the conversation have loaded."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            yield from _referenced(block)


def _referenced(block: Any) -> Iterator[str]:
    if not isinstance(block, dict):
        return
    inner = block.get("content")
    if isinstance(inner, dict):
        # tool_search_tool_result
        inner = inner.get("tool_references")
    for entry in (block, *(inner if isinstance(inner, list) else ())):
        if isinstance(entry, dict) and entry.get("type") == "tool_reference":
            name = entry.get("tool_name")
            if isinstance(name, str):
                yield name

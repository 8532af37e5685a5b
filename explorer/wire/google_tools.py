"""Google's tools and tool configuration as chat functions.

Owns: which declarations the engine is told of, and what a calling mode means.
Must not know: contents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from explorer.wire import reading
from explorer.wire.google_schema import json_schema
from explorer.wire.reading import Notes
from explorer.wire.turns import function_tool

_MODES = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto"}


@lru_cache(maxsize=256)
def _snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)


def pick(source: Mapping[str, Any], name: str) -> Any:
    """The field `name`, which may be written in snake_case as well; None without it."""
    value = source.get(name)
    return source.get(_snake(name)) if value is None else value


def part_object(source: Mapping[str, Any], name: str, path: str) -> dict[str, Any]:
    """The object in field `name`; empty when the field is missing.

    Raises:
        BadRequest: the field is there and no object.
    """
    value = pick(source, name)
    return {} if value is None else reading.mapping(value, f"{path}{name}")


def listed(value: Any, path: str) -> list[Any]:
    """An array, or the one object that stands for an array of one."""
    return [value] if isinstance(value, dict) else reading.items(value, path)


def add_tools(body: dict[str, Any], asked: Mapping[str, Any], notes: Notes) -> None:
    """Puts tools and tool choice into `body`, neither when no tool is left.

    Raises:
        BadRequest: a declaration or the configuration has a wrong type.
    """
    tools = list(_tools(asked, notes))
    if not tools:
        return
    body["tools"] = tools
    config = part_object(asked, "toolConfig", "")
    calling = part_object(config, "functionCallingConfig", "toolConfig.")
    mode = pick(calling, "mode")
    choice = _MODES.get(mode.upper()) if isinstance(mode, str) else None
    if choice is None:
        return
    names = pick(calling, "allowedFunctionNames")
    if choice == "required" and isinstance(names, list) and names:
        told = {tool["function"]["name"] for tool in tools}
        if len(names) == 1 and isinstance(names[0], str) and names[0] in told:
            body["tool_choice"] = {"type": "function", "function": {"name": names[0]}}
            return
        # Engines know "any" or one; the manifest itself is part of the prompt and stays.
        notes.add("allowed_names_ignored", ", ".join(str(name) for name in names[:10]))
    body["tool_choice"] = choice


def _tools(asked: Mapping[str, Any], notes: Notes) -> Iterator[dict[str, Any]]:
    for place, entry in enumerate(listed(pick(asked, "tools"), "tools")):
        path = f"tools[{place}]"
        tool = reading.mapping(entry, path)
        declared = pick(tool, "functionDeclarations")
        for inner, function in enumerate(listed(declared, f"{path}.functionDeclarations")):
            where = f"{path}.functionDeclarations[{inner}]"
            yield _declared(reading.mapping(function, where), where)
        for key, value in tool.items():
            # Google's servers would run it; here nobody does.
            if (
                key not in ("functionDeclarations", "function_declarations")
                and value is not None
            ):
                notes.add("tool_dropped", key)


def _declared(function: Mapping[str, Any], path: str) -> dict[str, Any]:
    name = reading.text(function.get("name"), f"{path}.name")
    schema = pick(function, "parametersJsonSchema")
    if schema is None:
        schema = json_schema(function.get("parameters"))
    if schema is not None:
        reading.mapping(schema, f"{path}.parameters")
    return function_tool(name, function.get("description"), schema)

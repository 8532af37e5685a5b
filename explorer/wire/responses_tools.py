"""The tools of a Responses request as chat functions, and back to their own names.

Owns: which tool types become functions, their neutral names, and tool choice.
Must not know: input items, replies, the store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from explorer.errors import BadRequest
from explorer.records import Note
from explorer.wire.neutral import ToolOrigin

LOCAL_SHELL = "local_shell"
_SHOWN = 100

_LOCAL_SHELL_PARAMETERS = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
}


def shown(value: Any) -> str:
    """A value for a note or an error, bounded."""
    return value[:_SHOWN] if isinstance(value, str) else f"of type {type(value).__name__}"


def as_json(value: Any) -> str:
    """Any value of a request as JSON text.

    Raises:
        BadRequest: it is nested too deeply.
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise BadRequest("the request is nested too deeply") from error


def neutral_name(name: str, namespace: str | None) -> str:
    """The name of a function; one in a namespace carries it always, so that history reads
    the same in a request that lists no tools."""
    if not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"


@dataclass(slots=True)
class Manifest:
    """The tools of one request.

    Attributes:
        tools: chat form, in the order of the request.
        origins: by neutral name, every tool that is called or made otherwise on the wire.
    """

    tools: list[dict[str, Any]] = field(default_factory=list)
    origins: dict[str, ToolOrigin] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    _by_wire: dict[tuple[str | None, str], str] = field(default_factory=dict)

    def known_as(self, name: str, namespace: str | None) -> str:
        """The neutral name of a tool that an item or a choice names."""
        found = self._by_wire.get((namespace or None, name))
        if found is not None:
            return found
        if not namespace:
            # Some harness echoes a call without the namespace that it came with.
            inside = [told for (space, own), told in self._by_wire.items() if own == name]
            if len(inside) == 1:
                return inside[0]
        return neutral_name(name, namespace)

    def read(self, tools: Any) -> None:
        """Takes in the ``tools`` of a request.

        Raises:
            BadRequest: they are no list of objects.
        """
        if tools is None:
            return
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise BadRequest("`tools` must be an array of objects", param="tools")
        for tool in tools:
            if tool.get("type") == "namespace" and isinstance(tool.get("name"), str):
                inner = tool.get("tools")
                for nested in inner if isinstance(inner, list) else ():
                    if isinstance(nested, dict):
                        self._read_one(nested, tool["name"])
            else:
                self._read_one(tool, None)

    def _read_one(self, tool: Mapping[str, Any], namespace: str | None) -> None:
        kind, name = tool.get("type"), tool.get("name")
        if kind == LOCAL_SHELL:
            name = LOCAL_SHELL
        if kind not in ("function", "custom", LOCAL_SHELL) or not (
            isinstance(name, str) and name
        ):
            self.notes.append(Note("tool_dropped", shown(kind)))
            return
        if (namespace, name) in self._by_wire:
            self.notes.append(Note("tool_dropped", f"{shown(name)} is listed twice"))
            return
        neutral = neutral_name(name, namespace)
        taken = set(self._by_wire.values())
        while neutral in taken:
            neutral += "_"
        self._by_wire[namespace, name] = neutral
        if kind != "function" or neutral != name:
            self.origins[neutral] = ToolOrigin(name, kind, namespace)
        self.tools.append({"type": "function", "function": _function(tool, kind, neutral)})

    def choice(self, value: Any) -> Any:
        """``tool_choice`` in chat form; None where it says nothing that can be kept.

        Raises:
            BadRequest: it is no choice at all.
        """
        if value is None:
            return None
        if isinstance(value, str):
            if value not in ("auto", "none", "required"):
                raise BadRequest(
                    "`tool_choice` must be auto, none, required or an object",
                    param="tool_choice",
                )
            return value if self.tools else None
        if not isinstance(value, dict):
            raise BadRequest("`tool_choice` must be text or an object", param="tool_choice")
        if value.get("type") == "allowed_tools":
            return self._allowed(value)
        named = self._chosen(value)
        if named is None:
            self.notes.append(Note("tool_choice_dropped", shown(value.get("type"))))
            return None
        return {"type": "function", "function": {"name": named}}

    def _chosen(self, value: Mapping[str, Any]) -> str | None:
        kind, name, space = value.get("type"), value.get("name"), value.get("namespace")
        if kind == LOCAL_SHELL:
            name = LOCAL_SHELL
        if kind not in ("function", "custom", LOCAL_SHELL) or not isinstance(name, str):
            return None
        neutral = self.known_as(name, space if isinstance(space, str) else None)
        return neutral if neutral in self._by_wire.values() else None

    def _allowed(self, value: Mapping[str, Any]) -> Any:
        """No engine knows allowed tools: the others are left out of the manifest."""
        listed, mode = value.get("tools"), value.get("mode")
        if not isinstance(listed, list) or mode not in (None, "auto", "required"):
            raise BadRequest(
                "`tool_choice` of type allowed_tools needs `tools` and a `mode` of auto or "
                "required",
                param="tool_choice",
            )
        names = {self._chosen(tool) for tool in listed if isinstance(tool, dict)}
        kept = [tool for tool in self.tools if tool["function"]["name"] in names]
        if not kept:
            self.notes.append(Note("tool_choice_dropped", "allowed_tools names none of them"))
            return "none" if self.tools else None
        if len(kept) < len(self.tools):
            self.notes.append(Note("tools_left_out", f"{len(self.tools) - len(kept)}"))
        self.tools = kept
        return mode or "auto"


def _function(tool: Mapping[str, Any], kind: str, neutral: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": neutral}
    description = tool.get("description")
    if kind == LOCAL_SHELL:
        description = "Runs a command on the local machine."
    if kind == "custom":
        form = tool.get("format")
        if isinstance(form, dict) and isinstance(form.get("definition"), str):
            said = f"The input must match this {shown(form.get('syntax'))} grammar:\n"
            description = f"{description or ''}\n\n{said}{form['definition']}".lstrip()
    if isinstance(description, str):
        made["description"] = description
    if kind == "custom":
        made["parameters"] = {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        }
    elif kind == LOCAL_SHELL:
        made["parameters"] = _LOCAL_SHELL_PARAMETERS
    elif isinstance(tool.get("parameters"), dict):
        made["parameters"] = tool["parameters"]
    if tool.get("strict") is True:
        made["strict"] = True
    return made


def custom_arguments(text: str) -> str:
    """The arguments by which a function is called with one free text."""
    return json.dumps({"input": text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The free text in such arguments; whatever else the model wrote is given as it is."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(value, dict) and set(value) == {"input"} and isinstance(value["input"], str):
        return value["input"]
    return arguments


def shell_arguments(action: Any) -> str:
    """The arguments of the function that stands for a local shell."""
    known = action if isinstance(action, dict) else {}
    kept = {
        key: known[key]
        for key in ("command", "working_directory", "timeout_ms", "env", "user")
        if known.get(key) not in (None, {})
    }
    return as_json(kept)


def shell_action(arguments: str) -> dict[str, Any] | None:
    """The action that a local shell is asked for; None when the arguments are no such."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    command = value.get("command") if isinstance(value, dict) else None
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        return None
    rest = {key: value[key] for key in value if key not in ("type", "command")}
    return {"type": "exec", "command": command, "env": {}} | rest

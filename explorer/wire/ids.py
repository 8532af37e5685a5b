"""Ids that harnesses see: made from our call id, so that an echo leads back to its call.

Owns: the form of served tool-call and item ids, and reading them back.
Must not know: dialects, the store.

Tool-call ids are the one thing that every harness sends back untouched, whatever it does
to arguments and text; so they are ours, of letters, digits and underscores only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TOOL = re.compile(r"call_([0-9a-f]{32})_([0-9]{1,4})")
_ITEM = re.compile(
    r"(?:msg|rs|fc|ct|resp)_([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"(?:_[0-9]{1,4})?"
)


def tool_call_id(call_id: str, position: int) -> str:
    """The id of the tool call at `position` of call `call_id`."""
    return f"call_{call_id.replace('-', '')}_{position}"


def origin_of_tool(tool_id: Any) -> tuple[str, int] | None:
    """(our call id, position) of a tool-call id that we minted; None for any other."""
    found = _TOOL.fullmatch(tool_id) if isinstance(tool_id, str) else None
    if found is None:
        return None
    text = found[1]
    dashed = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return dashed, int(found[2])


def item_id(prefix: str, call_id: str, position: int | None = None) -> str:
    """The id of an output item; `prefix` is ``msg``, ``rs``, ``fc``, ``ct`` or ``resp``."""
    return f"{prefix}_{call_id}" + ("" if position is None else f"_{position}")


def origin_of_item(value: Any) -> str | None:
    """Our call id in an item or response id that we made; None for any other."""
    found = _ITEM.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else None


def with_our_ids(reply: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    """A chat completion whose tool calls carry our ids; what is no call stays as it is."""
    choices = [
        choice | {"message": _minted(choice["message"], call_id)}
        if isinstance(choice, dict) and isinstance(choice.get("message"), dict)
        else choice
        for choice in reply.get("choices") or []
    ]
    return dict(reply) | {"choices": choices}


def _minted(message: dict[str, Any], call_id: str) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return message
    ours = [
        call | {"id": tool_call_id(call_id, position)} if isinstance(call, dict) else call
        for position, call in enumerate(calls)
    ]
    return message | {"tool_calls": ours}

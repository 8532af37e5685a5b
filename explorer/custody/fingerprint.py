"""Fingerprints of conversations, by which a continuation finds the call it continues.

Owns: the assistant fingerprint, the conversation digest, the items of a request or a reply.
Must not know: ledgers, tokens, HTTP. Version 2, as NeMo Gym 0.7.0 with current libraries.

An item is a message or a typed entry of any of the three dialects. Nothing marks where one
item ends, so two messages of one part equal one message of two; that is what makes dialects
comparable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from explorer.custody.canonical import canonical_arguments, canonical_json, check_text
from explorer.custody.errors import FingerprintError

FINGERPRINT_VERSION = 2
ASSISTANT_TAG = b"nemo-gym-lineage"
CONTEXT_TAG = b"nemo-gym-lineage-context"
ENVELOPE_ROLE = "_ng_request_envelope"

Item = Mapping[str, Any]
Items = Sequence[Item]
# Fields of a reply that hold tokens: they take no part and are never stored.
TOKEN_FIELDS = frozenset(
    {"prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"}
)
REASONING_BLOCKS = ("thinking", "redacted_thinking")
_TEXT_TYPES = (None, "", "text", "input_text", "output_text")
_TOOL_TYPES = ("tool_use", "tool_result")


class _Hasher:
    """SHA-256 over tagged fields."""

    def __init__(self, tag: bytes) -> None:
        self.sha = hashlib.sha256(tag)

    def field(self, tag: int, value: str) -> None:
        data = check_text(value)
        self.sha.update(bytes([tag]) + len(data).to_bytes(8, "big") + data)


def assistant_fingerprint(items: Items) -> str:
    """The hash of what the model wrote in `items`; empty where it wrote nothing.

    Raises:
        FingerprintError: an item without a usable form.
    """
    hasher, found = _Hasher(ASSISTANT_TAG), False
    for item in items:
        if not is_model_authored(item):
            continue
        found = True
        for kind, payload in content_parts(item.get("content")):
            hasher.field(0, kind)
            hasher.field(1, payload)
        for call_id, name, arguments in _tool_calls(item):
            hasher.field(2, call_id)
            hasher.field(3, name)
            hasher.field(4, arguments)
    return hasher.sha.hexdigest() if found else ""


def conversation_digest(items: Items) -> str:
    """The hash of every item.

    Raises:
        FingerprintError: an item without a usable form.
    """
    return conversation_digests(items, {len(items)})[len(items)]


def conversation_digests(items: Items, lengths: Collection[int]) -> dict[int, str]:
    """The digest of the first n items for each n of `lengths`, in one pass.

    Lengths beyond the items are left out.

    Raises:
        FingerprintError: an item before the longest asked end without a usable form.
    """
    wanted = {length for length in lengths if 0 <= length <= len(items)}
    hasher, found = _Hasher(CONTEXT_TAG), {}
    for index in range(max(wanted, default=-1) + 1):
        if index in wanted:
            found[index] = hasher.sha.copy().hexdigest()
        if index < max(wanted):
            _add_item(hasher, items[index])
    return found


def _add_item(hasher: _Hasher, item: Item) -> None:
    _check_item(item)
    hasher.field(0, _str(item.get("role") or item.get("type") or ""))
    for kind, payload in content_parts(item.get("content")):
        hasher.field(1, kind)
        hasher.field(2, payload)
    for call_id, name, arguments in _tool_calls(item):
        hasher.field(3, call_id)
        hasher.field(4, name)
        hasher.field(5, arguments)
    for call_id, payload in _tool_results(item):
        hasher.field(6, call_id)
        hasher.field(7, payload)


def _check_item(item: object) -> None:
    if not isinstance(item, Mapping):
        raise FingerprintError(f"an item is a {type(item).__name__}, not an object")


def is_model_authored(item: Item) -> bool:
    """Whether the model wrote this item: an assistant message or a function call.

    Raises:
        FingerprintError: it is not an object.
    """
    _check_item(item)
    return bool(item.get("role") == "assistant" or item.get("type") == "function_call")


def content_parts(content: Any) -> Iterator[tuple[str, str]]:
    """(type, payload) of every content part, without tool calls and tool results.

    Raises:
        FingerprintError: content of a form that nobody sends.
    """
    if content is None:
        return
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list):
        raise FingerprintError(f"content is a {type(content).__name__}")
    for block in content:
        if isinstance(block, str):
            if block:
                yield "text", block
            continue
        if not isinstance(block, Mapping):
            raise FingerprintError(f"a content part is a {type(block).__name__}")
        kind, body = block.get("type"), block.get("text")
        if kind in _TOOL_TYPES:
            continue
        if isinstance(body, str) and kind in _TEXT_TYPES:
            if body:
                yield "text", body
        elif kind:
            yield _str(kind), canonical_json(block)
        else:
            raise FingerprintError("a content part has neither a type nor text")


def _blocks(item: Item, kind: str) -> Iterator[Item]:
    content = item.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping) and block.get("type") == kind:
            yield block


def _tool_calls(item: Item) -> Iterator[tuple[str, str, str]]:
    if item.get("type") == "function_call":
        name = _str(item.get("name", ""))
        if item.get("namespace"):
            name = f"{_str(item['namespace'])}__{name}"
        yield _first(item, "call_id", "id"), name, canonical_arguments(item.get("arguments"))
    for block in _blocks(item, "tool_use"):
        yield (
            _first(block, "id"),
            _str(block.get("name", "")),
            canonical_arguments(block.get("input")),
        )
    calls = item.get("tool_calls") or ()
    if not isinstance(calls, list | tuple):
        raise FingerprintError(f"tool_calls is a {type(calls).__name__}")
    for call in calls:
        function = call.get("function") or {} if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise FingerprintError("a tool call is not an object with a function")
        yield (
            _first(call, "id"),
            _str(function.get("name", "")),
            canonical_arguments(function.get("arguments")),
        )


def _tool_results(item: Item) -> Iterator[tuple[str, str]]:
    if item.get("type") == "function_call_output":
        yield _first(item, "call_id", "id"), _text_or_json(item.get("output"))
    elif item.get("role") == "tool":
        yield _first(item, "tool_call_id"), _text_or_json(item.get("content"))
    for block in _blocks(item, "tool_result"):
        yield _first(block, "tool_use_id", "id"), _text_or_json(block.get("content"))


def _first(item: Item, *names: str) -> str:
    return _str(next((item[name] for name in names if item.get(name)), ""))


def _str(value: Any) -> str:
    """What stands in place of a name: any value, as Python writes it."""
    try:
        return str(value)
    except (ValueError, RecursionError) as error:
        raise FingerprintError(f"a name cannot be written: {error}") from None


def _text_or_json(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def request_items(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a chat or Responses request, its instructions and tools first.

    A plain string as `input` contributes no item. A Messages request must be translated to
    the Responses form first.

    Raises:
        FingerprintError: the messages are not objects, or the tools cannot be written.
    """
    listed = request.get("messages") or request.get("input")
    items = [dict(item) for item in _objects(listed if isinstance(listed, list) else [])]
    envelope = {name: request[name] for name in ("instructions", "tools") if request.get(name)}
    if envelope:
        try:
            text = json.dumps(envelope, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise FingerprintError(f"instructions or tools: {error}") from None
        items.insert(0, {"role": ENVELOPE_ROLE, "content": text})
    return items


def response_items(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a served reply of any of the three dialects, without token fields.

    Raises:
        FingerprintError: the reply holds something that is not an object.
    """
    if isinstance(reply.get("output"), list):
        items = list(_objects(reply["output"]))
    elif isinstance(reply.get("choices"), list):
        messages = [choice.get("message") for choice in _objects(reply["choices"])]
        items = [{**message, "role": "assistant"} for message in _objects(messages)]
    elif isinstance(reply.get("content"), list):
        blocks = list(_objects(reply["content"]))
        thoughts = [block for block in blocks if block.get("type") in REASONING_BLOCKS]
        others = [block for block in blocks if block.get("type") not in REASONING_BLOCKS]
        items = [{"type": "reasoning"} for _ in thoughts]
        items.append({"role": "assistant", "content": others})
    else:
        items = []
    return [
        {name: value for name, value in item.items() if name not in TOKEN_FIELDS}
        for item in items
    ]


def _objects(values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for value in values:
        _check_item(value)
        yield dict(value)

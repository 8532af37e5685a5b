"""A chat completion as a Responses object.

Owns: output items, status, usage and the echo of the request.
Must not know: streams, engines, the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.records import ABORTS
from explorer.wire import ids
from explorer.wire.echo import sign
from explorer.wire.jsonbytes import encode
from explorer.wire.neutral import NeutralRequest, ToolOrigin
from explorer.wire.responses_request import top_logprobs, wants_encrypted
from explorer.wire.responses_tools import LOCAL_SHELL, custom_input, shell_action

_FUNCTION = ToolOrigin("")
_CUT = ABORTS | {"length", "content_filter"}


def response_object(
    reply: Mapping[str, Any], request: NeutralRequest, call_id: str
) -> dict[str, Any]:
    """The whole Response to one request."""
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    choice: Mapping[str, Any] = first if isinstance(first, dict) else {}
    finish = choice.get("finish_reason")
    created, model = reply.get("created"), reply.get("model")
    made = skeleton(
        request,
        call_id,
        model if isinstance(model, str) else request.model or "",
        0 if isinstance(created, bool) or not isinstance(created, int | float) else created,
    )
    cut = isinstance(finish, str) and finish in _CUT
    made["status"] = "incomplete" if cut else "completed"
    if finish == "length":
        made["incomplete_details"] = {"reason": "max_output_tokens"}
    elif finish == "content_filter":
        made["incomplete_details"] = {"reason": "content_filter"}
    made["output"] = output_items(choice, request, call_id)
    if cut and made["output"] and "status" in made["output"][-1]:
        made["output"][-1]["status"] = "incomplete"
    made["usage"] = usage_of(reply.get("usage"))
    return made


def skeleton(
    request: NeutralRequest, call_id: str, model: str, created: int | float
) -> dict[str, Any]:
    """A Response before anything is known of the reply: what was asked, and its id."""
    asked = request.asked

    def told(key: str, kinds: type | tuple[type, ...], fallback: Any) -> Any:
        value = asked.get(key)
        return value if isinstance(value, kinds) else fallback

    return {
        "id": ids.item_id("resp", call_id),
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": told("instructions", str, None),
        "max_output_tokens": told("max_output_tokens", int, None),
        "model": model,
        "output": [],
        "parallel_tool_calls": told("parallel_tool_calls", bool, True),
        "previous_response_id": told("previous_response_id", str, None),
        "prompt_cache_key": told("prompt_cache_key", str, None),
        "reasoning": {"effort": None, "summary": None} | told("reasoning", dict, {}),
        "safety_identifier": told("safety_identifier", str, None),
        "store": told("store", bool, True),
        "temperature": told("temperature", (int, float), 1.0),
        "text": {"format": {"type": "text"}} | told("text", dict, {}),
        "tool_choice": told("tool_choice", (str, dict), "auto"),
        "tools": told("tools", list, []),
        "top_logprobs": top_logprobs(asked),
        "top_p": told("top_p", (int, float), 1.0),
        "truncation": told("truncation", str, "disabled"),
        "usage": None,
        "user": told("user", str, None),
        "metadata": told("metadata", dict, {}),
    }


def output_items(
    choice: Mapping[str, Any], request: NeutralRequest, call_id: str
) -> list[dict[str, Any]]:
    """Reasoning, message and calls, in this order, each only where there is one."""
    said = choice.get("message")
    message: Mapping[str, Any] = said if isinstance(said, dict) else {}
    items: list[dict[str, Any]] = []
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning:
        items.append(reasoning_item(_text(reasoning), request, call_id))
    parts: list[dict[str, Any]] = []
    if message.get("content"):
        text = _text(message["content"])
        parts.append(text_part(text, _logprobs(text, choice, request)))
    if isinstance(message.get("refusal"), str) and message["refusal"]:
        parts.append({"type": "refusal", "refusal": message["refusal"]})
    if parts:
        items.append(message_item(parts, call_id, "completed"))
    calls = message.get("tool_calls")
    for place, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            items.append(_call_item(call, function, request, (call_id, place)))
    return items


def reasoning_item(text: str, request: NeutralRequest, call_id: str) -> dict[str, Any]:
    """Reasoning, told in full as its summary, which every client keeps and sends back."""
    item: dict[str, Any] = {
        "id": ids.item_id("rs", call_id),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text}],
    }
    if wants_encrypted(request.asked):
        item["encrypted_content"] = sign(text)
    return item


def text_part(text: str, logprobs: list[Any]) -> dict[str, Any]:
    """One part of visible text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def message_item(parts: list[dict[str, Any]], call_id: str, status: str) -> dict[str, Any]:
    """The assistant's message."""
    return {
        "id": ids.item_id("msg", call_id),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": parts,
    }


def _call_item(
    call: Mapping[str, Any],
    function: Mapping[str, Any],
    request: NeutralRequest,
    place: tuple[str, int],
) -> dict[str, Any]:
    name = function.get("name")
    told = name if isinstance(name, str) else ""
    origin = request.tools_by_name.get(told, _FUNCTION)
    arguments = _text(function.get("arguments"))
    tool_id = call.get("id")
    item: dict[str, Any] = {
        "id": ids.item_id("ct" if origin.kind == "custom" else "fc", *place),
        "type": "function_call",
        "status": "completed",
        "call_id": tool_id if isinstance(tool_id, str) else ids.tool_call_id(*place),
    }
    action = shell_action(arguments) if origin.kind == LOCAL_SHELL else None
    if action is not None:
        return item | {"type": "local_shell_call", "action": action}
    item["name"] = origin.name or told
    if origin.namespace is not None:
        item["namespace"] = origin.namespace
    if origin.kind == "custom":
        return item | {"type": "custom_tool_call", "input": custom_input(arguments)}
    return item | {"arguments": arguments}


def _text(value: Any) -> str:
    """What should be text; anything else as its JSON, so that nothing of it is hidden."""
    if isinstance(value, str):
        return value
    return "" if value is None else encode(value).decode()


def usage_of(usage: Any) -> dict[str, Any] | None:
    """The engine's counts under their names here; None where it gave none."""
    if not isinstance(usage, dict):
        return None

    def count(source: Any, key: str) -> int:
        value = source.get(key) if isinstance(source, dict) else None
        return value if type(value) is int else 0

    prompt, completion = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    details = usage.get("prompt_tokens_details")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": count(details, "cached_tokens"),
            "cache_write_tokens": count(details, "created_cache_tokens"),
        },
        "output_tokens": completion,
        "output_tokens_details": {
            "reasoning_tokens": count(
                usage.get("completion_tokens_details"), "reasoning_tokens"
            )
        },
        "total_tokens": prompt + completion,
    }


def _logprobs(text: str, choice: Mapping[str, Any], request: NeutralRequest) -> list[Any]:
    """The entries of the tokens that wrote `text`; none unless it is certain which did."""
    listed = choice.get("logprobs")
    entries = listed.get("content") if isinstance(listed, dict) else None
    if not request.wants.logprobs or not isinstance(entries, list):
        return []
    tokens = [entry.get("token") if isinstance(entry, dict) else None for entry in entries]
    words = [token for token in tokens if isinstance(token, str)]
    if len(words) != len(tokens):
        return []
    whole = "".join(words)
    begin = whole.find(text)
    if begin < 0 or whole.find(text, begin + 1) >= 0:
        return []
    most = top_logprobs(request.asked)
    found, place = [], 0
    starts, ends = False, False
    for entry, word in zip(entries, words, strict=True):
        if begin <= place and place + len(word) <= begin + len(text) and word:
            starts |= place == begin
            ends |= place + len(word) == begin + len(text)
            found.append(_entry(entry, most))
        place += len(word)
    return found if starts and ends else []


def _entry(entry: Mapping[str, Any], most: int) -> dict[str, Any]:
    others = entry.get("top_logprobs")
    return {
        "token": entry.get("token"),
        "bytes": entry.get("bytes") or [],
        "logprob": entry.get("logprob"),
        "top_logprobs": others[:most] if isinstance(others, list) else [],
    }

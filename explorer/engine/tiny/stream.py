"""A finished reply as server-sent events in vLLM's streamed shapes, chat or plain.

The events are made after the generation has ended: ids, logprobs and order are those of a real
stream, the timing is not. Owns: that shape. Must not know: sampling, the child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from explorer.engine.tiny.parts import Spellings

DONE = b"data: [DONE]\n\n"


def event(content: Mapping[str, Any]) -> bytes:
    """One event."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


def stream_reply(
    reply: Mapping[str, Any], tokenizer: Spellings, asked: Mapping[str, Any]
) -> Iterator[bytes]:
    """Events of a unary `reply`, which must carry its ids, for the body `asked`.

    Where hidden reasoning has taken the ids away, all of the text comes in one event.
    """
    if reply["object"] == "text_completion":
        yield from _stream_text(reply, tokenizer, asked)
        return
    choice = reply["choices"][0]
    head = {
        "id": reply["id"],
        "object": "chat.completion.chunk",
        "created": reply["created"],
        "model": reply["model"],
    }
    usage_wanted = bool((asked.get("stream_options") or {}).get("include_usage"))
    ids_wanted = bool(asked.get("return_token_ids"))
    ids = choice["token_ids"]
    first: dict[str, Any] = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    top = {"prompt_token_ids": reply["prompt_token_ids"], "prompt_text": reply["prompt_text"]}
    yield event({**head, "choices": [first], **(top if ids_wanted else {})})
    deltas = list(_deltas(choice["message"], ids or [None], tokenizer))
    entries = (choice["logprobs"] or {}).get("content")
    for index, delta in enumerate(deltas):
        part: dict[str, Any] = {
            "index": 0,
            "delta": delta,
            "logprobs": {"content": [entries[index]]} if entries else None,
            "finish_reason": None,
        }
        last = index == len(deltas) - 1
        if last:
            part |= {
                "finish_reason": choice["finish_reason"],
                "stop_reason": choice["stop_reason"],
            }
            if "weight_versions" in choice:
                part["weight_versions"] = choice["weight_versions"]
        if ids_wanted:
            part["token_ids"] = [ids[index]] if ids else None
        # vLLM names its build on the last event, whichever that is.
        named = last and not usage_wanted
        tail = {"system_fingerprint": reply["system_fingerprint"]} if named else {}
        yield event({**head, "choices": [part], **tail})
    if usage_wanted:
        yield event(
            {
                **head,
                "choices": [],
                "usage": reply["usage"],
                "system_fingerprint": reply["system_fingerprint"],
            }
        )
    yield DONE


def _stream_text(
    reply: Mapping[str, Any], tokenizer: Spellings, asked: Mapping[str, Any]
) -> Iterator[bytes]:
    """A text completion, one event an id; the first one has the prompt's ids too."""
    choice = reply["choices"][0]
    head = {key: reply[key] for key in ("id", "object", "created", "model")}
    ids_wanted = bool(asked.get("return_token_ids"))
    ids, left = choice["token_ids"], choice["text"]
    for index, token_id in enumerate(ids):
        last = index == len(ids) - 1
        size = 0 if tokenizer.is_special(token_id) else len(_spelt(tokenizer, token_id))
        take = len(left) if last else size
        part = {
            "index": 0,
            "text": left[:take],
            "logprobs": _old_entry(choice["logprobs"], index),
            "finish_reason": choice["finish_reason"] if last else None,
            "stop_reason": choice["stop_reason"] if last else None,
        }
        left = left[take:]
        if last and "weight_versions" in choice:
            part["weight_versions"] = choice["weight_versions"]
        if ids_wanted:
            first = choice["prompt_token_ids"] if index == 0 else None
            part |= {"prompt_token_ids": first, "token_ids": [token_id]}
        yield event({**head, "choices": [part]})
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield event({**head, "choices": [], "usage": reply["usage"]})
    yield DONE


def _spelt(tokenizer: Spellings, token_id: int) -> str:
    return tokenizer.raw(token_id).decode("utf-8", "ignore")


def _old_entry(logprobs: Mapping[str, Any] | None, index: int) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    return {key: [values[index]] for key, values in logprobs.items()}


def _deltas(
    message: Mapping[str, Any], ids: Sequence[int | None], tokenizer: Spellings
) -> Iterator[dict[str, Any]]:
    """One delta an id. Texts come with their tokens, tool calls with the last one."""
    left = {"reasoning": message.get("reasoning") or "", "content": message["content"] or ""}
    marks = {tokenizer.id_of("<think>"), tokenizer.id_of("</think>")}
    ended = tokenizer.id_of("</think>")
    key = "reasoning" if left["reasoning"] else "content"
    for index, token_id in enumerate(ids):
        delta: dict[str, Any] = {}
        size = 0
        silent = token_id is None or token_id in marks or tokenizer.is_special(token_id)
        if token_id is not None and not silent:
            size = len(_spelt(tokenizer, token_id))
        last = index == len(ids) - 1
        for name in ("reasoning", "content"):
            # Cutting the final text by sizes keeps stop strings cut; the rest goes out last.
            take = len(left[name]) if last else size if name == key else 0
            if left[name][:take]:
                delta[name], left[name] = left[name][:take], left[name][take:]
        key = "content" if token_id == ended else key
        if last and message.get("tool_calls"):
            delta["tool_calls"] = [
                {"index": place, **call} for place, call in enumerate(message["tool_calls"])
            ]
        yield delta

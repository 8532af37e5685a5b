"""One chat completion from the events of a stream, ours or an engine's.

Owns: what each event adds, and which events cannot stand together.
Must not know: requests, how a stream is written (`chat` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from explorer.errors import EngineMalformed
from explorer.wire import sse

_TOOL_DELTA_KEYS = ("id", "type", "function")


def merge_stream(events: Iterable[sse.Event]) -> dict[str, Any]:
    """One reply from the events of a chat stream, ours or an engine's.

    Null and empty mean "nothing new"; token ids and logprobs are concatenated per
    choice in arrival order; a tool delta without a function name never starts a call.

    Returns:
        A chat completion; ``_complete`` is True when `[DONE]` was seen, ``_error`` holds
        an error event's object, and ``_unpaired`` is True when nobody can say which
        logprob belongs to which id.

    Raises:
        EngineMalformed: an event is no JSON, holds something else than it must, or cannot
            follow on what came before it.
    """
    merged: dict[str, Any] = {"object": "chat.completion", "choices": []}
    choices: dict[int, dict[str, Any]] = {}
    pairing = _Pairing()
    for event in events:
        if event.data == "[DONE]":
            merged["_complete"] = True
            continue
        try:
            chunk = orjson.loads(event.data)
        except orjson.JSONDecodeError as error:
            raise EngineMalformed(f"a streamed event is not JSON: {error}") from error
        if not isinstance(chunk, dict):
            continue
        if chunk.get("error") is not None:
            merged["_error"] = chunk["error"]
            continue
        _merge_head(merged, chunk)
        for piece in _list(chunk.get("choices"), "choices"):
            if not isinstance(piece, dict):
                raise EngineMalformed("a streamed choice is no object")
            if merged.get("_complete"):
                raise EngineMalformed("a streamed choice came after [DONE]")
            _merge_choice(choices, piece)
            pairing.saw(piece)
    if pairing.broken:
        merged["_unpaired"] = True
    merged["choices"] = [choices[index] for index in sorted(choices)]
    for choice in merged["choices"]:
        for call in choice["message"].get("tool_calls") or []:
            call.pop("_index", None)
    return merged


def _merge_head(merged: dict[str, Any], chunk: Mapping[str, Any]) -> None:
    """What an event says of the whole reply; the last word counts."""
    for key, value in chunk.items():
        if key in ("choices", "object") or value is None:
            continue
        if key == "prompt_token_ids" and merged.get(key, value) != value:
            raise EngineMalformed("a stream names two prompts")
        merged[key] = value


class _Pairing:
    """Whether ids and logprobs came together.

    Both lists are joined in the order of arrival. That pairs them rightly where each event
    has as many of the one as of the other, or where one of the lists came whole.
    """

    def __init__(self) -> None:
        self._with_ids = self._with_entries = 0
        self._uneven = False

    def saw(self, piece: Mapping[str, Any]) -> None:
        """One streamed choice."""
        logprobs = piece.get("logprobs")
        entries = logprobs.get("content") if isinstance(logprobs, dict) else None
        n_ids, n_entries = len(piece.get("token_ids") or ()), len(entries or ())
        self._with_ids += n_ids > 0
        self._with_entries += n_entries > 0
        self._uneven |= n_ids != n_entries

    @property
    def broken(self) -> bool:
        """Whether some logprob may stand beside another token than its own."""
        return self._uneven and self._with_ids > 1 and self._with_entries > 1


def _list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise EngineMalformed(f"`{what}` of a streamed event is no list")
    return value


def _merge_choice(choices: dict[int, dict[str, Any]], piece: Mapping[str, Any]) -> None:
    index = piece.get("index") or 0
    if type(index) is not int:
        raise EngineMalformed("the index of a streamed choice is no number")
    choice = choices.setdefault(
        index, {"index": index, "message": {"role": "assistant"}, "finish_reason": None}
    )
    ended = choice["finish_reason"]
    if ended is not None and piece.get("finish_reason") not in (None, ended):
        raise EngineMalformed("a streamed choice ended twice, for two reasons")
    for key, value in piece.items():
        if key in ("index", "delta", "message") or value is None:
            continue
        if key == "token_ids":
            if ended is not None and value:
                raise EngineMalformed("a streamed choice went on after its end")
            choice.setdefault("token_ids", []).extend(_list(value, key))
        elif key == "weight_versions" and isinstance(value, list):
            # Each event may name the versions of its own tokens only.
            held = choice.get(key)
            if isinstance(held, list):
                held.extend(value)
            else:
                choice[key] = list(value)
        elif key == "logprobs":
            entries = _list(value.get("content"), key) if isinstance(value, dict) else []
            kept = choice.setdefault("logprobs", {"content": []})
            kept["content"].extend(entries)
        else:
            choice[key] = value
    delta = piece.get("delta") or {}
    if not isinstance(delta, dict):
        raise EngineMalformed("a streamed delta is no object")
    _merge_delta(choice["message"], delta)


def _merge_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key, value in delta.items():
        if value is None:
            continue
        if key == "tool_calls":
            for call in _list(value, key):
                if not isinstance(call, dict):
                    raise EngineMalformed("a streamed tool call is no object")
                _merge_tool(message.setdefault("tool_calls", []), call)
        elif isinstance(value, str) and key != "role":
            held = message.get(key)
            message[key] = (held if isinstance(held, str) else "") + value
        else:
            message[key] = value


def _merge_tool(calls: list[dict[str, Any]], delta: Mapping[str, Any]) -> None:
    function = delta.get("function") or {}
    if not isinstance(function, dict):
        raise EngineMalformed("the function of a streamed tool call is no object")
    wire_index = delta.get("index")
    known = [call for call in calls if call.get("_index") == wire_index]
    renamed = bool(known) and delta.get("id") not in (None, known[-1].get("id"))
    if function.get("name") and (not known or renamed):
        call = {key: delta[key] for key in _TOOL_DELTA_KEYS if delta.get(key) is not None}
        call["function"] = dict(function)
        call["_index"] = wire_index
        calls.append(call)
        return
    if not calls:
        return
    target = known[-1] if known else calls[-1]
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments:
        held = target["function"].get("arguments")
        target["function"]["arguments"] = (held if isinstance(held, str) else "") + arguments

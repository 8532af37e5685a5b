"""Plain completions: what tells them from chat, and their replies in chat's shape.

Owns: the two directions between a ``text_completion`` and a chat completion.
Must not know: how ids and logprobs are read (`reply` does), dialects, the store.

Nothing is repaired here either: lists of different lengths stay different, so that the
counts disagree and the call is graded for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.errors import BadRequest
from explorer.wire.completions import DEFAULT_MAX_TOKENS, old_logprobs

__all__ = ["DEFAULT_MAX_TOKENS", "as_chat", "as_text", "given_ids", "is_prompt"]

_MOVED = ("prompt_token_ids", "prompt_logprobs")
_CHAT_ONLY = (*_MOVED, "prompt_text")


def is_prompt(body: Mapping[str, Any]) -> bool:
    """Whether a body asks for a plain completion."""
    return body.get("prompt") is not None and not body.get("messages")


def given_ids(body: Mapping[str, Any], vocab_size: int) -> tuple[int, ...] | None:
    """The prompt of a plain completion where it is ids; None where it is text.

    Raises:
        BadRequest: neither text nor known ids; nothing is guessed.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return None
    if not isinstance(prompt, list) or not all(
        type(token) is int and 0 <= token < vocab_size for token in prompt
    ):
        raise BadRequest(
            f"prompt must be text or a list of token ids from 0 to {vocab_size - 1}",
            param="prompt",
        )
    return tuple(prompt)


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """A text completion as a chat completion; any other body as it is."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not _is_text(choices[0]):
        return body
    return body | {
        "object": "chat.completion",
        "choices": [_chat_choice(one) if _is_text(one) else one for one in choices],
    }


def _is_text(choice: Any) -> bool:
    return (
        isinstance(choice, dict)
        and isinstance(choice.get("text"), str)
        and not isinstance(choice.get("message"), dict)
    )


def _chat_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in choice.items() if key not in ("text", "logprobs")}
    kept["message"] = {"role": "assistant", "content": choice["text"]}
    kept["logprobs"] = _chat_logprobs(choice.get("logprobs"))
    return kept


def _chat_logprobs(logprobs: Any) -> Any:
    if not isinstance(logprobs, dict) or isinstance(logprobs.get("content"), list):
        return logprobs
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) and not isinstance(values, list):
        return None
    tokens = tokens if isinstance(tokens, list) else []
    values = values if isinstance(values, list) else []
    tops = logprobs.get("top_logprobs")
    tops = tops if isinstance(tops, list) else []
    return {
        "content": [
            {
                "token": tokens[place] if place < len(tokens) else None,
                "logprob": values[place] if place < len(values) else None,
                "top_logprobs": _alternatives(tops[place] if place < len(tops) else None),
            }
            for place in range(max(len(tokens), len(values)))
        ]
    }


def _alternatives(top: Any) -> list[dict[str, Any]]:
    if not isinstance(top, dict):
        return []
    return [{"token": token, "logprob": value} for token, value in top.items()]


def as_text(reply: Mapping[str, Any], text: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion of our own engines as the text completion that vLLM would send.

    Args:
        text: all that was sampled, without special tokens: nothing is parsed out of it.
        asked: the request's body.
    """
    made = {key: value for key, value in reply.items() if key not in _CHAT_ONLY}
    made["id"] = "cmpl-" + str(reply["id"]).removeprefix("chatcmpl-")
    made["object"] = "text_completion"
    made["choices"] = []
    for choice in reply["choices"]:
        listed = choice.get("logprobs")
        entries = listed.get("content") if isinstance(listed, dict) else None
        given = entries is not None and asked.get("logprobs") is not None
        kept = {key: value for key, value in choice.items() if key != "message"}
        kept["text"] = text
        kept["logprobs"] = old_logprobs(entries or [], asked["logprobs"]) if given else None
        made["choices"].append(kept | {key: reply.get(key) for key in _MOVED})
    return made

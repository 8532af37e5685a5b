"""What vLLM's replies hold of a captured call.

Owns: where ids, logprobs and routes stand in such a reply, and how a prefix is asked for.
Must not know: HTTP, sinks. Ids come from the engine alone; no text is ever tokenised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from explorer.custody.protocols import Material

_ID = re.compile(r"token_id:([0-9]{1,19})")


class VllmAdapter:
    """Reads chat replies; see `CaptureAdapter`."""

    def enter_prefix(self, request: dict[str, Any], prefix: Sequence[int]) -> dict[str, Any]:
        """With the ids that the prompt must begin with; a root asks for none."""
        return request | {"required_prefix_token_ids": list(prefix)} if len(prefix) else request

    def extract(self, reply: Any) -> Material:
        """What a reply holds.

        Raises:
            ValueError: it does not hold all of it, or has several choices.
        """
        choices = _mapping(reply, "the reply").get("choices")
        if not isinstance(choices, list) or len(choices) != 1:
            raise ValueError("a captured reply has exactly one choice")
        choice = _mapping(choices[0], "the choice")
        message = _mapping(choice.get("message"), "the message")
        prompt = reply.get("prompt_token_ids")
        if prompt is None:
            prompt = message.get("prompt_token_ids")
        generated, logprobs = _generation(choice, message)
        return Material(
            _ids(prompt, "prompt_token_ids"), generated, logprobs, _extras(reply, message)
        )


def _generation(
    choice: Mapping[str, Any], message: Mapping[str, Any]
) -> tuple[list[int], list[float]]:
    ids = message.get("generation_token_ids")
    if ids is not None:
        logprobs = message.get("generation_log_probs")
        return _ids(ids, "generation_token_ids"), _floats(logprobs)
    listed = _mapping(choice.get("logprobs"), "logprobs").get("content")
    if not isinstance(listed, list):
        raise ValueError("the reply has no sampled ids")
    entries = [_mapping(entry, "a logprob") for entry in listed]
    return [_id_of(entry.get("token")) for entry in entries], _floats(
        [entry.get("logprob") for entry in entries]
    )


def _extras(reply: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Routes and where pictures stand, as they came; None where there is nothing."""
    found = {}
    routes, spans = message.get("routed_experts"), reply.get("media_spans")
    if routes is not None:
        if not isinstance(routes, str | dict | list):
            raise ValueError("routed_experts are a text, an object or a list")
        found["routed_experts"] = routes
    if "media_spans" in reply:
        if not isinstance(spans, list) or not all(isinstance(span, dict) for span in spans):
            raise ValueError("media_spans are a list of objects")
        found["media_spans"] = spans
    return found or None


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is no object")
    return value


def _ids(value: Any, what: str) -> list[int]:
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise ValueError(f"{what} is no list of ids")
    return value


def _floats(value: Any) -> list[float]:
    """JSON may write a whole number without its fraction."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int, float}:
        raise ValueError("the reply has no list of logprobs")
    return [float(each) for each in value]


def _id_of(token: Any) -> int:
    found = _ID.fullmatch(token) if isinstance(token, str) else None
    if found is None:
        raise ValueError("a sampled token is not told by its id")
    return int(found[1])

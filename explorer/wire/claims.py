"""What a request body says about sessions and agents: claims, never authority.

Owns: which body fields are claims, and their bound.
Must not know: headers (`capture.draft` keeps those), what a claim is used for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

LONGEST = 256
# Fields that some harness fills with an id of its conversation, agent or kind of request.
_FIELDS = (
    "user",
    "session_id",
    "_session_id",
    "conversation_id",
    "thread_id",
    "parent_session_id",
    "parent_thread_id",
    "agent_id",
    "request_kind",
    "thread_source",
    "prompt_cache_key",
    "safety_identifier",
)
_OBJECTS = ("metadata", "client_metadata")


def body_claims(body: Mapping[str, Any]) -> dict[str, str]:
    """Claims by name, each at most `LONGEST` characters.

    ``metadata.user_id`` may itself be JSON (Claude Code); its fields are claims too.
    """
    found: dict[str, str] = {}
    _add(found, body)
    for name in _OBJECTS:
        inner = body.get(name)
        if isinstance(inner, Mapping):
            _add(found, inner)
            for key, value in _nested(inner):
                found.setdefault(key, value)
    return found


def json_claims(text: str) -> dict[str, str]:
    """Claims in a header or field whose value is a JSON object; none in any other text."""
    if not text.startswith("{") or len(text) > 64 * 1024:
        return {}
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    found: dict[str, str] = {}
    if isinstance(value, dict):
        _add(found, value)
    return found


def _add(found: dict[str, str], values: Mapping[str, Any]) -> None:
    for name in _FIELDS:
        value = values.get(name)
        if isinstance(value, str) and value:
            found.setdefault(name, value[:LONGEST])


def _nested(inner: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for value in inner.values():
        if isinstance(value, str):
            yield from json_claims(value).items()
    user = inner.get("user_id")
    if isinstance(user, str) and user and not user.startswith("{"):
        yield "user_id", user[:LONGEST]

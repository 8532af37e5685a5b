"""The script of the scripted engine: what may stand in it, read with clear errors.

Owns: the format of a script.
Must not know: how a reply is made.

A script is JSON: ``{"model": "scripted", "replies": [ENTRY, …], "repeat": true}``, or a
bare list of entries. An entry (all keys optional):

    text, reasoning            what the assistant says
    tool_calls                 [{"name": …, "arguments": {…} | "raw text"}]
    token_ids, logprobs        exact sampled ids and their logprobs (null allowed)
    prompt_token_ids           exact prompt ids
    finish_reason              default: tool_calls or stop; length where max_tokens cuts
    when                       {"contains": TEXT, "anywhere": TEXT, "tools": true}: for
                               requests whose last message contains the one text, any
                               message the other, that offer tools or none; as often as they
                               come, or `once`; these are tried first, the entries without
                               `when` are then taken in order, each once
    delay_ms, chunk_ms         wait before answering; and after each chunk of a stream
    chunks                     into how many pieces a stream cuts the text
    status, body, headers      answer with this HTTP status, JSON (or text) body and these
                               headers, such as {"retry-after": "1"}
    fault                      hang | unreachable | not_json | no_choices | no_ids |
                               no_prompt_ids | no_logprobs | wrong_usage | placeholder_ids |
                               cut | no_done | error_event (a stream that breaks off; what
                               is not streamed gets no reply)
    patch                      object merged over the reply's top level, last of all
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from explorer.engine.scripted_stream import STREAM_FAULTS
from explorer.errors import ConfigurationError

FAULTS = frozenset(
    [
        "hang",
        "unreachable",
        "not_json",
        "no_choices",
        "no_ids",
        "no_prompt_ids",
        "no_logprobs",
        "wrong_usage",
        "placeholder_ids",
        *STREAM_FAULTS,
    ]
)
KEYS = frozenset(
    [
        "text",
        "reasoning",
        "tool_calls",
        "token_ids",
        "logprobs",
        "prompt_token_ids",
        "finish_reason",
        "when",
        "delay_ms",
        "chunks",
        "chunk_ms",
        "once",
        "status",
        "body",
        "headers",
        "fault",
        "patch",
    ]
)


def checked(entry: Any, number: int) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise ConfigurationError(f"script reply {number} is not an object")
    unknown = sorted(set(entry) - KEYS)
    if unknown:
        raise ConfigurationError(
            f"script reply {number} has unknown keys {unknown}; known: {sorted(KEYS)}"
        )
    if entry.get("fault") not in (None, *FAULTS):
        raise ConfigurationError(
            f"script reply {number} has the unknown fault {entry['fault']!r}; "
            f"known: {sorted(FAULTS)}"
        )
    return entry


def read_script(path: Path) -> Any:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the script {path} cannot be read: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"the script {path} is not JSON: {error}") from error
    replies = document.get("replies") if isinstance(document, dict) else document
    if not isinstance(replies, list) or not replies:
        raise ConfigurationError(f"the script {path} has no `replies`")
    return document

"""Makes small recordings out of long ones: python -m tests.replay.trim SOURCE TARGET

SOURCE and TARGET are folders of ``HARNESS/SCENARIO.jsonl``. A long text becomes its first
letters and a hash, always the same for the same text, so that equality and common beginnings
survive. Replies are kept as what they say. Where the words of a tool call were replaced
otherwise in a reply than in its echo, the echo's words stand in both.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from tests.replay.recording import SUFFIX, Recorded, ToolCall, read

LONG, KEPT = 400, 200
LONG_IN_TOOLS, KEPT_IN_TOOLS = 60, 24
# Texts that are JSON or base64 themselves: cut, they would say nothing.
_WHOLE = frozenset(("arguments", "encrypted_content", "signature", "input_json", "user_id"))
_HEADERS = frozenset(
    (
        *("session-id", "thread-id", "session_id", "conversation_id", "originator"),
        *("user-agent", "anthropic-version", "anthropic-beta", "idempotency-key"),
        *("content-type", "accept"),
    )
)


def short(text: str, long: int = LONG, kept: int = KEPT) -> str:
    """The text, or its beginning and a hash of it."""
    if len(text) <= long:
        return text
    return f"{text[:kept]}…{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def shortened(value: Any, key: str = "", *, tools: bool = False) -> Any:
    """`value` with every long text shortened."""
    if isinstance(value, str):
        if tools:
            return short(value, LONG_IN_TOOLS, KEPT_IN_TOOLS)
        return value if key in _WHOLE else short(value)
    if isinstance(value, list):
        return [shortened(entry, key, tools=tools) for entry in value]
    if isinstance(value, dict):
        return {
            name: shortened(entry, name, tools=tools or name == "tools")
            for name, entry in value.items()
        }
    return value


def _kept_headers(headers: dict[str, str]) -> list[list[str]]:
    return [
        [name, value]
        for name, value in headers.items()
        if name in _HEADERS or (name.startswith("x-") and _says_more(name))
    ]


def _says_more(name: str) -> bool:
    counts = name == "x-stainless-retry-count"
    return (counts or not name.startswith("x-stainless")) and "key" not in name


def trim(source: Path, target: Path) -> None:
    """Writes the trimmed recording."""
    meta, calls = read(source)
    mend(calls)
    lines: list[Any] = [meta]
    tools_at: dict[str, int] = {}
    for call in calls:
        body = shortened(call.body)
        if isinstance(body, dict) and isinstance(body.get("tools"), list) and body["tools"]:
            written = json.dumps(body["tools"], sort_keys=True)
            first = tools_at.setdefault(written, call.n)
            if first != call.n:
                body["tools"] = {"as_in": first}
        lines.append(
            {
                "n": call.n,
                "method": call.method,
                "path": call.path,
                "headers": _kept_headers(call.headers),
                "body": body,
                "fault": call.broke_off,
                "response": _response(call),
            }
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def _response(call: Recorded) -> dict[str, Any]:
    if call.said is not None:
        told = {key: value for key, value in asdict(call.said).items() if value}
        for key in ("text", "reasoning"):
            if key in told:
                told[key] = short(told[key])
        return {"status": call.status, "said": told}
    return {"status": call.status} | ({"body": call.error} if call.error else {})


def mend(calls: list[Recorded]) -> None:
    """Gives replies the words of their echoes, in the spelling that the reply has."""
    _mend_texts(calls)
    echoes: dict[str, Any] = {}
    for call in calls:
        for tool_id, arguments in _echoed(call.body):
            echoes.setdefault(tool_id, arguments)
    for call in calls:
        for made in call.said.calls if call.said is not None else ():
            if made.id in echoes:
                made.arguments = _mended(made, echoes[made.id])


def _mend_texts(calls: list[Recorded]) -> None:
    """The text of a chat reply without calls, from the turn that stands behind its request's
    messages in the next request, where it is the same but for its words."""
    for call, later in itertools.pairwise(calls):
        if call.said is None or call.said.calls or "messages" not in (call.body or {}):
            continue
        place = len(call.body["messages"])
        turns = later.body["messages"] if isinstance(later.body, dict) else []
        echo = turns[place].get("content") if place < len(turns) else None
        if isinstance(echo, str) and _shape(echo) == _shape(call.said.text):
            call.said.text = echo


def _shape(text: str) -> str:
    return re.sub(r"[^\W\d_]+", "w", text)


def _echoed(value: Any) -> Iterator[tuple[str, Any]]:
    """Tool calls inside a request body with their arguments, in any dialect."""
    if isinstance(value, list):
        for entry in value:
            yield from _echoed(entry)
    elif isinstance(value, dict):
        name = value.get("call_id") or value.get("id")
        function = value.get("function")
        if isinstance(name, str):
            if isinstance(function, dict) and "arguments" in function:
                yield name, function["arguments"]
            for key in ("arguments", "input", "args"):
                if key in value:
                    yield name, value[key]
        for entry in value.values():
            yield from _echoed(entry)


def _mended(made: ToolCall, echo: Any) -> str:
    try:
        mine = json.loads(made.arguments)
        theirs = json.loads(echo) if isinstance(echo, str) else echo
    except ValueError:
        return made.arguments
    text = made.arguments
    for key, leaf in _leaves(mine):
        other = dict(_leaves(theirs)).get(key)
        if isinstance(leaf, str) and isinstance(other, str) and leaf != other:
            for ascii_only in (True, False):
                old = json.dumps(leaf, ensure_ascii=ascii_only)
                text = text.replace(old, json.dumps(other, ensure_ascii=ascii_only))
    return text


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            yield from _leaves(entry, (*path, key))
    else:
        yield path, value


def main(source: Path, target: Path) -> None:
    for path in sorted(source.glob("*/*.jsonl")):
        trim(path, target / path.parent.name / f"{path.stem}{SUFFIX}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""The command `drift`: what the server finds, page by page, and how it reads. Wiring only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from explorer.integrations.client import ExplorerClient


async def whole(client: ExplorerClient, rollout_id: str) -> dict[str, Any]:
    """The check of every call."""
    found: dict[str, Any] = {}
    cursor: int | None = 0
    while cursor is not None:
        path = f"/api/v1/rollouts/{rollout_id}/drift?limit=100&cursor={cursor}"
        part: dict[str, Any] = await client.request("GET", path)
        cursor = part.pop("next")
        if found:
            found["calls"] += part["calls"]
            for name, number in part["counts"].items():
                found["counts"][name] += number
        else:
            found = part
    return found


def in_words(found: Mapping[str, Any]) -> str:
    """For people: the templates, then every call, without what a terminal would obey."""
    lines = (
        "".join(letter if letter.isprintable() else "?" for letter in line)
        for line in _lines(found)
    )
    return "\n".join(lines)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    same = {True: "the engine's own", False: "not the engine's", None: "the engine's unknown"}
    if found["renderer"]:
        template = f"template {str(found['template_sha256'])[:12]}"
        yield f"rendered with {found['renderer']}: {template}, {same[found['same_template']]}"
    for call in found["calls"]:
        forms = call["forms"]
        told = [f"{form['arguments']}: {form['result']}" for form in forms]
        why = call["reason"] or (f"arguments as {', '.join(told)}" if len(forms) > 1 else "")
        yield f"call {call['sequence']}: {call['result']}" + (f" ({why})" if why else "")
        for form in forms if call["result"] == "mismatch" else ():
            if form["engine"] is not None:
                yield f"  arguments {form['arguments']}: differ at token {form['position']}"
                yield f"    engine   {form['engine']['text']!r}"
                yield f"    rendered {form['rendered']['text']!r}"
    counts = found["counts"]
    yield (
        f"{counts['match']} match, {counts['mismatch']} mismatch, "
        f"{counts['not_checkable']} not checkable"
    )

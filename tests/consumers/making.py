"""What consumer tests share: documents that break a rule, agents, skips with a reason."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer.integrations.attempts import Endpoint

needs_openenv = pytest.mark.skipif(
    importlib.util.find_spec("openenv") is None,
    reason="openenv is not installed: `make test-consumers` runs these",
)
needs_trl = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None,
    reason="trl is not installed: `make test-consumers` runs these",
)
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
AGENT = Path(__file__).with_name("small_agent.py")
COMMAND = (sys.executable, str(AGENT), "{task}")


def turn(node_id: str = "a", **changes: Any) -> dict[str, Any]:
    """One good call of a document; a change to None takes a key away."""
    made = {
        "node_id": node_id,
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [3, 4],
        "per_token_logps": [-0.5, -0.25],
        "loss_mask": [0, 0, 1, 1],
    } | changes
    return {key: value for key, value in made.items() if value is not None}


def document(*turns: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A document of schema 1."""
    return {"schema_version": 1, "turns": list(turns)} | changes


def text(*turns: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps(document(*turns, **changes)).encode()


def say(endpoint: Endpoint, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """One chat call through the proxy; the reply's message."""
    body = {"model": endpoint.model, "messages": messages, "max_tokens": 12} | more
    answer = httpx.post(f"{endpoint.openai}/chat/completions", json=body, timeout=60)
    answer.raise_for_status()
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


def talk(endpoint: Endpoint, first: str, turns: int = 2, **more: Any) -> None:
    """A conversation of several calls with a tool at hand."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": first}]
    for number in range(turns):
        reply = say(endpoint, messages, tools=[TOOL], **more)
        kept = {"role": "assistant", "content": reply["content"] or ""}
        if reply.get("reasoning"):
            kept["reasoning"] = reply["reasoning"]
        messages += [kept, {"role": "user", "content": f"Go on, {number}."}]


def scored(reward: float | None, turns: int = 2) -> Callable[[Any, Endpoint], float | None]:
    """An agent function that talks and is given a reward."""

    def agent(task: Any, endpoint: Endpoint) -> float | None:
        talk(endpoint, str(task), turns)
        return reward

    return agent

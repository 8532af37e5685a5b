"""The Python harnesses and frameworks that tests run, and how their programs are started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.harnesses.installed import Python

PROGRAMS = Path(__file__).with_name("programs")

# One environment for the frameworks: their programs stand in `programs/`.
LANGGRAPH = Python("langgraph", "python", "langgraph", "frameworks", heavy=False)
PYDANTIC_AI = Python("pydantic-ai", "python", "pydantic-ai-slim", "frameworks", heavy=False)
SMOLAGENTS = Python("smolagents", "python", "smolagents", "frameworks", heavy=False)
OPENAI_AGENTS = Python("openai-agents", "python", "openai-agents", "frameworks", heavy=False)

MINI = Python("mini-swe-agent", "mini", "mini-swe-agent", "mini-swe-agent")
VIBE = Python("vibe", "vibe", "mistral-vibe", "vibe")
OPENHANDS = Python("openhands", "openhands", "openhands", "openhands")
AIDER = Python("aider", "aider", "aider-chat", "aider")
TERMINUS = Python("terminus-2", "python", "harbor", "terminus-2")


def program(name: str, *words: str) -> tuple[str, ...]:
    """The command line of a program here, run by the harness's own Python."""
    return ("python", str(PROGRAMS / f"{name}.py"), *words)


def exact(name: str, **arguments: Any) -> dict[str, str]:
    """A tool call with Python's own spacing."""
    return {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


def compact(name: str, **arguments: Any) -> dict[str, str]:
    """A tool call without blanks, as most harnesses write it anew."""
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return {"name": name, "arguments": text}

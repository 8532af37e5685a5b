"""A smolagents agent: with tools (`tools`), with code (`code`), or with a plan (`planned`).

python smolagents_agent.py tools|code|planned unary|stream TASK

Prints each tool run and, last, the final answer.
"""

from __future__ import annotations

import os
import sys

from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool

MODEL = os.environ.get("AGENT_MODEL", "scripted")


@tool
def look(q: str) -> str:
    """Looks a word up.

    Args:
        q: The word.
    """
    sys.stdout.write(f"tool look {q}\n")
    return f"{q} means {q}"


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    sys.stdout.write(f"tool add {a} {b}\n")
    return a + b


kind, way, task = sys.argv[1:]
model = OpenAIModel(
    MODEL,
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
)
chosen = CodeAgent if kind == "code" else ToolCallingAgent
agent = chosen(
    tools=[look, add],
    model=model,
    verbosity_level=LogLevel.OFF,
    planning_interval=2 if kind == "planned" else None,
    stream_outputs=way == "stream",
    max_steps=6,
)
answer = agent.run(task)
# What is streamed is printed as it comes, and may end within a line.
print(f"\n{answer}")

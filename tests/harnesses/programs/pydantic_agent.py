"""A Pydantic AI agent with two tools. Prints each tool run and, last, the final text.

python pydantic_agent.py chat|responses|messages|google unary|stream TASK
"""

from __future__ import annotations

import asyncio
import os
import sys

from pydantic_ai import Agent
from pydantic_ai.models import Model

MODEL = os.environ.get("AGENT_MODEL", "scripted")


def model(wire: str) -> Model:
    if wire == "messages":
        from pydantic_ai.models.anthropic import AnthropicModel

        return AnthropicModel(MODEL)
    if wire == "google":
        from pydantic_ai.models.google import GoogleModel

        return GoogleModel(MODEL)
    if wire == "responses":
        from pydantic_ai.models.openai import OpenAIResponsesModel

        return OpenAIResponsesModel(MODEL)
    from pydantic_ai.models.openai import OpenAIChatModel

    return OpenAIChatModel(MODEL)


async def work(wire: str, way: str, task: str) -> None:
    agent = Agent(model(wire), system_prompt="You look things up.")

    @agent.tool_plain
    def look(q: str) -> str:
        """Looks a word up."""
        print(f"tool look {q}")
        return f"{q} means {q}"

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        print(f"tool add {a} {b}")
        return a + b

    if way == "unary":
        print((await agent.run(task)).output)
        return
    async with agent.run_stream(task) as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]
    print(f"pieces {len(pieces)}")
    print("".join(pieces))


asyncio.run(work(*sys.argv[1:]))

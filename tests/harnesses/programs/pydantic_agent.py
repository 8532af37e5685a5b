"""A Pydantic AI agent with two tools. Prints each tool run and, last, the final text.

python pydantic_agent.py chat|responses|messages|google unary|stream TASK
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterable

from pydantic_ai import Agent
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
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
        sys.stdout.write(f"tool look {q}\n")
        return f"{q} means {q}"

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        sys.stdout.write(f"tool add {a} {b}\n")
        return a + b

    pieces: list[str] = []

    async def watch(_: object, events: AsyncIterable[object]) -> None:
        async for event in events:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                pieces.append(event.part.content)
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                pieces.append(event.delta.content_delta)

    ended = await agent.run(task, event_stream_handler=watch if way == "stream" else None)
    if way == "stream":
        print(f"pieces {len(pieces)}: {''.join(pieces)}")
    print(ended.output)


asyncio.run(work(*sys.argv[1:]))

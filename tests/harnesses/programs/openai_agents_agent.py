"""An agent of the OpenAI Agents SDK with two tools and, for `handoff`, a second agent.

python openai_agents_agent.py chat|responses unary|stream|handoff TASK

Prints each tool run, the id of the final response and, last, the final text.
"""

from __future__ import annotations

import asyncio
import os
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api
from openai.types.responses import ResponseTextDeltaEvent

MODEL = os.environ.get("AGENT_MODEL", "scripted")


@function_tool
def look(q: str) -> str:
    """Looks a word up."""
    sys.stdout.write(f"tool look {q}\n")
    return f"{q} means {q}"


@function_tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    sys.stdout.write(f"tool add {a} {b}\n")
    return a + b


async def work(wire: str, way: str, task: str) -> None:
    set_default_openai_api("responses" if wire == "responses" else "chat_completions")
    agent = Agent(
        name="Finder", instructions="You look things up.", model=MODEL, tools=[look, add]
    )
    if way == "handoff":
        agent = Agent(
            name="Front",
            instructions="You hand over.",
            model=MODEL,
            tools=[look],
            handoffs=[agent],
        )
    if way == "stream":
        streamed = Runner.run_streamed(agent, task)
        pieces = []
        async for event in streamed.stream_events():
            if event.type == "raw_response_event" and isinstance(
                event.data, ResponseTextDeltaEvent
            ):
                pieces.append(event.data.delta)
        print(f"pieces {len(pieces)}: {''.join(pieces)}")
        print(streamed.final_output)
        return
    ended = await Runner.run(agent, task)
    if ended.last_response_id:
        print("ROLLOUT_EXPLORER_TERMINAL_RESPONSE_ID=" + ended.last_response_id)
    print(ended.final_output)


asyncio.run(work(*sys.argv[1:]))

"""A LangGraph agent with two tools. Prints each tool run and, last, the final text.

python langgraph_agent.py chat|responses|messages unary|stream TASK
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

MODEL = os.environ.get("AGENT_MODEL", "scripted")


@tool
def look(q: str) -> str:
    """Looks a word up."""
    sys.stdout.write(f"tool look {q}\n")
    return f"{q} means {q}"


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    sys.stdout.write(f"tool add {a} {b}\n")
    return a + b


def model(wire: str) -> BaseChatModel:
    if wire == "messages":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(model_name=MODEL, max_tokens_to_sample=2000)
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, use_responses_api=wire == "responses")


def graph(wire: str) -> Any:
    tools = [look, add]
    bound = model(wire).bind_tools(tools)

    async def agent(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    built = StateGraph(MessagesState)
    built.add_node("agent", agent)
    built.add_node("tools", ToolNode(tools))
    built.add_edge(START, "agent")
    built.add_conditional_edges("agent", tools_condition)
    built.add_edge("tools", "agent")
    return built.compile()


async def work(wire: str, way: str, task: str) -> None:
    state: Any = {"messages": [HumanMessage(task)]}
    compiled = graph(wire)
    if way == "unary":
        ended = await compiled.ainvoke(state)
        print(ended["messages"][-1].text)
        return
    pieces: list[str] = []
    async for mode, value in compiled.astream(state, stream_mode=["messages", "values"]):
        if mode == "values":
            state = value
        elif isinstance(value[0], AIMessageChunk) and value[0].text:
            pieces.append(value[0].text)
    print(f"pieces {len(pieces)}: {''.join(pieces)}")
    print(state["messages"][-1].text)


asyncio.run(work(*sys.argv[1:]))

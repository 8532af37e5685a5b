"""Terminus 2 on this machine's own tmux, without a container.

python terminus_agent.py FOLDER SESSION ROOM TASK

ROOM is the context (tokens) at which it sums up and hands over to itself. Prints, last, the
token ids that it collected: a list of segments, each with one entry for every call.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext

SPARE = 17_000
MODEL = os.environ.get("AGENT_MODEL", "openai/scripted")


class Here:
    """What the agent asks of its container, done on this machine."""

    session_id = "here"
    default_user = None

    def __init__(self, folder: Path) -> None:
        self.trial_paths = SimpleNamespace(agent_dir=folder)

    async def exec(self, command: str, **_: Any) -> ExecResult:
        process = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        return ExecResult(
            stdout=out.decode(), stderr=err.decode(), return_code=process.returncode or 0
        )

    async def is_dir(self, *_: Any, **__: Any) -> bool:
        return False


async def work(folder: str, session: str, room: str, task: str) -> None:
    environment: Any = Here(Path(folder))
    agent = Terminus2(
        logs_dir=Path(folder),
        model_name=MODEL,
        collect_rollout_details=True,
        session_id=session,
        record_terminal_session=False,
        proactive_summarization_threshold=SPARE,
        max_turns=12,
        model_info={
            "max_input_tokens": int(room) + SPARE,
            "max_output_tokens": 4000,
            "input_cost_per_token": 0.0,
            "output_cost_per_token": 0.0,
        },
    )
    context = AgentContext()
    try:
        await agent.setup(environment)
        await agent.run(task, environment, context)
    finally:
        await environment.exec("tmux kill-server")
    print("details " + json.dumps(context.rollout_details or []))


asyncio.run(work(*sys.argv[1:]))

"""A harness of a few lines, run as a command: two calls with a tool, then a word.

Reads OPENAI_BASE_URL and OPENAI_API_KEY like any SDK. What it is told to do, it does:
``exit 3`` fails, ``sleep`` never ends, ``silent`` calls nobody, ``once`` calls once.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from typing import Any

TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


def call(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One chat call; the reply's message."""
    body = {"model": "tiny", "messages": messages, "max_tokens": 12, "tools": [TOOL]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {
            "Content-Type": "application/json",
            "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


def main(task: str) -> int:
    """Does the task; the exit status."""
    assert "ROLLOUT_EXPLORER_TOKEN" not in os.environ
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for _ in range({"silent": 0, "once": 1}.get(task, 2)):
        reply = call(messages)
        kept = {"role": "assistant", "content": reply["content"] or ""}
        if reply.get("reasoning"):
            kept["reasoning"] = reply["reasoning"]
        messages += [kept, {"role": "user", "content": "Go on."}]
    if task == "sleep":
        time.sleep(600)
    print("done", task, os.environ["TASK"] == task, os.environ["OPENAI_API_KEY"])
    return int(task.removeprefix("exit ")) if task.startswith("exit ") else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Measure how often the tiny model is right, by playing whole episodes with its own engine.

    python -m scripts.evaluate_tiny explorer/engine/tiny/weights --episodes 100

No torch. Tools are answered here; an episode is right when its last turn says the right number.
Long prompts get standard library text in front of the system prompt. `--write` adds the table
to training_report.json.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from explorer.engine.tiny.model import Decoder
from explorer.engine.tiny.parse import parse_message
from explorer.engine.tiny.sampling import SamplingParameters
from explorer.engine.tiny.scheduler import Finished, Job, Scheduler
from explorer.engine.tiny.template import ChatTemplate
from explorer.engine.tiny.tokenizer import ByteTokenizer
from explorer.engine.tiny.weights import ModelWeights
from scripts.make_corpus import make_corpus
from scripts.tiny_tasks import (
    CALCULATOR,
    LOOKUP,
    SYSTEM,
    Task,
    price_task,
    question,
    sum_task,
)

ANSWER = re.compile(r"The answer is (-?\d+)\.")
LARGEST_TURNS = 6


@dataclass(slots=True)
class Episode:
    """One conversation in play."""

    task: Task
    messages: list[dict[str, Any]]
    turns: int = 0
    right: bool = field(default=False)


def answer_tool(task: Task, call: dict[str, Any]) -> str:
    """What the demo's tools would say."""
    name = call["function"]["name"]
    if name == "lookup":
        return task.table
    try:
        arguments = json.loads(call["function"]["arguments"])
        a, b = int(arguments["a"]), int(arguments["b"])
        results = {"add": a + b, "subtract": a - b, "multiply": a * b}
        return str(results[arguments["op"]])
    except (KeyError, TypeError, ValueError):
        return "error: bad arguments"


class Arena:
    """Plays episodes eight at once."""

    def __init__(self, folder: Path, temperature: float) -> None:
        self.tokenizer = ByteTokenizer(folder)
        self.template = ChatTemplate.read(folder)
        self.scheduler = Scheduler(Decoder(ModelWeights.read(folder)))
        self.temperature = temperature
        self.end = self.tokenizer.id_of("<|im_end|>") or 0
        self.tokens = 0
        self.prompt_tokens: list[int] = []

    def submit(self, name: str, episode: Episode, seed: int) -> None:
        tools = [CALCULATOR, LOOKUP] if episode.task.item else [CALCULATOR]
        text = self.template.render({"messages": episode.messages, "tools": tools})
        ids = tuple(self.tokenizer.encode(text))
        if not episode.turns:
            self.prompt_tokens.append(len(ids))
        parameters = SamplingParameters(temperature=self.temperature, seed=seed)
        self.scheduler.add(Job(name, ids, 120, parameters, (self.end,)))

    def advance(self, episode: Episode, done: Finished) -> bool:
        """Take one turn; False when the episode is over."""
        self.tokens += len(done.tokens)
        raw = b"".join(
            self.tokenizer.raw(t.token_id) for t in done.tokens if t.token_id != self.end
        )
        parsed = parse_message(raw.decode("utf-8", "replace"), tools=True)
        episode.turns += 1
        if not parsed.tool_calls:
            found = ANSWER.search(parsed.content or "")
            episode.right = found is not None and int(found[1]) == episode.task.result
            return False
        calls = [call.as_json() for call in parsed.tool_calls]
        episode.messages.append(
            {
                "role": "assistant",
                "reasoning": parsed.reasoning,
                "content": parsed.content,
                "tool_calls": calls,
            }
        )
        for call in calls:
            episode.messages.append(
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "content": answer_tool(episode.task, call),
                }
            )
        return episode.turns < LARGEST_TURNS

    def play(self, episodes: list[Episode], seed: int) -> float:
        """The share of right episodes."""
        for index, episode in enumerate(episodes):
            self.submit(str(index), episode, seed + index)
        while self.scheduler.busy:
            for done in self.scheduler.step():
                episode = episodes[int(done.job.name)]
                if self.advance(episode, done):
                    self.submit(done.job.name, episode, seed + 1000 * episode.turns)
        return sum(episode.right for episode in episodes) / len(episodes)


def make_task(rng: random.Random, kind: str, digits: int) -> Task:
    return sum_task(rng, digits) if kind == "sum" else price_task(rng, 4, digits)


def main() -> None:
    parser = argparse.ArgumentParser(description="measure the tiny model's accuracy")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=60, help="episodes a cell")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lengths", type=int, nargs="*", default=[0, 2000, 6000])
    parser.add_argument("--kinds", nargs="*", default=["sum", "price"])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    english = "\n\n".join(make_corpus().english)
    table: list[dict[str, Any]] = []
    for length in options.lengths:
        # A few shared prefixes: the engine's prefix cache makes long cells affordable.
        starts = [rng.randrange(len(english) - 60_000) for _ in range(6)]
        leads = [
            english[start : start + 3 * length] + "\n\n" if length else "" for start in starts
        ]
        for kind in options.kinds:
            for digits in (1, 2, 3):
                arena = Arena(options.folder, options.temperature)
                episodes = []
                for index in range(options.episodes):
                    task = make_task(rng, kind, digits)
                    lead = leads[index * len(leads) // options.episodes]
                    episodes.append(
                        Episode(
                            task,
                            [
                                {"role": "system", "content": lead + SYSTEM},
                                {"role": "user", "content": question(rng, task)},
                            ],
                        )
                    )
                began = time.monotonic()
                share = arena.play(episodes, options.seed * 10_000)
                spent = time.monotonic() - began
                row = {
                    "kind": kind,
                    "digits": digits,
                    "right": round(share, 3),
                    "prompt_tokens": sum(arena.prompt_tokens) // len(arena.prompt_tokens),
                    "episodes": options.episodes,
                    "tokens_per_s": round(arena.tokens / spent),
                }
                table.append(row)
                print(json.dumps(row), flush=True)
    if options.write:
        path = options.folder / "training_report.json"
        report = json.loads(path.read_text(encoding="utf-8"))
        report["accuracy"] = {"temperature": options.temperature, "rows": table}
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Reads a Dockerfile as far as this repository writes one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Step:
    """One instruction; `text` is all of it on one line."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words of a COPY or a form in JSON."""
        if self.text.startswith("["):
            return [str(word) for word in json.loads(self.text)]
        return self.text.split()


def read(path: Path = ROOT / "Dockerfile") -> list[Step]:
    """Every instruction in order; comments are left out."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    steps = []
    for line in joined.splitlines():
        if line.strip():
            name, _, text = line.strip().partition(" ")
            steps.append(Step(name.upper(), text.strip()))
    return steps


def final(steps: list[Step]) -> list[Step]:
    """The instructions of the last stage."""
    last = max(index for index, step in enumerate(steps) if step.name == "FROM")
    return steps[last:]


def environment(steps: list[Step]) -> dict[str, str]:
    """What ENV sets."""
    found: dict[str, str] = {}
    for step in steps:
        if step.name == "ENV":
            found.update(pair.split("=", 1) for pair in step.text.split())  # type: ignore[misc]
    return found

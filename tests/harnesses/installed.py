"""The real harnesses that tests run: where they lie, what version they are.

Each lies in a folder below `.harnesses`, put there by `scripts/install-harnesses`. One that
is not there is skipped with its reason, unless nothing may be skipped.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".harnesses"
NODE = FOLDER / "node" / "node_modules" / ".bin"
REQUIRE = "ROLLOUT_EXPLORER_REQUIRE_HARNESSES"
HEAVY = "ROLLOUT_EXPLORER_HEAVY_HARNESSES"


@dataclass(frozen=True)
class Node:
    """A harness from npm: `profile` of ours, its `program` and `package`, its `folder`."""

    profile: str
    program: str
    package: str
    folder: str
    heavy: bool = True

    @property
    def bin(self) -> Path:
        """The folder with its program."""
        return FOLDER / self.folder / "node_modules" / ".bin"

    def version(self) -> str | None:
        """The installed version; None where it is not installed."""
        place = FOLDER / self.folder / "node_modules" / self.package / "package.json"
        if not (place.is_file() and (self.bin / self.program).exists()):
            return None
        return str(json.loads(place.read_text())["version"])


@dataclass(frozen=True)
class Python:
    """A harness from PyPI, in a virtual environment of its own."""

    profile: str
    program: str
    package: str
    folder: str
    heavy: bool = True

    @property
    def bin(self) -> Path:
        """The folder with its program."""
        return FOLDER / self.folder / "bin"

    def version(self) -> str | None:
        """The installed version; None where it is not installed."""
        name = self.package.replace("-", "_")
        pattern = f"lib/python3*/site-packages/{name}-*.dist-info"
        found = sorted((FOLDER / self.folder).glob(pattern))
        return found[-1].name.removesuffix(".dist-info").rpartition("-")[2] if found else None


Harness = Node | Python

PI = Node("pi", "pi", "@earendil-works/pi-coding-agent", "basic", heavy=False)
CODEX = Node("codex", "codex", "@openai/codex", "basic", heavy=False)
OPENCODE = Node("opencode", "opencode", "opencode-ai", "opencode")
QWEN = Node("qwen-code", "qwen", "@qwen-code/qwen-code", "qwen-code")
GEMINI = Node("gemini-cli", "gemini", "@google/gemini-cli", "gemini-cli")
CLINE = Node("cline", "cline", "cline", "cline")
CONTINUE = Node("continue", "cn", "@continuedev/cli", "continue")
CLAUDE = Node("claude-code", "claude", "@anthropic-ai/claude-code", "claude-code")

HARNESSES: dict[str, Harness] = {
    each.profile: each for each in (PI, CODEX, OPENCODE, QWEN, GEMINI, CLINE, CONTINUE, CLAUDE)
}


def require(harness: Harness) -> str:
    """The version; skips, or fails where nothing may be skipped, when it is not there."""
    version = harness.version()
    if version is None:
        words = f"heavy {harness.folder}" if harness.heavy else harness.folder
        why = f"{harness.package} is not installed (scripts/install-harnesses {words})"
        if os.environ.get(REQUIRE) and not harness.heavy:
            pytest.fail(f"{REQUIRE} is set, but {why}")
        pytest.skip(why)
    return version

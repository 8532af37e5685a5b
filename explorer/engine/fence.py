"""What may be done with an engine's weights from here, and what it calls them.

Owns: the protocol of engine control, and the two engines that have none or load by file.
Must not know: who announces, which calls wait, vLLM's routes (`fence_vllm` does).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from explorer.engine.protocol import Engine
from explorer.engine.tiny.engine import TinyEngine
from explorer.errors import BadRequest

# What an engine is taken to call its weights that says so elsewhere and does not answer now.
UNREADABLE = "(unreadable)"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that an engine was asked to do; `said` is what went wrong."""

    name: str
    ok: bool
    said: str = ""

    def as_json(self) -> dict[str, Any]:
        """For answers and rows."""
        return {"step": self.name, "ok": self.ok, **({"said": self.said} if self.said else {})}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights that an engine has taken in: digest of the file, its own names for them."""

    sha256: str
    label: str
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class Published:
    """What came of telling an engine that its weights are new; all or not `ok`."""

    steps: tuple[Step, ...] = ()
    label: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every step was done."""
        return all(step.ok for step in self.steps)


class EngineControl(Protocol):
    """What the fence may ask of an engine. No method raises for an engine that is away,
    except `load`."""

    embedded: bool
    """The engine is ours: when it starts again, it starts with the weights loaded last."""
    names_weights: bool
    """The engine is asked before and after each call which weights it has, and answers."""

    async def label(self) -> str | None:
        """What the engine calls its weights now; None where it does not say."""
        ...

    async def pause(self) -> Step | None:
        """Freezes generations; None where this engine is not ours to pause."""
        ...

    async def resume(self) -> Step | None:
        """Lets them go on."""
        ...

    async def publish(self, label: str, *, paused: bool) -> Published:
        """Names the new weights, forgets what was computed with the old ones, and lets a
        paused engine go on."""
        ...

    async def load(self, path: Path, label: str) -> Loaded:
        """Puts weights from a file of this machine into the engine.

        Raises:
            BadRequest: not an engine that can, or not a file that fits; nothing has changed.
            EngineUnavailable, EngineTimeout: nobody knows what came of it.
        """
        ...


@dataclass(slots=True)
class NoControl:
    """An engine that we may only ask for tokens."""

    embedded: bool = False
    names_weights: bool = False

    async def label(self) -> str | None:
        return None

    async def pause(self) -> Step | None:
        return None

    async def resume(self) -> Step | None:
        return None

    async def publish(self, label: str, *, paused: bool) -> Published:
        return Published()

    async def load(self, path: Path, label: str) -> Loaded:
        raise BadRequest(
            "`weights_path` is for the built-in tiny engine; load the weights into your own "
            "engine yourself, then announce the version without it"
        )


class TinyControl(NoControl):
    """The tiny engine: it takes weights from a file between two steps."""

    def __init__(self, engine: TinyEngine) -> None:
        super().__init__(embedded=True)
        self._engine = engine

    async def load(self, path: Path, label: str) -> Loaded:
        sha256, fingerprint = await self._engine.load_weights(path, label)
        return Loaded(sha256, label, fingerprint)


def make_control(engine: Engine, mode: str) -> EngineControl:
    """The control of an engine. `mode` is the setting: `off` or `auto`."""
    from explorer.engine.fence_vllm import VllmControl
    from explorer.engine.http import HttpEngine

    if isinstance(engine, TinyEngine):
        return TinyControl(engine)
    if isinstance(engine, HttpEngine) and mode == "auto":
        return VllmControl(engine)
    return NoControl(embedded=not isinstance(engine, HttpEngine))

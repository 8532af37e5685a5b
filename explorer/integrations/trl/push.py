"""New weights after each step: the fence closes, the engine takes them, the version rises.

Owns: at which of the trainer's events that happens, and which number a step's weights have.
Must not know: torch, how weights are written or loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from explorer.errors import ConfigurationError
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.trl.weights import WeightFence, forget_older, save_model

logger = logging.getLogger(__name__)


class WeightPush:
    """A callback of TRL's `GRPOTrainer` that keeps engine and trainer on known versions.

        push = WeightPush(server, folder=Path("weights"))
        rollouts = LiveRollouts(server, agent, weights=push)
        GRPOTrainer(..., callbacks=[push], rollout_func=rollouts)

    With a folder the weights are written there and the server's embedded engine loads them.
    Without one the engine is TRL's to update (vLLM): the fence closes after the step, TRL
    sends its weights before the next batch, and `LiveRollouts` opens the fence then.

    The weights of step N have the version `first_version + N`, pushed or not, so that what a
    trainer computes between two pushes is not taken for the engine's version.

    Args:
        folder: where weights are written; the server must see it under the same path.
        every: push after every so many steps.
        first_version: of the weights before the first step; by default one above what the
            server was last told.
        fence: one with another lease or patience than the default.

    Attributes:
        pushed: the versions that the engine was given.
    """

    def __init__(
        self,
        server: ExplorerServer,
        folder: Path | None = None,
        *,
        every: int = 1,
        first_version: int | None = None,
        fence: WeightFence | None = None,
    ) -> None:
        if every < 1:
            raise ConfigurationError("`every` must be at least 1")
        self.fence = fence or WeightFence(server)
        self.folder = folder
        self.every = every
        self.first_version = first_version
        self.pushed: list[int] = []
        self._base: int | None = None
        self._coming: int | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        # A trainer calls every event of every callback; transformers' own base class is not
        # used, so that this module needs no torch.
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)

    # -- the trainer's events

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """The engine and the trainer begin with the same weights."""
        if self._base is None:
            first = self.first_version
            if first is None:
                known = self.fence.current()
                first = 0 if known is None else known + 1
            self._base = first - int(state.global_step)
        self._push(state, more)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """After the optimiser's step."""
        if state.global_step % self.every == 0:
            self._push(state, more)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Nothing is sent any more: the engine keeps what it has, and the fence says so."""
        if self._coming is not None and _first_process(state):
            self._coming = None
            known = self.pushed[-1] if self.pushed else self.fence.current()
            # Where nobody ever said what the engine has, the lease runs out.
            if known is not None:
                self.fence.open(known)

    # -- for rollout functions

    def version_of(self, trainer: Any) -> int:
        """The version of the weights that the trainer has now."""
        if self._base is None:
            raise ConfigurationError(
                "the trainer has no weight version yet: give it this object as a callback, "
                "GRPOTrainer(callbacks=[push])"
            )
        return self._base + int(trainer.state.global_step)

    def before_rollouts(self, trainer: Any) -> None:
        """TRL has sent its weights by now: opens the fence, where it waits for that."""
        if self._coming is not None and _first_process(trainer.state):
            self._opened(self._coming, None)

    def _push(self, state: Any, more: dict[str, Any]) -> None:
        if self._base is None or not _first_process(state):
            return
        version = self._base + int(state.global_step)
        self.fence.close(version)
        if self.folder is None:
            self._coming = version
            return
        name = f"version-{version:08d}"
        path = save_model(more["model"], more.get("processing_class"), self.folder / name)
        self._opened(version, path)
        forget_older(self.folder, "version-[0-9]*")

    def _opened(self, version: int, path: Path | None) -> None:
        # An engine that TRL updates has its own name for its weights.
        self.fence.open(version, path, None if path is None else f"version-{version}")
        self.pushed.append(version)
        self._coming = None


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _first_process(state: Any) -> bool:
    return bool(getattr(state, "is_world_process_zero", True))

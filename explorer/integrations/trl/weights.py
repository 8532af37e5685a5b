"""The weight fence as a trainer uses it, and weights as files.

Owns: when the fence is closed and opened, and in what form weights are written.
Must not know: TRL's trainers; how an engine loads what it is told to.

While the fence is closed no call is sampled. What crosses it all the same is marked by the
server and does not train, so that a fence that will not empty delays training and cannot
spoil it.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.errors import ConfigurationError
from explorer.integrations.blocking import ExplorerServer

logger = logging.getLogger(__name__)
WEIGHTS_FILE = "model.safetensors"
_KEPT = 2


@dataclass
class WeightFence:
    """The server's fence in a trainer's hand.

    Attributes:
        drain: what happens to calls in flight: "wait", "pause" or "none".
        lease_s: how long the fence stays closed if this process dies.
        patience_s: how long calls in flight are waited for; those that still run then will
            cross the update, and the server marks them.
        closings: how often the fence was closed.
        undrained: how often calls were still in flight when patience ended.
    """

    server: ExplorerServer
    drain: str = "wait"
    lease_s: int = 300
    patience_s: float = 120.0
    wait_s: int = 20
    closings: int = 0
    undrained: int = 0

    def current(self) -> int | None:
        """The version that the server was last told, or None when it never was."""
        found = self.server.weights()["weight_version"]
        return None if found is None else int(found)

    def close(self, coming: int) -> None:
        """Lets no new call in, and waits for those in flight."""
        until = time.monotonic() + self.patience_s
        while True:
            answer = self.server.weights(
                "syncing", coming, drain=self.drain, lease_s=self.lease_s, wait_s=self.wait_s
            )
            if answer["drained"] or self.drain == "none":
                break
            if time.monotonic() >= until:
                self.undrained += 1
                logger.warning(
                    "%s calls were still in flight after %g s; they cross the update to "
                    "version %s, and do not train",
                    answer["in_flight"],
                    self.patience_s,
                    coming,
                )
                break
        self.closings += 1

    def open(self, version: int, weights: Path | None = None, label: str | None = None) -> None:
        """Says which weights the engine has now; calls are let in again.

        Args:
            weights: a file or folder that the server's own engine loads first.
        """
        more: dict[str, Any] = {}
        if weights is not None:
            more["weights_path"] = str(weights.resolve())
        if label is not None:
            more["engine_weight_label"] = label
        self.server.weights("ready", version, **more)


def save_tensors(tensors: Iterable[tuple[str, Any]], path: Path) -> Path:
    """Writes tensors as float32; the file appears whole or not at all."""
    import torch
    from safetensors.torch import save_file

    held = {
        name: tensor.detach().to("cpu", torch.float32).clone().contiguous()
        for name, tensor in tensors
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    save_file(held, unfinished, metadata={"format": "pt"})
    unfinished.replace(path)
    return path


def save_model(model: Any, tokenizer: Any, folder: Path) -> Path:
    """A model folder that the tiny engine loads and `transformers` too.

    Raises:
        ConfigurationError: the model has adapters, whose weights stand beside the model's.
    """
    if hasattr(model, "peft_config"):
        raise ConfigurationError(
            "a model with adapters cannot be pushed as it is: the engine has no place for "
            "them; train the whole model, or let vLLM load the adapter"
        )
    unfinished = folder.with_name(folder.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    model.config.save_pretrained(unfinished)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(unfinished)
    if tokenizer is not None:
        tokenizer.save_pretrained(unfinished)
    # Tied weights are one parameter, and so stand once in the file.
    save_tensors(model.named_parameters(), unfinished / WEIGHTS_FILE)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.replace(folder)
    return folder


def forget_older(folder: Path, pattern: str, kept: int = _KEPT) -> None:
    """Removes all but the newest of what we wrote, by name."""
    for old in sorted(folder.glob(pattern))[:-kept]:
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)

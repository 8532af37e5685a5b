"""Weights of TRL's asynchronous trainer, sent behind the fence.

Owns: the order in which fence, engine and sender are told.
Must not know: torch; how TRL streams weights to vLLM.

An update that fails half-way leaves the fence closed: its lease runs out, and what is
sampled after that has no known version, because nobody knows which weights the engine has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from explorer.errors import ConfigurationError
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.trl.weights import WeightFence, forget_older, save_tensors


class FencedTransfer:
    """TRL's `WeightTransferProtocol` behind our fence.

        AsyncGRPOTrainer(..., weight_transfer=FencedTransfer(server, folder=Path("weights")))

    For vLLM put it around what TRL made, which then sends the weights as it always does:

        trainer.weight_transfer = FencedTransfer(server, trainer.weight_transfer)

    Args:
        inner: TRL's own transfer; the fence is closed before it pauses the engine and
            opened after it resumed it.
        folder: without `inner`, weights are written there and the server's embedded
            engine loads them.
        first_version: of the first weights sent; by default one above what the server was
            last told (1 for a fresh one, as TRL counts).

    Attributes:
        version: of the weights that were sent last; None before the first.
    """

    def __init__(
        self,
        server: ExplorerServer,
        inner: Any = None,
        *,
        folder: Path | None = None,
        first_version: int | None = None,
        fence: WeightFence | None = None,
    ) -> None:
        if (inner is None) == (folder is None):
            raise ConfigurationError("give either TRL's own transfer or a folder")
        self.fence = fence or WeightFence(server)
        self.version: int | None = None
        self._inner = inner
        self._folder = folder
        self._coming = first_version
        self._written: Path | None = None

    def init_weight_transfer(self) -> None:
        """Before the first transfer."""
        if self._coming is None:
            self._coming = (self.fence.current() or 0) + 1
        if self._inner is not None:
            self._inner.init_weight_transfer()

    def pause(self) -> None:
        """No new call is sampled from here on."""
        assert self._coming is not None, "init_weight_transfer comes first"
        self.fence.close(self._coming)
        if self._inner is not None:
            self._inner.pause()

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Takes every parameter."""
        if self._inner is not None:
            self._inner.send_weights(iterator)
            return
        assert self._folder is not None, "there is a folder where there is no transfer"
        path = self._folder / f"version-{self._coming:08d}.safetensors"
        self._written = save_tensors(iterator, path)
        forget_older(self._folder, "version-*.safetensors")

    def resume(self) -> None:
        """The engine has the new weights: calls are let in again."""
        assert self._coming is not None, "init_weight_transfer comes first"
        if self._inner is not None:
            self._inner.resume()
        label = None if self._written is None else f"version-{self._coming}"
        self.fence.open(self._coming, self._written, label)
        self.version, self._coming = self._coming, self._coming + 1

    def destroy(self) -> None:
        """At the end of training."""
        if self._inner is not None:
            self._inner.destroy()

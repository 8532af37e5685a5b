"""The tiny engine as the rest of the project sees it.

Owns: its options, and what its model folder says. Must not know: the child's life, arithmetic.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from explorer.engine.protocol import EngineFacts, TokenPiece
from explorer.engine.tiny.parts import Spellings
from explorer.engine.tiny.process import ChildEngine
from explorer.engine.tiny.runtime import PromptMaker, TinyOptions, read_facts
from explorer.engine.tiny.sampling import LogprobsMode
from explorer.engine.tiny.weights import SHIPPED, file_sha256
from explorer.errors import BadRequest


class TinyEngine(ChildEngine):
    """Samples from a small model, eight requests at once by default.

    Args:
        model_dir: a model folder; None is the model that the package ships.
        max_batch: requests decoded together; more are queued.
        model: the name served; other names are answered with 404.
        max_model_len: context in tokens; None is the model's own.
        default_max_tokens: bound for requests that name none.
        logprobs_mode: `raw_logprobs` reports the network's own values instead of the sampled
            ones, as a vLLM with its default flags does.
        weight_version: label of the weights, given back to `return_weight_versions`.
    """

    kind = "tiny"
    child_module = "explorer.engine.tiny.child"

    def __init__(
        self,
        model_dir: Path | None = None,
        *,
        max_batch: int = 8,
        model: str = "tiny",
        max_model_len: int | None = None,
        default_max_tokens: int = 1024,
        logprobs_mode: str = LogprobsMode.PROCESSED,
        weight_version: str = "default",
    ) -> None:
        super().__init__()
        self.options = TinyOptions(
            folder=Path(model_dir or SHIPPED).resolve(),
            model=model,
            max_batch=max_batch,
            max_model_len=max_model_len,
            default_max_tokens=default_max_tokens,
            logprobs_mode=LogprobsMode(logprobs_mode),
            weight_version=weight_version,
        )
        self._prompts: PromptMaker | None = None
        self._first_label = weight_version
        self._loading = asyncio.Lock()
        self._kept: tempfile.TemporaryDirectory[str] | None = None
        self._copies = 0

    async def load_weights(self, path: Path, label: str) -> tuple[str, str]:
        """Goes on with the weights of a file (or of `model.safetensors` in a folder), called
        `label`: requests that run go on with them from their next token. A child that has to be
        started again starts with them. Gives the file's SHA-256 and the new fingerprint.

        The file is copied first, so that nobody can change it under the child.

        Raises:
            BadRequest: not such a file, or one that does not fit; nothing has changed.
            EngineUnavailable, EngineTimeout: the child died, or hangs.
        """
        async with self._loading:
            kept = await asyncio.to_thread(self._keep, path)
            try:
                reply = await self.question("load_weights", path=str(kept), label=label)
                told = orjson.loads(reply.body)
                if reply.status != 200:
                    said = str(told["error"]["message"]).replace(str(kept), str(path))
                    raise BadRequest(said, param="weights_path")
            except BaseException:
                kept.unlink(missing_ok=True)
                raise
            before = self.options.weights
            self.options = replace(self.options, weights=kept, weight_version=label)
            if before is not None:
                before.unlink(missing_ok=True)
            return await asyncio.to_thread(file_sha256, kept), str(told["fingerprint"])

    def _keep(self, path: Path) -> Path:
        source, likely = path, 4 * (self.options.folder / "model.safetensors").stat().st_size
        try:
            source = path / "model.safetensors" if path.is_dir() else path
            # The kernel's own files have no size, and some of them never end.
            if not source.exists():
                raise BadRequest(
                    f"there is no {source} on the server's machine", param="weights_path"
                )
            if not source.is_file() or not 0 < source.stat().st_size <= likely:
                raise BadRequest(
                    f"{source} is not a file of weights for this model", param="weights_path"
                )
            if self._kept is None:
                self._kept = tempfile.TemporaryDirectory(prefix="rollout-explorer-weights-")
            self._copies += 1
            kept = Path(self._kept.name) / f"{self._copies}.safetensors"
            shutil.copyfile(source, kept)
        except (OSError, ValueError) as problem:
            raise BadRequest(
                f"{str(source)[:300]!r} cannot be read: {str(problem)[:300]!r}",
                param="weights_path",
            ) from problem
        return kept

    async def stop(self) -> None:
        """Ends the child. A later start has the weights of the model folder again."""
        await super().stop()
        if self._kept is not None:
            self._kept.cleanup()
            self._kept = None
            self.options = replace(self.options, weights=None, weight_version=self._first_label)

    def child_options(self) -> TinyOptions:
        """The options that this engine was made with."""
        return self.options

    def child_environment(self) -> Mapping[str, str]:
        """One thread: a batch of small matrices is slower on several."""
        return dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
        )

    async def facts(self) -> EngineFacts:
        """What the model folder says; needs no child. Raises ConfigurationError."""
        return await asyncio.to_thread(read_facts, self.options)

    async def vocabulary(self) -> tuple[TokenPiece, ...]:
        """Every id with its bytes. Raises ConfigurationError."""
        return (await self.spellings()).pieces

    async def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The prompt ids of a chat body. Raises BadRequest."""
        prompts = await asyncio.to_thread(self._load_prompts)
        return await asyncio.to_thread(prompts.ids, body)

    async def spellings(self) -> Spellings:
        """The bytes of ids. Raises ConfigurationError."""
        return (await asyncio.to_thread(self._load_prompts)).tokenizer

    def _load_prompts(self) -> PromptMaker:
        if self._prompts is None:
            self._prompts = PromptMaker(self.options.folder)
        return self._prompts

"""The tiny engine as the rest of the project sees it.

Owns: its options, and what its model folder says. Must not know: the child's life, arithmetic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from explorer.engine.protocol import EngineFacts, TokenPiece
from explorer.engine.tiny.parts import Spellings
from explorer.engine.tiny.process import ChildEngine
from explorer.engine.tiny.runtime import PromptMaker, TinyOptions, read_facts
from explorer.engine.tiny.sampling import LogprobsMode
from explorer.engine.tiny.weights import SHIPPED


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

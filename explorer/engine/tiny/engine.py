"""The tiny engine as the rest of the project sees it.

Owns: its options, and what its model folder says. Must not know: the child's life, arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from explorer.engine.protocol import EngineFacts
from explorer.engine.tiny.process import ChildEngine
from explorer.engine.tiny.runtime import VERSION, PromptMaker, TinyOptions, fingerprint
from explorer.engine.tiny.sampling import LogprobsMode
from explorer.engine.tiny.weights import SHIPPED, ModelShape, file_sha256


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

    def child_options(self) -> TinyOptions:
        """The options that this engine was made with."""
        return self.options

    def child_environment(self) -> Mapping[str, str]:
        """One thread: a batch of small matrices is slower on several."""
        return dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
        )

    def make_prompts(self) -> PromptMaker:
        """Template and tokenizer of the folder. Raises ConfigurationError."""
        return PromptMaker(self.options.folder)

    def read_facts(self) -> EngineFacts:
        """What the model folder says. Raises ConfigurationError."""
        folder = self.options.folder
        own = ModelShape.read(folder).max_positions
        return EngineFacts(
            name="tiny",
            version=VERSION,
            model=self.options.model,
            max_model_len=min(own, self.options.max_model_len or own),
            tokenizer_sha256=file_sha256(folder / "tokenizer.json"),
            chat_template_sha256=file_sha256(folder / "chat_template.jinja"),
            fingerprint=fingerprint(folder),
            certifiable=True,
        )

"""The child process of the local engine: loads a model with torch, then serves as every child.

    python -m explorer.engine.local.child OPTIONS_JSON

Owns: loading a Hugging Face model. Must not know: pipes, requests.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path
from typing import Any

from explorer.engine.local.folder import fingerprint
from explorer.engine.local.network import choose_network
from explorer.engine.local.prompts import LocalPrompts
from explorer.engine.protocol import EngineFacts
from explorer.engine.tiny import child
from explorer.engine.tiny.parts import Parts
from explorer.engine.tiny.runtime import TinyOptions, TinyRuntime
from explorer.errors import ConfigurationError

POOL_BYTES = 1 << 30
"""Memory for prefixes of earlier prompts."""
NO_LIMIT = 1 << 20
"""A tokenizer that names a length beyond this means that it knows none."""
UNKNOWN_CONTEXT = 32_768
"""Context, in tokens, of a model that names none: one without positions."""


def load_model(folder: Path) -> Any:
    """The network in float32. Raises ConfigurationError."""
    # Imported here: only this process needs them, and they take seconds.
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise ConfigurationError(
            f"the model in {folder} cannot be loaded: {error}", folder=str(folder)
        ) from error
    if report["missing_keys"]:
        # transformers would fill them with noise, and sample from it.
        names = ", ".join(sorted(report["missing_keys"])[:3])
        raise ConfigurationError(
            f"the model in {folder} lacks weights: {names}", folder=str(folder)
        )
    return model.eval()


def context_length(config: Any, tokenizer_limit: int) -> int:
    """The longest sequence, in tokens, that a model is made for."""
    own = getattr(config.get_text_config(), "max_position_embeddings", None)
    if isinstance(own, int) and own > 0:
        return own
    return tokenizer_limit if tokenizer_limit < NO_LIMIT else UNKNOWN_CONTEXT


def end_ids(model: Any, tokenizer_end: int | None) -> tuple[int, ...]:
    """What ends a reply: the generation config's ids (else the config's), the tokenizer's."""
    named = model.generation_config.eos_token_id
    if named is None:
        named = getattr(model.config.get_text_config(), "eos_token_id", None)
    found = [named] if isinstance(named, int) else list(named or ())
    if tokenizer_end is not None:
        found.append(tokenizer_end)
    return tuple(dict.fromkeys(found))


def load(options: TinyOptions) -> TinyRuntime:
    """A runtime around the model of `options.folder`. Raises ConfigurationError."""
    folder = options.folder
    prompts = LocalPrompts(folder)
    model = load_model(folder)
    network, vocab_size, token_bytes = choose_network(model)
    own = context_length(model.config, prompts.longest)
    facts = EngineFacts(
        name="transformers",
        version=importlib.metadata.version("transformers"),
        model=options.model,
        max_model_len=min(own, options.max_model_len or own),
        tokenizer_sha256=prompts.tokenizer.digest,
        chat_template_sha256=prompts.template_sha256,
        fingerprint=fingerprint(folder),
        certifiable=True,
    )
    parts = Parts(
        network=network,
        prompts=prompts,
        vocab_size=vocab_size,
        max_positions=own,
        end_ids=end_ids(model, prompts.end_id),
        # Not generation_config.json's: what a request leaves out is neutral, as with vLLM's
        # `--generation-config vllm`.
        defaults={},
        facts=facts,
        always_thinks=False,
    )
    pool = min(options.pool_tokens, POOL_BYTES // token_bytes) if token_bytes else 0
    return TinyRuntime(dataclasses.replace(options, pool_tokens=pool), parts)


if __name__ == "__main__":
    child.main(load)

"""The files of a model folder: sizes from config.json, tensors from model.safetensors.

Owns: reading and checking them. Must not know: how they are used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from explorer.errors import ConfigurationError

Floats = NDArray[np.float32]
_ODD_TYPE = (TypeError, AttributeError)

SHIPPED = Path(__file__).parent / "weights"
"""The model that comes with the package."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a Qwen3-shaped decoder; lengths are in tokens."""

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    theta: float
    max_positions: int

    @classmethod
    def read(cls, folder: Path) -> ModelShape:
        """Read config.json. Raises ConfigurationError when the model is of another kind."""
        config = read_json(folder / "config.json")
        if config.get("model_type") != "qwen3" or not config.get("tie_word_embeddings"):
            raise ConfigurationError(
                f"{folder} is not a Qwen3-shaped model with tied embeddings; "
                "the tiny engine runs no other"
            )
        rope = config.get("rope_parameters") or {}
        return cls(
            vocab_size=config["vocab_size"],
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            epsilon=config["rms_norm_eps"],
            theta=rope.get("rope_theta") or config.get("rope_theta", 10_000.0),
            max_positions=config["max_position_embeddings"],
        )


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Matrices are (inputs, outputs), so that `x @ matrix` applies them."""

    input_norm: Floats
    qkv: Floats
    q_norm: Floats
    k_norm: Floats
    output: Floats
    post_norm: Floats
    gate_up: Floats
    down: Floats


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All tensors of a model; `embedding` is (vocab, hidden) and also the output matrix."""

    shape: ModelShape
    embedding: Floats
    unembedding: Floats
    final_norm: Floats
    layers: tuple[LayerWeights, ...]

    @classmethod
    def read(cls, folder: Path) -> ModelWeights:
        """Load model.safetensors as float32. Raises ConfigurationError when one is missing."""
        shape = ModelShape.read(folder)
        path = folder / "model.safetensors"
        if not path.is_file():
            raise ConfigurationError(f"{path} is missing")
        return cls.of(shape, load_file(path), path)

    @classmethod
    def read_like(cls, folder: Path, path: Path) -> ModelWeights:
        """Load another file for the model of `folder`: the same tensors, sizes and types.

        Raises:
            ConfigurationError: says what does not fit; nothing else is raised for a bad file.
        """
        try:
            # A type that NumPy has not (8 bits, say) shows as an AttributeError.
            loaded = load_file(path)
            wanted = load_file(folder / "model.safetensors")
        except (OSError, SafetensorError, KeyError, ValueError, *_ODD_TYPE) as problem:
            raise ConfigurationError(f"{path} cannot be read: {problem}") from problem
        head, tied = loaded.pop("lm_head.weight", None), "model.embed_tokens.weight"
        if head is not None and not np.array_equal(head, loaded.get(tied, head[:0])):
            raise ConfigurationError(f"{path}: `lm_head.weight` is not tied to `{tied}`")
        odd = sorted(set(loaded) ^ set(wanted))
        if odd:
            which = "lacks" if odd[0] in wanted else "has an unknown"
            raise ConfigurationError(f"{path} {which} tensor `{odd[0][:80]}`")
        for name, tensor in loaded.items():
            like = wanted[name]
            if tensor.shape != like.shape or tensor.dtype != like.dtype:
                raise ConfigurationError(
                    f"{path}: `{name}` is {tensor.dtype} {list(tensor.shape)} and must be "
                    f"{like.dtype} {list(like.shape)}"
                )
            if not np.isfinite(tensor).all():
                raise ConfigurationError(f"{path}: `{name}` holds NaN or infinity")
        return cls.of(ModelShape.read(folder), loaded, path)

    @classmethod
    def of(cls, shape: ModelShape, loaded: Mapping[str, Any], path: Path) -> ModelWeights:
        """Tensors as they were read from `path`. Raises ConfigurationError."""
        tensors = {name: np.asarray(value, np.float32) for name, value in loaded.items()}
        try:
            layers = tuple(_layer(tensors, f"model.layers.{i}.") for i in range(shape.layers))
            embedding = tensors["model.embed_tokens.weight"]
            final_norm = tensors["model.norm.weight"]
        except KeyError as missing:
            raise ConfigurationError(f"{path} has no tensor {missing}") from missing
        return cls(shape, embedding, np.ascontiguousarray(embedding.T), final_norm, layers)


def _layer(tensors: Mapping[str, Floats], prefix: str) -> LayerWeights:
    def joined(*names: str) -> Floats:
        parts = [tensors[f"{prefix}{name}.weight"] for name in names]
        return np.ascontiguousarray(np.concatenate(parts).T)

    return LayerWeights(
        input_norm=tensors[prefix + "input_layernorm.weight"],
        qkv=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        q_norm=tensors[prefix + "self_attn.q_norm.weight"],
        k_norm=tensors[prefix + "self_attn.k_norm.weight"],
        output=joined("self_attn.o_proj"),
        post_norm=tensors[prefix + "post_attention_layernorm.weight"],
        gate_up=joined("mlp.gate_proj", "mlp.up_proj"),
        down=joined("mlp.down_proj"),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object. Raises ConfigurationError when the file is missing or no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ConfigurationError(f"cannot read {path}: {problem}") from problem
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} does not hold a JSON object")
    return content


def file_sha256(path: Path) -> str:
    """Hex digest of a file. Raises ConfigurationError when it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as problem:
        raise ConfigurationError(f"cannot read {path}: {problem}") from problem

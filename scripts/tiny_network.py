"""The Qwen3-shaped network in torch, for training only. The engine runs the same in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Cache = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the network; `config()` is what the Hugging Face format calls them."""

    vocab_size: int = 2048
    hidden: int = 96
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 256
    theta: float = 100_000.0
    positions: int = 16_384
    epsilon: float = 1e-6

    def config(self, eos: int, pad: int) -> dict[str, Any]:
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.epsilon,
            "hidden_act": "silu",
            "max_position_embeddings": self.positions,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "dtype": "float32",
            "rope_parameters": {"rope_theta": self.theta, "rope_type": "default"},
            "eos_token_id": eos,
            "pad_token_id": pad,
            "bos_token_id": None,
            "initializer_range": 0.02,
            "use_cache": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "layer_types": ["full_attention"] * self.layers,
        }


class Block(nn.Module):  # type: ignore[misc]
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.heads * shape.head_dim
        narrow = shape.kv_heads * shape.head_dim
        self.input_layernorm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.q_norm = nn.RMSNorm(shape.head_dim, shape.epsilon)
        self.k_norm = nn.RMSNorm(shape.head_dim, shape.epsilon)
        self.q_proj = nn.Linear(shape.hidden, width, bias=False)
        self.k_proj = nn.Linear(shape.hidden, narrow, bias=False)
        self.v_proj = nn.Linear(shape.hidden, narrow, bias=False)
        self.o_proj = nn.Linear(width, shape.hidden, bias=False)
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        past: tuple[torch.Tensor, torch.Tensor] | None,
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """`x` is (batch, length, hidden); `past` are keys and values (1, kv heads, n, dim)."""
        batch, length, _ = x.shape
        h = self.input_layernorm(x)
        q = self.q_proj(h).view(batch, length, -1, self.shape.head_dim)
        k = self.k_proj(h).view(batch, length, -1, self.shape.head_dim)
        v = self.v_proj(h).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
        q = rotate(self.q_norm(q).transpose(1, 2), turn)
        k = rotate(self.k_norm(k).transpose(1, 2), turn)
        own = (k, v)
        if past is not None:
            k = torch.cat((past[0].expand(batch, -1, -1, -1), k), 2)
            v = torch.cat((past[1].expand(batch, -1, -1, -1), v), 2)
        group = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        a = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None
        )
        x = x + self.o_proj(a.transpose(1, 2).reshape(batch, length, -1))
        h = self.post_attention_layernorm(x)
        x = x + self.down_proj(functional.silu(self.gate_proj(h)) * self.up_proj(h))
        return x, own


def rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions on (batch, heads, length, dim); `turn` holds cosines and sines."""
    cos, sin = turn
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Network(nn.Module):  # type: ignore[misc]
    """Token ids and positions in, hidden states or logits out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, shape.epsilon)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for name, weight in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5)
            elif name.endswith("proj.weight"):
                nn.init.normal_(weight, std=shape.hidden**-0.5)

    def turn(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = self.shape.head_dim // 2
        rates = self.shape.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = (positions.double()[:, None, :, None] * rates).float()
        return angles.cos(), angles.sin()

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        past: Cache | None = None,
    ) -> tuple[torch.Tensor, Cache]:
        """Hidden states (batch, length, hidden) and each layer's own keys and values."""
        mask = None
        if past is not None:
            before, length = past[0][0].shape[2], ids.shape[1]
            mask = torch.ones(length, before + length, dtype=torch.bool).tril(before)
        x, turn, caches = self.embed_tokens(ids), self.turn(positions), []
        for index, layer in enumerate(self.layers):
            x, own = layer(x, turn, past[index] if past else None, mask)
            caches.append(own)
        return self.norm(x), caches

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(hidden, self.embed_tokens.weight)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights under the names of the Hugging Face format."""
        return {
            public_name(name): value.detach().clone().contiguous()
            for name, value in self.state_dict().items()
        }

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """The reverse of `tensors`."""
        self.load_state_dict({name: tensors[public_name(name)] for name in self.state_dict()})


def public_name(name: str) -> str:
    """What the Hugging Face format calls one of our weights."""
    parts = name.split(".")
    if parts[0] == "layers" and parts[2][0] in "qkvo":
        parts.insert(2, "self_attn")
    elif parts[0] == "layers" and parts[2].endswith("_proj"):
        parts.insert(2, "mlp")
    return "model." + ".".join(parts)

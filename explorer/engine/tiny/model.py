"""The decoder: token ids in, next-token logits out, in NumPy and float32.

Owns: the arithmetic of a Qwen3-shaped network over a ragged batch.
Must not know: sampling, text, requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np

from explorer.engine.tiny.cache import Cache, KeyValueCache
from explorer.engine.tiny.weights import Floats, LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class Chunk(Generic[Cache]):
    """New tokens of one sequence, to be read behind what its cache already holds."""

    ids: Sequence[int]
    cache: Cache


class Decoder:
    """Runs the network. Not safe for use from several threads."""

    def __init__(self, weights: ModelWeights) -> None:
        self.weights = weights
        shape = weights.shape
        half = shape.head_dim // 2
        rates = shape.theta ** (-np.arange(half) / half)
        # Double precision until the last moment: float32 angles are off by 1e-3 at 10k tokens.
        angles = np.arange(shape.max_positions)[:, None] * rates
        self._cos: Floats = np.cos(angles).astype(np.float32)[:, None]
        self._sin: Floats = np.sin(angles).astype(np.float32)[:, None]
        self._scale = np.float32(shape.head_dim**-0.5)

    def new_cache(self, capacity: int = 64) -> KeyValueCache:
        """An empty cache that fits this model."""
        return KeyValueCache(self.weights.shape, capacity)

    def forward(self, chunks: Sequence[Chunk[KeyValueCache]]) -> Floats:
        """Read every chunk and give the logits after its last token, (chunks, vocab).

        The caches grow by the chunks. Raises ValueError beyond the model's context.
        """
        hidden = self._read(chunks)
        ends = np.cumsum([len(chunk.ids) for chunk in chunks]) - 1
        return self._logits(hidden[ends])

    def score(self, chunk: Chunk[KeyValueCache]) -> Floats:
        """Read one chunk and give the logits after each of its tokens, (tokens, vocab)."""
        return self._logits(self._read([chunk]))

    def _logits(self, hidden: Floats) -> Floats:
        normed = self._norm(hidden, self.weights.final_norm)
        logits: Floats = normed @ self.weights.unembedding
        return logits

    def _read(self, chunks: Sequence[Chunk[KeyValueCache]]) -> Floats:
        shape = self.weights.shape
        spans, places, start = [], [], 0
        for chunk in chunks:
            count, before = len(chunk.ids), chunk.cache.length
            if not count or before + count > shape.max_positions:
                raise ValueError(f"{before} + {count} tokens do not fit {shape.max_positions}")
            chunk.cache.reserve(count)
            spans.append((start, start + count))
            places.append(np.arange(before, before + count))
            start += count
        ids = np.concatenate([np.asarray(chunk.ids, np.intp) for chunk in chunks])
        place = np.concatenate(places)
        cos, sin = self._cos[place], self._sin[place]
        x: Floats = self.weights.embedding[ids]
        for index, layer in enumerate(self.weights.layers):
            x = self._layer(x, index, layer, (cos, sin), list(zip(spans, chunks, strict=True)))
        for chunk in chunks:
            chunk.cache.length += len(chunk.ids)
        return x

    def _layer(
        self,
        x: Floats,
        index: int,
        layer: LayerWeights,
        turn: tuple[Floats, Floats],
        parts: Sequence[tuple[tuple[int, int], Chunk[KeyValueCache]]],
    ) -> Floats:
        shape = self.weights.shape
        mixed = self._norm(x, layer.input_norm) @ layer.qkv
        mixed = mixed.reshape(len(x), -1, shape.head_dim)
        q_end = shape.heads
        k_end = q_end + shape.kv_heads
        q = _rotate(self._norm(mixed[:, :q_end], layer.q_norm), turn)
        k = _rotate(self._norm(mixed[:, q_end:k_end], layer.k_norm), turn)
        v = mixed[:, k_end:]
        q *= self._scale
        attended = np.empty((len(x), shape.heads * shape.head_dim), np.float32)
        for (first, last), chunk in parts:
            cache, before = chunk.cache, chunk.cache.length
            after = before + last - first
            cache.keys[index, :, before:after] = k[first:last].transpose(1, 0, 2)
            cache.values[index, :, before:after] = v[first:last].transpose(1, 0, 2)
            attended[first:last] = self._attend(
                q[first:last], cache.keys[index, :, :after], cache.values[index, :, :after]
            )
        x = x + attended @ layer.output
        gate_up = self._norm(x, layer.post_norm) @ layer.gate_up
        half = gate_up.shape[1] // 2
        gate = gate_up[:, :half]
        # The clip keeps exp() from overflowing; silu(-80) is 0 in float32 anyway.
        gate = gate / (1 + np.exp(-np.maximum(gate, -80.0)))
        x = x + (gate * gate_up[:, half:]) @ layer.down
        return x

    def _attend(self, q: Floats, keys: Floats, values: Floats) -> Floats:
        """Causal attention of (n, heads, dim) queries on (kv heads, length, dim) keys."""
        count, heads, dim = q.shape
        kv_heads, length, _ = keys.shape
        group = heads // kv_heads
        by_head = q.reshape(count, kv_heads, group, dim).transpose(1, 2, 0, 3)
        grouped = by_head.reshape(kv_heads, group * count, dim)
        scores = grouped @ keys.transpose(0, 2, 1)
        if count > 1:
            view = scores.reshape(kv_heads, group, count, length)
            hidden = np.triu(np.full((count, count), -np.inf, np.float32), 1)
            view[..., length - count :] += hidden
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        mixed = (scores @ values) / scores.sum(-1, keepdims=True)
        mixed = mixed.reshape(kv_heads, group, count, dim).transpose(2, 0, 1, 3)
        return np.asarray(mixed.reshape(count, heads * dim), np.float32)

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        mean = np.einsum("...i,...i->...", x, x)[..., None] / np.float32(x.shape[-1])
        return np.asarray(x / np.sqrt(mean + np.float32(self.weights.shape.epsilon)) * weight)


def _rotate(x: Floats, turn: tuple[Floats, Floats]) -> Floats:
    cos, sin = turn
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

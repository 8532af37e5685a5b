"""A causal language model in torch as the scheduler sees it: ids in, logits out.

Owns: caches of keys and values, left-padded batches, and the check that they change nothing.
Must not know: sampling, text, requests.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from explorer.engine.tiny.model import Chunk
from explorer.engine.tiny.weights import Floats

LARGEST_DIFFERENCE = 1e-3
"""In log-probabilities, between a cached batch and a plain run, that float32 may explain."""


@dataclass(slots=True)
class LayerCache:
    """What one sequence leaves in a network: (1, heads, length, size) a layer.

    A layer that keeps nothing of its own, since it shares another's, has None.
    """

    layers: list[tuple[Any, Any] | None] = field(default_factory=list)
    length: int = 0

    def prefix(self, length: int) -> LayerCache:
        """A copy of the first `length` tokens."""
        layers = [
            pair and (pair[0][:, :, :length].clone(), pair[1][:, :, :length].clone())
            for pair in self.layers
        ]
        return LayerCache(layers, length)

    @property
    def token_bytes(self) -> int:
        """Memory of one token; 0 when nothing was read yet."""
        held = sum(part.nbytes for pair in self.layers if pair for part in pair)
        return held // self.length if self.length else 0


class CachedNetwork:
    """Reads sequences of like length together; each keeps its own keys and values.

    Not safe for use from several threads.
    """

    def __init__(self, model: Any) -> None:
        # Imported here: torch is only in the extra, and only in the child.
        import torch
        from transformers import DynamicCache

        self._torch, self._joint = torch, DynamicCache
        self._model = model
        taken = inspect.signature(model.forward).parameters
        self._places = "position_ids" in taken
        # Newer releases of transformers rename it model by model, and warn of the old name.
        self._cache = "cache" if "cache" in taken else "past_key_values"
        # Without it a long prompt would give logits for each of its tokens.
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}

    def new_cache(self) -> LayerCache:
        """An empty cache."""
        return LayerCache()

    def forward(self, chunks: Sequence[Chunk[LayerCache]]) -> Floats:
        """Read every chunk and give the logits after its last token, (chunks, vocab)."""
        groups: dict[tuple[int, int], list[int]] = {}
        for place, chunk in enumerate(chunks):
            # Like lengths only: a batch is as wide as its longest member.
            key = len(chunk.ids), chunk.cache.length.bit_length()
            groups.setdefault(key, []).append(place)
        found: dict[int, Floats] = {}
        for places in groups.values():
            logits = self._read([chunks[place] for place in places])
            found.update(zip(places, logits, strict=True))
        return np.stack([found[place] for place in range(len(chunks))])

    def _read(self, chunks: Sequence[Chunk[LayerCache]]) -> Floats:
        torch = self._torch
        before = [chunk.cache.length for chunk in chunks]
        longest, count = max(before), len(chunks[0].ids)
        mask = torch.ones((len(chunks), longest + count), dtype=torch.long)
        for row, length in enumerate(before):
            mask[row, : longest - length] = 0
        joint = self._together(chunks, longest)
        inputs = {"attention_mask": mask, self._cache: joint, **self._last}
        if self._places:
            inputs["position_ids"] = torch.tensor(
                [list(range(length, length + count)) for length in before]
            )
        with torch.inference_mode():
            out = self._model(
                input_ids=torch.tensor([list(chunk.ids) for chunk in chunks]),
                use_cache=True,
                **inputs,
            )
            for row, chunk in enumerate(chunks):
                self._append(chunk.cache, joint.layers, row, count)
        return np.asarray(out.logits[:, -1].float().numpy(), np.float32)

    def _together(self, chunks: Sequence[Chunk[LayerCache]], longest: int) -> Any:
        """One cache of all rows, each padded on the left."""
        joint = self._joint()
        pad = self._torch.nn.functional.pad
        for index in range(len(chunks[0].cache.layers)):
            rows = [chunk.cache.layers[index] for chunk in chunks]
            parts = [
                [pad(row[part], (0, 0, longest - row[part].shape[2], 0)) for row in rows if row]
                for part in (0, 1)
            ]
            if parts[0]:
                keys, values = (self._torch.cat(part) for part in parts)
                joint.update(keys, values, index)
        return joint

    def _append(self, cache: LayerCache, layers: Sequence[Any], row: int, count: int) -> None:
        new: list[tuple[Any, Any] | None] = []
        for index, layer in enumerate(layers):
            if layer.keys is None:
                new.append(None)
                continue
            keys, values = (
                part[row : row + 1, :, -count:] for part in (layer.keys, layer.values)
            )
            old = cache.layers[index] if cache.length else None
            if old is not None:
                keys = self._torch.cat((old[0], keys), 2)
                values = self._torch.cat((old[1], values), 2)
            new.append((keys.contiguous(), values.contiguous()))
        cache.layers, cache.length = new, cache.length + count


@dataclass(slots=True)
class ReadIds:
    """What `PlainNetwork` keeps of a sequence: only its ids."""

    ids: list[int] = field(default_factory=list)
    length: int = 0

    def prefix(self, length: int) -> ReadIds:
        """A copy of the first `length` tokens."""
        return ReadIds(self.ids[:length], length)


class PlainNetwork:
    """Reads each sequence from its start at each step: slow, and right for any model."""

    def __init__(self, model: Any) -> None:
        # Imported here: torch is only in the extra, and only in the child.
        import torch

        self._torch, self._model = torch, model

    def new_cache(self) -> ReadIds:
        """An empty cache."""
        return ReadIds()

    def forward(self, chunks: Sequence[Chunk[ReadIds]]) -> Floats:
        """Read every chunk and give the logits after its last token, (chunks, vocab)."""
        rows = []
        for chunk in chunks:
            chunk.cache.ids += chunk.ids
            chunk.cache.length = len(chunk.cache.ids)
            with self._torch.inference_mode():
                out = self._model(
                    input_ids=self._torch.tensor([chunk.cache.ids]), use_cache=False
                )
            rows.append(out.logits[0, -1].float().numpy())
        return np.asarray(np.stack(rows), np.float32)


def choose_network(model: Any) -> tuple[CachedNetwork | PlainNetwork, int, int]:
    """The fastest network that is right for `model`, its vocabulary size, bytes a cached token.

    A cached batch of two is compared with plain runs. Models whose layers keep more than keys
    and values (recurrent, chunked) are run plainly.
    """
    # Imported here: torch is only in the extra, and only in the child.
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    plain = PlainNetwork(model)
    long, short = (1, 2, 3, 4, 5, 6, 7), (5, 3, 2, 6, 1)
    wanted = plain.forward([Chunk(ids, plain.new_cache()) for ids in (long, short)])
    vocab_size = wanted.shape[1]
    layers = DynamicCache(config=model.config).layers
    if any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
        return plain, vocab_size, 0
    cached = CachedNetwork(model)
    one, other = cached.new_cache(), cached.new_cache()
    cached.forward([Chunk(long[:3], one), Chunk(short[:4], other)])
    cached.forward([Chunk(long[3:6], one)])
    found = cached.forward([Chunk(long[6:], one), Chunk(short[4:], other)])
    if np.abs(_log_softmax(found) - _log_softmax(wanted)).max() > LARGEST_DIFFERENCE:
        return plain, vocab_size, 0
    return cached, vocab_size, one.token_bytes


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)), np.float32)

"""Attention over packed rows on a CPU, where TRL's asynchronous trainer wants a GPU kernel.

What `flash_attn_varlen_func` computes, with PyTorch's own attention: each segment of queries
sees its own keys, causally from the end. Everything else of the trainer is TRL's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest


def varlen(
    query: Any, key: Any, value: Any, cu_q: Any, cu_k: Any, *_: Any, **named: Any
) -> Any:
    """(tokens, heads, width) in and out."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    found = []
    repeat = query.shape[1] // key.shape[1]
    for segment in range(len(cu_q) - 1):
        q = query[cu_q[segment] : cu_q[segment + 1]].transpose(0, 1)
        path = slice(int(cu_k[segment]), int(cu_k[segment + 1]))
        k, v = (x[path].transpose(0, 1).repeat_interleave(repeat, 0) for x in (key, value))
        length, whole = q.shape[1], k.shape[1]
        seen = torch.ones(length, whole, dtype=torch.bool).tril(whole - length)
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=named["softmax_scale"]
        )
        found.append(out.transpose(0, 1))
    return torch.cat(found)


@contextmanager
def on_cpu() -> Iterator[None]:
    """TRL's packed attention without its kernel, and without asking a GPU for its speed."""
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    with pytest.MonkeyPatch.context() as patch:
        kernel = SimpleNamespace(flash_attn_varlen_func=varlen)
        patch.setattr(packing, "_flash_attn", lambda: kernel)
        patch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
        yield

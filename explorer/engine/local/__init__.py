"""Any Hugging Face causal language model through `transformers`, in its own process."""

from explorer.engine.local.engine import LocalEngine

__all__ = ["LocalEngine"]

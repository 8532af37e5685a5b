"""The embedded engine: a small chat model in NumPy, in its own process."""

from explorer.engine.tiny.engine import TinyEngine

__all__ = ["TinyEngine"]

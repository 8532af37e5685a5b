"""Rollout Explorer: the proxy, the record, the judge and the window for agentic RL."""

__version__ = "0.1.0"

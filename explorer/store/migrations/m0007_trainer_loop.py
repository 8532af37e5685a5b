"""What a trainer tells: weight updates, its own logprobs."""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = ()

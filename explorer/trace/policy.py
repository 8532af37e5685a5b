"""What counts as trainable, as one frozen value that travels with every verdict.

Owns: the switches and their defaults.
Must not know: how any of them is applied (`mask`, `verdict`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Policy:
    """The switches of the judge; the defaults are the careful choice.

    Attributes:
        include_subagents: sampled tokens of subagents train too.
        train_truncated: a turn cut by the output cap trains.
        train_constrained: tokens sampled under a grammar, bias or forced tool train.
        train_greedy: tokens of a greedy call train.
        train_version_crossed: a call that saw two weight versions trains.
        allow_uncertified: an engine without a passing certificate counts as one.
        accept_raw: logprobs measured as raw (before temperature) are accepted.
    """

    name: str = "default"
    version: int = 1
    include_subagents: bool = False
    train_truncated: bool = True
    train_constrained: bool = False
    train_greedy: bool = False
    train_version_crossed: bool = False
    allow_uncertified: bool = False
    accept_raw: bool = False

    def describe(self) -> dict[str, Any]:
        """Every switch by name, for exports, cards and the verdict's hash."""
        return asdict(self)


DEFAULT_POLICY = Policy()

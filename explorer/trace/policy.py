"""What counts as trainable, as one frozen value that travels with every verdict.

Owns: the switches, their defaults, the policies that ship, and reading one of a person's own.
Must not know: how any of them is applied (`mask`, `verdict`), files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

import orjson

from explorer.errors import ConfigurationError


class Crossing(StrEnum):
    """What becomes of a call that saw two weight versions. Closed."""

    REFUSE = "refuse"
    MASK = "mask"
    TRAIN = "train"


@dataclass(frozen=True, slots=True)
class Policy:
    """The switches of the judge; the defaults are the careful choice.

    Attributes:
        include_subagents: sampled tokens of subagents train too.
        train_stop_token: a stop token that was sampled trains with its turn.
        train_truncated: a turn cut by the output cap trains.
        train_unparsed: a turn whose tool call could not be read as one trains.
        train_constrained: tokens sampled under a grammar, bias or forced tool train.
        train_greedy: tokens of a greedy call train.
        train_aborted: tokens of a generation that the engine itself ended early train.
        version_crossed: what a call of the agent that saw two weight versions does:
            ``refuse`` the rollout, ``mask`` the call, or ``train``.
        allow_uncertified: an engine without a passing certificate counts as one.
        accept_raw: logprobs measured as raw (before temperature) are accepted.
        accept_raw_at_one: raw logprobs are accepted where they are the processed ones, too:
            of calls drawn at temperature 1 without truncation, penalties or constraints.
    """

    name: str = "default"
    version: int = 1
    include_subagents: bool = False
    train_stop_token: bool = True
    train_truncated: bool = True
    train_unparsed: bool = True
    train_constrained: bool = False
    train_greedy: bool = False
    train_aborted: bool = False
    version_crossed: Crossing = Crossing.REFUSE
    allow_uncertified: bool = False
    accept_raw: bool = False
    accept_raw_at_one: bool = False

    def describe(self) -> dict[str, Any]:
        """Every switch by name, for exports, cards and the verdict's hash."""
        return asdict(self)

    @property
    def sha256(self) -> str:
        """Digest of the switches alone: two policies of one name can be told apart."""
        switches = {name: value for name, value in asdict(self).items() if name not in _TITLE}
        return hashlib.sha256(orjson.dumps(switches, option=orjson.OPT_SORT_KEYS)).hexdigest()

    @property
    def title(self) -> str:
        """Name, version and the beginning of the digest, for people."""
        return f"{self.name}/{self.version} ({self.sha256[:8]})"


_TITLE = ("name", "version")
DEFAULT_POLICY = Policy()
SHIPPED: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        DEFAULT_POLICY,
        Policy(name="strict", train_truncated=False, train_unparsed=False),
        Policy(name="async", version_crossed=Crossing.MASK),
    )
}
# Why each of them is there, for the reference page.
SHIPPED_FOR: dict[str, str] = {
    "default": "the careful choice, and what a server uses unless told otherwise",
    "strict": "only whole turns that could be read: cut turns and unread tool calls stay out",
    "async": "weights change under way: a call that saw two versions is left out, "
    "the rest of its rollout trains",
}


def read_policy(values: Mapping[str, Any]) -> Policy:
    """A policy of a person's own: `name`, `version` and the switches that differ.

    Raises:
        ConfigurationError: names the key and says what may stand there.
    """
    known = {item.name for item in fields(Policy)}
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        raise ConfigurationError(
            f"a policy has no `{unknown[0][:80]}`; it may have: {', '.join(sorted(known))}"
        )
    name, version = values.get("name"), values.get("version", 1)
    if not isinstance(name, str) or not name.strip() or len(name) > 80:
        raise ConfigurationError("a policy needs a `name`: a text of 1 to 80 characters")
    if name in SHIPPED:
        raise ConfigurationError(f"`{name}` is the name of a policy that ships; choose another")
    if type(version) is not int or version < 1:
        raise ConfigurationError("a policy's `version` is a whole number from 1 up")
    switches = {key: value for key, value in values.items() if key not in _TITLE}
    for key, value in switches.items():
        if key != "version_crossed" and type(value) is not bool:
            raise ConfigurationError(f"`{key}` of a policy is true or false")
    crossing = switches.pop("version_crossed", Crossing.REFUSE)
    if not isinstance(crossing, str) or crossing not in set(Crossing):
        words = ", ".join(f"`{item}`" for item in Crossing)
        raise ConfigurationError(f"`version_crossed` of a policy is one of {words}")
    return replace(Policy(name, version), version_crossed=Crossing(crossing), **switches)

"""What a worker needs from the system that it stages for, and from the engine it stands before.

Owns: the protocols. Must not know: any storage, any engine, HTTP.

All of it is synchronous: a serving system that is not calls it in threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from explorer.custody.digest import Tokens
from explorer.custody.records import StagedCallBaseSnapshot, StagedCallRecord, StageResult
from explorer.custody.staging import Floats


@runtime_checkable
class StagingSink(Protocol):
    """Makes staged calls durable. `stage` is called from several threads at once, and no lock
    of the caller is held meanwhile."""

    def stage(
        self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None
    ) -> StageResult:
        """Returns a success only when the record, with every attachment, is durable.

        `attachments` is passed only where there are some; nothing of them is in any digest. A
        sink that does not take them raises TypeError, and the call is not captured.
        """


@runtime_checkable
class StagingSource(Protocol):
    """Gives staged calls back."""

    def fetch(self, staging_keys: Sequence[str]) -> list[StagedCallBaseSnapshot]:
        """Exactly one call a key, in the order of the keys.

        Raises:
            LookupError: a key is not there.
        """


@runtime_checkable
class WeightVersionProvider(Protocol):
    """The trainer's weight version now."""

    def __call__(self) -> int:
        """A number from 0 on."""


@dataclass(frozen=True, slots=True)
class Material:
    """What an engine's reply holds of one call.

    Attributes:
        prompt: every id that the engine read.
        generated, logprobs: what it sampled, one logprob an id.
        extras: further values of the call, which have a digest of their own.
        attachments: what goes to the sink and into no digest.
    """

    prompt: Tokens
    generated: Tokens
    logprobs: Floats
    extras: Mapping[str, Any] | None = None
    attachments: Mapping[str, Any] | None = field(default=None)


class CaptureAdapter(Protocol):
    """Speaks an engine's own format."""

    def enter_prefix(self, request: dict[str, Any], prefix: Sequence[int]) -> dict[str, Any]:
        """The request with the exact ids that its prompt must begin with."""

    def extract(self, reply: Any) -> Material:
        """What a reply holds.

        Raises:
            TypeError, ValueError, LookupError: it does not hold all of it.
        """

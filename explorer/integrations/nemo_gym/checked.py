"""vLLM's replies, doubted before they are staged.

Owns: the counts and ids of a reply that must agree. Must not know: HTTP, sinks.

The format reads sampled ids from the logprobs. Where vLLM also lists the ids and counts them,
a reply that does not agree with itself is not captured: a token that was lost at the end of a
rollout would show nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.custody.adapter import VllmAdapter
from explorer.custody.protocols import Material
from explorer.records import ABORTS


class CheckedVllmAdapter(VllmAdapter):
    """As `VllmAdapter`; refuses what contradicts itself, and generations that were aborted."""

    def extract(self, reply: Any) -> Material:
        """What a reply holds.

        Raises:
            ValueError: it does not hold all of it, or does not agree with itself.
        """
        found = super().extract(reply)
        choice = reply["choices"][0]
        if choice.get("finish_reason") in ABORTS:
            raise ValueError("the generation was aborted")
        listed = choice.get("token_ids")
        if listed is not None and listed != list(found.generated):
            raise ValueError("the listed ids are not those of the logprobs")
        usage = reply.get("usage")
        if isinstance(usage, Mapping):
            for name, ids in (
                ("prompt_tokens", found.prompt),
                ("completion_tokens", found.generated),
            ):
                if usage.get(name) not in (None, len(ids)):
                    raise ValueError(f"{name} is {usage[name]!r}, and there are {len(ids)} ids")
        return found

"""Asks an engine what it makes of a sequence that is already there.

Owns: the question (`prompt_logprobs` of a plain completion of ids) and reading its answer.
Must not know: rollouts, the store, what the numbers are compared with.

What an engine says about a prompt is its network's own distribution in every mode: never
scaled by a temperature, never cut. vLLM then reads the prompt without its prefix cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer.engine.protocol import PROBE_ID, Engine, EngineRequest
from explorer.engine.reply import loads, parse_reply
from explorer.errors import UpstreamFailed
from explorer.records import NULL_LOGPROB_BITS, LogprobArray


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRow:
    """What an engine gives the ids of one sequence.

    Attributes:
        logps: one per id; null for the first, which nothing comes before, and for any that
            the engine gave no number for.
        fingerprint, weight_label: what the reply says of itself.
    """

    logps: LogprobArray
    fingerprint: str | None
    weight_label: str | None


async def score_row(
    engine: Engine, model: str | None, ids: Sequence[int], name: str, timeout_s: float
) -> ScoredRow:
    """Has one sequence scored.

    Raises:
        UpstreamFailed: the engine refused, or answered something else.
        EngineUnavailable, EngineTimeout: as `Engine.generate`.
    """
    body: dict[str, Any] = {
        "prompt": list(ids),
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": 0,
        "return_token_ids": True,
        "return_weight_versions": True,
    }
    if model is not None:
        body["model"] = model
    reply = await engine.generate(EngineRequest(body, f"{PROBE_ID}{name}", timeout_s))
    parsed = parse_reply(reply.status, reply.body)
    if parsed.failure is not None:
        raise UpstreamFailed(f"the engine cannot score: {parsed.failure_detail}")
    told = _entries(loads(reply.body))
    if told is None:
        raise UpstreamFailed(
            "the engine gave no prompt_logprobs: it cannot score what was sampled"
        )
    if len(told) != len(ids):
        raise UpstreamFailed(
            f"the engine scored {len(told)} tokens of a sequence that has {len(ids)}"
        )
    if parsed.prompt_ids is not None and parsed.prompt_ids.tolist() != list(ids):
        raise UpstreamFailed("the engine scored other ids than those it was sent")
    return ScoredRow(_logps(told, ids), parsed.fingerprint, parsed.weight_label)


def _entries(body: Any) -> list[Any] | None:
    """The list, which stands in the choice, and in older replies at the top."""
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    for holder in (choice, body):
        found = holder.get("prompt_logprobs") if isinstance(holder, Mapping) else None
        if isinstance(found, list):
            return found
    return None


def _logps(told: Sequence[Any], ids: Sequence[int]) -> LogprobArray:
    logps: LogprobArray = np.zeros(len(ids), np.float32)
    bits = logps.view(np.uint32)
    for place, (entry, token_id) in enumerate(zip(told, ids, strict=True)):
        found = entry.get(str(token_id)) if isinstance(entry, Mapping) else None
        value = found.get("logprob") if isinstance(found, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            bits[place] = NULL_LOGPROB_BITS
        else:
            logps[place] = value
    return logps

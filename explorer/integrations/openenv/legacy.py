"""Harbor results that were captured by others: audited always, traced only with masks.

Owns: what of an OpenEnv `HarborRolloutResult` may train.
Must not know: HTTP, our own rollouts.

Where a mask is missing, nobody but the producer could say which tokens train. OpenEnv's
old exporter takes all of them; here such a result can be read and never trained on.
"""

from __future__ import annotations

from typing import Any

from explorer.integrations.blocking import TraceRefused
from explorer.integrations.contract import Trace, check_trace
from explorer.integrations.openenv.sealed import SealedTrace, sealed_trace

_IDENTITY = (
    *("task_id", "task_name", "dataset", "harness", "sandbox", "trial_name", "session_id"),
    *("reward", "rewards", "reward_key", "rollout_type", "capture_level", "ok", "error"),
)
_TURN = (
    *("turn", "node_id", "role", "prompt_token_ids", "completion_token_ids"),
    *("per_token_logps", "loss_mask", "finish_reason", "discarded", "trainable"),
    *("sampling_params", "requested_sampling_params"),
)


def audit_of_result(result: Any) -> dict[str, Any]:
    """Every turn of a result with why it may not train; never refuses.

    A missing mask stays null: it is not made up, neither as ones nor as zeros.
    """
    turns = []
    supervised = 0
    for turn in result.turns:
        reasons = _turn_reasons(turn)
        mask = turn.loss_mask
        if not reasons and mask is not None:
            supervised += sum(mask)
        turns.append({name: getattr(turn, name) for name in _TURN} | {"reasons": reasons})
    return {
        "schema_version": 1,
        "format": "rollout-explorer/harbor-audit",
        **{name: getattr(result, name) for name in _IDENTITY},
        "reasons": _result_reasons(result),
        "findings": list(result.findings),
        "n_supervised_tokens": supervised,
        "turns": turns,
    }


def trace_of_result(result: Any) -> SealedTrace:
    """The result's agent calls, where the producer said which tokens train.

    Raises:
        TraceRefused: nothing of it may train; `reasons` say why.
        MalformedTrace: it breaks a rule of the contract.
    """
    chosen = [turn for turn in result.turns if turn.role == "agent" and not turn.discarded]
    codes = _result_reasons(result)
    codes += [
        reason for turn in chosen for reason in _turn_reasons(turn) if reason in _BLOCKING
    ]
    if codes:
        raise TraceRefused.because(codes[0], f"the result may not train: {', '.join(codes)}")
    return sealed_trace(_checked(chosen))


_BLOCKING = frozenset(("mask_missing", "supervised_though_ineligible"))


def _checked(turns: list[Any]) -> Trace:
    return check_trace(
        {
            "schema_version": 1,
            "turns": [
                {
                    "node_id": turn.node_id,
                    "prompt_token_ids": turn.prompt_token_ids,
                    "completion_token_ids": turn.completion_token_ids,
                    "per_token_logps": turn.per_token_logps,
                    "loss_mask": turn.loss_mask,
                    "request": {"messages": turn.request_messages, "tools": turn.request_tools},
                    "metadata": {"turn": turn.turn, "sampling_params": turn.sampling_params},
                }
                for turn in turns
            ],
        }
    )


def _result_reasons(result: Any) -> list[str]:
    found = []
    if not result.ok:
        found.append("rollout_failed")
    if result.rollout_type != "train":
        found.append("eval_purpose")
    if result.capture_level != "tokens":
        found.append("capture_level")
    # Anywhere in the text: OpenEnv puts the sequence before the grade.
    if any("[FATAL" in finding for finding in result.findings):
        found.append("fatal_finding")
    if not result.turns:
        found.append("no_turns")
    return found


def _turn_reasons(turn: Any) -> list[str]:
    found = []
    if turn.role != "agent":
        found.append("not_agent")
    if turn.discarded:
        found.append("discarded")
    if turn.loss_mask is None:
        found.append("mask_missing")
    elif not turn.trainable:
        found.append("supervised_though_ineligible" if any(turn.loss_mask) else "ineligible")
    return found

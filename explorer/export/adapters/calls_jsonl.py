"""One line a call: what readers that train call by call want to have.

Owns: the names of the fields.
Must not know: any trainer.

No name here is one by which `datasets` takes a file for an agent's session (`type`, `id`,
`message`, `messages`, `payload`, `source`): it would then ask for another package.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from explorer.export.adapters.kept import Trained, policy_sha256
from explorer.export.dataset.adapter import Adapter, Layout, Line, Subject
from explorer.records import Call
from explorer.trace.assemble import exported_calls, wide
from explorer.trace.jsontext import dump
from explorer.trace.versions import token_versions


class CallsJsonl(Adapter):
    """One line a call in which a token trains."""

    name = "calls_jsonl"
    layout = Layout.LINES
    suffix = "jsonl"
    about = (
        "One line a call for readers that train call by call (rLLM, AReaL, SkyRL, verl and "
        "others, each through a few lines of its own): the whole prompt's ids, the sampled "
        "ids, their logprobs, and `loss_mask` over the sampled ids, without which nothing "
        "here may be trained on. Not in it: texts, rollouts that may not train, and calls in "
        "which no token does. Prompts repeat themselves: its size grows with the square of a "
        "conversation's length."
    )

    def add(self, subject: Subject) -> Iterable[Line]:
        """Its calls in which a token trains, depth first."""
        trained = Trained(subject.record, subject.judgement)
        if trained.leaves:
            for call in exported_calls(subject.record, subject.judgement):
                if trained.bits(call).any():
                    yield Line(dump(_told(subject, call, trained)))


def _told(subject: Subject, call: Call, trained: Trained) -> dict[str, Any]:
    record, judgement = subject.record, subject.judgement
    rollout, node = record.rollout, judgement.tree.nodes[call.call_id]
    logprobs = np.zeros(0, np.float32) if call.logprobs is None else call.logprobs
    return {
        "rollout_id": rollout.rollout_id,
        "call_id": call.call_id,
        "parent_call_id": node.parent_id,
        "root_call_id": node.root_id,
        "sequence": call.sequence,
        "run": rollout.run,
        "task": rollout.task,
        "group": rollout.group,
        "attempt": rollout.attempt,
        "reward": judgement.state.reward,
        "ok": judgement.state.ok,
        "role": judgement.roles[call.call_id].role,
        "prompt_token_ids": judgement.tree.sequences.prompt(call.call_id),
        "completion_token_ids": call.completion,
        "logprobs": wide(logprobs),
        "loss_mask": trained.bits(call),
        "finish_reason": call.finish_reason,
        "stop_reason": call.stop_reason,
        "weight_version_start": call.weight_version_start,
        "weight_version_end": call.weight_version_end,
        # A token each of the completion; AReaL writes -1 for every prompt token before them.
        "weight_versions": _versions(call),
        "model_served": call.model_served,
        "tokenizer_id": rollout.tokenizer_id,
        # As text: calls are asked for different things, and readers that infer types would
        # make one type of them all.
        "submitted_sampling": dump(call.submitted_sampling).decode(),
        "policy_sha256": policy_sha256(judgement.policy),
        "inputs_sha256": judgement.inputs_sha256,
    }


def _versions(call: Call) -> list[int | None] | None:
    """Null where nothing is known: `datasets` reads a file whose first lists hold nulls only
    another way, and rounds every logprob of it."""
    versions = token_versions(call)
    return versions if any(each is not None for each in versions) else None

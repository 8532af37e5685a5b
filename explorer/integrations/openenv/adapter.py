"""OpenEnv's `CLIHarnessAdapter` with a `run_white_box` that works.

Owns: how a command runs as a harness, and what of its capture fits into OpenEnv's result.
Must not know: TRL, HTTP paths.

The command samples through our proxy and owns its loop, so the trainer's `model_step` is
never called: tokens, logprobs and masks come from the capture. OpenEnv's result has no
place for a mask, so it carries ids only where every sampled token of one single call
trains; everything else is read with `fetch_training_trace`.
"""

from __future__ import annotations

from typing import Any

from explorer.integrations.blocking import TraceRefused
from explorer.integrations.openenv.entries import message_of
from explorer.integrations.openenv.package import (
    CLIHarnessAdapter,
    HarnessRolloutResult,
    HarnessRunLimits,
)
from explorer.integrations.openenv.sealed import SealedTrace
from explorer.integrations.openenv.session import ExplorerSession, ExplorerSessionFactory


class ExplorerHarness(CLIHarnessAdapter):  # type: ignore[misc]
    """Runs the factory's agent under a fresh rollout.

    With a session of that factory (`ExplorerSession`) the rollout is the session's; with
    any other session a rollout is made, and its task is the session's first messages.

    Args:
        factory: the server, the agent and how rollouts are made.
        timeout_s: longest run.
    """

    def __init__(self, factory: ExplorerSessionFactory, timeout_s: float | None = None) -> None:
        self._factory = factory
        self._timeout_s = timeout_s
        super().__init__(lambda _bridge, session, limits: self._run(session, limits))

    def run_white_box(self, model_step: Any, session: Any, limits: Any | None = None) -> Any:
        """Runs the agent to its end. `model_step` is ignored: the agent owns its loop.

        A time-out or a failure closes the rollout as failed: ``done`` is False, there are
        no ids, and the trace is refused.
        """
        return self._run(session, limits or HarnessRunLimits())

    def _run(self, session: Any, _limits: Any) -> Any:
        ours = (
            session
            if isinstance(session, ExplorerSession)
            else self._factory.create(session.initial_messages())
        )
        exit_code = ours.wait_for_completion(self._timeout_s)
        entries = ours.fetch_proxy_trace()
        result = HarnessRolloutResult(
            messages=_messages(ours, entries),
            done=exit_code == 0,
            metrics={
                "rollout_id": ours.rollout_id,
                "exit_code": exit_code,
                "turns": len(entries),
                "owns_loop": True,
                "model_calls": 0,
            },
        )
        try:
            trace = ours.fetch_training_trace()
        except TraceRefused as refused:
            result.metrics["refused"] = refused.codes
            return result
        result.metrics["model_calls"] = len(trace.turns)
        _fill(result, trace)
        return result


def _fill(result: Any, trace: SealedTrace) -> None:
    turn = trace.turns[0]
    sampled = turn.loss_mask[len(turn.prompt_token_ids) :]
    if len(trace.turns) == 1 and all(sampled):
        result.prompt_ids = list(turn.prompt_token_ids)
        result.completion_ids = list(turn.completion_token_ids)
        result.logprobs = list(turn.per_token_logps)


def _messages(session: ExplorerSession, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last answered call's conversation, for verifiers that read text."""
    for entry in reversed(entries):
        message = message_of(entry["response"])
        messages = entry["request"].get("messages")
        if entry["metadata"]["role"] == "agent" and message and isinstance(messages, list):
            return [*messages, message]
    return session.initial_messages()

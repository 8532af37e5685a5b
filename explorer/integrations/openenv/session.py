"""One rollout as an OpenEnv session: the agent owns its loop, we own the capture.

Owns: what `TrainableSession`, `LoopOwningSession` and `ResourceSession` ask for.
Must not know: TRL; how the agent is run (`attempts.Agent`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from explorer.errors import ConfigurationError
from explorer.integrations.attempts import (
    Agent,
    Attempt,
    Endpoint,
    perform,
    task_name,
    task_text,
)
from explorer.integrations.blocking import ExplorerServer, TraceRefused
from explorer.integrations.client import ApiError
from explorer.integrations.contract import read_trace
from explorer.integrations.openenv.entries import proxy_trace, with_messages
from explorer.integrations.openenv.package import (
    RESERVED_TOOL_NAMES,
    ResourceSession,
    ResourceSessionFactory,
    ToolResult,
    VerifyResult,
)
from explorer.integrations.openenv.sealed import SealedTrace, sealed_trace

# What OpenEnv's training policy fixes; the proxy sends exactly these.
_NEUTRAL = {
    "top_p": (1, 1.0),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
}


class ExplorerSession(ResourceSession):  # type: ignore[misc]
    """A session over one rollout of a Rollout Explorer.

    It is made idle: `wait_for_completion` runs the agent, records its reward and closes the
    rollout. A rollout that failed, timed out or was closed before its end is closed as
    failed, and its trace is refused.

    Attributes:
        server: where the rollout is recorded.
        attempt: the task and where the agent sends its calls.
        with_messages: the trace also holds each call's messages and answer.
    """

    def __init__(
        self,
        server: ExplorerServer,
        agent: Agent | None,
        attempt: Attempt,
        *,
        with_messages: bool = False,
    ) -> None:
        self.server = server
        self.attempt = attempt
        self.with_messages = with_messages
        self._agent = agent
        self._started = threading.Lock()
        self._done = threading.Event()

    @property
    def rollout_id(self) -> str:
        """The rollout's public id."""
        return self.attempt.endpoint.rollout_id

    # -- ResourceSession

    def initial_messages(self) -> list[dict[str, Any]]:
        """The task as messages."""
        task = self.attempt.task
        if isinstance(task, list):
            return [dict(message) for message in task]
        return [{"role": "user", "content": task_text(task)}]

    def list_tools(self) -> list[Any]:
        """None: the agent has its own."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Refused, because the agent has its own tools."""
        if name in RESERVED_TOOL_NAMES:
            raise KeyError(f"Reserved orchestration tool: {name}")
        return ToolResult(error="this session has no tools: the agent owns its loop")

    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> Any:
        """The reward on record; None where nobody gave one, or the rollout is not ok.

        Nothing is computed from the transcript: the verifier is the agent's (or another
        program's, by `POST …/reward`).
        """
        shown = self.server.show(self.rollout_id)
        usable = shown["status"] == "closed" and shown["ok"] is not False
        verdict = shown["verdict"]
        return VerifyResult(
            env_reward=shown["reward"] if usable else None,
            done=shown["status"] != "open",
            metrics={
                "supervised_tokens": verdict["supervised_tokens"],
                "calls": shown["counts"]["calls"],
                "trainable": verdict["trainable"],
            },
            artifacts={
                "rollout_id": self.rollout_id,
                "page": self.attempt.endpoint.page,
                "recorded_reward": shown["reward"],
                "reasons": verdict["reasons"],
            },
        )

    def close(self) -> None:
        """Stops the agent; a rollout that has not ended is closed as failed."""
        self.attempt.stop.set()
        if self._started.acquire(blocking=False):
            self._done.set()
            with contextlib.suppress(ApiError, OSError):
                self.server.close(self.rollout_id, ok=False, reason="closed before it ran")

    # -- TrainableSession and LoopOwningSession

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Runs the agent to its end; its exit status (124 after a time-out).

        What the agent raises is raised, after the rollout was closed as failed.
        """
        if self._agent is None:
            return self._of_record()
        if not self._started.acquire(blocking=False):
            raise RuntimeError("a session runs its agent once; create another session")
        if timeout_s is not None:
            self.attempt = replace(self.attempt, timeout_s=timeout_s)
        try:
            ended = perform(self.server, self._agent, self.attempt)
        finally:
            self._done.set()
        return ended.exit_code if ended.ok else (ended.exit_code or 1)

    def _of_record(self) -> int:
        shown = self.server.show(self.rollout_id)
        return 0 if shown["status"] == "closed" and shown["ok"] is not False else 1

    def fetch_training_trace(self) -> SealedTrace:
        """The agent's calls with their masks, checked and sealed.

        Raises:
            TraceRefused: the rollout may not train; `reasons` say why.
            MalformedTrace: the server's answer breaks the contract.
        """
        trace = read_trace(self.server.training_trace(self.rollout_id))
        if self.with_messages:
            trace = with_messages(self.server, self.rollout_id, trace)
        return sealed_trace(trace)

    def fetch_proxy_trace(self) -> list[dict[str, Any]]:
        """Every call that reached the proxy, failed ones too, as OpenEnv's `TraceEntry`.

        For reading, not for training: it is given even where the trace is refused. Nothing
        of a refused rollout is supervised in it, since OpenEnv makes traces of entries.
        """
        entries = proxy_trace(self.server, self.rollout_id)
        if not self.server.show(self.rollout_id)["verdict"]["trainable"]:
            for entry in entries:
                if "loss_mask" in entry:
                    entry["loss_mask"] = [0] * len(entry["loss_mask"])
        return entries

    def fetch_capture_audit(self) -> dict[str, Any]:
        """Everything that was decided about every call."""
        return self.server.capture_audit(self.rollout_id)


@dataclass
class ExplorerSessionFactory(ResourceSessionFactory):  # type: ignore[misc]
    """Makes a session under a fresh rollout for every attempt.

    Pass ``functools.partial(ExplorerSessionFactory, server, agent)`` to TRL's
    `HarnessRolloutWorker`, which adds `sampling`. It can be pickled if the agent can.

    Attributes:
        agent: a `CommandAgent`, or any callable of that form.
        sampling: the trainer's policy: a temperature, everything else neutral.
        run: name of the run that the rollouts are listed under.
        wanted: more fields of every new rollout, e.g. ``{"harness": "pi"}``.
        with_messages: traces also hold each call's messages and answer, for TRL's logs and
            for a `rollout_reward_fn` that reads text.
    """

    server: ExplorerServer
    agent: Agent
    sampling: Mapping[str, Any] = field(default_factory=dict)
    run: str = "openenv"
    model: str | None = None
    wanted: Mapping[str, Any] = field(default_factory=dict)
    with_messages: bool = False

    def __post_init__(self) -> None:
        for name, value in self.sampling.items():
            if name in _NEUTRAL and value not in _NEUTRAL[name]:
                raise ConfigurationError(
                    f"{name}={value} would change what the logprobs mean; the proxy samples "
                    "from the whole distribution: set it to its neutral value"
                )

    def create(
        self, task: Any, seed: int | None = None, episode_id: str | None = None
    ) -> ExplorerSession:
        """A session under a fresh rollout."""
        attempt = self.new_attempt(task, seed, episode_id)
        return ExplorerSession(
            self.server, self.agent, attempt, with_messages=self.with_messages
        )

    def new_attempt(self, task: Any, seed: int | None, episode_id: str | None) -> Attempt:
        """A fresh rollout for a task; `seed` names its group, as TRL uses it."""
        name = task_name(task)
        metadata = {"seed": seed, "episode_id": episode_id}
        wanted: dict[str, Any] = {
            "run": self.run,
            "task": name,
            "group": name if seed is None else f"{seed}: {name}"[:200].strip(),
            "metadata": {key: value for key, value in metadata.items() if value is not None},
            "sampling": {
                key: value for key, value in self.sampling.items() if key not in _NEUTRAL
            },
        }
        endpoint = Endpoint.create(self.server, wanted | dict(self.wanted), self.model)
        return Attempt(task, endpoint, seed, episode_id)


def captured_session(
    server: ExplorerServer, rollout_id: str, task: Any = ""
) -> ExplorerSession:
    """A session over a rollout that was captured before: nothing is run."""
    shown = server.show(rollout_id)
    endpoint = Endpoint(
        rollout_id=str(shown["rollout_id"]),
        key="",
        openai="",
        anthropic="",
        google="",
        page=f"{server.url.rstrip('/')}/rollouts/{shown['rollout_id']}",
        model=str(shown.get("model") or ""),
    )
    return ExplorerSession(server, None, Attempt(task or shown.get("task") or "", endpoint))


__all__ = [
    "ExplorerSession",
    "ExplorerSessionFactory",
    "TraceRefused",
    "captured_session",
]

"""One attempt of an agent under a fresh rollout: created, run, scored, closed.

Owns: that order, and that a rollout is closed whatever happens.
Must not know: OpenEnv, TRL, how the agent works.

A rollout whose agent failed, timed out or was stopped is closed as failed, and then the
server refuses its trace. A reward that nobody gave stays missing; it is never zero.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.client import ApiError

_TEXT_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an agent sends its model calls, so that they are recorded in its rollout.

    Attributes:
        rollout_id: the public id.
        key: the capture key, which the agent sends as its API key.
        openai, anthropic, google: base addresses with the key inside.
        page: address of the rollout's page.
        model: name of the engine's model.
    """

    rollout_id: str
    key: str = field(repr=False)
    openai: str = field(repr=False)
    anthropic: str = field(repr=False)
    google: str = field(repr=False)
    page: str
    model: str

    @classmethod
    def create(
        cls, server: ExplorerServer, wanted: Mapping[str, Any], model: str | None = None
    ) -> Endpoint:
        """A fresh rollout on a server.

        Raises:
            ApiError: the server refused what was wanted, and says which field.
        """
        name = model or server.model()
        made = server.create(dict(wanted))
        bases = made["base_urls"]
        return cls(
            rollout_id=str(made["rollout_id"]),
            key=str(made["capture_key"]),
            openai=str(bases["openai"]),
            anthropic=str(bases["anthropic"]),
            google=str(bases["google"]),
            page=str(made["url"]),
            model=name,
        )

    def environment(self, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables that point SDKs and most harnesses here; the operator's are left out."""
        kept = os.environ if inherited is None else inherited
        plain = {
            name: value
            for name, value in kept.items()
            if not name.startswith("ROLLOUT_EXPLORER_") and name not in _ELSEWHERE
        }
        return plain | {
            "OPENAI_BASE_URL": self.openai,
            "OPENAI_API_BASE": self.openai,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.anthropic,
            "ANTHROPIC_API_KEY": self.key,
            "GOOGLE_GEMINI_BASE_URL": self.google,
            "GEMINI_API_KEY": self.key,
            "GOOGLE_API_KEY": self.key,
            "LLM_BASE_URL": self.openai,
            "LLM_API_KEY": self.key,
            "ROLLOUT_EXPLORER_ROLLOUT_ID": self.rollout_id,
            "ROLLOUT_EXPLORER_URL": self.page,
        }


# These would send a harness somewhere else than the variables above.
_ELSEWHERE = frozenset(
    ("ANTHROPIC_AUTH_TOKEN", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE")
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an agent is given.

    Attributes:
        task: as the trainer has it: a text or a list of messages.
        stop: set when the agent should give up.
    """

    task: Any
    endpoint: Endpoint
    seed: int | None = None
    episode_id: str | None = None
    timeout_s: float | None = None
    stop: threading.Event = field(default_factory=threading.Event, compare=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """How an agent ended.

    Attributes:
        ok: False closes the rollout as failed, and nothing of it may train.
        reward: of the task's verifier; None when it gave none.
        reason: why it is not ok, in a few words.
        facts: of the run, as `POST …/close` takes them, e.g. ``exit_code``.
    """

    ok: bool = True
    reward: float | None = None
    reason: str | None = None
    exit_code: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked_reward(self.reward)


Agent = Callable[[Attempt], Ended]


def checked_reward(value: Any) -> float | None:
    """A reward, or None for "unscored".

    Raises:
        ValueError: it is no finite number; use None where there is no reward.
    """
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
    ):
        raise ValueError(f"a reward must be a finite number or None, not {value!r:.80}")
    return float(value)


def perform(server: ExplorerServer, agent: Agent, attempt: Attempt) -> Ended:
    """Runs the agent, records its reward and closes the rollout.

    Whatever the agent raises is raised again, after the rollout was closed as failed.
    """
    rollout_id = attempt.endpoint.rollout_id
    try:
        ended = agent(attempt)
        if ended.reward is not None:
            server.reward(rollout_id, ended.reward)
    except BaseException as error:
        # A rollout that cannot even be closed stays open, and an open one never trains.
        with contextlib.suppress(ApiError, OSError):
            why = f"the agent raised {type(error).__name__}"
            server.close(rollout_id, ok=False, reason=why)
        raise
    how: dict[str, Any] = {**ended.facts, "ok": ended.ok}
    if ended.reason:
        how["reason"] = _plain(ended.reason)
    server.close(rollout_id, **how)
    return ended


def _plain(text: str) -> str:
    shown = "".join(letter if letter.isprintable() else " " for letter in text).strip()
    return shown[:_TEXT_LIMIT] or "no reason given"


def task_text(task: Any) -> str:
    """A task in words: itself, or what its last user message says."""
    if isinstance(task, str):
        return task
    if isinstance(task, list):
        for message in reversed(task):
            if isinstance(message, Mapping) and message.get("role") == "user":
                return _content(message.get("content"))
    return str(task)


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in parts if isinstance(text, str))
    return ""


def task_name(task: Any) -> str:
    """A task as the name that groups its rollouts on the page."""
    return _plain(task_text(task))

"""A Harbor rollout as a session: OpenEnv's Harbor server runs it, its calls come to us.

Owns: how such a server is pointed at a fresh rollout, and that its account of the calls and
ours agree before anything trains.
Must not know: TRL; sandboxes, verifiers and tasks, which are the Harbor server's.

The same public methods as OpenEnv's own `HarborSession`, which its wheel does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from explorer.integrations.attempts import Attempt, Ended, checked_reward, task_text
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.openenv.entries import proxy_trace
from explorer.integrations.openenv.session import ExplorerSession, ExplorerSessionFactory

# What a Harbor server asks an engine to learn what it can do, before the agent starts. These
# calls carry the rollout's key like all others, and one of them carries tools.
PROBES = frozenset(
    (
        "Reply with the single word: ok",
        "Use the bash tool to list the files in /tmp.",
        "Reply with exactly: hello",
    )
)


@dataclass
class HarborRun:
    """The agent of a Harbor session: one `run_rollout` of a Harbor server.

    Attributes:
        new_env: makes a client, `openenv.harbor.client.HarborEnv` or one like it; it is
            closed after the rollout.
        settings: further arguments of `run_rollout`, e.g. ``split``, ``harness``,
            ``sandbox``, ``reward_key``.
        result: what the server reported.
    """

    server: ExplorerServer
    new_env: Callable[[], Any]
    task_index: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    result: Any = None

    def __call__(self, attempt: Attempt) -> Ended:
        """Runs it, with our proxy as its engine."""
        env = self.new_env()
        more = dict(self.settings)
        if attempt.timeout_s is not None:
            more["agent_timeout_sec"] = attempt.timeout_s
        try:
            self.result = env.run_rollout(
                task_index=self.task_index,
                llm_url=attempt.endpoint.openai,
                model=attempt.endpoint.model,
                **more,
            )
        finally:
            env.close()
        if not self.result.ok:
            why = self.result.error or self.result.exception_type or "no reason given"
            return Ended(ok=False, reason=f"harbor: {why}", exit_code=1)
        problem = self._reconcile(attempt.endpoint.rollout_id)
        if problem is not None:
            return Ended(ok=False, reason=problem, exit_code=1)
        # A task that was not graded has no reward; zero would be a grade.
        return Ended(reward=checked_reward(self.result.reward))

    def _reconcile(self, rollout_id: str) -> str | None:
        """Sets the server's own calls aside; why both records disagree, or None."""
        entries = proxy_trace(self.server, rollout_id)
        own = [entry for entry in entries if not _is_probe(entry)]
        for entry in entries:
            if _is_probe(entry):
                why = "the Harbor server's probe of the engine, not the agent's call"
                self._override(rollout_id, entry, why, kind="role", role="auxiliary")
                self._override(rollout_id, entry, why, kind="exclude_call")
        if not any(entry["metadata"]["n_tools"] for entry in own):
            # The probe alone had tools, and made an agent without tools look auxiliary.
            why = "the agent has no tools, and the Harbor server counts this call as its own"
            for entry in own:
                if _ids(entry) in _known(self.result):
                    self._override(rollout_id, entry, why, kind="role", role="agent")
        return disagreement(
            [entry for entry in proxy_trace(self.server, rollout_id) if _supervised(entry)],
            self.result,
        )

    def _override(
        self, rollout_id: str, entry: Mapping[str, Any], why: str, **what: str
    ) -> None:
        path = f"/api/v1/rollouts/{rollout_id}/overrides"
        call_id = entry["metadata"]["node_id"]
        common = {"call_id": call_id, "reason": why, "who": "harbor session"}
        self.server.request("POST", path, common | what)


class HarborSession(ExplorerSession):
    """One rollout of a Harbor server, recorded here."""

    def __init__(
        self,
        server: ExplorerServer,
        run: HarborRun,
        attempt: Attempt,
        *,
        with_messages: bool = False,
    ) -> None:
        super().__init__(server, run, attempt, with_messages=with_messages)
        self._run = run

    @property
    def result(self) -> Any:
        """OpenEnv's `HarborRolloutResult`, None before the end."""
        return self._run.result


def _is_probe(entry: Mapping[str, Any]) -> bool:
    messages = entry["request"].get("messages")
    if not isinstance(messages, list) or len(messages) != 1:
        return False
    content = messages[0].get("content") if isinstance(messages[0], dict) else None
    return isinstance(content, str) and content in PROBES


def _supervised(entry: Mapping[str, Any]) -> bool:
    return any(entry.get("loss_mask", ()))


def disagreement(entries: list[dict[str, Any]], result: Any) -> str | None:
    """Why the calls that would train are not those that the Harbor server counts as the
    agent's; None when they are."""
    if result.rollout_type != "train":
        # Without ids the calls can only be counted.
        count = len(_agents_turns(result))
        if len(entries) > count:
            return f"harbor_mismatch: we have {len(entries)} calls, Harbor {count}"
        return None
    known = _known(result)
    for entry in entries:
        if _ids(entry) not in known:
            return f"harbor_mismatch: Harbor does not know call {entry['metadata']['node_id']}"
    return None


def _agents_turns(result: Any) -> list[Any]:
    return [turn for turn in result.turns if turn.role == "agent" and not turn.discarded]


Ids = tuple[tuple[int, ...], tuple[int, ...]]


def _known(result: Any) -> set[Ids]:
    if result.rollout_type != "train":
        return set()
    return {
        (tuple(turn.prompt_token_ids), tuple(turn.completion_token_ids))
        for turn in _agents_turns(result)
    }


def _ids(entry: Mapping[str, Any]) -> Ids:
    return (
        tuple(entry.get("prompt_token_ids", ())),
        tuple(entry.get("completion_token_ids", ())),
    )


@dataclass
class HarborSessionFactory(ExplorerSessionFactory):
    """Sessions of a Harbor server, each under a fresh rollout here.

    A task is an index, something with an ``index`` (a `HarborTaskRef`, a dict), or the text
    of one of the server's instructions.

    Attributes:
        agent: not used; the Harbor server runs the agent.
        harbor_url: the Harbor server.
        settings: arguments of `run_rollout`.
    """

    agent: Any = None
    harbor_url: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    _by_instruction: dict[str, int] = field(default_factory=dict, repr=False)

    def new_client(self) -> Any:
        """A client for one rollout; override it to use another transport."""
        from openenv.harbor.client import HarborEnv

        return HarborEnv(base_url=self.harbor_url)

    def create(
        self, task: Any, seed: int | None = None, episode_id: str | None = None
    ) -> HarborSession:
        """A session under a fresh rollout; nothing runs yet."""
        index, instruction = self._find(task)
        run = HarborRun(self.server, self.new_client, index, self.settings)
        attempt = self.new_attempt(instruction, seed, episode_id)
        return HarborSession(self.server, run, attempt, with_messages=self.with_messages)

    def _find(self, task: Any) -> tuple[int, str]:
        if type(task) is int:
            return task, f"task {task}"
        index = None if isinstance(task, str | list) else _read(task, "index")
        if type(index) is int:
            return index, str(_read(task, "instruction") or f"task {index}")
        text = task_text(task)
        if not self._by_instruction:
            self._load()
        if text not in self._by_instruction:
            raise KeyError(f"the Harbor server has no task that says {text[:80]!r}")
        return self._by_instruction[text], text

    def _load(self) -> None:
        split = str(self.settings.get("split", ""))
        env = self.new_client()
        try:
            for task in env.get_task_range(split, 0, env.num_tasks(split)):
                self._by_instruction.setdefault(task.instruction, task.index)
        finally:
            env.close()


def _read(task: Any, name: str) -> Any:
    return task.get(name) if isinstance(task, Mapping) else getattr(task, name, None)

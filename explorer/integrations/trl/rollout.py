"""`rollout_func` for TRL's `GRPOTrainer`: agents run through our proxy, or rollouts replayed.

Owns: which rollout belongs to which prompt of the trainer's batch.
Must not know: torch; it is given a trainer and returns lists.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from explorer.errors import ConfigurationError
from explorer.integrations.attempts import (
    Agent,
    Attempt,
    Ended,
    Endpoint,
    checked_reward,
    perform,
    task_name,
    task_text,
)
from explorer.integrations.blocking import ExplorerServer, TraceRefused
from explorer.integrations.contract import read_trace
from explorer.integrations.trl.batch import Captured, RowOptions, check_trainer, make_batch
from explorer.integrations.trl.logprobs import TrainerLogprobs
from explorer.integrations.trl.push import WeightPush

logger = logging.getLogger(__name__)


def calling(function: Callable[[Any, Endpoint], float | None]) -> Agent:
    """An agent that is a function: it is given a prompt and where to send its model calls,
    and returns the reward, or None when there is none."""

    def agent(attempt: Attempt) -> Ended:
        return Ended(reward=checked_reward(function(attempt.task, attempt.endpoint)))

    return agent


@dataclass(frozen=True)
class LiveRollouts:
    """A `rollout_func` that runs an agent once for each prompt of a batch.

    Every prompt arrives `num_generations` times in a row; each gets a fresh rollout, and
    the rollouts of one prompt are a group.

    Attributes:
        agent: a `CommandAgent`, `calling(function)`, or any callable of that form.
        run: name of the run that the rollouts are listed under.
        at_once: how many agents run at the same time.
        model: the name that agents send; the engine's by default.
        sampling: fixed for every call of a rollout; the temperature is the trainer's.
        weights: the callback that pushes weights, which may wait for this batch.
        logprobs: posts what the trainer's model says of the batch, before its step.
    """

    server: ExplorerServer
    agent: Agent
    options: RowOptions = field(default_factory=RowOptions)
    run: str = "training"
    at_once: int = 8
    model: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    weights: WeightPush | None = None
    logprobs: TrainerLogprobs | None = None
    # Tells the groups of two trainings in one run apart.
    _tag: str = field(default_factory=lambda: secrets.token_hex(3), repr=False)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """One row for each prompt, in order; see `make_batch`."""
        check_trainer(trainer, self.options)
        if self.weights is not None:
            self.weights.before_rollouts(trainer)
        model = self.model or self.server.model()
        started: list[Attempt | None] = [None] * len(prompts)

        def start(place: int) -> Ended:
            # Only now, so that a rollout's wall time is its agent's and not the queue's.
            wanted = self._wanted(prompts[place], place, trainer)
            endpoint = Endpoint.create(self.server, wanted, model)
            attempt = Attempt(prompts[place], endpoint, seed=place // group_size(trainer))
            started[place] = attempt
            return perform(self.server, self.agent, attempt)

        with ThreadPoolExecutor(max_workers=max(1, self.at_once)) as pool:
            running = [pool.submit(start, place) for place in range(len(prompts))]
            try:
                captured = [
                    self._captured(started, place, done) for place, done in enumerate(running)
                ]
            except BaseException:
                for done in running:
                    done.cancel()
                for attempt in started:
                    if attempt is not None:
                        attempt.stop.set()
                raise
        batch = make_batch(captured, trainer, self.options)
        if self.logprobs is not None and is_training(trainer):
            known = [(one.rollout_id, one.trace) for one in captured if one.trace is not None]
            self.logprobs.post(known, trainer)
        return batch

    def _wanted(self, prompt: Any, place: int, trainer: Any) -> dict[str, Any]:
        step = getattr(getattr(trainer, "state", None), "global_step", 0)
        rank = getattr(getattr(trainer, "accelerator", None), "process_index", 0)
        number, generation = divmod(place, group_size(trainer))
        name = task_name(prompt)
        mode = "step" if is_training(trainer) else "evaluation at step"
        group = f"{self._tag} {mode} {step}, {rank}.{number}: {name}"
        sampling = dict(self.sampling)
        temperature = getattr(trainer, "temperature", None)
        if isinstance(temperature, int | float):
            sampling["temperature"] = float(temperature)
        return {
            "run": self.run,
            "task": name,
            "group": group[:200].strip(),
            "attempt": generation,
            "sampling": sampling,
            "harness": "trl-rollout-func",
            "metadata": {"global_step": step},
        }

    def _captured(
        self, started: Sequence[Attempt | None], place: int, done: Future[Ended]
    ) -> Captured:
        error = done.exception()
        attempt = started[place]
        # Where no rollout could even be made, the next one could not either.
        if error is not None and (attempt is None or not isinstance(error, Exception)):
            raise error
        assert attempt is not None, "an agent ran without a rollout"
        rollout_id = attempt.endpoint.rollout_id
        if error is not None:
            logger.warning("the agent of rollout %s failed", rollout_id, exc_info=error)
            why = f"agent_failed: {type(error).__name__}: {error}"
            return Captured(rollout_id, problem=why)
        return fetch(self.server, rollout_id)


def fetch(server: ExplorerServer, rollout_id: str) -> Captured:
    """A closed rollout's trace, or why it is refused.

    Raises:
        MalformedTrace: the server's answer breaks the contract; nothing may be trained on it.
    """
    try:
        raw = server.training_trace(rollout_id, needs_reward=True)
    except TraceRefused as refused:
        return Captured(rollout_id, problem=f"{', '.join(refused.codes)}: {refused}")
    return Captured(rollout_id, read_trace(raw))


def is_training(trainer: Any) -> bool:
    """Whether the batch is one to train on, and not one of an evaluation."""
    return bool(getattr(getattr(trainer, "model", None), "training", True))


def group_size(trainer: Any) -> int:
    """How many rows in a row belong to one prompt."""
    name = "num_generations" if is_training(trainer) else "num_generations_eval"
    return max(1, int(getattr(trainer, name, 1)))


@dataclass
class ReplayedRollouts:
    """A `rollout_func` over rollouts that were captured before.

    Offline: with `use_vllm=False`, TRL corrects nothing for the distance between the
    policy that sampled and the one that trains; use few epochs.

    Attributes:
        groups: rollout ids by prompt.
        passed_over: rollouts that were not taken, by why.
    """

    server: ExplorerServer
    groups: Mapping[str, Sequence[str]]
    options: RowOptions = field(default_factory=RowOptions)
    passed_over: Counter[str] = field(default_factory=Counter)
    _next: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_run(
        cls, server: ExplorerServer, run: str, num_generations: int, **options: Any
    ) -> ReplayedRollouts:
        """The trainable, rewarded rollouts of a run, by group (or task).

        Groups with fewer than `num_generations` of them are passed over.

        Raises:
            ConfigurationError: no group is left.
        """
        found: dict[str, list[str]] = {}
        passed: Counter[str] = Counter()
        for row in server.rollouts(run=run):
            name = row.get("group") or row.get("task")
            verdict = row.get("judgement") or {}
            if row.get("reward") is None or not name:
                passed["no reward" if name else "no group and no task"] += 1
            elif not verdict.get("trainable"):
                passed["not trainable"] += 1
            else:
                found.setdefault(str(name), []).append(str(row["rollout_id"]))
        whole = {name: ids for name, ids in found.items() if len(ids) >= num_generations}
        passed["group too small"] = sum(map(len, found.values())) - sum(
            map(len, whole.values())
        )
        if not whole:
            raise ConfigurationError(
                f"run {run!r} has no group of {num_generations} trainable, rewarded rollouts; "
                f"passed over: {dict(+passed)}"
            )
        return cls(server, whole, RowOptions(**options), +passed)

    def rows(self) -> list[dict[str, str]]:
        """Rows for `datasets.Dataset.from_list`: one prompt a group."""
        return [{"prompt": name} for name in self.groups]

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """The next rollouts of each prompt's group, one for each row, none twice in a batch."""
        check_trainer(trainer, self.options)
        self._check_groups(prompts, trainer)
        chosen = []
        for prompt in prompts:
            name = task_text(prompt)
            ids = self.groups[name]
            chosen.append(ids[self._next[name] % len(ids)])
            self._next[name] += 1
        captured = [fetch(self.server, rollout_id) for rollout_id in chosen]
        return make_batch(captured, trainer, self.options)

    def _check_groups(self, prompts: Sequence[Any], trainer: Any) -> None:
        size = group_size(trainer)
        for name, count in Counter(map(task_text, prompts)).items():
            ids = self.groups.get(name)
            if ids is None:
                raise ConfigurationError(
                    f"no rollout was captured for {name[:80]!r}; make the dataset of `rows()`"
                )
            if count > len(ids):
                raise ConfigurationError(
                    f"{count} rows of a batch ask for {name[:80]!r}, which has {len(ids)} "
                    "rollouts; lower `num_generations` or `generation_batch_size`"
                )
            if count % size:
                raise ConfigurationError(
                    "a group is split between processes, and would be given one rollout "
                    "twice; make each process's batch a multiple of `num_generations`"
                )

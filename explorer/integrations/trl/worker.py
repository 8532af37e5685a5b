"""Rollouts for TRL's asynchronous trainer: agents run while it trains, whole trees train.

Owns: the queue that the trainer drains, groups and their advantages, what is left out.
Must not know: torch, how weights are sent, how an agent works.

Runs in threads of the trainer's process. An attempt that failed, timed out or was given no
reward is in no mean and yields no row; one that the server refuses neither.
"""

from __future__ import annotations

import itertools
import logging
import queue
import secrets
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from explorer.integrations.attempts import Agent, Attempt, Endpoint, perform, task_name
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.rows import Row, all_rows
from explorer.integrations.trl.batch import Captured, NothingToTrain
from explorer.integrations.trl.rollout import fetch

logger = logging.getLogger(__name__)
# Groups in a row without one score: the verifier or the sandbox is broken.
_MOST_EMPTY_GROUPS = 8
_SCORED_DIFFERENTLY = 1e-8


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How rollouts are made.

    Attributes:
        run: name of the run that they are listed under.
        generations: attempts at one prompt, which are a group.
        at_once: how many agents run at the same time.
        queue_size: rows that may wait for the trainer; a full queue holds new groups back.
        temperature: the trainer's, fixed for every call.
        sampling: more that is fixed for every call.
    """

    run: str = "async"
    generations: int = 8
    at_once: int = 8
    queue_size: int = 1024
    temperature: float = 1.0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None


class ExplorerRolloutWorker:
    """A `RolloutWorkerProtocol` over captured rollouts.

        worker = ExplorerRolloutWorker(server, agent, prompts)
        AsyncGRPOTrainer(..., rollout_worker=worker, weight_transfer=FencedTransfer(...))

    Args:
        agent: any callable of `attempts.Agent`'s form; it runs in several threads.
        prompts: taken in order, again and again.
    """

    def __init__(
        self,
        server: ExplorerServer,
        agent: Agent,
        prompts: Sequence[Any],
        options: GroupOptions | None = None,
    ) -> None:
        if not prompts:
            raise ValueError("there is no prompt")
        self.options = options or GroupOptions()
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(self.options.queue_size)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._server = server
        self._agent = agent
        self._prompts = list(prompts)
        self._tag = secrets.token_hex(3)
        self._stop = threading.Event()
        self._version = 0
        self._model = ""
        self._failed: BaseException | None = None
        self._alive_s = time.monotonic()
        self._empty_groups = 0
        self._running: set[threading.Event] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    # -- TRL's protocol

    def start(self) -> None:
        """Begins; the first weights were sent."""
        self._alive_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends; agents that still run are told to give up, and their rollouts are failed."""
        self._stop.set()
        with self._lock:
            for running in self._running:
                running.set()
        if self._thread is not None:
            self._thread.join(60)

    def update_model_version(self, model_version: int) -> None:
        """The version that is live now, as the trainer counts."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises what ended the worker, or that nothing happened for so long."""
        if self._failed is not None:
            raise RuntimeError(f"the rollout worker ended: {self._failed}") from self._failed
        silent_s = time.monotonic() - self._alive_s
        if silent_s > stale_after_s:
            raise RuntimeError(f"no attempt ended in {silent_s:.0f} s")

    # -- groups

    def _run(self) -> None:
        options = self.options
        groups_at_once = max(1, options.at_once // options.generations)
        try:
            self._model = options.model or self._server.model()
            with (
                ThreadPoolExecutor(options.at_once) as attempts,
                ThreadPoolExecutor(groups_at_once) as groups,
            ):
                places = threading.Semaphore(groups_at_once)
                for number in itertools.count():
                    while not places.acquire(timeout=0.2):
                        if self._over():
                            return
                    if self._over():
                        return
                    groups.submit(self._group, number, attempts, places)
        except BaseException as error:
            self._end(error)
            raise

    def _over(self) -> bool:
        return self._stop.is_set() or self._failed is not None

    def _end(self, error: BaseException) -> None:
        if self._failed is None and not self._stop.is_set():
            self._failed = error

    def _group(
        self, number: int, pool: ThreadPoolExecutor, places: threading.Semaphore
    ) -> None:
        try:
            prompt = self._prompts[number % len(self._prompts)]
            # Rows are as old as the oldest weights that can have sampled them.
            version = self._version
            started: list[Endpoint | None] = [None] * self.options.generations
            running = [
                pool.submit(self._attempt, started, number, place, prompt)
                for place in range(self.options.generations)
            ]
            captured = [
                self._captured(started, place, done) for place, done in enumerate(running)
            ]
            samples = self._samples(number, prompt, version, captured)
            self._put(samples)
        except BaseException as error:
            self._end(error)
            raise
        finally:
            places.release()

    def _attempt(
        self, started: list[Endpoint | None], number: int, place: int, prompt: Any
    ) -> None:
        if self._stop.is_set():
            return
        name = task_name(prompt)
        sampling = dict(self.options.sampling) | {"temperature": self.options.temperature}
        wanted = {
            "run": self.options.run,
            "task": name,
            "group": f"{self._tag} {number}: {name}"[:200].strip(),
            "attempt": place,
            "sampling": sampling,
            "harness": "trl-async-worker",
            "metadata": {"trainer_version": self._version},
        }
        endpoint = Endpoint.create(self._server, wanted, self._model)
        started[place] = endpoint
        attempt = Attempt(prompt, endpoint, seed=number)
        with self._lock:
            self._running.add(attempt.stop)
        try:
            perform(self._server, self._agent, attempt)
        finally:
            with self._lock:
                self._running.discard(attempt.stop)
            self._alive_s = time.monotonic()

    def _captured(
        self, started: Sequence[Endpoint | None], place: int, done: Future[None]
    ) -> Captured:
        error = done.exception()
        endpoint = started[place]
        # Where no rollout could even be made, the next one could not either.
        if error is not None and (endpoint is None or not isinstance(error, Exception)):
            raise error
        if endpoint is None:
            return Captured("", problem="stopped")
        if error is not None:
            logger.warning(
                "the agent of rollout %s failed", endpoint.rollout_id, exc_info=error
            )
            return Captured(endpoint.rollout_id, problem=f"{type(error).__name__}: {error}")
        return fetch(self._server, endpoint.rollout_id)

    def _put(self, samples: Sequence[Any]) -> None:
        for sample in samples:
            while not self._over():
                sample.enqueued_at = time.time()
                with suppress(queue.Full):
                    self.rollout_buffer.put(sample, timeout=0.2)
                    break
                # Waiting for the trainer is not being dead.
                self._alive_s = time.monotonic()

    def _samples(
        self, number: int, prompt: Any, version: int, captured: Sequence[Captured]
    ) -> list[Any]:
        scored = [(one.trace, one.trace.reward) for one in captured if one.trace is not None]
        rewarded = [(trace, reward) for trace, reward in scored if reward is not None]
        left_out = len(captured) - len(rewarded)
        self.metrics_queue.put({"rollout/unscored": float(left_out)})
        if not rewarded:
            self._none_scored(captured)
            return []
        self._empty_groups = 0
        rewards = [reward for _, reward in rewarded]
        mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
        made = []
        for trace, reward in rewarded:
            advantage = (reward - mean) / (spread + _SCORED_DIFFERENTLY)
            metrics = {"reward": reward, "reward_std": spread}
            for row in all_rows(trace):
                made.append(_sample(row, prompt, advantage, version, number, metrics))
        return made

    def _none_scored(self, captured: Sequence[Captured]) -> None:
        self._empty_groups += 1
        told = next((one.problem for one in captured if one.problem), "nobody gave a reward")
        if self._empty_groups >= _MOST_EMPTY_GROUPS and not self._stop.is_set():
            raise NothingToTrain(
                f"{self._empty_groups} groups in a row have no score; the last says: {told}"
            )


def _sample(
    row: Row,
    prompt: Any,
    advantage: float,
    version: int,
    group: int,
    metrics: Mapping[str, float],
) -> Any:
    """A row in the trainer's own class."""
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    before = len(row.prompt_ids)
    messages = (
        prompt if isinstance(prompt, list) else [{"role": "user", "content": str(prompt)}]
    )
    return RolloutSample(
        prompt=messages,
        completion=[],
        input_ids=np.asarray(row.prompt_ids + row.completion_ids, np.int64),
        completion_mask=np.asarray((0,) * before + row.env_mask, np.int64),
        old_log_probs=np.asarray((0.0,) * before + row.logprobs, np.float32),
        advantage=advantage,
        model_version=version,
        group_id=group,
        metrics=dict(metrics),
    )

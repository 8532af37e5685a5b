"""GRPO on the shipped model, through the proxy, on a CPU, between two evaluations.

Owns: the lesson's settings, its evaluation before and after, and what is reported.
Must not know: how a server is started; it speaks the HTTP API and the wire.

torch and TRL are imported when training begins. There is no supervised step: the model sees
rewards only.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from explorer.demo.lesson_tasks import LessonAgent, held_out_tasks, training_tasks
from explorer.demo.tasks import Task
from explorer.integrations.attempts import Attempt, Endpoint, perform
from explorer.integrations.blocking import ExplorerServer
from explorer.integrations.trl import (
    LiveRollouts,
    TrainerLogprobs,
    WeightPush,
    calling,
    captured_reward,
)

RUN = "lesson"
HELD_OUT_RUN = "lesson-held-out"
TEMPERATURE = 1.0
STEPS = 24
LEARNING_RATE = 4e-4
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the lesson goes; the defaults are those that its page's table was made with.

    Attributes:
        prompts: tasks of a step.
        generations: attempts at each.
        held_out: tasks that are only evaluated, each `evaluations` times.
        repeat: trainer logprobs are computed twice, for the noise floor.
    """

    model: Path
    folder: Path
    seed: int = 7
    steps: int = STEPS
    prompts: int = 8
    generations: int = 8
    learning_rate: float = LEARNING_RATE
    held_out: int = 48
    evaluations: int = 4
    repeat: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """What one step saw, before it changed the weights."""

    number: int
    version: int
    reward: float
    groups: int
    without_variance: int
    unscored: int
    completion_tokens: float
    seconds: float


@dataclass(slots=True)
class Result:
    """How the lesson went; shares of held-out attempts that were right."""

    before: float = 0.0
    after: float = 0.0
    steps: list[Step] = field(default_factory=list)
    seconds: float = 0.0

    def told(self) -> str:
        """In one line."""
        return (
            f"held-out: {self.before:.0%} -> {self.after:.0%} "
            f"after {len(self.steps)} steps in {self.seconds:.0f} s"
        )


Report = Callable[[str], None]


def teach(server: ExplorerServer, wanted: Wanted, report: Report) -> Result:
    """Evaluates, trains and evaluates again, on a server whose engine is the tiny model.

    Args:
        report: is given one line at a time.
    """
    held_out = held_out_tasks(wanted.held_out)
    tasks = training_tasks(wanted.seed, wanted.steps * wanted.prompts, held_out)
    agent = LessonAgent(held_out + tasks)
    result = Result()
    began = time.monotonic()
    try:
        push = WeightPush(server, wanted.folder)
        result.before = evaluate(server, agent, held_out, wanted, "before")
        report(f"held-out tasks before: {result.before:.0%} right")
        _train(server, wanted, agent, tasks, push, _told(result, report))
        result.after = evaluate(server, agent, held_out, wanted, "after")
    finally:
        agent.close()
    result.seconds = time.monotonic() - began
    return result


def evaluate(
    server: ExplorerServer, agent: LessonAgent, tasks: Sequence[Task], wanted: Wanted, when: str
) -> float:
    """The share of right attempts, sampled as in training."""
    model = server.model()

    def one(place: int) -> float:
        number, attempt = divmod(place, wanted.evaluations)
        task = tasks[number]
        made = {
            "run": HELD_OUT_RUN,
            "task": task.name,
            "group": f"{when}: {task.name}",
            "attempt": attempt,
            "sampling": {"temperature": TEMPERATURE},
            "harness": "lesson-agent",
            "metadata": {"when": when},
        }
        endpoint = Endpoint.create(server, made, model)
        ended = perform(server, calling(agent), Attempt(task.question, endpoint))
        assert ended.reward is not None
        return ended.reward

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        rewards = list(pool.map(one, range(len(tasks) * wanted.evaluations)))
    return sum(rewards) / len(rewards)


def _told(result: Result, report: Report) -> Callable[[Step], None]:
    def step(one: Step) -> None:
        result.steps.append(one)
        unscored = f"  {one.unscored} unscored" if one.unscored else ""
        report(
            f"step {one.number:3}  weights {one.version:3}  reward {one.reward:5.3f}  "
            f"no variance {one.without_variance}/{one.groups}  "
            f"tokens {one.completion_tokens:5.1f}  {one.seconds:5.1f} s{unscored}"
        )

    return step


def _train(
    server: ExplorerServer,
    wanted: Wanted,
    agent: LessonAgent,
    tasks: Sequence[Task],
    push: WeightPush,
    report: Callable[[Step], None],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make_trainer(server, wanted, agent, tasks, push, report)
        trainer.train()


def make_trainer(
    server: ExplorerServer,
    wanted: Wanted,
    agent: LessonAgent,
    tasks: Sequence[Task],
    push: WeightPush,
    report: Callable[[Step], None],
) -> Any:
    """TRL's own trainer, set up for the lesson."""
    import torch
    import transformers
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    _quiet(transformers)
    torch.set_num_threads(1)
    rollouts = LiveRollouts(
        server,
        calling(agent),
        run=RUN,
        at_once=_AT_ONCE,
        weights=push,
        logprobs=TrainerLogprobs(server, push.version_of, repeat=wanted.repeat),
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(wanted.model, dtype=torch.float32),
        args=settings(wanted),
        train_dataset=Dataset.from_list([{"prompt": task.question} for task in tasks]),
        processing_class=AutoTokenizer.from_pretrained(wanted.model),
        reward_funcs=[captured_reward],
        rollout_func=_Watched(rollouts, push, wanted.generations, report),
        callbacks=[push],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def settings(wanted: Wanted) -> Any:
    """TRL's settings; what is not named here is its default."""
    from trl import GRPOConfig

    rows = wanted.prompts * wanted.generations
    most = min(16, rows)
    return GRPOConfig(
        output_dir=str(wanted.folder / "trainer"),
        seed=wanted.seed,
        max_steps=wanted.steps,
        num_generations=wanted.generations,
        per_device_train_batch_size=most,
        gradient_accumulation_steps=rows // most,
        learning_rate=wanted.learning_rate,
        lr_scheduler_type="linear",
        weight_decay=0.0,
        temperature=TEMPERATURE,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


@dataclass
class _Watched:
    """The rollout function, and a line about each batch."""

    rollouts: LiveRollouts
    push: WeightPush
    generations: int
    report: Callable[[Step], None]
    _since: float = field(default_factory=time.monotonic)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        batch = self.rollouts(prompts, trainer)
        rewards = batch["reward"]
        scored = [reward for reward in rewards if reward is not None]
        groups = [
            rewards[start : start + self.generations]
            for start in range(0, len(rewards), self.generations)
        ]
        now = time.monotonic()
        self.report(
            Step(
                number=int(trainer.state.global_step),
                version=self.push.version_of(trainer),
                reward=sum(scored) / max(1, len(scored)),
                groups=len(groups),
                without_variance=sum(len(set(group) - {None}) < 2 for group in groups),
                unscored=len(rewards) - len(scored),
                completion_tokens=sum(map(sum, batch["env_mask"])) / len(rewards),
                seconds=now - self._since,
            )
        )
        self._since = now
        return batch


def _quiet(transformers: Any) -> None:
    """Their progress bars would stand between our lines."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("trl").setLevel(logging.ERROR)

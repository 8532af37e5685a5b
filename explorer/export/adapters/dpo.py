"""Pairs of answers to exactly the same prompt, of which one ended better.

Owns: what a branch point is, which of its answers are paired, how much is held.
Must not know: TRL, trees beyond a call's prompt.

A preference trainer trains on everything behind the prompt, so an answer is in no pair unless
every token of it trains. Rewards are the rollouts': the calls of one rollout share one and
are never paired with each other.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from explorer.export.adapters.kept import Trained
from explorer.export.dataset.adapter import Adapter, Layout, Row, Subject
from explorer.export.dataset.schema import Column
from explorer.records import Call, CallId, IdArray, RolloutRecord
from explorer.trace.assemble import exported_calls
from explorer.trace.verdict import Judgement

MOST_PAIRS = 4
# Sampled ids of branch points where nothing to compare with came yet: 128 MiB.
MOST_WAITING = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, order=True)
class _Answer:
    """Ordered by reward, then by when it came."""

    reward: float
    order: int
    rollout_id: str = field(compare=False)
    call_id: CallId = field(compare=False)
    ids: IdArray = field(compare=False)


@dataclass(slots=True)
class _Point:
    """One prompt in one group; `prompt` is held once there are two rewards."""

    facts: dict[str, Any]
    answers: list[_Answer] = field(default_factory=list)
    prompt: IdArray | None = None

    @property
    def tokens(self) -> int:
        return sum(int(answer.ids.size) for answer in self.answers)


class Dpo(Adapter):
    """Pairs at branch points."""

    name = "dpo"
    layout = Layout.PARQUET
    about = (
        f"Pairs for preference training, at most {MOST_PAIRS} a branch point: two calls with "
        "exactly the same prompt, in rollouts of one group with different rewards; the best "
        "with the worst, the second with the second worst, and so on. For the collator of "
        "TRL's `DPOTrainer`. Not in it: rollouts without group or reward, calls of which any "
        "token does not train, equal answers, and pairs of rollouts that were added to the "
        "dataset at different times."
    )
    columns = (
        Column("prompt_ids", "ids", "What the engine read, both times.", True),
        Column("chosen_ids", "ids", "What was sampled in the rollout that ended better.", True),
        Column("rejected_ids", "ids", "What was sampled in the other.", True),
        Column("chosen_reward", "float", "Of the whole rollout.", True),
        Column("rejected_reward", "float", "Of the whole rollout; less.", True),
        Column("chosen_rollout_id", "text", "Its rollout.", True),
        Column("chosen_call_id", "text", "The call.", True),
        Column("rejected_rollout_id", "text", "Its rollout.", True),
        Column("rejected_call_id", "text", "The call.", True),
        Column("group", "text", "Of both.", True),
        Column("task", "text", "Of the first rollout with this prompt."),
        Column("model", "text", "Of both.", True),
        Column("tokenizer_id", "text", "Of both."),
    )

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self._points: dict[bytes, _Point] = {}
        # Those without a prompt yet, the oldest first, with their tokens.
        self._waiting: dict[bytes, int] = {}
        self._n_waiting = 0
        self._most_waiting = most_waiting
        self._n = 0

    def add(self, subject: Subject) -> Iterable[Row]:
        """Nothing yet: the other half of a pair may still come."""
        record, judgement = subject.record, subject.judgement
        reward, rollout = judgement.state.reward, record.rollout
        trained = Trained(record, judgement)
        if rollout.group is None or reward is None or not trained.leaves:
            return ()
        for call, key in _prompts(record, judgement):
            bits = trained.bits(call)
            if call.completion is None or not bits.size or not bits.all():
                continue
            self._n += 1
            answer = _Answer(reward, self._n, rollout.rollout_id, call.call_id, call.completion)
            self._take(key, answer, record, judgement)
        return ()

    def _take(
        self, key: bytes, answer: _Answer, record: RolloutRecord, judgement: Judgement
    ) -> None:
        rollout = record.rollout
        facts = {
            "group": rollout.group,
            "task": rollout.task,
            "model": rollout.model,
            "tokenizer_id": rollout.tokenizer_id,
        }
        point = self._points.setdefault(key, _Point(facts))
        if any(_same(answer, other) for other in point.answers):
            return
        insort(point.answers, answer)
        if len(point.answers) > 2 * MOST_PAIRS:
            del point.answers[MOST_PAIRS]
        if point.prompt is None and point.answers[0].reward < point.answers[-1].reward:
            point.prompt = judgement.tree.sequences.prompt(answer.call_id)
            self._n_waiting -= self._waiting.pop(key, 0)
        elif point.prompt is None:
            self._wait(key, point)

    def _wait(self, key: bytes, point: _Point) -> None:
        self._n_waiting += point.tokens - self._waiting.get(key, 0)
        self._waiting[key] = point.tokens
        while self._n_waiting > self._most_waiting:
            oldest = next(iter(self._waiting))
            self._n_waiting -= self._waiting.pop(oldest)
            del self._points[oldest]

    def finish(self) -> Iterable[Row]:
        """The pairs, in the order in which their prompts were first seen."""
        for point in self._points.values():
            if point.prompt is not None:
                for best, worst in _pairs(point.answers):
                    yield _row(point, best, worst)


def _same(one: _Answer, other: _Answer) -> bool:
    """Twins in one rollout: one answer, twice on record."""
    return one.rollout_id == other.rollout_id and one.ids.tobytes() == other.ids.tobytes()


def _prompts(record: RolloutRecord, judgement: Judgement) -> Iterator[tuple[Call, bytes]]:
    """Calls that training exports hold, each with a digest that is equal for equal prompts of
    one group and model. Each token is hashed once: a prompt begins with its parent's whole
    sequence."""
    rollout, tree = record.rollout, judgement.tree
    told = (rollout.group, rollout.model, rollout.tokenizer_id)
    wanted = {call.call_id: call for call in exported_calls(record, judgement)}
    begun = hashlib.sha256(repr(told).encode("utf-8", "backslashreplace") + b"\0")
    line: list[tuple[CallId, int, Any]] = []
    for node in tree.walk():
        if not node.has_ids:
            continue
        while line and line[-1][0] != node.parent_id:
            line.pop()
        size, hasher = line[-1][1:] if line else (0, begun)
        here = hasher.copy()
        here.update(tree.sequences.slice(node.call_id, size, node.prompt_len).tobytes())
        if node.call_id in wanted:
            yield wanted[node.call_id], here.digest()
        full = node.prompt_len + node.completion_len
        here.update(tree.sequences.slice(node.call_id, node.prompt_len, full).tobytes())
        line.append((node.call_id, full, here))


def _pairs(answers: list[_Answer]) -> Iterator[tuple[_Answer, _Answer]]:
    """The best with the worst that said something else, each answer once."""
    left = list(answers)
    found = 0
    for best in reversed(answers):
        if found == MOST_PAIRS or not any(best is each for each in left):
            continue
        for worst in left:
            if worst.reward >= best.reward:
                break
            if worst.ids.tobytes() != best.ids.tobytes():
                left = [each for each in left if each is not best and each is not worst]
                found += 1
                yield best, worst
                break


def _row(point: _Point, best: _Answer, worst: _Answer) -> Row:
    return Row(
        {
            "prompt_ids": point.prompt,
            "chosen_ids": best.ids,
            "rejected_ids": worst.ids,
            "chosen_reward": best.reward,
            "rejected_reward": worst.reward,
            "chosen_rollout_id": best.rollout_id,
            "chosen_call_id": best.call_id,
            "rejected_rollout_id": worst.rollout_id,
            "rejected_call_id": worst.call_id,
            **point.facts,
        }
    )

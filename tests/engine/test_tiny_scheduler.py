"""Batching: order, room, cancellation, prefixes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from explorer.engine.tiny.cache import KeyValueCache, PrefixPool
from explorer.engine.tiny.model import Chunk, Decoder
from explorer.engine.tiny.sampling import SamplingParameters
from explorer.engine.tiny.scheduler import Finished, Job, Scheduler
from explorer.engine.tiny.weights import ModelShape, ModelWeights

MODEL = Path(__file__).parent.parent / "data" / "tiny_model"
PROMPT = (1, 313, 201, 306, 314, 311, 16, 2, 201, 1, 291, 201, 446, 2, 201, 1, 299, 201)
END = (2,)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(ModelWeights.read(MODEL))


def job(name: str, seed: int = 0, prompt: tuple[int, ...] = PROMPT, limit: int = 12) -> Job:
    parameters = SamplingParameters(temperature=1.5, seed=seed, logprobs=0)
    return Job(name, prompt, limit, parameters, END, ignore_end=True)


def drain(scheduler: Scheduler[KeyValueCache]) -> dict[str, Finished]:
    found = {}
    while scheduler.busy:
        found.update({done.job.name: done for done in scheduler.step()})
    return found


def ids(done: Finished) -> list[int]:
    return [token.token_id for token in done.tokens]


def test_batch_gives_what_each_gives_alone(decoder: Decoder) -> None:
    jobs = [job(str(i), i, PROMPT[i % 4 :], 8 + i) for i in range(8)]
    together = Scheduler(decoder)
    for one in jobs:
        together.add(one)
    batch = drain(together)
    for one in jobs:
        alone = Scheduler(decoder)
        alone.add(one)
        expected = drain(alone)[one.name]
        assert ids(batch[one.name]) == ids(expected)
        for left, right in zip(batch[one.name].tokens, expected.tokens, strict=True):
            assert left.logprob == pytest.approx(right.logprob, abs=2e-5)


def test_same_seed_repeats(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder)
    scheduler.add(job("a", 5))
    scheduler.add(job("b", 5))
    scheduler.add(job("c", 6))
    found = drain(scheduler)
    assert ids(found["a"]) == ids(found["b"]) != ids(found["c"])


def test_others_wait_in_order(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, max_batch=2)
    for name in "abcd":
        scheduler.add(job(name, limit=3))
    assert (scheduler.running, scheduler.waiting) == (0, 4)
    scheduler.step()
    assert (scheduler.running, scheduler.waiting) == (2, 2)
    assert list(drain(scheduler)) == ["a", "b", "c", "d"]


def test_cancelling_frees_the_place(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, max_batch=1)
    scheduler.add(job("long", limit=10_000))
    scheduler.add(job("queued"))
    scheduler.add(job("next", limit=2))
    scheduler.step()
    assert scheduler.cancel("queued")
    assert scheduler.cancel("long")
    assert not scheduler.cancel("long")
    assert list(drain(scheduler)) == ["next"]


def test_a_long_prompt_does_not_stop_the_others(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, chunk_tokens=8)
    scheduler.add(job("quick", limit=6))
    scheduler.step()
    scheduler.step()
    scheduler.step()
    scheduler.add(job("slow", prompt=PROMPT[3:] * 8))
    order = list(drain(scheduler))
    assert order == ["quick", "slow"]


def test_chunked_prompt_gives_the_same_tokens(decoder: Decoder) -> None:
    found = []
    for size in (3, 512):
        scheduler = Scheduler(decoder, chunk_tokens=size)
        scheduler.add(job("a", prompt=PROMPT * 5))
        found.append(drain(scheduler)["a"])
    assert ids(found[0]) == ids(found[1])


def test_known_prefixes_are_not_read_again(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder)
    scheduler.add(job("first"))
    first = drain(scheduler)["first"]
    assert first.cached_tokens == 0
    longer = (*PROMPT, *ids(first), 201, 1, 299, 201)
    scheduler.add(job("second", prompt=longer))
    scheduler.add(job("twin"))
    warm = drain(scheduler)
    # The last sampled token was never read, and a prompt's last token always is.
    assert warm["second"].cached_tokens == len(PROMPT) + len(first.tokens) - 1
    assert warm["twin"].cached_tokens == len(PROMPT) - 1
    assert ids(warm["twin"]) == ids(first)
    cold = Scheduler(decoder)
    cold.add(job("second", prompt=longer))
    assert ids(drain(cold)["second"]) == ids(warm["second"])


def test_pool_forgets_the_oldest() -> None:
    shape = ModelShape.read(MODEL)
    pool = PrefixPool[KeyValueCache](limit_tokens=10)
    for start in (0, 100, 200):
        cache = KeyValueCache(shape)
        cache.length = 4
        pool.keep([start, start + 1, start + 2, start + 3], cache)
    assert pool.find([0, 1, 2]) is None
    found = pool.find([100, 101, 102, 103, 104])
    assert found is not None
    assert found.length == 4
    pool.clear()
    assert pool.find([100, 101]) is None


def test_end_and_length(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder)
    greedy = SamplingParameters(temperature=0.0)
    scheduler.add(Job("end", PROMPT, 50, greedy, END))
    scheduler.add(Job("cut", PROMPT, 2, greedy, END))
    scheduler.add(Job("id", PROMPT, 50, greedy, END, stop_ids=(519,)))
    scheduler.add(
        Job("late", PROMPT, 50, SamplingParameters(temperature=0.0, min_tokens=20), END)
    )
    found = drain(scheduler)
    assert (found["end"].reason, ids(found["end"])[-1]) == ("stop", 2)
    assert found["end"].stopped_by is None
    assert (found["cut"].reason, len(found["cut"].tokens)) == ("length", 2)
    assert (found["id"].stopped_by, ids(found["id"])[-1]) == (519, 519)
    assert len(found["late"].tokens) >= 20


def test_no_empty_jobs(decoder: Decoder) -> None:
    with pytest.raises(ValueError, match="prompt"):
        Scheduler(decoder).add(job("x", prompt=()))
    with pytest.raises(ValueError, match="prompt"):
        Scheduler(decoder).add(job("x", limit=0))


def moved() -> Decoder:
    """The decoder after a step of some trainer."""
    weights = ModelWeights.read(MODEL)
    bent = replace(weights, final_norm=weights.final_norm * np.float32(1.5))
    return Decoder(bent)


def test_running_jobs_go_on_with_new_weights_as_if_these_had_read_everything() -> None:
    old, new = Decoder(ModelWeights.read(MODEL)), moved()
    scheduler = Scheduler(old, label="step-7")
    scheduler.add(job("a", 3, limit=20))
    for _ in range(6):
        assert scheduler.step() == []
    scheduler.change(new, "step-8")
    done = drain(scheduler)["a"]
    (first, start, cut), second = done.spans
    assert (first, start) == ("step-7", 0)
    assert second == ("step-8", cut, 20)
    assert 0 < cut < 20
    # Its next token is what the new weights alone make of the same ids.
    logits = new.score(Chunk((*PROMPT, *ids(done)[:-1]), new.new_cache()))[-1]
    scaled = logits / np.float32(1.5)
    expected = scaled - np.log(np.exp(scaled - scaled.max()).sum()) - scaled.max()
    assert done.tokens[-1].logprob == pytest.approx(float(expected[ids(done)[-1]]), abs=1e-4)


def test_nothing_that_old_weights_read_is_used_for_new_prompts(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder)
    scheduler.add(job("a"))
    drain(scheduler)
    scheduler.add(job("b"))
    assert drain(scheduler)["b"].cached_tokens == len(PROMPT) - 1
    scheduler.add(job("c", limit=4))
    scheduler.step()
    scheduler.change(moved(), "other")
    drain(scheduler)
    scheduler.add(job("d", prompt=(*PROMPT[:-1], 5)))
    found = drain(scheduler)["d"]
    # What `c` left behind was read by the new weights; `a` and `b` are forgotten.
    assert found.cached_tokens == len(PROMPT) - 1
    assert found.spans == (("other", 0, 12),)
    fresh = Scheduler(moved())
    fresh.add(job("d", prompt=(*PROMPT[:-1], 5)))
    expected = drain(fresh)["d"]
    assert ids(found) == ids(expected)
    for left, right in zip(found.tokens, expected.tokens, strict=True):
        assert left.logprob == pytest.approx(right.logprob, abs=2e-5)

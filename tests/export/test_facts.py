"""The evidence of a dataset's part: right, small, mergeable, and never believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.errors import InvalidValue
from explorer.export.dataset.fact_list import FACTS, FACTS_VERSION, KINDS
from explorer.export.dataset.facts import Facts, merged
from explorer.export.dataset.tallies import KEYS, NAMED, TEXT, Distinct, Range, Tally, told
from explorer.export.secret_review import Review, Reviewed
from explorer.records import (
    EventKind,
    LogprobKind,
    Purpose,
    RolloutId,
    RolloutRecord,
)
from explorer.store.secret_marks import SecretDecision
from explorer.trace.policy import Policy
from explorer.trace.secret_scan import SecretFinding
from explorer.trace.verdict import judge
from tests.export.cards import changed
from tests.export.datasets import forked, odd
from tests.trace.build import (
    CERTIFIED,
    RAW,
    event,
    failed_call,
    make_call,
    override,
    record,
    two_turns,
)

MEASURED = replace(
    CERTIFIED,
    numbers={
        "questions": 12,
        "slope": {"0.5": 2.02, "2.0": 0.5},
        "bias_shift": {"1.0": 2.0, "2.0": 0.95},
        "normalisation": {"highest": -0.02, "sum": 0.99},
        "tokenizer_sha256": "ab" * 32,
        "flags": ["--logprobs-mode=processed_logprobs"],
    },
)


def facts_of(*records: RolloutRecord, policy: Policy | None = None) -> dict[str, Any]:
    facts = Facts()
    for each in records:
        facts.add(each, judge(each, policy or Policy()))
    return facts.to_json()


def test_what_is_told_of_one_rollout() -> None:
    first, _ = two_turns()
    asked = {"temperature": 0.7, "top_p": 0.9, "seed": 3, "max_tokens": 50}
    sent = asked | {"top_p": 1.0}
    first = replace(first, requested_sampling=asked, submitted_sampling=sent)
    made = changed(
        record(first, certificate=MEASURED),
        harness="pi",
        harness_version="1.2",
        harness_config_sha256="cd" * 32,
        chat_template_sha256="ef" * 32,
        task="t",
        group="g",
        model="m",
    )
    told_ = facts_of(replace(made, calls=(first, failed_call("x", 3))))
    harness = {"name": "pi", "version": "1.2", "config_sha256": "cd" * 32}
    assert told_["harness"]["used"] == {"values": [[harness, 1]], "more": 0}
    assert told_["model"]["tokenizers"]["values"] == [["ab" * 32, 1]]
    assert told_["model"]["chat_templates"]["values"] == [["ef" * 32, 1]]
    plain = {"temperature": 0.7, "top_p": 0.9}
    assert told_["sampling"]["asked"]["values"] == [[plain, 1]]
    assert told_["sampling"]["sent"]["values"] == [[plain | {"top_p": 1.0}, 1]]
    assert (told_["sampling"]["seeded"], told_["sampling"]["max_tokens"]) == (1, [50, 50])
    assert told_["certificates"]["slope_off"] == pytest.approx([0.0, 0.01])
    assert told_["certificates"]["bias_off"] == pytest.approx([0.0, 0.1])
    assert told_["certificates"]["probe_calls"] == [12, 12]
    assert told_["certificates"]["trained"]["values"] == [["proved", 2]]
    assert told_["weights"] == {
        "versions": [7, 7],
        "untold": 0,
        "crossed": 0,
        "labels": {"values": [[None, 1]], "more": 0},
    }
    assert told_["rollouts"]["tasks"]["at_least"] == 1
    assert told_["tokens"]["reasons"]["values"] == [["prompt", 2], ["sampled", 2]]
    assert told_["calls"]["statuses"]["values"] == [["committed", 1], ["failed", 1]]
    assert told_["checks"]["clean"] == 0
    found = {"code": "call_failed", "grade": "WARN"}
    assert [found, 1] in told_["checks"]["found"]["values"]


def test_a_call_that_saw_two_versions_and_one_that_saw_none_are_counted() -> None:
    crossed = make_call("a", 1, [1], [2], weight_version_end=9)
    untold = make_call("b", 2, [5], [6], weight_version_start=None, weight_version_end=None)
    weights = facts_of(record(crossed, untold))["weights"]
    assert (weights["versions"], weights["crossed"], weights["untold"]) == ([7, 9], 1, 1)


def test_a_reward_that_nobody_gave_is_never_0() -> None:
    scored = record(*two_turns(), events=[event(EventKind.CLOSED, reward=-0.5)])
    unscored = record(*two_turns(), events=[event(EventKind.CLOSED)])
    rewards = facts_of(scored, unscored)["rewards"]
    assert rewards == {"scored": 1, "null": 1, "range": [-0.5, -0.5], "sum": -0.5}
    assert facts_of(unscored)["rewards"]["range"] is None


def test_why_logprobs_of_trained_tokens_are_believed() -> None:
    plain = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
    call = make_call("a", 1, [1], [2, 3], n_tools=1, submitted_sampling=plain)
    raw = record(call, certificate=RAW)
    trained = facts_of(raw, policy=Policy(name="x", accept_raw_at_one=True))["certificates"]
    assert trained["trained"]["values"] == [["raw_at_temperature_one", 2]]
    cold = record(
        replace(call, submitted_sampling=plain | {"temperature": 0.5}), certificate=RAW
    )
    trained = facts_of(cold, policy=Policy(name="x", accept_raw=True))["certificates"]
    assert trained["trained"]["values"] == [["accepted_without_proof", 2]]
    assert trained["calls"]["values"][0][0]["logprobs"] == LogprobKind.RAW
    assert facts_of(cold)["certificates"]["trained"]["values"] == []


def test_tokens_of_a_rollout_that_may_not_train_are_counted_apart() -> None:
    for made in (
        record(*two_turns(), purpose=Purpose.EVAL),
        record(*two_turns(), certificate=None),
    ):
        tokens = facts_of(made)["tokens"]
        assert tokens["supervised"] == 0
        assert tokens["reasons"]["values"] == []
        assert tokens["reasons_elsewhere"]["values"]
        assert facts_of(made)["certificates"]["trained"]["values"] == []


def test_overrides_and_decisions_are_counted_and_name_nobody() -> None:
    made = record(
        *two_turns(), overrides=[override("exclude_call", "b"), override("role", "a")]
    )
    finding = SecretFinding("f1", "openai_key", "sk-", 40, (), 0)
    decision = SecretDecision("d", RolloutId("r1"), "f1", 1, "release", "grace", "mine")
    facts = Facts()
    review = Review(RolloutId("r1"), (Reviewed(finding, decision), Reviewed(finding, None)))
    facts.add(made, judge(made), review)
    people = facts.to_json()["people"]
    assert people["overrides"]["values"] == [["exclude_call", 1], ["role", 1]]
    assert people["secrets"]["values"] == [["release", 1], ["undecided", 1]]
    assert people["reviewed"] == people["overridden"] == 1
    text = json.dumps(facts.to_json())
    assert not [name for name in ("ada", "grace", "because", "mine") if name in text]


def test_equal_rollouts_give_equal_bytes_and_parts_add_up() -> None:
    records = [
        record(*two_turns()),
        changed(record(*forked()), run="other", task="t"),
        record(*odd(), events=[event(EventKind.CLOSED, reward=0.25)]),
        record(failed_call("z", 1)),
    ]
    whole = json.dumps(facts_of(*records))
    assert json.dumps(facts_of(*records)) == whole
    parts = [json.loads(json.dumps(facts_of(each))) for each in records]
    assert json.dumps(merged(parts)) == whole
    assert json.dumps(merged([parts[0], {}, *parts[1:]])) == whole
    assert merged([])["rollouts"]["all"] == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 5))
def test_any_split_of_rollouts_adds_up(seeds: list[int], cut: int) -> None:
    records = [
        changed(record(*two_turns()), run=f"run {seed}", group=str(seed % 3)) for seed in seeds
    ]
    left, right = records[:cut], records[cut:]
    parts = [facts_of(*part) for part in (left, right) if part]
    assert merged(parts) == facts_of(*records)


def test_it_stays_small_whatever_a_record_holds() -> None:
    records = []
    for number in range(300):
        sampling = {f"key {number} {each}": "v" * 500 for each in range(60)}
        call = make_call(
            "a",
            1,
            [1],
            [2],
            submitted_sampling=sampling,
            requested_sampling={
                "guided": {"a": ["x" * 5000]},
                "n": 2**80,
                "nan": float("nan"),
                "t": number,
            },
        )
        made = record(call, certificate=replace(CERTIFIED, failures=("f" * 5000,)))
        records.append(
            changed(made, harness=f"h{number}" * 200, run=f"r{number}", task="\ud800")
        )
    found = facts_of(*records)
    assert len(json.dumps(found)) < 60_000
    assert len(found["harness"]["used"]["values"]) == NAMED
    assert found["harness"]["used"]["more"] == 300 - NAMED
    assert found["rollouts"]["runs"] == {"at_least": 300, "at_most": 300, "marks": []}
    again = merged([found, found])
    assert again["rollouts"]["runs"] == {"at_least": 300, "at_most": 600, "marks": []}
    assert again["harness"]["used"]["more"] == 2 * (300 - NAMED)
    assert again["rollouts"]["tasks"]["at_least"] == 1


def test_a_tally_names_the_most_frequent_and_counts_the_rest() -> None:
    tally = Tally(named=2)
    for value, n in (("a", 1), ("b", 3), (None, 2), (True, 3)):
        tally.add(value, n)
    assert tally.to_json() == {"values": [["b", 3], [True, 3]], "more": 3}


def test_texts_are_told_short_and_values_one_level_deep() -> None:
    assert told("x" * 1000) == "x" * (TEXT - 1) + "…"
    assert told("\ud800") == "\\ud800"
    assert told({"a": {"b": 1}, "c": float("inf")}) == {"a": '{"b":1}', "c": "inf"}
    assert told({str(n): 1 for n in range(100)}) == {str(n): 1 for n in range(KEYS)}
    assert told({str(n): "x" * 150 for n in range(20)}) == "(20 keys, too long)"


def test_numbers_that_are_none_are_no_range() -> None:
    found = Range()
    for value in (None, True, "3", float("nan"), float("inf"), 2**70, [1]):
        found.add(value)
    assert found.to_json() is None


def test_different_ones_are_counted_once_across_parts() -> None:
    first, second, both = Distinct(), Distinct(), Distinct()
    for name in ("a", "b"):
        first.add(name)
    for name in ("b", "c"):
        second.add(name)
    both.absorb(first.to_json())
    both.absorb(second.to_json())
    assert (both.to_json()["at_least"], both.to_json()["at_most"]) == (3, 3)


def put(document: Any, path: str, value: Any) -> dict[str, Any]:
    section, name = path.split(".")
    made: dict[str, Any] = json.loads(json.dumps(document))
    made[section][name] = value
    return made


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rollouts.all", -1),
        ("rollouts.all", True),
        ("rollouts.all", 2**64),
        ("rewards.range", [1]),
        ("rewards.range", [float("inf"), 1]),
        ("rewards.sum", "x"),
        ("harness.used", []),
        ("harness.used", {"values": [["a"]], "more": 0}),
        ("harness.used", {"values": [["a" * 300, 1]], "more": 0}),
        ("harness.used", {"values": [[{"a": {"b": 1}}, 1]], "more": 0}),
        ("harness.used", {"values": [[["a"], 1]], "more": 0}),
        ("harness.used", {"values": [], "more": None}),
        ("rollouts.runs", {"at_least": 1, "at_most": 1, "marks": ["x"]}),
        ("rollouts.runs", {"at_least": 1, "at_most": 1, "marks": ["a" * 12] * 101}),
        ("rollouts.runs", None),
    ],
)
def test_facts_of_somebody_else_are_read_with_care(path: str, value: Any) -> None:
    good = facts_of(record(*two_turns()))
    with pytest.raises(InvalidValue) as caught:
        merged([put(good, path, value)])
    assert caught.value.details["path"] == path


def test_facts_of_another_version_or_of_other_names_are_refused() -> None:
    good = facts_of(record(*two_turns()))
    with pytest.raises(InvalidValue, match=f"version {FACTS_VERSION}, not 9"):
        merged([good | {"version": 9}])
    with pytest.raises(InvalidValue, match="other names"):
        merged([good | {"people": {}}])


def test_every_fact_is_documented() -> None:
    page = Path("docs/reference/dataset-card.md").read_text()
    for section, facts in FACTS.items():
        for name, fact in facts.items():
            assert fact.kind in KINDS
            assert f"| `{section}.{name}` | {fact.kind} | {fact.meaning} |" in page
    assert set(facts_of(record(*two_turns()))) == {"version", *FACTS}

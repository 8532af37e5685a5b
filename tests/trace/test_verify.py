"""`verify`: an exported file alone gives the same verdict, and a changed one is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.errors import InvalidValue
from explorer.records import EventKind, RolloutId, RolloutRecord
from explorer.trace.assemble import training_trace
from explorer.trace.audit import capture_audit
from explorer.trace.tracefile import Turns, check_trace
from explorer.trace.verdict import judge
from explorer.trace.verify import verify
from tests.trace.build import event, make_call, override, record, two_turns


def rollout(**more: Any) -> RolloutRecord:
    first, second = two_turns()
    fork = make_call("c", 4, [1, 2, 3, 4, 9], [6, 7], parent=first, n_tools=2)
    return record(first, second, fork, **more)


def audit_of(made: RolloutRecord) -> bytes:
    return b"".join(capture_audit(made, judge(made)))


def trace_of(made: RolloutRecord) -> bytes:
    return b"".join(training_trace(made, judge(made)))


def test_an_audit_alone_gives_the_verdict() -> None:
    report = verify(audit_of(rollout()))
    assert (report.ok, report.trainable, report.problems) == (True, True, ())
    assert report.facts["supervised_tokens"] == 5
    failed = rollout(events=[event(EventKind.CLOSED, ok=False, reason="tests failed")])
    report = verify(audit_of(failed))
    assert (report.ok, report.trainable) == (True, False)
    assert report.facts["reasons"] == ["rollout_failed"]


def test_a_turn_that_adds_no_token_has_no_span_and_is_sound() -> None:
    """An empty reply to a prompt that is its parent's whole row."""
    first, second = two_turns()
    empty = make_call("e", 3, [1, 2, 3, 4, 5, 6], [], parent=second, n_tools=2)
    made = record(first, second, empty)
    trace = trace_of(made)
    assert orjson.loads(trace)["turns"][2]["metadata"]["mask_spans"] == []
    assert verify(trace, audit_of(made)).problems == ()
    document = orjson.loads(trace)
    document["turns"][1]["metadata"]["mask_spans"] = []
    assert any("do not cover" in problem for problem in check_trace(document, Turns()))


def test_another_spelling_is_the_same_audit() -> None:
    pretty = orjson.dumps(orjson.loads(audit_of(rollout())), option=orjson.OPT_INDENT_2)
    report = verify(pretty)
    assert report.ok
    assert "spelt in another way" in report.notes[0]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d["calls"][1]["per_token_logps"].__setitem__(0, -0.5), "inputs_sha256"),
        (lambda d: d["calls"][1]["completion_token_ids"].__setitem__(0, 7), "verdict"),
        (lambda d: d["calls"][1]["prompt_delta"].__setitem__(0, 7), "verdict"),
        (lambda d: d["verdict"].update(trainable=False), "$.verdict.trainable"),
        (lambda d: d["calls"][0].update(role="auxiliary"), "$.calls[0].role"),
        (lambda d: d["calls"][0]["mask_spans"][0].__setitem__(1, 1), "mask_spans"),
        (lambda d: d["totals"].update(supervised_tokens=9), "supervised_tokens"),
        (lambda d: d["certificate"].update(logprob_kind="raw"), "inputs_sha256"),
        (lambda d: d["events"].clear(), "$.state.closed"),
        (lambda d: d["calls"].pop(), "$.totals"),
        (lambda d: d.update(extra=1), "$.extra"),
    ],
)
def test_a_changed_audit_is_caught(change: Callable[[Any], Any], place: str) -> None:
    document = orjson.loads(audit_of(rollout()))
    change(document)
    report = verify(orjson.dumps(document))
    assert not report.ok
    assert any(place in problem for problem in report.problems), report.problems


def test_a_trace_alone_and_against_its_audit() -> None:
    made = rollout()
    report = verify(trace_of(made))
    assert (report.ok, report.trainable) == (True, True)
    assert report.facts["turns"] == 3
    assert report.facts["chain_hashes_checked"] == 3
    assert verify(trace_of(made), audit_of(made)).ok
    other = rollout(overrides=[override("exclude_call", "b")])
    report = verify(trace_of(made), audit_of(other))
    assert not report.ok
    assert any("$.turns" in problem for problem in report.problems)
    refused = rollout(events=[event(EventKind.CLOSED, ok=False)])
    report = verify(trace_of(made), audit_of(refused))
    assert report.problems == ("the audit's rollout may not be used: rollout_failed",)


def test_the_audit_of_another_rollout_is_told_apart_at_once() -> None:
    made = rollout()
    other = replace(made, rollout=replace(made.rollout, rollout_id=RolloutId("r2")))
    report = verify(trace_of(made), audit_of(other))
    assert report.problems == ("the trace is of rollout r1, the audit of another one: r2",)


TRACE_FAULTS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda d: d.update(turns=[]), "no_turns"),
    (lambda d: d.update(schema_version=True), "schema_version"),
    (lambda d: d.update(schema_version=1.0), "schema_version"),
    (lambda d: d["turns"][0].update(prompt_token_ids=[]), "no_prompt_ids"),
    (lambda d: d["turns"][0]["prompt_token_ids"].__setitem__(0, 2**70), "invalid_token_id"),
    (lambda d: d["turns"][0]["prompt_token_ids"].__setitem__(0, True), "invalid_token_id"),
    (lambda d: d["turns"][0]["per_token_logps"].__setitem__(0, 0.5), "positive_logprob"),
    (lambda d: d["turns"][0]["per_token_logps"].__setitem__(0, None), "invalid_logprob"),
    (lambda d: d["turns"][0]["per_token_logps"].__setitem__(0, -9999.0), "sentinel_logprob"),
    (lambda d: d["turns"][0]["per_token_logps"].pop(), "logprob_misalign"),
    (lambda d: d["turns"][0]["loss_mask"].pop(), "length_mismatch"),
    (lambda d: d["turns"][0]["loss_mask"].__setitem__(0, 1), "trainable_prompt"),
    (lambda d: d["turns"][0]["loss_mask"].__setitem__(2, 2), "invalid_loss_mask"),
    (lambda d: d["turns"][0]["loss_mask"].__setitem__(2, 0), "but not in the mask"),
    (lambda d: d["turns"][1].update(node_id="a"), "twice"),
    (lambda d: d["turns"][1]["prompt_token_ids"].__setitem__(0, 9), "tokens of its parent"),
    (lambda d: d["turns"][1]["completion_token_ids"].__setitem__(0, 9), "hash of these ids"),
    (lambda d: d["turns"][0]["metadata"].pop("mask_spans"), "mask_spans"),
    (lambda d: d["turns"][0]["metadata"].update(ok=False), "failed"),
    (lambda d: d["turns"][0]["metadata"].pop("policy"), "policy"),
    (lambda d: d["turns"][0].update(reward=1), "exactly"),
    (lambda d: d["turns"][0].update(request=[]), "must be objects"),
    (lambda d: d["turns"][0]["per_token_logps"].__setitem__(0, -(10**400)), "invalid_logprob"),
]


def claim(**said: Any) -> Callable[[Any], Any]:
    return lambda d: d["turns"][1]["metadata"].update(said)


def decision(kind: str, **more: Any) -> Callable[[Any], Any]:
    made = {"kind": kind, "reason": "r", "who": "w", "time_us": 1, "call_id": "b"}
    made |= {"role": None, "start": None, "end": None} | more
    return lambda d: d["turns"][0]["metadata"]["overrides"].append(made)


def head(key: str, **said: Any) -> Callable[[Any], Any]:
    return lambda d: d["turns"][0]["metadata"][key].update(said)


def torn(document: Any) -> None:
    """The second turn, another token in it, no more said to go on from the first."""
    turn = document["turns"][1]
    turn["prompt_token_ids"][0] = 9
    turn["metadata"].update(parent_id=None, root_id="b", depth=0)
    turn["metadata"]["mask_spans"][0] = [0, 5, "prompt"]


def out_of_order(document: Any) -> None:
    first, second, third = document["turns"]
    facts = first["metadata"]
    third["metadata"] = {**facts, **third["metadata"]}
    document["turns"] = [third, first, second]


# A trace that contradicts itself: each of these was called sound once.
SELF_CONTRADICTIONS: list[tuple[Callable[[Any], Any], str]] = [
    (claim(role="auxiliary"), "no turn in a trace"),
    (claim(role="subagent"), "no turn in a trace"),
    (claim(mask_reason="auxiliary"), "is not what the spans say"),
    (claim(mask_reason=[]), "is not what the spans say"),
    (claim(mask_spans=[[4, 5, "prompt"], [5, 6, "sampled"]]), "cannot stand at"),
    (claim(mask_spans=[[4, 5, "sampled"], [5, 6, "sampled"]]), "a prompt token is called"),
    (claim(mask_spans=[[4, 5, "discarded"], [5, 6, "sampled"]]), "cannot stand at"),
    (claim(node_id="x"), ".node_id: is another"),
    (claim(rollout_id="x"), ".rollout_id: is another"),
    (claim(root_id="x"), ".root_id"),
    (claim(depth=4), ".depth"),
    (claim(parent_id=None), "are those of a child"),
    (claim(parent_id=["a"]), "must be a text or null"),
    (claim(chain_hash=5), "64 hexadecimal digits"),
    (claim(prefix_of=None), ".prefix_len: these ids"),
    (claim(prefix_of=None, prefix_len=0), "is not the hash of these ids"),
    (claim(prefix_len=1), "is not the hash of these ids"),
    (claim(prefix_len=-1), ".prefix_len: these ids"),
    (claim(prefix_of={}), ".prefix_of: must be"),
    (claim(certificate_id="other"), "names no certificate"),
    (claim(certificate_id=None), "uncertified"),
    (claim(weight_version_end=8), "version_crossed"),
    (torn, ".prefix_len: these ids"),
    (out_of_order, "branch_order"),
    (lambda d: d["turns"][1]["response"].update(finish_reason="abort"), "has a loss"),
    (lambda d: d["turns"][1]["response"].update(finish_reason=None), "has a loss"),
    (decision("exclude_call"), "a person left this call out"),
    (decision("exclude_span", start=5, end=6), "a token out that has a loss"),
    (decision("role", role="discarded"), "a person said discarded"),
    (head("certificate", logprob_kind="raw"), "uncertified"),
    (head("policy", train_greedy=True), "is not the digest of the policy"),
    (head("policy", train_greedy=1), "policy.train_greedy"),
    (head("rollout", rollout_id="x"), ".rollout_id: is another"),
    (lambda d: d["turns"][0]["metadata"].update(overrides={}), "must be a list"),
    (lambda d: d["turns"][0]["metadata"].update(inputs_sha256="x"), "inputs_sha256"),
]


@pytest.mark.parametrize(("change", "said"), SELF_CONTRADICTIONS)
def test_a_trace_that_contradicts_itself_is_caught(
    change: Callable[[Any], Any], said: str
) -> None:
    document = orjson.loads(trace_of(rollout()))
    change(document)
    report = verify(orjson.dumps(document))
    assert any(said in problem for problem in report.problems), report.problems


def test_a_name_that_stands_twice_says_two_things() -> None:
    twice = trace_of(rollout()).replace(b'"loss_mask":', b'"loss_mask":[1],"loss_mask":', 1)
    with pytest.raises(InvalidValue, match="`loss_mask` stands twice"):
        verify(twice)
    twice = audit_of(rollout()).replace(b'"verdict":', b'"verdict":{},"verdict":', 1)
    with pytest.raises(InvalidValue, match="`verdict` stands twice"):
        verify(twice)


def test_a_number_is_not_another_kind_of_number() -> None:
    """1, 1.0 and true are equal in Python, and three things in JSON."""
    document = orjson.loads(audit_of(rollout()))
    document["calls"][0]["supervised_tokens"] = 2.0
    document["calls"][1]["mask_spans"][0][0] = float(document["calls"][1]["mask_spans"][0][0])
    report = verify(orjson.dumps(document))
    assert [problem.partition(":")[0] for problem in report.problems] == [
        "$.calls[0].supervised_tokens",
        "$.calls[1].mask_spans[0][0]",
    ]
    changed = orjson.loads(trace_of(rollout()))
    changed["turns"][1]["metadata"]["n_tools"] = 2.0
    assert not verify(orjson.dumps(changed), audit_of(rollout())).ok


@pytest.mark.parametrize("depth", [300, 1010])
@pytest.mark.parametrize("key", ["metadata", "requested_sampling", "top_logprobs"])
def test_an_audit_that_is_nested_deeply_is_refused_in_words(depth: int, key: str) -> None:
    nest = b"[" * depth + b"]" * depth
    data = audit_of(rollout())
    empty = b'"%s":%s' % (key.encode(), b"null" if key == "top_logprobs" else b"{}")
    assert empty in data
    deep = nest if key == "top_logprobs" else b'{"x":%s}' % nest
    with pytest.raises(InvalidValue, match=r"nested too deeply|verified"):
        verify(data.replace(empty, b'"%s":%s' % (key.encode(), deep), 1))


def test_an_audit_cannot_take_more_memory_than_a_rollout_has() -> None:
    """Digests that are shared cost a crafted file nothing: 28 MB of it took all memory."""
    document = orjson.loads(audit_of(rollout()))
    first = document["calls"][0]
    document["calls"] = [
        {
            **first,
            "call_id": f"c{place}",
            "message_digests": ["d"] * 100,
            "digests_shared": 100 * place,
            "digests_of": f"c{place - 1}" if place else None,
        }
        for place in range(700)
    ]
    with pytest.raises(InvalidValue, match="more than 20000000 message digests"):
        verify(orjson.dumps(document))


def test_a_trace_says_how_many_of_its_token_hashes_were_not_checked() -> None:
    document = orjson.loads(trace_of(rollout()))
    document["turns"][1]["metadata"]["chain_hash"] = None
    report = verify(orjson.dumps(document))
    assert report.facts["chain_hashes_checked"] == 2
    assert any("hashes of 1 turns" in note for note in report.notes)


@pytest.mark.parametrize(("change", "said"), TRACE_FAULTS)
def test_a_changed_trace_is_caught(change: Callable[[Any], Any], said: str) -> None:
    document = orjson.loads(trace_of(rollout()))
    change(document)
    # As parsed: what JSON itself cannot hold (an id of 2**70) must be refused, too.
    problems = check_trace(document, Turns())
    assert any(said in problem for problem in problems), problems


def test_all_masked_is_nothing_trainable() -> None:
    document = orjson.loads(trace_of(rollout()))
    for turn in document["turns"]:
        turn["loss_mask"] = [0] * len(turn["loss_mask"])
        turn["metadata"]["mask_spans"] = [[0, len(turn["loss_mask"]), "auxiliary"]]
    assert verify(orjson.dumps(document)).problems == (
        "$.turns: nothing_trainable: no token has a loss",
    )


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b'{"turns": []}', b'{"format": 1}'])
def test_another_file_says_what_is_read(data: bytes) -> None:
    with pytest.raises(InvalidValue, match=r"JSON|Training trace"):
        verify(data)


@given(st.data())
def test_no_mutation_of_a_trace_raises(data: st.DataObject) -> None:
    document = orjson.loads(trace_of(rollout()))
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.integers(0, 3)) == 0:
            place[key] = data.draw(
                st.sampled_from([None, True, -1, 1.5, "x", [], {}, [[1]], {"a": 1}, 2**63])
            )
            break
        place = place[key]
    report = verify(orjson.dumps(document)) if set(document) else None
    assert report is None or isinstance(report.ok, bool)

"""The Capture audit: whole, adding up, and read back to the very same bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.errors import InvalidValue
from explorer.records import Call, CallStatus, EventKind, FailureKind, Note, Override
from explorer.trace.audit import PLAIN_FIELDS, SPELT_APART, capture_audit
from explorer.trace.audit_reader import read_audit
from explorer.trace.policy import DEFAULT_POLICY, Policy
from explorer.trace.verdict import judge
from tests.trace.build import (
    RAW,
    admission,
    event,
    failed_call,
    make_call,
    override,
    record,
    two_turns,
)
from tests.trace.test_properties import CERTIFICATES, OVERRIDES, POLICIES, faulty


def written(made: Any, policy: Policy = DEFAULT_POLICY) -> bytes:
    return b"".join(capture_audit(made, judge(made, policy)))


def again(data: bytes) -> bytes:
    read = read_audit(orjson.loads(data))
    return b"".join(capture_audit(read.record, judge(read.record, read.policy)))


@given(faulty(), POLICIES, OVERRIDES, CERTIFICATES)
def test_export_import_export_is_byte_identical(
    calls: list[Call], policy: Policy, overrides: list[Override], certificate: Any
) -> None:
    data = written(record(*calls, overrides=overrides, certificate=certificate), policy)
    assert again(data) == data


TEXTS = st.text(alphabet=st.characters(), max_size=6)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=3), TEXTS, st.binary(max_size=40))
def test_hostile_values_come_back_as_they_left(
    values: dict[str, Any], text: str, raw: bytes
) -> None:
    first, second = two_turns()
    odd = replace(
        first,
        requested_sampling=values,
        claims={text: text},
        notes=(Note("note", text),),
        preview=text,
        message_digests=(raw.hex(), "b"),
        top_logprobs=orjson.dumps([[[5, raw.hex(), -0.25]]]),
        stop_reason=text,
    )
    following = replace(second, message_digests=(raw.hex(), "b", "c"))
    rewarded = event(EventKind.REWARD, 9, reward=0.5, payload=values, reason=text)
    data = written(record(odd, following, events=[event(EventKind.CLOSED), rewarded]))
    assert again(data) == data


def test_a_stored_parent_that_was_admitted_later_is_read_back() -> None:
    """Slow calls: what is stored against what depends on who ended first."""
    said: dict[str, Any] = {"reply_digest": "r", "n_tools": 1}
    parent = make_call("p", 3, [1, 2], [3, 4], message_digests=("u",), **said)
    child = make_call(
        "c", 2, [1, 2, 3, 4, 5], [6], parent=parent, message_digests=("u", "r", "t"), **said
    )
    data = written(record(parent, child))
    assert again(data) == data
    (first, second) = orjson.loads(data)["calls"]
    assert (first["call_id"], first["digests_of"], first["prefix_of"]) == ("c", None, "p")
    assert (second["digests_of"], second["digests_shared"]) == ("c", 1)


def test_every_field_of_a_call_is_in_it() -> None:
    """A field that is added to the record later cannot be forgotten here."""
    first, second = two_turns()
    entry = orjson.loads(written(record(first, second)))["calls"][1]
    assert set(PLAIN_FIELDS) | SPELT_APART == set(Call.__slots__)
    assert set(PLAIN_FIELDS) <= set(entry)
    assert entry["prefix_of"] == "a"
    assert entry["completion_token_ids"] == [6]


def test_totals_add_up() -> None:
    first, second = two_turns()
    refused = failed_call(
        "r", 5, status=CallStatus.REFUSED, failure_kind=FailureKind.BUDGET, n_tools=1
    )
    failed = failed_call("f", 6)
    joined = event(EventKind.JOINED, 3, payload={"call_id": "a"})
    made = record(
        first,
        second,
        refused,
        failed,
        make_call("title", 7, [90], [91]),
        events=[event(EventKind.CLOSED, 4), joined],
        open_calls=[admission("o", 8)],
    )
    document = orjson.loads(written(made))
    totals, calls = document["totals"], document["calls"]
    assert totals["calls"] == len(calls) == sum(totals["statuses"].values()) == 5
    assert totals["refused"] == 1
    assert totals["open_calls"] == len(document["open_calls"]) == 1
    assert totals["retries_joined"] == 1
    assert totals["failure_kinds"] == {"budget": 1, "upstream_status": 1}
    assert sum(totals["roles"].values()) == totals["calls"] - totals["refused"]
    spans = Counter[str]()
    for call in calls:
        for start, end, reason in call["mask_spans"]:
            spans[reason] += end - start
    assert totals["mask_reasons"] == spans
    assert totals["stored_tokens"] == sum(spans.values())
    assert totals["stored_tokens"] == totals["prompt_tokens"] + totals["generated_tokens"]
    assert totals["generated_tokens"] == totals["supervised_tokens"] + totals["masked_tokens"]
    assert totals["supervised_tokens"] == spans["sampled"] == 3
    assert totals["supervised_tokens"] == sum(call["supervised_tokens"] for call in calls)


def test_what_a_person_decided_travels() -> None:
    first, second = two_turns()
    made = record(first, second, overrides=[override("exclude_call", "b")], certificate=RAW)
    document = orjson.loads(written(made))
    assert document["overrides"][0]["kind"] == "exclude_call"
    assert document["policy"]["name"] == "default"
    assert document["provenance"]["policy_sha256"] == DEFAULT_POLICY.sha256
    assert document["certificate"]["logprob_kind"] == "raw"


def broken(change: Any) -> str:
    first, second = two_turns()
    document = orjson.loads(written(record(first, second)))
    change(document)
    with pytest.raises(InvalidValue) as told:
        read_audit(document)
    return f"{told.value.details.get('path')} {told.value.message}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema_version=2), "$.schema_version"),
        (lambda d: d.update(schema_version=True), "$.schema_version"),
        (lambda d: d.pop("calls"), "$.calls"),
        (lambda d: d.update(calls=[7]), "$.calls[0]"),
        (lambda d: d["calls"][0].update(status="good"), "$.calls[0].status"),
        (lambda d: d["calls"][0].update(sequence="1"), "$.calls[0].sequence"),
        (lambda d: d["calls"][0].pop("usage_prompt"), "$.calls[0].usage_prompt"),
        (lambda d: d["calls"][1].update(call_id="a"), "twice"),
        (lambda d: d["calls"][0].update(prompt_delta=[1.5]), "$.calls[0].prompt_delta"),
        (lambda d: d["calls"][0].update(prompt_delta=[True]), "$.calls[0].prompt_delta"),
        (lambda d: d["calls"][0].update(prompt_delta=[2**40]), "$.calls[0].prompt_delta"),
        (lambda d: d["calls"][0].update(per_token_logps=["x"]), "per_token_logps"),
        (lambda d: d["calls"][0].update(chain_hash="zz"), "$.calls[0].chain_hash"),
        (lambda d: d["calls"][0].update(digests_shared=4), "digests_shared"),
        (
            lambda d: d["calls"][0].update(per_token_logps_not_finite=[[99, "nan"]]),
            "not_finite",
        ),
        (lambda d: d["rollout"].update(purpose="x"), "$.rollout.purpose"),
        (lambda d: d["rollout"].pop("run"), "`run` is missing"),
        (lambda d: d.update(policy=None), "$.policy"),
        (lambda d: d.update(events=[{}]), "$.events[0]"),
        (lambda d: d["certificate"].update(certifiable="yes"), "$.certificate.certifiable"),
    ],
)
def test_a_broken_audit_names_the_place(change: Any, said: str) -> None:
    assert said in broken(change)


@given(st.data())
def test_no_mutation_raises_anything_else(data: st.DataObject) -> None:
    first, second = two_turns()
    document = orjson.loads(written(record(first, second)))
    place: Any = document
    for _ in range(data.draw(st.integers(1, 4))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or data.draw(st.booleans()):
            place[key] = orjson.loads(
                orjson.dumps(
                    data.draw(
                        st.one_of(
                            st.none(),
                            st.booleans(),
                            st.integers(-(2**63), 2**64 - 1),
                            st.just({}),
                            st.just([[]]),
                            st.just("x"),
                        )
                    )
                )
            )
            break
        place = inner
    try:
        read = read_audit(document)
    except InvalidValue:
        return
    judged = judge(read.record, read.policy)
    assert b"".join(capture_audit(read.record, judged))
    for mask in judged.masks.values():
        assert np.count_nonzero(mask.bits()) == mask.supervised

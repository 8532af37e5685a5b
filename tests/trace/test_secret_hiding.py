"""A hidden rollout: nothing of a secret is left in it anywhere, and the verdict is the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.errors import RecordInconsistent
from explorer.records import (
    Body,
    BodyKind,
    CallId,
    EventKind,
    Note,
    RolloutRecord,
)
from explorer.trace.assemble import training_trace
from explorer.trace.audit import capture_audit
from explorer.trace.decode import pieces
from explorer.trace.secret_bodies import BodyScan, scan_again, shown_body
from explorer.trace.secret_hiding import (
    HIDDEN_ID,
    HiddenVocabulary,
    hidden_judgement,
    hidden_of,
    hidden_record,
    still_tells,
)
from explorer.trace.secret_scan import RolloutScan, Scanned, Vocabulary
from explorer.trace.secret_text import Masker
from explorer.trace.verdict import Judgement, judge
from tests.trace.build import event, make_call, override, record
from tests.trace.test_secret_scan import KEYS, A, cut, vocabulary_of

SECRET = KEYS["openai_key"]
PASSWORD = "hunter2isgood"


def everything(value: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Every value inside `value`, whatever holds it, private attributes too."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    yield value
    inner: list[Any] = []
    if isinstance(value, dict):
        inner += [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        inner += list(value)
    elif is_dataclass(value) and not isinstance(value, type):
        inner += [getattr(value, field.name) for field in fields(value)]
    elif type(value).__module__.startswith("explorer") and hasattr(value, "__dict__"):
        inner += list(vars(value).values())
    for item in inner:
        yield from everything(item, seen)


def assert_nowhere(value: Any, secret: str, vocabulary: Vocabulary) -> None:
    for item in everything(value):
        if isinstance(item, np.ndarray) and item.dtype == np.int32:
            known = [vocabulary[each][0] for each in item.tolist() if each in vocabulary]
            assert secret.encode() not in b"".join(known)
        elif isinstance(item, bytes):
            assert secret.encode() not in item
        elif isinstance(item, str):
            assert secret not in item


def planted(places: list[int]) -> tuple[RolloutRecord, Vocabulary]:
    """Two calls and a fork; the secret stands in tokens and in every field with words."""
    text = b"you are. my key is " + SECRET.encode() + b" ok? yes: " + PASSWORD.encode()
    text += b" and password='" + PASSWORD.encode() + b"' done"
    vocabulary, ids = vocabulary_of(cut(text, [3, 12, 24, 60, *places, len(text) - 5]))
    half, most = max(1, len(ids) // 3), max(2, 2 * len(ids) // 3)
    alternatives = orjson.dumps(
        [[[token, vocabulary[token][0].decode(), -0.1]] for token in ids[half:most]]
    )
    first = make_call(
        "c1", 0, ids[:half], ids[half:most],
        top_logprobs=alternatives,
        preview=f"my key is {SECRET[:14]}",
        notes=(Note("odd", f"saw {SECRET}"),),
        failure_detail=f"engine said {SECRET}",
        requested_sampling={"stop": [SECRET], "n": 1},
        claims={"session": SECRET},
    )  # fmt: skip
    second = make_call("c2", 1, ids[:-1], ids[-1:], parent=first)
    third = make_call("c3", 2, [*ids[: most - 1], ids[0]], ids[-1:], parent=first,
                      prefix_len=most - 1)  # fmt: skip
    made = record(
        first, second, third,
        overrides=[replace(override("exclude_call", "c3"), reason=f"holds {SECRET}")],
        events=[
            event(EventKind.STARTED, sequence=0, payload={"argv": ["--key", SECRET]}),
            event(EventKind.CLOSED, ok=True, reward=1.0, reason=f"used {SECRET}",
                  payload={"stdout_tail": f"{SECRET[20:]}\nfine", "env": {SECRET: "x"}}),
        ],
    )  # fmt: skip
    rollout = replace(
        made.rollout,
        task=f"task {SECRET}",
        run=SECRET,
        metadata={"note": SECRET, "deep": [{"db": {"password": PASSWORD}}]},
    )
    return replace(made, rollout=rollout), vocabulary


def hide(
    made: RolloutRecord, vocabulary: Vocabulary, free: frozenset[str] = frozenset()
) -> tuple[Scanned, RolloutRecord, Judgement, Judgement]:
    scan = RolloutScan(made, vocabulary)
    scan.whole_record()
    found = scan.result()
    hidden = hidden_of(found, free)
    verdict = judge(made)
    if hidden is None:
        return found, made, verdict, verdict
    shown = hidden_record(made, hidden)
    return found, shown, verdict, hidden_judgement(verdict, shown, hidden)


@given(st.lists(st.integers(1, 170), max_size=60))
def test_sec_02_nothing_of_a_secret_is_left_and_everything_else_is_as_it_was(
    places: list[int],
) -> None:
    made, vocabulary = planted(places)
    found, shown, verdict, told = hide(made, vocabulary)
    assert {each.kind for each in found.secrets} == {"openai_key", "assigned_secret"}
    for secret in (SECRET, PASSWORD):
        assert_nowhere((shown, told), secret, vocabulary)
    # sec-02: neither text nor ids; the same proof finds it in what was not hidden.
    row = CallId("c2")
    assert still_tells(verdict.tree.sequences.full(row), vocabulary, Masker())
    assert not still_tells(told.tree.sequences.full(row), vocabulary, Masker(list(found.ids)))
    # The verdict was made once, and says what it said.
    assert told.masks == verdict.masks
    assert (told.trainable, told.supervised_tokens) == (
        verdict.trainable,
        verdict.supervised_tokens,
    )
    assert [f.code for f in told.findings] == [f.code for f in verdict.findings]
    assert told.inputs_sha256 != verdict.inputs_sha256
    for before, after in zip(made.calls, shown.calls, strict=True):
        name = before.call_id
        whole, cover = verdict.tree.sequences.full(name), told.tree.sequences.full(name)
        assert whole.size == cover.size
        differ = whole != cover
        assert (cover[differ] == HIDDEN_ID).all()
        assert after.logprobs is before.logprobs
        if after.top_logprobs is not None and after.completion is not None:
            rows = orjson.loads(after.top_logprobs)
            hidden = (after.completion == HIDDEN_ID).tolist()
            assert len(rows) == len(hidden)
            assert all(not row for row, gone in zip(rows, hidden, strict=True) if gone)
    # What begins a secret at the end of a cut text is hidden, too, and what ends one.
    assert SECRET[:14] not in shown.calls[0].preview
    assert shown.events[1].payload["stdout_tail"].endswith("\nfine")
    assert SECRET[20:] not in shown.events[1].payload["stdout_tail"]


def test_a_hidden_token_is_a_block_on_every_page() -> None:
    made, vocabulary = planted([10, 19, 24, 40, 67, 69])
    _, shown, _, told = hide(made, vocabulary)
    text = "".join(
        piece.display
        for piece in pieces(
            told.tree.sequences.full(CallId("c2")), HiddenVocabulary(vocabulary)
        )
    )
    assert text.startswith("you are. my key is █")
    assert text.endswith("done")
    assert "sk-" not in text
    assert len(HiddenVocabulary(vocabulary)) == len(vocabulary) + 1
    assert len(HiddenVocabulary({})) == 0
    assert set(HiddenVocabulary(vocabulary)) == {*vocabulary, HIDDEN_ID}
    assert shown.rollout.task == "task " + "█" * len(SECRET)


def test_a_hidden_rollout_cannot_be_exported() -> None:
    made, vocabulary = planted([30])
    _, shown, verdict, told = hide(made, vocabulary)
    assert b"".join(capture_audit(made, verdict))
    for given_record, judgement in ((shown, told), (shown, verdict), (made, told)):
        with pytest.raises(RecordInconsistent):
            b"".join(capture_audit(given_record, judgement))
        with pytest.raises(RecordInconsistent):
            b"".join(training_trace(given_record, judgement, ()))


def test_the_ids_at_a_break_are_hidden_wherever_they_are_told() -> None:
    text = b"key " + SECRET.encode() + b" end"
    vocabulary, ids = vocabulary_of([bytes([byte]) for byte in text])
    first = make_call("c1", 0, ids[:30], ids[30:])
    second = make_call("c2", 1, [*ids[:20], ids[3], *ids[20:]], ids[-1:])
    made = record(first, second)
    _, _, verdict, told = hide(made, vocabulary)
    node, cover = (each.tree.nodes[CallId("c2")].break_ for each in (verdict, told))
    assert node is not None
    assert cover is not None
    assert (node.offset, node.expected_id) == (20, ids[20])
    assert cover.expected_id == HIDDEN_ID
    assert cover.actual_id == node.actual_id == ids[3]
    messages = [each.message for each in told.findings if each.code == "prefix_break"]
    assert messages
    assert "expected a hidden token got" in messages[0]
    assert f"expected {ids[20]} " not in str(told.findings)


def test_what_a_person_let_go_is_shown_again() -> None:
    made, vocabulary = planted([5])
    found = hide(made, vocabulary)[0]
    names = {each.kind: each.finding_id for each in found.secrets}
    _, shown, _, _ = hide(made, vocabulary, frozenset({names["openai_key"]}))
    assert SECRET in str(shown.rollout.task)
    assert PASSWORD not in json.dumps(shown.rollout.metadata)
    assert hidden_of(found, frozenset(names.values())) is None


# -- raw bodies


def body_of(data: bytes, kind: BodyKind = BodyKind.REPLY) -> Body:
    return Body(CallId("c1"), record().rollout.rollout_id, kind, data)


def scan_bodies(*bodies: Body) -> Scanned:
    scan = RolloutScan(record(), {})
    BodyScan(scan).call(CallId("c1"), bodies)
    return scan.result()


@given(
    st.recursive(
        st.sampled_from([SECRET, f"see {SECRET}.", "plain", "é\n", 3, None]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "content", SECRET]), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.booleans(),
)
def test_a_body_stays_json_and_tells_nothing(value: Any, ascii_only: bool) -> None:
    data = json.dumps({"v": value}, ensure_ascii=ascii_only).encode()
    masker = Masker([SECRET.encode()])
    shown = shown_body(body_of(data, BodyKind.REQUEST), masker, tokens_hidden=False)
    assert SECRET.encode() not in shown.body.data
    orjson.loads(shown.body.data)
    assert bool(shown.told) == (SECRET.encode() in data)
    if not shown.told:
        assert shown.body.data == data
    else:
        assert len(shown.body.data) == len(data)  # overwritten in place


def test_a_secret_in_a_secret_word_is_hidden_in_arguments_within_arguments() -> None:
    inner = json.dumps({"path": "/x", "api_key": "Zk29LmTxB4wR"})
    data = json.dumps({"arguments": json.dumps({"body": inner})}).encode()
    shown = shown_body(body_of(data), Masker(), tokens_hidden=False)
    read = json.loads(json.loads(json.loads(shown.body.data)["arguments"])["body"])
    assert read == {"path": "/x", "api_key": "************"}


def test_sec_02_token_ids_of_a_reply_go_with_the_text() -> None:
    reply = {
        "id": "x",
        "prompt_token_ids": [1, 2, 3, 4, 5],
        "choices": [
            {
                "message": {"content": f"key {SECRET}"},
                "token_ids": [6, 7, 8, 9],
                "logprobs": {"content": [{"token": "sk", "bytes": [115, 107]}]},
            }
        ],
        "unknown_name": {"numbers": [5, 6, 7, 8]},
    }
    shown = shown_body(body_of(orjson.dumps(reply)), Masker(), tokens_hidden=True)
    read = orjson.loads(shown.body.data)
    assert read["prompt_token_ids"] is None
    assert read["choices"][0]["token_ids"] is None
    assert read["choices"][0]["logprobs"] is None
    assert read["unknown_name"]["numbers"] is None
    assert read["choices"][0]["message"]["content"] == "key " + "*" * len(SECRET)
    assert "left out" in shown.told
    # Ids go also where the text itself tells nothing: they spell what is hidden.
    quiet = orjson.dumps({"prompt_token_ids": [1, 2, 3, 4], "choices": []})
    assert b"[1" not in shown_body(body_of(quiet), Masker(), tokens_hidden=True).body.data
    assert shown_body(body_of(quiet), Masker(), tokens_hidden=False).body.data == quiet


@given(st.lists(st.integers(1, len(SECRET) - 1), min_size=1, max_size=6))
def test_a_secret_split_over_the_events_of_a_stream_withholds_it(places: list[int]) -> None:
    parts = [part.decode() for part in cut(SECRET.encode(), places)]
    lines = [
        b"data: " + orjson.dumps({"choices": [{"delta": {"content": part}}]}) + b"\n\n"
        for part in ("the key: ", *parts, " ok")
    ]
    data = b"".join(lines) + b"data: [DONE]\n\n"
    found = scan_bodies(body_of(data))
    assert "openai_key" in {each.kind for each in found.secrets}
    shown = shown_body(body_of(data), Masker(list(found.ids)), tokens_hidden=False)
    assert not any(part in shown.body.data.decode() for part in parts if len(part) > 8)
    assert orjson.loads(shown.body.data) == {"withheld": shown.told}


def test_a_key_over_the_items_of_a_list_is_withheld_whole() -> None:
    lines = KEYS["private_key"].split("\n")
    data = json.dumps({"lines": ["before", *lines, "after"], "n": 1}).encode()
    shown = shown_body(body_of(data, BodyKind.REQUEST), Masker(), tokens_hidden=False)
    assert A.encode() not in shown.body.data
    assert json.loads(shown.body.data) == {"withheld": shown.told}


def test_a_packed_body_is_read_and_withheld() -> None:
    import gzip

    packed = body_of(gzip.compress(f"key {SECRET}".encode()), BodyKind.REQUEST)
    found = scan_bodies(packed)
    assert [each.kind for each in found.secrets] == ["openai_key"]
    shown = shown_body(packed, Masker(), tokens_hidden=False)
    assert "withheld whole" in shown.told
    assert not scan_again(shown.body, Masker(list(found.ids)))


def test_headers_are_read_and_masked() -> None:
    one = replace(body_of(b"{}"), headers=(("x-note", f"v {SECRET}"), ("accept", "*/*")))
    assert [each.kind for each in scan_bodies(one).secrets] == ["openai_key"]
    shown = shown_body(one, Masker(), tokens_hidden=False)
    assert shown.body.headers == (("x-note", "v " + "*" * len(SECRET)), ("accept", "*/*"))


def test_only_what_a_body_adds_is_read_and_nothing_over_the_border_is_missed() -> None:
    scan = RolloutScan(record(), {})
    reader = BodyScan(scan)
    start = "x" * 10_000
    for number in range(1, len(SECRET) + 1, 7):
        data = json.dumps({"m": start + " " + SECRET[:number]}).encode()
        reader.call(CallId(f"c{number}"), (body_of(data, BodyKind.REQUEST),))
    reader.call(CallId("c9"), (body_of(f"{start} {SECRET}".encode(), BodyKind.REQUEST),))
    whole = json.dumps({"m": start + " " + SECRET}).encode()
    reader.call(CallId("ca"), (body_of(whole, BodyKind.REQUEST),))
    assert SECRET.encode() in scan.result().ids

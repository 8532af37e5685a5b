"""Formats of ids: they train what the verdict trains, no token more and none twice."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.custody.rebuild import verify_and_linearize
from explorer.custody.records import RolloutReceipt, StagedCallBaseSnapshot
from explorer.errors import InvalidValue, RecordInconsistent
from explorer.export.adapters.calls_jsonl import CallsJsonl
from explorer.export.adapters.custody import Custody
from explorer.export.adapters.dpo import MOST_PAIRS, Dpo
from explorer.export.adapters.grpo import Grpo
from explorer.export.adapters.registry import ADAPTERS, adapters_of
from explorer.export.adapters.sft import Sft
from explorer.export.adapters.summary import COLUMNS, Summary
from explorer.export.adapters.training_traces import TrainingTraces
from explorer.export.cells import csv_line, one_line
from explorer.export.dataset.adapter import Adapter, File, Layout, Line, Row, Subject
from explorer.export.dataset.extras import rows_batch
from explorer.export.dataset.schema import TYPE_WORDS
from explorer.integrations.contract import read_trace
from explorer.integrations.rows import choose_row
from explorer.records import (
    EventKind,
    Purpose,
    Role,
    RolloutEvent,
    RolloutId,
    RolloutRecord,
    TokenizerId,
)
from explorer.trace.assemble import training_trace
from explorer.trace.receipts import receipts_of
from explorer.trace.verdict import judge
from tests.export.datasets import forked, odd
from tests.trace.build import make_call, override, record, two_turns
from tests.trace.conversations import Script, recorded
from tests.trace.test_interleaving import interleaved

TRAINERS = ("training_traces", "sft", "grpo", "dpo", "calls_jsonl")


def subject(made: RolloutRecord) -> Subject:
    return Subject(made, judge(made))


def rows(adapter: Adapter, *made: RolloutRecord) -> list[dict[str, Any]]:
    """Its rows as they are read back from Arrow."""
    given_: list[Row] = []
    pieces = [adapter.add(subject(each)) for each in made]
    for piece in itertools.chain(*pieces, adapter.finish()):
        assert isinstance(piece, Row)
        given_.append(piece)
    found: list[dict[str, Any]] = rows_batch(adapter.name, adapter.columns, given_).to_pylist()
    return found


def lines(adapter: Adapter, *made: RolloutRecord) -> list[bytes]:
    found = []
    for piece in itertools.chain(*(adapter.add(subject(each)) for each in made)):
        assert isinstance(piece, Line)
        assert b"\n" not in piece.data
        found.append(piece.data)
    return found


def told(
    made: RolloutRecord,
    name: str,
    reward: float | None = 1.0,
    **fields: Any,
) -> RolloutRecord:
    """The same rollout under another name, with a reward."""
    rollout_id = RolloutId(name)
    end = RolloutEvent(rollout_id, 1, 1, EventKind.CLOSED, reward=reward)
    return replace(
        made,
        rollout=replace(made.rollout, rollout_id=rollout_id, **fields),
        calls=tuple(replace(call, rollout_id=rollout_id) for call in made.calls),
        events=(end,),
    )


def test_every_adapter_says_what_it_is() -> None:
    for name, kind in ADAPTERS.items():
        assert kind.name == name
        assert "ot in it" in kind.about, "what of the record it leaves out"
        assert (kind.layout is Layout.PARQUET) == bool(kind.columns) == (not kind.suffix)
        assert {column.kind for column in kind.columns} <= set(TYPE_WORDS)
        names = [column.name for column in kind.columns]
        assert len(set(names)) == len(names)
    made = adapters_of(["summary", "sft", "summary"])
    assert [type(each) for each in made] == [Sft, Summary]
    with pytest.raises(InvalidValue, match="there is no format 'sftt'"):
        adapters_of(["sftt"])


# -- SFT ------------------------------------------------------------------------------------


def test_sft_labels_are_the_ids_that_train() -> None:
    left, right = rows(Sft(), record(*forked()))
    assert left["input_ids"] == [1, 2, 3, 4, 5, 6, 7]
    assert left["labels"] == [-100, -100, 3, 4, -100, 6, 7]
    assert left["logprobs"] == [None, None, -0.25, -0.25, None, -0.25, -0.25]
    assert right["labels"] == [-100] * 6 + [10, -100, 12, 13]
    assert (left["reward"], left["supervised_tokens"]) == (1.0, 4)
    assert left["sequence_id"] == "r1:f-b"


@given(interleaved())
@settings(max_examples=40)
def test_sft_trains_each_token_once(made: tuple[Script, list[str]]) -> None:
    rollout = recorded(*made)
    judgement = judge(rollout)
    expected = judgement.supervised_tokens if judgement.trainable else 0
    supervised = 0
    for row in rows(Sft(), rollout):
        supervised += sum(label != -100 for label in row["labels"])
        for id_, label, logprob in zip(
            row["input_ids"], row["labels"], row["logprobs"], strict=True
        ):
            assert label in (-100, id_)
            assert label == -100 or logprob is not None
    assert supervised == expected


# -- GRPO -----------------------------------------------------------------------------------


def test_grpo_has_one_row_a_rollout_and_says_what_it_leaves_out() -> None:
    (row,) = rows(Grpo(), record(*forked()))
    assert row["prompt_ids"] == [1, 2]
    assert row["completion_ids"] == [3, 4, 8, 9, 10, 11, 12, 13]
    # The shared turn trains here, whatever rows there are elsewhere.
    assert row["env_mask"] == [1, 1, 0, 0, 1, 0, 1, 1]
    assert row["logprobs"] == [-0.25, -0.25, None, None, -0.25, None, -0.25, -0.25]
    assert (row["supervised_tokens"], row["left_out_tokens"]) == (5, 2)
    assert row["call_ids"] == ["f-a", "f-c", "f-d"]


@given(interleaved())
@settings(max_examples=60)
def test_grpo_takes_the_branch_that_the_integration_takes(
    made: tuple[Script, list[str]],
) -> None:
    rollout = recorded(*made)
    judgement = judge(rollout)
    found = rows(Grpo(), rollout)
    assert len(found) == int(judgement.trainable)
    if not found:
        return
    (row,) = found
    trace = read_trace(b"".join(training_trace(rollout, judgement)))
    other = choose_row(trace)
    assert row["supervised_tokens"] == other.supervised
    assert row["left_out_tokens"] == judgement.supervised_tokens - other.supervised
    size = len(row["completion_ids"])
    assert size == len(row["logprobs"]) == len(row["env_mask"]) > 0
    # Of branches with as many tokens that train it may be another one.
    if tuple(row["call_ids"]) == other.node_ids[: len(row["call_ids"])]:
        assert tuple(row["prompt_ids"]) == other.prompt_ids
        assert tuple(row["completion_ids"]) == other.completion_ids[:size]
        assert tuple(row["env_mask"]) == other.env_mask[:size]
        assert not any(other.env_mask[size:])


def test_grpo_tells_the_temperature_only_where_there_is_one() -> None:
    first, second = two_turns()

    def sent(one: object, two: object) -> Any:
        changed = [
            replace(first, submitted_sampling={"temperature": one}),
            replace(second, submitted_sampling={"temperature": two}),
        ]
        (row,) = rows(Grpo(), record(*changed))
        return row["temperature"]

    assert sent(0.5, 0.5) == 0.5
    assert sent(1, 1.0) == 1.0
    assert sent(0.5, 1.0) is None
    assert sent(0.5, None) is None
    assert sent(True, True) is None
    assert sent(2**80, 2**80) is None
    assert sent(float("nan"), float("nan")) is None


# -- DPO ------------------------------------------------------------------------------------


def answer(name: str, ids: Sequence[int], reward: float | None, **fields: Any) -> RolloutRecord:
    """A rollout that answers the prompt 1 2 once."""
    call = make_call(f"{name}-a", 1, [1, 2], ids, n_tools=1)
    facts: dict[str, Any] = {"group": "g", "tokenizer_id": TokenizerId("bytes")}
    return told(record(call), name, reward, **(facts | fields))


def test_dpo_pairs_the_best_with_the_worst() -> None:
    made = [
        answer("one", [3], 0.5),
        answer("two", [4], 1.0),
        answer("three", [5], 0.0),
        answer("four", [6], 0.75),
    ]
    first, second = rows(Dpo(), *made)
    assert first["prompt_ids"] == [1, 2]
    assert (first["chosen_ids"], first["rejected_ids"]) == ([4], [5])
    assert (first["chosen_reward"], first["rejected_reward"]) == (1.0, 0.0)
    assert (first["chosen_rollout_id"], first["chosen_call_id"]) == ("two", "two-a")
    assert (second["chosen_ids"], second["rejected_ids"]) == ([6], [3])


@pytest.mark.parametrize(
    "other",
    [
        answer("two", [4], 1.0),
        answer("two", [4], None),
        answer("two", [3], 0.0),
        answer("two", [4], 0.0, group="h"),
        answer("two", [4], 0.0, group=None),
        answer("two", [4], 0.0, model="another"),
        answer("two", [4], 0.0, tokenizer_id=TokenizerId("another")),
        answer("two", [4], 0.0, purpose=Purpose.EVAL),
        replace(answer("two", [4], 0.0), certificate=None),
    ],
    ids=[
        "same-reward",
        "no-reward",
        "same-answer",
        "group",
        "no-group",
        "model",
        "tokenizer",
        "eval",
        "no-cert",
    ],
)
def test_dpo_makes_no_pair_of_what_is_none(other: RolloutRecord) -> None:
    assert rows(Dpo(), answer("one", [3], 1.0), other) == []


def test_dpo_has_no_answer_of_which_a_token_does_not_train() -> None:
    bad = answer("two", [4, 5], 0.0)
    assert len(rows(Dpo(), answer("one", [3], 1.0), bad)) == 1
    cut = replace(bad, overrides=(override("exclude_span", "two-a", start=3, end=4),))
    assert judge(cut).trainable
    assert rows(Dpo(), answer("one", [3], 1.0), cut) == []


def test_dpo_finds_branch_points_deep_in_a_tree() -> None:
    def deep(name: str, last: int, reward: float) -> RolloutRecord:
        first = make_call(f"{name}-a", 1, [1, 2], [3, 4], n_tools=1)
        second = make_call(f"{name}-b", 2, [1, 2, 3, 4, 5], [last], parent=first, n_tools=1)
        return told(record(first, second), name, reward, group="g")

    (pair,) = rows(Dpo(), deep("one", 6, 0.0), deep("two", 7, 1.0))
    assert pair["prompt_ids"] == [1, 2, 3, 4, 5]
    assert (pair["chosen_ids"], pair["rejected_ids"]) == ([7], [6])


ANSWERS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        st.lists(st.integers(3, 4), min_size=1, max_size=2),
        st.sampled_from(["g", "h"]),
    ),
    max_size=12,
)


@given(ANSWERS)
@settings(max_examples=60)
def test_dpo_pairs_are_bounded_and_each_answer_is_in_one(
    drawn: list[tuple[float, list[int], str]],
) -> None:
    made = [
        answer(f"n-{number}", ids, reward, group=group)
        for number, (reward, ids, group) in enumerate(drawn)
    ]
    found = rows(Dpo(), *made)
    assert rows(Dpo(), *made) == found
    used: Counter[str] = Counter()
    by_name = {each.rollout.rollout_id: each for each in made}
    for pair in found:
        assert pair["chosen_reward"] > pair["rejected_reward"]
        assert pair["chosen_ids"] != pair["rejected_ids"]
        for side in ("chosen", "rejected"):
            rollout = by_name[pair[f"{side}_rollout_id"]]
            assert rollout.rollout.group == pair["group"]
            assert rollout.calls[0].completion is not None
            assert rollout.calls[0].completion.tolist() == pair[f"{side}_ids"]
            used[pair[f"{side}_rollout_id"]] += 1
    assert set(used.values()) <= {1}
    assert max(Counter(pair["group"] for pair in found).values(), default=0) <= MOST_PAIRS
    for group in ("g", "h"):
        ours = [(reward, ids) for reward, ids, of in drawn if of == group]
        possible = any(
            one[0] != two[0] and one[1] != two[1]
            for one, two in itertools.combinations(ours, 2)
        )
        paired = any(pair["group"] == group for pair in found)
        assert paired == possible or len(ours) > 2 * MOST_PAIRS


def test_dpo_lets_go_of_the_oldest_prompts_that_wait_for_a_counterpart() -> None:
    def at(name: str, prompt: int, ids: list[int], reward: float) -> RolloutRecord:
        call = make_call(f"{name}-a", 1, [prompt], ids, n_tools=1)
        return told(record(call), name, reward, group="g")

    made = [
        at("one", 1, [5, 5], 0.0),
        at("two", 2, [6, 6], 0.0),
        at("three", 1, [7], 1.0),
        at("four", 2, [8], 1.0),
    ]
    assert [pair["prompt_ids"] for pair in rows(Dpo(), *made)] == [[1], [2]]
    assert [pair["prompt_ids"] for pair in rows(Dpo(most_waiting=3), *made)] == [[2]]


# -- calls, traces --------------------------------------------------------------------------


def test_a_call_is_told_whole() -> None:
    found = [orjson.loads(line) for line in lines(CallsJsonl(), record(*forked()))]
    assert [call["call_id"] for call in found] == ["f-a", "f-b", "f-c", "f-d"]
    last = found[-1]
    assert last["prompt_token_ids"] == [1, 2, 3, 4, 8, 9, 10, 11]
    assert last["completion_token_ids"] == [12, 13]
    assert (last["loss_mask"], last["logprobs"]) == ([1, 1], [-0.25, -0.25])
    assert (last["parent_call_id"], last["reward"], last["group"]) == ("f-c", 1.0, None)
    assert (found[2]["weight_version_start"], found[2]["weight_version_end"]) == (7, 7)
    # By these `datasets` would take the file for an agent's session.
    assert not {"type", "id", "message", "messages", "payload", "source"} & set(last)


@given(interleaved())
@settings(max_examples=40)
def test_a_line_of_a_call_has_the_masks_bits(made: tuple[Script, list[str]]) -> None:
    rollout = recorded(*made)
    judgement = judge(rollout)
    found = {
        call["call_id"]: call["loss_mask"]
        for call in map(orjson.loads, lines(CallsJsonl(), rollout))
    }
    expected = {
        name: mask.completion_bits().tolist()
        for name, mask in judgement.masks.items()
        if mask.supervised and judgement.trainable
    }
    assert found == expected


def test_a_training_trace_is_the_documents_bytes() -> None:
    made = record(*forked())
    (file,) = TrainingTraces().add(subject(made))
    assert isinstance(file, File)
    assert file == File("r1", b"".join(training_trace(made, judge(made))))


def test_zip_01_a_file_is_named_by_our_id_alone() -> None:
    for name in ("../a", "a/b", "", "ä", "a" * 81, "a.b"):
        with pytest.raises(RecordInconsistent):
            list(TrainingTraces().add(subject(told(record(*two_turns()), name))))


# -- what may not train ---------------------------------------------------------------------


def refused() -> Iterable[RolloutRecord]:
    yield record(*forked(), purpose=Purpose.EVAL)
    yield record(*forked(), certificate=None)
    yield record(*odd())
    yield record(*two_turns(), overrides=(override("exclude_call", "b"),), certificate=None)


@pytest.mark.parametrize("name", TRAINERS)
def test_no_trainers_format_has_anything_of_a_rollout_that_may_not_train(name: str) -> None:
    for made in refused():
        assert not judge(made).trainable
        adapter = ADAPTERS[name]()
        assert list(adapter.add(subject(replace(made)))) == []
        assert list(adapter.finish()) == []


@pytest.mark.parametrize("name", TRAINERS)
def test_a_verdict_that_is_not_of_the_record_is_refused(name: str) -> None:
    good = record(*two_turns())
    holed = make_call(
        "b", 2, [1, 2, 3, 4, 5], [6], parent=good.calls[0], logprobs=[None], n_tools=2
    )
    wrong = told(record(good.calls[0], holed), "r1", 1.0, group="g")
    with pytest.raises(RecordInconsistent):
        list(ADAPTERS[name]().add(Subject(wrong, judge(told(good, "r1", 1.0, group="g")))))


def test_a_subagents_path_is_not_a_rollouts_row_where_there_is_another() -> None:
    first, second = two_turns()
    other = make_call("s", 3, [50], [51, 52, 53, 54, 55], n_tools=1)
    made = record(first, second, other, overrides=(override("role", "s", role=Role.SUBAGENT),))
    judgement = judge(made)
    assert judgement.trainable
    (row,) = rows(Grpo(), made)
    assert row["call_ids"] == ["a", "b"]


# -- the summary ----------------------------------------------------------------------------


def cells(line: bytes) -> dict[str, str]:
    (row,) = csv.reader(io.StringIO(line.decode()))
    return dict(zip(COLUMNS, row, strict=True))


def test_the_summary_has_a_line_for_every_rollout() -> None:
    trains, not_ = lines(Summary(), record(*forked()), record(*odd()))
    assert Summary.header.decode().split(",") == list(COLUMNS)
    good, bad = cells(trains), cells(not_)
    assert (good["trainable"], good["reason"], good["reward"]) == ("true", "", "1.0")
    assert (good["supervised_tokens"], good["calls"]) == ("7", "6")
    assert good["calls_not_committed"] == "1"
    assert (bad["trainable"], bad["supervised_tokens"]) == ("false", "0")
    assert bad["reason"] == judge(record(*odd())).reasons[0].code


def test_no_reward_is_an_empty_cell_and_a_negative_one_keeps_its_sign() -> None:
    none, less = lines(
        Summary(), told(record(*forked()), "one", None), told(record(*forked()), "two", -0.5)
    )
    assert cells(none)["reward"] == ""
    assert cells(less)["reward"] == "-0.5"


def test_csv_01_text_that_would_run_has_an_apostrophe_and_stays_on_its_line() -> None:
    made = told(record(*forked()), "one", task='=HYPERLINK("https://evil.example","x")')
    (line,) = lines(Summary(), made)
    assert cells(line)["task"] == '\'=HYPERLINK("https://evil.example","x")'
    (line,) = lines(Summary(), told(record(*forked()), "one", task="\t=1", run="-1+1"))
    assert (cells(line)["task"], cells(line)["run"]) == ("'\t=1", "'-1+1")
    (line,) = lines(Summary(), told(record(*forked()), "one", task="a\r\nb", group="\n=1"))
    assert (cells(line)["task"], cells(line)["group"]) == ("a\\r\\nb", "'\\n=1")


@given(st.text(st.characters(), max_size=20))
def test_any_text_is_one_cell_of_one_line(text: str) -> None:
    line = csv_line([text, 1])
    assert b"\n" not in line
    assert b"\r" not in line
    first, second = next(csv.reader(io.StringIO(line.decode())))
    shown = one_line(text).encode("utf-8", "backslashreplace").decode()
    assert first.removeprefix("'") == shown.removeprefix("'")
    assert second == "1"
    assert first[:1] not in tuple("=+-@\t\r\n")


def test_hostile_names_are_valid_json_on_one_line() -> None:
    name = "a\n\ud800\u2028\x00"
    made = told(record(*forked()), "one", task=name, group=name)
    for line in lines(CallsJsonl(), made):
        found = orjson.loads(line)
        assert found["task"] == "a\n\\ud800\u2028\x00"
    (row,) = rows(Grpo(), made)
    assert row["group"] == "a\n\\ud800\u2028\x00"


def test_logprobs_of_no_number_are_null_where_nothing_trains() -> None:
    first, second = two_turns()
    holed = replace(second, logprobs=np.array([np.nan], np.float32))
    last = make_call("c", 3, [1, 2, 3, 4, 5, 6, 7], [8], parent=second, n_tools=2)
    made = record(first, holed, last, overrides=(override("exclude_call", "b"),))
    assert judge(made).trainable
    (row,) = rows(Grpo(), made)
    assert row["completion_ids"] == [3, 4, 5, 6, 7, 8]
    assert row["logprobs"] == [-0.25, -0.25, None, None, None, -0.25]
    assert row["env_mask"] == [1, 1, 0, 0, 0, 1]


def test_custody_gives_what_its_verification_takes() -> None:
    answered = [replace(call, response_id=f"chatcmpl-{call.call_id}") for call in two_turns()]
    made = told(record(*answered), "r-custody", reward=0.5)
    end = max(call.ended_us for call in answered)
    made = replace(made, events=(replace(made.events[0], time_us=end),))
    (line,) = lines(Custody(), made)
    document = orjson.loads(line)
    receipt = RolloutReceipt.parse(document["receipt"])
    staged = [StagedCallBaseSnapshot.parse(call) for call in document["staged"]]
    row = verify_and_linearize(receipt, staged)
    assert receipt.reward == 0.5
    assert [call.call_id for call in made.calls] == list(row.model_call_ids)
    sampled = np.concatenate([call.completion for call in made.calls])
    assert row.token_ids[row.token_mask == 1].tolist() == sampled.tolist()
    (issued,) = receipts_of(made)
    assert document["receipts"][-1] == {
        "number": 1,
        "sha256": issued.sha256,
        "time_us": end,
        "reward": 0.5,
    }

"""Readers of foreign captures, on files that the real packages wrote."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.errors import InvalidValue
from explorer.export.readers import READERS, read, recognise
from explorer.export.readers.neutral import ImportedRollout

DATA = Path(__file__).parents[1] / "data" / "imports"
TRIAL = DATA / "trial"
FILES = {
    "openenv-training-trace.json": "openenv",
    "openenv-trace-entries.json": "openenv",
    "verifiers-traces.jsonl": "verifiers",
    "atif-text.json": "atif",
    "atif-ids.json": "atif",
    "trl-completions.parquet": "trl",
}


def load(name: str) -> tuple[ImportedRollout, ...]:
    found, rollouts = read((DATA / name).read_bytes())
    assert found == FILES[name]
    return rollouts


def bundle(**changes: Any) -> bytes:
    files = {
        name: (TRIAL / name).read_text() for name in ("result.json", "agent/trajectory.json")
    }
    files.update(changes)
    return json.dumps({"kind": "harbor-trial", "files": files}).encode()


@pytest.mark.parametrize("name", FILES)
def test_a_format_is_recognised(name: str) -> None:
    assert recognise((DATA / name).read_bytes()) == FILES[name]


def test_openenv_entries_and_trace_say_the_same() -> None:
    (trace,) = load("openenv-training-trace.json")
    (entries,) = load("openenv-trace-entries.json")
    assert trace.calls == entries.calls
    first, second = trace.calls
    assert first.prompt_ids == (1, 2, 3, 4, 5)
    assert first.completion_ids == (6, 7, 8)
    assert first.logprobs == (-0.1, -2.5, -0.01)
    assert (first.mask, second.mask) == ((1, 1, 1), (0, 1))
    assert [message["role"] for message in second.messages] == [
        *("system", "user", "assistant", "tool")
    ]
    assert second.reply["content"] == "Two: a.py and b.py."
    assert (first.source, first.finish_reason) == ("a1b2c3d4e5f6", "tool_calls")


def test_verifiers_keeps_the_tree_and_only_what_was_sampled() -> None:
    tree, relay = load("verifiers-traces.jsonl")
    first, left, right = tree.calls
    assert first.prompt_ids == (1, 2, 3, 4, 5, 6)
    assert first.completion_ids == (7, 8, 9)
    assert first.logprobs == (-0.1234, -1.5, 0.0)
    shared = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 6)
    assert left.prompt_ids == right.prompt_ids == shared
    assert (left.completion_ids, right.completion_ids) == ((13, 14), (13, 15))
    assert left.mask == (1, 1)
    assert tree.reward == 0.5
    assert tree.rewards == {"correct": 1.0, "style": None}
    assert (tree.task, tree.ok) == ("two-plus-three", True)
    assert first.reply["tool_calls"][0]["function"] == {
        "name": "add",
        "arguments": '{"a": 2, "b": 3}',
    }
    assert relay.calls[0].completion_ids is None
    assert relay.calls[0].messages[0]["content"] == "What is 2 + 3?"


def test_atif_reads_as_a_conversation_and_has_no_mask() -> None:
    (text,) = load("atif-text.json")
    (with_ids,) = load("atif-ids.json")
    assert [call.completion_ids for call in text.calls] == [None, None]
    assert [call.completion_ids for call in with_ids.calls] == [(6, 7, 8), (11, 12)]
    assert all(call.mask is None for call in with_ids.calls)
    second = text.calls[1]
    assert second.messages[-1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "a.py\nb.py",
    }
    assert second.messages[2]["tool_calls"][0]["function"]["name"] == "ls"
    assert (text.harness, text.harness_version, text.model) == ("terminus-2", "2.0", "m")


def test_copied_and_uncalled_steps_are_context() -> None:
    document = json.loads((DATA / "atif-text.json").read_text())
    document["steps"][2]["is_copied_context"] = True
    assert len(read(json.dumps(document).encode())[1][0].calls) == 1
    document["steps"][3]["llm_call_count"] = 0
    with pytest.raises(InvalidValue, match="no model call"):
        read(json.dumps(document).encode())


def test_a_trial_brings_steps_ids_and_reward_together() -> None:
    name, (trial,) = read(bundle())
    assert name == "harbor"
    assert (trial.task, trial.harness, trial.reward) == ("count-files", "terminus-2", 1.0)
    assert [call.completion_ids for call in trial.calls] == [(6, 7, 8), (11, 12)]
    assert trial.calls[0].messages[1]["content"] == "Which files are here?"
    assert all(call.mask is None for call in trial.calls)
    result = json.loads((TRIAL / "result.json").read_text())
    for lists in ("prompt_token_ids", "completion_token_ids", "logprobs"):
        result["agent_result"]["rollout_details"][0][lists].pop()
    _, (uneven,) = read(bundle(**{"result.json": json.dumps(result)}))
    assert [call.completion_ids for call in uneven.calls] == [None, None]
    assert "ids left out" in uneven.notes["rollout_details"]


def test_trl_rows_are_groups() -> None:
    rows = load("trl-completions.parquet")
    assert {row.group for row in rows} == {"step 1, prompt 0", "step 1, prompt 1"}
    assert sorted(row.attempt for row in rows if row.group == rows[0].group) == [0, 1]  # type: ignore[type-var]
    assert all(row.reward is not None and 0 < row.reward <= 1 for row in rows)
    assert rows[0].calls[0].completion_ids is None


def test_several_rewards_of_trl_are_not_added_up() -> None:
    held = io.BytesIO()
    table = pa.table(
        {
            "prompt": ["p"],
            "completion": ["c"],
            "correct": [1.0],
            "style": pa.array([float("nan")]),
            "advantage": [0.5],
        }
    )
    pq.write_table(table, held)
    _, (row,) = read(held.getvalue())
    assert row.reward is None
    assert row.rewards == {"correct": 1.0, "style": None}


def changed(name: str, change: Any) -> bytes:
    text = (DATA / name).read_text()
    document = json.loads(text.splitlines()[0] if name.endswith("jsonl") else text)
    change(document)
    return json.dumps(document).encode()


BAD = {
    "mask too short": (
        "openenv-training-trace.json",
        lambda d: d["turns"][1]["loss_mask"].pop(),
        r"\$\.turns\[1\]\.loss_mask: has 11 entries for 10 prompt and 2 sampled ids",
    ),
    "mask on the prompt": (
        "openenv-training-trace.json",
        lambda d: d["turns"][0]["loss_mask"].__setitem__(0, 1),
        r"turns\[0\]\.loss_mask: marks a token of the prompt",
    ),
    "logprobs too short": (
        "openenv-trace-entries.json",
        lambda d: d[0]["per_token_logps"].pop(),
        r"\$\[0\]\.per_token_logps: has 2 values for 3",
    ),
    "id is true": (
        "openenv-trace-entries.json",
        lambda d: d[0]["prompt_token_ids"].__setitem__(2, True),
        r"\$\[0\]\.prompt_token_ids\[2\]: is no token id",
    ),
    "id too large": (
        "atif-ids.json",
        lambda d: d["steps"][2]["metrics"]["completion_token_ids"].__setitem__(0, 2**70),
        r"steps\[2\]\.metrics\.completion_token_ids\[0\]: is no token id",
    ),
    "parent after child": (
        "verifiers-traces.jsonl",
        lambda d: d["traces"][0]["nodes"][2].__setitem__("parent", 4),
        r"line 1 traces\[0\]\.nodes\[2\]\.parent: must be the number of an earlier node",
    ),
    "node mask": (
        "verifiers-traces.jsonl",
        lambda d: d["traces"][0]["nodes"][2]["mask"].pop(),
        r"line 1 traces\[0\]\.nodes\[2\]\.mask: has 4 entries for 5 ids",
    ),
    "unknown source": (
        "atif-text.json",
        lambda d: d["steps"][1].__setitem__("source", "tool"),
        r"steps\[1\]\.source: must be system, user or agent",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_told_by_its_place(name: str) -> None:
    file, change, said = BAD[name]
    with pytest.raises(InvalidValue, match=said):
        read(changed(file, change))


def test_a_bad_line_is_named_and_nothing_is_read() -> None:
    good = (DATA / "verifiers-traces.jsonl").read_bytes().splitlines()[0]
    with pytest.raises(InvalidValue, match="line 3: not JSON"):
        read(good + b"\n\n{broken\n", "verifiers")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"nothing", b"{}", b"[1, 2]", b"PAR1 and no more", b"\xff\xfe\x00", b"NaN"),
        *(b"[" * 5000, b'{"turns": 7}', b'{"schema_version": "ATIF-v1.8"}', b'{"turns": []}'),
    ],
)
def test_what_is_no_capture_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(InvalidValue) as caught:
        read(data)
    assert caught.value.message


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, (*path, index))
    return found


JSON_FILES = [name for name in FILES if name.endswith(("json", "jsonl"))]
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1.5,
        2**80,
        -1e308,
        "",
        "x\ud800",
        "\u202e",
        [],
        {},
        [[]],
        [None],
        {"a": 1},
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_type_anywhere_gives_rollouts_or_words(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(JSON_FILES))
    text = (DATA / name).read_text()
    document = json.loads(text.splitlines()[0] if name.endswith("jsonl") else text)
    document = copy.deepcopy(document)
    path = data.draw(st.sampled_from(places(document)))
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = data.draw(ODD)
    # Only the one error that says where and what is allowed to come out.
    with contextlib.suppress(InvalidValue):
        rollouts = READERS[FILES[name]](json.dumps(document).encode())
        for call in (call for rollout in rollouts for call in rollout.calls):
            count = len(call.completion_ids or ())
            assert call.logprobs is None or len(call.logprobs) == count
            assert call.mask is None or len(call.mask) == count

"""Formats with texts: texts as they were, ids that fit them, masks as the verdict says."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.demo.group import run_group
from explorer.engine.tiny import TinyEngine
from explorer.export.adapters.atif import Atif
from explorer.export.adapters.graph import Graph
from explorer.export.adapters.registry import ADAPTERS, adapters_of
from explorer.export.adapters.sessions import Sessions
from explorer.export.adapters.spoken import Reader
from explorer.export.adapters.verifiers import Verifiers
from explorer.export.dataset.adapter import Adapter, File, Line, Row, Subject
from explorer.export.dataset.checking import check_dataset
from explorer.export.dataset.extras import rows_batch
from explorer.export.dataset.making import Shape, make_dataset
from explorer.export.dataset.manifest import Manifest, read_manifest
from explorer.export.dataset.planning import plan
from explorer.export.readers import atif as atif_reader
from explorer.export.readers import verifiers as verifiers_reader
from explorer.records import CallId, Dialect, Purpose, RolloutRecord
from explorer.store.duckdb_store import DuckDBStore
from explorer.store.queries import RolloutQuery
from explorer.trace.verdict import judge
from tests.export.datasets import OPTIONS, forked, source_of
from tests.export.test_adapters_tokens import told
from tests.export.test_dataset_rows import read_back, tables
from tests.live import serving
from tests.trace.build import failed_call, make_call, override, record, two_turns
from tests.trace.conversations import Script, recorded
from tests.trace.test_interleaving import interleaved

Bodies = dict[str, tuple[str | None, str | None]]
ONE, TWO = (f"01990000-0000-7000-8000-00000000000{number}" for number in (1, 2))


def answered(content: Any, **message: Any) -> str:
    whole = {"role": "assistant", "content": content} | message
    return json.dumps({"choices": [{"index": 0, "message": whole, "finish_reason": "stop"}]})


def asked(*messages: Mapping[str, Any], **more: Any) -> str:
    return json.dumps({"model": "m", "messages": list(messages)} | more)


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | more


def subject(made: RolloutRecord, bodies: Bodies) -> Subject:
    return Subject(made, judge(made), lambda call_id: bodies.get(call_id, (None, None)))


def episode(made: Subject) -> dict[str, Any]:
    (line,) = Verifiers().add(made)
    assert isinstance(line, Line)
    assert b"\n" not in line.data
    found: dict[str, Any] = json.loads(line.data)
    return found


def trace(made: Subject) -> dict[str, Any]:
    (found,) = episode(made)["traces"]
    whole: dict[str, Any] = found
    return whole


def trajectories(made: Subject) -> list[dict[str, Any]]:
    files = list(Atif().add(made))
    stems = [file.stem for file in files if isinstance(file, File)]
    assert len({stem.lower() for stem in stems}) == len(files)
    return [json.loads(file.data) for file in files if isinstance(file, File)]


def session(made: Subject) -> list[dict[str, Any]]:
    (file,) = Sessions().add(made)
    assert isinstance(file, File)
    return [json.loads(line) for line in file.data.splitlines()]


def spoken_of(made: RolloutRecord) -> Bodies:
    """Texts that fit the tokens: what each call added to the prompt, and its answer."""
    judgement = judge(made)
    tree, calls = judgement.tree, {call.call_id: call for call in made.calls}
    bodies: Bodies = {}
    for node in tree.walk():
        call = calls[node.call_id]
        if not node.has_ids or call.completion is None:
            continue
        messages: list[dict[str, Any]] = []
        before = 0
        for name in tree.path(node.call_id):
            here = tree.nodes[name]
            new = tree.sequences.slice(name, before, here.prompt_len).tolist()
            before = here.prompt_len + here.completion_len
            sampled = tree.sequences.slice(name, here.prompt_len, before).tolist()
            messages += [user(f"said {new}"), said(f"answer {sampled}")]
        reply = messages.pop()
        bodies[call.call_id] = asked(*messages), answered(reply["content"])
    return bodies


# -- reading what was said ------------------------------------------------------------------

_HI = [{"type": "message", "role": "user", "content": "hi"}]
_SECOND = [*_HI, {"type": "message", "role": "assistant", "content": "there"}]
DIALECTS: dict[str, tuple[Dialect, Any, Any]] = {
    "chat": (
        Dialect.CHAT,
        {"messages": [user("hi")]},
        {"messages": [user("hi"), said("there"), user("go on")]},
    ),
    "messages": (
        Dialect.MESSAGES,
        {"max_tokens": 5, "messages": [user("hi")]},
        {"max_tokens": 5, "messages": [user("hi"), said("there"), user("go on")]},
    ),
    "responses": (
        Dialect.RESPONSES,
        {"input": "hi"},
        {"input": [*_SECOND, {"type": "message", "role": "user", "content": "go on"}]},
    ),
    "responses by id": (
        Dialect.RESPONSES,
        {"input": "hi", "instructions": "Be."},
        {"input": "go on", "previous_response_id": f"resp_{ONE}", "instructions": "Be."},
    ),
    "google": (
        Dialect.GOOGLE,
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
        {
            "contents": [
                {"role": "user", "parts": [{"text": "hi"}]},
                {"role": "model", "parts": [{"text": "there"}]},
                {"role": "user", "parts": [{"text": "go on"}]},
            ]
        },
    ),
}


@pytest.mark.parametrize("name", list(DIALECTS))
def test_what_was_said_is_read_in_every_dialect(name: str) -> None:
    dialect, first, second = DIALECTS[name]
    one, two = two_turns()
    one = replace(one, call_id=CallId(ONE), dialect=dialect)
    two = replace(two, call_id=CallId(TWO), dialect=dialect, stored_parent_id=CallId(ONE))
    bodies: Bodies = {
        ONE: (json.dumps({"model": "m"} | first), answered("there")),
        TWO: (json.dumps({"model": "m"} | second), answered("bye")),
    }
    graph = Graph(subject(record(one, two), bodies))
    assert graph.unread == []
    found = [(each.message.role, each.message.words) for each in graph.said]
    system = [("system", "Be.")] if name == "responses by id" else []
    assert found == [
        *system,
        *(("user", "hi"), ("assistant", "there"), ("user", "go on"), ("assistant", "bye")),
    ]
    assert [each.parent for each in graph.said] == [None, *range(len(found) - 1)]


def test_a_plain_completion_has_a_prompt_and_an_answer() -> None:
    call = make_call("a", 1, [1], [2], n_tools=1, dialect=Dialect.COMPLETIONS)
    reply = json.dumps({"choices": [{"index": 0, "text": "there"}]})
    graph = Graph(subject(record(call), {"a": (json.dumps({"prompt": "hi"}), reply)}))
    assert [each.message.words for each in graph.said] == ["hi", "there"]
    ids = json.dumps({"prompt": [1, 2]})
    graph = Graph(subject(record(call), {"a": (ids, reply)}))
    assert (graph.said, graph.unread) == ([], ["a"])


def test_a_streamed_reply_is_read_as_the_whole_it_makes() -> None:
    call = make_call("a", 1, [1], [2], n_tools=1)
    parts = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning": "so"}}]},
        {"choices": [{"index": 0, "delta": {"content": "the"}}]},
        {"choices": [{"index": 0, "delta": {"content": "re"}, "finish_reason": "stop"}]},
    ]
    reply = "".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n"
    made = record(call)
    read = Reader(made, lambda _: (asked(user("hi")), reply)).read(call)
    assert read is not None
    assert (read.reply.text, read.reply.reasoning) == ("there", "so")


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (None, answered("x")),
        (asked(user("hi")), None),
        ("{", answered("x")),
        (asked(user("hi")), "{"),
        (asked(user("hi")), "data: {\n\n"),
        (asked(user("hi")), json.dumps({"error": "no"})),
        (asked({"role": "oracle", "content": "x"}), answered("x")),
        (asked(user(7)), answered("x")),
        (asked(user(["x"])), answered("x")),
        (asked(said(None, tool_calls=[{"id": "x"}])), answered("x")),
        (asked(said(None, tool_calls=7)), answered("x")),
        (asked(user("hi")), answered({"a": 1})),
    ],
)
def test_what_cannot_be_read_is_not_guessed_at(request_: str | None, reply: str | None) -> None:
    call = make_call("a", 1, [1], [2], n_tools=1)
    made = subject(record(call), {"a": (request_, reply)})
    assert Graph(made).unread == ["a"]
    assert [list(kind().add(made)) for kind in (Verifiers, Atif, Sessions)] == [[], [], []]


def test_a_call_that_leads_back_to_itself_is_not_read() -> None:
    one = replace(two_turns()[0], call_id=CallId(ONE), dialect=Dialect.RESPONSES)
    loop = json.dumps({"input": "hi", "previous_response_id": f"resp_{ONE}"})
    assert Graph(subject(record(one), {ONE: (loop, answered("x"))})).unread == [ONE]


# -- ids and masks --------------------------------------------------------------------------


def test_the_ids_along_a_path_are_what_was_read_and_sampled() -> None:
    made = record(*forked())
    found = trace(subject(made, spoken_of(made)))
    ids = [node.get("token_ids", []) for node in found["nodes"]]
    # A title, which is no agent's call, is a conversation of its own that trains nothing.
    assert ids == [
        [],
        [1, 2, 3, 4],
        [],
        [5, 6, 7],
        [],
        [8, 9, 10],
        [],
        [11, 12, 13],
        [],
        [90, 91],
    ]
    masks = [node["mask"] for node in found["nodes"] if "mask" in node]
    assert masks == [
        [False, False, True, True],
        [False, True, True],
        [False, False, True],
        [False, True, True],
        [False, False],
    ]
    assert [node["parent"] for node in found["nodes"]] == [None, 0, 1, 2, 1, 4, 5, 6, None, 8]
    assert [len(node["logprobs"]) for node in found["nodes"] if "mask" in node] == [
        2,
        2,
        1,
        2,
        0,
    ]
    assert found["rewards"] == {"reward": {"score": 1.0, "weight": 1.0}}
    assert found["info"]["rollout_explorer"]["calls_left_out"] == ["f-x"]
    failed = found["calls"][-1]
    assert (failed["node"], failed["error"]["type"]) == (None, "upstream_status")


def test_a_call_behind_one_that_cannot_be_read_stands_with_its_whole_prompt() -> None:
    made = record(*two_turns())
    bodies = spoken_of(made)
    del bodies["a"]
    found = trace(subject(made, bodies))
    sampled = [node for node in found["nodes"] if node["sampled"]]
    assert [node["token_ids"] for node in sampled] == [[1, 2, 3, 4, 5, 6]]
    assert sampled[0]["mask"] == [False] * 5 + [True]
    assert found["info"]["rollout_explorer"]["calls_left_out"] == ["a"]


def test_a_history_that_was_written_anew_is_a_conversation_of_its_own() -> None:
    made = record(*two_turns())
    bodies = spoken_of(made)
    bodies["b"] = asked(user("another beginning"), said("answer"), user("go on")), answered("x")
    found = trace(subject(made, bodies))
    assert [node["parent"] for node in found["nodes"]] == [None, 0, None, 2, 3, 4]
    last = found["nodes"][-1]
    assert last["token_ids"] == [1, 2, 3, 4, 5, 6]
    # What the first call sampled trains there, not again as part of this prompt.
    assert sum(map(sum, (node.get("mask", []) for node in found["nodes"]))) == 3


@given(interleaved(), st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_happened_masks_are_the_verdicts_and_ids_the_engines(
    made: tuple[Script, list[str]], data: st.DataObject
) -> None:
    rollout = recorded(*made)
    bodies = spoken_of(rollout)
    gone = data.draw(st.sets(st.sampled_from(sorted(bodies)))) if bodies else set()
    kept = {name: texts for name, texts in bodies.items() if name not in gone}
    whole = subject(rollout, kept)
    judgement, tree = whole.judgement, whole.judgement.tree
    if not kept:
        assert list(Verifiers().add(whole)) == []
        return
    found = trace(whole)
    assert found["agent"]["trainable"] == judgement.trainable
    names = {
        item["node"]: item["call_id"] for item in found["info"]["rollout_explorer"]["calls"]
    }
    assert sorted(names.values()) == sorted(kept)
    for place, name in names.items():
        line, at = [], place
        while at is not None:
            line.append(found["nodes"][at])
            at = found["nodes"][at]["parent"]
        ids = [id_ for node in reversed(line) for id_ in node.get("token_ids", [])]
        assert ids == tree.sequences.full(CallId(name)).tolist()
        node, mask = found["nodes"][place], judgement.masks[CallId(name)]
        bits = mask.completion_bits() if judgement.trainable else mask.completion_bits() * 0
        sampled = len(node["mask"]) - bits.size
        assert node["mask"] == [False] * sampled + (bits == 1).tolist()
        assert len(node["logprobs"]) == int(bits.sum())
    _check_trajectories(whole, kept)


def _check_trajectories(whole: Subject, kept: Bodies) -> None:
    """Each call once, ids only where all of it trains."""
    judgement = whole.judgement
    steps: Counter[str] = Counter()
    for document in trajectories(whole):
        assert [step["step_id"] for step in document["steps"]] == list(
            range(1, len(document["steps"]) + 1)
        )
        for step in document["steps"]:
            name = step.get("extra", {}).get("call_id")
            if name is None or step.get("is_copied_context"):
                assert "completion_token_ids" not in step.get("metrics", {})
                continue
            steps[name] += 1
            mask = judgement.masks[CallId(name)]
            trains = judgement.trainable and mask.supervised
            assert step["extra"]["supervised_tokens"] == int(trains)
            full = judgement.tree.sequences.full(CallId(name)).tolist()
            if trains and mask.supervised == mask.length - mask.prompt_len:
                metrics = step["metrics"]
                assert metrics["prompt_token_ids"] + metrics["completion_token_ids"] == full
            else:
                assert "completion_token_ids" not in step["metrics"]
    assert steps == dict.fromkeys(kept, 1)


@pytest.mark.parametrize("change", ["eval", "no certificate", "excluded"])
def test_of_a_rollout_that_may_not_train_only_texts_are_told(change: str) -> None:
    made = record(
        *forked(),
        purpose=Purpose.EVAL if change == "eval" else Purpose.TRAIN,
        overrides=[override("exclude_call", f"f-{name}") for name in "abcd"]
        if change == "excluded"
        else (),
    )
    if change == "no certificate":
        made = replace(made, certificate=None)
    whole = subject(made, spoken_of(made))
    assert not whole.judgement.trainable
    found = trace(whole)
    assert found["agent"]["trainable"] is False
    assert not any(any(node.get("mask", ())) for node in found["nodes"])
    assert not any(node.get("logprobs") for node in found["nodes"])
    for document in trajectories(whole):
        assert document["extra"]["trainable"] is False
        assert not any("logprobs" in step.get("metrics", {}) for step in document["steps"])
    assert session(whole)[0]["calls"] == 3


def test_no_reward_is_null_and_a_verdict_that_nobody_gave_is_left_out() -> None:
    made = told(record(*two_turns()), "r1", None)
    found = episode(subject(made, spoken_of(made)))
    assert found["traces"][0]["rewards"] == {"reward": None}
    assert "ok" not in found
    assert "group" not in found
    (document,) = trajectories(subject(made, spoken_of(made)))
    assert document["extra"]["reward"] is None


def test_what_the_proxy_said_itself_was_sampled_by_no_model() -> None:
    first, second = two_turns()
    made = record(first, replace(second, injected=True))
    whole = subject(made, spoken_of(made))
    assert [node["sampled"] for node in trace(whole)["nodes"]] == [False, True, False, False]
    (document,) = trajectories(whole)
    last = document["steps"][-1]
    assert last["llm_call_count"] == 0
    assert "metrics" not in last


# -- round trips through the readers --------------------------------------------------------


def _same_calls(found: Any, made: RolloutRecord, names: list[str]) -> None:
    tree, calls = judge(made).tree, {call.call_id: call for call in made.calls}
    assert len(found) == len(names)
    for each, name in zip(found, names, strict=True):
        call = calls[CallId(name)]
        assert call.completion is not None
        assert call.logprobs is not None
        assert list(each.prompt_ids) == tree.sequences.prompt(call.call_id).tolist()
        assert list(each.completion_ids) == call.completion.tolist()
        assert np.array_equal(np.array(each.logprobs, np.float32), call.logprobs)


def test_verifiers_is_read_back_by_the_reader() -> None:
    made = told(record(*forked()[:4]), "r1", 0.5, group="g", task="t", harness="h")
    (line,) = Verifiers().add(subject(made, spoken_of(made)))
    assert isinstance(line, Line)
    (rollout,) = verifiers_reader.read(line.data)
    assert (rollout.reward, rollout.group, rollout.task) == (0.5, "g", "t")
    assert (rollout.harness, rollout.source) == ("h", "r1")
    _same_calls(rollout.calls, made, ["f-a", "f-b", "f-c", "f-d"])
    assert [call.mask for call in rollout.calls] == [(1, 1), (1, 1), (1,), (1, 1)]
    assert [each["content"] for each in rollout.calls[1].messages] == [
        *("said [1, 2]", "answer [3, 4]", "said [5]"),
    ]


def test_atif_is_read_back_by_the_reader() -> None:
    made = record(*forked()[:4])
    files = list(Atif().add(subject(made, spoken_of(made))))
    found: list[Any] = []
    for file in files:
        assert isinstance(file, File)
        (rollout,) = atif_reader.read(file.data)
        found += rollout.calls
    assert [file.stem for file in files if isinstance(file, File)] == ["r1", "r1-2"]
    _same_calls(found, made, ["f-a", "f-c", "f-d", "f-b"])


# -- messages of every kind -----------------------------------------------------------------


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
ODD_CALLS = [
    {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
    {"id": "t2", "type": "function", "function": {"name": "g", "arguments": "[not json"}},
]


def odd_conversation() -> Subject:
    first, second = two_turns()
    parts = [{"type": "text", "text": "look"}, PICTURE, {"type": "input_audio", "x": 1}]
    opening = [{"role": "developer", "content": "Be."}, user(parts)]
    echo = said(None, tool_calls=ODD_CALLS, reasoning="why")
    results = [
        {"role": "tool", "tool_call_id": "t1", "content": "one"},
        {"role": "tool", "tool_call_id": "nobody's", "content": "two"},
        said("made up by the harness"),
    ]
    bodies: Bodies = {
        "a": (asked(*opening), answered(None, tool_calls=ODD_CALLS, reasoning="why")),
        "b": (asked(*opening, echo, *results, user("go on")), answered("x\ud800\n")),
    }
    return subject(record(first, second), bodies)


def test_parts_and_tool_calls_in_verifiers() -> None:
    found = trace(odd_conversation())
    messages = [node["message"] for node in found["nodes"]]
    assert [each["role"] for each in messages] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "user", "assistant"),
    ]
    assert messages[1]["content"] == [{"type": "text", "text": "look"}, PICTURE]
    info = found["info"]["rollout_explorer"]
    assert info["parts_left_out"] == {"1": ["image_url", "input_audio"]}
    assert [call["arguments"] for call in messages[2]["tool_calls"]] == [
        *('{"a": 1}', "[not json"),
    ]
    assert messages[2]["reasoning_content"] == "why"
    assert [node["sampled"] for node in found["nodes"]] == [
        *(False, False, True, False, False, False, False, True),
    ]
    assert messages[-1]["content"] == "x\\ud800\n"


def test_parts_and_tool_calls_in_atif() -> None:
    (document,) = trajectories(odd_conversation())
    steps = document["steps"]
    assert len(steps) == 8
    system, asking, calling, orphan, _, made_up, going, last = steps
    assert (system["source"], system["message"]) == ("system", "Be.")
    assert asking["message"][1] == {
        "type": "image",
        "source": {"media_type": "image/png", "path": "data:image/png;base64,AA=="},
    }
    assert asking["extra"] == {"parts": [{"type": "input_audio", "x": 1}]}
    one, two = calling["tool_calls"]
    assert (one["arguments"], one["extra"]) == ({"a": 1}, {"arguments": '{"a": 1}'})
    assert (two["arguments"], two["extra"]) == ({}, {"arguments": "[not json"})
    ours = one["tool_call_id"]
    assert "observation" not in calling, f"the harness answered t1, our id is {ours}"
    assert (orphan["source"], orphan["extra"]["tool_call_id"]) == ("user", "t1")
    assert (made_up["source"], made_up["is_copied_context"]) == ("agent", True)
    assert "metrics" not in made_up
    assert (going["source"], going["message"]) == ("user", "go on")
    assert last["metrics"]["completion_token_ids"] == [6]


def test_a_tools_result_stands_in_atif_with_the_step_that_called_it() -> None:
    first, second = two_turns()
    one, two = (
        replace(each, call_id=CallId(name)) for each, name in ((first, ONE), (second, TWO))
    )
    ours = f"call_{ONE.replace('-', '')}_0"
    calls = [ODD_CALLS[0] | {"id": ours}]
    result = {"role": "tool", "tool_call_id": ours, "content": "one"}
    bodies: Bodies = {
        ONE: (asked(user("hi")), answered(None, tool_calls=[ODD_CALLS[0]])),
        TWO: (asked(user("hi"), said(None, tool_calls=calls), result), answered("done")),
    }
    made = record(one, replace(two, stored_parent_id=CallId(ONE)))
    (document,) = trajectories(subject(made, bodies))
    assert [step["source"] for step in document["steps"]] == ["user", "agent", "agent"]
    calling = document["steps"][1]
    assert calling["tool_calls"][0]["tool_call_id"] == ours
    assert calling["observation"] == {"results": [{"source_call_id": ours, "content": "one"}]}


def test_a_session_is_a_header_and_messages() -> None:
    header, *messages = session(odd_conversation())
    assert header == {
        "type": "session",
        "harness": "unknown",
        "id": "r1",
        "calls": 2,
        "calls_left_out": 0,
    }
    shown = [each["message"] for each in messages]
    assert {each["type"] for each in messages} == {"message"}
    assert shown[1]["content"] == "look"
    assert shown[2]["reasoningContent"] == "why"
    assert shown[2]["toolCalls"][1]["function"] == {"name": "g", "arguments": "[not json"}
    assert shown[3]["toolCallId"] == "t1"
    assert shown[-1]["content"] == "x\\ud800\n"


# -- made again from a dataset ---------------------------------------------------------------


TEXTS = st.text(st.characters(), max_size=12)
NUMBERS = st.integers() | st.floats() | st.booleans() | st.none() | TEXTS
SAMPLING = st.dictionaries(
    st.sampled_from(["temperature", "top_p", "max_tokens", "reasoning_effort", "extra_body"])
    | TEXTS,
    NUMBERS | st.lists(NUMBERS, max_size=2),
    max_size=4,
)


@given(SAMPLING, TEXTS, TEXTS, st.sampled_from([None, 0.0, -0.5]))
@settings(max_examples=60, deadline=None)
def test_a_hostile_record_gives_the_same_when_it_is_read_back_from_a_dataset(
    sampling: dict[str, Any], text: str, other: str, reward: float | None
) -> None:
    first, second = two_turns()
    facts: dict[str, Any] = {
        "submitted_sampling": sampling,
        "stop_reason": text,
        "failure_detail": other,
        "model_served": text,
        "model_requested": other,
    }
    calls = (replace(first, **facts), replace(second, **facts), failed_call("x", 3, **facts))
    made = told(record(*calls), "r1", reward, task=text, group=other, harness=text, run=other)
    bodies = spoken_of(made)
    again = read_back(tables(made, judge(made)))
    for name, kind in ADAPTERS.items():
        one, two = (subject(each, bodies) for each in (made, again))
        assert _pieces(kind(), one) == _pieces(kind(), two), name


def _pieces(adapter: Adapter, whole: Subject) -> list[Any]:
    found = [*adapter.add(whole), *adapter.finish()]
    rows = [piece for piece in found if isinstance(piece, Row)]
    if rows:
        listed: list[Any] = rows_batch(adapter.name, adapter.columns, rows).to_pylist()
        return listed
    for piece in found:
        assert not isinstance(piece, Row)
        for line in piece.data.splitlines() if adapter.suffix == "jsonl" else [piece.data]:
            if adapter.suffix != "csv":
                json.loads(line, parse_constant=_no_number)
    return found


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


# -- real rollouts --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of the demo's rollouts in every format."""
    folder = tmp_path_factory.mktemp("adapters")
    with serving(TinyEngine(), folder / "s.duckdb") as live:
        asyncio.run(run_group(live.url, live.token, attempts=3))

    async def make() -> Manifest:
        store = DuckDBStore(folder / "s.duckdb", OPTIONS)
        try:
            source = source_of(store)
            names = [row.rollout_id for row in store.list_rollouts(RolloutQuery()).rows]
            planned = await plan(source, names)
            shape = Shape(adapters=lambda: adapters_of(ADAPTERS))
            return await make_dataset(source, planned, folder / "data", shape)
        finally:
            await store.close()

    asyncio.run(make())
    return folder / "data"


def test_every_format_of_real_rollouts_is_made_again_from_its_dataset(demo: Path) -> None:
    manifest = read_manifest(demo)
    assert set(manifest.extras) == set(ADAPTERS)
    assert all(entry.rows for name, entry in manifest.extras.items() if name != "dpo")
    report = check_dataset(demo, adapters_of)
    assert report.ok, report.problems


def test_formats_of_real_rollouts_train_the_same_tokens(demo: Path) -> None:
    manifest = read_manifest(demo)
    total = sum(entry.supervised_tokens for entry in manifest.rollouts)
    (verifiers,) = manifest.extras["verifiers"].files
    found = 0
    for line in (demo / verifiers.path).read_bytes().splitlines():
        (one,) = json.loads(line)["traces"]
        found += sum(sum(node.get("mask", ())) for node in one["nodes"])
        left = one["info"]["rollout_explorer"]["calls_left_out"]
        lost = [each for each in one["calls"] if each["node"] is None and "error" not in each]
        assert lost == [], f"calls without texts: {left}"
    assert found == total > 1000
    (calls,) = manifest.extras["calls_jsonl"].files
    told_calls = [json.loads(line) for line in (demo / calls.path).read_bytes().splitlines()]
    assert sum(sum(call["loss_mask"]) for call in told_calls) == total

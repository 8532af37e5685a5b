"""Formats of texts from recordings of real harnesses: every answered call is in them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from explorer.export.adapters.atif import Atif
from explorer.export.adapters.graph import Graph
from explorer.export.adapters.sessions import Sessions
from explorer.export.adapters.spoken import Reader
from explorer.export.adapters.verifiers import Verifiers
from explorer.export.dataset.adapter import File, Line, Subject
from explorer.export.readers import atif as atif_reader
from explorer.export.readers import verifiers as verifiers_reader
from explorer.records import BodyKind, CallId, CallStatus
from explorer.store.duckdb_store import DuckDBStore
from tests.export.datasets import OPTIONS
from tests.replay.test_replay import Done

# Of every dialect, with subagents, compaction, retries, parallel tools and earlier replies.
NAMES = (
    *("claude-shape/parallel", "claude-shape/subagent", "codex/compact", "gemini/basic"),
    *("mini-text/basic", "opencode/retry", "opencode/subagent", "opencode-responses/basic"),
    *("pi/badtool", "qwen/compact", "sdk-openai-responses-prev/basic", "terminus/basic"),
)


@pytest.fixture(scope="module", params=NAMES)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder: Path = tmp_path_factory.mktemp("formats")
    done = Done(request.param, folder)
    store = DuckDBStore(folder / "s.duckdb", OPTIONS)
    texts = {}
    for call in done.replay.record.calls:
        found = {body.kind: body.data.decode() for body in store.bodies(call.call_id)}
        texts[call.call_id] = found.get(BodyKind.REQUEST), found.get(BodyKind.REPLY)
    return Subject(done.replay.record, done.judged, texts.__getitem__)


def test_every_answered_call_is_read_and_stands_behind_what_it_was_asked(
    whole: Subject,
) -> None:
    graph = Graph(whole)
    calls = {call.call_id: call for call in whole.record.calls}
    assert {calls[name].status for name in graph.unread} <= {CallStatus.FAILED}
    reader = Reader(whole.record, whole.texts)
    placed: Counter[CallId] = Counter()
    for place, said in enumerate(graph.said):
        if said.call is None:
            continue
        placed[said.call.call_id] += 1
        line = [place]
        while (parent := graph.said[line[-1]].parent) is not None:
            line.append(parent)
        path = [graph.said[each].message for each in reversed(line)]
        read = reader.read(said.call)
        assert read is not None
        asked = [*read.messages, read.reply]
        assert [message.role for message in path] == [message.role for message in asked]
        for shown, message in zip(path, asked, strict=True):
            # An answer is shown as it was sampled, not as a harness echoed it.
            assert shown == message or shown.role == "assistant"
    assert placed == dict.fromkeys(set(calls) - set(graph.unread), 1)


def test_verifiers_has_every_answered_call_with_its_ids(whole: Subject) -> None:
    (line,) = Verifiers().add(whole)
    assert isinstance(line, Line)
    (rollout,) = verifiers_reader.read(line.data)
    tree = whole.judgement.tree
    (trace,) = json.loads(line.data)["traces"]
    names = [each["call_id"] for each in trace["info"]["rollout_explorer"]["calls"]]
    assert len(rollout.calls) == len(names)
    for call, name in zip(rollout.calls, names, strict=True):
        # No engine was certified here: nothing trains, so all of it is read as prompt.
        assert call.mask == ()
        assert list(call.prompt_ids or ()) == tree.sequences.full(CallId(name)).tolist()
    assert not any(any(node.get("mask", ())) for node in trace["nodes"])


def test_atif_has_every_answered_call_once_and_no_ids_of_what_may_not_train(
    whole: Subject,
) -> None:
    told: Counter[Any] = Counter()
    for file in Atif().add(whole):
        assert isinstance(file, File)
        (trajectory,) = atif_reader.read(file.data)
        assert all(call.completion_ids is None for call in trajectory.calls)
        for step in json.loads(file.data)["steps"]:
            if step.get("llm_call_count") and not step.get("is_copied_context"):
                told[step["extra"]["call_id"]] += 1
            known = {call["tool_call_id"] for call in step.get("tool_calls", ())}
            results = step.get("observation", {"results": []})["results"]
            assert {each["source_call_id"] for each in results} <= known
    graph = Graph(whole)
    assert told == {said.call.call_id: 1 for said in graph.said if said.call is not None}


def test_a_session_links_every_result_to_its_call(whole: Subject) -> None:
    (file,) = Sessions().add(whole)
    assert isinstance(file, File)
    header, *lines = (json.loads(line) for line in file.data.splitlines())
    assert header["calls"] + header["calls_left_out"] == len(whole.record.calls)
    called: set[str] = set()
    for message in (line["message"] for line in lines):
        called |= {call["id"] for call in message.get("toolCalls", ())}
        if "toolCallId" in message:
            assert message["toolCallId"] in called

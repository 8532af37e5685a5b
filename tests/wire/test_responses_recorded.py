"""Recorded traffic of real clients: every call's messages extend the former call's.

Long texts in the recordings are cut and some words replaced, the same word always by the
same one; paths inside arguments are replaced differently in a reply and in its echo, so
arguments are compared where both sides are echoes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from explorer.wire import ids, responses, sse
from explorer.wire.neutral import Earlier, NeutralRequest

DATA = Path(__file__).parents[1] / "data" / "harness"
CALL = "01a22881-d7a4-7cf1-a4ef-{:012x}"


def calls_of(harness: str, scenario: str = "basic") -> list[dict[str, Any]]:
    lines = (DATA / harness / f"{scenario}.jsonl").read_bytes().splitlines()
    return [orjson.loads(line) for line in lines][1:]


def parse(body: Any, earlier: dict[str, Earlier] | None = None) -> NeutralRequest:
    return responses.parse_request(orjson.dumps(body), earlier=earlier)


def output_of(call: dict[str, Any]) -> list[dict[str, Any]]:
    """The items that the recorded reply held."""
    text = call["response"]["body"]
    if call["response"]["content_type"].startswith("text/event-stream"):
        merged = responses.merge_stream(sse.Decoder().feed(text.encode()))
    else:
        merged = orjson.loads(text)
    found: list[dict[str, Any]] = merged["output"]
    return found


def turn_of(output: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant message that stands for one recorded reply."""
    turn: dict[str, Any] = {"role": "assistant", "content": None}
    for item in output:
        if item["type"] == "reasoning":
            turn["reasoning"] = item["summary"][0]["text"]
        elif item["type"] == "message":
            turn["content"] = item["content"][0]["text"]
        else:
            space = item.get("namespace")
            name = f"{space}__{item['name']}" if space else item["name"]
            call = {"id": item["call_id"], "type": "function", "function": {"name": name}}
            turn.setdefault("tool_calls", []).append(call)
    return turn


def bare(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have no arguments."""
    calls = [
        call | {"function": {"name": call["function"]["name"]}}
        for call in message.get("tool_calls", [])
    ]
    return message | ({"tool_calls": calls} if calls else {})


@pytest.mark.parametrize(
    ("harness", "scenario", "extensions"),
    [
        ("codex", "basic", 4),
        ("codex", "badtool", 3),
        ("codex", "subagent", 2),
        ("pi-responses", "basic", 4),
        ("opencode-responses", "basic", 4),
        ("sdk-openai-responses", "basic", 4),
    ],
)
def test_each_call_extends_the_former_one_by_its_reply(
    harness: str, scenario: str, extensions: int
) -> None:
    threads: dict[str, tuple[list[Any], list[Any]]] = {}
    found = 0
    for call in calls_of(harness, scenario):
        if call["kind"] != "agent":
            continue
        request = parse(call["body"])
        thread = call["body"].get("client_metadata", {}).get("thread_id", "")
        if thread in threads:
            before, output = threads[thread]
            now = request.messages
            assert now[: len(before)] == before
            added = now[len(before) :]
            assert bare(added[0]) == turn_of(output)
            assert {message["role"] for message in added[1:]} == {"tool"}
            answered = [message["tool_call_id"] for message in added[1:]]
            assert answered == [one["id"] for one in added[0]["tool_calls"]]
            found += 1
        threads[thread] = (request.messages, output_of(call))
    assert found == extensions


def test_naming_the_earlier_reply_says_the_same_as_repeating_it() -> None:
    earlier: dict[str, Earlier] = {}
    renamed: dict[str, str] = {}
    full = [call for call in calls_of("sdk-openai-responses") if call["body"]]
    named = calls_of("sdk-openai-responses-prev")
    assert len(full) == len(named) == 5
    for number, (call, twin) in enumerate(zip(named, full, strict=True)):
        body = dict(call["body"])
        previous = body.get("previous_response_id")
        if previous is not None:
            # The recorded server minted other ids than ours.
            body["previous_response_id"] = renamed[previous]
            assert parse(body).recall == (ids.origin_of_item(renamed[previous]),)
        request = parse(body, earlier)
        assert [bare(m) for m in request.messages] == [
            bare(m) for m in parse(twin["body"]).messages
        ]
        call_id = CALL.format(number)
        renamed[orjson.loads(call["response"]["body"])["id"]] = f"resp_{call_id}"
        talk = [m for m in request.messages if m["role"] != "system"]
        reply = turn_of(output_of(call))
        calls = reply.get("tool_calls", [])
        for one, item in zip(
            calls, output_of(call)[-len(calls) :] if calls else [], strict=True
        ):
            one["function"]["arguments"] = item["arguments"]
        earlier[call_id] = Earlier(tuple(talk), reply)


def test_codex_tools_are_known_by_names_that_lead_back() -> None:
    request = parse(calls_of("codex", "subagent")[0]["body"])
    names = [tool["function"]["name"] for tool in request.tools]
    assert "multi_agent_v1__spawn_agent" in names
    assert "exec_command" in names
    origin = request.tools_by_name["multi_agent_v1__spawn_agent"]
    assert (origin.name, origin.namespace) == ("spawn_agent", "multi_agent_v1")
    assert {note.detail for note in request.notes} == {"web_search"}
    assert request.claims["thread_id"] == "01a22856-fabe-71c1-bb00-2b89821dae60"
    assert request.stream


def test_codex_gets_a_call_back_in_the_namespace_that_it_sent() -> None:
    calls = calls_of("codex", "subagent")
    request = parse(calls[0]["body"])
    echoed = next(
        message for message in parse(calls[2]["body"]).messages if message.get("tool_calls")
    )
    choice = {"index": 0, "message": echoed, "finish_reason": "tool_calls"}
    served = responses.serve({"choices": [choice]}, request, CALL.format(1))
    recorded = [item for item in output_of(calls[0]) if item["type"] == "function_call"]
    own = [item for item in served["output"] if item["type"] == "function_call"]
    keys = ("call_id", "name", "namespace", "status")
    assert [[item.get(key) for key in keys] for item in own] == [
        [item.get(key) for key in keys] for item in recorded
    ]


@pytest.mark.parametrize(
    "harness", ["codex", "pi-responses", "opencode-responses", "sdk-openai-responses"]
)
def test_replies_have_the_shape_that_the_client_was_seen_to_accept(harness: str) -> None:
    """Every field of the recorded replies is there, of the same kind; events in that order."""
    for call in calls_of(harness):
        if call["kind"] != "agent":
            continue
        recorded = output_of(call)
        turn = turn_of(recorded)
        for one, item in zip(
            turn.get("tool_calls", []),
            [item for item in recorded if item["type"] == "function_call"],
            strict=True,
        ):
            one["function"]["arguments"] = item["arguments"]
        request = parse(call["body"] | {"include": ["reasoning.encrypted_content"]})
        choice = {"index": 0, "message": turn, "finish_reason": "stop"}
        served = responses.serve({"choices": [choice]}, request, CALL.format(1))
        assert len(served["output"]) == len(recorded)
        for own, item in zip(served["output"], recorded, strict=True):
            changed = ("id", "encrypted_content")
            assert set(item) <= set(own)
            assert {k: v for k, v in item.items() if k not in changed} == {
                k: own[k] for k in item if k not in changed
            }
        if call["response"]["content_type"].startswith("text/event-stream"):
            sent = sse.Decoder().feed(call["response"]["body"].encode())
            streamed = sse.Decoder().feed(
                responses.streamer(request, CALL.format(1), "m").finish(served)
            )
            assert squeezed(streamed) == squeezed(sent)


def squeezed(events: list[sse.Event]) -> list[str]:
    """Names of events; several deltas in a row count as one."""
    names: list[str] = []
    for event in events:
        if not names or names[-1] != event.name or not event.name.endswith(".delta"):
            names.append(event.name)
    return names

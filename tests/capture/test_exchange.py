"""Playbooks: what each event makes of a call, and what the harness gets."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import orjson
import pytest

from explorer.capture import events as ev
from explorer.capture.exchange import Exchange, State
from explorer.capture.lineage import Lineage
from explorer.engine.protocol import EngineReply
from explorer.errors import EngineMalformed, EngineTimeout, EngineUnavailable
from explorer.records import NOT_CERTIFIED, BodyKind, CallStatus, CaptureLevel, FailureKind
from explorer.wire import chat, sse
from tests.capture.playbook import (
    TIME,
    answered,
    completion,
    ids,
    kinds,
    make_exchange,
    only,
    received,
)


def reply_of(commands: list[ev.Command]) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of a whole reply."""
    start = only(commands, ev.StartReply)
    body = b"".join(c.data for c in commands if isinstance(c, ev.Send))
    return start.status, orjson.loads(body)


def test_a_good_call_is_durable_before_the_first_byte_leaves() -> None:
    exchange = make_exchange()
    first = exchange.handle(received(temperature=0.7))
    assert kinds(first) == ["Admit", "Ask"]
    second = exchange.handle(answered())
    assert kinds(second) == ["Commit"]
    call = only(second, ev.Commit).call
    assert call.status is CallStatus.COMMITTED
    assert call.capture_level is CaptureLevel.TOKENS
    assert (call.prompt_len, call.completion_len, call.prefix_len) == (2, 2, 0)
    third = exchange.handle(ev.Stored(TIME + 2000))
    assert kinds(third) == ["StartReply", "Send", "Done"]
    status, body = reply_of(third)
    assert status == 200
    assert body["id"] == "chatcmpl-" + call.call_id == call.response_id
    assert "prompt_token_ids" not in body
    served = only(third, ev.Send).data
    assert call.served_sha256 == hashlib.sha256(served).hexdigest()


def test_capture_is_asked_for_and_sampling_is_neutral() -> None:
    exchange = make_exchange()
    ask = only(
        exchange.handle(received(top_p=0.5, top_k=3, presence_penalty=1, stream=True)), ev.Ask
    )
    body = ask.request.body
    assert body["return_token_ids"] is True
    assert body["logprobs"] is True
    assert (body["top_p"], body["top_k"], body["presence_penalty"]) == (1.0, -1, 0.0)
    assert body["temperature"] == 1.0
    assert "stream" not in body
    assert ask.request.raw == orjson.dumps(body)
    call = only(exchange.handle(answered()), ev.Commit).call
    assert call.requested_sampling == {"top_p": 0.5, "top_k": 3, "presence_penalty": 1}
    assert call.submitted_sampling["top_p"] == 1.0


def test_unknown_fields_pass_both_ways_and_mask_the_call() -> None:
    exchange = make_exchange()
    ask = only(exchange.handle(received(vendor={"a": [1]})), ev.Ask)
    assert ask.request.body["vendor"] == {"a": [1]}
    commands = exchange.handle(answered(completion() | {"vendor_reply": 5}))
    # Nobody here can say whether the engine let it shape the sampling.
    assert only(commands, ev.Commit).call.constraints == ("unknown_field:vendor",)
    _, body = reply_of(exchange.handle(ev.Stored(TIME)))
    assert body["vendor_reply"] == 5


def test_bodies_are_kept_as_asked_as_sent_and_as_answered() -> None:
    exchange = make_exchange()
    request = received(seed=5)
    ask = only(exchange.handle(request), ev.Ask)
    reply = answered()
    bodies = only(exchange.handle(reply), ev.Commit).bodies
    assert [body.kind for body in bodies] == list(BodyKind)
    assert [body.data for body in bodies] == [request.raw, ask.request.raw, reply.reply.body]


def test_a_stream_is_synthesised_and_lossless() -> None:
    exchange = make_exchange()
    assert kinds(exchange.handle(received(stream=True))) == ["Admit", "Ask", "WakeAfter"]
    exchange.handle(answered())
    commands = exchange.handle(ev.Stored(TIME))
    start = only(commands, ev.StartReply)
    assert dict(start.headers)["content-type"].startswith("text/event-stream")
    events = sse.Decoder().feed(only(commands, ev.Send).data)
    merged = chat.merge_stream(events)
    assert merged["_complete"] is True
    assert merged["choices"][0]["message"]["content"] == "hi"


def test_a_slow_stream_gets_headers_late_and_then_comments() -> None:
    exchange = make_exchange()
    exchange.handle(received(stream=True))
    held = exchange.handle(ev.TimerFired(TIME))
    assert kinds(held) == ["StartReply", "Send", "WakeAfter"]
    assert only(held, ev.Send).data.startswith(b":")
    assert kinds(exchange.handle(ev.TimerFired(TIME))) == ["Send", "WakeAfter"]
    exchange.handle(answered())
    # While the record is being made durable the line is kept alive, too.
    assert kinds(exchange.handle(ev.TimerFired(TIME))) == ["Send", "WakeAfter"]
    assert kinds(exchange.handle(ev.Stored(TIME))) == ["Send", "Done"]


def test_a_failure_before_headers_is_an_http_error_also_for_streams() -> None:
    exchange = make_exchange()
    exchange.handle(received(stream=True))
    broke = ev.EngineBroke(TIME, FailureKind.UPSTREAM_TIMEOUT, "no reply within 9 s")
    call = only(exchange.handle(broke), ev.Commit).call
    assert (call.status, call.failure_kind) == (
        CallStatus.FAILED,
        FailureKind.UPSTREAM_TIMEOUT,
    )
    status, body = reply_of(exchange.handle(ev.Stored(TIME)))
    assert status == 504
    assert "within 9 s" in body["error"]["message"]


def test_a_failure_after_headers_is_an_error_event() -> None:
    exchange = make_exchange()
    exchange.handle(received(stream=True))
    exchange.handle(ev.TimerFired(TIME))
    exchange.handle(ev.EngineBroke(TIME, FailureKind.UPSTREAM_UNREACHABLE, "gone"))
    commands = exchange.handle(ev.Stored(TIME))
    assert kinds(commands) == ["Send", "Done"]
    events = sse.Decoder().feed(only(commands, ev.Send).data)
    told = orjson.loads(events[0].data)["error"]["message"]
    # Worded as a passing fault: some clients try again only then.
    assert told.startswith("502 service overloaded")
    assert told.endswith("gone")
    assert events[-1].data == "[DONE]"


@pytest.mark.parametrize(
    ("status", "body", "served"),
    [
        (400, b'{"error":{"message":"too long","code":400}}', 400),
        (429, b'{"error":{"message":"slow down"}}', 429),
        (500, b"oops", 500),
        (418, b'{"error":"teapot"}', 502),
    ],
)
def test_an_upstream_error_is_recorded_and_passed_on(
    status: int, body: bytes, served: int
) -> None:
    exchange = make_exchange()
    exchange.handle(received())
    commit = only(exchange.handle(answered(body, status)), ev.Commit)
    assert commit.call.status is CallStatus.FAILED
    assert commit.call.failure_kind is FailureKind.UPSTREAM_STATUS
    assert commit.call.upstream_status == status
    assert commit.bodies[-1].data == body
    seen, shown = reply_of(exchange.handle(ev.Stored(TIME)))
    assert seen == served
    assert "message" in shown["error"]


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"choices":[]}', b"null"])
def test_a_malformed_reply_is_a_502_and_a_record(body: bytes) -> None:
    exchange = make_exchange()
    exchange.handle(received())
    call = only(exchange.handle(answered(body)), ev.Commit).call
    assert call.failure_kind is FailureKind.UPSTREAM_MALFORMED
    assert reply_of(exchange.handle(ev.Stored(TIME)))[0] == 502


def test_a_client_that_leaves_cancels_the_engine_and_is_recorded() -> None:
    exchange = make_exchange()
    exchange.handle(received())
    commands = exchange.handle(ev.ClientLeft(TIME))
    assert kinds(commands) == ["CancelEngine", "Commit"]
    call = only(commands, ev.Commit).call
    assert (call.status, call.failure_kind) == (CallStatus.ABORTED, FailureKind.CLIENT_GONE)
    assert kinds(exchange.handle(ev.Stored(TIME))) == ["Done"]


def test_a_client_that_leaves_while_storing_loses_nothing() -> None:
    exchange = make_exchange()
    exchange.handle(received())
    exchange.handle(answered())
    assert exchange.handle(ev.ClientLeft(TIME)) == []
    assert kinds(exchange.handle(ev.Stored(TIME))) == ["Done"]
    assert exchange.call is not None
    assert exchange.call.status is CallStatus.COMMITTED


def test_an_answer_after_the_client_left_changes_nothing() -> None:
    exchange = make_exchange()
    exchange.handle(received())
    exchange.handle(ev.ClientLeft(TIME))
    assert exchange.handle(answered()) == []


def test_stopping_aborts_and_says_so() -> None:
    exchange = make_exchange()
    exchange.handle(received())
    commands = exchange.handle(ev.Stopping(TIME))
    assert kinds(commands) == ["CancelEngine", "Commit"]
    assert only(commands, ev.Commit).call.failure_kind is FailureKind.SHUTDOWN
    assert reply_of(exchange.handle(ev.Stored(TIME)))[0] == 503


def test_a_store_that_fails_gives_503_and_never_the_reply() -> None:
    exchange = make_exchange()
    exchange.handle(received())
    exchange.handle(answered())
    status, body = reply_of(exchange.handle(ev.StoreBroke(TIME, "disk full")))
    assert status == 503
    assert "disk full" in body["error"]["message"]
    assert exchange.state is State.DONE


def test_a_bad_request_is_refused_without_asking_and_kept_for_the_audit() -> None:
    exchange = make_exchange()
    commands = exchange.handle(ev.Received(TIME, b"{", ()))
    call = only(commands, ev.Commit).call
    assert (call.status, call.failure_kind) == (CallStatus.REFUSED, FailureKind.BAD_REQUEST)
    done = exchange.handle(ev.Stored(TIME))
    assert reply_of(done)[0] == 400
    assert ("x-should-retry", "false") in only(done, ev.StartReply).headers


def test_an_engine_abort_is_served_and_recorded_as_aborted() -> None:
    exchange = make_exchange()
    exchange.handle(received())
    commit = only(exchange.handle(answered(completion(finish_reason="abort"))), ev.Commit)
    assert commit.call.status is CallStatus.ABORTED
    assert commit.call.failure_kind is FailureKind.ENGINE_ABORTED
    assert reply_of(exchange.handle(ev.Stored(TIME)))[0] == 200


def run_call(exchange: Exchange, lineage: Lineage, body: dict[str, Any]) -> Any:
    exchange.handle(received())
    call = only(exchange.handle(answered(body)), ev.Commit).call
    exchange.handle(ev.Stored(TIME))
    lineage.add(call)
    return call


def test_the_stored_parent_is_the_longest_exact_prefix() -> None:
    lineage = Lineage()
    root = run_call(
        make_exchange(lineage=lineage, sequence=0), lineage, completion([1, 2], [3, 4])
    )
    child = run_call(
        make_exchange(lineage=lineage, sequence=1),
        lineage,
        completion([1, 2, 3, 4, 5], [6]),
    )
    assert child.stored_parent_id == root.call_id
    assert child.prefix_len == 4
    assert child.prompt_delta.tolist() == [5]
    broken = run_call(
        make_exchange(lineage=lineage, sequence=2), lineage, completion([1, 2, 3, 9], [6])
    )
    assert broken.stored_parent_id is None
    assert broken.prompt_delta.tolist() == [1, 2, 3, 9]
    assert len({root.chain_hash, child.chain_hash, broken.chain_hash}) == 3


def test_an_uncommitted_call_is_no_parent() -> None:
    lineage = Lineage()
    exchange = make_exchange(lineage=lineage)
    exchange.handle(received())
    exchange.handle(answered(completion([1, 2], [3])))
    assert lineage.place(ids([1, 2, 3, 4]), ids([5])).parent_id is None


def test_text_level_engines_are_asked_as_the_harness_asked() -> None:
    exchange = make_exchange(level=CaptureLevel.TEXT)
    body = only(exchange.handle(received(top_p=0.5)), ev.Ask).request.body
    assert body["top_p"] == 0.5
    assert "return_token_ids" not in body
    assert "temperature" not in body


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tool_choice": "required"}, ("tool_choice",)),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, ("tool_choice",)),
        ({"tool_choice": "auto"}, ()),
        ({"logit_bias": {"5": 2}}, ("logit_bias",)),
        ({"logit_bias": {}}, ()),
        ({"min_tokens": 4}, ("min_tokens",)),
        ({"response_format": {"type": "json_schema"}}, ("response_format",)),
        ({"response_format": {"type": "text"}}, ()),
        ({"structured_outputs": {"json": {}}}, ("structured_outputs",)),
        ({"ignore_eos": True}, ("ignore_eos",)),
        # An empty schema still forces JSON, a budget of 0 still forces a token.
        ({"guided_json": {}}, ("guided_json",)),
        ({"guided_grammar": ""}, ("guided_grammar",)),
        ({"allowed_token_ids": []}, ("allowed_token_ids",)),
        ({"thinking_token_budget": 0}, ("thinking_token_budget",)),
        ({"structural_tag": "{}"}, ("structural_tag",)),
        # What no server reads as `text`, whatever its shape.
        ({"response_format": "json_object"}, ("response_format",)),
        ({"response_format": {"json_schema": {}}}, ("response_format",)),
        ({"response_format": ["json"]}, ("response_format",)),
        ({"response_format": None}, ()),
        ({"best_of": 2.0}, ("best_of",)),
        ({"best_of": "2"}, ("best_of",)),
        ({"best_of": 1}, ()),
        ({"functions": [{}], "function_call": {"name": "f"}}, ("function_call",)),
        ({"function_call": "auto"}, ()),
        # Fields of other servers, and objects that they merge into the request.
        ({"regex": "a+"}, ("regex",)),
        ({"grammar": "root ::= x"}, ("grammar",)),
        ({"mirostat": 2}, ("mirostat",)),
        ({"typical_p": 0.5}, ("typical_p",)),
        ({"typical_p": 1.0, "repeat_penalty": 1.0}, ()),
        ({"extra_body": {"guided_json": {}}}, ("extra_body",)),
        ({"extra_body": {}}, ()),
        ({"nvext": {"guided_json": {}}}, ("nvext",)),
    ],
)
def test_constraints_are_named_from_the_request(
    fields: dict[str, Any], names: tuple[str, ...]
) -> None:
    exchange = make_exchange()
    body = only(exchange.handle(received(**fields)), ev.Ask).request.body
    for key, value in fields.items():
        assert body[key] == value
    assert only(exchange.handle(answered()), ev.Commit).call.constraints == names


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-6, True), (0.1, False)])
def test_greedy_calls_are_flagged(temperature: float, greedy: bool) -> None:
    exchange = make_exchange()
    exchange.handle(received(temperature=temperature))
    assert only(exchange.handle(answered()), ev.Commit).call.greedy is greedy


@pytest.mark.parametrize("temperature", ["0", "1.0", [0], {}])
def test_a_temperature_that_is_no_number_is_a_constraint_nobody_can_name(
    temperature: Any,
) -> None:
    exchange = make_exchange()
    exchange.handle(received(temperature=temperature))
    call = only(exchange.handle(answered()), ev.Commit).call
    assert call.constraints == ("temperature",)


@pytest.mark.parametrize(
    ("strict", "choice", "names"),
    [
        ({"function": {"name": "f", "strict": True}}, "auto", ("strict_tools",)),
        ({"function": {"name": "f"}, "strict": True}, None, ("strict_tools",)),
        ({"function": {"name": "f", "strict": True}}, "none", ()),
        ({"function": {"name": "f", "strict": False}}, "auto", ()),
        ({"function": "f"}, "auto", ()),
    ],
)
def test_a_strict_tool_constrains_also_where_the_choice_is_free(
    strict: dict[str, Any], choice: str | None, names: tuple[str, ...]
) -> None:
    exchange = make_exchange()
    exchange.handle(received(tools=[{"function": {}}, strict], tool_choice=choice))
    assert only(exchange.handle(answered()), ev.Commit).call.constraints == names


def test_the_rollouts_sampling_wins_and_both_are_kept() -> None:
    exchange = make_exchange(sampling={"temperature": 0.8})
    ask = only(exchange.handle(received(temperature=0.0)), ev.Ask)
    assert ask.request.body["temperature"] == 0.8
    call = only(exchange.handle(answered()), ev.Commit).call
    assert call.requested_sampling == {"temperature": 0.0}
    assert call.submitted_sampling["temperature"] == 0.8
    assert call.greedy is False


def test_an_empty_tool_manifest_is_not_sent() -> None:
    exchange = make_exchange()
    body = only(exchange.handle(received(tools=[], tool_choice="auto")), ev.Ask).request.body
    assert "tools" not in body
    assert "tool_choice" not in body


def certificate_id(now: list[str], **reply: Any) -> str | None:
    """The certificate recorded for a call, `now` being read at the start and at the end."""
    exchange = make_exchange(certificate=lambda fingerprint, model: now.pop(0))
    exchange.handle(received())
    call = only(exchange.handle(answered(completion() | reply)), ev.Commit).call
    assert isinstance(call.certificate_id, str)
    return call.certificate_id


def test_a_call_names_the_certificate_that_held_from_start_to_end() -> None:
    assert certificate_id(["one", "one"]) == "one"
    assert certificate_id(["one", "two"]) == NOT_CERTIFIED
    assert certificate_id([NOT_CERTIFIED, "two"]) == NOT_CERTIFIED
    assert certificate_id(["one", NOT_CERTIFIED]) == NOT_CERTIFIED


def test_the_replys_fingerprint_and_model_are_shown_to_the_certificate() -> None:
    seen: list[tuple[str | None, str | None]] = []

    def certificate(fingerprint: str | None, model: str | None) -> str:
        seen.append((fingerprint, model))
        return "one"

    exchange = make_exchange(certificate=certificate)
    exchange.handle(received())
    exchange.handle(answered(completion() | {"system_fingerprint": "vllm-1"}))
    assert seen == [(None, None), ("vllm-1", "m")]


def answered_with(raw: bytes) -> ev.EngineAnswered:
    """The engine's reply as these very bytes."""
    return ev.EngineAnswered(TIME, EngineReply(200, (), raw))


def nested(levels: int) -> list[Any]:
    """A list in a list in a list."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("message", "served"),
    [
        ({"content": "a\ud800"}, b"a\\ud800"),
        ({"tool_calls": [{"id": "\udfff", "function": {"name": "\ud800"}}]}, b"\\ud800"),
        ({"tool_calls": 5}, b"5"),
        ({"tool_calls": [5, None, {"function": 5}]}, b"5"),
        ({"content": {"a": [1]}}, b'{"a":[1]}'),
        ({"content": nested(300)}, b"[[[["),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_odd_message_is_recorded_and_passed_on_as_it_is(
    message: dict[str, Any], served: bytes, stream: bool
) -> None:
    exchange = make_exchange()
    exchange.handle(received(stream=stream))
    raw = json.dumps(completion(message={"role": "assistant"} | message)).encode()
    commit = only(exchange.handle(answered_with(raw)), ev.Commit)
    assert commit.call.status is CallStatus.COMMITTED
    assert commit.bodies[-1].data == raw
    sent = only(exchange.handle(ev.Stored(TIME)), ev.Send).data
    if not (stream and message.get("tool_calls") == 5):
        assert served in sent.replace(b" ", b"")


def test_a_number_no_json_writer_takes_reaches_the_harness_and_nan_becomes_null() -> None:
    exchange = make_exchange()
    exchange.handle(received())
    raw = json.dumps(completion() | {"big": 2**80, "nan": float("nan")}).encode()
    exchange.handle(answered_with(raw))
    assert b'"nan":null' in only(exchange.handle(ev.Stored(TIME)), ev.Send).data


def test_a_reply_nested_beyond_writing_is_a_502_with_its_bytes_kept() -> None:
    exchange = make_exchange()
    exchange.handle(received())
    raw = orjson.dumps(completion())[:-1] + b',"x":' + b"[" * 1010 + b"]" * 1010 + b"}"
    commit = only(exchange.handle(answered_with(raw)), ev.Commit)
    assert commit.call.failure_kind is FailureKind.UPSTREAM_MALFORMED
    assert commit.bodies[-1].data == raw
    assert reply_of(exchange.handle(ev.Stored(TIME)))[0] == 502


def test_a_request_nested_beyond_writing_is_refused_and_kept() -> None:
    exchange = make_exchange()
    commit = only(exchange.handle(received(metadata_=nested(240))), ev.Admit)
    assert commit.admission.sequence == 0
    exchange = make_exchange()
    raw = b'{"messages":[{"role":"user","content":' + b"[" * 600 + b"]" * 600 + b"}]}"
    call = only(exchange.handle(ev.Received(TIME, raw, ())), ev.Commit).call
    assert call.status is CallStatus.REFUSED
    assert reply_of(exchange.handle(ev.Stored(TIME)))[0] == 400


@pytest.mark.parametrize("calls", [5, "x", [5], [{"function": {"arguments": "[" * 900}}]])
def test_a_request_with_odd_tool_calls_is_the_engines_to_judge(calls: Any) -> None:
    exchange = make_exchange()
    messages = [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "x"}]
    assert kinds(exchange.handle(received(messages=messages))) == ["Admit", "Ask"]


def test_deep_tool_arguments_are_compared_as_text() -> None:
    function = {"name": "f", "arguments": "[" * 900 + "]" * 900}
    exchange = make_exchange()
    messages = [{"role": "assistant", "tool_calls": [{"function": function}]}]
    assert kinds(exchange.handle(received(messages=messages))) == ["Admit", "Ask"]


@pytest.mark.parametrize("retries", ["\u00b2", "9" * 5000, "-1", "9" * 20])
def test_a_retry_count_that_is_no_count_counts_as_none(retries: str) -> None:
    exchange = make_exchange()
    raw = orjson.dumps({"messages": [{"role": "user", "content": "x"}]})
    exchange.handle(ev.Received(TIME, raw, (("x-stainless-retry-count", retries),)))
    assert only(exchange.handle(answered()), ev.Commit).call.retry_count == 0


def test_a_fault_of_our_own_ends_the_call_recorded_and_answered() -> None:
    exchange = make_exchange()
    commit = only(exchange.failed_here(received(), "TypeError"), ev.Commit)
    assert commit.call.status is CallStatus.REFUSED
    assert reply_of(exchange.handle(ev.Stored(TIME)))[0] == 500
    exchange = make_exchange()
    exchange.handle(received())
    reply = answered()
    commit = only(exchange.failed_here(reply, "TypeError"), ev.Commit)
    assert commit.call.failure_kind is FailureKind.UPSTREAM_MALFORMED
    assert commit.bodies[-1].data == reply.reply.body
    assert reply_of(exchange.handle(ev.Stored(TIME)))[0] == 502


def test_sse_10_how_an_engine_broke_is_named() -> None:
    kinds = {
        EngineMalformed: FailureKind.UPSTREAM_MALFORMED,
        EngineTimeout: FailureKind.UPSTREAM_TIMEOUT,
        EngineUnavailable: FailureKind.UPSTREAM_UNREACHABLE,
    }
    for error, kind in kinds.items():
        assert ev.broke(5, error("why")) == ev.EngineBroke(5, kind, "why")

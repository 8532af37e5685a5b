"""Playbooks of external custody: what a worker is told, what the ledger is told, what is kept.

The ledger is a real one; the worker's acknowledgements are made by the real worker.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.capture import events as ev
from explorer.capture.exchange import Exchange
from explorer.capture.external import Gatekeeper, stripped
from explorer.custody.jsonl import JsonlLedger
from explorer.custody.protocols import Material
from explorer.custody.records import CaptureAdmission, StagedCallRecord, StageResult
from explorer.custody.terminal import resolve_terminal
from explorer.custody.worker import RolloutTokenCapture
from explorer.engine.protocol import EngineReply
from explorer.records import BodyKind, CallStatus, CaptureLevel, FailureKind, Streaming
from explorer.wire import completions, messages, responses
from tests.capture.playbook import (
    ROLLOUT,
    TIME,
    answered,
    completion,
    kinds,
    make_exchange,
    only,
    received,
)

MISSING = "worker_response_missing_commit_coordinates"
FINISHED = "request_finished_without_staged_coordinates"
FAILED = "worker_capture_failed"
INVALID = "invalid_worker_commit_coordinates"
UNRESOLVED = "unresolved_parent"
RID = str(ROLLOUT.rollout_id)
SECRET = 918_273


class Memory:
    """Takes everything."""

    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> StageResult:
        return StageResult(ok=True, staging_key=record.staging_key)


class Play:
    """One rollout's exchanges with its ledger."""

    def __init__(self, root: Path) -> None:
        self.ledger = JsonlLedger(root)
        self.keeper = Gatekeeper(self.ledger)
        self.worker = RolloutTokenCapture(Memory(), lambda: 3)
        self.sequence = 0
        self.tokens: dict[str, list[int]] = {}

    def open(self, **body: Any) -> tuple[Exchange, EngineBody]:
        """A call up to the engine: the exchange and what the engine is asked."""
        exchange = make_exchange(external=True, sequence=self.sequence)
        self.sequence += 1
        first = exchange.handle(received(**body))
        assert kinds(first) == ["Authorise"], first
        call_id = exchange.context.call_id
        admission = self.keeper.authorise(RID, call_id, only(first, ev.Authorise).items)
        second = exchange.handle(ev.Authorised(TIME, admission))
        assert kinds(second)[:2] == ["Admit", "Ask"]
        return exchange, EngineBody(only(second, ev.Ask).request.body, admission)

    def reply(
        self,
        asked: EngineBody,
        text: str = "hi",
        more: Sequence[int] = (SECRET,),
        **changes: Any,
    ) -> dict[str, Any]:
        """A worker's reply that begins with the authorised prefix."""
        admission = asked.admission
        parent = admission.parent_call_id if admission else None
        prefix = self.tokens[parent] if parent else []
        prompt, sampled = [*prefix, *more], [7, 8]
        reply = completion(prompt, sampled)
        reply["choices"][0]["message"]["content"] = text
        if admission is not None:
            call = self.worker.begin(admission, prefix)
            coords = self.worker.complete(call, Material(prompt, sampled, [-0.5, -0.5]))
            reply["ng_commit_coords"] = coords.to_json()
            self.tokens[admission.model_call_id] = prompt + sampled
        return reply | changes

    def end(self, exchange: Exchange, reply: Any) -> tuple[ev.Commit, list[ev.Command]]:
        """From the engine's reply to the last byte."""
        commands = exchange.handle(answered(reply))
        settle = [each for each in commands if isinstance(each, ev.Settle)]
        if settle:
            assert kinds(commands)[-1:] == ["Settle"]
            self.keeper.settle(settle[0])
            commands = exchange.handle(ev.Settled(TIME))
        commit = only(commands, ev.Commit)
        return commit, exchange.handle(ev.Stored(TIME))

    def whole(self, reply: Any = None, **body: Any) -> tuple[ev.Commit, list[ev.Command]]:
        """A whole call; `reply` makes the worker's answer another one."""
        exchange, asked = self.open(**body)
        made = self.reply(asked)
        return self.end(exchange, made if reply is None else reply(made))

    def failures(self) -> list[str]:
        return [item.reason for item in self.ledger.manifest(RID).failures]

    def rows(self) -> list[str]:
        return [row.model_call_id for row in self.ledger.manifest(RID).records]


class EngineBody(dict[str, Any]):
    """What the engine is asked, with the admission in it."""

    def __init__(self, body: Any, admission: CaptureAdmission | None) -> None:
        super().__init__(body)
        self.admission = admission


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def test_a_happy_commit_and_its_continuation(play: Play) -> None:
    exchange, asked = play.open(logprobs=True, top_logprobs=5, stream_options={"x": 1})
    assert asked["ng_capture"]["mode"] == "text"
    assert asked["ng_capture"]["model_call_id"] == exchange.context.call_id
    assert (asked["logprobs"], asked["top_logprobs"], asked["stream"]) == (True, 0, False)
    assert asked["return_tokens_as_token_ids"] is True
    assert "stream_options" not in asked
    assert "required_prefix_token_ids" not in asked
    assert (asked["top_p"], asked["temperature"]) == (1.0, 1.0)
    commit, sent = play.end(exchange, play.reply(asked))
    assert commit.call.status is CallStatus.COMMITTED
    row = play.ledger.manifest(RID).records[0]
    assert row.response_id == commit.call.response_id == orjson.loads(_body(sent))["id"]
    assert row.admitted_at == TIME / 1e6
    _, child = play.open(messages=[user("x"), said("hi"), user("y")])
    assert child["ng_capture"]["parent_call_id"] == row.model_call_id
    assert child["ng_capture"]["staging_chain"] == [row.staging_key]
    assert child["ng_capture"]["prev_len"] == row.cum_len == 3
    assert child["required_prefix_token_ids"] == []
    assert play.failures() == []


def _body(commands: list[ev.Command]) -> bytes:
    return b"".join(each.data for each in commands if isinstance(each, ev.Send))


def test_no_token_is_stored_or_served(play: Play) -> None:
    def with_more(reply: dict[str, Any]) -> dict[str, Any]:
        reply["compact_prompt_token_ids"] = [SECRET]
        reply["choices"][0]["message"] |= {
            "routed_experts": f"nrlre1:{SECRET}",
            "generation_token_ids": [SECRET],
            "generation_log_probs": [-0.5],
            "prompt_token_ids": [SECRET],
        }
        reply["choices"][0]["token_ids"] = [SECRET]
        return reply

    for change in (with_more, lambda reply: with_more(reply) | {"ng_commit_coords": None}):
        commit, sent = play.whole(change)
        call = commit.call
        assert (call.capture_level, call.status) == (CaptureLevel.TEXT, CallStatus.COMMITTED)
        assert (call.completion, call.logprobs, call.top_logprobs) == (None, None, None)
        assert "external_custody" in [note.code for note in call.notes]
        assert (call.prompt_delta, call.chain_hash, call.stored_parent_id) == (None, None, None)
        everything = b"".join(body.data for body in commit.bodies) + _body(sent)
        for hidden in (str(SECRET).encode(), b"-0.5", b"ng_commit_coords"):
            assert hidden not in everything, hidden
        kept = {body.kind: body.data for body in commit.bodies}
        assert orjson.loads(kept[BodyKind.REPLY])["choices"][0]["message"]["content"] == "hi"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"choices": []}),
        (200, {"choices": [5]}),
        (200, {"choices": [{"message": {"content": "x"}, "token_ids": [SECRET]}] * 2}),
        (500, {"error": {"message": "no"}, "prompt_token_ids": [SECRET]}),
        (200, b'{"prompt_token_ids": [918273, '),
        (500, b"<html>token_ids 918273</html>"),
        (200, b"[918273]"),
        (200, b"[" * 100_000 + b"918273"),
        (200, b'{"choices": NaN, "prompt_token_ids": [918273]}'),
    ],
)
def test_whatever_an_engine_answers_tokens_are_taken_out(
    play: Play, status: int, body: Any
) -> None:
    exchange, _ = play.open()
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    commands = exchange.handle(answered(raw, status))
    play.keeper.settle(only(commands, ev.Settle))
    commit = only(exchange.handle(ev.Settled(TIME)), ev.Commit)
    sent = _body(exchange.handle(ev.Stored(TIME)))
    assert b"918273" not in sent + b"".join(each.data for each in commit.bodies)
    assert play.rows() == []


def test_tokens_are_taken_out_also_where_our_own_code_fails(play: Play) -> None:
    exchange, asked = play.open()
    event = answered(play.reply(asked))
    commands = exchange.failed_here(event, "a bug")
    assert only(commands, ev.Settle).served is None
    commit = only(exchange.handle(ev.Settled(TIME)), ev.Commit)
    assert str(SECRET).encode() not in b"".join(each.data for each in commit.bodies)
    assert commit.call.failure_kind is FailureKind.UPSTREAM_MALFORMED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    *("prompt_token_ids", "token_ids", "logprobs", "routed_experts", "generation_token_ids"),
    *("generation_log_probs", "compact_prompt_token_ids"),
)


@given(JSON, st.sampled_from(NAMES), st.sampled_from(["top", "choice", "message"]), st.data())
def test_of_any_reply_tokens_are_taken_out(body: Any, name: str, where: str, data: Any) -> None:
    message: dict[str, Any] = {"content": body}
    choice: dict[str, Any] = {"message": message, "more": body}
    whole: dict[str, Any] = {"choices": [choice], "more": body}
    target = {"top": whole, "choice": choice, "message": message}[where]
    target[name] = {"deep": ["SENTINEL", body]}
    raw = json.dumps(whole).encode()
    cut = data.draw(st.integers(0, 40))
    for sent in (raw, raw[: len(raw) - cut], raw.replace(b"{", b"[", cut % 3)):
        assert b"SENTINEL" not in stripped(sent)[1]


@given(st.binary(max_size=200))
def test_stripping_never_fails(raw: bytes) -> None:
    assert stripped(raw)[0] is None
    assert isinstance(stripped(b'{"a":' + raw)[1], bytes)


def test_an_error_page_is_kept_for_people() -> None:
    assert stripped(b"<html>busy</html>") == (None, b"<html>busy</html>")
    nan = b'{"a": NaN, "b": 12, "token_ids": [1]}'
    assert stripped(nan) == (None, b'{"a":null,"b":12}')


def test_capture_failed(play: Play) -> None:
    def failed(reply: dict[str, Any]) -> dict[str, Any]:
        coords = reply["ng_commit_coords"]
        for name in ("digest", "extras_digest", "staging_key", "chain_hash", "cumulative_hash"):
            coords[name] = None
        coords |= {"disposition": "capture_failed", "delta_len": 0, "cum_len": 0}
        return reply

    commit, sent = play.whole(failed)
    assert commit.call.status is CallStatus.COMMITTED
    assert b"hi" in _body(sent)
    assert (play.rows(), play.failures()) == ([], [FAILED, FINISHED])


def test_case_33_missing_coordinates(play: Play) -> None:
    commit, sent = play.whole(lambda reply: reply | {"ng_commit_coords": None})
    assert commit.call.status is CallStatus.COMMITTED
    assert b"hi" in _body(sent)
    assert (play.rows(), play.failures()) == ([], [MISSING, FINISHED])


@pytest.mark.parametrize(
    "changed",
    [
        *({"model_call_id": "other"}, {"rollout_id": "other"}, {"digest_version": 1}),
        *({"unknown": 1}, {"digest": "0"}, {"prev_len": 1, "cum_len": 4}),
        {"parent_call_id": "p", "prev_len": 1, "cum_len": 4},
    ],
)
def test_case_34_coordinates_that_diverge(play: Play, changed: dict[str, Any]) -> None:
    def diverging(reply: dict[str, Any]) -> dict[str, Any]:
        return reply | {"ng_commit_coords": reply["ng_commit_coords"] | changed}

    commit, _ = play.whole(diverging)
    assert commit.call.status is CallStatus.COMMITTED
    assert (play.rows(), play.failures()) == ([], [INVALID, FINISHED])


@pytest.mark.parametrize("coordinates", ["x", [], {}, 5, False])
def test_coordinates_that_are_none(play: Play, coordinates: Any) -> None:
    play.whole(lambda reply: reply | {"ng_commit_coords": coordinates})
    assert play.failures() == [INVALID, FINISHED]


def test_a_reply_without_a_served_id(play: Play) -> None:
    exchange, asked = play.open()
    settle = only(exchange.handle(answered(play.reply(asked))), ev.Settle)
    assert settle.served is not None
    for missing in (None, ""):
        without = replace(settle, served=settle.served._replace(response_id=missing))
        assert not play.keeper.settle(without)
    assert (play.rows(), play.failures()) == ([], [INVALID, FINISHED])


def test_a_poison_after_a_commit_and_a_commit_after_a_poison(play: Play) -> None:
    exchange, asked = play.open()
    settle = only(exchange.handle(answered(play.reply(asked))), ev.Settle)
    assert play.keeper.settle(settle)
    assert play.keeper.settle(settle), "the same commit again changes nothing"
    assert not play.keeper.settle(replace(settle, coordinates=None))
    assert (len(play.rows()), play.failures()) == (1, [MISSING, FINISHED])
    exchange, asked = play.open(messages=[user("another")])
    settle = only(exchange.handle(answered(play.reply(asked))), ev.Settle)
    assert not play.keeper.settle(replace(settle, served=None))
    assert not play.keeper.settle(settle)
    assert len(play.rows()) == 1
    assert play.failures()[2:] == [FINISHED, INVALID]


def test_case_35_an_edited_history_is_served_and_poisoned(play: Play) -> None:
    play.whole()
    exchange, asked = play.open(messages=[user("x"), said("edited"), user("y")])
    assert asked.admission is None
    for name in ("ng_capture", "logprobs", "return_tokens_as_token_ids", "return_token_ids"):
        assert name not in asked
    commit, sent = play.end(exchange, play.reply(asked))
    assert commit.call.status is CallStatus.COMMITTED
    assert commit.call.capture_level is CaptureLevel.TEXT
    assert only(sent, ev.StartReply).status == 200
    assert (len(play.rows()), play.failures()) == (1, [UNRESOLVED])


def test_case_36_a_changed_tool_list(play: Play) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    play.whole(tools=[tool])
    history = [user("x"), said("hi"), user("y")]
    _, same = play.open(messages=history, tools=[tool])
    assert same["ng_capture"]["mode"] == "token_in"
    other = {"type": "function", "function": {"name": "g", "parameters": {}}}
    _, changed = play.open(messages=history, tools=[other])
    assert changed.admission is None
    assert play.failures() == [UNRESOLVED]


def test_case_37_seeded_history(play: Play) -> None:
    history = [user("x"), said("seeded"), user("y")]
    _, asked = play.open(messages=history)
    assert asked["ng_capture"]["mode"] == "text"


def test_case_39_a_call_that_the_engine_refuses(play: Play) -> None:
    exchange, _ = play.open()
    call_id = exchange.context.call_id
    body = {"error": {"message": "maximum context length is 10"}}
    _, sent = _ended(play, exchange, body, 400)
    assert only(sent, ev.StartReply).status == 400
    assert (play.rows(), play.failures()) == ([], [FINISHED])
    rows = play.ledger.manifest(RID).records
    declared = resolve_terminal(rows, None, declared_response_id="chatcmpl-" + call_id)
    assert (declared.model_call_id, declared.reason) == (None, "declared_terminal_not_captured")


def _ended(
    play: Play, exchange: Exchange, body: Any, status: int
) -> tuple[ev.Commit, list[ev.Command]]:
    commands = exchange.handle(answered(body, status))
    play.keeper.settle(only(commands, ev.Settle))
    commit = only(exchange.handle(ev.Settled(TIME)), ev.Commit)
    return commit, exchange.handle(ev.Stored(TIME))


def test_case_40_a_reply_that_cannot_be_served_after_staging(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    from explorer.errors import EngineMalformed
    from explorer.wire import chat

    def refuse(*_: Any) -> Any:
        raise EngineMalformed("it cannot be written")

    exchange, asked = play.open()
    monkeypatch.setattr(chat, "serve", refuse)
    commit, sent = _ended(play, exchange, play.reply(asked), 200)
    assert commit.call.status is CallStatus.FAILED
    assert only(sent, ev.StartReply).status == 502
    assert (play.rows(), play.failures()) == ([], [FINISHED])


def test_an_aborted_generation_is_not_committed(play: Play) -> None:
    exchange, asked = play.open()
    reply = play.reply(asked)
    reply["choices"][0]["finish_reason"] = "abort"
    commit, _ = _ended(play, exchange, reply, 200)
    assert commit.call.status is CallStatus.ABORTED
    assert (play.rows(), play.failures()) == ([], [FINISHED])


@pytest.mark.parametrize(
    "event",
    [
        ev.ClientLeft(TIME),
        ev.Stopping(TIME),
        ev.EngineBroke(TIME, FailureKind.UPSTREAM_TIMEOUT, ""),
    ],
)
def test_whatever_ends_an_admitted_call_is_told_to_the_ledger(play: Play, event: Any) -> None:
    exchange, _ = play.open()
    play.keeper.settle(only(exchange.handle(event), ev.Settle))
    assert kinds(exchange.handle(ev.Settled(TIME))) == ["Commit"]
    assert play.failures() == [FINISHED]


@pytest.mark.parametrize("n", [2, 0, "1"])
def test_more_than_one_choice_is_refused_in_every_mode(n: Any) -> None:
    exchange = make_exchange(external=True)
    commands = exchange.handle(received(n=n))
    assert kinds(commands) == ["Commit"]
    call = only(commands, ev.Commit).call
    assert call.status is CallStatus.REFUSED
    assert "`n` must be 1" in str(call.failure_detail)


@pytest.mark.parametrize("prompt", ["text", [1, 2]])
def test_plain_completions_are_refused(prompt: Any) -> None:
    made = make_exchange(external=True)
    exchange = Exchange(replace(made.context, wire=completions))
    body = orjson.dumps({"model": "m", "prompt": prompt})
    commands = exchange.handle(ev.Received(TIME, body, ()))
    assert kinds(commands) == ["Commit"]
    sent = exchange.handle(ev.Stored(TIME))
    assert only(sent, ev.StartReply).status == 400
    assert b"external_custody_unsupported" in _body(sent)


def test_upstream_streaming_is_refused_and_a_buffered_stream_is_not(play: Play) -> None:
    passing = replace(ROLLOUT, streaming=Streaming.PASSTHROUGH)
    exchange = make_exchange(external=True, rollout=passing)
    assert kinds(exchange.handle(received(stream=True))) == ["Commit"]
    exchange = make_exchange(external=True, rollout=passing, sequence=1)
    assert kinds(exchange.handle(received())) == ["Authorise"]
    exchange, asked = play.open(stream=True)
    assert asked["stream"] is False
    _, sent = play.end(exchange, play.reply(asked))
    assert b"data: [DONE]" in _body(sent)
    assert str(SECRET).encode() not in _body(sent)
    assert len(play.rows()) == 1


def test_a_harness_cannot_admit_itself(play: Play) -> None:
    mine = {"rollout_id": "victim", "model_call_id": "x", "mode": "text"}
    _, asked = play.open(ng_capture=mine, ng_commit_coords={}, required_prefix_token_ids=[1])
    assert asked["ng_capture"]["rollout_id"] == RID
    assert "required_prefix_token_ids" not in asked
    assert "ng_commit_coords" not in asked
    play.ledger.record_failure(RID, "z", UNRESOLVED)
    _, poisoned = play.open(messages=[user("q"), said("w"), user("y")], ng_capture=mine)
    assert poisoned.admission is None
    assert "ng_capture" not in poisoned


def test_a_tool_with_a_number_beyond_64_bits_poisons_and_is_served(play: Play) -> None:
    function = {"name": "f", "arguments": '{"a": 123456789012345678901234567890}'}
    calls = [{"id": "t", "type": "function", "function": function}]
    history = [
        user("x"),
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "t", "content": "1"},
    ]
    exchange, asked = play.open(messages=history)
    assert asked.admission is None
    commit, _ = play.end(exchange, play.reply(asked))
    assert commit.call.status is CallStatus.COMMITTED
    assert play.failures() == [UNRESOLVED]
    exchange, asked = play.open(messages=[user("a new one")])
    reply = play.reply(asked)
    reply["choices"][0]["message"] = {"role": "assistant", "tool_calls": calls}
    reply["choices"][0]["finish_reason"] = "tool_calls"
    commit, _ = play.end(exchange, reply)
    assert commit.call.status is CallStatus.COMMITTED
    assert play.failures() == [UNRESOLVED, INVALID, FINISHED]


def test_a_ledger_that_cannot_be_used_ends_the_call_before_the_engine_is_asked() -> None:
    exchange = make_exchange(external=True)
    exchange.handle(received())
    commands = exchange.handle(ev.Authorised(TIME, None, broken="damaged_ledger"))
    assert kinds(commands) == ["Commit"]
    sent = exchange.handle(ev.Stored(TIME))
    assert only(sent, ev.StartReply).status == 503
    assert b"damaged_ledger" in _body(sent)


def test_a_ledger_that_cannot_be_written_takes_the_reply_back(play: Play) -> None:
    exchange, asked = play.open()
    exchange.handle(answered(play.reply(asked)))
    sent = exchange.handle(ev.StoreBroke(TIME, "custody ledger: ledger_unwritable"))
    assert only(sent, ev.StartReply).status == 503
    assert b'"hi"' not in _body(sent)


@pytest.mark.parametrize("wire", [messages, responses])
def test_other_dialects_continue_each_other(play: Play, wire: Any) -> None:
    """The conversation is taken as the engine is asked, whatever dialect the harness speaks."""
    from explorer.capture.call_context import CallContext

    def ask(sequence: int, body: dict[str, Any]) -> tuple[Exchange, EngineBody]:
        made = make_exchange(external=True, sequence=sequence)
        context: CallContext = replace(made.context, wire=wire)
        exchange = Exchange(context)
        first = exchange.handle(ev.Received(TIME, orjson.dumps(body), ()))
        items = only(first, ev.Authorise).items
        admission = play.keeper.authorise(RID, context.call_id, items)
        second = exchange.handle(ev.Authorised(TIME, admission))
        return exchange, EngineBody(only(second, ev.Ask).request.body, admission)

    if wire is messages:
        first: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [user("x")]}
    else:
        first = {"model": "m", "input": [user("x")], "store": False}
    exchange, asked = ask(0, first)
    _, sent = play.end(exchange, play.reply(asked))
    served = orjson.loads(_body(sent))
    if wire is messages:
        second = first | {
            "messages": [
                user("x"),
                {"role": "assistant", "content": served["content"]},
                user("y"),
            ]
        }
    else:
        second = first | {"input": [user("x"), *served["output"], user("y")]}
    _, asked = ask(1, second)
    assert asked["ng_capture"]["mode"] == "token_in"
    assert play.ledger.manifest(RID).records[0].response_id == served["id"]


def test_an_embedded_call_asks_no_ledger() -> None:
    exchange = make_exchange()
    assert kinds(exchange.handle(received())) == ["Admit", "Ask"]
    body = completion() | {"ng_commit_coords": {"x": 1}}
    event = ev.EngineAnswered(TIME, EngineReply(200, (), orjson.dumps(body)))
    assert kinds(exchange.handle(event)) == ["Commit"]

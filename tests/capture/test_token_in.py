"""Token-in on the tiny engine: a conversation as a harness sends it that drops reasoning and
writes tool calls anew, in both modes; what falls back, and what never does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import orjson
import pytest

from explorer.capture.token_in import Book, Continued
from explorer.capture.token_in_digest import conversation, only_text
from explorer.engine.http import HttpEngine
from explorer.engine.protocol import Engine, EngineFacts, EngineReply, EngineRequest
from explorer.engine.suffix import EngineSuffix, Extend, TemplateSuffix
from explorer.engine.tiny import TinyEngine
from explorer.engine.tiny.runtime import PromptMaker
from explorer.engine.tiny.weights import SHIPPED
from explorer.errors import ConfigurationError
from explorer.external_custody import ExternalCustody
from explorer.records import (
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Dialect,
    Fallback,
    RolloutId,
    TokenIn,
)
from explorer.settings import load
from explorer.trace.audit import capture_audit
from explorer.trace.audit_reader import read_audit
from explorer.trace.provenance import provenance
from explorer.trace.sequences import Sequences
from explorer.trace.token_in import counted
from explorer.trace.verdict import Judgement, judge
from tests.live import Live, serving

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "b": {"type": "integer"},
                "op": {"type": "string", "enum": ["add", "subtract", "multiply"]},
            },
        },
    },
}
SYSTEM = "You are a careful assistant. Use the tools, then give the answer."
TASKS = ("What is 47 + 38? Use the calculator.", "What is 12 + 31? Use the calculator.")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(TinyEngine(), tmp_path_factory.mktemp("token_in") / "s.duckdb") as running:
        yield running


def said(live: Live, key: str, messages: list[Any], **more: Any) -> dict[str, Any]:
    """One call; the reply's message."""
    body: dict[str, Any] = {
        "messages": messages,
        "tools": [CALCULATOR],
        "max_tokens": 120,
        "seed": 5,
    } | more
    answer = live.chat(key, **body)
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


def written_anew(message: dict[str, Any]) -> dict[str, Any]:
    """As OpenCode and Pi send a turn back: no reasoning, arguments dumped anew."""
    made = {"role": "assistant", "content": (message.get("content") or "").strip()}
    calls = message.get("tool_calls") or []
    if calls:
        made["tool_calls"] = [
            call
            | {
                "function": call["function"]
                | {
                    "arguments": json.dumps(
                        json.loads(call["function"]["arguments"]), separators=(",", ":")
                    )
                }
            }
            for call in calls
        ]
    return made


def converse(live: Live, key: str) -> list[Any]:
    """Two tasks in one conversation, tool results in between."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for task in TASKS:
        messages.append({"role": "user", "content": task})
        for _ in range(2):
            message = said(live, key, messages)
            messages.append(written_anew(message))
            calls = message.get("tool_calls")
            if not calls:
                break
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "85"} for call in calls
            ]
    return messages


def judged(live: Live, rollout: str) -> Judgement:
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    return judge(record)


@pytest.fixture(scope="module")
def both(live: Live) -> tuple[str, str]:
    """The rollouts of one conversation, passed through and with token-in."""
    made = []
    for token_in in (False, True):
        rollout, key = live.create(run="token-in", token_in=token_in)
        converse(live, key)
        live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
        made.append(rollout)
    return made[0], made[1]


def test_the_engine_is_proved_to_take_ids(live: Live) -> None:
    certificate = live.application.certificate
    assert certificate is not None
    assert certificate.numbers["token_in"] == "kv_transfer_params"


def test_breaks_are_gone_and_no_prompt_token_trains(live: Live, both: tuple[str, str]) -> None:
    through, by_ids = (judged(live, rollout) for rollout in both)
    assert sum(node.break_ is not None for node in through.tree.nodes.values()) >= 2
    assert not any(node.break_ is not None for node in by_ids.tree.nodes.values())
    assert len({node.root_id for node in by_ids.tree.nodes.values()}) == 1
    for judgement in (through, by_ids):
        for call in judgement.tree.nodes.values():
            mask = judgement.masks[call.call_id]
            assert call.completion_len
            assert mask.length == call.prompt_len + call.completion_len
            # Whoever trains, trains on what was sampled: all of it and nothing else.
            assert mask.supervised == call.completion_len
    assert through.trainable
    assert by_ids.trainable


def test_what_was_done_is_on_record_and_in_the_audit(live: Live, both: tuple[str, str]) -> None:
    record = live.store.record(RolloutId(both[1]))
    assert record is not None
    judgement = judge(record)
    counts = counted(record.calls)
    assert counts.sent == len(record.calls) - 1
    assert counts.avoided == counts.sent
    assert counts.fallbacks == ()
    assert provenance(record, judgement)["token_in"]["avoided"] == counts.avoided
    (finding,) = [each for each in judgement.findings if each.code == "token_in"]
    assert f"{counts.sent} prompts sent as ids; {counts.avoided} breaks" in finding.message
    whole = b"".join(capture_audit(record, judgement))
    back = read_audit(orjson.loads(whole)).record
    assert [call.token_in for call in back.calls] == [call.token_in for call in record.calls]
    assert back.rollout.token_in is True
    # The pages say it, too.
    for page, words in (
        (f"/rollouts/{both[1]}/provenance", "breaks avoided"),
        (f"/rollouts/{both[1]}/requests/{record.calls[-1].call_id}", "would differ from token"),
    ):
        text = httpx.get(live.url + page, cookies=None, timeout=30).text
        assert words in text, page
    through = live.store.record(RolloutId(both[0]))
    assert through is not None
    assert provenance(through, judge(through))["token_in"] is None
    assert all(call.token_in is None for call in through.calls)


def test_a_rollout_that_left_memory_is_continued_all_the_same(live: Live) -> None:
    rollout, key = live.create(token_in=True)
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": TASKS[0]},
    ]
    first = said(live, key, messages)
    live.application.desk._live.clear()
    messages += [written_anew(first), {"role": "user", "content": "Go on."}]
    said(live, key, messages, max_tokens=8)
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    done = record.calls[-1].token_in
    assert done is not None
    assert done.sent
    assert done.same is True


def edited(messages: list[Any], place: int, **fields: Any) -> list[Any]:
    return [*messages[:place], messages[place] | fields, *messages[place + 1 :]]


def test_what_was_changed_falls_back_and_says_why(live: Live) -> None:
    rollout, key = live.create(token_in=True)
    start: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Say only: ok"},
    ]
    reply = written_anew(said(live, key, start))
    whole = [*start, reply, {"role": "user", "content": "Say only: ok"}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    wanted: list[tuple[Fallback | None, list[Any], dict[str, Any]]] = [
        (None, whole, {}),
        (Fallback.HISTORY_EDITED, edited(whole, 2, content="Something else."), {}),
        (Fallback.HISTORY_EDITED, edited(whole, 1, content="Say only: no"), {}),
        (Fallback.SYSTEM_CHANGED, edited(whole, 0, content="Be short."), {}),
        (Fallback.TOOLS_CHANGED, whole, {"tools": None}),
        (
            Fallback.RENDERING_CHANGED,
            whole,
            {"chat_template_kwargs": {"keep_reasoning": True}},
        ),
        (Fallback.PREFILL, [*start, reply], {}),
        (Fallback.OWN_IDS, whole, {"kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}}),
    ]
    for _, messages, more in wanted:
        body: dict[str, Any] = {"messages": messages, "tools": [CALCULATOR], "max_tokens": 6}
        assert live.chat(key, **(body | more)).status_code == 200
    # What cannot be written as JSON again is the request's fault.
    deep = b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[%s1%s]}'
    assert live.chat(key, raw=deep % (b'{"a":' * 900, b"}" * 900)).status_code == 400
    # What is no text is refused by this engine, and was not sent by ids.
    refused = live.chat(key, messages=edited(whole, 3, content=[image]), tools=[CALCULATOR])
    assert refused.status_code == 400
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    found = [call.token_in for call in record.calls[1:]]
    assert [each and each.fallback for each in found[:-2]] == [
        None if reason is None else reason.value for reason, _, _ in wanted
    ]
    assert found[0] is not None
    assert found[0].sent
    assert found[-1] == TokenIn(fallback="not_text")


def test_a_cut_reply_is_not_continued_by_ids(live: Live) -> None:
    rollout, key = live.create(token_in=True)
    messages: list[Any] = [{"role": "user", "content": "Write a long text."}]
    cut = written_anew(said(live, key, messages, max_tokens=3))
    said(live, key, [*messages, cut, {"role": "user", "content": "Go on."}], max_tokens=3)
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    done = record.calls[-1].token_in
    assert done is not None
    # What is left of three tokens is a thought, so the harness got no text to send back.
    assert done.fallback == Fallback.PARENT_CUT


def test_a_prompt_that_does_not_fit_by_ids_is_sent_as_messages(live: Live) -> None:
    certificate = live.application.certificate
    assert certificate is not None
    room = certificate.numbers["max_model_len"]
    rollout, key = live.create(token_in=True)
    messages: list[Any] = [{"role": "user", "content": "Say only: ok"}]
    first = said(live, key, messages)
    messages += [written_anew(first), {"role": "user", "content": "Go on."}]
    said(live, key, messages, max_tokens=3)
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    by_ids = record.calls[-1]
    assert by_ids.token_in is not None
    assert by_ids.token_in.sent
    # One token less is left than the longer prompt leaves; the shorter one has that room.
    longer = by_ids.prompt_len or 0
    limit = room - longer + 1
    answer = live.chat(
        key, messages=messages, tools=[CALCULATOR], max_tokens=limit, stop=["o", "e", "a", "i"]
    )
    assert answer.status_code == 200, answer.text
    record = live.store.record(RolloutId(rollout))
    assert record is not None
    done = record.calls[-1]
    assert done.token_in is not None
    assert done.token_in.fallback == Fallback.TOO_LONG
    assert 0 < (done.prompt_len or 0) < longer


def test_token_in_must_be_a_truth_value_and_needs_our_own_custody(live: Live) -> None:
    answer = live.api("POST", "/api/v1/rollouts", {"token_in": "yes"}, status=422)
    assert answer["error"]["details"]["path"] == "$.token_in"
    settings = load(custody="external", engine="http://127.0.0.1:9", token_in=True)
    with pytest.raises(ConfigurationError, match="leave ROLLOUT_EXPLORER_TOKEN_IN off"):
        ExternalCustody.of(settings, {})


def test_external_custody_refuses_a_rollout_with_token_in(tmp_path: Path) -> None:
    worker = HttpEngine("http://127.0.0.1:9")
    settings: dict[str, Any] = {"custody": "external", "engine": "http://127.0.0.1:9"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(load().nemo_gym_control_token_env, "t" * 40)
        with serving(worker, tmp_path / "s.duckdb", **settings) as live:
            answer = live.api("POST", "/api/v1/rollouts", {"token_in": True}, status=422)
    assert "custody" in answer["error"]["message"]


class OnlyText(TinyEngine):
    """As an engine that takes ids for plain completions alone, and names its parsers."""

    async def generate(self, request: EngineRequest) -> EngineReply:
        body = dict(request.body)
        body.pop("kv_transfer_params", None)
        return await super().generate(replace(request, body=body, raw=None))

    async def facts(self) -> EngineFacts:
        flags = ("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes")
        return replace(await super().facts(), flags=flags)


def test_by_plain_completions_with_our_own_parsing(tmp_path: Path) -> None:
    with serving(OnlyText(), tmp_path / "s.duckdb") as live:
        rollout, key = live.create(token_in=True, budgets={"total_tokens": 4000})
        messages = converse(live, key)
        live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
        record = live.store.record(RolloutId(rollout))
        assert record is not None
        judgement = judge(record)
        assert live.api("GET", f"/api/v1/rollouts/{rollout}/drift")["calls"]
    # What came back as one text is told apart: the thought is not in the answer.
    assert messages[4]["content"] == "The answer is 85."
    counts = counted(record.calls)
    assert counts.sent == counts.avoided == len(record.calls) - 1 > 1
    assert {call.token_in.how for call in record.calls[1:] if call.token_in} == {"completions"}
    assert not any(node.break_ is not None for node in judgement.tree.nodes.values())
    assert judgement.trainable
    assert not any(finding.code == "bytes_disagree" for finding in judgement.findings)


# -- pure ------------------------------------------------------------------------------


def call_of(name: str, prompt: list[int], completion: list[int], **more: Any) -> Call:
    made = Call(
        CallId(name),
        RolloutId("r"),
        0,
        Dialect.CHAT,
        CallStatus.COMMITTED,
        0,
        0,
        finish_reason="stop",
        capture_level=CaptureLevel.TOKENS,
        prompt_delta=np.array(prompt, np.int32),
        completion=np.array(completion, np.int32),
    )
    return replace(made, **more)


ASKED = [{"role": "user", "content": "a"}]
REPLY = {"role": "assistant", "content": "b"}
NEXT = {"role": "user", "content": "c"}


def look(book: Book, *messages: dict[str, Any], **more: Any) -> Continued | Fallback | None:
    return book.continued(messages, conversation({"messages": list(messages), **more}))


def test_the_book_puts_the_ids_together_from_deltas() -> None:
    book = Book()
    book.add(call_of("1", [1, 2], [3, 4]), conversation({"messages": ASKED}), REPLY)
    more = [*ASKED, REPLY, NEXT]
    second = call_of("2", [9], [5], stored_parent_id=CallId("1"), prefix_len=3)
    book.add(second, conversation({"messages": more}), {"role": "assistant", "content": "d"})
    found = look(book, *more, {"role": "assistant", "content": " d\n"}, NEXT)
    assert isinstance(found, Continued)
    assert found.prompt.tolist() == [1, 2, 3, 9]
    assert found.completion.tolist() == [5]
    assert found.history == 3


def test_of_two_calls_that_said_the_same_none_is_guessed() -> None:
    book = Book()
    for name, completion in (("1", [3, 4]), ("2", [7, 4])):
        book.add(call_of(name, [1, 2], completion), conversation({"messages": ASKED}), REPLY)
    assert look(book, *ASKED, REPLY, NEXT) is Fallback.AMBIGUOUS_PARENT
    same = Book()
    for name in ("1", "2"):
        same.add(call_of(name, [1, 2], [3, 4]), conversation({"messages": ASKED}), REPLY)
    assert isinstance(look(same, *ASKED, REPLY, NEXT), Continued)


def test_the_same_words_under_another_system_prompt_are_another_conversation() -> None:
    book = Book()
    for name, system, completion in (("1", "A", [3, 4]), ("2", "B", [7, 4])):
        asked = [{"role": "system", "content": system}, *ASKED]
        book.add(call_of(name, [1, 2], completion), conversation({"messages": asked}), REPLY)
    for system, completion in (("A", [3, 4]), ("B", [7, 4])):
        found = look(book, {"role": "system", "content": system}, *ASKED, REPLY, NEXT)
        assert isinstance(found, Continued)
        assert found.completion.tolist() == completion
    for role, system in (("system", "C"), ("developer", "A")):
        found = look(book, {"role": role, "content": system}, *ASKED, REPLY, NEXT)
        assert found is Fallback.SYSTEM_CHANGED


def test_tool_ids_of_ours_say_which_call_is_meant() -> None:
    book = Book()
    names = ("01990000-0000-7000-8000-000000000001", "01990000-0000-7000-8000-000000000002")

    def reply(name: str) -> dict[str, Any]:
        made = f"call_{name.replace('-', '')}_0"
        function = {"name": "ls", "arguments": '{"a": 1.0}'}
        call = {"id": made, "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    for place, name in enumerate(names):
        book.add(
            call_of(name, [1], [place + 2]), conversation({"messages": ASKED}), reply(name)
        )
    for place, name in enumerate(names):
        echo = reply(name)
        echo["tool_calls"][0]["function"]["arguments"] = '{"a":1}'
        found = look(book, *ASKED, echo, NEXT)
        assert isinstance(found, Continued)
        assert found.completion.tolist() == [place + 2]
        echo["tool_calls"][0]["function"]["arguments"] = '{"a":1,"b":null}'
        assert look(book, *ASKED, echo, NEXT) is Fallback.HISTORY_EDITED


@pytest.mark.parametrize(
    "changed",
    [
        {"finish_reason": "length"},
        {"stop_reason": "\n\nUser:"},
        {"finish_reason": "abort"},
    ],
)
def test_only_a_reply_that_ended_by_itself_is_continued(changed: dict[str, Any]) -> None:
    book = Book()
    call = call_of("1", [1], [2], **changed)
    book.add(call, conversation({"messages": ASKED}), REPLY)
    assert look(book, *ASKED, REPLY, NEXT) is Fallback.PARENT_CUT


def test_a_call_without_captured_tokens_is_not_continued() -> None:
    book = Book()
    for name, change in (
        ("1", dict[str, Any](capture_level=CaptureLevel.TEXT)),
        ("2", {"prompt_delta": None, "completion": None}),
    ):
        call = replace(call_of(name, [1], [2]), **change)
        asked = [{"role": "user", "content": name}]
        book.add(call, conversation({"messages": asked}), REPLY)
        assert look(book, *asked, REPLY, NEXT) is Fallback.PARENT_NOT_CAPTURED
    orphan = call_of("3", [1], [2], stored_parent_id=CallId("lost"), prefix_len=4)
    book.add(orphan, conversation({"messages": ASKED}), REPLY)
    assert look(book, *ASKED, REPLY, NEXT) is Fallback.PARENT_NOT_CAPTURED


def test_a_result_must_stay_with_its_call() -> None:
    def said_with(ids: tuple[str, str], answers: tuple[str, str]) -> bytes:
        calls = [
            {"id": name, "type": "function", "function": {"name": "ls", "arguments": "{}"}}
            for name in ids
        ]
        messages = [
            *ASKED,
            {"role": "assistant", "content": "", "tool_calls": calls},
            *({"role": "tool", "tool_call_id": name, "content": "x"} for name in answers),
        ]
        return conversation({"messages": messages}).keys[-1]

    assert said_with(("p", "q"), ("p", "q")) == said_with(("1", "2"), ("1", "2"))
    assert said_with(("p", "q"), ("p", "q")) != said_with(("p", "q"), ("q", "p"))


def test_what_is_no_call_of_a_function_counts_too() -> None:
    def key(*calls: Any) -> bytes:
        message = REPLY | {"tool_calls": list(calls)}
        return conversation({"messages": [*ASKED, message]}).keys[-1]

    custom = {"type": "custom", "id": "z", "custom": {"name": "sh", "input": "ls"}}
    other = custom | {"custom": {"name": "sh", "input": "rm"}}
    odd = {"id": "x", "type": "function", "function": None}
    assert len({key(), key(custom), key(other), key(odd), key("x")}) == 5


def test_what_is_text() -> None:
    parts = [{"type": "text", "text": "a"}, "b"]
    assert only_text([{"role": "user", "content": parts}, {"role": "assistant"}])
    assert not only_text([{"role": "user", "content": [{"type": "image_url"}]}])
    assert not only_text(["a"])


@pytest.fixture(scope="module")
def prompts() -> PromptMaker:
    return PromptMaker(SHIPPED)


class Template:
    """The tiny tokenizer with a template of one's own."""

    def __init__(self, prompts: PromptMaker, make: Any) -> None:
        self.tokenizer = prompts.tokenizer
        self._make = make

    def text(self, body: Any) -> str:
        made: str = self._make(body["messages"], body["add_generation_prompt"])
        return made

    def encode(self, text: str, body: Any) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text))

    def ids(self, body: Any) -> tuple[int, ...]:
        return self.encode(self.text({"add_generation_prompt": True, **body}), body)


def turn(message: Any, end: str = "<|im_end|>\n") -> str:
    return f"<|im_start|>{message['role']}\n{message['content']}{end}"


def plain(messages: list[Any], generation: bool) -> str:
    return "".join(map(turn, messages)) + "<|im_start|>assistant\n" * generation


def tools_move(messages: list[Any], generation: bool) -> str:
    """As Mistral's: the tools stand before the last message of the user."""
    last = max(place for place, each in enumerate(messages) if each["role"] == "user")
    said = [("[TOOLS]" * (place == last)) + turn(each) for place, each in enumerate(messages)]
    return "".join(said) + "<|im_start|>assistant\n" * generation


def empty_thought(messages: list[Any], generation: bool) -> str:
    """As Qwen3's: the last turn of the assistant gets an empty block of reasoning."""
    made = ""
    for place, each in enumerate(messages):
        last = place == len(messages) - 1 and each["role"] == "assistant"
        made += turn(each | {"content": "<think>\n\n</think>\n\n" * last + each["content"]})
    return made + "<|im_start|>assistant\n" * generation


def without_end(messages: list[Any], generation: bool) -> str:
    return (
        "".join(turn(each, "\n") for each in messages) + "<|im_start|>assistant\n" * generation
    )


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (plain, None),
        (empty_thought, None),
        (tools_move, Fallback.TEMPLATE_NOT_EXTENDABLE),
        (without_end, Fallback.PARENT_CUT),
        (lambda messages, generation: "no messages", Fallback.TEMPLATE_NOT_EXTENDABLE),
    ],
)
def test_what_templates_can_be_extended(
    prompts: PromptMaker, make: Any, reason: Fallback | None
) -> None:
    end = prompts.tokenizer.id_of("<|im_end|>")
    assert end is not None
    template = Template(prompts, make)
    found = TemplateSuffix(template).extend(Extend({"messages": [*ASKED, REPLY, NEXT]}, 1, end))
    assert found.reason is reason
    if reason is None:
        assert found.suffix is not None
        text = b"".join(map(prompts.tokenizer.raw, found.suffix)).decode()
        assert text == "\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
        assert found.rendered == template.ids({"messages": [*ASKED, REPLY, NEXT]})


def test_a_template_that_is_not_the_engines_is_not_used(prompts: PromptMaker) -> None:
    end = prompts.tokenizer.id_of("<|im_end|>") or 0
    body = {"messages": [*ASKED, REPLY, NEXT]}
    first = prompts.ids({"messages": ASKED})
    suffix = TemplateSuffix(prompts)
    assert suffix.extend(Extend(body, 1, end, first)).suffix is not None
    assert suffix.extend(Extend(body, 1, end, first[:-1])).reason is Fallback.TEMPLATE_DIFFERS


def test_the_shipped_template_leaves_earlier_turns_as_they_are(prompts: PromptMaker) -> None:
    assert TemplateSuffix(prompts).preserving()
    assert not TemplateSuffix(Template(prompts, empty_thought)).preserving()


def test_the_engines_own_tokenizer_gives_the_same_suffix(prompts: PromptMaker) -> None:
    end = prompts.tokenizer.id_of("<|im_end|>") or 0
    call = {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    for reply, new in (
        ({"role": "assistant", "content": "b", "reasoning": "hm"}, NEXT),
        (
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "85"},
        ),
    ):
        wanted = Extend({"messages": [*ASKED, reply, new]}, 1, end)
        here = TemplateSuffix(prompts).extend(wanted)
        there = asyncio.run(EngineSuffix(TinyEngine()).extend(wanted))
        assert here.suffix == there.suffix
        assert here.rendered == there.rendered


def test_sequences_of_a_record_agree_with_what_was_sent(
    live: Live, both: tuple[str, str], tmp_path: Path
) -> None:
    record = live.store.record(RolloutId(both[1]))
    assert record is not None
    whole = Sequences(record.calls)
    for call in record.calls[1:]:
        (sent,) = [
            orjson.loads(body.data)
            for body in live.store.bodies(call.call_id)
            if body.kind.value == "submitted"
        ]
        ids = sent["kv_transfer_params"]["prompt_token_ids"]
        assert whole.prompt(call.call_id).tolist() == ids
        assert sent["messages"], "what the harness said stays beside what was sent"


@pytest.mark.parametrize("word", ["\n", "</tool_call>", "<|endoftext|>"])
def test_what_only_stands_in_a_text_ends_no_turn(prompts: PromptMaker, word: str) -> None:
    (end,) = prompts.tokenizer.encode(word)
    later = {"role": "user", "content": f"one {word} two"}
    body = {"messages": [{"role": "user", "content": f"a {word} b"}, REPLY, later]}
    found = TemplateSuffix(prompts).extend(Extend(body, 1, end))
    assert found.reason is Fallback.PARENT_CUT

    class Tokenizes:
        async def tokenize(self, asked: Any) -> tuple[int, ...]:
            return prompts.ids(asked)

    by_engine = EngineSuffix(cast("Engine", Tokenizes()))
    other = asyncio.run(by_engine.extend(Extend(body, 1, end, asked_end=word == "\n")))
    assert other.suffix is None


def test_an_id_that_the_request_named_is_told_apart() -> None:
    for stop_reason, asked in (("201", True), (None, False)):
        book = Book()
        sampling = {"stop_token_ids": [201]}
        call = call_of("1", [1], [201], submitted_sampling=sampling, stop_reason=stop_reason)
        book.add(call, conversation({"messages": ASKED}), REPLY)
        found = look(book, *ASKED, REPLY, NEXT)
        assert isinstance(found, Continued)
        assert found.turn.asked_end is asked

"""A row that no longer says what the engine's own bytes say never trains."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import orjson
import pytest

from explorer.engine.reply import parse_reply
from explorer.errors import RecordInconsistent, StoreDamaged
from explorer.export.evidence import contradictions
from explorer.export.judged import JudgedRollouts
from explorer.records import (
    Body,
    BodyKind,
    Call,
    EventKind,
    RolloutEvent,
    RolloutId,
    RolloutRecord,
)
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from explorer.trace.audit import capture_audit
from explorer.trace.policy import DEFAULT_POLICY
from tests.trace.build import ROLLOUT, record, two_turns


def reply(call: Call, prompt: list[int], **changes: Any) -> bytes:
    """The bytes that an engine sends for a call."""
    assert call.completion is not None
    assert call.logprobs is not None
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "hi"},
        "finish_reason": "stop",
        "token_ids": call.completion.tolist(),
        "logprobs": {
            "content": [
                {"token": f"token_id:{each}", "logprob": float(value)}
                for each, value in zip(call.completion, call.logprobs, strict=True)
            ]
        },
    } | changes
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(call.completion)}
    return orjson.dumps({"choices": [choice], "prompt_token_ids": prompt, "usage": usage})


def stream(call: Call, prompt: list[int]) -> bytes:
    """The same as a stream that was passed on."""
    whole = orjson.loads(reply(call, prompt))
    choice = whole["choices"][0]
    choice["delta"] = choice.pop("message")
    chunk = b"data: " + orjson.dumps(whole) + b"\n\n"
    return chunk + b"data: [DONE]\n\n"


FIRST, SECOND = two_turns()
PROMPTS = {"a": [1, 2], "b": [1, 2, 3, 4, 5]}


def found(raw: bytes | str) -> str | None:
    made = record(FIRST, SECOND)
    return contradictions(made, [(SECOND.call_id, raw)]).get(SECOND.call_id)


def test_what_the_engine_sent_agrees() -> None:
    assert SECOND.completion is not None
    assert found(reply(SECOND, PROMPTS["b"])) is None
    assert found(stream(SECOND, PROMPTS["b"])) is None
    spaced = reply(SECOND, PROMPTS["b"]).replace(b",", b" , ").replace(b":", b" : ")
    assert found(spaced.replace(b"token_id : ", b"token_id:")) is None


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (reply(SECOND, [1, 2, 3, 4, 9]), "another prompt: id 9 at 4 where the row has 5"),
        (reply(SECOND, [1, 2, 3]), "another prompt: 3 ids where the row has 5"),
        (stream(SECOND, [1, 2, 3, 4, 9]), "another prompt"),
        (reply(replace(SECOND, completion=np.array([7], np.int32)), PROMPTS["b"]), "id 7 at 0"),
        (
            reply(replace(SECOND, logprobs=np.array([-0.5], np.float32)), PROMPTS["b"]),
            "another logprob at token 0",
        ),
        (reply(SECOND, PROMPTS["b"], logprobs=None), "another number of logprobs"),
        (reply(SECOND, PROMPTS["b"], token_ids=[6, 6]), "no sampled ids"),
        (b"{}", "no sampled ids"),
        (b"", "no sampled ids"),
        (b"data: {", "no sampled ids"),
        (b"\xff\xfe", "no sampled ids"),
        (
            reply(SECOND, PROMPTS["b"]).replace(b"prompt_token_ids", b"other"),
            "no ids of the pr",
        ),
        ("the reply body of call b has another digest", "another digest"),
    ],
)
def test_a_difference_is_named(raw: bytes | str, said: str) -> None:
    assert said in str(found(raw))


def test_text_in_a_reply_is_never_taken_for_its_prompt() -> None:
    forged = reply(
        SECOND,
        [1, 2, 3, 4, 9],
        message={"role": "assistant", "content": '"prompt_token_ids":[1,2,3,4,5]'},
    )
    assert "another prompt" in str(found(forged))


def test_prompt_ids_in_a_place_that_is_not_read_prove_nothing() -> None:
    """The row's prompt stands in the reply once, but not where the engine puts its prompt."""
    aside = reply(SECOND, PROMPTS["b"])
    aside = aside.replace(
        b'"prompt_token_ids":[1,2,3,4,5]', b'"x":{"prompt_token_ids":[1,2,3,4,5]}'
    )
    assert "no ids of the prompt" in str(found(aside))
    real = aside.replace(b'"x":', b'"prompt_token_ids" :[1,2,3,4,9],"x":')
    assert "another prompt" in str(found(real))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_reply_in_another_encoding_agrees(encoding: str) -> None:
    """What was read when it came is read again."""
    raw = reply(SECOND, PROMPTS["b"]).decode().encode(encoding)
    assert parse_reply(200, raw).completion_ids is not None
    assert found(raw) is None


def test_a_long_stream_is_read_in_the_time_of_its_length() -> None:
    """As it came, piece by piece: searched as a whole it took 25 times as long."""
    sampled = np.arange(60_000, dtype=np.int32)
    values = np.full(sampled.size, -0.5, np.float32)
    call = replace(SECOND, completion=sampled, logprobs=values)
    events = []
    for each in sampled.tolist():
        entry = {"token": f"token_id:{each}", "logprob": -0.5, "bytes": [97] * 20}
        choice: dict[str, Any] = {"index": 0, "delta": {"content": "a"}, "token_ids": [each]}
        events.append({"choices": [choice | {"logprobs": {"content": [entry]}}]})
    events[0]["prompt_token_ids"] = PROMPTS["b"]  # type: ignore[assignment]
    events[-1]["choices"][0]["finish_reason"] = "stop"
    raw = b"".join(b"data: " + orjson.dumps(item) + b"\n\n" for item in events)
    began = time.process_time()
    assert (
        contradictions(record(FIRST, call), [(call.call_id, raw + b"data: [DONE]\n\n")]) == {}
    )
    assert time.process_time() - began < 8


def damaged(path: Path, change: str) -> Any:
    """The judged rollout after a change of the stored file."""

    async def write() -> None:
        store = DuckDBStore(path, StoreOptions(min_free_bytes=0))
        made = record(FIRST, SECOND)
        await store.add_certificate(made.certificate)  # type: ignore[arg-type]
        await store.add_rollout(replace(made.rollout, certificate_id="cert-1"))
        for call in made.calls:
            raw = reply(call, PROMPTS[str(call.call_id)])
            await store.commit_call(call, [Body(call.call_id, ROLLOUT, BodyKind.REPLY, raw)])
        await store.add_event(RolloutEvent(ROLLOUT, -1, 1, EventKind.CLOSED, 1.0, True))
        await store.close()

    async def read() -> Any:
        store = DuckDBStore(path, StoreOptions(min_free_bytes=0))
        judged = await JudgedRollouts(store, lambda: DEFAULT_POLICY, lambda: 1).get(ROLLOUT)
        await store.close()
        return judged

    asyncio.run(write())
    if change:
        with duckdb.connect(str(path)) as connection:
            connection.execute(change)
    return asyncio.run(read())


def test_a_damaged_logprob_refuses_the_rollout(tmp_path: Path) -> None:
    assert damaged(tmp_path / "whole.duckdb", "").judgement.trainable
    value = np.array([-0.5], "<f4").tobytes().hex()
    judged = damaged(
        tmp_path / "changed.duckdb",
        f"UPDATE call SET logprobs = from_hex('{value}') WHERE call_id = 'b'",
    )
    assert [reason.code for reason in judged.judgement.reasons] == ["bytes_disagree"]
    assert judged.judgement.masks["b"].reason == "capture_level"
    assert judged.judgement.masks["a"].supervised == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("prefix_len = NULL", "store_damaged"),
        ("ended_time = NULL", "store_damaged"),
        ("body_index = 'x'", "store_damaged"),
        ("body_index = '{\"a\": 1}'", "store_damaged"),
    ],
)
def test_what_no_encoder_writes_is_a_damaged_store(
    tmp_path: Path, change: str, code: str
) -> None:
    with pytest.raises(StoreDamaged) as error:
        damaged(tmp_path / "x.duckdb", f"UPDATE call SET {change} WHERE call_id = 'b'")
    assert error.value.code == code


def test_damaged_alternatives_are_named(tmp_path: Path) -> None:
    judged = damaged(
        tmp_path / "x.duckdb",
        "UPDATE call SET top_logprobs = from_hex('00') WHERE call_id = 'b'",
    )
    with pytest.raises(RecordInconsistent, match="call b: its alternatives"):
        list(capture_audit(judged.record, judged.judgement))


def test_a_body_chain_that_leads_back_to_itself_ends(tmp_path: Path) -> None:
    loop = '[{"kind":"reply","base_call":"b","base_kind":"reply","codec":"zstd","headers":[]}]'
    judged = damaged(
        tmp_path / "x.duckdb", f"UPDATE call SET body_index = '{loop}' WHERE call_id = 'b'"
    )
    assert [reason.code for reason in judged.judgement.reasons] == ["bytes_disagree"]

    async def read() -> None:
        store = DuckDBStore(tmp_path / "x.duckdb", StoreOptions(min_free_bytes=0))
        with pytest.raises(StoreDamaged, match="does not end"):
            store.bodies(SECOND.call_id)
        await store.close()

    asyncio.run(read())


def test_how_a_call_ended_is_evidence_too(tmp_path: Path) -> None:
    """An aborted call never trains, nor one whose row says otherwise than its bytes."""
    aborted = reply(SECOND, PROMPTS["b"], finish_reason="abort")
    assert "end for the reason 'abort'" in str(found(aborted))
    crossed = reply(SECOND, PROMPTS["b"], weight_versions=[{"version": 1}, {"version": 2}])
    assert "other weight versions" in str(found(crossed))
    judged = damaged(
        tmp_path / "x.duckdb", "UPDATE call SET finish_reason = 'length' WHERE call_id = 'b'"
    )
    assert [reason.code for reason in judged.judgement.reasons] == ["bytes_disagree"]


def test_a_damaged_reply_is_named_too(tmp_path: Path) -> None:
    judged = damaged(
        tmp_path / "reply.duckdb",
        "UPDATE call SET reply_body = from_hex('00') WHERE call_id = 'b'",
    )
    assert [reason.code for reason in judged.judgement.reasons] == ["bytes_disagree"]


class SlowStore(DuckDBStore):
    """Hands a record out late."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, StoreOptions(min_free_bytes=0))
        self.has_read, self.may_go_on = threading.Event(), threading.Event()

    def record(self, rollout_id: RolloutId) -> RolloutRecord | None:
        found = super().record(rollout_id)
        self.has_read.set()
        assert self.may_go_on.wait(30)
        return found


def test_a_decision_holds_for_whoever_asks_after_it(tmp_path: Path) -> None:
    """Also where a judgement of the record before it is still under way."""
    damaged(tmp_path / "x.duckdb", "")

    async def work() -> Any:
        store = SlowStore(tmp_path / "x.duckdb")
        judged = JudgedRollouts(store, lambda: DEFAULT_POLICY, lambda: 1)
        before = asyncio.create_task(judged.get(ROLLOUT))
        await asyncio.to_thread(store.has_read.wait, 30)
        left_out = {
            "kind": "exclude_call",
            "call_id": "b",
            "reason": "r",
            "who": "w",
            "time_us": 2,
        }
        await store.add_event(
            RolloutEvent(ROLLOUT, -1, 2, EventKind.OVERRIDE, payload=left_out)
        )
        after = asyncio.create_task(judged.get(ROLLOUT))
        await asyncio.sleep(0)
        store.may_go_on.set()
        found = await before, await after
        await store.close()
        return found

    before, after = asyncio.run(work())
    assert before.judgement.masks["b"].supervised == 1
    assert after.judgement.masks["b"].reason == "excluded_by_user"

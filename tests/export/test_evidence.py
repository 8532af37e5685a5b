"""A row that no longer says what the engine's own bytes say never trains."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import orjson
import pytest

from explorer.export.evidence import contradictions
from explorer.export.judged import JudgedRollouts
from explorer.records import Body, BodyKind, Call, EventKind, RolloutEvent
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
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


def test_a_damaged_reply_is_named_too(tmp_path: Path) -> None:
    judged = damaged(
        tmp_path / "reply.duckdb",
        "UPDATE call SET reply_body = from_hex('00') WHERE call_id = 'b'",
    )
    assert [reason.code for reason in judged.judgement.reasons] == ["bytes_disagree"]

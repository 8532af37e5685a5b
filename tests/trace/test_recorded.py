"""Bodies recorded from a real vLLM, from the reply parser to the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from explorer.engine.reply import parse_reply
from explorer.records import Call, CallId, CallStatus, Dialect
from explorer.trace.assemble import training_trace
from explorer.trace.verdict import judge
from tests.trace.build import ROLLOUT, record

BODIES = sorted(
    (Path(__file__).parents[1] / "data" / "vllm").glob("chat_unary_*/response.json")
)


def call_of(path: Path) -> Call:
    parsed = parse_reply(200, path.read_bytes())
    prompt = parsed.prompt_ids
    return Call(
        CallId("a"),
        ROLLOUT,
        1,
        Dialect.CHAT,
        CallStatus.COMMITTED,
        0,
        0,
        finish_reason=parsed.finish_reason,
        capture_level=parsed.level,
        prompt_len=None if prompt is None else int(prompt.size),
        prompt_delta=prompt,
        completion=parsed.completion_ids,
        logprobs=parsed.logprobs,
        usage_prompt=parsed.usage["prompt"],
        usage_completion=parsed.usage["completion"],
        notes=parsed.notes,
    )


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.parent.name)
def test_a_recorded_body(path: Path) -> None:
    body = json.loads(path.read_bytes())
    choice = body["choices"][0]
    made = record(call_of(path))
    judgement = judge(made)
    entries = (choice.get("logprobs") or {}).get("content") or []
    complete = body.get("prompt_token_ids") and choice.get("token_ids") and entries
    assert judgement.trainable == bool(complete), judgement.reasons
    if not judgement.trainable:
        assert judgement.supervised_tokens == 0
        return
    (turn,) = json.loads(b"".join(training_trace(made, judgement)))["turns"]
    assert turn["prompt_token_ids"] == body["prompt_token_ids"]
    assert turn["completion_token_ids"] == choice["token_ids"]
    told = [entry["logprob"] for entry in entries]
    assert turn["per_token_logps"] == pytest.approx([min(value, 0.0) for value in told])
    assert sum(turn["loss_mask"]) == len(choice["token_ids"])


def test_there_are_bodies() -> None:
    assert len(BODIES) > 5

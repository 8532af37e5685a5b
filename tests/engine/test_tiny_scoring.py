"""Scoring a prompt's own tokens gives the numbers that a real vLLM recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from explorer.engine.tiny.runtime import TinyOptions, TinyRuntime, load_parts

DATA = Path(__file__).parent.parent / "data"
MODEL = DATA / "tiny_model"


def ask(runtime: TinyRuntime, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    answer = runtime.submit("a", "a", body)
    while answer is None:
        answer = next(iter(runtime.step()), None)
    return answer.status, json.loads(answer.body)


@pytest.mark.parametrize("case", ["score_only", "unary_echo"])
@pytest.mark.parametrize("chunk_tokens", [4, 256])
def test_scores_are_those_of_a_recorded_vllm(case: str, chunk_tokens: int) -> None:
    folder = DATA / "vllm_completions" / case
    recorded = json.loads((folder / "response.json").read_text())["choices"][0]
    wanted = recorded["prompt_logprobs"]
    runtime = TinyRuntime(TinyOptions(folder=MODEL, chunk_tokens=chunk_tokens))
    # Another temperature and an earlier read of the prompt change nothing of it.
    body = {"prompt": recorded["prompt_token_ids"], "max_tokens": 1, "temperature": 2.0}
    ask(runtime, body)
    count = max(len(each) - 1 for each in wanted[1:])
    status, reply = ask(runtime, body | {"prompt_logprobs": count})
    assert status == 200
    found = reply["choices"][0]["prompt_logprobs"]
    assert found[0] is wanted[0] is None
    assert len(found) == len(wanted)
    for mine, theirs in zip(found[1:], wanted[1:], strict=True):
        assert set(mine) == set(theirs)
        for token_id, told in theirs.items():
            assert mine[token_id]["logprob"] == pytest.approx(told["logprob"], abs=2e-5)
            assert mine[token_id]["rank"] == told["rank"]
            assert mine[token_id]["decoded_token"] == told["decoded_token"]


def test_others_go_on_while_a_prompt_is_scored_and_sampling_agrees_with_it() -> None:
    runtime = TinyRuntime(TinyOptions(folder=MODEL, chunk_tokens=4))
    asked = {"messages": [{"role": "user", "content": "Hi"}], "seed": 3, "max_tokens": 12}
    asked |= {"logprobs": True, "return_token_ids": True}
    _, reply = ask(runtime, asked)
    choice = reply["choices"][0]
    sampled = [each["logprob"] for each in choice["logprobs"]["content"]]
    row = [*reply["prompt_token_ids"], *choice["token_ids"]]
    runtime.submit("score", "s", {"prompt": row, "max_tokens": 1, "prompt_logprobs": 0})
    runtime.submit("other", "o", asked)
    answers: dict[str, Any] = {}
    while len(answers) < 2:
        answers |= {answer.name: json.loads(answer.body) for answer in runtime.step()}
    scores = answers["score"]["choices"][0]["prompt_logprobs"][-len(sampled) :]
    again = [
        each[str(token)]["logprob"]
        for each, token in zip(scores, choice["token_ids"], strict=True)
    ]
    assert again == pytest.approx(sampled, abs=1e-5)
    assert answers["other"]["choices"][0]["token_ids"] == choice["token_ids"]


def test_a_network_that_cannot_score_says_so() -> None:
    class Plain:
        def new_cache(self) -> Any: ...

        def forward(self, chunks: Any) -> Any: ...

    options = TinyOptions(folder=MODEL)
    runtime = TinyRuntime(options, replace(load_parts(options), network=Plain()))
    body = {"prompt": [1, 2], "max_tokens": 1, "prompt_logprobs": 0}
    status, reply = ask(runtime, body)
    assert status == 400
    assert "does not support prompt_logprobs" in reply["error"]["message"]

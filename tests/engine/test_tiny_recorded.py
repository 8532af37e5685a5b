"""The decoder and the processors give the numbers that a real vLLM recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.engine.tiny.model import Chunk, Decoder
from explorer.engine.tiny.runtime import TinyOptions, TinyRuntime
from explorer.engine.tiny.sampling import LogprobsMode, Sampler
from explorer.engine.tiny.text import TextTrail
from explorer.engine.tiny.tokenizer import ByteTokenizer
from explorer.engine.tiny.weights import ModelWeights

DATA = Path(__file__).parent.parent / "data"
MODEL = DATA / "tiny_model"
TOLERANCE = 2e-5
SCORED = (
    "chat_unary_ids_logprobs",
    "chat_unary_ids_top3",
    "chat_unary_temp0",
    "chat_unary_topp",
    "chat_unary_topk2",
    "chat_unary_stop_string",
    "chat_unary_length",
    "chat_unary_tool_auto",
    "chat_unary_tool_none",
    "chat_unary_tool_result",
    "chat_unary_tool_truncated",
    "chat_unary_continue_final",
    "chat_unary_tokens_as_ids",
    "chat_unary_prompt_text",
    "chat_unary_logit_bias",
    "pause_keep_version_change_chat_unary",
    "raw_chat_unary_ids_logprobs",
    "raw_chat_unary_temp2",
    "raw_chat_unary_topk2",
    "raw_chat_unary_logit_bias",
    "nodev_chat_unary_model_absent",
)
WRITTEN = (
    "chat_unary_ids_logprobs",
    "chat_unary_ids_top3",
    "chat_unary_temp0",
    "chat_unary_length",
    "chat_unary_stop_string",
    "chat_unary_stop_string_included",
    "chat_unary_tool_auto",
    "chat_unary_tool_none",
    "chat_unary_tool_result",
    "chat_unary_tool_truncated",
    "chat_unary_continue_final",
    "chat_unary_include_reasoning_false",
    "chat_unary_tokens_as_ids",
    "chat_unary_prompt_text",
    "raw_chat_unary_temp2",
)


def load(case: str, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / "vllm" / case / name).read_text("utf-8"))
    return content


def mode_of(case: str) -> LogprobsMode:
    raw = case.startswith(("raw_", "nodev_"))
    return LogprobsMode.RAW if raw else LogprobsMode.PROCESSED


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(ModelWeights.read(MODEL))


@pytest.fixture(scope="module")
def runtimes() -> dict[LogprobsMode, TinyRuntime]:
    return {
        mode: TinyRuntime(TinyOptions(folder=MODEL, logprobs_mode=mode))
        for mode in LogprobsMode
    }


def sampler_for(runtime: TinyRuntime, body: dict[str, Any], prompt: list[int]) -> Sampler:
    """The sampler that the runtime itself would give to this body."""
    runtime.submit("probe", "probe", body)
    scheduler = runtime.scheduler
    row = scheduler._admit(scheduler._waiting.popleft())
    runtime.cancel("probe")
    assert list(row.job.prompt) == prompt
    return row.sampler


@pytest.mark.parametrize("case", SCORED)
def test_recorded_logprobs_are_reproduced(
    case: str, decoder: Decoder, runtimes: dict[LogprobsMode, TinyRuntime]
) -> None:
    body, reply = load(case, "request.json"), load(case, "response.json")
    prompt, choice = reply["prompt_token_ids"], reply["choices"][0]
    output, entries = choice["token_ids"], choice["logprobs"]["content"]
    sampler = sampler_for(runtimes[mode_of(case)], body, prompt)
    scores = decoder.score(Chunk([*prompt, *output[:-1]], decoder.new_cache()))
    for index, (token_id, entry) in enumerate(zip(output, entries, strict=True)):
        row = scores[len(prompt) - 1 + index]
        processed = sampler.logprobs(row, output[:index])
        found = sampler.report(row, processed, token_id)
        assert found.logprob == pytest.approx(entry["logprob"], abs=TOLERANCE)
        finite = [top["logprob"] for top in entry["top_logprobs"] if top["logprob"] > -9999]
        ours = [logprob for _, logprob in found.candidates if logprob > -9999]
        assert ours == pytest.approx(finite, abs=TOLERANCE)
        assert len(found.candidates) == len(entry["top_logprobs"])


@pytest.mark.parametrize("case", WRITTEN)
def test_replaying_recorded_ids_writes_the_recorded_body(
    case: str, runtimes: dict[LogprobsMode, TinyRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, expected = load(case, "request.json"), load(case, "response.json")
    runtime = runtimes[mode_of(case)]
    ids = expected["choices"][0]["token_ids"]
    if ids is None:  # hidden reasoning hides the ids too; the same turn was recorded openly
        ids = load("chat_unary_tool_auto", "response.json")["choices"][0]["token_ids"]

    def choose(self: Sampler, logits: Any, output: list[int]) -> Any:
        return self.report(logits, self.logprobs(logits, output), ids[len(output)])

    monkeypatch.setattr(Sampler, "sample", choose)
    runtime.scheduler.pool.clear()
    assert runtime.submit("a", "x", body) is None
    answers = []
    while runtime.busy:
        answers += runtime.step()
    assert [answer.status for answer in answers] == [200]
    found = json.loads(answers[0].body)
    assert normal(found) == normal(expected)


def normal(reply: dict[str, Any]) -> Any:
    """A body without what differs between any two calls, logprobs rounded."""

    def tidy(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, 3)
        if isinstance(value, list):
            return [tidy(item) for item in value]
        if isinstance(value, dict):
            made_up = {"id", "created", "system_fingerprint"}
            # The details of cached tokens are only sent with one of vLLM's flags.
            return {
                key: tidy(item)
                for key, item in value.items()
                if key not in made_up | {"prompt_tokens_details"}
            }
        return value

    return tidy(reply)


def test_decode_equals_full_forward(decoder: Decoder) -> None:
    ids = load("chat_unary_tool_result", "response.json")["prompt_token_ids"]
    full = decoder.score(Chunk(ids, decoder.new_cache()))
    cache = decoder.new_cache(4)
    single = [decoder.forward([Chunk([token_id], cache)])[0] for token_id in ids]
    np.testing.assert_allclose(single, full, atol=2e-5)


def test_chunks_equal_one_piece(decoder: Decoder) -> None:
    ids = load("chat_unary_tool_result", "response.json")["prompt_token_ids"]
    full = decoder.forward([Chunk(ids, decoder.new_cache())])
    cache = decoder.new_cache()
    for start in range(0, len(ids), 16):
        part = decoder.forward([Chunk(ids[start : start + 16], cache)])
    np.testing.assert_allclose(part, full, atol=2e-5)


def test_ragged_batch_equals_single(decoder: Decoder) -> None:
    ids = load("chat_unary_tool_result", "response.json")["prompt_token_ids"]
    lengths = (1, 3, 17, 18, 40, 55, 70, 77)
    alone = [decoder.forward([Chunk(ids[:n], decoder.new_cache())])[0] for n in lengths]
    together = decoder.forward([Chunk(ids[:n], decoder.new_cache()) for n in lengths])
    np.testing.assert_allclose(together, alone, atol=2e-5)


def test_bytes_of_ids_join_to_the_rendered_text() -> None:
    reply = load("chat_unary_prompt_text", "response.json")
    tokenizer = ByteTokenizer(MODEL)
    joined = b"".join(tokenizer.raw(i) for i in reply["prompt_token_ids"])
    assert joined.decode() == reply["prompt_text"]


def test_stop_string_over_two_tokens_is_cut() -> None:
    tokenizer = ByteTokenizer(MODEL)
    ids = tokenizer.encode("Hello! How can I help?")
    trail = TextTrail(tokenizer, ["w ca"])
    matches = [trail(token_id) for token_id in ids]
    assert "w ca" in matches
    first = matches.index("w ca")
    assert tokenizer.encode("Hello! How can")[first] == ids[first]
    trail = TextTrail(tokenizer, ["w ca"])
    for token_id in ids[: first + 1]:
        trail(token_id)
    assert trail.text == "Hello! Ho"

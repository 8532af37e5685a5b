"""The local engine: what it says without torch, and with torch the recorded numbers.

Tests that need torch run in `make test-consumers`; elsewhere the skip says so.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.engine.factory import make_engine
from explorer.engine.local import LocalEngine
from explorer.engine.local.child import context_length, load
from explorer.engine.local.folder import model_folder, served_name
from explorer.engine.local.network import CachedNetwork, PlainNetwork, choose_network
from explorer.engine.local.prompts import LocalPrompts, readable
from explorer.engine.probe import certify
from explorer.engine.protocol import Engine, EngineReply, EngineRequest
from explorer.engine.tiny import TinyEngine
from explorer.engine.tiny.model import Chunk
from explorer.engine.tiny.runtime import TinyOptions, TinyRuntime
from explorer.engine.tiny.sampling import LogprobsMode, Sampler
from explorer.engine.tiny.tokenizer import ByteTokenizer
from explorer.errors import BadRequest, ConfigurationError, EngineUnavailable
from explorer.records import CaptureLevel, LogprobKind
from explorer.settings import Settings
from tests.engine.test_tiny_recorded import MODEL, SCORED, WRITTEN, mode_of, normal
from tests.engine.test_tiny_recorded import load as recorded

ROOT = Path(__file__).parents[2]
TOLERANCE = 2e-5
HI: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "temperature": 1.5,
    "seed": 7,
    "max_tokens": 40,
    "logprobs": True,
    "return_token_ids": True,
}
ENDLESS = {**HI, "max_tokens": 900, "ignore_eos": True}
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: `make test-consumers` runs these",
)


def request(body: dict[str, Any] = HI) -> EngineRequest:
    return EngineRequest(body, "r1", 120.0)


def choice(reply: EngineReply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    found: dict[str, Any] = json.loads(reply.body)["choices"][0]
    return found


def logprobs(found: dict[str, Any]) -> list[float]:
    return [entry["logprob"] for entry in found["logprobs"]["content"]]


def copied(folder: Path, **files: str | None) -> Path:
    """The fixture model with files replaced, or left out when None."""
    for path in MODEL.iterdir():
        shutil.copyfile(path, folder / path.name)
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.unlink()
        if text is not None:
            path.write_text(text)
    return folder


# What is said without torch.


def test_it_is_an_engine_of_the_documented_spelling() -> None:
    engine: Engine = make_engine(Settings.model_validate({"engine": f"local:{MODEL}"}))
    assert isinstance(engine, LocalEngine)
    assert engine.kind == "local"


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else found(name)
    )
    with pytest.raises(ConfigurationError, match=r"pip install 'rollout-explorer\[local\]'"):
        asyncio.run(LocalEngine(str(MODEL)).start())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (str(MODEL.parent), r"config\.json is missing"),
        ("./no/such/folder", "there is no folder"),
        ("nobody-has-this/model", "hf download nobody-has-this/model"),
    ],
)
def test_what_is_no_model_is_told(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        asyncio.run(LocalEngine(name).start())


def test_a_hub_model_is_found_in_the_local_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    model = tmp_path / "models--somebody--small"
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0" * 40)
    copied(snapshot)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert model_folder("somebody/small") == snapshot.resolve()
    assert served_name("somebody/small") == "somebody/small"
    assert served_name(str(MODEL)) == "tiny_model"


def test_a_model_without_chat_template_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no chat template"):
        LocalPrompts(copied(tmp_path, chat_template__jinja=None))


@pytest.mark.parametrize("case", WRITTEN)
def test_prompts_are_the_recorded_ones(case: str) -> None:
    body, reply = recorded(case, "request.json"), recorded(case, "response.json")
    assert list(LocalPrompts(MODEL).ids(body)) == reply["prompt_token_ids"]


def test_ids_are_spelt_as_the_tiny_engine_spells_them() -> None:
    ours, theirs = LocalPrompts(MODEL).tokenizer, ByteTokenizer(MODEL)
    assert [(p.token_id, p.raw) for p in ours.pieces] == [
        (p.token_id, p.raw) for p in theirs.pieces
    ]
    for mark in ("<think>", "</think>", "<|im_end|>"):
        assert ours.id_of(mark) == theirs.id_of(mark)
    assert ours.raw(10**6) == b""


def test_messages_reach_templates_as_vllm_hands_them_over() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    broken = {"id": "d", "function": {"name": "f", "arguments": "{"}}
    made = readable(
        {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [call, broken]}
    )
    assert made["content"] == ""
    assert made["reasoning_content"] == "r"
    assert [one["function"]["arguments"] for one in made["tool_calls"]] == [{"a": 1}, "{"]
    assert "tool_calls" not in readable({"role": "assistant", "content": "x", "tool_calls": []})


def test_template_arguments_cannot_replace_ours() -> None:
    with pytest.raises(BadRequest, match="tokenize"):
        LocalPrompts(MODEL).text({**HI, "chat_template_kwargs": {"tokenize": True}})


def test_a_model_that_names_no_length_has_one() -> None:
    class Config:
        max_position_embeddings: int | None = None

        def get_text_config(self) -> Config:
            return self

    config = Config()
    assert context_length(config, 10**30) == 32_768
    assert context_length(config, 2048) == 2048
    config.max_position_embeddings = 77
    assert context_length(config, 2048) == 77


# With torch, in this process.


@pytest.fixture(scope="module")
def runtimes() -> dict[LogprobsMode, TinyRuntime]:
    return {mode: load(TinyOptions(folder=MODEL, logprobs_mode=mode)) for mode in LogprobsMode}


def finish(runtime: TinyRuntime, **bodies: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Replies by name, of all bodies run together."""
    runtime.scheduler.pool.clear()
    for name, body in bodies.items():
        assert runtime.submit(name, name, body) is None
    answers = []
    while runtime.busy:
        answers += runtime.step()
    assert {answer.status for answer in answers} == {200}
    return {answer.name: json.loads(answer.body) for answer in answers}


@needs_torch
@pytest.mark.parametrize("case", sorted({*SCORED, *WRITTEN}))
def test_replaying_recorded_ids_gives_the_recorded_numbers(
    case: str, runtimes: dict[LogprobsMode, TinyRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    body, expected = recorded(case, "request.json"), recorded(case, "response.json")
    ids = expected["choices"][0]["token_ids"]
    if ids is None:  # hidden reasoning hides the ids too; the same turn was recorded openly
        ids = recorded("chat_unary_tool_auto", "response.json")["choices"][0]["token_ids"]

    def choose(self: Sampler, logits: Any, output: list[int]) -> Any:
        return self.report(logits, self.logprobs(logits, output), ids[len(output)])

    monkeypatch.setattr(Sampler, "sample", choose)
    runtime = runtimes[mode_of(case)]
    # That vLLM was told to expect thoughts; this engine expects only what a prompt begins.
    monkeypatch.setattr(runtime._writer, "_always_thinks", True)
    found = finish(runtime, a={**body, "model": "tiny"})["a"]
    assert found["prompt_token_ids"] == expected["prompt_token_ids"]
    assert found["usage"]["completion_tokens"] == len(ids)
    ours, theirs = found["choices"][0], expected["choices"][0]
    assert ours["token_ids"] == theirs["token_ids"]
    if theirs["logprobs"] is not None:
        assert logprobs(ours) == pytest.approx(logprobs(theirs), abs=TOLERANCE)
    if case in WRITTEN:
        assert normal(found) == normal(expected)


@needs_torch
def test_one_seed_samples_the_same_path_as_the_tiny_engine(
    runtimes: dict[LogprobsMode, TinyRuntime],
) -> None:
    bodies = {str(seed): {**HI, "seed": seed, "top_p": 0.95} for seed in range(6)}
    ours = finish(runtimes[LogprobsMode.PROCESSED], **bodies)
    theirs = finish(TinyRuntime(TinyOptions(folder=MODEL)), **bodies)
    for name in bodies:
        left, right = ours[name]["choices"][0], theirs[name]["choices"][0]
        assert left["token_ids"] == right["token_ids"]
        assert logprobs(left) == pytest.approx(logprobs(right), abs=TOLERANCE)


@needs_torch
def test_text_without_a_mark_of_thinking_is_content(
    runtimes: dict[LogprobsMode, TinyRuntime],
) -> None:
    body = recorded("chat_unary_temp0", "request.json")
    found = finish(runtimes[LogprobsMode.PROCESSED], a=body)["a"]
    message = found["choices"][0]["message"]
    assert message["content"] == "Hello! How can I help?"
    assert message["reasoning"] is None
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    opened = {**body, "kv_transfer_params": {"prompt_token_ids": [*found["prompt_token_ids"]]}}
    think = runtimes[LogprobsMode.PROCESSED].prompts.tokenizer.id_of("<think>")
    opened["kv_transfer_params"]["prompt_token_ids"].append(think)
    message = finish(runtimes[LogprobsMode.PROCESSED], a=opened)["a"]["choices"][0]["message"]
    assert message["reasoning"]


@needs_torch
def test_generation_defaults_of_the_model_do_not_leak_in(
    tmp_path: Path, runtimes: dict[LogprobsMode, TinyRuntime]
) -> None:
    config = {"eos_token_id": 2, "temperature": 0.1, "top_k": 1, "do_sample": True}
    folder = copied(tmp_path, generation_config__json=json.dumps(config))
    body = {key: value for key, value in HI.items() if key != "temperature"}
    found = finish(load(TinyOptions(folder=folder)), a=body)["a"]["choices"][0]
    plain = finish(runtimes[LogprobsMode.PROCESSED], a={**body, "temperature": 1.0})["a"]
    assert found["token_ids"] == plain["choices"][0]["token_ids"]
    assert logprobs(found) == pytest.approx(logprobs(plain["choices"][0]), abs=TOLERANCE)


@needs_torch
def test_a_prompt_read_before_is_not_read_again(
    runtimes: dict[LogprobsMode, TinyRuntime],
) -> None:
    runtime = runtimes[LogprobsMode.PROCESSED]
    first = finish(runtime, a=HI)["a"]
    assert runtime.submit("b", "b", HI) is None
    answers = []
    while runtime.busy:
        answers += runtime.step()
    again = json.loads(answers[0].body)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert again["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]


@needs_torch
def test_missing_weights_are_told_and_not_made_up(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = copied(tmp_path, model__safetensors=None)
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        load(TinyOptions(folder=folder))
    tensors = load_file(MODEL / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"lacks weights: .*up_proj"):
        load(TinyOptions(folder=folder))


SIZES = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
WINDOW = {**SIZES, "sliding_window": 4}
OLD = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128,
       "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
ALIBI = {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}
STATE = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}


def made(config: str, sizes: dict[str, Any]) -> Any:
    """A model with weights of noise that is loud enough to tell positions apart."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, config)(**sizes)
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@needs_torch
@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ("LlamaConfig", SIZES),
        ("MistralConfig", WINDOW),
        ("Gemma2Config", {**WINDOW, "head_dim": 8}),
        ("GPT2Config", OLD),
        ("BloomConfig", ALIBI),
    ],
)
def test_a_cached_batch_equals_plain_runs(config: str, sizes: dict[str, Any]) -> None:
    model = made(config, sizes)
    network, vocab_size, token_bytes = choose_network(model)
    assert isinstance(network, CachedNetwork)
    assert vocab_size == 99
    assert token_bytes > 0
    plain, random = PlainNetwork(model), np.random.default_rng(1)
    rows = [random.integers(0, 99, length).tolist() for length in (40, 33, 50)]
    caches = [network.new_cache() for _ in rows]
    for row, cache in zip(rows, caches, strict=True):
        network.forward([Chunk(row[:20], cache)])
        network.forward([Chunk(row[20:-3], cache)])
    caches[0] = caches[0].prefix(30)
    network.forward([Chunk(rows[0][30:-3], caches[0])])
    for place in (-3, -2, -1):
        found = network.forward(
            [Chunk([row[place]], cache) for row, cache in zip(rows, caches, strict=True)]
        )
    expected = plain.forward([Chunk(row, plain.new_cache()) for row in rows])
    np.testing.assert_allclose(found, expected, atol=5e-5)


@needs_torch
def test_a_recurrent_model_is_run_plainly() -> None:
    network, _, token_bytes = choose_network(made("MambaConfig", STATE))
    assert isinstance(network, PlainNetwork)
    assert token_bytes == 0
    cache = network.new_cache()
    network.forward([Chunk([1, 2, 3], cache)])
    copy = cache.prefix(2)
    assert (copy.ids, copy.length) == ([1, 2], 2)


# With torch, in the child.


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def engine(runner: asyncio.Runner) -> Iterator[LocalEngine]:
    made = LocalEngine(str(MODEL))
    runner.run(made.start())
    yield made
    runner.run(made.stop())


@needs_torch
def test_it_is_certified_processed(runner: asyncio.Runner, engine: LocalEngine) -> None:
    certificate = runner.run(certify(engine, 1))
    assert certificate.failures == ()
    assert certificate.passing
    assert certificate.capture_level is CaptureLevel.TOKENS
    assert certificate.logprob_kind is LogprobKind.PROCESSED
    assert certificate.engine_kind == "local"
    numbers = certificate.numbers
    assert numbers["slope"]["0.5"] == pytest.approx(2.0, abs=1e-3)
    assert numbers["support"]["left"] == 2
    assert numbers["bias_shift"]["2.0"] == pytest.approx(1.0, abs=1e-3)
    unary = numbers["unary"]
    assert unary["completion_ids"] == unary["usage_completion"] == unary["logprobs"] > 0
    assert unary["prompt_ids"] == unary["usage_prompt"] > 0
    assert numbers["stream"]["done"] is True


@needs_torch
def test_facts_pieces_and_prompts_come_from_the_child(
    runner: asyncio.Runner, engine: LocalEngine
) -> None:
    facts = runner.run(engine.facts())
    assert (facts.name, facts.model, facts.max_model_len) == (
        "transformers",
        "tiny_model",
        1024,
    )
    assert facts.certifiable
    assert facts.fingerprint is not None
    assert facts.fingerprint.startswith("transformers-")
    tiny = asyncio.run(TinyEngine(MODEL).facts())
    assert facts.chat_template_sha256 == tiny.chat_template_sha256
    reply = json.loads(runner.run(engine.generate(request())).body)
    assert reply["system_fingerprint"] == facts.fingerprint
    pieces = runner.run(engine.vocabulary())
    assert [(p.token_id, p.raw) for p in pieces] == [
        (p.token_id, p.raw) for p in ByteTokenizer(MODEL).pieces
    ]
    assert list(runner.run(engine.tokenize(HI))) == reply["prompt_token_ids"]
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    asked = engine.tokenize({"messages": [{"role": "user", "content": picture}]})
    with pytest.raises(BadRequest):
        runner.run(asked)


@needs_torch
def test_one_reply_and_eight_at_once_agree(runner: asyncio.Runner, engine: LocalEngine) -> None:
    async def scenario() -> None:
        prompts = ("Hi", "What is 17 + 25?", "What is the weather in Paris?", "Tell me a lot.")
        bodies = [
            {**HI, "seed": seed, "messages": [{"role": "user", "content": prompts[seed % 4]}]}
            for seed in range(8)
        ]
        alone = [choice(await engine.generate(request(body))) for body in bodies]
        together = await asyncio.gather(*(engine.generate(request(body)) for body in bodies))
        for left, reply in zip(alone, together, strict=True):
            right = choice(reply)
            assert left["token_ids"] == right["token_ids"]
            assert logprobs(left) == pytest.approx(logprobs(right), abs=TOLERANCE)

    runner.run(scenario())


@needs_torch
def test_a_stream_joins_to_the_unary_reply(runner: asyncio.Runner, engine: LocalEngine) -> None:
    async def scenario() -> None:
        unary = choice(await engine.generate(request()))
        text = b"".join([chunk async for chunk in engine.stream(request())]).decode()
        lines = text.strip().split("\n\n")
        assert lines[-1] == "data: [DONE]"
        parts = [json.loads(one.removeprefix("data: "))["choices"][0] for one in lines[:-1]]
        ids = [i for part in parts for i in part.get("token_ids", [])]
        assert ids == unary["token_ids"]
        content = "".join(part["delta"].get("content") or "" for part in parts)
        assert content == (unary["message"]["content"] or "")

    runner.run(scenario())


@needs_torch
def test_refusals_are_replies(runner: asyncio.Runner, engine: LocalEngine) -> None:
    assert runner.run(engine.generate(request({**HI, "n": 2}))).status == 400
    assert runner.run(engine.generate(request({**HI, "model": "other"}))).status == 404


@needs_torch
def test_cancelling_frees_the_place_and_a_dead_child_is_replaced() -> None:
    async def scenario(engine: LocalEngine) -> None:
        before = choice(await engine.generate(request()))
        blocker = asyncio.create_task(engine.generate(request(ENDLESS)))
        await asyncio.sleep(0.2)
        blocker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocker
        assert choice(await engine.generate(request()))["token_ids"] == before["token_ids"]
        assert engine._child is not None
        assert not engine._child.pending
        waiting = asyncio.create_task(engine.generate(request(ENDLESS)))
        await asyncio.sleep(0.1)
        os.kill(engine._child.process.pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable):
            await waiting
        assert choice(await engine.generate(request()))["token_ids"] == before["token_ids"]

    async def main() -> None:
        engine = LocalEngine(str(MODEL), max_batch=1)
        await engine.start()
        try:
            await scenario(engine)
        finally:
            await engine.stop()
        with pytest.raises(EngineUnavailable):
            await engine.generate(request())

    asyncio.run(main())


@needs_torch
def test_what_the_child_cannot_load_is_told(tmp_path: Path) -> None:
    folder = copied(tmp_path, model__safetensors=None)
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        asyncio.run(LocalEngine(str(folder)).start())


@needs_torch
def test_torch_stays_in_the_child() -> None:
    code = (
        "import asyncio, sys\n"
        "from explorer.engine.local import LocalEngine\n"
        "async def main():\n"
        "    engine = LocalEngine(sys.argv[1])\n"
        "    await engine.start()\n"
        "    await engine.facts()\n"
        "    await engine.vocabulary()\n"
        "    await engine.stop()\n"
        "asyncio.run(main())\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(MODEL)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""

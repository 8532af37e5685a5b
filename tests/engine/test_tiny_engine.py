"""The engine with its real child process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from explorer.engine.protocol import Engine, EngineReply, EngineRequest
from explorer.engine.tiny import TinyEngine
from explorer.errors import (
    BadRequest,
    ConfigurationError,
    EngineRefusedStream,
    EngineTimeout,
    EngineUnavailable,
)

MODEL = Path(__file__).parent.parent / "data" / "tiny_model"
ROOT = Path(__file__).parent.parent.parent
HI: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "temperature": 0.8,
    "seed": 7,
    "max_tokens": 40,
    "logprobs": True,
    "return_token_ids": True,
}
ENDLESS: dict[str, Any] = {**HI, "max_tokens": 900, "ignore_eos": True}


def run(scenario: Callable[[TinyEngine], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        engine = TinyEngine(MODEL, **options)
        await engine.start()
        try:
            await scenario(engine)
        finally:
            await engine.stop()

    asyncio.run(main())


def request(body: dict[str, Any] = HI, timeout_s: float = 30.0) -> EngineRequest:
    return EngineRequest(body, "r1", timeout_s)


def choice(reply: EngineReply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    found: dict[str, Any] = json.loads(reply.body)["choices"][0]
    return found


def pid_of(engine: TinyEngine) -> int:
    assert engine._child is not None
    return engine._child.process.pid


def test_it_is_an_engine() -> None:
    engine: Engine = TinyEngine(MODEL)
    assert engine.kind == "tiny"


def test_one_reply_and_eight_at_once_agree() -> None:
    async def scenario(engine: TinyEngine) -> None:
        bodies = [{**HI, "seed": seed, "temperature": 1.5} for seed in range(8)]
        alone = [choice(await engine.generate(request(body))) for body in bodies]
        together = await asyncio.gather(*(engine.generate(request(body)) for body in bodies))
        for left, reply in zip(alone, together, strict=True):
            right = choice(reply)
            assert left["token_ids"] == right["token_ids"]
            assert len(right["token_ids"]) == len(right["logprobs"]["content"])
        head = json.loads(together[0].body)
        assert head["id"] == "chatcmpl-r1"
        assert head["system_fingerprint"].startswith("tiny-")

    run(scenario)


def test_raw_bytes_are_sent_as_they_are() -> None:
    async def scenario(engine: TinyEngine) -> None:
        raw = json.dumps(HI, indent=3).encode()
        sent = choice(await engine.generate(EngineRequest({}, "r", 30.0, raw)))
        assert sent["token_ids"] == choice(await engine.generate(request()))["token_ids"]

    run(scenario)


def test_refusals_are_replies() -> None:
    async def scenario(engine: TinyEngine) -> None:
        reply = await engine.generate(request({**HI, "n": 2}))
        assert reply.status == 400
        assert json.loads(reply.body)["error"]["param"] == "n"

    run(scenario)


def test_cancelling_frees_the_place() -> None:
    async def scenario(engine: TinyEngine) -> None:
        blocker = asyncio.create_task(engine.generate(request(ENDLESS)))
        await asyncio.sleep(0.05)
        blocker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocker
        assert choice(await engine.generate(request()))["finish_reason"] == "stop"
        assert engine._child is not None
        assert not engine._child.pending

    run(scenario, max_batch=1)


def test_timeout() -> None:
    async def scenario(engine: TinyEngine) -> None:
        with pytest.raises(EngineTimeout):
            await engine.generate(request(ENDLESS, timeout_s=0.02))
        choice(await engine.generate(request()))

    run(scenario, max_batch=1)


def test_a_dead_child_fails_its_requests_and_is_replaced() -> None:
    async def scenario(engine: TinyEngine) -> None:
        before = choice(await engine.generate(request()))
        first = pid_of(engine)
        waiting = asyncio.create_task(engine.generate(request(ENDLESS)))
        await asyncio.sleep(0.02)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(EngineUnavailable):
            await waiting
        assert choice(await engine.generate(request()))["token_ids"] == before["token_ids"]
        assert pid_of(engine) != first

    run(scenario)


def test_a_child_that_is_replaced_has_the_weights_that_were_loaded_last(tmp_path: Path) -> None:
    tensors = load_file(MODEL / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"][::-1].copy()
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)

    async def scenario(engine: TinyEngine) -> None:
        before = await engine.facts()
        _, fingerprint = await engine.load_weights(tmp_path, "step-8")
        path.unlink()  # a trainer tidies up; the engine has a copy
        asked = request({**HI, "return_weight_versions": True})
        said = choice(await engine.generate(asked))
        assert said["weight_versions"][0]["version"] == "step-8"
        os.kill(pid_of(engine), signal.SIGKILL)
        assert engine._child is not None
        assert engine._child.reader is not None
        await engine._child.reader  # the parent has seen it
        with pytest.raises(BadRequest, match="there is no"):
            await engine.load_weights(tmp_path, "step-9")
        again = choice(await engine.generate(asked))
        assert (again["token_ids"], again["weight_versions"]) == (
            said["token_ids"],
            said["weight_versions"],
        )
        facts = await engine.facts()
        assert (facts.fingerprint, facts.fingerprint == before.fingerprint) == (
            fingerprint,
            False,
        )

    run(scenario)


def test_stopping_fails_what_is_open_and_ends_the_child() -> None:
    async def scenario(engine: TinyEngine) -> None:
        pid = pid_of(engine)
        waiting = asyncio.create_task(engine.generate(request(ENDLESS)))
        await asyncio.sleep(0.02)
        await engine.stop()
        with pytest.raises(EngineUnavailable):
            await waiting
        with pytest.raises(EngineUnavailable):
            await engine.generate(request())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(scenario)


def test_no_child_survives_a_killed_parent() -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from explorer.engine.tiny import TinyEngine\n"
        "async def main():\n"
        "    engine = TinyEngine(Path(sys.argv[1]))\n"
        "    await engine.start()\n"
        "    print(engine._child.process.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(MODEL)], cwd=ROOT, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and alive(child):
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_facts_vocabulary_and_tokenize() -> None:
    async def scenario() -> None:
        engine = TinyEngine(MODEL)
        facts = await engine.facts()
        assert (facts.name, facts.model, facts.max_model_len) == ("tiny", "tiny", 1024)
        assert facts.certifiable
        assert facts.tokenizer_sha256 is not None
        pieces = await engine.vocabulary()
        assert [piece.token_id for piece in pieces] == list(range(len(pieces)))
        assert pieces[2].raw == b"<|im_end|>"
        assert pieces[2].special
        ids = await engine.tokenize(HI)
        recorded = json.loads(
            (MODEL.parent / "vllm/chat_unary_ids_logprobs/response.json").read_text("utf-8")
        )["prompt_token_ids"]
        assert list(ids) == recorded

    asyncio.run(scenario())


def test_a_broken_folder_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(ConfigurationError):
            await TinyEngine(tmp_path).start()

    asyncio.run(scenario())


def events(chunks: list[bytes]) -> list[Any]:
    lines = b"".join(chunks).decode().strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_stream_has_the_recorded_shape() -> None:
    folder = MODEL.parent / "vllm/chat_stream_ids_logprobs_usage"
    asked = json.loads((folder / "request.json").read_text("utf-8"))
    recorded = events([(folder / "response.sse").read_bytes()])

    async def scenario(engine: TinyEngine) -> None:
        found = events([chunk async for chunk in engine.stream(request(asked))])
        assert [sorted(one) for one in found] == [sorted(one) for one in recorded]
        for ours, theirs in zip(found, recorded, strict=True):
            for left, right in zip(ours["choices"], theirs["choices"], strict=True):
                assert sorted(left) == sorted(right)
                assert left["delta"] == right["delta"]
                assert left.get("token_ids") == right.get("token_ids")
        assert found[0]["prompt_token_ids"] == recorded[0]["prompt_token_ids"]

    run(scenario)


def test_stream_joins_to_the_unary_reply() -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
    asked = {
        **HI,
        "tools": tools,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    }

    async def scenario(engine: TinyEngine) -> None:
        unary = choice(await engine.generate(request(asked)))
        parts = [
            one["choices"][0]
            for one in events(
                [chunk async for chunk in engine.stream(request({**asked, "stream": True}))]
            )
        ]
        assert [i for part in parts for i in part.get("token_ids", [])] == unary["token_ids"]
        entries = [
            one for part in parts if part["logprobs"] for one in part["logprobs"]["content"]
        ]
        for left, right in zip(entries, unary["logprobs"]["content"], strict=True):
            assert left["token"] == right["token"]
            assert left["logprob"] == pytest.approx(right["logprob"], abs=2e-5)
        text = "".join(part["delta"].get("reasoning", "") for part in parts)
        assert text == unary["message"]["reasoning"]
        assert parts[-1]["finish_reason"] == unary["finish_reason"]
        hidden = events(
            [
                chunk
                async for chunk in engine.stream(request({**asked, "include_reasoning": False}))
            ]
        )
        assert [len(one["choices"]) for one in hidden] == [1, 1]
        assert "reasoning" not in hidden[1]["choices"][0]["delta"]
        assert hidden[1]["choices"][0]["token_ids"] is None
        with pytest.raises(EngineRefusedStream) as caught:
            [chunk async for chunk in engine.stream(request({**asked, "n": 2}))]
        assert caught.value.reply.status == 400

    run(scenario)

"""The HTTP engine against a real server: recorded vLLM bodies, errors, cancellation."""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import uvicorn

from explorer.engine.http import HttpEngine, clean_headers, declared_flags
from explorer.engine.protocol import EngineReply, EngineRequest
from explorer.engine.reply import parse_reply
from explorer.engine.vllm import CAPTURE_FLAGS, LocalVllm
from explorer.engine.vocabulary import from_transformers, learn
from explorer.errors import (
    ConfigurationError,
    EngineMalformed,
    EngineRefusedStream,
    EngineTimeout,
    EngineUnavailable,
)
from explorer.records import CaptureLevel
from explorer.wire import chat, sse

DATA = Path(__file__).parents[1] / "data"
RECORDED = DATA / "vllm"


class FakeVllm:
    """Answers a case's recorded bytes when the request names the case as its model."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.disconnected = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        raw = b""
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        status, body = await self.answer(scope["path"], raw, headers, receive)
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", b"application/json"), (b"x-engine", b"yes")],
            }
        )
        await send({"type": "http.response.body", "body": body})

    async def answer(
        self, path: str, raw: bytes, headers: dict[str, str], receive: Any
    ) -> tuple[int, bytes]:
        if path == "/v1/models":
            return 200, b'{"data":[{"id":"tiny","max_model_len":1024}]}'
        if path == "/version":
            return 200, b'{"version":"0.32.0"}'
        if path == "/tokenize":
            self.seen.append({"body": orjson.loads(raw), "headers": headers})
            return 200, b'{"tokens":[1,2,3],"count":3}'
        body = orjson.loads(raw)
        self.seen.append({"body": body, "headers": headers})
        if body["model"] == "hang":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.disconnected += 1
            return 200, b"{}"
        if body["model"] == "slow":
            await asyncio.sleep(0.2)
            return 200, b'{"choices":[]}'
        folder = RECORDED / body["model"]
        name = "response.sse" if body.get("stream") else "response.json"
        if not (folder / name).exists():
            return 404, b'{"error":{"message":"no such model","code":404}}'
        return 200, (folder / name).read_bytes()


@pytest.fixture(scope="module")
def fake() -> Iterator[tuple[str, FakeVllm]]:
    app = FakeVllm()
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{sock.getsockname()[1]}", app
    server.should_exit = True
    thread.join(10)
    sock.close()


def request(model: str, timeout_s: float = 20.0, **more: Any) -> EngineRequest:
    body = {"model": model, "messages": [{"role": "user", "content": "x"}]} | more
    return EngineRequest(body, "call-1", timeout_s)


async def with_engine(url: str, work: Any, **options: Any) -> Any:
    engine = HttpEngine(url, **options)
    await engine.start()
    try:
        return await work(engine)
    finally:
        await engine.stop()


def test_the_engines_bytes_are_kept_as_they_came(fake: tuple[str, FakeVllm]) -> None:
    url, app = fake
    case = "chat_unary_tool_auto"

    async def work(engine: HttpEngine) -> None:
        reply = await engine.generate(request(case))
        assert reply.status == 200
        assert reply.body == (RECORDED / case / "response.json").read_bytes()
        assert ("x-engine", "yes") in reply.headers
        assert parse_reply(200, reply.body).level is CaptureLevel.TOKENS

    asyncio.run(with_engine(url + "/v1/", work, api_key="secret"))
    assert app.seen[-1]["headers"]["authorization"] == "Bearer secret"
    assert app.seen[-1]["headers"]["x-request-id"] == "call-1"
    assert app.seen[-1]["headers"]["accept-encoding"] == "identity"


def test_prepared_bytes_are_sent_as_they_are(fake: tuple[str, FakeVllm]) -> None:
    url, app = fake

    async def work(engine: HttpEngine) -> None:
        raw = b'{"model": "none",  "messages": []}'
        await engine.generate(EngineRequest({}, "c", 5.0, raw=raw))

    asyncio.run(with_engine(url, work))
    assert app.seen[-1]["body"] == {"model": "none", "messages": []}


def test_a_recorded_stream_says_the_same_as_its_unary_twin(fake: tuple[str, FakeVllm]) -> None:
    url, _ = fake
    case = "chat_stream_ids_logprobs_usage"

    async def work(engine: HttpEngine) -> list[bytes]:
        return [chunk async for chunk in engine.stream(request(case))]

    decoder = sse.Decoder()
    chunks = asyncio.run(with_engine(url, work))
    merged = chat.merge_stream(event for chunk in chunks for event in decoder.feed(chunk))
    parsed = parse_reply(200, orjson.dumps(merged))
    assert merged["_complete"] is True
    assert parsed.level is CaptureLevel.TOKENS
    assert parsed.completion_ids is not None
    assert parsed.completion_ids.size == parsed.usage["completion"]
    twin = parse_reply(
        200, (RECORDED / "chat_unary_ids_logprobs" / "response.json").read_bytes()
    )
    assert twin.completion_ids is not None
    assert parsed.completion_ids.tolist() == twin.completion_ids.tolist()


def test_an_error_status_is_a_reply(fake: tuple[str, FakeVllm]) -> None:
    async def work(engine: HttpEngine) -> None:
        reply = await engine.generate(request("none"))
        assert reply.status == 404
        with pytest.raises(EngineRefusedStream, match="404"):
            async for _ in engine.stream(request("none")):
                pass

    asyncio.run(with_engine(fake[0], work))


def test_a_time_out_is_typed(fake: tuple[str, FakeVllm]) -> None:
    async def work(engine: HttpEngine) -> None:
        with pytest.raises(EngineTimeout, match=r"within 0\.2 s"):
            await engine.generate(request("hang", timeout_s=0.2))

    asyncio.run(with_engine(fake[0], work))


def test_cancelling_reaches_the_engine(fake: tuple[str, FakeVllm]) -> None:
    url, app = fake
    before = app.disconnected

    async def work(engine: HttpEngine) -> None:
        task = asyncio.create_task(engine.generate(request("hang")))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(with_engine(url, work))
    deadline = time.time() + 5
    while app.disconnected == before and time.time() < deadline:
        time.sleep(0.02)
    assert app.disconnected > before


def test_a_dead_engine_is_unavailable() -> None:
    async def work(engine: HttpEngine) -> None:
        with pytest.raises(EngineUnavailable):
            await engine.generate(request("x"))
        with pytest.raises(EngineUnavailable, match="is the engine running"):
            await engine.facts()

    asyncio.run(with_engine("http://127.0.0.1:9", work))


def test_a_thousand_calls_are_in_flight_at_once(fake: tuple[str, FakeVllm]) -> None:
    async def work(engine: HttpEngine) -> float:
        began = time.perf_counter()
        replies = await asyncio.gather(
            *(engine.generate(request("slow", timeout_s=60)) for _ in range(1000))
        )
        assert all(reply.status == 200 for reply in replies)
        return time.perf_counter() - began

    # One after the other they would take 200 s.
    assert asyncio.run(with_engine(fake[0], work, pool=1000)) < 60


def test_facts_and_tokenize(fake: tuple[str, FakeVllm]) -> None:
    async def work(engine: HttpEngine) -> None:
        facts = await engine.facts()
        assert (facts.name, facts.version, facts.model) == ("vllm", "0.32.0", "tiny")
        assert facts.max_model_len == 1024
        assert await engine.tokenize({"messages": []}) == (1, 2, 3)
        assert await engine.vocabulary() == ()
        # All that shapes the prompt is asked with it, and nothing of the sampling.
        shaping = {
            "messages": [],
            "tools": [{"type": "function"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        await engine.tokenize(shaping | {"temperature": 1.0, "max_tokens": 5})
        assert fake[1].seen[-1]["body"] == shaping | {"model": "tiny"}

    asyncio.run(with_engine(fake[0], work))


class OddFacts(HttpEngine):
    """Answers its side routes with what a test says."""

    def __init__(self, models: Any, version: Any) -> None:
        super().__init__("http://127.0.0.1:9")
        self.answers = {"/v1/models": models, "/version": version}

    async def _json(self, method: str, path: str, body: Any = None) -> Any | None:
        return self.answers.get(path)


@pytest.mark.parametrize(
    ("models", "model"),
    [
        ([1], "unknown"),
        ({"data": [1, {"id": "a"}]}, "a"),
        ({"data": {"a": 1}}, "unknown"),
        ({"data": [{"id": {"a": 1}, "owned_by": [1], "max_model_len": True}]}, "unknown"),
        ({"data": [{"id": 5, "root": 5}]}, "5"),
        ({"data": [{"id": "\ud800"}]}, "\\ud800"),
    ],
)
def test_odd_side_routes_end_no_start(models: Any, model: str) -> None:
    facts = asyncio.run(OddFacts(models, {"version": [1]}).facts())
    assert facts.model == model
    assert facts.version == "unknown"
    assert facts.max_model_len is None


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", "nonsense"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="http://host:port"):
        HttpEngine(url)


def test_sse_16_hop_by_hop_headers_are_dropped_and_the_rest_is_single() -> None:
    headers = {
        "server": "uvicorn",
        "date": "Tue, 01 Sep 2026 00:00:00 GMT",
        "transfer-encoding": "chunked",
        "connection": "keep-alive",
        "X-Kept": "1",
    }
    assert clean_headers(headers) == (("x-kept", "1"),)


Answers = list[tuple[str, bytes]]


async def answered(answers: Answers, **changes: Any) -> list[EngineReply]:
    """The replies of an engine whose answers have these content-encodings and bytes."""
    left = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"accept-encoding: identity" in head.lower()
        size = re.search(rb"content-length: (\d+)", head.lower())
        assert size is not None
        await reader.readexactly(int(size[1]))
        encoding, body = next(left)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-encoding: %s\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (encoding.encode(), len(body), body)
        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    engine = HttpEngine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    for name, value in changes.items():
        setattr(engine, name, value)
    await engine.start()
    try:
        return [await engine.generate(request("m")) for _ in answers]
    finally:
        await engine.stop()
        server.close()


def test_enc_01_a_content_encoding_that_is_not_true_is_noted() -> None:
    plain = b'{"choices":[]}'
    lies = [(name, plain) for name in ("gzip", "deflate", "br", "zstd", "nonsense")]
    for reply in asyncio.run(answered(lies)):
        assert reply.body == plain
        assert "content-encoding" not in dict(reply.headers)
        assert [note.code for note in reply.notes] == ["content_encoding_untrue"]
    true = [("gzip", gzip.compress(plain)), ("deflate", zlib.compress(plain)), ("", plain)]
    for reply in asyncio.run(answered(true)):
        assert (reply.body, reply.notes) == (plain, ())


def test_enc_01_no_byte_of_an_encoded_reply_is_dropped() -> None:
    two = gzip.compress(b'{"choices":') + gzip.compress(b"[]}")
    trailing = gzip.compress(b'{"choices":[]}') + b"more"
    cut = gzip.compress(b'{"choices":[]}')[:-4]
    whole, *odd = asyncio.run(answered([("gzip", body) for body in (two, trailing, cut)]))
    assert (whole.body, whole.notes) == (b'{"choices":[]}', ())
    assert [reply.body for reply in odd] == [trailing, cut]
    assert {note.code for reply in odd for note in reply.notes} == {"content_encoding_untrue"}


@pytest.mark.parametrize(
    "answer", [("identity", b"x" * 1001), ("gzip", gzip.compress(b" " * 1001))]
)
def test_sse_10_a_reply_without_end_is_cut_at_the_named_limit(
    answer: tuple[str, bytes],
) -> None:
    with pytest.raises(EngineMalformed, match="1000 bytes"):
        asyncio.run(answered([answer], reply_limit=1000))


def test_vllm_is_started_with_the_flags_that_capture_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalVllm("some/model", extra=("--dtype", "float32"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"rollout-explorer\[vllm\]") as refusal:
        engine.command()
    assert all(flag in refusal.value.message for flag in CAPTURE_FLAGS)
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    command = engine.command()
    assert command[:3] == [str(program), "serve", "some/model"]
    assert set(CAPTURE_FLAGS) <= set(command)
    assert command[-2:] == ["--dtype", "float32"]


def test_vllm_that_dies_is_reported_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    program.chmod(0o755)
    engine = LocalVllm("m")
    monkeypatch.setattr(engine, "command", lambda: [str(program), "serve"])

    async def work() -> None:
        with pytest.raises(EngineUnavailable, match="no such model"):
            await engine.start()

    asyncio.run(work())


def test_a_tokenizer_on_disk_gives_exact_bytes() -> None:
    digest, pieces = from_transformers(str(DATA / "tiny_model"))
    assert len(digest) == 64
    by_id = {piece.token_id: piece for piece in pieces}
    assert by_id[2].raw == b"<|im_end|>"
    assert by_id[2].special
    reply = orjson.loads((RECORDED / "chat_unary_tool_auto" / "response.json").read_bytes())
    learned = learn(reply)
    assert len(learned) == len(reply["choices"][0]["token_ids"])
    for piece in learned:
        assert by_id[piece.token_id].raw == piece.raw


def test_bytes_that_an_engine_holds_back_are_not_learned_from() -> None:
    def entry(raw: list[int]) -> dict[str, Any]:
        return {"token": "", "logprob": -1.0, "bytes": raw}

    content = [entry([97]), entry([]), entry([]), entry([240, 159, 166, 138]), entry([98])]
    reply = {"choices": [{"token_ids": [1, 2, 3, 4, 5], "logprobs": {"content": content}}]}
    assert [(p.token_id, p.raw) for p in learn(reply)] == [(1, b"a"), (5, b"b")]


def test_a_tokenizer_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        from_transformers(str(tmp_path))


@pytest.mark.parametrize(
    ("info", "flags"),
    [
        (None, None),
        ([], None),
        ({"vllm_config": "text"}, None),
        ({"vllm_config": {"model_config": []}}, None),
        ({"vllm_config": {"model_config": {"logprobs_mode": {"a": 1}}}}, None),
        (
            {
                "vllm_config": {
                    "model_config": {"logprobs_mode": "processed_logprobs", "seed": 0},
                    "structured_outputs_config": {"reasoning_parser": "qwen3"},
                }
            },
            (
                "model_config.logprobs_mode=processed_logprobs",
                "structured_outputs_config.reasoning_parser=qwen3",
            ),
        ),
    ],
)
def test_what_a_vllm_says_of_its_start_is_kept(info: Any, flags: Any) -> None:
    assert declared_flags(info) == flags


def test_a_vllm_of_ours_names_its_flags() -> None:
    engine = LocalVllm("m", extra=("--tool-call-parser", "hermes"))
    flags = asyncio.run(engine._flags())
    assert flags is not None
    assert flags[-2:] == ("--tool-call-parser", "hermes")
    assert "processed_logprobs" in flags

"""The tiny engine as the rest of the project sees it: one child process behind a pipe.

Owns: the child's life and the requests in flight. Must not know: the network's arithmetic.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from explorer.engine.protocol import EngineFacts, EngineReply, EngineRequest, TokenPiece
from explorer.engine.tiny.frames import BrokenFrame, pack, receive_frame
from explorer.engine.tiny.runtime import VERSION, PromptMaker, TinyOptions, fingerprint
from explorer.engine.tiny.sampling import LogprobsMode
from explorer.engine.tiny.stream import stream_error, stream_reply
from explorer.engine.tiny.weights import SHIPPED, ModelShape, file_sha256
from explorer.errors import ConfigurationError, EngineTimeout, EngineUnavailable

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 3.0
LONGEST_BACKOFF_S = 5.0
CHILD = "explorer.engine.tiny.child"
JSON_HEADERS = (("content-type", "application/json"),)


@dataclass(slots=True)
class _Child:
    process: asyncio.subprocess.Process
    reader: asyncio.Task[None] | None = None
    pending: dict[str, asyncio.Future[EngineReply]] = field(default_factory=dict)
    closed: bool = False

    def send(self, message: dict[str, Any]) -> None:
        stdin = self.process.stdin
        if self.closed or stdin is None or stdin.is_closing():
            raise EngineUnavailable("the tiny engine's process has ended")
        stdin.write(pack(message))

    def fail(self) -> None:
        """The process is gone: nobody waits for it any longer."""
        self.closed = True
        for future in self.pending.values():
            if not future.done():
                future.set_exception(EngineUnavailable("the tiny engine's process has ended"))
        self.pending.clear()


class TinyEngine:
    """Samples from a small model, eight requests at once by default.

    Args:
        model_dir: a model folder; None is the model that the package ships.
        max_batch: requests decoded together; more are queued.
        model: the name served; other names are answered with 404.
        max_model_len: context in tokens; None is the model's own.
        default_max_tokens: bound for requests that name none.
        logprobs_mode: `raw_logprobs` reports the network's own values instead of the sampled
            ones, as a vLLM with its default flags does.
        weight_version: label of the weights, given back to `return_weight_versions`.
    """

    kind = "tiny"

    def __init__(self, model_dir: Path | None = None, *, max_batch: int = 8,
                 model: str = "tiny", max_model_len: int | None = None,
                 default_max_tokens: int = 1024,
                 logprobs_mode: str = LogprobsMode.PROCESSED,
                 weight_version: str = "default") -> None:
        self.options = TinyOptions(
            folder=Path(model_dir or SHIPPED).resolve(), model=model, max_batch=max_batch,
            max_model_len=max_model_len, default_max_tokens=default_max_tokens,
            logprobs_mode=LogprobsMode(logprobs_mode), weight_version=weight_version)
        self._child: _Child | None = None
        self._lock = asyncio.Lock()
        self._names = itertools.count()
        self._backoff_s = 0.0
        self._started_s = 0.0
        self._stopped = False
        self._prompts: PromptMaker | None = None

    async def start(self) -> None:
        """Start the child and wait until the model is loaded.

        Raises EngineUnavailable, or ConfigurationError when the model folder is unusable.
        """
        self._stopped = False
        await self._running()

    async def stop(self) -> None:
        """End the child; requests in flight raise EngineUnavailable."""
        self._stopped = True
        child, self._child = self._child, None
        if child is None:
            return
        child.fail()
        process = child.process
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        if child.reader is not None:
            await child.reader

    async def generate(self, request: EngineRequest) -> EngineReply:
        """One chat completion; cancelling frees its place in the batch.

        Raises EngineUnavailable when the child dies, EngineTimeout after `timeout_s`.
        """
        try:
            async with asyncio.timeout(request.timeout_s):
                return await self._ask(request)
        except TimeoutError:
            raise EngineTimeout(
                f"no reply from the tiny engine in {request.timeout_s:g} s") from None

    async def stream(self, request: EngineRequest) -> AsyncIterator[bytes]:
        """The completion as events; they are made when the generation has ended.

        Raises as `generate`.
        """
        asked = dict(request.body)
        inner = {**asked, "return_token_ids": True, "stream": True}
        reply = await self.generate(
            EngineRequest(inner, request.request_id, request.timeout_s))
        if reply.status != 200:
            for chunk in stream_error(reply.body):
                yield chunk
            return
        content = orjson.loads(reply.body)
        prompts = await asyncio.to_thread(self._load_prompts)
        for chunk in stream_reply(content, prompts.tokenizer, asked):
            yield chunk

    async def facts(self) -> EngineFacts:
        """What the model folder says; needs no child. Raises ConfigurationError."""
        return await asyncio.to_thread(self._read_facts)

    async def vocabulary(self) -> tuple[TokenPiece, ...]:
        """Every id with its bytes. Raises ConfigurationError."""
        return (await asyncio.to_thread(self._load_prompts)).tokenizer.pieces

    async def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The prompt ids of a chat body. Raises BadRequest."""
        prompts = await asyncio.to_thread(self._load_prompts)
        return await asyncio.to_thread(prompts.ids, body)

    def _load_prompts(self) -> PromptMaker:
        if self._prompts is None:
            self._prompts = PromptMaker(self.options.folder)
        return self._prompts

    def _read_facts(self) -> EngineFacts:
        folder = self.options.folder
        own = ModelShape.read(folder).max_positions
        return EngineFacts(
            name="tiny", version=VERSION, model=self.options.model,
            max_model_len=min(own, self.options.max_model_len or own),
            tokenizer_sha256=file_sha256(folder / "tokenizer.json"),
            chat_template_sha256=file_sha256(folder / "chat_template.jinja"),
            fingerprint=fingerprint(folder), certifiable=True)

    async def _ask(self, request: EngineRequest) -> EngineReply:
        child = await self._running()
        name = str(next(self._names))
        future: asyncio.Future[EngineReply] = asyncio.get_running_loop().create_future()
        child.pending[name] = future
        body = dict(request.body) if request.raw is None else orjson.Fragment(request.raw)
        try:
            child.send({"op": "generate", "name": name, "request_id": request.request_id,
                        "body": body})
            return await future
        finally:
            # Still pending here means that the caller gave up.
            if child.pending.pop(name, None) is not None and not child.closed:
                with contextlib.suppress(EngineUnavailable):
                    child.send({"op": "cancel", "name": name})

    async def _running(self) -> _Child:
        """The child, started when there is none; each early death doubles the wait."""
        async with self._lock:
            if self._child is not None and not self._child.closed:
                return self._child
            if self._stopped:
                raise EngineUnavailable("the tiny engine is stopped")
            if self._child is not None:
                lived_s = time.monotonic() - self._started_s
                self._backoff_s = 0.1 if lived_s > 30 else min(
                    LONGEST_BACKOFF_S, max(0.1, 2 * self._backoff_s))
                await asyncio.sleep(self._backoff_s)
            self._started_s = time.monotonic()
            self._child = await self._spawn()
            return self._child

    async def _spawn(self) -> _Child:
        root = str(Path(__file__).parents[3])
        # One thread: a batch of small matrices is slower on several.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                       "MKL_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(
                           filter(None, (root, os.environ.get("PYTHONPATH", ""))))}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", CHILD, self.options.as_json(), env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        child = _Child(process)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                first = await receive_frame(process.stdout)
        except (TimeoutError, BrokenFrame):
            first = None
        except asyncio.CancelledError:
            process.kill()
            raise
        if first is None or first["op"] != "ready":
            if process.returncode is None:
                process.kill()
            await process.wait()
            if first is not None:
                raise ConfigurationError(first["message"])
            raise EngineUnavailable("the tiny engine's process did not start")
        child.reader = asyncio.create_task(self._receive(child, process.stdout))
        return child

    async def _receive(self, child: _Child, stdout: asyncio.StreamReader) -> None:
        """Hand replies to their waiters until the child ends."""
        try:
            while (message := await receive_frame(stdout)) is not None:
                future = child.pending.pop(message["name"], None)
                if future is not None and not future.done():
                    future.set_result(EngineReply(
                        message["status"], JSON_HEADERS, message["body"].encode()))
        except BrokenFrame:
            pass
        finally:
            child.fail()
            await child.process.wait()

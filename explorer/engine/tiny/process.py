"""An engine whose model runs in one child process behind a pipe.

Owns: the child's life and the requests in flight. Must not know: which model, its arithmetic.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from explorer.engine.protocol import EngineFacts, EngineReply, EngineRequest, TokenPiece
from explorer.engine.tiny.frames import BrokenFrame, pack, receive_frame
from explorer.engine.tiny.parts import Prompts
from explorer.engine.tiny.runtime import TinyOptions
from explorer.engine.tiny.stream import stream_error, stream_reply
from explorer.errors import ConfigurationError, EngineTimeout, EngineUnavailable

STOP_TIMEOUT_S = 3.0
LONGEST_BACKOFF_S = 5.0
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
            raise EngineUnavailable("the engine's process has ended")
        stdin.write(pack(message))

    def fail(self) -> None:
        """The process is gone: nobody waits for it any longer."""
        self.closed = True
        for future in self.pending.values():
            if not future.done():
                future.set_exception(EngineUnavailable("the engine's process has ended"))
        self.pending.clear()


class ChildEngine(ABC):
    """What the engines with a child process share; each says how its child is started."""

    kind: str
    child_module: str
    start_timeout_s = 60.0

    def __init__(self) -> None:
        self._child: _Child | None = None
        self._lock = asyncio.Lock()
        self._names = itertools.count()
        self._backoff_s = 0.0
        self._started_s = 0.0
        self._stopped = False
        self._prompts: Prompts | None = None

    @abstractmethod
    def child_options(self) -> TinyOptions:
        """What the child is told; may read files. Raises ConfigurationError."""

    @abstractmethod
    def child_environment(self) -> Mapping[str, str]:
        """Variables that the child gets beside our own."""

    @abstractmethod
    def make_prompts(self) -> Prompts:
        """Template and tokenizer, for this process; reads files. Raises ConfigurationError."""

    @abstractmethod
    def read_facts(self) -> EngineFacts:
        """The facts from the model's files. Raises ConfigurationError."""

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
                f"no reply from the {self.kind} engine in {request.timeout_s:g} s"
            ) from None

    async def stream(self, request: EngineRequest) -> AsyncIterator[bytes]:
        """The completion as events; they are made when the generation has ended.

        Raises as `generate`.
        """
        asked = dict(request.body)
        inner = {**asked, "return_token_ids": True, "stream": True}
        reply = await self.generate(EngineRequest(inner, request.request_id, request.timeout_s))
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
        return await asyncio.to_thread(self.read_facts)

    async def vocabulary(self) -> tuple[TokenPiece, ...]:
        """Every id with its bytes. Raises ConfigurationError."""
        return (await asyncio.to_thread(self._load_prompts)).tokenizer.pieces

    async def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The prompt ids of a chat body. Raises BadRequest."""
        prompts = await asyncio.to_thread(self._load_prompts)
        return await asyncio.to_thread(prompts.ids, body)

    def _load_prompts(self) -> Prompts:
        if self._prompts is None:
            self._prompts = self.make_prompts()
        return self._prompts

    async def _ask(self, request: EngineRequest) -> EngineReply:
        child = await self._running()
        name = str(next(self._names))
        future: asyncio.Future[EngineReply] = asyncio.get_running_loop().create_future()
        child.pending[name] = future
        body = dict(request.body) if request.raw is None else orjson.Fragment(request.raw)
        try:
            child.send(
                {"op": "generate", "name": name, "request_id": request.request_id, "body": body}
            )
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
                raise EngineUnavailable(f"the {self.kind} engine is stopped")
            if self._child is not None:
                lived_s = time.monotonic() - self._started_s
                self._backoff_s = (
                    0.1
                    if lived_s > 30
                    else min(LONGEST_BACKOFF_S, max(0.1, 2 * self._backoff_s))
                )
                await asyncio.sleep(self._backoff_s)
            self._started_s = time.monotonic()
            self._child = await self._spawn()
            return self._child

    async def _spawn(self) -> _Child:
        root = str(Path(__file__).parents[3])
        environment = {
            **os.environ,
            **self.child_environment(),
            "PYTHONPATH": os.pathsep.join(
                filter(None, (root, os.environ.get("PYTHONPATH", "")))
            ),
        }
        options = await asyncio.to_thread(self.child_options)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self.child_module,
            options.as_json(),
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        child = _Child(process)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self.start_timeout_s):
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
            raise EngineUnavailable(f"the {self.kind} engine's process did not start")
        child.reader = asyncio.create_task(self._receive(child, process.stdout))
        return child

    async def _receive(self, child: _Child, stdout: asyncio.StreamReader) -> None:
        """Hand replies to their waiters until the child ends."""
        try:
            while (message := await receive_frame(stdout)) is not None:
                future = child.pending.pop(message["name"], None)
                if future is not None and not future.done():
                    future.set_result(
                        EngineReply(message["status"], JSON_HEADERS, message["body"].encode())
                    )
        except BrokenFrame:
            pass
        finally:
            child.fail()
            await child.process.wait()

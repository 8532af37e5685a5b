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

from explorer.engine.protocol import EngineReply, EngineRequest
from explorer.engine.tiny.frames import BrokenFrame, pack, receive_frame
from explorer.engine.tiny.parts import Spellings
from explorer.engine.tiny.runtime import TinyOptions
from explorer.engine.tiny.stream import stream_reply
from explorer.errors import (
    ConfigurationError,
    EngineRefusedStream,
    EngineTimeout,
    EngineUnavailable,
)

STOP_TIMEOUT_S = 3.0
LONGEST_BACKOFF_S = 5.0
ANSWER_TIMEOUT_S = 60.0
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

    @abstractmethod
    def child_options(self) -> TinyOptions:
        """What the child is told; may read files. Raises ConfigurationError."""

    @abstractmethod
    def child_environment(self) -> Mapping[str, str]:
        """Variables that the child gets beside our own."""

    @abstractmethod
    async def spellings(self) -> Spellings:
        """The bytes of ids, for streams. Raises ConfigurationError."""

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
        body = dict(request.body) if request.raw is None else orjson.Fragment(request.raw)
        return await self._within(
            request.timeout_s,
            {"op": "generate", "request_id": request.request_id, "body": body},
        )

    async def stream(self, request: EngineRequest) -> AsyncIterator[bytes]:
        """The completion as events; they are made when the generation has ended.

        Raises as `generate`.
        """
        asked = dict(request.body)
        inner = {**asked, "return_token_ids": True, "stream": True}
        reply = await self.generate(EngineRequest(inner, request.request_id, request.timeout_s))
        if reply.status != 200:
            raise EngineRefusedStream(f"the engine answered with {reply.status}", reply)
        content = orjson.loads(reply.body)
        for chunk in stream_reply(content, await self.spellings(), asked):
            yield chunk

    async def question(self, op: str, **fields: Any) -> EngineReply:
        """What the child answers to one message.

        Raises EngineUnavailable when it dies, EngineTimeout, or ConfigurationError when it
        must be started first and the model is unusable.
        """
        return await self._within(ANSWER_TIMEOUT_S, {"op": op, **fields})

    async def _within(self, timeout_s: float, message: Mapping[str, Any]) -> EngineReply:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(message)
        except TimeoutError:
            raise EngineTimeout(
                f"no reply from the {self.kind} engine in {timeout_s:g} s"
            ) from None

    async def _ask(self, message: Mapping[str, Any]) -> EngineReply:
        child = await self._running()
        name = str(next(self._names))
        future: asyncio.Future[EngineReply] = asyncio.get_running_loop().create_future()
        child.pending[name] = future
        try:
            child.send({**message, "name": name})
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

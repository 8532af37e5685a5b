"""A local ``vllm serve`` with the flags that capture needs, started and stopped by us.

Owns: the command line, the process and its log.
Must not know: anything about replies; it is an `HttpEngine` once it is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

from explorer.engine.http import HttpEngine, wait_until_up
from explorer.errors import ConfigurationError, EngineUnavailable

# processed_logprobs: the numbers are the probabilities tokens were drawn with.
# generation-config vllm: an omitted temperature is 1.0, not the model's taste.
CAPTURE_FLAGS = (
    "--logprobs-mode",
    "processed_logprobs",
    "--generation-config",
    "vllm",
)


class LocalVllm(HttpEngine):
    """`vllm serve MODEL` as a child process on a free loopback port.

    Args:
        model: path or Hub id given to vLLM.
        extra: more flags for `vllm serve` (tool and reasoning parsers, dtype, …).
        start_timeout_s: longest wait for the server to come up (seconds).
    """

    kind = "vllm"

    def __init__(
        self, model: str, *, extra: tuple[str, ...] = (), start_timeout_s: float = 600.0
    ) -> None:
        self._port = _free_port()
        super().__init__(f"http://127.0.0.1:{self._port}")
        self._model_path = model
        self._extra = extra
        self._start_s = start_timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self.log_path = Path(tempfile.gettempdir()) / f"rollout-explorer-vllm-{self._port}.log"

    async def _flags(self) -> tuple[str, ...] | None:
        return (*CAPTURE_FLAGS, *self._extra)

    def command(self) -> list[str]:
        """The exact command line.

        Raises:
            ConfigurationError: vLLM is not installed in this environment.
        """
        program = Path(sys.executable).with_name("vllm")
        found = str(program) if program.exists() else shutil.which("vllm")
        if found is None:
            raise ConfigurationError(
                "`--engine vllm:MODEL` needs vLLM in this environment: "
                "pip install 'rollout-explorer[vllm]' (never beside [trl]), or start vLLM "
                f"yourself with {' '.join(CAPTURE_FLAGS)} and pass its URL"
            )
        return [
            found,
            "serve",
            self._model_path,
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
            *CAPTURE_FLAGS,
            *self._extra,
        ]

    async def start(self) -> None:
        """Starts the server and waits until it lists its model.

        Raises:
            ConfigurationError: vLLM is not installed.
            EngineUnavailable: it ended or did not come up in time; names the log.
        """
        command = self.command()
        with self.log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | {"HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1"},
            )
        await super().start()
        waiting = asyncio.ensure_future(wait_until_up(self, self._start_s))
        ended = asyncio.ensure_future(self._process.wait())
        await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done() and waiting.exception() is None:
            ended.cancel()
            return
        waiting.cancel()
        ended.cancel()
        await self.stop()
        raise EngineUnavailable(
            f"vLLM did not come up; the last lines of {self.log_path}: {self._log_tail()}"
        )

    async def stop(self) -> None:
        """Ends the server's whole process group: TERM, then KILL after 10 s."""
        await super().stop()
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _log_tail(self) -> str:
        try:
            text = self.log_path.read_text(errors="replace")
        except OSError:
            return "(no log)"
        return " | ".join(text.splitlines()[-5:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

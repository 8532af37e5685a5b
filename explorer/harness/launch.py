"""Runs a command to its end: signals, time-outs and everything that it started.

Owns: the life of the command's process group.
Must not know: harnesses, rollouts, the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from explorer.harness.stream import Stream
from explorer.harness.terminal import Terminal

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NOT_FOUND, NOT_EXECUTABLE, TIMED_OUT = 127, 126, 124
# How long what a command left running may take to end, and its output to arrive.
_LEFT_BEHIND_S, _OUTPUT_S, _POLL_S = 2.0, 1.0, 0.05

Signals = asyncio.Queue[signal.Signals]


@dataclass(frozen=True, slots=True)
class Limits:
    """`timeout_s`: longest run; `grace_s`: from the first request to end to SIGKILL."""

    timeout_s: float | None = None
    grace_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended.

    Attributes:
        exit_code: as a shell says it: 128 + n after signal n.
        signal: the signal that ended it.
        forwarded: the first signal that we were sent and passed on.
        killed: it had to be ended with SIGKILL.
        left_behind: it left processes running, which were ended.
        problem: why it could not be started.
    """

    exit_code: int
    duration_s: float
    signal: str | None = None
    forwarded: str | None = None
    timed_out: bool = False
    killed: bool = False
    left_behind: bool = False
    problem: str | None = None
    stdout: bytes = b""
    stderr: bytes = b""


def catch_signals() -> Signals:
    """From now on the usual signals end nothing by themselves; they are queued."""
    caught: Signals = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in FORWARDED:
        loop.add_signal_handler(number, caught.put_nowait, number)
    return caught


async def launch(
    command: Sequence[str],
    environment: Mapping[str, str],
    limits: Limits,
    signals: Signals,
    *,
    secret: str = "",
    umask: int = -1,
) -> Outcome:
    """Runs `command` here, with our standard input and its output passed through.

    Args:
        signals: what `catch_signals` gave; each is forwarded to all that the command
            started.
        secret: never cut in two in the kept output, so that it can be masked.
        umask: for the command; -1 keeps ours.
    """
    started = time.monotonic()
    if not signals.empty():
        number = signals.get_nowait()
        return Outcome(128 + number, 0.0, signal=number.name, forwarded=number.name)
    group: list[int] = []

    def resized() -> None:
        for leader in group:
            _tell(leader, signal.SIGWINCH)

    out, err = Stream(1, resized), Stream(2, resized)
    terminal = Terminal()
    try:
        process = subprocess.Popen(  # noqa: S603, ASYNC220 - the person's own command
            list(command),
            stdout=out.child_end,
            stderr=err.child_end,
            env=dict(environment),
            process_group=0,
            umask=umask,
        )
    except (OSError, ValueError) as error:
        out.discard()
        err.discard()
        return _never_started(command[0], error)
    group.append(process.pid)
    out.start()
    err.start()
    terminal.lend(process.pid)
    watch = _Watch(process, terminal, limits, signals, started)
    try:
        await watch.to_the_end()
    finally:
        _tell(process.pid, signal.SIGKILL)
        terminal.take_back()
        await asyncio.to_thread(out.finish, _OUTPUT_S)
        await asyncio.to_thread(err.finish, _OUTPUT_S)
    return watch.outcome(out.tail(secret.encode()), err.tail(secret.encode()))


def _never_started(program: str, error: OSError | ValueError) -> Outcome:
    if isinstance(error, FileNotFoundError):
        return Outcome(NOT_FOUND, 0.0, problem=f"command not found: {program}")
    why = error.strerror if isinstance(error, OSError) else str(error)
    return Outcome(NOT_EXECUTABLE, 0.0, problem=f"cannot run {program}: {why}")


class _Watch:
    """A running command until it and all of its group are gone."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        terminal: Terminal,
        limits: Limits,
        signals: Signals,
        started: float,
    ) -> None:
        self._process = process
        self._terminal = terminal
        self._limits = limits
        self._signals = signals
        self._started = started
        self._duration_s = 0.0
        self._kill_at: float | None = None
        self._forwarded: signal.Signals | None = None
        self._timed_out = self._killed = self._left_behind = False

    async def to_the_end(self) -> None:
        """Forwards signals and keeps the times; returns when nothing runs any more."""
        waiting = asyncio.create_task(asyncio.to_thread(self._wait))
        try:
            while not waiting.done():
                getting = asyncio.create_task(self._signals.get())
                await asyncio.wait(
                    {waiting, getting},
                    timeout=self._next_deadline(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if getting.done():
                    self._forward(getting.result())
                else:
                    getting.cancel()
                if not waiting.done():
                    self._keep_time()
        finally:
            if not waiting.done():
                _tell(self._process.pid, signal.SIGKILL)
            await waiting
        self._duration_s = time.monotonic() - self._started
        await self._end_the_rest()

    def _wait(self) -> None:
        """Waits in a thread for the command itself, through stops and continues."""
        while True:
            _, status = os.waitpid(self._process.pid, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                self._terminal.stopped(self._process.pid, os.WSTOPSIG(status))
                continue
            self._process.returncode = os.waitstatus_to_exitcode(status)
            return

    def _next_deadline(self) -> float | None:
        limit = self._limits.timeout_s
        at = self._kill_at
        if at is None and limit is not None:
            at = self._started + limit
        if at is None or self._killed:
            return None
        return max(0.0, at - time.monotonic())

    def _keep_time(self) -> None:
        now = time.monotonic()
        limit = self._limits.timeout_s
        if self._kill_at is not None:
            if now >= self._kill_at and not self._killed:
                self._killed = True
                _tell(self._process.pid, signal.SIGKILL)
        elif limit is not None and now >= self._started + limit:
            self._timed_out = True
            self._kill_at = now + self._limits.grace_s
            _tell(self._process.pid, signal.SIGTERM)

    def _forward(self, number: signal.Signals) -> None:
        _tell(self._process.pid, number)
        # A stopped command could not hear it.
        _tell(self._process.pid, signal.SIGCONT)
        if self._forwarded is None:
            self._forwarded = number
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._limits.grace_s

    async def _end_the_rest(self) -> None:
        """What the command left running may no longer call anybody; it is ended."""
        group = self._process.pid
        if not _alive(group):
            return
        if self._kill_at is None:
            self._left_behind = True
            self._kill_at = time.monotonic() + min(_LEFT_BEHIND_S, self._limits.grace_s)
            _tell(group, signal.SIGTERM)
        # Nothing tells when a group that is not ours to wait for has ended.
        while time.monotonic() < self._kill_at and _alive(group):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        if _alive(group):
            self._killed = True
            _tell(group, signal.SIGKILL)

    def outcome(self, stdout: bytes, stderr: bytes) -> Outcome:
        """What is known at the end."""
        code = self._process.returncode
        died_of = _name(-code) if code < 0 else None
        shown = 128 - code if code < 0 else code
        if self._timed_out and shown == 0:
            shown = TIMED_OUT
        return Outcome(
            exit_code=shown,
            duration_s=self._duration_s,
            signal=died_of,
            forwarded=self._forwarded.name if self._forwarded else None,
            timed_out=self._timed_out,
            killed=self._killed,
            left_behind=self._left_behind,
            stdout=stdout,
            stderr=stderr,
        )


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _tell(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _alive(group: int) -> bool:
    """Whether anything of a process group still runs; the dead and unburied do not."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    processes = Path("/proc")
    if not (processes / "self" / "stat").exists():
        return True
    for entry in processes.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if len(fields) > 2 and fields[2] == str(group) and fields[0] not in ("Z", "X"):
            return True
    return False

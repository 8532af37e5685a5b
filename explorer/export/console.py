"""SQL queries of the operator, each in a process of its own over a copy of the store.

Owns: the copy and how long it is used, the processes and their limits, what a dead one means.
Must not know: HTTP, pages, what is in the copy.

Nothing of a query runs in this process: not even its text is parsed here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from explorer.errors import CapacityReached, QueryFailed
from explorer.store.interface import Snapshot

MiB = 1024 * 1024
MOST_SQL = 10_000
_STDERR = 4000


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may use."""

    rows: int = 1000
    bytes: int = 8 * MiB
    execution_s: float = 4.0
    cpu_s: int = 5
    wall_s: float = 8.0
    load_s: int = 20
    memory: int = 256 * MiB
    address_space: int = 1024 * MiB
    at_once: int = 2


# A file may be larger than what is put on a page.
FILE_ROWS, FILE_BYTES = 100_000, 64 * MiB

Cell = bool | int | float | str | bytes | None


@dataclass(frozen=True, slots=True)
class Typed:
    """A value that JSON has no form for, as text."""

    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query.

    Attributes:
        columns: name and DuckDB's type of each.
        truncated: `rows` or `bytes` when a limit cut the answer, else empty.
        isolation: what the process was shut off from.
        seconds: from starting the process to its end.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell | Typed, ...], ...]
    truncated: str
    isolation: dict[str, str]
    seconds: float
    snapshot: Snapshot


@dataclass(slots=True)
class _Held:
    """A copy with its files, open as long as somebody uses them."""

    snapshot: Snapshot
    stamp: int
    files: dict[str, int]
    users: int = 0
    stale: bool = False


@dataclass(slots=True)
class _Heard:
    """What a process has said so far."""

    columns: tuple[tuple[str, str], ...] = ()
    rows: list[tuple[Cell | Typed, ...]] = field(default_factory=list)
    isolation: dict[str, str] = field(default_factory=dict)
    truncated: str = ""
    error: str | None = None
    ended: bool = False


class Console:
    """Answers queries.

    Args:
        take: makes a copy of the store.
        stamp: changes whenever the store does.
        limits: what one query may use.
    """

    def __init__(
        self,
        take: Callable[[], Snapshot],
        stamp: Callable[[], int],
        limits: Limits | None = None,
    ) -> None:
        self._take = take
        self._stamp = stamp
        self.limits = limits or Limits()
        self._building = threading.Lock()
        self._guard = threading.Lock()
        self._held: _Held | None = None
        self._running = threading.BoundedSemaphore(self.limits.at_once)

    def run(self, sql: str, rows: int | None = None, most_bytes: int | None = None) -> Answer:
        """One query; blocks its thread for at most the wall-clock limit and a copy.

        Raises:
            QueryFailed: in DuckDB's words, or ours when the process died.
            CapacityReached: as many as may run at once do.
        """
        if len(sql) > MOST_SQL:
            raise QueryFailed(
                f"a query has at most {MOST_SQL:,} characters; this has {len(sql):,}"
            )
        if not self._running.acquire(blocking=False):
            raise CapacityReached(
                f"{self.limits.at_once} queries are running already; try again in a moment"
            )
        try:
            with self._copy() as held:
                return self._ask(
                    sql, held, rows or self.limits.rows, most_bytes or self.limits.bytes
                )
        finally:
            self._running.release()

    @contextlib.contextmanager
    def _copy(self) -> Iterator[_Held]:
        """The copy, made again when the store has changed since.

        Under a constant stream of calls a large copy would be made for every query; it is
        then used for five times as long as it took.
        """
        with self._building:
            stamp, held = self._stamp(), self._held
            if held is not None and held.stamp != stamp:
                age = time.time() - held.snapshot.taken_us / 1e6
                build = held.snapshot.build_s
                if build < 1 or not 0 <= age < 5 * build:
                    self._drop(held)
                    held = None
            if held is None:
                snapshot = self._take()
                files = {name: file_of(data) for name, data in snapshot.files.items()}
                held = self._held = _Held(snapshot, stamp, files)
            with self._guard:
                held.users += 1
        try:
            yield held
        finally:
            with self._guard:
                held.users -= 1
                self._sweep(held)

    def _drop(self, held: _Held) -> None:
        with self._guard:
            held.stale = True
            self._held = None
            self._sweep(held)

    @staticmethod
    def _sweep(held: _Held) -> None:
        if held.stale and not held.users:
            for descriptor in held.files.values():
                os.close(descriptor)
            held.files.clear()

    def close(self) -> None:
        """Give the copy back."""
        with self._building:
            if self._held is not None:
                self._drop(self._held)

    def _ask(self, sql: str, held: _Held, rows: int, most_bytes: int) -> Answer:
        limits = self.limits
        request = {
            "tables": list(held.files.items()),
            "views": held.snapshot.views,
            "sql": sql,
            "rows": rows,
            "bytes": most_bytes,
            "cpu_s": limits.cpu_s,
            "load_s": limits.load_s,
            "execution_ms": round(limits.execution_s * 1000),
            "memory": limits.memory,
            "address_space": limits.address_space,
        }
        began = time.monotonic()
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as errors:
            asked.write(json.dumps(request).encode())
            asked.seek(0)
            with _start(asked, errors, tuple(held.files.values())) as process:
                heard, why = self._listen(process, most_bytes)
            errors.seek(0)
            told = errors.read(_STDERR).decode(errors="replace")
        if heard.error is not None:
            raise QueryFailed(without_paths(heard.error))
        if not heard.ended:
            raise QueryFailed(why or _death(process.returncode, told, limits))
        return Answer(
            columns=heard.columns,
            rows=tuple(heard.rows),
            truncated=heard.truncated,
            isolation=heard.isolation,
            seconds=time.monotonic() - began,
            snapshot=held.snapshot,
        )

    def _listen(self, process: subprocess.Popen[bytes], most: int) -> tuple[_Heard, str]:
        """What it says until it ends, is too slow or says too much; and why we ended it."""
        heard, rest = _Heard(), b""
        # Loading a large copy is not the query's fault.
        until = time.monotonic() + self.limits.load_s + self.limits.wall_s
        started, left = False, 2 * most + MiB
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not heard.ended and heard.error is None:
                wait = until - time.monotonic()
                if wait <= 0 or not selector.select(wait):
                    _kill(process)
                    return heard, f"the query took longer than {self.limits.wall_s:g} s"
                data = os.read(process.stdout.fileno(), 1 << 16)
                left -= len(data)
                if not data:
                    break
                if left < 0:
                    _kill(process)
                    return heard, "the query's process wrote more than it may"
                *lines, rest = (rest + data).split(b"\n")
                if not all(_hear(heard, line) for line in lines):
                    _kill(process)
                    return heard, "the query's process wrote what is no answer"
                if heard.isolation and not started:
                    started = True
                    until = min(until, time.monotonic() + self.limits.wall_s)
        if heard.ended or heard.error is not None:
            _kill(process)
        return heard, ""


def file_of(data: bytes) -> int:
    """A file without a name that a process can read and nobody can change."""
    if hasattr(os, "memfd_create"):
        import fcntl

        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        descriptor = os.memfd_create("rollout-explorer-copy", flags)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return descriptor
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return os.open(file.name, os.O_RDONLY)


def _start(
    asked: IO[bytes], errors: IO[bytes], descriptors: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-X", "utf8", "-m", "explorer.export.console_child"],
        stdin=asked,
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd="/",
        env={},
        close_fds=True,
        pass_fds=descriptors,
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        process.kill()


def _hear(heard: _Heard, line: bytes) -> bool:
    """Takes one line in; False when it is none of ours."""
    try:
        message = json.loads(line)
        if "rows" in message:
            heard.rows += [tuple(_value(item) for item in row) for row in message["rows"]]
        elif "columns" in message:
            heard.columns = tuple((str(name), str(kind)) for name, kind in message["columns"])
        elif "isolation" in message:
            heard.isolation = {str(k): str(v) for k, v in message["isolation"].items()}
        elif "error" in message:
            heard.error = str(message["error"])
        else:
            heard.truncated = str(message["end"]["truncated"])
            heard.ended = True
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    return True


def _value(item: Any) -> Cell | Typed:
    if isinstance(item, dict):
        ((kind, text),) = item.items()
        if kind == "b":
            import base64

            return base64.b64decode(text)
        return float(text) if kind == "f" else Typed(str(text))
    if item is None or isinstance(item, (bool, int, float, str)):
        return item
    raise TypeError(item)


def _death(code: int | None, told: str, limits: Limits) -> str:
    """Why a process ended without an answer."""
    unaffected = "the server is not affected"
    if code == -signal.SIGXCPU:
        return (
            f"the query used more than its {limits.cpu_s} s of CPU and was ended; {unaffected}"
        )
    if "MemoryError" in told or "bad_alloc" in told or code == -signal.SIGSEGV:
        return f"the query used more memory than it may and was ended; {unaffected}"
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"the query's process died ({name}) without an answer; {unaffected}"
    return f"the query's process ended (status {code}) without an answer; {unaffected}"


_PLACES = sorted(
    {str(Path(place)) for place in (sys.prefix, sys.base_prefix, sys.exec_prefix) if place},
    key=len,
    reverse=True,
)
_FILES = re.compile(r"/(?:proc/self|dev)/fd/\d+|/?\.duckdb/[\w./-]*")


def without_paths(text: str) -> str:
    """A message without places on this machine; the query's own text stays."""
    for place in _PLACES:
        if place != "/":
            text = text.replace(place, "…")
    # Advice to set what is locked helps nobody.
    return _FILES.sub("…", text.partition("\n\nPossible solutions:")[0]).strip()

"""The process that answers one SQL query and ends; `console` starts it.

Owns: giving up rights, loading the copy, shutting the database in, and writing the answer.
Must not know: the store, HTTP, who asks. It imports nothing of ours, so that it starts fast.

Standard input is one JSON object: `tables` (name, file descriptor), `views`, `sql`, `rows` and
the limits. Standard output is JSON objects, one a line: `isolation`, `columns`, any number of
`rows`, then `end` or `error`. A dead process is the parent's business.
"""

from __future__ import annotations

import base64
import ctypes
import datetime
import decimal
import json
import math
import os
import resource
import sys
import uuid
import zoneinfo
from typing import Any

NOBODY = 65534
_NEW_USER, _NEW_NET, _NO_NEW_PRIVS = 0x10000000, 0x40000000, 38
_CAPABILITY_VERSION = 0x20080522
_CHUNK = 256


def limit(request: dict[str, Any]) -> None:
    """Limits that nothing in this process can raise again."""
    for kind, most in (
        (resource.RLIMIT_AS, int(request["address_space"])),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(request["load_s"]) + int(request["cpu_s"])),
    ):
        _lower(kind, most)


def _lower(kind: int, most: int) -> None:
    # A second between the two, so that the signal says what it was.
    last = most + 1 if kind == resource.RLIMIT_CPU else most
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        last = min(last, hard)
    resource.setrlimit(kind, (min(most, last), last))


def leave_network() -> str:
    """Move to an empty network where the system allows it; says what became of it."""
    if sys.platform != "linux":
        return "shared"
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    as_root = os.geteuid() == 0
    if libc.unshare(_NEW_NET if as_root else _NEW_USER | _NEW_NET) != 0:
        return f"shared ({os.strerror(ctypes.get_errno())})"
    if not as_root:
        # A user namespace of one's own comes with every capability in it.
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
        if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
            return "own, with capabilities in it"
    return "own"


def leave_root() -> str:
    """Become nobody when we are root; says who we are."""
    if os.geteuid() != 0:
        return "the server's user"
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    except OSError as error:
        return f"root ({error.strerror})"
    return "nobody"


def prepare(duckdb: Any, request: dict[str, Any]) -> Any:
    """An in-memory database with the copy in it and no way out."""
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        },
    )
    for name, descriptor in request["tables"]:
        folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
        connection.execute(
            f"CREATE TABLE \"{name}\" AS SELECT * FROM read_parquet('{folder}/{descriptor}')"  # noqa: S608
        )
        os.close(descriptor)
    for view in request["views"]:
        connection.execute(view)
    held = connection.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchone()
    most = int(held[0] or 0) + int(request["memory"])
    connection.execute("SET enable_external_access = false")
    connection.execute(f"SET memory_limit = '{most}B'")
    connection.execute(f"SET max_execution_time = {int(request['execution_ms'])}")
    connection.execute("SET lock_configuration = true")
    return connection


def cell(value: Any) -> Any:
    """A value as JSON without losing anything: what JSON has as itself, the rest tagged."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"f": str(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"b": base64.b64encode(value).decode()}
    if isinstance(value, datetime.datetime):
        return {"t": value.isoformat(sep=" ")}
    if isinstance(value, (datetime.date, datetime.time)):
        return {"t": value.isoformat()}
    if isinstance(value, (decimal.Decimal, uuid.UUID, datetime.timedelta)):
        return {"t": str(value)}
    return {"t": json.dumps(_nested(value), ensure_ascii=False)}


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _nested(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nested(item) for item in value]
    found = cell(value)
    if isinstance(found, dict):
        ((kind, text),) = found.items()
        return base64.b64decode(text).hex() if kind == "b" else text
    return found


def say(**message: Any) -> int:
    """One line to the parent; its length."""
    line = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    return len(line)


def answer(connection: Any, request: dict[str, Any]) -> None:
    """Run the one statement and write its rows, as far as they may go."""
    statements = connection.extract_statements(request["sql"])
    if len(statements) != 1:
        count = f"are {len(statements)}" if statements else "is none"
        say(error=f"give exactly one statement; there {count}")
        return
    connection.execute(statements[0])
    columns = connection.description or []
    say(columns=[[str(column[0]), str(column[1])] for column in columns])
    left, size = int(request["rows"]), int(request["bytes"])
    while columns:
        rows = connection.fetchmany(min(_CHUNK, left + 1))
        more, rows = len(rows) > left, rows[:left]
        left -= len(rows)
        part: list[Any] = []
        for row in rows:
            made = [cell(value) for value in row]
            size -= len(json.dumps(made, ensure_ascii=False))
            if size < 0:
                say(rows=part)
                say(end={"truncated": "bytes"})
                return
            part.append(made)
        say(rows=part)
        if more or not rows:
            say(end={"truncated": "rows" if more else ""})
            return
    say(end={"truncated": ""})


def main() -> None:
    """Everything, in the order that makes it safe: the query is touched last."""
    request = json.loads(sys.stdin.buffer.read())
    os.close(0)
    limit(request)
    network = leave_network()
    # Nobody may be unable to read this installation: what is needed later comes in now.
    zoneinfo.ZoneInfo("UTC")
    import duckdb

    try:
        connection = prepare(duckdb, request)
    except (duckdb.Error, MemoryError) as error:
        say(error=f"the copy of the store could not be loaded: {error}", ours=True)
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    _lower(
        resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + int(request["cpu_s"])
    )
    user = leave_root()
    if user != "the server's user":
        _lower(resource.RLIMIT_NPROC, 0)
    say(isolation={"network": network, "user": user})
    try:
        answer(connection, request)
    except MemoryError:
        say(error="Out of Memory Error: the answer needs more memory than a query may use")
    except (duckdb.Error, ValueError, OverflowError, TypeError, RuntimeError) as error:
        say(error=str(error))
    # Destructors of a database in an unknown state are worth nothing to anybody.
    sys.stdout.buffer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

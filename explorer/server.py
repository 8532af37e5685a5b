"""Runs the application in one uvicorn process. Wiring only.

Owns: sockets, signals, the run-file and what is printed at start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging.config
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvicorn

from explorer import __version__, runfile
from explorer.access.secrets import log_uncaught
from explorer.app import Application
from explorer.engine.factory import make_engine
from explorer.errors import ConfigurationError
from explorer.logs import logging_config
from explorer.settings import Settings
from explorer.store import maintenance
from explorer.store.duckdb_store import DuckDBStore, StoreOptions

log = logging.getLogger(__name__)
T = TypeVar("T")
SWITCH_INTERVAL_S = 0.0005
GC_THRESHOLD = 20_000
# Called once the server is up; answers whether to go on serving.
Ready = Callable[[Application, str], Awaitable[bool]]


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` on uvloop where there is one; it halves the cost of a proxied call."""
    # The writer thread waits for the interpreter up to this long whenever the loop is
    # busy; at the default of 5 ms that wait, and not the disk, was most of a commit.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        import uvloop
    except ImportError:  # not built for this platform
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def listen(host: str, port: int) -> socket.socket:
    """The listening socket, bound before anything slow is started.

    Raises:
        ConfigurationError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it. Without uvloop nobody else would set it, and the end of every
    # reply on a kept connection would wait 40 ms for the client's acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.bind((host.strip("[]"), port))
    except OSError as error:
        sock.close()
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port "
            "(0 takes a free one)"
        ) from error
    return sock


def address(settings: Settings, sock: socket.socket) -> str:
    """The address a person can open."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    return local_address(settings, sock)


def local_address(settings: Settings, sock: socket.socket) -> str:
    """The address that a command on this machine reaches the server by."""
    port = sock.getsockname()[1]
    host = settings.host
    if host in ("0.0.0.0", "::"):  # noqa: S104 - a bind address is no address to open
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Tells when it is up, and records what is in flight before it goes down."""

    def __init__(
        self, config: uvicorn.Config, up: asyncio.Event, application: Application
    ) -> None:
        super().__init__(config)
        self._up = up
        self._application = application

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, and then sets the event."""
        await super().startup(sockets)
        if self.started:
            self._up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends calls in flight with a record and an answer, then as uvicorn's."""
        self._application.live.close()
        await self._application.proxy.stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stops on the usual signals. uvicorn's own version raises the signal again at
        the end, which would skip what must still be put away."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def run(settings: Settings, ready: Ready) -> None:
    """Serves until a signal; `ready` is called once with the application and address.

    Raises:
        ConfigurationError, StoreLocked, StoreDamaged, UpstreamFailed: before anything is
            served.
    """
    # Before anything can log: what comes while starting is masked, too.
    logging.config.dictConfig(logging_config(settings.log_level))
    log_uncaught()
    with contextlib.closing(listen(settings.host, settings.port)) as sock:
        engine = make_engine(settings)
        store = await asyncio.to_thread(open_store, settings)
        application = Application(settings, engine, store)
        try:
            await application.start()
            await _serve(application, sock, ready)
        finally:
            await application.stop()


def open_store(settings: Settings) -> DuckDBStore:
    """The store as the settings want it; blocking."""
    options = StoreOptions(
        min_free_bytes=settings.min_free_bytes,
        app_version=__version__,
        read_only=settings.read_only,
    )
    store = DuckDBStore(settings.store, options)
    if settings.compact_at_start and not settings.read_only and store.n_deleted():
        store.close_now()
        report = maintenance.compact(settings.store, app_version=__version__)
        log.info("%d deleted rollouts are gone from the file", report.dropped_rollouts)
        store = DuckDBStore(settings.store, options)
    return store


def _write_runfile(settings: Settings, run: runfile.RunFile) -> None:
    try:
        runfile.write(settings.store, run)
    except OSError:
        # Where nothing is written, the folder need not be writable.
        if not settings.read_only:
            raise


async def _serve(application: Application, sock: socket.socket, ready: Ready) -> None:
    """Answers until told to stop; the run-file stands exactly as long."""
    settings = application.settings
    config = uvicorn.Config(
        application,
        lifespan="off",
        log_config=logging_config(settings.log_level),
        access_log=False,
        server_header=False,
        # Forwarded headers are believed from nobody.
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=10,
        # No route speaks websockets: an upgrade is answered in words, by the proxy.
        ws="none",
        # DuckDB has one writer, so there is one process.
        workers=1,
    )
    up = asyncio.Event()
    server = Server(config, up, application)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await up.wait()
        # What lives as long as the server need not be looked at again by the collector,
        # and a decoded reply of a thousand small objects must not set it off each time.
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        url = address(settings, sock)
        token = application.operator.token
        local = local_address(settings, sock)
        _write_runfile(settings, runfile.RunFile(local, token, os.getpid()))
        server.should_exit = not await ready(application, url) or server.should_exit
    except BaseException:
        server.should_exit = True
        raise
    finally:
        await serving
        runfile.remove(settings.store)

"""An application with only the pages, on a real store; and a real server for browsers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import uvicorn
from fastapi import Depends, FastAPI
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from explorer.access.audit import AuditLog
from explorer.access.database import AccessDatabase, access_path
from explorer.access.operator import Operator
from explorer.access.people import Caller, How, Role
from explorer.access.people import Scope as TokenScope
from explorer.access.policy import Level
from explorer.access.signing_in import SignIn
from explorer.export.deltas import DeltaSummaries
from explorer.export.hub.target import Target
from explorer.export.judged import JudgedRollouts
from explorer.export.publishing.desk import PublishingDesk
from explorer.export.publishing.jobs import Job, JobBook
from explorer.export.publishing.leaves import Leaves
from explorer.export.publishing.schedules import ScheduleBook
from explorer.export.sealing import Sealing
from explorer.settings import load
from explorer.store.duckdb_store import DuckDBStore, StoreOptions
from explorer.store.interface import Store
from explorer.trace.delta import Limits
from explorer.trace.policy import DEFAULT_POLICY
from explorer.web.access import Access
from explorer.web.gate import authorise
from explorer.web.services import Services
from explorer.web.setup import mount
from tests.web.seeds import CERTIFICATE, START_US
from tests.web.vocabulary import TOKENIZER, table

T = TypeVar("T")

PROVIDERS = (
    {"name": "huggingface", "issuer": "https://huggingface.co", "client_id": "c"},
    {
        "name": "corp",
        "title": "The Corporation",
        "issuer": "https://a.example",
        "client_id": "c",
    },
)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


class StrictPolicy:
    """The content policy that the guard sets in the product."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"content-security-policy", POLICY.encode()),
                ]
            await send(message)

        await self.app(scope, receive, with_policy)


Tables = dict[str, dict[int, tuple[bytes, bool]]]


def build_app(store: Store, tables: Tables, *, csp: bool = True) -> FastAPI:
    """The pages and nothing else; `tables` are the vocabularies by tokenizer."""
    guards = [Middleware(StrictPolicy)] if csp else []
    app = FastAPI(middleware=guards, openapi_url=None, dependencies=[Depends(authorise)])
    # Everybody is the operator here: who may see what is tested elsewhere.
    settings = load(allow_public_without_auth=True, providers=PROVIDERS)
    database = AccessDatabase(access_path(Path(store.health().path)))
    audit = AuditLog(database)
    sign_in = SignIn.of(settings, database, audit, Operator.of(settings, "made"))
    sign_in.tokens.make(
        Caller(Role.OPERATOR, How.OPERATOR_TOKEN), "nightly <b>job</b>", (TokenScope.READ,), 30
    )
    app.state.access = Access.of(database, audit, store, Level.PRIVATE, sign_in.identity)
    app.state.gate = app.state.access.gate
    app.state.sign_in = sign_in
    app.state.publishing = PublishingDesk(
        JobBook(database),
        ScheduleBook(database),
        Leaves(lambda session: None),
        audit,
        _nowhere,
        Path(store.health().path + ".datasets"),
    )
    mount(
        app,
        Services(
            store=store,
            judged=JudgedRollouts(
                store,
                lambda: DEFAULT_POLICY,
                lambda: START_US,
                DeltaSummaries(store, Limits, lambda: START_US).write,
            ),
            settings=settings,
            certificate=lambda: CERTIFICATE if store.list_runs() else None,
            vocabulary=lambda tokenizer: tables.get(tokenizer or "", {}),
            started_us=START_US,
            sealing=Sealing(store, lambda: START_US),
        ),
    )
    return app


def _nowhere(job: Job, token: str | None) -> Target:
    raise AssertionError(f"the pages alone publish nothing: {job.job_id}")


class Served:
    """A store and a server in a thread with its own loop."""

    def __init__(self, folder: Path, *, csp: bool = True) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = DuckDBStore(
            folder / "web.duckdb", StoreOptions(min_free_bytes=0, threads=1)
        )
        self.tables: Tables = {TOKENIZER: table()}
        self.app = build_app(self.store, self.tables, csp=csp)
        config = uvicorn.Config(
            self.app, host="127.0.0.1", port=0, log_level="warning", ws="none"
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self.server.serve())

    def call(self, made: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine on the server's loop."""

        async def go() -> T:
            return await made()

        return asyncio.run_coroutine_threadsafe(go(), self.loop).result(timeout=120)

    @property
    def url(self) -> str:
        """Where the pages are."""
        port = self.server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"


@contextmanager
def serving(folder: Path, *, csp: bool = True) -> Iterator[Served]:
    """A running server; stopped and closed at the end."""
    served = Served(folder, csp=csp)
    served.thread.start()
    for _ in range(200):
        if served.server.started:
            break
        time.sleep(0.05)
    try:
        yield served
    finally:
        served.call(served.store.close)
        served.app.state.access.database.close()
        served.server.should_exit = True
        served.thread.join(timeout=20)
        served.loop.close()

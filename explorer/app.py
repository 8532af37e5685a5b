"""Wiring: settings to a running application. No rules live here.

Owns: the order in which rooms start and stop, and which paths go to the proxy.

Size: every part of the server is made here once; two modules would pass them all on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from fastapi import Depends, FastAPI

from explorer import __version__
from explorer.access.audit import AuditLog, Entry, Event
from explorer.access.database import AccessDatabase, Rows, access_path
from explorer.access.guard import App, Receive, Scope, Send
from explorer.access.hub_gate import HubGate
from explorer.access.limits import Limiter
from explorer.access.operator import Operator, make_token
from explorer.access.policy import Level
from explorer.access.proxies import Proxies
from explorer.access.public_address import PublicAddress
from explorer.access.signing_in import SignIn
from explorer.capture import refusing
from explorer.capture.credentials import take_from_path
from explorer.capture.desk import Desk
from explorer.capture.ids import now_us
from explorer.capture.manifest_route import asked_for
from explorer.capture.watch import SetUpWatch
from explorer.capturing import Capturing
from explorer.certifier import Certifier
from explorer.engine.protocol import Engine
from explorer.engine.suffix import Suffixes
from explorer.engine.suffix_here import prompts_of
from explorer.errors import StoreReadOnly
from explorer.export.dataset.planning import Source
from explorer.export.deltas import DeltaSummaries, limits_of
from explorer.export.judged import JudgedRollouts
from explorer.export.rescoring import Rescoring
from explorer.export.sealing import Sealing
from explorer.export.secrets import SecretScans
from explorer.export.signing import SigningKey, read_signing_key
from explorer.external_custody import ExternalCustody
from explorer.fronting import WIRE_KEY, guard, is_wire
from explorer.indexing import Indexing
from explorer.issuing import Issuing
from explorer.policies import policy_of
from explorer.publishing_jobs import PublishingJobs
from explorer.records import Certificate, Rollout, RolloutId
from explorer.rejudging import Rejudging
from explorer.resetting import Resetting
from explorer.retention import Expired, Retention
from explorer.scanning import Scanning
from explorer.settings import Settings
from explorer.store.database import READ_ONLY
from explorer.store.duckdb_store import DuckDBStore
from explorer.store.search_index import SearchIndex, index_path
from explorer.store.sizes import RolloutSize
from explorer.trace.policy import Policy
from explorer.vocabularies import Vocabularies
from explorer.web import (
    account,
    api,
    api_weights,
    dataset_routes,
    delta_routes,
    delta_tab,
    exports,
    grant_routes,
    imports,
    live_routes,
    notes,
    receipt_routes,
    search_pages,
    secret_pages,
    views,
)
from explorer.web.access import Access
from explorer.web.desk_access import ApiServices
from explorer.web.fence_words import fence_words
from explorer.web.gate import authorise
from explorer.web.hiding import HiddenSecrets
from explorer.web.live import LiveRollouts
from explorer.web.removing import Removal
from explorer.web.services import Services
from explorer.web.setup import mount

# The routes for programs, in the order in which they are asked.
_PROGRAMS = (
    api.router,
    exports.router,
    receipt_routes.programs,
    delta_routes.programs,
    delta_tab.programs,
    api_weights.programs,
    imports.router,
    notes.programs,
    secret_pages.programs,
    views.programs,
    account.programs,
    search_pages.programs,
    live_routes.router,
    grant_routes.programs,
    dataset_routes.programs,
    api.probes,
    api.description,
)


class Application:
    """One process: engine, store, proxy and pages behind one ASGI callable.

    Args:
        settings: everything a person may choose.
        engine: not started yet.
        store: open.
    """

    def __init__(self, settings: Settings, engine: Engine, store: DuckDBStore) -> None:
        self.settings = settings
        self.engine = engine
        self.store = store
        self.made_token = make_token()
        self.operator = Operator.of(settings, self.made_token)
        self.vocabularies = Vocabularies(store, engine)
        self.certifier = Certifier(
            engine,
            self._keep_certificate,
            now_us,
            settings.model,
            interval_s=settings.probe_interval_s,
            suffixes=Suffixes(engine, prompts_of(engine, settings)),
        )
        self.policy: Policy = policy_of(settings)
        self.desk = Desk(
            store,
            settings.lineage_bytes,
            settings.retry_window_s,
            SetUpWatch(self.certifier.trouble),
        )
        self.custody = ExternalCustody.of(settings, os.environ)
        capturing = Capturing.of(
            *(settings, self.desk, engine, store),
            *(self.certifier, self.vocabularies, self.custody),
        )
        self.fences, self.proxy = capturing.fences, capturing.proxy
        self.deltas = DeltaSummaries(store, lambda: limits_of(settings), now_us)
        self.judged = JudgedRollouts(store, lambda: self.policy, now_us, self.deltas.write)
        self.live = LiveRollouts(store, self.judged)
        self.rejudging = Rejudging(store, self.judged, lambda: self.policy)
        self.secrets = SecretScans(store, self.vocabularies.get, now_us)
        self.scanning = Scanning(store, self.secrets, lambda: self.proxy.in_flight)
        self.sealing = Sealing(store, now_us, _receipt_key(settings))
        self.issuing = Issuing(store, self.sealing, lambda: self.proxy.in_flight)
        self.index = SearchIndex(index_path(settings.store), read_only=settings.read_only)
        self.indexing = Indexing(
            store,
            self.judged,
            self.index,
            self.secrets,
            self.vocabularies.get,
            lambda: self.proxy.in_flight,
        )
        self._ask_who(settings, store)
        self._tend(settings, store)
        source = Source(store, self.judged, self.secrets, self.vocabularies.get)
        self.publishing = PublishingJobs(settings, source, self.access, self.sign_in)
        self.proxies = Proxies.of(settings.trusted_proxies)
        self.public = PublicAddress(settings.public_url, settings.public_url_probe_s)
        self._fastapi = pages = self._make_pages()
        self._pages = cast("App", pages)
        self._app: App = guard(
            settings, self.sign_in, self.desk, self._dispatch, pages, self.custody
        )

    def _ask_who(self, settings: Settings, store: DuckDBStore) -> None:
        """Who somebody is and what they may do, over the access database."""
        database = AccessDatabase(settings.access_store or access_path(settings.store))
        audit = AuditLog(database, now_us)
        self.sign_in = SignIn.of(settings, database, audit, self.operator)
        self.access = Access.of(
            database,
            audit,
            store,
            Level(settings.default_visibility),
            self.sign_in.identity,
            HubGate(self.sign_in.outbound, self.sign_in.sessions, settings.hub_endpoint).passed,
            Limiter(settings.rate_per_minute, settings.rate_burst),
        )

    def _tend(self, settings: Settings, store: DuckDBStore) -> None:
        """What takes rollouts and visitors' leavings away."""
        self.removal = Removal(
            store,
            self.desk,
            self.judged,
            self.secrets,
            self.index,
            self.access.audit,
            self._forget_copy,
            lambda rollout_id: self.publishing.worker.forget(rollout_id),
        )
        self.retention = Retention(
            settings.retention, lambda: store.sizes(), self._levels, self._expire, now_us
        )
        self.resetting = Resetting(settings.reset_every_hours, self._reset)

    @property
    def certificate(self) -> Certificate | None:
        """The newest certificate of the engine."""
        return self.certifier.latest

    def _make_pages(self) -> FastAPI:
        app = FastAPI(
            title="Rollout Explorer",
            version=__version__,
            openapi_url=None,
            dependencies=[Depends(authorise)],
        )
        app.state.access = self.access
        app.state.deltas = self.deltas
        app.state.rescoring = Rescoring(
            self.engine,
            lambda: self.certificate,
            self.certifier.certified,
            self.fences.fence,
            self.settings.engine_timeout_s,
        )
        app.state.hiding = HiddenSecrets(self.secrets)
        app.state.gate = self.access.gate
        app.state.sign_in = self.sign_in
        app.state.publishing = self.publishing.desk
        services = Services(
            store=self.store,
            judged=self.judged,
            settings=self.settings,
            certificate=lambda: self.certificate,
            vocabulary=self.vocabularies.get,
            started_us=now_us(),
            alert=lambda: self.desk.watch.reason or self.public.reason or self.fences.alert,
            weights=lambda: fence_words(self.fences.standing()),
            index=self.index,
            secrets=self.secrets,
            sealing=self.sealing,
        )
        app.state.api = ApiServices(
            store=self.store,
            judged=self.judged,
            desk=self.desk,
            settings=self.settings,
            operator=self.operator,
            certificate=lambda: self.certificate,
            template=self.template,
            in_flight=lambda: self.proxy.in_flight,
            live=self.live,
            access=self.access,
            public=self.public,
            remove=self.removal,
            fences=self.fences,
        )
        for router in _PROGRAMS:
            app.include_router(router)
        mount(app, services)
        return app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI: the key leaves the path before anything can log it."""
        if scope["type"] == "http":
            scope = take_from_path(self.proxies.seen_through(scope))
            scope[WIRE_KEY] = is_wire(scope)
        await self._app(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get(WIRE_KEY) and self.settings.read_only:
            await refusing.refuse(scope, send, StoreReadOnly(READ_ONLY))
        elif scope.get(WIRE_KEY):
            await self.proxy(scope, receive, send)
        elif self.custody is not None and asked_for(scope.get("path", "")) is not None:
            await self.custody.route(scope, receive, send)
        else:
            await self._pages(scope, receive, send)

    async def start(self) -> None:
        """Engine up, certified; vocabulary kept; open rollouts known."""
        if self.settings.read_only:
            # Nothing will be sampled, so the engine that was recorded is told of, and no
            # side file is brought up to date.
            self.certifier.latest = await asyncio.to_thread(self.store.latest_certificate)
            await asyncio.to_thread(self.index.open)
            self.resetting.start()
            self.public.start()
            return
        await asyncio.to_thread(
            self.access.audit.append,
            Entry.by_server(
                Event.SERVER_STARTED,
                detail={
                    "version": __version__,
                    "profile": self.settings.profile,
                    "read_only": self.settings.read_only,
                },
            ),
        )
        await self.engine.start()
        # Before the probe: an engine of ours may load the weights that it had again.
        await self.fences.start()
        await self.certifier.start()
        await self.desk.start()
        self.rejudging.start()
        self.indexing.start()
        self.scanning.start()
        self.issuing.start()
        self.retention.start()
        self.resetting.start()
        self.publishing.start()
        # Last: the engine may take minutes, and nobody answers before that.
        self.public.start()

    async def stop(self) -> None:
        """Everything in flight is recorded, then rooms close in reverse order."""
        await self.public.stop()
        await self.publishing.stop()
        await self.retention.stop()
        await self.resetting.stop()
        await self.certifier.stop()
        await self.rejudging.stop()
        await self.issuing.stop()
        await self.scanning.stop()
        await self.indexing.stop()
        await self.proxy.stop()
        await self.fences.stop()
        await self.vocabularies.stop()
        await self.engine.stop()
        if self.custody is not None:
            await asyncio.to_thread(self.custody.close)
        await self.store.close()
        await self.sign_in.outbound.aclose()
        self.access.database.close()

    def _forget_copy(self) -> None:
        console = getattr(self._fastapi.state, "console", None)
        if console is not None:
            console.close()

    def _levels(self, rollouts: Sequence[RolloutSize]) -> dict[RolloutId, str]:
        """What retention goes by; blocks."""
        reach, found = self.access.reach, {}
        for each in rollouts:
            place = reach.place(each.rollout_id)
            if place is not None:
                found[each.rollout_id] = reach.holds(place).level.value
        return found

    async def _expire(self, expired: Expired) -> None:
        told = {"size": expired.rollout.size, "run": expired.rollout.run}
        entry = Entry.by_server(
            Event.ROLLOUT_EXPIRED,
            expired.rollout.rollout_id,
            reason=expired.reason,
            detail=told,
        )
        await self.removal(expired.rollout.rollout_id, entry)

    async def _reset(self) -> None:
        """Visitors' sessions, tokens and open requests are wiped; the log tells it."""

        def wipe() -> None:
            requests = self.access.grants.forget_pending()

            def work(rows: Rows) -> None:
                told = {
                    "requests": requests,
                    "sessions": self.sign_in.sessions.forget_all(rows),
                    "tokens": self.sign_in.tokens.forget_all(rows),
                }
                self.access.audit.append(Entry.by_server(Event.DEMO_RESET, detail=told), rows)

            self.access.database.write(work)

        await asyncio.to_thread(wipe)

    async def _keep_certificate(self, certificate: Certificate) -> None:
        await self.store.add_certificate(certificate)
        self.desk.watch.probed()
        await self.vocabularies.keep(certificate)

    def template(self, wanted: Rollout) -> Rollout:
        """A wanted rollout with the engine's facts filled in."""
        certificate = self.certificate
        if certificate is None:
            return replace(wanted, app_version=__version__)
        template = certificate.numbers.get("chat_template_sha256")
        return replace(
            wanted,
            engine_kind=certificate.engine_kind,
            engine_name=certificate.engine_name,
            engine_version=certificate.engine_version,
            model=certificate.model,
            tokenizer_id=self.vocabularies.current,
            chat_template_sha256=str(template) if template else None,
            certificate_id=certificate.certificate_id,
            app_version=__version__,
        )


def _receipt_key(settings: Settings) -> SigningKey | None:
    return None if settings.receipt_key is None else read_signing_key(settings.receipt_key)

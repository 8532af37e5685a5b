"""Whoever passes a dataset's gate: asked of a real HTTP server, with the person's own token."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from explorer.access.audit import Entry, Event
from explorer.access.hub_gate import HOLDS_S, MOST_ASKED, HubGate
from explorer.access.oidc import ProviderToken, SignedIn
from explorer.access.outbound import Outbound, OutboundPolicy
from explorer.access.people import Caller, How, Person, Role
from tests.access.making import Parts, parts


@dataclass
class Hub:
    """Answers `auth-check`; remembers who asked about what."""

    url: str = ""
    lets_in: set[tuple[str, str]] = field(default_factory=set)
    status: int = 200
    asked: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def hub() -> Iterator[Hub]:
    told = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            dataset = self.path.removeprefix("/api/datasets/").removesuffix("/auth-check")
            token = self.headers.get("authorization", "").removeprefix("Bearer ")
            told.asked.append((token, dataset))
            allowed = (token, dataset) in told.lets_in
            self.send_response(told.status if allowed else 403)
            self.send_header("content-length", "0")
            if told.status == 302:
                self.send_header("location", "/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@dataclass
class Site:
    """A gate over one Hub, and the sessions that it knows."""

    hub: Hub
    parts: Parts
    gate: HubGate
    now: list[float]

    def signed_in(self, name: str, provider: str = "huggingface", token: bool = True) -> Caller:
        person = Person(f"{provider}:{name}", name)
        ends = time.time_ns() // 1000 + 3600 * 1_000_000
        held = ProviderToken(f"token-of-{name}", frozenset({"openid"}), ends) if token else None
        _, session = self.parts.sign_in.sessions.start(
            SignedIn(person, (), held), Entry(Event.SIGNED_IN, person.subject)
        )
        return Caller(
            Role.VIEWER, How.SESSION, person=person, session_hash=session.session_hash
        )

    def passed(self, caller: Caller, *datasets: str, fresh: bool = True) -> frozenset[str]:
        return asyncio.run(self.gate.passed(caller, datasets, fresh))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with hub() as told, parts(tmp_path / "access.duckdb") as made:
        allowed = OutboundPolicy.listing([told.url.removeprefix("http://")])
        now = [1000.0]
        gate = HubGate(Outbound(allowed), made.sign_in.sessions, told.url, lambda: now[0])
        yield Site(told, made, gate, now)


def test_each_person_is_asked_about_with_their_own_token(site: Site) -> None:
    ana, ben = site.signed_in("ana"), site.signed_in("ben")
    site.hub.lets_in = {("token-of-ana", "ns/data"), ("token-of-ben", "ns/other")}
    assert site.passed(ana, "ns/data", "ns/other") == {"ns/data"}
    assert site.passed(ben, "ns/data", "ns/other") == {"ns/other"}
    assert set(site.hub.asked) == {
        (f"token-of-{who}", dataset)
        for who in ("ana", "ben")
        for dataset in ("ns/data", "ns/other")
    }


def test_a_download_asks_anew_and_a_look_within_a_minute_does_not(site: Site) -> None:
    ana = site.signed_in("ana")
    site.hub.lets_in = {("token-of-ana", "ns/data")}
    assert site.passed(ana, "ns/data", fresh=False) == {"ns/data"}
    site.hub.lets_in.clear()
    assert site.passed(ana, "ns/data", fresh=False) == {"ns/data"}
    assert len(site.hub.asked) == 1
    assert site.passed(ana, "ns/data", fresh=True) == frozenset()
    # What a download was told counts for looking at once.
    assert site.passed(ana, "ns/data", fresh=False) == frozenset()
    site.hub.lets_in = {("token-of-ana", "ns/data")}
    site.now[0] += HOLDS_S + 1
    assert site.passed(ana, "ns/data", fresh=False) == {"ns/data"}


@pytest.mark.parametrize("status", [204, 302, 401, 404, 429, 500])
def test_any_other_answer_is_no(site: Site, status: int) -> None:
    ana = site.signed_in("ana")
    site.hub.lets_in = {("token-of-ana", "ns/data")}
    site.hub.status = status
    assert site.passed(ana, "ns/data") == frozenset()


def test_no_answer_is_no(site: Site) -> None:
    ana = site.signed_in("ana")
    nowhere = OutboundPolicy.listing(["127.0.0.1:9"])
    gate = HubGate(Outbound(nowhere), site.parts.sign_in.sessions, "http://127.0.0.1:9")
    assert asyncio.run(gate.passed(ana, ("ns/data",), True)) == frozenset()


def test_a_token_goes_nowhere_but_to_who_gave_it(site: Site) -> None:
    site.hub.lets_in = {("token-of-ana", "ns/data"), ("", "ns/data")}
    other = site.signed_in("ana", provider="test")
    none = site.signed_in("ana", token=False)
    nobody = Caller(Role.ANONYMOUS, How.NOTHING)
    for caller in (other, none, nobody, Caller(Role.OPERATOR, How.OPERATOR_TOKEN)):
        assert site.passed(caller, "ns/data") == frozenset()
    assert site.hub.asked == []


def test_a_session_that_ended_passes_no_gate(site: Site) -> None:
    ana = site.signed_in("ana")
    site.hub.lets_in = {("token-of-ana", "ns/data")}
    assert site.passed(ana, "ns/data") == {"ns/data"}
    site.parts.sign_in.sessions.end(ana.session_hash, Entry(Event.SIGNED_OUT, "x"))
    assert site.passed(ana, "ns/data") == frozenset()
    assert site.passed(ana, "ns/data", fresh=False) == frozenset()


def test_the_hub_is_not_asked_without_end(site: Site) -> None:
    ana = site.signed_in("ana")
    names = [f"ns/data-{n}" for n in range(50)]
    assert site.passed(ana, *names, *names) == frozenset()
    assert len(site.hub.asked) == MOST_ASKED


@pytest.mark.parametrize("name", ["../../whoami", "ns/da?ta=x", "ns/da#ta", "ns/\r\nx: y"])
def test_a_name_is_no_way_to_another_address(site: Site, name: str) -> None:
    ana = site.signed_in("ana")
    site.hub.lets_in = {("token-of-ana", "ns/data")}
    assert site.passed(ana, name) == frozenset()

"""Hosts and origins: who may talk to the server, before any route runs."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from explorer.access.guard import CSP, Guard, HostPolicy, cross_site, host_name
from explorer.access.operator import Operator
from explorer.errors import AdminTokenNeeded
from explorer.settings import load

POLICY = HostPolicy.of("127.0.0.1", ["demo.example"], "https://public.example:8443/x")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:7860", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("[::1]:7860", True),
        ("demo.example", True),
        ("public.example", True),
        ("evil.example:7860", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("", False),
        ("127.0.0.1@evil.example", False),
    ],
)
def test_host_01_only_listed_hosts(host: str, allowed: bool) -> None:
    assert POLICY.allows(host) is allowed


def test_a_public_bind_address_is_no_name() -> None:
    assert not HostPolicy.of("0.0.0.0", (), None).allows("0.0.0.0")
    assert HostPolicy.of("10.1.2.3", (), None).allows("10.1.2.3:80")


def test_host_name_cuts_the_port() -> None:
    assert host_name("[::1]:80") == "[::1]"
    assert host_name("a.b:80") == "a.b"


@pytest.mark.parametrize(
    ("method", "headers", "refused"),
    [
        ("POST", {}, False),
        ("POST", {b"sec-fetch-site": b"same-origin"}, False),
        ("POST", {b"sec-fetch-site": b"none"}, False),
        ("POST", {b"sec-fetch-site": b"cross-site"}, True),
        ("POST", {b"sec-fetch-site": b"same-site"}, True),
        ("DELETE", {b"sec-fetch-site": b"cross-site"}, True),
        ("GET", {b"sec-fetch-site": b"cross-site"}, False),
        ("POST", {b"origin": b"https://evil.example", b"host": b"127.0.0.1:7860"}, True),
        ("POST", {b"origin": b"http://127.0.0.1:7860", b"host": b"127.0.0.1:7860"}, False),
        ("POST", {b"origin": b"http://127.0.0.1:1", b"host": b"127.0.0.1:7860"}, True),
        ("POST", {b"origin": b"null", b"host": b"127.0.0.1:7860"}, True),
    ],
)
def test_csrf_01_cross_site_changes_are_refused(
    method: str, headers: dict[bytes, bytes], refused: bool
) -> None:
    assert (cross_site(method, headers) is not None) is refused


def ask(method: str, headers: list[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"reached"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/", "headers": headers}
    asyncio.run(Guard(app, POLICY)(scope, receive, send))
    return sent


def test_every_answer_carries_the_policy() -> None:
    for headers in ([(b"host", b"localhost")], [(b"host", b"evil")]):
        start = ask("GET", headers)[0]
        names = dict(start["headers"])
        assert b"default-src 'none'" in names[b"content-security-policy"]
        assert names[b"x-content-type-options"] == b"nosniff"
        assert names[b"referrer-policy"] == b"no-referrer"


def test_a_foreign_host_never_reaches_the_app() -> None:
    start, body = ask("GET", [(b"host", b"evil.example")])
    assert start["status"] == 421
    assert b"ROLLOUT_EXPLORER_ALLOWED_HOSTS" in body["body"]


def test_a_cross_site_post_never_reaches_the_app_but_a_key_does() -> None:
    hostile = [(b"host", b"localhost"), (b"sec-fetch-site", b"cross-site")]
    assert ask("POST", hostile)[0]["status"] == 403
    assert ask("POST", [*hostile, (b"authorization", b"Bearer x")])[0]["status"] == 200


def test_the_policy_allows_nothing_inline_and_nothing_remote() -> None:
    assert all("unsafe" not in value and "http" not in value for value in CSP.values())
    assert "data:" not in CSP["img-src"]


LOCAL = {"host": "127.0.0.1:7860"}


def basic(password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"x:{password}".encode()).decode()}


def test_the_operator_is_whoever_holds_the_token() -> None:
    operator = Operator("secret", trust_loopback=False, open_to_all=False)
    assert operator.may_change("10.0.0.9", {"authorization": "Bearer secret"})
    assert operator.may_change("10.0.0.9", basic("secret"))
    assert not operator.may_read("127.0.0.1", LOCAL)
    for wrong in (
        {"authorization": "Bearer wrong"},
        basic("wrong"),
        {"authorization": "Basic %%%"},
        {"authorization": "Digest secret"},
    ):
        assert not operator.may_read("127.0.0.1", wrong)
    with pytest.raises(AdminTokenNeeded, match="ROLLOUT_EXPLORER_ADMIN_TOKEN"):
        operator.require_change("127.0.0.1", LOCAL)


def test_on_loopback_a_browser_may_read_and_change_and_a_program_needs_the_token() -> None:
    operator = Operator("secret", trust_loopback=True, open_to_all=False)
    page = LOCAL | {"sec-fetch-site": "same-origin"}
    assert operator.may_read("127.0.0.1", LOCAL)
    assert not operator.may_read("192.168.1.5", LOCAL)
    assert not operator.may_change("127.0.0.1", LOCAL)
    assert operator.may_change("127.0.0.1", page)
    assert not operator.may_change("192.168.1.5", page)


@pytest.mark.parametrize(
    "proxied",
    [
        {"x-forwarded-for": "203.0.113.9"},
        {"forwarded": "for=203.0.113.9"},
        {"x-real-ip": "203.0.113.9"},
        {"via": "1.1 proxy"},
        {"host": "demo.example"},
    ],
)
def test_behind_a_proxy_a_loopback_peer_is_nobody(proxied: dict[str, str]) -> None:
    operator = Operator("secret", trust_loopback=True, open_to_all=False)
    headers = LOCAL | {"sec-fetch-site": "same-origin"} | proxied
    assert not operator.may_read("127.0.0.1", headers)
    assert not operator.may_change("127.0.0.1", headers)


@pytest.mark.parametrize(
    "told",
    [
        {"public_url": "https://demo.example"},
        {"allowed_hosts": ("demo.example",)},
        {"trusted_proxies": ("127.0.0.1",)},
        {"host": "0.0.0.0", "admin_token": "t" * 20},
    ],
)
def test_a_server_with_other_names_trusts_nobody_for_being_on_loopback(
    told: dict[str, Any],
) -> None:
    operator = Operator.of(load(**told), "made")
    assert not operator.may_read("127.0.0.1", LOCAL)
    assert Operator.of(load(), "made").may_read("127.0.0.1", LOCAL)


def test_basic_credentials_do_not_excuse_another_site() -> None:
    # A browser attaches them by itself, also to a hostile page's form.
    hostile = [(b"host", b"localhost"), (b"sec-fetch-site", b"cross-site")]
    assert ask("POST", [*hostile, (b"authorization", b"Basic eDp5")])[0]["status"] == 403


@pytest.mark.parametrize("origin", [b"http://[bad", b"http://[::1", b"null", b"\xff"])
def test_an_origin_that_is_no_address_is_another_site(origin: bytes) -> None:
    why = cross_site("POST", {b"origin": origin, b"host": b"127.0.0.1:7860"})
    assert why is not None

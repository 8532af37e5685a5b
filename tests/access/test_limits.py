"""Rates by address, believed proxies, and bodies that are refused before they are read."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.access.bodies import BodyLimits
from explorer.access.headers import CSP, HeaderPolicy, in_words, merged
from explorer.access.limits import Limiter, address_key
from explorer.access.proxies import MOST_HOPS, Proxies, read_address
from explorer.engine.tiny import TinyEngine
from explorer.errors import BadRequest, BodyTooLarge
from tests.live import Live, serving

# -- buckets


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_then_the_rate() -> None:
    clock = Clock()
    limiter = Limiter(60, 3, clock=clock)
    assert [limiter.take("a") for _ in range(3)] == [None] * 3
    assert limiter.take("a") == pytest.approx(1.0)
    clock.now = 0.5
    assert limiter.take("a") == pytest.approx(0.5)
    clock.now = 1.0
    assert limiter.take("a") is None
    assert limiter.take("a") == pytest.approx(1.0)


def test_one_key_does_not_use_up_anothers() -> None:
    limiter = Limiter(1, 1, clock=Clock())
    assert limiter.take("a") is None
    assert limiter.take("b") is None
    assert limiter.take("a") is not None


def test_a_cost_above_the_burst_needs_a_full_bucket() -> None:
    clock = Clock()
    limiter = Limiter(60, 2, clock=clock)
    assert limiter.take("a", 100) is None
    assert limiter.take("a", 100) == pytest.approx(2.0)


def test_the_table_has_a_bound_and_forgets_who_rested_longest() -> None:
    clock = Clock()
    limiter = Limiter(1, 1, most=3, clock=clock)
    for key in "abc":
        limiter.take(key)
    assert limiter.take("a") is not None  # used again: not the first to go
    limiter.take("d")
    assert len(limiter) == 3
    assert limiter.take("a") is not None
    assert limiter.take("b") is None


def test_a_clock_that_goes_back_gives_nothing() -> None:
    clock = Clock()
    limiter = Limiter(60, 1, clock=clock)
    clock.now = 100
    assert limiter.take("a") is None
    clock.now = 0
    assert limiter.take("a") is not None


def test_zero_sets_no_limit() -> None:
    limiter = Limiter(0, 1)
    assert [limiter.take("a") for _ in range(100)] == [None] * 100
    assert len(limiter) == 0


@settings(deadline=None)
@given(st.lists(st.floats(0, 5), max_size=60))
def test_never_more_than_burst_and_rate_allow(pauses: list[float]) -> None:
    clock = Clock()
    limiter = Limiter(30, 4, clock=clock)
    passed = 0
    for pause in pauses:
        clock.now += pause
        passed += limiter.take("a") is None
        assert passed <= 4 + clock.now * 0.5 + 1e-6


def test_one_network_of_ipv6_is_one_address() -> None:
    assert address_key("2001:db8:1:2::1") == address_key("2001:db8:1:2:ffff::9")
    assert address_key("2001:db8:1:2::1") != address_key("2001:db8:1:3::1")
    assert address_key("::ffff:192.0.2.7") == address_key("192.0.2.7")
    assert address_key(None) == address_key("testclient")


# -- proxies


def seen(
    peer: str, forwarded: list[str], proto: list[str] | None = None, listed: str = "10.0.0.0/8"
) -> tuple[str, str]:
    headers = [(b"x-forwarded-for", each.encode()) for each in forwarded]
    headers += [(b"x-forwarded-proto", each.encode()) for each in proto or []]
    scope: dict[str, Any] = {"client": (peer, 5), "scheme": "http", "headers": headers}
    made = Proxies.of(listed.split(",") if listed else ()).seen_through(scope)
    return made["client"][0], made["scheme"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        # What the client sent itself stands on the left and is not believed.
        ("10.0.0.1", ["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.1.1.1", "203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", ["10.9.9.9, 10.0.0.2"], "10.9.9.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, <script>, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),
        ("127.0.0.1", ["203.0.113.9"], "127.0.0.1"),
    ],
)
def test_only_a_listed_proxy_is_believed(peer: str, forwarded: list[str], client: str) -> None:
    assert seen(peer, forwarded)[0] == client


def test_a_forwarded_loopback_is_not_this_machine() -> None:
    # Nobody becomes the operator by writing 127.0.0.1 into a header.
    assert seen("10.0.0.1", ["127.0.0.1, 203.0.113.9"])[0] == "203.0.113.9"
    assert seen("192.0.2.1", ["127.0.0.1"], listed="")[0] == "192.0.2.1"


@pytest.mark.parametrize(
    ("peer", "proto", "scheme"),
    [
        ("10.0.0.1", ["https"], "https"),
        ("10.0.0.1", ["http, https"], "https"),
        ("10.0.0.1", ["javascript"], "http"),
        ("192.0.2.1", ["https"], "http"),
    ],
)
def test_the_scheme_comes_from_a_listed_proxy(peer: str, proto: list[str], scheme: str) -> None:
    assert seen(peer, ["203.0.113.9"], proto)[1] == scheme


def test_a_chain_without_end_is_read_to_its_bound_only() -> None:
    long = ", ".join(["203.0.113.9", *["10.0.0.2"] * 2 * MOST_HOPS])
    assert seen("10.0.0.1", [long])[0] == "10.0.0.2"


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_text_in_the_header_breaks_it(text: str) -> None:
    found = read_address(text)
    assert found is None or str(found)
    raw = text.encode("utf-8", "replace")
    scope: dict[str, Any] = {
        "client": ("10.0.0.1", 1), "scheme": "http", "headers": [(b"x-forwarded-for", raw)],
    }  # fmt: skip
    assert Proxies.of(["10.0.0.0/8"]).seen_through(scope)["client"][1] == 0


# -- headers


def test_policies_are_merged_as_data() -> None:
    made = merged(CSP, {"form-action": "https://idp.test", "worker-src": "'self'"})
    assert made["form-action"] == "'self' https://idp.test"
    assert made["worker-src"] == "'self'"
    assert merged(CSP, {"frame-ancestors": "https://a.test"})["frame-ancestors"] == (
        "https://a.test"
    )
    assert CSP["form-action"] == "'self'"
    assert in_words({"a": "b", "c": "d"}) == b"a b; c d"


def test_a_route_gets_its_own_sources_and_no_other_route_does() -> None:
    policy = HeaderPolicy(routes={"/sign-in": {"form-action": "https://idp.test"}})
    assert b"idp.test" in dict(policy.of("/sign-in/x", "http"))[b"content-security-policy"]
    assert b"idp.test" not in dict(policy.of("/", "http"))[b"content-security-policy"]


def test_only_the_page_of_a_space_may_frame_us_and_only_in_a_space() -> None:
    alone = dict(HeaderPolicy().of("/", "http"))
    assert b"frame-ancestors 'none'" in alone[b"content-security-policy"]
    assert alone[b"x-frame-options"] == b"DENY"
    framed = dict(HeaderPolicy(framed=True).of("/", "https"))
    policy = framed[b"content-security-policy"].decode()
    assert re.search(r"frame-ancestors https://huggingface\.co(;|$)", policy)
    assert b"x-frame-options" not in framed
    assert framed[b"cross-origin-opener-policy"] == b"same-origin"
    assert framed[b"cross-origin-resource-policy"] == b"same-origin"


def test_transport_security_is_asked_for_over_https_only() -> None:
    assert b"strict-transport-security" not in dict(HeaderPolicy().of("/", "http"))
    assert b"max-age" in dict(HeaderPolicy().of("/", "https"))[b"strict-transport-security"]


# -- bodies


def test_a_length_that_is_no_number_or_too_long_a_one() -> None:
    limits = BodyLimits(1000, ((re.compile(r"/big"), 2000),))
    limits.check_length("/", {})
    limits.check_length("/", {b"content-length": b"1000"})
    limits.check_length("/big", {b"content-length": b"2000"})
    for path, length in (("/", b"1001"), ("/big", b"2001"), ("/", b"9" * 5000)):
        with pytest.raises(BodyTooLarge, match="MAX_REQUEST_BYTES"):
            limits.check_length(path, {b"content-length": length})
    for wrong in (b"-1", b"1e3", b"", b"\xb2"):
        with pytest.raises(BadRequest):
            limits.check_length("/", {b"content-length": wrong})


def test_a_body_without_a_length_is_counted() -> None:
    async def work() -> None:
        parts = itertools.repeat({"type": "http.request", "body": b"x" * 400})

        async def receive() -> dict[str, Any]:
            return dict(next(parts))

        counted = BodyLimits(1000).counted("/", receive)
        await counted()
        await counted()
        with pytest.raises(BodyTooLarge):
            await counted()

    asyncio.run(work())


# -- the whole server

HOST = "demo.example"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A server with a small rate, as somebody from outside sees it."""
    with serving(
        TinyEngine(),
        tmp_path / "store.duckdb",
        allowed_hosts=(HOST,),
        trusted_proxies=("127.0.0.1",),
        rate_per_minute=6.0,
        rate_burst=5,
    ) as live:
        yield live


def visit(live: Live, path: str, who: str = "203.0.113.9", **headers: str) -> httpx.Response:
    given = {"host": HOST, "x-forwarded-for": who, **headers}
    return httpx.get(live.url + path, headers=given, timeout=30)


def call(live: Live, key: str, who: str = "203.0.113.9") -> httpx.Response:
    return httpx.post(
        live.url + "/v1/messages",
        json={"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]},
        headers={"x-api-key": key, "x-forwarded-for": who},
        timeout=60,
    )


def test_a_visitor_who_asks_too_often_is_told_when_to_come_back(live: Live) -> None:
    answers = [visit(live, "/rollouts.json") for _ in range(6)]
    assert {each.status_code for each in answers[:5]} == {200}
    assert answers[5].status_code == 429
    assert answers[5].json()["error"]["code"] == "rate_limited"
    assert 1 <= int(answers[5].headers["retry-after"]) <= 10
    assert "content-security-policy" in answers[5].headers
    page = visit(live, "/rollouts", accept="text/html")
    assert page.status_code == 429
    assert page.headers["content-type"].startswith("text/html")
    assert "too many requests" in page.text.lower()
    # Others, static files and health go on; so does the operator at the same address.
    assert visit(live, "/rollouts.json", "198.51.100.4").status_code == 200
    assert visit(live, "/healthz").status_code == 200
    assert visit(live, "/static/explorer.css").status_code == 200
    operator = {"authorization": f"Bearer {live.token}"}
    assert visit(live, "/rollouts.json", **operator).status_code == 200


def test_attempts_with_unknown_keys_are_counted_and_known_ones_are_not(live: Live) -> None:
    _, key = live.create(run="r")
    wrong = [call(live, "rxk_wrong").status_code for _ in range(6)]
    assert wrong == [401] * 5 + [429]
    last = call(live, "rxk_wrong")
    assert last.status_code == 429
    # In the dialect of the address.
    assert last.json()["type"] == "error"
    assert last.json()["error"]["type"] == "rate_limit_error"
    assert int(last.headers["retry-after"]) >= 1
    assert [call(live, key).status_code for _ in range(8)] == [200] * 8


def test_addresses_without_a_key_are_counted_on_the_wire_too(live: Live) -> None:
    answers = [visit(live, "/v1/models").status_code for _ in range(6)]
    assert answers == [200] * 5 + [429]


def raw(live: Live, head: str, *, body: bytes = b"") -> tuple[int, str, bool]:
    """Sends a head and no more than `body`; status, answer, whether the line was closed."""
    where = urlsplit(live.url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as line:
        line.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        reply = http.client.HTTPResponse(line)
        reply.begin()
        text = reply.read().decode()
        closed = False
        if reply.will_close:
            line.settimeout(5)
            closed = line.recv(1) == b""
        return reply.status, text, closed


SIXTY_MB = 60 * 1024 * 1024


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/rollouts",
        "/api/v1/rollouts/x/reward",
        "/api/v1/backup",
        "/rollouts/x/notes",
        "/nothing",
    ],
)
def test_size_60_mb_without_leave_are_refused_and_not_read(live: Live, path: str) -> None:
    began = time.monotonic()
    status, text, closed = raw(
        live, f"POST {path} HTTP/1.1\nHost: {HOST}\nContent-Length: {SIXTY_MB}"
    )
    assert status == 413
    assert closed, "what is on its way is not waited for"
    assert "at most 1048576 bytes" in text
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("path", ["/api/v1/imports", "/api/v1/rollouts/x/close"])
def test_size_where_large_bodies_are_taken_leave_comes_first(live: Live, path: str) -> None:
    length = 30 * 1024 * 1024
    status, _, _ = raw(live, f"POST {path} HTTP/1.1\nHost: {HOST}\nContent-Length: {length}")
    assert status == 401


def test_size_an_unknown_key_is_refused_before_its_body(live: Live) -> None:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\nHost: {HOST}\nContent-Length: {SIXTY_MB}\n"
        "Authorization: Bearer rxk_wrong"
    )
    assert raw(live, head)[0] == 401


def test_size_a_body_in_chunks_is_counted(live: Live) -> None:
    head = (
        f"POST /api/v1/rollouts HTTP/1.1\nHost: {HOST}\nTransfer-Encoding: chunked\n"
        f"Authorization: Bearer {live.token}"
    )
    chunk = b"20000\r\n" + b" " * 0x20000 + b"\r\n"
    status, text, _ = raw(live, head, body=chunk * 9)
    assert status == 413, text


def test_behind_a_listed_proxy_the_scheme_is_https(live: Live) -> None:
    plain = visit(live, "/healthz")
    assert "strict-transport-security" not in plain.headers
    secure = visit(live, "/healthz", **{"x-forwarded-proto": "https"})
    assert secure.headers["strict-transport-security"] == "max-age=31536000"

"""Signing in by a real browser at a real OpenID provider, and what must never work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request

from explorer.access.cookies import LOGIN_COOKIE, SESSION_COOKIE
from tests.browser.chromium import ARGUMENTS, EXECUTABLE
from tests.oidc.provider import PUBLIC_CLIENT
from tests.oidc.served import Signed, signed

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    with signed(tmp_path_factory.mktemp("signed"), curators=("test:org:org-lab",)) as made:
        yield made


@pytest.fixture
def context(browser: Browser, site: Signed) -> Iterator[BrowserContext]:
    made = site.visitor(browser)
    yield made
    made.close()


def cookies(context: BrowserContext) -> dict[str, Any]:
    return {each["name"]: each for each in context.cookies()}


def begun(context: BrowserContext, site: Signed, query: str = "") -> tuple[Page, str]:
    """A page at the provider's login, and the authorisation request that led there."""
    page = context.new_page()
    seen: list[str] = []

    def note(request: Request) -> None:
        if request.url.startswith(site.provider.issuer + "/auth?"):
            seen.append(request.url)

    page.on("request", note)
    page.goto(f"{site.url}/sign-in/test{query}")
    page.wait_for_selector("button[value=u-ana]")
    return page, seen[0]


def way_back(context: BrowserContext, page: Page, who: str) -> str:
    """Where the provider sends the browser back to, not gone to yet."""
    reply = context.request.post(page.url, form={"login": f"u-{who}"}, max_redirects=0)
    while "/callback?" not in (target := reply.headers["location"]):
        reply = context.request.get(target, max_redirects=0)
    return target


def test_login_shows_who_and_sign_out_ends_it(site: Signed, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(site.url + "/sign-in")
    page.click("text=Sign in with Test provider")
    page.click("button[value=u-ana]")
    page.wait_for_url(site.url + "/")
    page.goto(site.url + "/account")
    assert page.inner_text("summary.who").startswith("ana")
    facts = page.inner_text("dl.facts")
    assert "test:u-ana" in facts
    assert "curator" in facts
    told = site.whoami(context)
    assert told["subject"] == "test:u-ana"
    assert told["organisations"] == [{"subject": "test:org:org-lab", "name": "lab"}]
    # Her bank wants single sign-on of her, which she has not done: it does not count.
    assert "does not count" in page.inner_text("text=bank >> xpath=ancestor::tr")

    session = cookies(context)[SESSION_COOKIE]
    assert session["httpOnly"]
    assert session["secure"]
    assert session["sameSite"] == "Lax"
    assert session["path"] == "/"
    assert session["domain"] == "127.0.0.1"

    page.click("main >> text=Sign out")
    page.wait_for_url(site.url + "/**")
    assert SESSION_COOKIE not in cookies(context)
    # The reference is dead on the server, too.
    shown = httpx.get(
        site.url + "/api/v1/whoami", headers={"cookie": f"{SESSION_COOKIE}={session['value']}"}
    )
    assert shown.json()["role"] == "anonymous"
    assert site.audit("signed_in")[0]["who"] == "test:u-ana"
    assert site.audit("signed_out")[0]["who"] == "test:u-ana"


def test_auth_01_two_tabs_both_sign_in(site: Signed, context: BrowserContext) -> None:
    first, _ = begun(context, site, "?next=/runs")
    second, _ = begun(context, site, "?next=/rollouts")
    first.click("button[value=u-ana]")
    first.wait_for_url(site.url + "/runs")
    # The provider may let the second tab through without a question: it knows ana now.
    if second.url.startswith(site.provider.issuer):
        second.click("button[value=u-ana]")
    second.wait_for_url(site.url + "/rollouts")
    assert site.whoami(context)["subject"] == "test:u-ana"


@pytest.mark.parametrize(
    "given",
    [
        "////evil.example/x",
        "/\\evil.example",
        "https:evil.example",
        "//evil.example",
        "/%09/evil.example",
        "https://evil.example/",
        "/\t/evil.example",
        "/..//evil.example",
    ],
)
def test_auth_05_no_next_leaves_this_server(
    site: Signed, context: BrowserContext, given: str
) -> None:
    page = context.new_page()
    page.goto(f"{site.url}/sign-in/test?" + str(httpx.QueryParams({"next": given})))
    page.click("button[value=u-ben]")
    page.wait_for_url(site.url + "/**")
    # Where it was a path of this server after all, there is no such page; else its first.
    harmless = {"/..//evil.example": "/evil.example", "/%09/evil.example": "/%09/evil.example"}
    assert page.url == site.url + harmless.get(given, "/")


def test_auth_09_a_planted_session_is_dead_after_sign_in(
    site: Signed, context: BrowserContext, browser: Browser
) -> None:
    attacker = site.visitor(browser)
    site.sign_in(attacker.new_page(), "ben")
    planted = cookies(attacker)[SESSION_COOKIE]["value"]
    for value in (planted, "A" * 43):
        context.clear_cookies()
        context.add_cookies(
            [
                {
                    "name": SESSION_COOKIE,
                    "value": value,
                    "url": site.url.replace("http:", "https:"),
                    "secure": True,
                    "httpOnly": True,
                }
            ]
        )
        site.sign_in(context.new_page(), "ana")
        now = cookies(context)[SESSION_COOKIE]["value"]
        assert now not in (planted, value)
        assert site.whoami(context)["subject"] == "test:u-ana"
    # ben's session, which ana's browser was made to hold, ended when she signed in.
    assert site.whoami(attacker)["role"] == "anonymous"
    attacker.close()


def test_auth_10_only_the_host_cookie_counts(site: Signed, browser: Browser) -> None:
    victim, attacker = site.visitor(browser), site.visitor(browser)
    page, _ = begun(attacker, site)
    binding = cookies(attacker)[LOGIN_COOKIE]
    assert LOGIN_COOKIE.startswith("__Host-")
    assert binding["secure"]
    assert binding["httpOnly"]
    assert binding["path"] == "/"
    assert not binding["domain"].startswith(".")
    # The attacker finishes at the provider and hands the victim the way back. A sibling host
    # can plant other names only: the browser itself keeps it from this one.
    callback = way_back(attacker, page, "ben")
    victim.add_cookies(
        [
            {"name": name, "value": binding["value"], "url": site.url}
            for name in ("rx-login", "Host-rx-login")
        ]
    )
    refused = victim.new_page()
    refused.goto(callback)
    assert refused.get_attribute("[role=alert]", "data-why") == "other_browser"
    assert site.whoami(victim)["role"] == "anonymous"
    assert SESSION_COOKIE not in cookies(victim)
    victim.close()
    attacker.close()


def test_auth_11_a_callback_of_another_browser_is_refused_and_used_up(
    site: Signed, browser: Browser
) -> None:
    first, second = site.visitor(browser), site.visitor(browser)
    page, asked = begun(first, site)
    query = parse_qs(urlsplit(asked).query)
    assert query["code_challenge_method"] == ["S256"]
    assert re.fullmatch(r"[\w-]{43}", query["code_challenge"][0])
    assert query["response_type"] == ["code"]
    assert query["nonce"][0] != query["state"][0]
    callback = way_back(first, page, "cleo")
    other = second.new_page()
    other.goto(callback)
    assert other.get_attribute("[role=alert]", "data-why") == "other_browser"
    assert site.whoami(second)["role"] == "anonymous"
    # The state was shown once; it works no more, not even for who began.
    again = first.new_page()
    again.goto(callback)
    assert again.get_attribute("[role=alert]", "data-why") == "unknown_state"
    assert site.whoami(first)["role"] == "anonymous"
    row = site.audit("sign_in_failed")[0]
    assert row["reason"] == "unknown_state"
    state = parse_qs(urlsplit(callback).query)["state"][0]
    assert state not in str(site.audit("sign_in_failed"))
    first.close()
    second.close()


def test_auth_11_the_provider_refuses_a_wrong_verifier(
    site: Signed, context: BrowserContext
) -> None:
    page, asked = begun(context, site)
    state = parse_qs(urlsplit(asked).query)["state"][0]
    logins = site.live.application.sign_in.logins
    logins._logins[state] = replace(logins._logins[state], verifier="x" * 64)
    page.click("button[value=u-ana]")
    page.wait_for_selector("[role=alert]")
    assert page.get_attribute("[role=alert]", "data-why") == "provider"
    assert "status 400" in page.inner_text("[role=alert]")
    assert site.whoami(context)["role"] == "anonymous"


def test_a_person_says_no_at_the_provider(site: Signed, context: BrowserContext) -> None:
    page, _ = begun(context, site, "?next=/runs")
    page.click("button[value=deny]")
    page.wait_for_selector("[role=alert]")
    assert "said no" in page.inner_text("[role=alert]")
    # The provider's own words are not repeated.
    assert "secret-of-the-provider" not in page.inner_text("body")
    page.click("text=Try again")
    page.click("button[value=u-ana]")
    page.wait_for_url(site.url + "/runs")
    assert site.whoami(context)["subject"] == "test:u-ana"


def test_an_old_login_is_over(site: Signed, context: BrowserContext) -> None:
    page, _ = begun(context, site)
    logins = site.live.application.sign_in.logins
    old = logins._clock
    try:
        logins._clock = lambda: old() + 601
        page.click("button[value=u-ana]")
        page.wait_for_selector("[role=alert]")
    finally:
        logins._clock = old
    assert page.get_attribute("[role=alert]", "data-why") == "unknown_state"
    assert "ten minutes" in page.inner_text("[role=alert]")


def test_leave_to_publish_is_asked_for_by_itself(site: Signed, context: BrowserContext) -> None:
    site.sign_in(context.new_page(), "ana")
    sessions = site.live.application.sign_in.sessions
    before = sessions.of("test:u-ana")[0]
    token = sessions.provider_token(before.session_hash)
    assert token is not None
    assert "contribute-repos" not in token.scopes
    page = context.new_page()
    page.goto(site.url + "/sign-in/test?publish=1&next=/account")
    page.wait_for_url(site.url + "/account")
    after = sessions.of("test:u-ana")[0]
    assert after.session_hash != before.session_hash
    token = sessions.provider_token(after.session_hash)
    assert token is not None
    assert "contribute-repos" in token.scopes
    # The one before is over, and with it the token of the provider.
    assert sessions.get(before.session_hash) is None
    assert sessions.provider_token(before.session_hash) is None
    # A token of a provider is never written down.
    path = site.live.application.access.database.path
    wal = path.with_name(path.name + ".wal")
    kept = path.read_bytes() + (wal.read_bytes() if wal.exists() else b"")
    assert token.access_token.encode() not in kept


def test_the_operators_token_opens_a_session(site: Signed, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(site.url + "/sign-in?next=/engine")
    page.fill("input[name=token]", "wrong")
    page.click("text=Sign in as operator")
    assert "not the operator's token" in page.inner_text("[role=alert]")
    page.fill("input[name=token]", site.live.token)
    page.click("text=Sign in as operator")
    page.wait_for_url(site.url + "/engine")
    assert site.whoami(context) | {"organisations": []} == {
        "subject": "operator",
        "name": "",
        "role": "operator",
        "how": "session",
        "scopes": None,
        "organisations": [],
    }
    before = cookies(context)[SESSION_COOKIE]["value"]
    # Signing in as a person is less: the operator's session is over.
    site.sign_in(page, "ben")
    assert site.whoami(context)["role"] == "viewer"
    shown = httpx.get(
        site.url + "/api/v1/whoami", headers={"cookie": f"{SESSION_COOKIE}={before}"}
    )
    assert shown.json()["role"] == "anonymous"


def test_a_token_is_made_shown_once_used_and_taken_back(
    site: Signed, context: BrowserContext
) -> None:
    page = context.new_page()
    site.sign_in(page, "ben")
    page.fill("input[name=label]", "nightly <b>job</b>")
    page.click("main >> text=Make >> nth=-1")
    secret = page.inner_text("#secret").strip()
    assert secret.startswith("rxt_")
    shown = {"authorization": f"Bearer {secret}"}
    told = httpx.get(site.url + "/api/v1/whoami", headers=shown).json()
    assert (told["subject"], told["how"], told["scopes"]) == (
        "test:u-ben",
        "api_token",
        ["read"],
    )
    page.goto(site.url + "/account")
    assert secret not in page.content()
    assert "nightly <b>job</b>" in page.inner_text("#tokens")
    page.click("button:has-text('take back')")
    page.wait_for_url(site.url + "/account#tokens")
    assert httpx.get(site.url + "/api/v1/whoami", headers=shown).status_code == 401
    assert site.audit("token_made")[0]["object"] == site.audit("token_revoked")[0]["object"]


def test_another_site_can_neither_sign_out_nor_make_a_token(
    site: Signed, context: BrowserContext
) -> None:
    page = context.new_page()
    site.sign_in(page, "ana")
    for path, body in (
        ("/sign-out", ""),
        ("/account/tokens", "<input name=label value=x><input name=scopes value=read>"),
    ):
        # The same host by another name is another site to a browser.
        page.goto(site.provider.issuer.replace("127.0.0.1", "localhost") + "/nothing")
        page.set_content(
            f"<form method=post action='{site.url}{path}'>{body}<button>go</button></form>"
        )
        with page.expect_navigation() as seen:
            page.click("button")
        assert seen.value is not None
        assert seen.value.status == 403, path
    assert site.whoami(context)["subject"] == "test:u-ana"
    assert site.live.application.sign_in.tokens.of("test:u-ana") == []


def test_auth_04_inside_a_space_cookies_are_partitioned_and_a_banner_leads_out(
    browser: Browser, tmp_path: Path
) -> None:
    # A page of the internet may not frame one of this machine, unless that check is off.
    framing = browser.browser_type.launch(
        executable_path=EXECUTABLE,
        args=[*ARGUMENTS, "--disable-features=LocalNetworkAccessChecks"],
    )
    with signed(tmp_path, in_space=True) as site, closing(framing):
        context = site.visitor(framing)
        page = context.new_page()
        outside = "https://huggingface.co/spaces/ana/explorer"
        body = f"<!doctype html><iframe src='{site.url}/rollouts?q=a' width=900></iframe>"
        page.route(outside, lambda route: route.fulfill(body=body, content_type="text/html"))
        page.goto(outside)
        frame = page.frame_locator("iframe")
        link = frame.locator(".framed a")
        assert link.get_attribute("href") == site.url + "/rollouts?q=a"
        assert link.get_attribute("target") == "_blank"
        with context.expect_page() as opened:
            link.click()
        direct = opened.value
        direct.wait_for_load_state()
        assert direct.locator(".framed").count() == 0
        # Outside of the frame, one signs in as anywhere.
        site.sign_in(direct, "ana")
        assert direct.inner_text("summary.who").startswith("ana")
        session = cookies(context)[SESSION_COOKIE]
        assert session["sameSite"] == "None"
        assert session["secure"]
        assert session["httpOnly"]
        assert session["partitionKey"] == "http://127.0.0.1"
        # The frame has a partition of its own: what it shows is of nobody who signed in.
        page.reload()
        assert frame.locator(".framed a").is_visible()
        assert frame.locator("summary.who").count() == 0


def test_plain_http_elsewhere_is_refused_in_words(tmp_path: Path) -> None:
    with signed(tmp_path, public_url="http://explorer.example") as plain:
        local = f"http://127.0.0.1:{plain.port}"
        for path in ("/sign-in", "/sign-in/test"):
            reply = httpx.get(local + path, headers={"host": "explorer.example"})
            assert "Signing in needs https" in reply.text
            assert "set-cookie" not in reply.headers
        assert reply.status_code == 403


def test_a_client_without_a_secret_signs_in_by_its_verifier(
    browser: Browser, tmp_path: Path
) -> None:
    public = {"client_id": PUBLIC_CLIENT, "client_secret": None}
    with signed(tmp_path, provider_settings=public) as site:
        context = site.visitor(browser)
        site.sign_in(context.new_page(), "cleo")
        assert site.whoami(context)["subject"] == "test:u-cleo"
        context.close()

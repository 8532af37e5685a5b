"""Grants by real browsers at a real OpenID provider: asked for, given, used, cut, refused."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page

from explorer.web.access import LOOK_AGAIN_S
from tests.oidc.granted import Granted, granted
from tests.web import seeds

pytestmark = pytest.mark.browser

LARGE_TOKENS = 100_000
HOUR_US = 3600 * 1_000_000
PLANTED = "planted-private-name"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Granted]:
    with granted(tmp_path_factory.mktemp("granted"), browser) as made:
        made.level("granted", run="grpo-tiny #412")
        made.level("signed-in", rollout=made.id("small"))
        made.level("public", rollout=made.id("ranked"))
        yield made


def trace(rollout_id: str) -> str:
    return f"/api/v1/rollouts/{rollout_id}/training-trace"


def menu(page: Page) -> str:
    """The Download menu, opened, as text."""
    page.click("summary:has-text('Download')")
    return page.inner_text("details.menu[open] .pop")


def rows(site: Granted, event: str, **key: str) -> list[dict[str, Any]]:
    """Rows of the log, the newest first, with `detail` decoded."""
    found = site.signed.live.application.access.audit.page({"event": event} | key, None, 200)
    return [row | {"detail": json.loads(row["detail"])} for row in found]


def taken(site: Granted, who: str, count: int) -> list[dict[str, Any]]:
    """The newest downloads of a person, once there are so many: a reader has the last byte
    before its row is written."""
    deadline = time.monotonic() + 20
    while len(found := rows(site, "download", who=f"test:u-{who}")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def from_page(site: Granted) -> dict[str, str]:
    """What a browser says of a request that a page of the server makes."""
    return {"origin": site.url, "sec-fetch-site": "same-origin"}


def new_rollout(site: Granted, name: str, level: str | None = "granted", **more: Any) -> str:
    made = seeds.maker(name, run=f"run of {name}", task=name, **more)
    one = made.call(seeds.prose(made, 4), said=seeds.FIRST)
    made.call(seeds.prose(made, 2), parent=one, said=(("tool", seeds.TOOL_OUTPUT),))
    rollout_id = site.add(made)
    if level is not None:
        site.level(level, rollout=rollout_id)
    return rollout_id


# -- asked for, given, taken


def test_from_a_refused_download_to_the_document_and_its_hash_in_the_log(
    site: Granted, browser: Browser, tmp_path: Path
) -> None:
    rollout_id = site.id("ranked")
    context = site.signed.visitor(browser)
    page = context.new_page()
    page.goto(f"{site.url}/rollouts/{rollout_id}/tokens")
    told = menu(page)
    assert "handed to people who hold a grant" in told
    assert page.get_attribute(".pop [role=link]:has-text('Training trace')", "href") is None
    # Signing in leads on to the form, filled with this rollout.
    page.click(".pop a:has-text('Sign in to ask') >> nth=0")
    page.click("text=Sign in with Test provider")
    page.click("button[value=u-ana]")
    page.wait_for_url(site.url + "/grants/new?*")
    assert page.input_value("[name=rollouts]") == rollout_id
    assert page.is_checked("[value=training_trace]")
    page.fill("[name=purpose]", "to reproduce <b>figure 3</b>")
    page.click("button:has-text('Ask')")
    page.wait_for_url(site.url + "/grants/g*")
    address = page.url
    assert "pending" in page.inner_text("dl.facts")
    assert page.locator("form[action$=approve]").count() == 0

    page.goto(f"{site.url}/rollouts/{rollout_id}/tokens")
    assert "waits for a decision" in menu(page)
    assert (
        page.get_attribute(".pop a:has-text('Your request')", "href") == urlsplit(address).path
    )

    deciding = site.page("cleo")
    deciding.goto(site.url + "/grants")
    deciding.click(f"a[href='{urlsplit(address).path}']")
    assert "to reproduce <b>figure 3</b>" in deciding.inner_text("dl.facts")
    assert "0 secrets" in deciding.inner_text("dl.facts")
    deciding.fill("form[action$=approve] [name=expires_days]", "2")
    deciding.fill("form[action$=approve] [name=reason]", "for the paper")
    deciding.click("button:has-text('Approve')")
    deciding.wait_for_url(address)
    assert "approved" in deciding.inner_text("dl.facts")

    page.goto(f"{site.url}/rollouts/{rollout_id}/tokens")
    menu(page)
    with page.expect_download() as got:
        page.click(".pop a[download]:has-text('Training trace')")
    saved = tmp_path / "saved.json"
    got.value.save_as(saved)
    digest = hashlib.sha256(saved.read_bytes()).hexdigest()
    assert json.loads(saved.read_bytes())["schema_version"] == 1

    with site.client(token=site.token("ana", "read", "download")) as program:
        reply = program.get(trace(rollout_id))
    assert reply.status_code == 200
    assert hashlib.sha256(reply.content).hexdigest() == digest
    assert reply.headers["etag"].strip('"') == digest

    by_token, by_browser = taken(site, "ana", 2)[:2]
    for row, how in ((by_token, "api_token"), (by_browser, "session")):
        assert row["detail"]["how"] == how
        assert row["detail"]["etag"] == digest
        assert row["detail"]["grant"] in address
        assert row["object"] == f"rollout {rollout_id}"
        assert row["complete"] is True
    assert by_token["sha256"] == digest
    assert by_token["bytes"] == len(reply.content)
    # Both were one use: within the hour the same document of the same person.
    assert by_token["detail"]["use"] == by_browser["detail"]["use"]
    deciding.reload()
    assert digest in deciding.inner_text("main")
    assert "1 of 500" in deciding.inner_text("dl.facts")
    deciding.goto(site.url + "/audit?event=download")
    assert digest[:12] in deciding.inner_text("main")
    context.close()


def test_a_rejection_is_read_by_who_asked_and_opens_nothing(site: Granted) -> None:
    rollout_id = new_rollout(site, "rejected one")
    with site.client(who="ben") as ben:
        asked = ben.post(
            "/api/v1/grants",
            json={"rollouts": [rollout_id], "kinds": ["training_trace"], "purpose": "why not"},
            headers=from_page(site),
        ).json()
    page = site.page("cleo")
    page.goto(f"{site.url}/grants/{asked['grant_id']}")
    page.fill("form[action$=reject] [name=reason]", "not before the paper is out")
    page.click("button:has-text('Reject')")
    page.wait_for_url("**/grants/g*")
    theirs = site.page("ben")
    theirs.goto(f"{site.url}/grants/{asked['grant_id']}")
    told = theirs.inner_text("main")
    assert "not before the paper is out" in told
    # Who decided is for those who decide.
    assert "cleo" not in told
    refused = site.get("ben", trace(rollout_id))
    assert refused.status == 403
    assert "not before the paper is out" in refused.json()["error"]["message"]


# -- cut


CUT = {
    "revoked": ("the grant is revoked", 403),
    "private": ("the rollout is private now", 404),
    "deleted": ("the rollout was deleted", 404),
}


@pytest.mark.parametrize("how", CUT)
def test_a_revocation_cuts_a_download_that_is_under_way(site: Granted, how: str) -> None:
    made = seeds.large(LARGE_TOKENS, f"{how} in the middle")
    rollout_id = site.add(made)
    site.level("granted", rollout=rollout_id)
    grant_id = site.give("ana", rollout_id)["grant_id"]
    path = trace(rollout_id)
    before = len(rows(site, "download", who="test:u-ana"))
    with site.client(who="ana") as whole:
        length = len(whole.get(path).content)
        cookie = whole.headers["cookie"]
    assert length > 8_000_000, "too small to be under way"
    assert taken(site, "ana", before + 1)[0]["complete"] is True

    got = 0
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        sock.settimeout(30)
        host, _, port = site.url.removeprefix("http://").partition(":")
        sock.connect((host, int(port)))
        sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\n"
            "Accept-Encoding: identity\r\n\r\n".encode()
        )
        while got < 200_000:
            got += len(sock.recv(4096))
        begun = rows(site, "download_begun", who="test:u-ana")[0]
        assert begun["detail"]["grant"] == grant_id
        if how == "revoked":
            site.operator("DELETE", f"/api/v1/grants/{grant_id}", {"reason": "it leaked"})
        elif how == "private":
            site.level("private", rollout=rollout_id)
        else:
            site.operator("DELETE", f"/api/v1/rollouts/{rollout_id}", status=204)
            time.sleep(LOOK_AGAIN_S)
        while part := sock.recv(65_536):
            got += len(part)
    # The server closed the connection; nobody can take the part for the whole.
    assert got < length
    row = taken(site, "ana", before + 2)[0]
    assert row["complete"] is False
    why, status = CUT[how]
    assert row["reason"] == why
    assert row["bytes"] < length
    refused = site.get("ana", path)
    assert refused.status == status
    assert how != "revoked" or "it leaked" in refused.json()["error"]["message"]
    page = site.page("cleo")
    page.goto(f"{site.url}/grants/{grant_id}")
    assert f"cut: {why}" in page.inner_text("main")
    page.close()


def test_a_reader_that_goes_away_is_told_so_in_the_log(site: Granted) -> None:
    made = seeds.large(LARGE_TOKENS, "left alone")
    rollout_id = site.add(made)
    site.level("granted", rollout=rollout_id)
    site.give("ben", rollout_id)
    before = len(rows(site, "download", who="test:u-ben"))
    with site.client(who="ben") as ben, ben.stream("GET", trace(rollout_id)) as reply:
        next(reply.iter_raw(1000))
    found = taken(site, "ben", before + 1)
    assert found[0]["complete"] is False
    assert found[0]["reason"] == "the reader went away"


# -- somebody else's


def test_auth_12_somebody_elses_grant_opens_nothing(site: Granted, browser: Browser) -> None:
    rollout_id = new_rollout(site, "of ana alone")
    grant_id = site.give("ana", rollout_id)["grant_id"]
    with site.client(who="ana") as ana:
        assert ana.get(trace(rollout_id)).status_code == 200
    # Her link in another browser, her grant's page, and neither with no cookie at all.
    assert site.get("ben", trace(rollout_id)).status == 403
    assert site.get("ben", f"/rollouts/{rollout_id}/tokens").status == 403
    assert site.get("ben", f"/grants/{grant_id}").status == 404
    assert site.get("ben", f"/api/v1/grants/{grant_id}").status == 404
    assert grant_id not in site.get("ben", "/grants.json").text()
    assert site.get("nobody", trace(rollout_id)).status == 401
    assert site.get("nobody", f"/grants/{grant_id}").status == 401
    # Neither may decide.
    for who in ("ana", "ben"):
        with site.client(who=who) as one:
            for path in ("approve", "reject", "revoke"):
                tried = one.post(
                    f"/grants/{grant_id}/{path}",
                    data={"reason": "mine"},
                    headers=from_page(site),
                )
                assert tried.status_code == 403, (who, path)
    site.operator("DELETE", f"/api/v1/grants/{grant_id}", {"reason": "over"})
    assert site.get("ana", trace(rollout_id)).status == 403


def test_a_refused_page_says_the_next_step(site: Granted) -> None:
    rollout_id = new_rollout(site, "next step")
    page = site.page("nobody")
    asked = f"/rollouts/{rollout_id}/tokens?m=mask"
    page.goto(site.url + asked)
    assert page.get_attribute("main a:has-text('Sign in')", "href") == (
        "/sign-in?next=" + quote(asked, safe="")
    )
    page = site.page("ben")
    page.goto(site.url + asked)
    page.click("main a:has-text('Ask for a grant')")
    assert page.input_value("[name=rollouts]") == rollout_id
    page.goto(site.url + "/audit")
    assert "operator" in page.inner_text("main code")
    page.close()


# -- another site


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_csrf_01_a_page_of_another_origin_changes_nothing(site: Granted, host: str) -> None:
    with site.client(who="ben") as ben:
        asked = ben.post(
            "/api/v1/grants",
            json={"run": "grpo-tiny #412", "kinds": ["raw"], "purpose": f"asked for {host}"},
            headers=from_page(site),
        ).json()
    grant_id = asked["grant_id"]
    before = len(rows(site, "token_made"))
    other = site.signed.provider.issuer.replace("127.0.0.1", host)
    page = site.page("cleo")
    for path, fields in (
        (f"/grants/{grant_id}/approve", {"reason": "x"}),
        ("/grants", {"rollouts": site.id("small"), "kinds": "raw", "purpose": "x"}),
        ("/access/roles", {"subject": "test:u-ben", "role": "operator", "given": "yes"}),
        ("/account/tokens", {"label": "x", "scopes": "operate"}),
        ("/sign-out", {}),
    ):
        page.goto(other + "/nothing")
        inputs = "".join(f"<input name='{k}' value='{v}'>" for k, v in fields.items())
        page.set_content(
            f"<form method=post action='{site.url}{path}'>{inputs}<button>go</button></form>"
        )
        with page.expect_navigation() as seen:
            page.click("button")
        assert seen.value is not None
        assert seen.value.status == 403, path
        # A script of that page, with the cookie where the browser sends it.
        page.goto(other + "/nothing")
        status = page.evaluate(
            """async ([url, body]) => {
              try {
                const reply = await fetch(url, {method: "POST", credentials: "include", body,
                  headers: {"content-type": "application/x-www-form-urlencoded"}});
                return reply.status;
              } catch { return "kept from it"; }
            }""",
            [site.url + path, "reason=x"],
        )
        assert status in (403, "kept from it"), path
    page.close()
    assert site.signed.whoami(site.contexts["cleo"])["role"] == "operator"
    assert site.operator("GET", f"/api/v1/grants/{grant_id}")["state"] == "pending"
    assert len(rows(site, "token_made")) == before
    assert site.signed.whoami(site.contexts["ben"])["role"] == "viewer"


# -- limits


@pytest.fixture
def moved(site: Granted) -> Iterator[list[int]]:
    """Microseconds that the clock of grants is moved by."""
    by = [0]
    book = site.signed.live.application.access.grants
    reach = site.signed.live.application.access.reach
    clock, reached = book.clock, reach._clock
    book.clock = lambda: clock() + by[0]
    reach._clock = book.clock
    yield by
    book.clock, reach._clock = clock, reached


def test_a_grant_that_expires_is_over(site: Granted, moved: list[int]) -> None:
    rollout_id = new_rollout(site, "for a day")
    site.give("ana", rollout_id, expires_days=1)
    assert site.get("ana", trace(rollout_id)).status == 200
    moved[0] = 25 * HOUR_US
    refused = site.get("ana", trace(rollout_id))
    assert refused.status == 403
    assert "has expired" in refused.json()["error"]["message"]
    # What it let be seen is gone as well, from the pages and from the lists.
    assert site.get("ana", f"/rollouts/{rollout_id}/tokens").status == 403
    assert rollout_id not in site.get("ana", "/rollouts.json").text()


def test_a_grant_is_spent_by_its_count_and_resumed_within_the_hour(
    site: Granted, moved: list[int]
) -> None:
    rollout_id, other_id = new_rollout(site, "counted"), new_rollout(site, "not counted")
    grant_id = site.give("ana", rollout_id, other_id, max_uses=1)["grant_id"]
    with site.client(who="ana") as ana:
        whole = ana.get(trace(rollout_id))
        etag = whole.headers["etag"]
        half = len(whole.content) // 2
        rest = ana.get(trace(rollout_id), headers={"range": f"bytes={half}-", "if-range": etag})
        assert rest.status_code == 206
        size = len(whole.content)
        assert rest.headers["content-range"] == f"bytes {half}-{size - 1}/{size}"
        joined = hashlib.sha256(whole.content[:half] + rest.content).hexdigest()
        assert joined == etag.strip('"')
        # Of a document that has changed meanwhile the whole is sent.
        changed = ana.get(
            trace(rollout_id), headers={"range": f"bytes={half}-", "if-range": '"other"'}
        )
        assert changed.status_code == 200
        assert changed.content == whole.content
        refused = ana.get(trace(other_id))
        assert refused.status_code == 403
        assert "as often as it allows" in refused.json()["error"]["message"]
        # Looking is not taking.
        assert ana.get(f"/rollouts/{other_id}/tokens.json").status_code == 200
        told = site.operator("GET", f"/api/v1/grants/{grant_id}")
        assert (told["state"], told["uses"]) == ("spent", 1)
        moved[0] = HOUR_US + 1
        assert ana.get(trace(rollout_id)).status_code == 403


def test_members_of_an_organisation_hold_its_grant_together(site: Granted) -> None:
    rollout_id = new_rollout(site, "of the lab")
    given = site.give(
        "lab", rollout_id, subject="test:org:org-lab", subject_name="lab", max_uses=1
    )
    assert site.get("ana", trace(rollout_id)).status == 200
    # ben is in no organisation; the other members share what is left, which is nothing.
    assert site.get("ben", trace(rollout_id)).status == 403
    assert site.operator("GET", f"/api/v1/grants/{given['grant_id']}")["state"] == "spent"
    # Her bank wants single sign-on of her, which she has not done.
    bank = new_rollout(site, "of the bank")
    site.give("bank", bank, subject="test:org:org-bank", subject_name="bank")
    assert site.get("ana", trace(bank)).status == 403


def test_a_grant_for_one_kind_opens_no_other(site: Granted) -> None:
    rollout_id = new_rollout(site, "one kind")
    site.give("ben", rollout_id, kinds=["capture_audit"])
    call_id = site.made["one kind"].calls[0].call_id
    base = f"/api/v1/rollouts/{rollout_id}"
    before = len(rows(site, "download", who="test:u-ben"))
    assert site.get("ben", f"{base}/capture-audit").status == 200
    assert site.get("ben", f"{base}/calls/{call_id}").status == 200
    assert site.get("ben", f"{base}/training-trace").status == 403
    assert site.get("ben", f"{base}/raw/{call_id}").status == 403
    row = taken(site, "ben", before + 2)[0]
    assert row["detail"]["etag"] == row["sha256"] != ""


def test_a_grant_for_a_run_or_a_view_covers_what_comes_later(site: Granted) -> None:
    first = new_rollout(site, "growing", "granted")
    run = site.made["growing"].rollout.run
    query = "task=of-the-view"
    site.operator("POST", "/api/v1/views", {"name": "shared", "query": query}, 201)
    site.level("granted", view="shared")
    site.level("granted", run=run)
    site.give("ben", run=run)
    site.give("ben", view="shared")
    assert site.get("ben", trace(first)).status == 200
    made = seeds.maker("later", run=run, task="another-task")
    made.call("done\n", said=seeds.FIRST)
    later = site.add(made)
    assert site.get("ben", trace(later)).status == 200
    assert site.get("ana", trace(later)).status == 403
    other = new_rollout(site, "of-the-view", None)
    assert site.get("ben", trace(other)).status == 200
    assert other in site.get("ben", "/rollouts.json?task=of-the-view").text()
    assert other not in site.get("ana", "/rollouts.json?task=of-the-view").text()
    # Whoever may write views but does not decide cannot open more by changing this one.
    site.operator(
        "POST", "/api/v1/roles", {"subject": "test:u-ben", "role": "curator", "given": True}
    )
    site.sign_in_again("ben")
    with site.client(who="ben") as ben:
        for method, path, body in (
            ("POST", "/api/v1/views", {"name": "shared", "query": ""}),
            ("DELETE", "/api/v1/views/shared", None),
        ):
            tried = ben.request(method, path, json=body, headers=from_page(site))
            assert tried.status_code == 403, tried.text
            assert tried.json()["error"]["code"] == "role_needed"
        for path in ("/views", "/views/drop"):
            form = {"name": "shared", "query": ""}
            assert ben.post(path, data=form, headers=from_page(site)).status_code == 403
        own = {"name": "ben's own", "query": query}
        assert ben.post("/api/v1/views", json=own, headers=from_page(site)).status_code == 201
    site.operator(
        "POST", "/api/v1/roles", {"subject": "test:u-ben", "role": "curator", "given": False}
    )
    site.sign_in_again("ben")
    assert site.signed.whoami(site.contexts["ben"])["role"] == "viewer"


def test_a_token_made_for_reading_takes_nothing(site: Granted) -> None:
    rollout_id = new_rollout(site, "by token")
    site.give("ben", rollout_id)
    with site.client(token=site.token("ben", "read")) as program:
        assert program.get(f"/api/v1/rollouts/{rollout_id}").status_code == 200
        refused = program.get(trace(rollout_id))
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "scope_needed"


# -- private


def everywhere(site: Granted, client: httpx.Client, rollout_id: str, run: str) -> list[str]:
    """Addresses at which somebody may look for a rollout."""
    named = quote(run, safe="")
    known = site.id("small")
    return [
        "/index.json",
        "/rollouts.json",
        f"/rollouts.json?run={named}",
        "/rollouts.csv",
        "/runs.json",
        f"/runs/{named}.json",
        f"/runs/{named}/groups/{PLANTED}-group.json",
        f"/search.json?q={PLANTED}",
        f"/compare.json?id={known}&id={rollout_id}",
        f"/rollouts/{known}/group.json",
        f"/rollouts/{rollout_id}/tokens.json",
        f"/rollouts/{rollout_id}/access.json",
        "/api/v1/rollouts",
        f"/api/v1/rollouts?run={named}",
        "/api/v1/runs",
        "/api/v1/labels",
        "/api/v1/views",
        f"/api/v1/search?q={PLANTED}",
        f"/api/v1/rollouts/{rollout_id}",
        f"/api/v1/rollouts/{rollout_id}/events",
        "/grants.json",
        f"/grants/new.json?rollout={rollout_id}",
    ]


def test_auth_12_a_private_rollout_is_nowhere_whatever_grant_names_it(site: Granted) -> None:
    rollout_id = new_rollout(
        site, PLANTED, None, harness=f"{PLANTED}-harness", group=f"{PLANTED}-group"
    )
    run = site.made[PLANTED].rollout.run
    label = {"kind": "label", "label": f"{PLANTED}-label"}
    path = f"/api/v1/rollouts/{rollout_id}/annotations"
    site.operator("POST", path, {"label": label["label"]}, status=201)
    site.operator("POST", "/api/v1/views", {"name": f"{PLANTED}-view", "query": "q=x"}, 201)
    site.level(None, rollout=rollout_id)
    given = site.give("ana", rollout_id)
    site.give("ana", run=run, kinds=["raw"])
    for who in ("ana", "ben", "nobody"):
        with site.client(who=who) as client:
            for address in everywhere(site, client, rollout_id, run):
                reply = client.get(address)
                assert reply.status_code < 500, address
                told = reply.text
                for asked in (rollout_id, quote(run, safe=""), run, PLANTED):
                    # What was asked for is not told of by being repeated.
                    if asked in address or asked in unquote(address):
                        continue
                    # Her own grants name what an operator put into them.
                    if address == "/grants.json" and who == "ana":
                        continue
                    assert asked not in told, (who, address, asked)
                assert f"{PLANTED}-harness" not in told, (who, address)
                assert f"{PLANTED}-label" not in told, (who, address)
                assert f"{PLANTED}-view" not in told, (who, address)
            parquet = client.get("/rollouts.parquet")
            assert rollout_id.encode() not in parquet.content
            assert PLANTED.encode() not in parquet.content
            refused = client.get(trace(rollout_id))
            assert refused.status_code == 404
            missing = client.get(trace("00000000-0000-7000-8000-000000000000"))
            assert refused.json()["error"]["code"] == missing.json()["error"]["code"]
            asked_for = client.post(
                "/api/v1/grants",
                json={"rollouts": [rollout_id], "kinds": ["raw"], "purpose": "x"},
                headers=from_page(site),
            )
            assert asked_for.status_code == (401 if who == "nobody" else 404)
    # The operator sees that the grant reaches nothing; opening the level makes it work.
    page = site.page("cleo")
    page.goto(f"{site.url}/grants/{given['grant_id']}")
    assert "no grant reaches it until the level is changed" in page.inner_text("dl.facts")
    page.close()
    site.level("granted", rollout=rollout_id)
    assert site.get("ana", trace(rollout_id)).status == 200
    site.level("private", rollout=rollout_id)
    assert site.get("ana", trace(rollout_id)).status == 404


def test_a_secret_that_nobody_decided_about_leaves_under_no_grant(site: Granted) -> None:
    made = seeds.maker("holds a key", run="run of keys", task="holds a key")
    key = "ghp_" + hashlib.sha256(b"a planted key").hexdigest()[:36]
    one = made.call("done\n", said=(("user", f"use the token {key} to push\n"),))
    made.call("done again\n", parent=one, said=(("tool", seeds.TOOL_OUTPUT),))
    rollout_id = site.add(made)
    site.level("granted", rollout=rollout_id)
    site.give("ana", rollout_id, kinds=["training_trace", "capture_audit", "raw"])
    for path in ("training-trace", "capture-audit", f"raw/{made.calls[0].call_id}"):
        refused = site.get("ana", f"/api/v1/rollouts/{rollout_id}/{path}")
        assert refused.status == 409, path
        assert refused.json()["error"]["code"] == "secrets_undecided"
        assert key not in refused.text()
    page = site.page("ana")
    page.goto(f"{site.url}/rollouts/{rollout_id}/conversation")
    assert "nobody has decided" in menu(page)
    assert key not in page.content()
    page.goto(f"{site.url}/rollouts/{rollout_id}/access")
    assert "Nothing leaves under a grant now" in page.inner_text("main")
    page.close()
    found = site.operator("GET", f"/api/v1/rollouts/{rollout_id}/secrets")["findings"]
    for each in found:
        site.operator(
            "POST",
            f"/api/v1/rollouts/{rollout_id}/secrets/{each['finding_id']}",
            {"decision": "not_a_secret", "reason": "planted"},
            201,
        )
    assert site.get("ana", trace(rollout_id)).status == 200

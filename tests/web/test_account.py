"""One's own account over HTTP: tokens, sessions, who one is; and sign-in pages that fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from explorer.access.cookies import LOGIN_COOKIE, SESSION_COOKIE
from explorer.access.oidc import SignedIn
from explorer.access.people import NOBODY, Membership, Person
from explorer.engine.scripted import ScriptedEngine
from tests.live import Live, serving
from tests.oidc.provider import free_port

BEN = Person("corp:u-ben", "ben", (Membership("o-1", "lab"),))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    # Nobody answers at this provider.
    corp = {
        "name": "corp",
        "title": "The Corporation",
        "issuer": f"http://127.0.0.1:{free_port()}",
        "client_id": "c",
        "allow_private": True,
    }
    port = free_port()
    with serving(
        ScriptedEngine([{"when": {"contains": ""}, "text": "ok"}]),
        tmp_path_factory.mktemp("account") / "a.duckdb",
        listen_port=port,
        public_url=f"http://127.0.0.1:{port}",
        providers=(corp,),
        token_days=60,
    ) as running:
        yield running


@dataclass(frozen=True)
class Asking:
    """Asks with the same headers each time, over a connection of its own."""

    url: str
    headers: dict[str, str]

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request."""
        headers = self.headers | more.pop("headers", {})
        return httpx.request(method, self.url + path, headers=headers, timeout=30, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        """One that only reads."""
        return self.ask("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        """One that changes something."""
        return self.ask("POST", path, **more)

    def delete(self, path: str) -> httpx.Response:
        """One that takes something away."""
        return self.ask("DELETE", path)


def client(live: Live, cookie: str = "", token: str = "") -> Asking:
    headers = {"cookie": cookie} if cookie else {}
    if token:
        headers["authorization"] = f"Bearer {token}"
    return Asking(live.url, headers)


def signed_in(live: Live, person: Person = BEN, restricted: tuple[str, ...] = ()) -> str:
    """The cookie line of a new session."""
    told = SignedIn(person, restricted, None)
    value, _ = live.application.sign_in.open_session(told, NOBODY)
    return f"{SESSION_COOKIE}={value}"


def made(asking: Asking, status: int = 201, **body: Any) -> dict[str, Any]:
    wanted = {"label": "a program", "scopes": ["read"], "days": 1} | body
    reply = asking.post("/api/v1/tokens", json=wanted)
    assert reply.status_code == status, reply.text
    assert reply.headers["cache-control"] == "no-store"
    found: dict[str, Any] = reply.json()
    return found


def test_who_one_is(live: Live) -> None:
    assert client(live).get("/api/v1/whoami").json() == {
        "subject": "anonymous",
        "name": "",
        "role": "anonymous",
        "how": "nothing",
        "scopes": None,
        "organisations": [],
    }
    assert client(live, signed_in(live)).get("/api/v1/whoami").json() == {
        "subject": "corp:u-ben",
        "name": "ben",
        "role": "viewer",
        "how": "session",
        "scopes": None,
        "organisations": [{"subject": "corp:org:o-1", "name": "lab"}],
    }
    operator = client(live, token=live.token).get("/api/v1/whoami").json()
    assert (operator["subject"], operator["how"]) == ("operator", "operator_token")
    assert client(live, token="wrong").get("/api/v1/whoami").status_code == 401


def test_an_account_needs_somebody(live: Live) -> None:
    for path in ("/account", "/account.json", "/api/v1/tokens"):
        assert client(live).get(path).status_code == 401
    page = client(live).get("/account", headers={"accept": "text/html"}).text
    assert "/sign-in" in page


def test_tokens_for_programs(live: Live) -> None:
    mine = client(live, signed_in(live))
    first = made(mine, label="first", days=60)
    asking = client(live, token=first["token"])
    assert asking.get("/api/v1/whoami").json()["scopes"] == ["read"]
    listed = mine.get("/api/v1/tokens").json()["tokens"]
    assert [each["label"] for each in listed] == ["first"]
    assert first["token"] not in mine.get("/api/v1/tokens").text
    # A token makes no other, and takes none back.
    assert asking.post("/api/v1/tokens", json={}).status_code == 403
    assert asking.delete(f"/api/v1/tokens/{first['token_id']}").status_code == 403
    # Another person knows nothing of it.
    other = client(live, signed_in(live, Person("corp:u-cleo", "cleo")))
    assert other.get("/api/v1/tokens").json() == {"tokens": []}
    assert other.delete(f"/api/v1/tokens/{first['token_id']}").status_code == 404
    assert asking.get("/api/v1/whoami").status_code == 200
    assert mine.delete(f"/api/v1/tokens/{first['token_id']}").status_code == 204
    assert asking.get("/api/v1/whoami").status_code == 401


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"label": ""}, "$.label"),
        ({"label": 5}, "$.label"),
        ({"scopes": []}, "$.scopes"),
        ({"scopes": "read"}, "$.scopes"),
        ({"scopes": ["fly"]}, "$.scopes"),
        ({"scopes": [["read"]]}, "$.scopes"),
        ({"scopes": ["operate"]}, "$.scopes"),
        ({"days": 61}, "$.days"),
        ({"days": 0}, "$.days"),
        ({"days": "soon"}, "$.days"),
        ({"days": "nan"}, "$.days"),
        ({"days": True}, "$.days"),
        ({"days": None}, "$.days"),
        ({"days": 10**400}, "$.days"),
    ],
)
def test_a_token_that_cannot_be(live: Live, body: dict[str, Any], path: str) -> None:
    mine = client(live, signed_in(live, Person("corp:u-dora", "dora")))
    reply = mine.post(
        "/api/v1/tokens", json={"label": "x", "scopes": ["read"], "days": 1} | body
    )
    assert reply.status_code == 422, reply.text
    assert reply.json()["error"]["details"]["path"] == path
    assert mine.get("/api/v1/tokens").json() == {"tokens": []}


def test_the_operator_makes_narrower_tokens(live: Live) -> None:
    operator = client(live, token=live.token)
    token = made(operator, scopes=["operate", "read"])
    asking = client(live, token=token["token"])
    told = asking.get("/api/v1/whoami").json()
    assert (told["subject"], told["scopes"]) == ("operator", ["operate", "read"])
    assert asking.post("/api/v1/rollouts", json={}).status_code == 201
    narrow = client(live, token=made(operator, scopes=["read"])["token"])
    assert narrow.post("/api/v1/rollouts", json={}).status_code == 403


def test_one_ends_ones_own_sessions_only(live: Live) -> None:
    eve = Person("corp:u-eve", "eve")
    here, elsewhere = signed_in(live, eve), signed_in(live, eve)
    other = client(live, signed_in(live, Person("corp:u-mallory", "mallory")))
    rows = client(live, here).get("/account.json").json()["sessions"]
    assert sorted(row["here"] for row in rows) == [False, True]
    away = next(row for row in rows if not row["here"])
    assert other.post(away["end_action"]).status_code == 404
    assert client(live, elsewhere).get("/account.json").status_code == 200
    assert client(live, here).post(away["end_action"]).status_code == 303
    assert client(live, elsewhere).get("/account.json").status_code == 401
    assert client(live, here).get("/account.json").status_code == 200


def test_the_account_says_what_does_not_count(live: Live) -> None:
    cookie = signed_in(live, Person("corp:u-fay", "f\u202eay<b>"), ("bank",))
    told = client(live, cookie).get("/account.json").json()
    assert [(row["name"], row["counts"]) for row in told["organisations"]] == [("bank", False)]
    page = client(live, cookie).get("/account").text
    assert "ay<b>" not in page
    assert "ay&lt;b&gt;" in page
    assert "\u202e" not in page
    assert told["made"] is None


def test_signing_out_twice_is_no_mistake(live: Live) -> None:
    cookie = signed_in(live, Person("corp:u-gil", "gil"))
    for _ in range(2):
        reply = client(live, cookie).post("/sign-out")
        assert reply.status_code == 303
        assert f"{SESSION_COOKIE}=;" in reply.headers["set-cookie"]
        assert "Max-Age=0" in reply.headers["set-cookie"]
    assert client(live, cookie).get("/account.json").status_code == 401


def test_a_provider_that_does_not_answer_is_told_of(live: Live) -> None:
    reply = client(live).get("/sign-in/corp?next=/runs")
    assert reply.status_code == 502
    assert "The Corporation cannot be used to sign in at the moment" in reply.text
    assert "/sign-in/corp?next=%2Fruns" in reply.text
    assert "set-cookie" not in reply.headers
    assert client(live).get("/sign-in/nobody").status_code == 404
    assert client(live).get("/sign-in/nobody/callback?code=c&state=s").status_code == 404


def test_a_way_back_that_nobody_began_leaves_no_trace_of_its_secrets(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    secrets = {"code": "c0de-" + "x" * 30, "state": "st4te-" + "y" * 30}
    reply = client(live, f"{LOGIN_COOKIE}={'z' * 43}").get(
        "/sign-in/corp/callback", params=secrets
    )
    assert reply.status_code == 403
    log = str(live.application.sign_in.audit.page({"event": "sign_in_failed"}, None, 50))
    # The client of this test logs its own addresses, and the product has no log of requests:
    # only here somebody listens to it.
    said = "".join(
        record.getMessage()
        for record in caplog.records
        if not record.name.startswith(("httpx", "httpcore", "uvicorn.access"))
    )
    for secret in (*secrets.values(), "z" * 43):
        assert secret not in reply.text
        assert secret not in log
        assert secret not in said
    assert "unknown_state" in log


def test_the_head_of_every_page_says_who_reads_it(live: Live) -> None:
    cookie = signed_in(live, Person("corp:u-hal", "hal"))
    for path in ("/", "/rollouts", "/engine", "/help/keys", "/nothing-here"):
        mine = client(live, cookie).get(path).text
        assert ">hal<" in mine.replace("<bdi>", "").replace("</bdi>", "<")
        assert 'action="/sign-out"' in mine
        nobody = client(live).get(path).text
        assert 'action="/sign-out"' not in nobody
        assert ">Sign in</a>" in nobody
    href = client(live).get("/rollouts.json?q=a%20b").json()["frame"]["sign_in_href"]
    assert href == "/sign-in?next=%2Frollouts.json%3Fq%3Da%2520b"

"""Everybody, on every route, about every kind of rollout.

The routes are those that the application really has, so a new one without a rule fails. What
is expected is written down here by hand, apart from the policy that decides.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from explorer.access.grants import ObjectKind, State, SubjectKind, Terms, Wanted
from explorer.access.oidc import SignedIn
from explorer.access.people import NOBODY, Caller, How, Membership, Person, Role, Scope
from explorer.access.policy import RULES, Action, Kind, Level, Rule
from explorer.access.visibility import Target
from explorer.app import Application
from explorer.engine.scripted import ScriptedEngine
from explorer.web.rules import ROUTE_RULES, rule_of
from tests.live import Live, serving

PLANTED = "the words that only some may read"
OPERATOR = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)
DAY = 24 * 3600 * 1_000_000

# Who asks. "holder" has a grant for the three kinds on every rollout; "member" has it through
# an organisation; the others had one that stands no more, or never had any.
PEOPLE = (
    "anonymous", "viewer", "holder", "member", "revoked", "expired", "spent", "pending",
    "curator", "operator", "reader_token", "download_token", "curator_read_token",
)  # fmt: skip
HOLDERS = frozenset(("holder", "member"))
# A spent grant lets its holder look, not take.
LOOKERS = HOLDERS | {"spent"}
STAFF = frozenset(("curator", "operator"))
# Tokens of `holder` (read only; download only) and of `curator` (read only).
READS = frozenset(("reader_token", "curator_read_token"))
SIGNED_IN = frozenset(PEOPLE) - {"anonymous"}


def may_see(who: str, level: Level) -> bool:
    if who in STAFF or who == "curator_read_token":
        return True
    if who == "download_token" or level is Level.PRIVATE:
        return False
    if level is Level.PUBLIC:
        return True
    if who == "anonymous":
        return False
    if level is Level.SIGNED_IN:
        return True
    return who in LOOKERS or who == "reader_token"


def may_take(who: str, level: Level) -> bool:
    if who in STAFF:
        return True
    if level is Level.PRIVATE:
        return False
    return who in HOLDERS or who == "download_token"


def may(who: str, rule: Rule, level: Level) -> bool:
    """The expectation for one rule."""
    if rule.action is Action.OPEN:
        return True
    if rule.action is Action.SEE:
        return may_see(who, level)
    if rule.action is Action.TAKE:
        return may_take(who, level)
    if rule.action is Action.LIST:
        return who != "download_token"
    if rule.action is Action.OWN:
        # A token never changes the account that it belongs to.
        tokens = READS if not rule.changes else frozenset()
        return who in (SIGNED_IN - READS - {"download_token"}) | tokens
    if rule.action is Action.ASK:
        return who in SIGNED_IN - {"download_token"}
    if rule.action is Action.PUBLISH:
        # Whether they may publish there is asked with the dataset's name.
        return who in SIGNED_IN - READS
    if rule.action is Action.CURATE:
        return who in STAFF
    return who == "operator"


@dataclass
class World:
    """A server with a rollout of each level, and everybody's credentials."""

    live: Live
    rollouts: dict[Level, str]
    calls: dict[Level, str]
    headers: dict[str, dict[str, str]]
    grant_id: str
    client: httpx.Client

    def ask(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"host": "demo.example", **self.headers[who]}
        answer = self.client.request(method, self.live.url + path, headers=headers, **more)
        # Whoever asks next is somebody else.
        self.client.cookies.clear()
        return answer


def signed_in(live: Live, person: Person) -> str:
    """A session of a person, as signing in makes it."""
    value, _ = live.application.sign_in.open_session(SignedIn(person, (), None), NOBODY)
    return f"__Host-rx-session={value}"


def grant(live: Live, subject: str, ids: tuple[str, ...], terms: Terms, **more: Any) -> str:
    wanted = Wanted(
        more.get("subject_kind", SubjectKind.PERSON),
        subject,
        subject,
        ObjectKind.ROLLOUTS,
        ids,
        (Kind.TRAINING_TRACE, Kind.CAPTURE_AUDIT, Kind.RAW),
        "to test",
    )
    return live.application.access.grants.give(OPERATOR, wanted, terms).grant_id


def make_world(live: Live) -> World:
    application = live.application
    rollouts: dict[Level, str] = {}
    calls: dict[Level, str] = {}
    for level in Level:
        rollout, key = live.create(run=f"run-{level.value}", task=f"task-{level.value}")
        live.chat(key, messages=[{"role": "user", "content": f"{PLANTED} {level.value}"}])
        live.api("POST", f"/api/v1/rollouts/{rollout}/reward", {"reward": 1.0})
        live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
        application.access.visibility.set(OPERATOR, Target.ROLLOUT, rollout, level, "to test")
        rollouts[level] = rollout
        calls[level] = live.calls(rollout)[0]["call_id"]
    ids = tuple(rollouts.values())
    people = {
        name: Person(f"oidc:{name}", name)
        for name in ("viewer", "holder", "revoked", "expired", "spent", "pending", "curator")
    }
    people["member"] = Person("oidc:member", "member", (Membership("acme", "ACME"),))
    headers = {name: {"cookie": signed_in(live, person)} for name, person in people.items()}
    headers["anonymous"] = {}
    headers["operator"] = {"authorization": f"Bearer {live.token}"}
    application.sign_in.roles.change("oidc:curator", Role.CURATOR, True, OPERATOR, "to test")
    # A role that was given ends the sessions there were.
    headers["curator"] = {"cookie": signed_in(live, people["curator"])}
    book, now = application.access.grants, application.access.grants.clock()
    whole = Terms(now + DAY, 10_000)
    held = grant(live, "oidc:holder", ids, whole)
    grant(live, "oidc:org:acme", ids, whole, subject_kind=SubjectKind.ORGANISATION)
    revoked = grant(live, "oidc:revoked", ids, whole)
    book.decide(OPERATOR, revoked, State.REVOKED, "over")
    grant(live, "oidc:expired", ids, Terms(now - 1, None))
    spent = grant(live, "oidc:spent", ids, Terms(now + DAY, 1))
    # Spent on a kind and a rollout that nothing below asks for within the hour.
    spender = Caller(Role.VIEWER, How.SESSION, person=people["spent"])
    book.spend(spender, spent, "another", Kind.RAW)
    asker = Caller(Role.VIEWER, How.SESSION, person=people["pending"])
    book.ask(
        asker,
        Wanted(
            SubjectKind.PERSON,
            "oidc:pending",
            "pending",
            ObjectKind.ROLLOUTS,
            (rollouts[Level.PUBLIC],),
            (Kind.RAW,),
            "please",
        ),
    )
    for name, owner, scope in (
        ("reader_token", "holder", Scope.READ),
        ("download_token", "holder", Scope.DOWNLOAD),
        ("curator_read_token", "curator", Scope.READ),
    ):
        role = Role.CURATOR if owner == "curator" else Role.VIEWER
        caller = Caller(role, How.SESSION, person=people[owner])
        token, _ = application.sign_in.tokens.make(caller, name, [scope], 1.0)
        headers[name] = {"authorization": f"Bearer {token}"}
    client = httpx.Client(timeout=60, trust_env=False)
    return World(live, rollouts, calls, headers, held, client)


SCRIPT = [{"text": "an answer"}]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    store = tmp_path_factory.mktemp("matrix") / "store.duckdb"
    # A public name: nobody is the operator for coming from this machine.
    with serving(
        ScriptedEngine(SCRIPT), store, allowed_hosts=("demo.example",), rate_per_minute=0
    ) as live:
        made = make_world(live)
        with made.client:
            yield made


def routes_of(application: Application) -> Iterator[tuple[str, str]]:
    """Every method and path that the application answers."""

    def walk(found: Any) -> Iterator[tuple[str, str]]:
        for route in found:
            inner = getattr(route, "original_router", None)
            if inner is not None:
                yield from walk(inner.routes)
            elif isinstance(route, APIRoute):
                for method in route.methods or ():
                    yield method, route.path

    pages: Any = application._pages
    while not hasattr(pages, "routes"):
        pages = pages._app
    yield from walk(pages.routes)


def test_every_route_has_a_rule_and_every_rule_a_route(world: World) -> None:
    served = {
        ("GET" if method == "HEAD" else method, path)
        for method, path in routes_of(world.live.application)
    }
    assert len(served) > 130
    assert sorted(served - set(ROUTE_RULES)) == []
    assert sorted(set(ROUTE_RULES) - served) == []


def test_a_route_without_a_rule_serves_nobody(world: World) -> None:
    assert rule_of("GET", "/api/v1/new-thing") is None
    answer = world.ask("operator", "GET", "/nothing-here")
    assert answer.status_code == 404


def filled(path: str, world: World, level: Level) -> str:
    values = {
        "rollout_id": world.rollouts[level],
        "call_id": world.calls[level],
        "run:path": f"run-{level.value}",
        "group:path": f"task-{level.value}",
        "metric": "logprob",
        "grant_id": world.grant_id,
        "annotation_id": "an_none",
        "finding_id": "none",
        "token_id": "none",
        "session_id": "none",
        "name:path": "none",
        "provider": "none",
        "job_id": "none",
        "schedule_id": "none",
        "change": "pause",
    }
    for name, value in values.items():
        path = path.replace("{" + name + "}", value)
    assert "{" not in path, path
    return path


DENIED = {401, 403}


@pytest.mark.parametrize("who", PEOPLE)
def test_reading_is_as_the_table_says(world: World, who: str) -> None:
    wrong = []
    for (method, path), rule in ROUTE_RULES.items():
        if method != "GET":
            continue
        levels = list(Level) if "{rollout_id}" in path else [Level.PUBLIC]
        for level in levels:
            answer = world.ask(who, "GET", filled(path, world, level), follow_redirects=False)
            allowed = may(who, rule, level)
            got = answer.status_code
            assert got < 500 or path == "/readyz", (who, path, answer.text[:300])
            # Not there, and not trainable (the script's logprobs are made up), are answers.
            refused = got in DENIED or (got == 404 and level is Level.PRIVATE and not allowed)
            if refused is allowed:
                wrong.append((path, level.value, got, allowed))
    assert wrong == []


@pytest.mark.parametrize("who", [each for each in PEOPLE if each != "operator"])
def test_changing_is_as_the_table_says(world: World, who: str) -> None:
    """The bodies are empty: whoever is let through is told what is missing (422, 404 or
    303), and nothing changes."""
    wrong = []
    before = world.live.application.access.audit.check().rows
    for (method, path), rule in ROUTE_RULES.items():
        if method == "GET" or path == "/sign-out":
            continue
        assert rule.changes, path
        levels = list(Level) if "{rollout_id}" in path else [Level.PUBLIC]
        for level in levels:
            answer = world.ask(who, method, filled(path, world, level), content=b"")
            assert answer.status_code < 500, (who, path, answer.text[:300])
            denied = answer.status_code in DENIED
            if path == "/sign-in/operator":
                continue  # open, and refuses what is no token
            if denied is may(who, rule, level):
                wrong.append((method, path, level.value, answer.status_code))
    assert wrong == []
    changes = [
        row["event"]
        for row in world.live.application.access.audit.every()
        if row["sequence"] >= before and row["event"] != "refused"
    ]
    assert set(changes) <= {"sign_in_failed"}, changes


@pytest.mark.parametrize("who", PEOPLE)
def test_lists_tell_of_nothing_that_may_not_be_seen(world: World, who: str) -> None:
    """auth-12: metadata of a private rollout is as private as its data."""
    listed = [
        path
        for (method, path), rule in ROUTE_RULES.items()
        if method == "GET" and rule.action is Action.LIST and "{" not in path
    ]
    queries = ["", f"?q={PLANTED.replace(' ', '+')}", "?q=task-private", "?limit=500"]
    told: dict[Level, set[str]] = {level: set() for level in Level}
    for path in listed:
        for query in queries:
            answer = world.ask(who, "GET", path + query)
            assert answer.status_code < 500, (path + query, answer.text[:300])
            for level, rollout in world.rollouts.items():
                # The words asked for stand in the page; everything else tells.
                marks = (rollout, f"run-{level.value}", rollout[:8] + "…")
                if any(mark in answer.text for mark in marks):
                    told[level].add(path)
    for level, paths in told.items():
        if may_see(who, level):
            assert "/api/v1/rollouts" in paths, (who, level)
            assert "/rollouts" in paths, (who, level)
        else:
            assert paths == set(), (who, level)


def test_counts_are_of_what_may_be_seen(world: World) -> None:
    home = world.ask("anonymous", "GET", "/index.json").json()
    assert home["n_rollouts"] == 1
    assert world.ask("viewer", "GET", "/index.json").json()["n_rollouts"] == 2
    assert world.ask("holder", "GET", "/index.json").json()["n_rollouts"] == 3
    assert world.ask("operator", "GET", "/index.json").json()["n_rollouts"] == 4
    page = world.ask("viewer", "GET", "/rollouts.json").json()
    assert page["total"] == 2
    values = {c["value"] for facet in page["facets"] for c in facet["values"]}
    assert "run-private" not in values
    assert "run-granted" not in values
    runs = world.ask("viewer", "GET", "/api/v1/runs").json()["runs"]
    assert sorted(row["run"] for row in runs) == ["run-public", "run-signed-in"]


def test_a_private_run_and_group_are_not_there(world: World) -> None:
    for path in ("/runs/run-private", "/runs/run-private/groups/task-private"):
        assert world.ask("holder", "GET", path).status_code == 404
        assert world.ask("operator", "GET", path).status_code in (200, 303)
    a, b = world.rollouts[Level.PUBLIC], world.rollouts[Level.PRIVATE]
    for query in (f"?id={a}&id={b}", f"?id={b}&id={a}"):
        answer = world.ask("holder", "GET", f"/compare{query}")
        assert answer.status_code == 404
        assert "task-private" not in answer.text


def test_private_and_unknown_look_the_same(world: World) -> None:
    unknown = "0" * 8 + world.rollouts[Level.PRIVATE][8:]
    for path in ("", "/tokens", "/tokens.json"):
        there = world.ask("holder", "GET", f"/rollouts/{world.rollouts[Level.PRIVATE]}{path}")
        not_there = world.ask("holder", "GET", f"/rollouts/{unknown}{path}")
        assert there.status_code == not_there.status_code == 404
        same = there.text.replace(world.rollouts[Level.PRIVATE], unknown)
        assert same == not_there.text


def test_every_rule_that_can_decide_did(world: World) -> None:
    """The audit log and the permission page name rules; each is one of the documented."""
    # Refusals are written down up to a number a minute; a new minute begins.
    world.live.application.access.gate._minute.rows = 0
    trace = f"/api/v1/rollouts/{world.rollouts[Level.PUBLIC]}/training-trace"
    for who, path in (
        ("anonymous", "/audit"),
        ("viewer", "/audit"),
        ("viewer", trace),
        ("reader_token", trace),
    ):
        assert world.ask(who, "GET", path).status_code in DENIED
    rows = list(world.live.application.access.audit.every())
    told = {row["reason"] for row in rows if row["event"] == "refused"}
    assert told <= set(RULES) | {"wrong_token"}
    assert {"not_signed_in", "role_missing", "grant_missing", "scope_missing"} <= told
    public, granted = world.rollouts[Level.PUBLIC], world.rollouts[Level.GRANTED]
    for who, rollout, rule in (
        ("anonymous", public, "level_public"),
        ("viewer", world.rollouts[Level.SIGNED_IN], "level_signed_in"),
        ("holder", granted, "grant"),
        ("curator", granted, "role_curator"),
        ("operator", granted, "role_operator"),
    ):
        answer = world.ask(who, "GET", f"/api/v1/rollouts/{rollout}/access").json()
        assert answer["answers"][0]["rule"] == rule


def test_the_chain_of_all_that_is_whole(world: World) -> None:
    report = world.live.application.access.audit.check()
    assert report.whole
    assert report.rows > 20
    lines = world.ask("operator", "GET", "/audit.jsonl").text.splitlines()
    assert [json.loads(line)["sequence"] for line in lines][:3] == [0, 1, 2]


def test_the_streams_of_a_rollout_follow_the_same_rules(world: World) -> None:
    for level in Level:
        path = f"/api/v1/rollouts/{world.rollouts[level]}/events"
        for who in ("anonymous", "viewer", "holder", "curator"):
            answer = world.ask(who, "GET", path)
            assert (answer.status_code == 200) is may_see(who, level), (who, level)
            if answer.status_code == 200:
                assert "event: end" in answer.text


def test_nothing_runs_on_the_loop_that_waits(world: World) -> None:
    """A hundred refusals at once are answered while a page is being made."""

    async def knock() -> list[int]:
        async with httpx.AsyncClient(base_url=world.live.url, timeout=60) as client:
            path = f"/rollouts/{world.rollouts[Level.PRIVATE]}/tokens"
            headers = {"host": "demo.example"}
            asked = [client.get(path, headers=headers) for _ in range(100)]
            return [reply.status_code for reply in await asyncio.gather(*asked)]

    assert set(asyncio.run(knock())) == {404}
    assert Path(world.live.application.access.database.path).is_file()


def test_one_person_is_slowed_down_from_wherever_they_ask(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    store = tmp_path_factory.mktemp("slow") / "store.duckdb"
    settings: dict[str, Any] = {"allowed_hosts": ("demo.example",), "rate_burst": 5}
    with serving(ScriptedEngine(SCRIPT), store, rate_per_minute=1, **settings) as live:
        limiter = live.application.access.gate._limiter
        assert limiter is not None
        for _ in range(5):
            assert limiter.take("person:oidc:ana") is None
        cookie = {"cookie": signed_in(live, Person("oidc:ana", "ana"))}
        slowed = httpx.get(live.url + "/api/v1/rollouts", headers=cookie)
        assert slowed.status_code == 429
        assert slowed.json()["error"]["code"] == "rate_limited"
        assert int(slowed.headers["retry-after"]) > 1
        other = {"cookie": signed_in(live, Person("oidc:ben", "ben"))}
        assert httpx.get(live.url + "/api/v1/rollouts", headers=other).status_code == 200


def test_whoever_is_no_longer_who_they_were_is_sent_nothing_more(world: World) -> None:
    application = world.live.application
    identity, tokens = application.sign_in.identity, application.sign_in.tokens
    person = Person("oidc:leaver", "leaver")
    cookie = signed_in(world.live, person)

    def seen(headers: dict[str, str]) -> Caller:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "headers": raw, "client": ("10.0.0.9", 1)}
        return asyncio.run(identity.caller(scope))

    browser = seen({"cookie": cookie})
    assert browser.person == person
    assert identity.ended(browser) == ""
    secret, token = tokens.make(browser, "t", [Scope.DOWNLOAD], 1.0)
    program = seen({"authorization": f"Bearer {secret}"})
    assert identity.ended(program) == ""
    tokens.revoke(token.token_id, browser)
    assert identity.ended(program) == "the API token has ended or was taken back"
    roles = application.sign_in.roles
    roles.change(person.subject, Role.CURATOR, True, OPERATOR, "to test")
    assert identity.ended(browser) == "the session has ended"
    curator = seen({"cookie": signed_in(world.live, person)})
    assert curator.role is Role.CURATOR
    roles.change(person.subject, Role.CURATOR, False, OPERATOR, "to test")
    assert identity.ended(curator) == "the session has ended"
    still = Caller(Role.CURATOR, How.API_TOKEN, person=person)
    assert identity.ended(still) == "the role was taken"
    assert identity.ended(OPERATOR) == ""


def test_a_link_of_another_site_spends_nobodys_grant(world: World) -> None:
    book = world.live.application.access.grants
    path = f"/api/v1/rollouts/{world.rollouts[Level.GRANTED]}/capture-audit"
    before = len(book.get(world.grant_id).uses)
    for site in ("cross-site", "same-site"):
        cookie = world.headers["holder"]["cookie"]
        headers = {"host": "demo.example", "cookie": cookie, "sec-fetch-site": site}
        answer = world.client.get(world.live.url + path, headers=headers)
        world.client.cookies.clear()
        assert answer.status_code == 403
        assert answer.json()["error"]["details"]["rule"] == "cross_site"
    assert len(book.get(world.grant_id).uses) == before
    headers["sec-fetch-site"] = "same-origin"
    assert world.client.get(world.live.url + path, headers=headers).status_code == 200


def test_a_token_of_staff_for_one_purpose_does_all_of_it(world: World) -> None:
    """What it does ends in an answer about the rollout, which it need not be made to read."""
    application = world.live.application
    boss = Person("oidc:boss", "boss")
    application.sign_in.roles.change(boss.subject, Role.OPERATOR, True, OPERATOR, "to test")
    caller = Caller(Role.OPERATOR, How.SESSION, person=boss)
    rollout, _ = world.live.create(run="staff")
    for scope, path, body, status in (
        (Scope.CURATE, "annotations", {"label": "seen"}, 201),
        (Scope.OPERATE, "close", {"ok": True}, 200),
    ):
        token, _ = application.sign_in.tokens.make(caller, scope.value, [scope], 1.0)
        headers = {"host": "demo.example", "authorization": f"Bearer {token}"}
        base = f"{world.live.url}/api/v1/rollouts/{rollout}"
        answer = world.client.post(f"{base}/{path}", json=body, headers=headers)
        assert answer.status_code == status, (path, answer.text)
        assert world.client.get(base, headers=headers).status_code == 403

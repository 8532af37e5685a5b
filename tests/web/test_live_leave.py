"""A live tail ends with the leave to look at it: nothing more is told to who lost it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from explorer.access.grants import ObjectKind, State, SubjectKind, Terms, Wanted
from explorer.access.oidc import SignedIn
from explorer.access.people import NOBODY, Caller, How, Person, Role
from explorer.access.policy import Kind, Level
from explorer.access.visibility import Target
from explorer.engine.scripted import ScriptedEngine
from explorer.web.live import MOST_OF_ONE
from tests.live import Live, serving

HOST = "demo.example"
OPERATOR = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)
ANA = Person("oidc:ana", "ana")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("leave") / "s.duckdb"
    engine = ScriptedEngine([{"text": "an answer"}])
    with serving(engine, store, allowed_hosts=(HOST,), rate_per_minute=0) as found:
        yield found


def level(live: Live, rollout_id: str, wanted: Level) -> None:
    live.application.access.visibility.set(
        OPERATOR, Target.ROLLOUT, rollout_id, wanted, "to test"
    )


def session(live: Live) -> dict[str, str]:
    value, _ = live.application.sign_in.open_session(SignedIn(ANA, (), None), NOBODY)
    return {"cookie": f"__Host-rx-session={value}"}


def told_after(
    live: Live, rollout_id: str, key: str, headers: dict[str, str], change: Callable[[], None]
) -> list[str]:
    """Names of the messages that come after `change` and one more call."""
    told: list[str] = []
    ready = threading.Event()

    def follow() -> None:
        address = f"{live.url}/rollouts/{rollout_id}/live"
        given = {"host": HOST, **headers}
        with httpx.stream("GET", address, headers=given, timeout=20) as reply:
            for line in reply.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    told.append(value)
                    if value == "state":
                        ready.set()
                elif name == "data" and told[-1] == "end":
                    told.append(json.loads(value)["status"])
                    return

    reader = threading.Thread(target=follow)
    reader.start()
    assert ready.wait(10)
    before = len(told)
    change()
    live.chat(key)
    time.sleep(0.8)
    if reader.is_alive():
        live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {})
    reader.join(20)
    assert not reader.is_alive()
    return told[before:]


def test_while_one_may_look_the_tail_goes_on(live: Live) -> None:
    rollout_id, key = live.create()
    level(live, rollout_id, Level.PUBLIC)
    told = told_after(live, rollout_id, key, {}, lambda: None)
    assert "call" in told
    assert told[-1] == "closed"


def test_a_rollout_that_becomes_private_is_told_no_further(live: Live) -> None:
    rollout_id, key = live.create()
    level(live, rollout_id, Level.PUBLIC)
    told = told_after(live, rollout_id, key, {}, lambda: level(live, rollout_id, Level.PRIVATE))
    assert "call" not in told
    assert told[-2:] == ["end", "deleted"]


def test_a_session_that_ended_is_told_no_further(live: Live) -> None:
    rollout_id, key = live.create()
    level(live, rollout_id, Level.SIGNED_IN)
    sessions = live.application.sign_in.sessions
    told = told_after(
        live, rollout_id, key, session(live), lambda: void(sessions.end_all(ANA.subject))
    )
    assert "call" not in told
    assert told[-2:] == ["end", "deleted"]


def test_a_grant_that_was_revoked_is_told_no_further(live: Live) -> None:
    rollout_id, key = live.create()
    level(live, rollout_id, Level.GRANTED)
    book = live.application.access.grants
    wanted = Wanted(
        *(SubjectKind.PERSON, ANA.subject, "ana", ObjectKind.ROLLOUTS, (rollout_id,)),
        *((Kind.RAW,), "to test"),
    )
    grant = book.give(OPERATOR, wanted, Terms(None, None))
    told = told_after(
        live,
        rollout_id,
        key,
        session(live),
        lambda: void(book.decide(OPERATOR, grant.grant_id, State.REVOKED, "over")),
    )
    assert "call" not in told
    assert told[-2:] == ["end", "deleted"]


def test_one_visitor_does_not_take_every_place(live: Live) -> None:
    rollout_id, _ = live.create()
    level(live, rollout_id, Level.PUBLIC)
    address = f"{live.url}/rollouts/{rollout_id}/live"
    # Held, or the streams would be closed.
    parts: list[Iterator[bytes]] = []
    with contextlib.ExitStack() as held, httpx.Client(timeout=20) as client:

        def follow(**headers: str) -> httpx.Response:
            given = {"host": HOST, **headers}
            reply = held.enter_context(client.stream("GET", address, headers=given))
            if reply.status_code == 200:
                parts.append(reply.iter_raw())
                next(parts[-1])
            return reply

        assert {follow().status_code for _ in range(MOST_OF_ONE)} == {200}
        refused = follow()
        assert refused.status_code in (429, 503)
        assert "already" in refused.read().decode()
        assert follow(**session(live)).status_code == 200
        assert follow(authorization=f"Bearer {live.token}").status_code == 200
    parts.clear()
    for _ in range(100):
        if not live.application.live.readers:
            break
        time.sleep(0.1)
    # Their places are free again.
    assert not live.application.live._by_reader


def void(_: object) -> None:
    """For what gives something that nobody needs."""

"""What visitors are told beside the rollout: nothing of the network, nothing to be kept by
caches between, nothing that a terminal would obey."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from explorer.access.people import Caller, How, Role
from explorer.access.policy import Level
from explorer.access.visibility import Target
from explorer.commands import print_json
from explorer.engine.scripted import ScriptedEngine
from explorer.web.rules import ROUTE_RULES
from tests.live import Live, serving

HOST = "demo.example"
OPERATOR = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, str, str]]:
    """A server with a public rollout of a harness that came through a proxy."""
    store = tmp_path_factory.mktemp("told") / "s.duckdb"
    engine = ScriptedEngine([{"text": "an answer"}])
    with serving(engine, store, allowed_hosts=(HOST,), rate_per_minute=0) as live:
        rollout_id, key = live.create()
        httpx.post(
            live.url + "/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": "hi"}]},
            headers={
                "authorization": f"Bearer {key}",
                "x-forwarded-for": "10.77.0.5",
                "forwarded": "for=10.77.0.6",
                "x-real-ip": "10.77.0.7",
                "cf-connecting-ip": "10.77.0.8",
                "via": "1.1 inner-gateway",
                "x-stainless-lang": "python",
            },
            timeout=60,
        )
        live.application.access.visibility.set(
            OPERATOR, Target.ROLLOUT, rollout_id, Level.PUBLIC, "to test"
        )
        yield live, rollout_id, live.calls(rollout_id)[0]["call_id"]


def visit(live: Live, path: str, **headers: str) -> httpx.Response:
    return httpx.get(live.url + path, headers={"host": HOST, **headers}, timeout=30)


@pytest.mark.parametrize(
    "host", ["demo.example:@evil.example", "demo.example:80/rollouts", "demo.example:8x"]
)
def test_after_a_hosts_name_comes_a_port_or_nothing(
    shown: tuple[Live, str, str], host: str
) -> None:
    live, _, _ = shown
    assert httpx.get(f"{live.url}/healthz", headers={"host": host}).status_code == 421
    for good in (
        "demo.example",
        "DEMO.example:443",
        "demo.example:",
        "127.0.0.1:1",
        "[::1]:80",
    ):
        answer = httpx.get(f"{live.url}/healthz", headers={"host": good})
        assert answer.status_code == 200, good


def test_visitors_do_not_see_where_a_harness_runs(shown: tuple[Live, str, str]) -> None:
    live, rollout_id, call_id = shown
    path = f"/rollouts/{rollout_id}/requests/{call_id}.json"
    seen = visit(live, path)
    assert seen.status_code == 200
    assert "x-stainless-lang" in seen.text
    for word in ("10.77.0.", "inner-gateway", "127.0.0.1"):
        assert word not in seen.text
    whole = visit(live, path, authorization=f"Bearer {live.token}")
    assert "10.77.0.5" in whole.text


def test_visitors_are_not_told_who_decided(shown: tuple[Live, str, str]) -> None:
    live, rollout_id, call_id = shown
    who, api = "Ana of the lab", f"/api/v1/rollouts/{rollout_id}"
    decided = {"kind": "exclude_call", "call_id": call_id, "reason": "a test", "who": who}
    live.api("POST", f"{api}/overrides", decided, status=201)
    # The verdict says these in words of its own.
    for more in (
        {"kind": "role", "call_id": call_id, "role": "auxiliary", "reason": "given"},
        {"kind": "accept_logprobs", "reason": "known"},
    ):
        live.api("POST", f"{api}/overrides", {**more, "who": who}, status=201)
    live.api("POST", f"{api}/annotations", {"label": "odd", "who": who}, status=201)
    view = {"name": "odd ones", "query": "label=odd", "who": who}
    live.api("POST", "/api/v1/views", view, status=201)
    live.api("POST", "/api/v1/visibility", {"view": "odd ones", "level": "public"})
    told = f"/rollouts/{rollout_id}/findings.json"
    assert "a test" in visit(live, told).text
    assert "odd ones" in visit(live, "/api/v1/views").text
    for method, route in ROUTE_RULES:
        if method == "GET" and not route.endswith(("/live", "/events")):
            path = route.replace("{rollout_id}", rollout_id).replace("{call_id}", call_id)
            assert who not in visit(live, path.replace("{", "").replace("}", "")).text, path
    for path in (told, "/api/v1/views", api):
        assert who in visit(live, path, authorization=f"Bearer {live.token}").text, path


def test_every_answer_says_whether_caches_may_keep_it(shown: tuple[Live, str, str]) -> None:
    live, rollout_id, call_id = shown
    names = {"rollout_id": rollout_id, "call_id": call_id, "metric": "logprob"}
    seen = 0
    for method, route in ROUTE_RULES:
        if method != "GET" or route.endswith(("/live", "/events")):
            continue
        path = route
        for name, value in names.items():
            path = path.replace("{" + name + "}", value)
        answer = visit(live, path.replace("{", "").replace("}", ""))
        told = answer.headers.get("cache-control", "")
        assert "private" in told or "no-store" in told, (path, told)
        seen += answer.status_code == 200
    assert seen > 40


def test_what_a_command_prints_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"object": "/a\x9b2J\x1b[2J\u202etxt.exe\x7f\ud800", "plain": "grüße, 東京 🙂"}
    print_json(value)
    printed = capsys.readouterr().out
    assert all(letter.isprintable() or letter == "\n" for letter in printed)
    assert json.loads(printed) == value
    assert "grüße, 東京 🙂" in printed

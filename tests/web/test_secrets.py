"""A planted key: found on ingest, seen by the operator alone, and in nothing that leaves.

The key goes through the real proxy in a prompt, in a reply, in arguments within arguments, in
names, metadata, labels, and the words at the end. A visitor without leave then follows every
link there is.
"""

from __future__ import annotations

import html
import io
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from explorer.engine.scripted import ScriptedEngine
from explorer.engine.tiny import TinyEngine
from explorer.errors import SecretsUndecided
from explorer.logs import logging_config
from explorer.records import RolloutId
from explorer.store.search_index import index_path
from explorer.trace.secret_hiding import HIDDEN_ID
from explorer.web.rules import ROUTE_RULES
from tests.live import Live, serving
from tests.trace.test_secret_scan import KEYS, A

KEY = KEYS["openai_key"]
PASSWORD = "hunter2isgood"
PUBLIC: dict[str, Any] = {"default_visibility": "public", "allowed_hosts": ("here.example",)}
PAGE = {"sec-fetch-site": "same-origin", "accept": "text/html"}


def plant(live: Live, **wanted: Any) -> str:
    """A closed rollout of two turns that holds the key wherever a harness could put it."""
    name, key = live.create(run="planted", task="find the bug", **wanted)
    arguments = json.dumps(
        {"cmd": f"export OPENAI_API_KEY={KEY}", "env": {"password": PASSWORD}}
    )
    call = {"id": "c1", "type": "function", "function": {"name": "sh", "arguments": arguments}}
    messages = [
        {"role": "system", "content": f"You help. The key is {KEY}."},
        {"role": "user", "content": "List the files."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": f"ok {PASSWORD} and {KEY}\nmore"},
    ]
    tools = [{"type": "function", "function": {"name": "sh", "parameters": {}}}]
    for _ in range(2):
        reply = live.chat(key, messages=messages, tools=tools, max_tokens=12, user=KEY)
        assert reply.status_code == 200, reply.text
        said = reply.json()["choices"][0]["message"]
        messages = [
            *messages,
            {"role": "assistant", "content": said["content"] or "-"},
            {"role": "user", "content": "Go on."},
        ]
    note = {"note": f"why does it say {KEY}? And {PASSWORD}?", "label": "odd"}
    live.api("POST", f"/api/v1/rollouts/{name}/annotations", note, status=201)
    closing = {
        "ok": True,
        "reason": f"used {KEY}, {PASSWORD}",
        "stdout_tail": f"{KEY[10:]}\ndone",
    }
    live.api("POST", f"/api/v1/rollouts/{name}/close", closing)
    return name


def marked(live: Live, name: str) -> None:
    """Waits until the background scan and the index are done with a rollout."""
    for _ in range(300):
        mark = live.store.secret_mark(RolloutId(name))
        indexed = live.application.index.indexed()
        if mark is not None and RolloutId(name) in indexed:
            return
        time.sleep(0.1)
    raise AssertionError("not scanned")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("secrets") / "store.duckdb"
    with serving(TinyEngine(), store, rate_per_minute=0, **PUBLIC) as running:
        yield running


def visit(live: Live, address: str, **headers: str) -> httpx.Response:
    """As somebody from elsewhere who holds nothing."""
    return httpx.get(urljoin(live.url, address), headers=headers, timeout=30)


def assert_silent(text: str, where: str) -> None:
    for shown in (text, html.unescape(text)):
        flat = re.sub(r"<[^>]+>", "", shown)
        for secret in (KEY, PASSWORD, A + A):
            assert secret not in shown, where
            assert secret not in flat, where  # not over several marks either
        assert KEY[8:24] not in flat, where


def links(page: httpx.Response) -> set[str]:
    """Every address of this server that a page names."""
    found = re.findall(r'(?:href|src|action|data-[a-z-]+|hx-get)="([^"]+)"', page.text)
    found += re.findall(r"(?:href|hx-get)=([^\s\">]+)", page.text)
    found += re.findall(r'"(/[^"\s]*)"', page.text)
    host = str(page.url)
    kept = set()
    for each in map(html.unescape, found):
        address = urljoin(host, each)
        if urlsplit(address).netloc == urlsplit(host).netloc:
            kept.add(address.partition("#")[0])
    return kept


def crawl(live: Live, starts: list[str], most: int = 1500) -> dict[str, httpx.Response]:
    """Everything that can be reached from `starts` without leave; ends of events not."""
    waiting = [urljoin(live.url, start) for start in starts]
    seen: dict[str, httpx.Response] = {}
    with httpx.Client(timeout=30) as client:
        while waiting and len(seen) < most:
            address = waiting.pop(0)
            path = urlsplit(address).path
            if address in seen or path.endswith(("/live", "/events")) or "/static/" in path:
                continue
            page = client.get(address)
            seen[address] = page
            if "location" in page.headers:
                after = urljoin(address, urlsplit(page.headers["location"]).path)
                waiting.append(after)
            if page.headers.get("content-type", "").startswith(
                ("text/html", "application/json")
            ):
                fresh = links(page) - set(seen)
                fresh |= {f"{address}.json"} if page.text.startswith("<!") else set()
                waiting += sorted(fresh)
    return seen


def test_leak_01_sec_02_a_planted_key_is_in_nothing_that_a_visitor_reaches(live: Live) -> None:
    name = plant(live)
    marked(live, name)
    starts = ["/", "/rollouts", "/runs", "/search?q=key&mode=contains", f"/rollouts/{name}"]
    starts += [
        path.replace("{rollout_id}", name)
        for (method, path), _ in ROUTE_RULES.items()
        if method == "GET" and "{rollout_id}" in path and path.count("{") == 1
    ]
    calls = [call["call_id"] for call in live.calls(name)]
    starts += [f"/rollouts/{name}/requests/{call}?all=reply" for call in calls]
    starts += [f"/api/v1/rollouts/{name}/calls/{call}" for call in calls]
    starts += [f"/api/v1/rollouts/{name}/raw/{call}?kind=reply" for call in calls]
    starts += [f"/rollouts/{name}/columns/{each}" for each in ("logprob", "mask", "rank")]
    starts += [f"/rollouts/{name}/tokens/inspect?t={place}" for place in range(0, 400, 7)]
    starts += [f"/rollouts/{name}/compare?with={name}", f"/compare?id={name}&id={name}"]
    seen = crawl(live, starts)
    good = [page for page in seen.values() if page.status_code == 200]
    assert len(good) > 60
    tabs = {urlsplit(address).path.rpartition("/")[2] for address in seen}
    assert {"tokens", "conversation", "requests", "provenance", "findings", "custody"} <= tabs
    for address, page in seen.items():
        assert page.status_code < 500, address
        assert_silent(page.text, address)
    tokens = visit(live, f"/rollouts/{name}/tokens").text
    assert "█" in tokens
    assert "Hidden here:" in tokens
    assert "an OpenAI key" in tokens
    # The ids themselves: what is left of them decodes to no secret.
    twin = visit(live, f"/rollouts/{name}/tokens.json").json()
    ids = [each for section in twin["sections"] for each in section["token_ids"]]
    assert HIDDEN_ID in ids
    record = live.store.record(RolloutId(name))
    assert record is not None
    known = live.application.vocabularies.get(record.rollout.tokenizer_id)
    text = b"".join(known[each][0] for each in ids if each in known).decode()
    assert_silent(text, "token ids")
    inspected = visit(live, f"/rollouts/{name}/tokens/inspect.json?t={ids.index(HIDDEN_ID)}")
    assert "looks like" in inspected.text
    # Live events of a rollout that ended.
    for address in (f"/rollouts/{name}/live", f"/api/v1/rollouts/{name}/events"):
        events = visit(live, address)
        assert events.text.count("event: call") == 2
        assert_silent(events.text, address)
    # What is hidden can be searched for by nobody, and the index file does not hold it.
    for more in ("", "&mode=contains&case=1"):
        found = visit(live, f"/api/v1/search?q={KEY}{more}")
        assert found.status_code == 200, found.text
        assert found.json()["results"] == []
    inside = visit(live, f"/api/v1/rollouts/{name}/search?q={KEY}&case=1").json()
    assert inside["hits"] == []
    for path in live.store.path.parent.glob(index_path(live.store.path).name + "*"):
        assert KEY.encode() not in path.read_bytes()
        assert PASSWORD.encode() not in path.read_bytes()


def test_the_operator_sees_it_and_the_verdict_is_the_same(live: Live) -> None:
    name = plant(live)
    headers = {"authorization": f"Bearer {live.token}"}
    whole = httpx.get(f"{live.url}/rollouts/{name}/tokens.json", headers=headers).json()
    hidden = visit(live, f"/rollouts/{name}/tokens.json").json()
    assert whole["header"]["verdict"] == hidden["header"]["verdict"]
    assert whole["header"]["hidden"] == ""
    assert KEY in httpx.get(f"{live.url}/rollouts/{name}/conversation", headers=headers).text
    for one, other in zip(whole["sections"], hidden["sections"], strict=True):
        names = ("kind", "start", "count", "trained", "call_id")
        assert [one[each] for each in names] == [other[each] for each in names]
        pairs = zip(one["token_ids"], other["token_ids"], strict=True)
        assert all(b in (a, HIDDEN_ID) for a, b in pairs)


def test_a_person_decides_and_only_then_may_a_file_leave(live: Live) -> None:
    name = plant(live)
    marked(live, name)
    rollout_id = RolloutId(name)
    scans = live.application.secrets
    assert rollout_id in live.store.secrets_undecided()
    with pytest.raises(SecretsUndecided, match="nobody has decided"):
        scans.require_released(rollout_id)
    told = live.api("GET", f"/api/v1/rollouts/{name}/secrets")
    assert told["state"] == "undecided"
    kinds = {each["kind"] for each in told["findings"] if each["blocks"]}
    assert kinds == {"openai_key", "assigned_secret"}
    assert KEY not in json.dumps(told)
    assert visit(live, f"/api/v1/rollouts/{name}/secrets").status_code in (401, 403)
    by_kind = {each["kind"]: each["finding_id"] for each in told["findings"]}
    base = f"/api/v1/rollouts/{name}/secrets"

    def decide(kind: str, decision: str, status: int = 201) -> Any:
        body = {"decision": decision, "reason": "I made it up"}
        return live.api("POST", f"{base}/{by_kind[kind]}", body, status=status)

    refused = decide("openai_key", "whatever", 422)
    assert "not_a_secret" in refused["error"]["message"]
    live.api("POST", f"{base}/sf_none", {"decision": "release", "reason": "x"}, status=404)
    assert decide("openai_key", "not_a_secret")["decision"] == "not_a_secret"
    assert scans.export_refusal(rollout_id) is not None
    # What was let go is shown; the rest stays hidden.
    page = visit(live, f"/rollouts/{name}/conversation").text
    assert KEY in page
    assert PASSWORD not in page
    decide("assigned_secret", "withhold")
    with pytest.raises(SecretsUndecided, match="withholds"):
        scans.require_released(rollout_id)
    assert rollout_id not in live.store.secrets_undecided()
    form = {
        "finding_id": by_kind["assigned_secret"],
        "decision": "release",
        "reason": '<b onclick="x">of a test server</b>',
        "who": "Ada",
    }
    posted = httpx.post(
        f"{live.url}/rollouts/{name}/secrets",
        data=form,
        headers=PAGE | {"authorization": f"Bearer {live.token}"},
    )
    assert posted.status_code == 303
    assert posted.headers["location"] == f"/rollouts/{name}/findings#secrets"
    assert scans.export_refusal(rollout_id) is None
    assert live.api("GET", base)["state"] == "decided"
    findings = httpx.get(
        f"{live.url}/rollouts/{name}/findings",
        headers={"authorization": f"Bearer {live.token}"},
    ).text
    assert "of a test server" in findings
    assert "<b onclick" not in findings
    assert live.api("GET", f"{base}")["refusal"] is None


def test_a_visitor_may_not_decide(live: Live) -> None:
    name = plant(live)
    finding = live.api("GET", f"/api/v1/rollouts/{name}/secrets")["findings"][0]["finding_id"]
    body = {"decision": "release", "reason": "let me"}
    for path in (f"/api/v1/rollouts/{name}/secrets/{finding}", f"/rollouts/{name}/secrets"):
        reply = httpx.post(live.url + path, json=body, headers=PAGE)
        assert reply.status_code in (401, 403)
    assert live.store.secret_decisions(RolloutId(name)) == ()
    tab = visit(live, f"/rollouts/{name}/findings.json").json()["secrets"]
    assert tab["may_decide"] is False
    assert all(each["preview"] == "" for each in tab["items"])


def test_a_secret_in_names_or_metadata_takes_a_rollout_out_of_lists(live: Live) -> None:
    name = plant(live, metadata={"db": {"password": PASSWORD}}, group=f"g {KEY}")
    marked(live, name)
    for address in (
        "/api/v1/rollouts?run=planted",
        f"/api/v1/rollouts?q={KEY[:12]}",
        "/rollouts.csv",
        "/rollouts?sort=group&limit=1",
        f"/api/v1/rollouts?meta.db.password={PASSWORD}",
    ):
        page = visit(live, address)
        assert_silent(page.text.replace(f"q={KEY[:12]}", ""), address)
        if page.status_code == 200 and "planted" not in address:
            assert name not in page.text
    assert name in json.dumps(live.api("GET", "/api/v1/rollouts?limit=200"))
    page = visit(live, f"/rollouts/{name}/provenance")
    assert page.status_code == 200
    assert_silent(page.text, "provenance")
    for finding in live.api("GET", f"/api/v1/rollouts/{name}/secrets")["findings"]:
        body = {"decision": "not_a_secret", "reason": "made up"}
        path = f"/api/v1/rollouts/{name}/secrets/{finding['finding_id']}"
        live.api("POST", path, body, status=201 if finding["blocks"] else 404)
    assert name in visit(live, "/api/v1/rollouts?limit=200").text


def test_a_key_in_a_reply_and_in_errors(tmp_path: Path) -> None:
    stream = io.StringIO()
    logging.config.dictConfig(logging_config("debug"))
    root = logging.getLogger()
    handler = root.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(stream)
    script: list[dict[str, Any]] = [
        {"when": {"contains": "tell"}, "text": f"it is {KEY} and password='{PASSWORD}'"},
        {
            "when": {"contains": "fail"},
            "status": 500,
            "body": {"error": {"message": f"refused Authorization: Bearer {KEY}"}},
        },
    ]
    try:
        with serving(ScriptedEngine(script), tmp_path / "store.duckdb", **PUBLIC) as live:
            name, key = live.create(run="r")
            for streamed in (False, True):
                messages = [{"role": "user", "content": "tell"}]
                live.chat(key, messages=messages, max_tokens=400, stream=streamed)
            failed = live.chat(key, messages=[{"role": "user", "content": "fail"}])
            assert failed.status_code >= 500
            shown = httpx.get(f"{live.url}/v1/models?api_key=sk-test-000&key={KEY}")
            assert KEY not in shown.text
            missing = httpx.get(f"{live.url}/rollouts/{KEY}")
            live.api("POST", f"/api/v1/rollouts/{name}/close", {})
            seen = crawl(live, [f"/rollouts/{name}/{tab}" for tab in ("tokens", "requests")])
            assert len(seen) > 20
            for address, page in seen.items():
                assert_silent(page.text, address)
            assert missing.status_code in (401, 403, 404)
            told = live.api("GET", f"/api/v1/rollouts/{name}/secrets")
            assert {f["kind"] for f in told["findings"]} == {"openai_key", "assigned_secret"}
            sources = {p["source"] for f in told["findings"] for p in f["places"]}
            assert {"reply", "call"} <= sources
    finally:
        root.handlers.clear()
        root.setLevel(logging.WARNING)
    assert KEY not in stream.getvalue()
    assert "sk-test-000" not in stream.getvalue()


def test_findings_keep_their_names_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    with serving(TinyEngine(), path, **PUBLIC) as live:
        name = plant(live)
        marked(live, name)
    with serving(TinyEngine(), path, **PUBLIC) as live:
        # So that decisions stand.
        told = live.api("GET", f"/api/v1/rollouts/{name}/secrets")["findings"]
        rows = live.store.secret_rows(RolloutId(name))
        assert {row.finding_id for row in rows} == {each["finding_id"] for each in told}
        assert len(rows) == len(told)

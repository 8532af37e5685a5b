"""The HTTP API: shapes, errors, downloads and who may call what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from explorer.engine.scripted import ScriptedEngine
from explorer.engine.tiny import TinyEngine
from tests.live import Live, serving

SCRIPT: list[dict[str, Any]] = [
    {"when": {"contains": "hang"}, "text": "late", "delay_ms": 1500},
    {"when": {"contains": ""}, "text": "fine"},
]
NOBODY = "01a228ed-1a24-7bb6-82e6-db4332c09e5f"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("api") / "store.duckdb"
    with serving(ScriptedEngine(SCRIPT), store) as running:
        yield running


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("certified") / "store.duckdb"
    with serving(TinyEngine(), store, top_logprobs=3) as running:
        yield running


def rollout_with_calls(live: Live, turns: int = 2, **close: Any) -> tuple[str, str]:
    rollout, key = live.create(run="api", task="t")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is 4 + 5?"}]
    for _ in range(turns):
        reply = live.chat(key, messages=messages, max_tokens=20)
        assert reply.status_code == 200
        message = reply.json()["choices"][0]["message"]
        said = {k: v for k, v in message.items() if v is not None}
        messages = [*messages, said, {"role": "user", "content": "Say only: ok"}]
    live.api("POST", f"/api/v1/rollouts/{rollout}/reward", {"reward": 0.5})
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True} | close)
    return rollout, key


def test_a_rollout_is_created_with_a_key_shown_once(live: Live) -> None:
    made = live.api("POST", "/api/v1/rollouts", {"run": "r", "metadata": {"a": 1}}, status=201)
    assert set(made) == {"rollout_id", "capture_key", "base_urls", "url"}
    key = made["capture_key"]
    assert made["base_urls"]["openai"] == f"{live.url}/k/{key}/v1"
    assert made["base_urls"]["anthropic"] == f"{live.url}/k/{key}"
    shown = live.api("GET", f"/api/v1/rollouts/{made['rollout_id']}")
    assert key not in orjson.dumps(shown).decode()
    assert shown["metadata"] == {"a": 1}
    assert shown["status"] == "open"
    assert shown["verdict"]["trainable"] is False
    assert "rollout_open" in [reason["code"] for reason in shown["verdict"]["reasons"]]


def test_every_field_of_a_new_rollout_is_optional(live: Live) -> None:
    response = httpx.post(
        live.url + "/api/v1/rollouts", headers={"authorization": f"Bearer {live.token}"}
    )
    assert response.status_code == 201


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"rnu": "x"}, "unknown fields rnu"),
        ({"run": ""}, "`run`"),
        ({"run": "x" * 201}, "`run`"),
        ({"task": 5}, "`task`"),
        ({"purpose": "fun"}, "`purpose`"),
        ({"attempt": -1}, "`attempt`"),
        ({"sampling": {"top_p": 0.5}}, "top_p"),
        ({"sampling": {"temperature": 3}}, "temperature"),
        ({"sampling": {"temperature": True}}, "temperature"),
        ({"metadata": []}, "`metadata`"),
        ({"metadata": {"x": "y" * 70_000}}, "`metadata`"),
        ({"budgets": {"call": 3}}, "unknown fields call"),
        ({"budgets": {"calls": 0}}, "`budgets.calls`"),
        ({"budgets": {"calls": True}}, "`budgets.calls`"),
        ({"budgets": {"output_tokens": 1.5}}, "`budgets.output_tokens`"),
        ({"budgets": {"on_spent": "explode"}}, "refuse, final_turn"),
        ({"budgets": 3}, "`budgets`"),
        ({"streaming": "raw"}, "synthesised, passthrough"),
        ({"streaming": True}, "`streaming`"),
        ({"run": "a\nb"}, "control characters"),
        ({"run": ".."}, "part of an address"),
        ({"run": "a/b"}, "part of an address"),
        ({"run": "a.json"}, "part of an address"),
        ({"sampling": {"seed": 2**64}}, "beyond 64 bits"),
        ({"metadata": {"x": 10**400}}, "beyond 64 bits"),
    ],
)
def test_wrong_fields_are_named(live: Live, body: dict[str, Any], words: str) -> None:
    error = live.api("POST", "/api/v1/rollouts", body, status=422)["error"]
    assert error["code"] == "invalid_value"
    assert words in error["message"]


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"metadata": {"a": ["\\ud800"]}}', "$.metadata.a[0]"),
        (b'{"metadata": {"\\ud800": 1}}', "$.metadata"),
        (b'{"metadata": {"a": ' + b"[" * 40 + b"]" * 40 + b"}}", "$.metadata.a"),
    ],
)
def test_what_could_never_be_shown_is_refused_before_it_is_stored(
    live: Live, raw: bytes, path: str
) -> None:
    response = httpx.post(
        live.url + "/api/v1/rollouts",
        content=raw,
        headers={"authorization": f"Bearer {live.token}"},
    )
    assert response.status_code == 422
    assert response.json()["error"]["details"]["path"].startswith(path)


@pytest.mark.parametrize(
    "target", ["relative", "/" + "x" * 5000, "/nowhere/at/all", 5, "/a\0b"]
)
def test_a_backup_target_that_cannot_be_is_refused(live: Live, target: Any) -> None:
    live.api("POST", "/api/v1/backup", {"target": target}, status=422)


@pytest.mark.parametrize("raw", [b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(live: Live, raw: bytes) -> None:
    response = httpx.post(
        live.url + "/api/v1/rollouts",
        content=raw,
        headers={"authorization": f"Bearer {live.token}"},
    )
    assert response.status_code == 422
    assert set(response.json()["error"]) == {"code", "message", "details"}


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"reward": 1.0, "rewards": {"parts": [0.5, NaN]}}', "$.rewards.parts[1]"),
        (b'{"reward": Infinity}', "$.reward"),
        (b'{"reward": "1"}', "$.reward"),
        (b'{"reward": 1' + b"0" * 400 + b"}", "$.reward"),
        (b"{}", "$.reward"),
    ],
)
def test_rew_02_a_bad_reward_names_its_path(live: Live, raw: bytes, path: str) -> None:
    rollout, _ = live.create()
    response = httpx.post(
        f"{live.url}/api/v1/rollouts/{rollout}/reward",
        content=raw,
        headers={"authorization": f"Bearer {live.token}"},
    )
    assert response.status_code == 422
    assert response.json()["error"]["details"]["path"] == path


def test_a_null_reward_is_unscored_and_the_latest_counts(live: Live) -> None:
    rollout, _ = live.create()
    path = f"/api/v1/rollouts/{rollout}"
    live.api("POST", path + "/reward", {"reward": None})
    assert live.api("GET", path)["reward"] is None
    live.api("POST", path + "/reward", {"reward": 0})
    live.api("POST", path + "/reward", {"reward": 1})
    assert live.api("GET", path)["reward"] == 1.0


def test_closing_twice_is_refused_and_nothing_changes(live: Live) -> None:
    rollout, _ = rollout_with_calls(live)
    error = live.api("POST", f"/api/v1/rollouts/{rollout}/close", status=400)["error"]
    assert error["code"] == "rollout_closed"


def test_what_was_open_at_close_is_recorded(live: Live) -> None:
    rollout, key = live.create()
    thread = threading.Thread(
        target=live.chat,
        args=(key,),
        kwargs={"messages": [{"role": "user", "content": "hang"}]},
    )
    thread.start()
    driver = live.application.proxy
    while not driver.in_flight:
        pass
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
    thread.join()
    record = live.store.record(rollout)  # type: ignore[arg-type]
    assert record is not None
    assert len(record.events[-1].payload["open_calls"]) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/tree"),
        ("GET", "/calls"),
        ("GET", "/findings"),
        ("GET", "/training-trace"),
        ("GET", "/capture-audit"),
        ("POST", "/reward"),
        ("POST", "/close"),
        ("DELETE", ""),
    ],
)
@pytest.mark.parametrize("rollout", [NOBODY, "nonsense", "..%2f..%2fetc", "%00", "a" * 5000])
def test_path_01_unknown_and_hostile_ids_are_404(
    live: Live, method: str, path: str, rollout: str
) -> None:
    body = {"reward": 1} if path == "/reward" else None
    error = live.api(method, f"/api/v1/rollouts/{rollout}{path}", body, status=404)["error"]
    assert error["code"] == "not_found"


def test_the_operator_token_guards_changes(live: Live) -> None:
    rollout, key = live.create()
    for headers, code in (
        ({}, "admin_token_needed"),
        ({"authorization": "Bearer wrong"}, "credentials_refused"),
        # A capture key says which rollout a call belongs to, not who somebody is.
        ({"authorization": f"Bearer {key}"}, "admin_token_needed"),
    ):
        for method, path in (
            ("POST", "/api/v1/rollouts"),
            ("POST", f"/api/v1/rollouts/{rollout}/close"),
            ("DELETE", f"/api/v1/rollouts/{rollout}"),
            ("POST", "/api/v1/backup"),
        ):
            response = httpx.request(method, live.url + path, headers=headers)
            assert response.status_code == 401, (method, path)
            assert response.json()["error"]["code"] == code


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that is reached under a public name: nobody is the operator for free."""
    store = tmp_path_factory.mktemp("named") / "store.duckdb"
    options = {"allowed_hosts": ("demo.example",)}
    with serving(ScriptedEngine(SCRIPT), store, **options) as running:
        yield running


def test_a_server_with_another_name_shows_nobody_anything_by_itself(named: Live) -> None:
    """Every route and every kind of caller: tests/web/test_matrix.py."""
    rollout, _ = named.create()
    visitor = {"host": "demo.example"}
    page = httpx.get(named.url + f"/rollouts/{rollout}/tokens", headers=visitor)
    assert page.status_code == 404
    listed = httpx.get(named.url + "/api/v1/rollouts", headers=visitor).json()
    assert listed["rollouts"] == []
    # The token is taken as the password of Basic, too, as `curl -u` sends it.
    seen = httpx.get(named.url + "/api/v1/rollouts", auth=("operator", named.token)).json()
    assert [row["rollout_id"] for row in seen["rollouts"]] == [rollout]


def test_the_openapi_document_is_open_and_has_no_secret(named: Live) -> None:
    answer = httpx.get(named.url + "/openapi.json")
    assert answer.status_code == 200
    assert "/api/v1/grants" in answer.json()["paths"]
    assert named.token not in answer.text


def test_a_person_drops_a_call_with_a_reason(certified: Live) -> None:
    rollout, _ = rollout_with_calls(certified, turns=2)
    path = f"/api/v1/rollouts/{rollout}"
    before = certified.api("GET", path)["verdict"]["supervised_tokens"]
    call = certified.calls(rollout)[1]
    wanted = {"kind": "exclude_call", "call_id": call["call_id"], "reason": "tool was down"}
    after = certified.api("POST", path + "/overrides", wanted, status=201)["verdict"]
    assert after["supervised_tokens"] == before - call["completion_len"]
    audit = certified.api("GET", path + "/capture-audit")
    assert [item["reason"] for item in audit["overrides"]] == ["tool was down"]
    trace = certified.api("GET", path + "/training-trace")
    assert call["call_id"] not in [turn["node_id"] for turn in trace["turns"]]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"kind": "make_trainable", "reason": "x"}, "$.kind"),
        ({"kind": "accept_logprobs"}, "$.reason"),
        ({"kind": "exclude_call", "reason": "x"}, "$.call_id"),
        ({"kind": "accept_logprobs", "reason": "x", "call_id": NOBODY}, "$.call_id"),
        ({"kind": "role", "reason": "x", "call_id": "CALL", "role": "king"}, "$.role"),
        ({"kind": "exclude_span", "reason": "x", "call_id": "CALL"}, "$.start"),
        (
            {"kind": "exclude_span", "reason": "x", "call_id": "CALL", "start": 5, "end": 5},
            "$.start",
        ),
        (
            {
                "kind": "exclude_span",
                "reason": "x",
                "call_id": "CALL",
                "start": 0,
                "end": 10**9,
            },
            "$.start",
        ),
        (
            {"kind": "exclude_span", "reason": "x", "call_id": "CALL", "start": 0, "end": 3},
            "$.end",
        ),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(
    live: Live, body: dict[str, Any], path: str
) -> None:
    rollout, key = live.create()
    live.chat(key)
    if body.get("call_id") == "CALL":
        body = body | {"call_id": live.calls(rollout)[0]["call_id"]}
    error = live.api("POST", f"/api/v1/rollouts/{rollout}/overrides", body, status=422)["error"]
    assert error["details"]["path"] == path


def test_csrf_01_another_sites_page_changes_nothing(live: Live) -> None:
    rollout, _ = live.create()
    for headers in (
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        {"origin": "https://evil.example"},
    ):
        response = httpx.post(f"{live.url}/api/v1/rollouts/{rollout}/close", headers=headers)
        assert response.status_code == 403
    assert live.api("GET", f"/api/v1/rollouts/{rollout}")["status"] == "open"


def test_host_01_a_foreign_host_name_is_refused(live: Live) -> None:
    response = httpx.get(live.url + "/rollouts", headers={"host": "evil.example:7860"})
    assert response.status_code == 421


def test_the_listing_filters_and_pages(live: Live) -> None:
    made = [live.create(run="pages", task=f"t{n % 2}")[0] for n in range(5)]
    first = live.api("GET", "/api/v1/rollouts?run=pages&limit=2")
    assert first["total"] == 5
    ids = [row["rollout_id"] for row in first["rollouts"]]
    cursor = first["next"]
    while cursor:
        page = live.api("GET", f"/api/v1/rollouts?run=pages&limit=2&cursor={cursor}")
        ids += [row["rollout_id"] for row in page["rollouts"]]
        cursor = page["next"]
    assert ids == made[::-1]
    assert live.api("GET", "/api/v1/rollouts?run=pages&task=t1")["total"] == 2


def test_the_listing_sorts_as_the_page_does(live: Live) -> None:
    for value in (1, 3, 2):
        name = live.create(run="sorted")[0]
        live.api("POST", f"/api/v1/rollouts/{name}/reward", {"reward": value})

    def rewards(query: str) -> list[float]:
        rows = live.api("GET", f"/api/v1/rollouts?run=sorted&{query}")["rollouts"]
        return [row["reward"] for row in rows]

    assert rewards("sort=reward&order=desc") == rewards("sort=-reward") == [3, 2, 1]
    assert rewards("sort=reward&order=asc") == rewards("sort=reward") == [1, 2, 3]
    assert rewards("sort=-reward&order=desc") == [3, 2, 1]
    assert rewards("order=desc") == rewards("") == [2, 3, 1]
    assert rewards("order=asc") == [1, 3, 2]


@pytest.mark.parametrize(
    "query",
    [
        "state=bad",
        "reward_min=x",
        "reward_min=nan",
        "trainable=maybe",
        "sort=size",
        "cursor=%%%",
        "order=up",
        "sort=-reward&order=asc",
        "trainabel=yes",
        "text=x",
    ],
)
def test_wrong_filters_are_named(live: Live, query: str) -> None:
    response = httpx.get(
        f"{live.url}/api/v1/rollouts?{query}", headers={"authorization": f"Bearer {live.token}"}
    )
    assert response.status_code in (400, 422)
    assert response.json()["error"]["message"]


def test_a_deleted_rollout_is_gone_at_once_with_its_key(live: Live) -> None:
    rollout, key = live.create()
    live.chat(key)
    live.api("DELETE", f"/api/v1/rollouts/{rollout}", status=204)
    live.api("GET", f"/api/v1/rollouts/{rollout}", status=404)
    assert live.chat(key).status_code == 401


def test_a_scripted_rollout_is_shown_and_never_trainable(live: Live) -> None:
    rollout, _ = rollout_with_calls(live)
    error = live.api("GET", f"/api/v1/rollouts/{rollout}/training-trace", status=409)["error"]
    assert error["code"] == "not_trainable"
    assert error["details"]["reasons"]
    audit = live.api("GET", f"/api/v1/rollouts/{rollout}/capture-audit")
    assert len(audit["calls"]) == 2


def test_an_open_rollout_has_no_trace(live: Live) -> None:
    rollout, key = live.create()
    live.chat(key)
    error = live.api("GET", f"/api/v1/rollouts/{rollout}/training-trace", status=409)["error"]
    assert error["code"] == "rollout_open"


def test_a_certified_rollout_gives_its_trace(certified: Live) -> None:
    rollout, _ = rollout_with_calls(certified)
    shown = certified.api("GET", f"/api/v1/rollouts/{rollout}")
    assert shown["verdict"]["trainable"] is True
    url = f"{certified.url}/api/v1/rollouts/{rollout}/training-trace"
    headers = {"authorization": f"Bearer {certified.token}"}
    response = httpx.get(url, headers=headers)
    assert response.status_code == 200
    assert response.headers["content-disposition"] == (
        f'attachment; filename="{rollout}.training-trace.json"'
    )
    again = httpx.get(url, headers=headers | {"if-none-match": response.headers["etag"]})
    assert again.status_code == 304
    trace = response.json()
    assert trace["schema_version"] == 1
    ones = sum(sum(turn["loss_mask"]) for turn in trace["turns"])
    assert ones == shown["verdict"]["supervised_tokens"]
    for turn in trace["turns"]:
        detail = certified.api("GET", f"/api/v1/rollouts/{rollout}/calls/{turn['node_id']}")
        assert detail["prompt_token_ids"] == turn["prompt_token_ids"]
        assert detail["completion_token_ids"] == turn["completion_token_ids"]
        assert detail["per_token_logps"] == pytest.approx(turn["per_token_logps"])
        assert len(detail["top_logprobs"]) == len(turn["completion_token_ids"])


def test_cd_01_no_name_of_a_rollout_reaches_the_headers_of_a_download(live: Live) -> None:
    title = 'é"; filename=evil.html\r\nX-A: 1'
    for name in ("run", "task", "group"):
        live.api("POST", "/api/v1/rollouts", {name: title}, status=422)
    plain = title.replace("\r\n", " ")
    rollout, key = live.create(run=plain, task=plain, group=plain, metadata={"title": title})
    live.chat(key)
    response = httpx.get(
        f"{live.url}/api/v1/rollouts/{rollout}/capture-audit",
        headers={"authorization": f"Bearer {live.token}"},
    )
    assert response.status_code == 200
    assert response.headers["content-disposition"] == (
        f'attachment; filename="{rollout}.capture-audit.json"'
    )
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "x-a" not in response.headers
    assert response.json()["rollout"]["run"] == plain


def test_the_same_logprobs_as_the_engines_own_bytes(certified: Live) -> None:
    rollout, _ = rollout_with_calls(certified)
    trace = certified.api("GET", f"/api/v1/rollouts/{rollout}/training-trace")
    for turn in trace["turns"]:
        reply = certified.store.bodies(turn["node_id"])[-1]
        choice = orjson.loads(reply.data)["choices"][0]
        assert turn["completion_token_ids"] == choice["token_ids"]
        said = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert turn["per_token_logps"] == said


def test_health_and_metrics_answer(live: Live) -> None:
    alive = httpx.get(live.url + "/healthz").json()
    assert alive == {"status": "ok", "instance": live.application.public.instance}
    assert httpx.get(live.url + "/readyz").json()["ready"] is True
    text = httpx.get(live.url + "/metrics").text
    assert "rollout_explorer_store_quarantined_rows 0" in text


def test_a_restart_keeps_keys_sequences_and_parents(tmp_path: Any) -> None:
    path = tmp_path / "store.duckdb"
    first = [{"role": "user", "content": "one"}]
    with serving(ScriptedEngine(SCRIPT), path) as live:
        rollout, key = live.create()
        said = live.chat(key, messages=first).json()["choices"][0]["message"]
    with serving(ScriptedEngine(SCRIPT), path) as live:
        more = [
            *first,
            {k: v for k, v in said.items() if v},
            {"role": "user", "content": "two"},
        ]
        assert live.chat(key, messages=more).status_code == 200
        one, two = live.calls(rollout)
    assert [one["sequence"], two["sequence"]] == [0, 1]
    assert two["stored_parent_id"] == one["call_id"]


def test_masked_tokens_and_trained_ones_are_all_that_was_sampled(live: Live) -> None:
    rollout, key = live.create()
    live.chat(key, messages=[{"role": "user", "content": "hi"}])
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {})
    verdict = live.api("GET", f"/api/v1/rollouts/{rollout}")["verdict"]
    assert sum(verdict["masked_tokens"].values()) > 0
    total = verdict["supervised_tokens"] + sum(verdict["masked_tokens"].values())
    assert total == verdict["generated_tokens"]


def test_a_cursor_of_calls_is_a_place_in_their_order(live: Live) -> None:
    rollout, _ = rollout_with_calls(live)
    live.api("GET", f"/api/v1/rollouts/{rollout}/calls?cursor=-1", status=422)
    page = live.api("GET", f"/api/v1/rollouts/{rollout}/calls?cursor=1&limit=1")
    assert [call["sequence"] for call in page["calls"]] == [1]
    assert page["next"] is None

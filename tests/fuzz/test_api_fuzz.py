"""Hostile requests on every route: any answer but a fault of ours.

Paths, queries and headers are made from the OpenAPI document by schemathesis; bodies by
Hypothesis, from the field names that routes read, for pages' forms as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import hypothesis
import pytest
import schemathesis
from fastapi.openapi.utils import get_openapi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from explorer.engine.scripted import ScriptedEngine
from explorer.web.rules import ROUTE_RULES
from scripts.make_docs import served_routes
from tests.live import Live, serving

QUICK = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A fault found once must be found again by whoever looks.
    derandomize=True,
    database=None,
)
# Writes a file where the body says: nothing a fuzzer should do here.
NOT_FUZZED = {"/api/v1/backup"}
FIELDS = (
    "rollouts", "run", "view", "dataset", "kinds", "purpose", "subject", "subject_name",
    "expires", "expires_days", "max_uses", "reason", "level", "rollout", "role", "given",
    "label", "note", "who", "call_id", "start", "end", "name", "query", "scopes", "days",
    "reward", "rewards", "ok", "terminal_call_id", "trajectory", "metadata", "budgets",
    "sampling", "task", "group", "kind", "decision", "token", "sql", "target", "id",
    "object_kind", "terms", "rollout_id", "harness_config_sha256", "streaming", "next",
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "",
        "\x00",
        "../../etc/passwd",
        "..%2f..%2fx",
        "a/b",
        "CON",
        "x\x00y",
        ".",
        "public",
        "oidc:ana",
        "hub:a/b",
        "training_trace",
        "raw",
        "curator",
        "nan",
        "1e999",
        "-1",
        "\ud800",
        "💥" * 40,
        "=HYPERLINK(1)",
        "<script>alert(1)</script>",
        "' OR 1=1 --",
        "9" * 400,
        "2030-01-01T00:00:00Z",
        "0001-01-01",
        "9999-12-31T23:59:59+14:00",
    ]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | WORDS
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("fuzz") / "store.duckdb"
    with serving(
        ScriptedEngine([{"text": "fine"}]), store, sql_console=False, rate_per_minute=0
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60, trust_env=False) as made:
        yield made


def document() -> dict[str, Any]:
    """The document that `/openapi.json` serves."""
    found = get_openapi(title="API", version="1", routes=served_routes())
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


SCHEMA = schemathesis.openapi.from_dict(document())
OPERATIONS: list[Any] = [each.ok() for each in SCHEMA.get_all_operations()]  # type: ignore[union-attr]


def token_of(live: Live) -> dict[str, str]:
    # Wrong tokens are among what is tried, and too many of them lock an address out.
    live.application.sign_in.identity.tries._seen.clear()
    return {"authorization": f"Bearer {live.token}"}


def sound(answer: httpx.Response, what: str) -> None:
    """No fault of ours, and no word about our insides."""
    assert answer.status_code < 500 or answer.status_code == 503, (what, answer.text[:500])
    if answer.status_code >= 400:
        assert "Traceback" not in answer.text, what
        assert 'File "' not in answer.text, what


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.path}")
def test_the_document_fuzzed(operation: Any, live: Live, client: httpx.Client) -> None:
    if operation.path in NOT_FUZZED:
        pytest.skip("writes a file where the body says")

    def send(case: Any) -> None:
        made = case.as_transport_kwargs(base_url=live.url)
        known = {"method", "url", "params", "json", "data", "files"}
        kept = {name: value for name, value in made.items() if name in known and value}
        try:
            answer = client.request(**kept, headers=token_of(live), follow_redirects=False)
        except (httpx.InvalidURL, UnicodeEncodeError):
            hypothesis.reject()
        sound(answer, f"{operation.method} {made['url']}")

    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        try:
            strategy = operation.as_strategy(generation_mode=mode)
            run: Any = QUICK(given(strategy)(send))  # type: ignore[no-untyped-call]
            run()
        except hypothesis.errors.Unsatisfiable:
            # A route without parameters has nothing that could be wrong in this way.
            assert mode is GenerationMode.NEGATIVE, operation.path


CHANGING = sorted(
    (method, path)
    for (method, path), rule in ROUTE_RULES.items()
    if method != "GET" and path not in NOT_FUZZED
)


@pytest.mark.parametrize(("method", "path"), CHANGING, ids=lambda each: each)
def test_bodies_fuzzed(method: str, path: str, live: Live, client: httpx.Client) -> None:
    rollout, _ = live.create(run="fuzz", task="fuzz")

    @given(body=BODIES, form=st.booleans(), raw=st.none() | st.binary(max_size=80), word=WORDS)
    def go(body: dict[str, Any], form: bool, raw: bytes | None, word: str) -> None:
        url = live.url + filled(path, rollout, word)
        content = raw if raw is not None else encoded(body, form)
        kind = "application/x-www-form-urlencoded" if form else "application/json"
        headers = token_of(live) | {"content-type": kind}
        answer = client.request(method, url, content=content, headers=headers)
        client.cookies.clear()
        sound(answer, f"{method} {url} {content[:200]!r}")

    run: Any = QUICK(go)
    run()


def encoded(body: dict[str, Any], form: bool) -> bytes:
    if form:
        text = {key: str(value).encode("utf-8", "replace") for key, value in body.items()}
        return urlencode(text).encode()
    return json.dumps(body).encode("utf-8", "surrogatepass")


def filled(path: str, rollout: str, word: str) -> str:
    """The path with a real rollout and a hostile word everywhere else."""
    parts = []
    for part in path.split("/"):
        if part == "{rollout_id}":
            parts.append(rollout)
        elif part.startswith("{"):
            parts.append(quote(word.encode("utf-8", "replace"), safe="") or "x")
        else:
            parts.append(part)
    return "/".join(parts)


@pytest.mark.parametrize(
    "word", ["../../etc/passwd", "..%2f..%2fx", "a/b", "CON", "x\x00y", "."]
)
def test_path_01_hostile_ids_on_every_route(
    word: str, live: Live, client: httpx.Client
) -> None:
    for (method, path), _ in sorted(ROUTE_RULES.items()):
        if "{rollout_id}" not in path or path in NOT_FUZZED:
            continue
        # A bare dot the client would take for what it means in a path.
        given = "%2E" if word == "." else quote(word, safe="")
        url = live.url + path.replace("{rollout_id}", given)
        url = url.replace("{call_id}", given).replace("{metric}", "x")
        if "{" in url:
            url = url.replace("{annotation_id}", "x").replace("{finding_id}", "x")
        answer = client.request(method, url, headers=token_of(live))
        assert answer.status_code in (404, 405, 422), (method, url, answer.status_code)
        assert "root:" not in answer.text


def test_size_01_a_huge_body_without_leave_is_not_read(live: Live) -> None:
    """60 MB that nobody may send: refused on the head, or cut while they arrive."""
    huge = b"x" * (60 * 1024 * 1024)
    for path in ("/api/v1/grants", "/api/v1/rollouts", "/sign-in/operator", "/grants"):
        try:
            answer = httpx.post(live.url + path, content=huge, timeout=60)
        except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
            continue  # the server closed the connection in the middle, as it may
        assert answer.status_code in (401, 403, 413), (path, answer.status_code)

"""Rollouts of every wire on the pages: what was asked and answered, in one way for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from explorer.engine.scripted import ScriptedEngine
from tests.live import Live, serving

SCRIPT: list[dict[str, Any]] = [
    {"when": {"contains": ""}, "text": "An <answer> & more.", "reasoning": "I ponder."},
]
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "asked <this>"}]},
    ),
    "completions": ("/v1/completions", {"prompt": "asked <this>", "max_tokens": 300}),
    "responses": ("/v1/responses", {"input": "asked <this>"}),
    "messages": (
        "/v1/messages",
        {"max_tokens": 300, "messages": [{"role": "user", "content": "asked <this>"}]},
    ),
    "google": (
        "/v1beta/models/m:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "asked <this>"}]}]},
    ),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("dialects") / "store.duckdb"
    with serving(ScriptedEngine(SCRIPT), store) as running:
        yield running


def page(live: Live, path: str) -> str:
    response = httpx.get(
        live.url + path, headers={"authorization": f"Bearer {live.token}"}, timeout=30
    )
    assert response.status_code == 200, response.text
    return response.text


@pytest.mark.parametrize("wire", CALLS)
@pytest.mark.parametrize("streaming", ["synthesised", "passthrough"])
def test_the_conversation_is_read_on_every_wire(live: Live, wire: str, streaming: str) -> None:
    rollout, key = live.create(streaming=streaming)
    path, body = CALLS[wire]
    if wire != "google":
        body = body | {"stream": streaming == "passthrough", "model": "m"}
    elif streaming == "passthrough":
        path = path.replace(":generateContent", ":streamGenerateContent?alt=sse")
    answer = httpx.post(f"{live.url}/k/{key}{path}", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    html = page(live, f"/rollouts/{rollout}/conversation")
    assert "asked &lt;this&gt;" in html
    assert "An &lt;answer&gt; &amp; more." in html
    if wire != "completions":
        assert "I ponder." in html
    requests = page(live, f"/rollouts/{rollout}/requests")
    assert wire in requests
    for tab in ("tokens", "timing", "provenance", "findings"):
        page(live, f"/rollouts/{rollout}/{tab}")


def test_streaming_and_budgets_stand_with_the_provenance(live: Live) -> None:
    rollout, _ = live.create(streaming="passthrough", budgets={"calls": 7, "wall_s": 1.5})
    html = page(live, f"/rollouts/{rollout}/provenance")
    assert "passthrough" in html
    assert "wall_s" in html


def test_how_the_harness_ended_is_shown_with_what_it_printed(live: Live) -> None:
    rollout, _ = live.create()
    told = {
        "exit_code": 3,
        "duration_s": 1.25,
        "command": ["pi", "-p", "<b>task</b>"],
        "stdout_tail": "line one\n<script>alert(1)</script>\u202e",
    }
    before = page(live, f"/rollouts/{rollout}/provenance")
    assert "Nobody told" in before
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", told)
    html = page(live, f"/rollouts/{rollout}/provenance")
    assert "exit_code" in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "<script>alert(1)" not in html
    assert "\u202e" not in html
    assert "&lt;b&gt;task&lt;/b&gt;" in html

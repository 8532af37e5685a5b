"""The public demo, as the command starts it: everything is shown, nothing is taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from explorer import runfile
from explorer.store.search_index import index_path

ROOT = Path(__file__).parents[2]
TOKEN = "operators-own-token-of-forty-characters!"
HOST = "demo.example"


@dataclass
class Demo:
    """A running public demo, asked as somebody from outside would ask."""

    url: str
    store: Path
    before: bytes

    def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> httpx.Response:
        return httpx.request(
            method, self.url + path, json=body, headers={"host": HOST, **headers}, timeout=60
        )

    def get(self, path: str) -> httpx.Response:
        return self.ask("GET", path)


def command(*more: str) -> list[str]:
    return [sys.executable, "-m", "explorer", "demo", "--public", "--attempts", "1", *more]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("public")
    store = folder / "curated" / "demo.duckdb"
    environment = os.environ | {
        "ROLLOUT_EXPLORER_STORE": str(store),
        "ROLLOUT_EXPLORER_ACCESS_STORE": str(folder / "access.duckdb"),
        "ROLLOUT_EXPLORER_ADMIN_TOKEN": TOKEN,
        # A name of its own, so that nobody is the operator for being on this machine.
        "ROLLOUT_EXPLORER_ALLOWED_HOSTS": HOST,
        "ROLLOUT_EXPLORER_RATE_PER_MINUTE": "0",
    }
    subprocess.run(
        command("--exit"), env=environment, cwd=ROOT, check=True, capture_output=True
    )
    # Nothing but the store and its index is left of the making.
    assert {each.name for each in store.parent.iterdir()} == {
        store.name,
        index_path(store).name,
    }
    before = store.read_bytes()
    child = subprocess.Popen(
        command("--port", "0"), env=environment, cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while (run := runfile.read(store)) is None:
            assert child.poll() is None, "the demo ended"
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield Demo(run.url, store, before)
    finally:
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0


def test_a_visitor_sees_every_rollout_and_the_banner(demo: Demo) -> None:
    page = demo.get("/rollouts")
    assert page.status_code == 200
    assert "This is a public demo" in page.text
    twin = demo.get("/rollouts.json").json()
    assert twin["frame"]["banner"].startswith("This is a public demo")
    assert "wiped every 24 hours" in twin["frame"]["banner"]
    listed = demo.get("/api/v1/rollouts").json()
    assert listed["total"] == 7
    for row in listed["rollouts"]:
        assert demo.get(f"/rollouts/{row['rollout_id']}/tokens").status_code == 200
        assert row["judgement"] is not None, "the curated store has every verdict"


def test_the_ranked_search_works_without_a_writable_index(demo: Demo) -> None:
    found = demo.get("/search.json?q=calculator")
    assert found.status_code == 200
    twin = found.json()
    assert (twin["indexed"], twin["waiting"], twin["index_problem"]) == (7, 0, "")
    assert "/rollouts/" in found.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "m", "messages": []}),
        ("/v1/completions", {"model": "m", "prompt": "x"}),
        ("/v1/responses", {"model": "m", "input": "x"}),
        ("/v1/messages", {"model": "m", "messages": []}),
        ("/v1beta/models/m:generateContent", {"contents": []}),
        ("/k/rxk_anything/v1/chat/completions", {"model": "m", "messages": []}),
    ],
)
def test_no_call_is_taken_and_the_answer_says_why(demo: Demo, path: str, body: object) -> None:
    reply = demo.ask("POST", path, body, authorization="Bearer rxk_whatever")
    assert reply.status_code == 403
    assert "open for reading only" in reply.text
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["content-type"].startswith("application/json")


def test_the_operator_cannot_record_or_change_either(demo: Demo) -> None:
    operator = {"authorization": f"Bearer {TOKEN}"}
    rollout_id = demo.get("/api/v1/rollouts").json()["rollouts"][0]["rollout_id"]
    base = f"/api/v1/rollouts/{rollout_id}"
    for method, path, body in (
        ("POST", "/api/v1/rollouts", {"run": "r"}),
        ("POST", f"{base}/reward", {"reward": 1}),
        ("DELETE", base, None),
        ("POST", f"{base}/annotations", {"label": "x"}),
    ):
        reply = demo.ask(method, path, body, **operator)
        assert reply.status_code == 403, (path, reply.text)
        assert reply.json()["error"]["code"] == "read_only", (path, reply.text)
        assert "nothing is recorded or changed" in reply.json()["error"]["message"]
    imported = demo.ask("POST", "/api/v1/imports", {"x": 1}, **operator)
    assert imported.status_code == 403
    assert "imports are off" in imported.text
    sql = demo.ask("POST", "/sql", **operator)
    assert sql.status_code == 403
    assert "SQL console is off" in sql.text


def test_a_visitor_changes_nothing_and_takes_nothing(demo: Demo) -> None:
    rollout_id = demo.get("/api/v1/rollouts").json()["rollouts"][0]["rollout_id"]
    base = f"/api/v1/rollouts/{rollout_id}"
    for method, path in (
        ("POST", "/api/v1/rollouts"),
        ("DELETE", base),
        ("POST", "/api/v1/backup"),
        ("POST", "/api/v1/imports"),
        ("GET", f"{base}/training-trace"),
        ("GET", f"{base}/capture-audit"),
        ("GET", "/sql"),
        ("GET", "/metrics"),
    ):
        assert demo.ask(method, path).status_code in (401, 403), path


def test_health_says_that_it_only_shows(demo: Demo) -> None:
    assert demo.get("/healthz").json()["status"] == "ok"
    ready = demo.get("/readyz")
    assert (ready.status_code, ready.json()["store"]) == (200, "read_only")
    assert demo.get("/engine").status_code == 200


def test_the_curated_store_was_not_touched(demo: Demo) -> None:
    assert demo.store.read_bytes() == demo.before
    assert {each.name for each in demo.store.parent.iterdir()} <= {
        demo.store.name,
        index_path(demo.store).name,
        runfile.path_of(demo.store).name,
    }
    # Who visits is on record all the same.
    assert (demo.store.parent.parent / "access.duckdb").exists()


def test_a_store_that_is_shown_is_not_made_again(demo: Demo) -> None:
    environment = os.environ | {
        "ROLLOUT_EXPLORER_STORE": str(demo.store),
        "ROLLOUT_EXPLORER_ADMIN_TOKEN": TOKEN,
    }
    ended = subprocess.run(
        command("--reseed", "--exit"), env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "stop it before it is made again" in ended.stderr
    assert demo.store.read_bytes() == demo.before


def test_reseed_goes_with_public(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "explorer", "demo", "--reseed"]
    ended = subprocess.run(
        asked,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 2
    assert "--reseed goes with --public" in ended.stderr
    assert list(tmp_path.iterdir()) == []

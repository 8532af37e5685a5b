"""Jobs on a whole server: stopped, restarted, out of leave; nothing is lost or sent twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer.access.grants import State as GrantState
from explorer.access.people import Person, Role
from explorer.access.policy import Level
from explorer.access.visibility import Target
from explorer.export.publishing.jobs import State
from tests.hub.faults import waiting
from tests.hub.server import LocalHub
from tests.web.publishing import OPERATOR, ORDER, Publishing, publishing

UPLOAD = "PUT /upload"


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with LocalHub() as made:
        yield made


def _uploading(site: Publishing, target: str) -> str:
    """A job that hangs in the middle of its upload."""
    site.hub.faults.add(UPLOAD, waiting(1.5), first=2)
    job = site.dry_run(query="run=good", target=target)
    assert job["state"] == "written", job
    site.post(f"/api/v1/datasets/{job['job_id']}/publish", token=site.token)
    site.until(job["job_id"], "publishing")
    return str(job["job_id"])


def test_a_job_survives_a_restart_in_the_middle_of_an_upload(
    hub: LocalHub, tmp_path: Path
) -> None:
    store, token = tmp_path / "s.duckdb", hub.people.add("ada")
    with publishing(store, hub, token) as site:
        site.rollout("one", run="good")
        job_id = _uploading(site, "ada/again")
    assert "manifest.json" not in hub.shelf.repos["dataset", "ada/again"].head.files
    with publishing(store, hub, token) as site:
        job = site.until(job_id, "waiting", "done", "failed")
        assert job["state"] == "waiting"
        assert "only in memory" in job["error"]["message"]
        page = site.ask({}, "GET", f"/datasets/{job_id}").text
        assert "Go on" in page
        site.post(f"/api/v1/datasets/{job_id}/go-on", 401)
        site.post(f"/api/v1/datasets/{job_id}/go-on", token=token)
        job = site.until(job_id, "done", "failed")
        assert job["state"] == "done", job
        assert job["result"]["manifest_sha256"]
    assert "manifest.json" in hub.shelf.repos["dataset", "ada/again"].head.files
    sent = hub.faults.asked(UPLOAD)
    assert len(set(sent)) == 3
    assert sent.count(sent[0]) == 1, "what was there was sent again"


def test_a_dry_run_goes_on_by_itself_after_a_restart(hub: LocalHub, tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    with publishing(store, hub, "hf_x") as site:
        site.rollout("one", run="good")
        job_id = site.dry_run(query="run=good")["job_id"]
        desk = site.live.application.publishing.desk
        folder = desk.folder(job_id)
    # As a process leaves it that was killed while it wrote.
    with publishing(store, hub, "hf_x") as site:
        site.live.application.publishing.desk.book.change(
            job_id, state=State.WORKING, result={}, files=False
        )
    (folder / "manifest.json").unlink()
    left = folder.with_name(f".{folder.name}.abc")
    left.mkdir()
    (left / "half.parquet").write_bytes(b"PAR1")
    with publishing(store, hub, "hf_x") as site:
        job = site.until(job_id, "written", "failed")
        assert job["state"] == "written", job
        assert job["result"]["rollouts"] == 1
        assert (folder / "manifest.json").is_file()
        assert not left.exists()


def test_a_job_is_stopped_and_goes_on(hub: LocalHub, tmp_path: Path) -> None:
    with publishing(tmp_path / "s.duckdb", hub, hub.people.add("ada")) as site:
        site.rollout("one", run="good")
        job_id = _uploading(site, "ada/stopped")
        site.post(f"/api/v1/datasets/{job_id}/stop")
        job = site.until(job_id, "stopped", "done", "failed")
        assert job["state"] == "stopped", job
        site.post(f"/api/v1/datasets/{job_id}/stop", 422)
        assert [row["reason"] for row in site.events("dataset_failed")] == ["stopped"]
        site.post(f"/api/v1/datasets/{job_id}/go-on", token=site.token)
        assert site.until(job_id, "done", "failed")["state"] == "done"


def test_a_job_that_waits_its_turn_is_stopped_too(hub: LocalHub, tmp_path: Path) -> None:
    with publishing(tmp_path / "s.duckdb", hub, hub.people.add("ada")) as site:
        site.rollout("one", run="good")
        first = _uploading(site, "ada/one")
        second = site.post("/api/v1/datasets", **ORDER, query="run=good")["job_id"]
        assert site.job(second)["state"] == "queued"
        site.post(f"/api/v1/datasets/{second}/stop")
        assert site.job(second)["state"] == "stopped"
        site.until(first, "done")
        assert site.job(second)["state"] == "stopped"
        site.post(f"/api/v1/datasets/{second}/go-on")
        site.until(second, "written")


def test_a_grant_that_is_revoked_ends_the_upload_under_it(
    hub: LocalHub, tmp_path: Path
) -> None:
    with publishing(tmp_path / "s.duckdb", hub, hub.people.add("ada")) as site:
        rollout = site.rollout("one", run="good")
        access = site.live.application.access
        access.visibility.set(OPERATOR, Target.ROLLOUT, rollout, Level.SIGNED_IN, "to test")
        eve = Person("oidc:eve", "Eve")
        headers, grant_id = site.session(eve), site.grant(eve.subject, "ada/revoked")
        hub.faults.add(UPLOAD, waiting(3), times=1)
        body = ORDER | {"query": "run=good", "target": "ada/revoked"}
        job_id = site.ask(headers, "POST", "/api/v1/datasets", json=body).json()["job_id"]
        site.until(job_id, "written")
        path = f"/api/v1/datasets/{job_id}/publish"
        site.ask(headers, "POST", path, json={"token": site.token})
        site.until(job_id, "publishing")
        access.grants.decide(OPERATOR, grant_id, GrantState.REVOKED, "no more")
        job = site.until(job_id, "failed", "done")
        assert job["state"] == "failed", job
        assert "revoked" in job["error"]["message"]
        assert "manifest.json" not in hub.shelf.repos["dataset", "ada/revoked"].head.files
        answer = site.ask(
            headers, "POST", f"/api/v1/datasets/{job_id}/go-on", json={"token": site.token}
        )
        assert answer.status_code == 403


def test_a_curator_whose_role_was_taken_publishes_no_more(
    hub: LocalHub, tmp_path: Path
) -> None:
    with publishing(tmp_path / "s.duckdb", hub, hub.people.add("ada")) as site:
        site.rollout("one", run="good")
        roles = site.live.application.sign_in.roles
        cur = Person("oidc:cur", "Cur")
        roles.change(cur.subject, Role.CURATOR, True, OPERATOR, "to test")
        headers = site.session(cur)
        hub.faults.add(UPLOAD, waiting(3), times=1)
        body = ORDER | {"query": "run=good", "target": "ada/role"}
        job_id = site.ask(headers, "POST", "/api/v1/datasets", json=body).json()["job_id"]
        site.until(job_id, "written")
        path = f"/api/v1/datasets/{job_id}/publish"
        site.ask(headers, "POST", path, json={"token": site.token})
        site.until(job_id, "publishing")
        roles.change(cur.subject, Role.CURATOR, False, OPERATOR, "to test")
        job = site.until(job_id, "failed", "done")
        assert job["state"] == "failed", job
        assert "may not publish any more" in job["error"]["message"]


def test_files_are_removed_when_they_were_kept_long_enough(
    hub: LocalHub, tmp_path: Path
) -> None:
    store = tmp_path / "s.duckdb"
    with publishing(store, hub, "hf_x") as site:
        site.rollout("one", run="good")
        job_id = site.dry_run(query="run=good")["job_id"]
        folder = site.live.application.publishing.desk.folder(job_id)
        assert folder.is_dir()
    with publishing(store, hub, "hf_x", dataset_days=1e-9) as site:
        for _ in range(100):
            if not folder.exists():
                break
            site.job(job_id)
        assert site.until(job_id, "written")["files"] is False
        assert not folder.exists()


def test_what_was_written_of_a_deleted_rollout_goes_too(hub: LocalHub, tmp_path: Path) -> None:
    with publishing(tmp_path / "s.duckdb", hub, hub.people.add("ada")) as site:
        gone, stays = site.rollout("one", run="good"), site.rollout("two", run="stays")
        kept = site.dry_run(query="run=stays")["job_id"]
        written = site.dry_run(query="run=good")["job_id"]
        desk = site.live.application.publishing.desk
        running = _uploading(site, "ada/deleted")
        site.live.api("DELETE", f"/api/v1/rollouts/{gone}", status=204)
        assert not desk.folder(written).exists()
        assert site.job(written)["files"] is False
        job = site.until(running, "failed", "done")
        assert job["error"]["code"] == "rollout_deleted", job
        assert not desk.folder(running).exists()
        assert desk.folder(kept).is_dir(), stays
        assert "manifest.json" not in hub.shelf.repos["dataset", "ada/deleted"].head.files


def test_nothing_is_written_on_a_disk_that_is_nearly_full(
    hub: LocalHub, tmp_path: Path
) -> None:
    store = tmp_path / "s.duckdb"
    with publishing(store, hub, "hf_x") as site:
        site.rollout("one", run="good")
    with publishing(store, hub, "hf_x", min_free_bytes=2**60) as site:
        job = site.dry_run(query="run=good")
        assert (job["state"], job["error"]["code"]) == ("failed", "disk"), job
        assert "nearly full" in job["error"]["message"]


def test_one_holder_of_a_grant_does_not_fill_the_disk(hub: LocalHub, tmp_path: Path) -> None:
    with publishing(tmp_path / "s.duckdb", hub, "hf_x") as site:
        rollout = site.rollout("one", run="good")
        visibility = site.live.application.access.visibility
        visibility.set(OPERATOR, Target.ROLLOUT, rollout, Level.SIGNED_IN, "to test")
        eve = Person("oidc:eve", "Eve")
        headers = site.session(eve)
        site.grant(eve.subject, "ada/many")
        body = ORDER | {"query": "run=good", "target": "ada/many"}
        for _ in range(5):
            made = site.ask(headers, "POST", "/api/v1/datasets", json=body)
            site.until(made.json()["job_id"], "written")
        refused = site.ask(headers, "POST", "/api/v1/datasets", json=body)
        assert refused.status_code == 429
        path = f"/api/v1/datasets/{made.json()['job_id']}"
        assert site.ask(headers, "DELETE", path).status_code == 204
        assert site.ask(headers, "POST", "/api/v1/datasets", json=body).status_code == 202


class Process:
    """`rollout-explorer serve` in a process of its own, which can be killed."""

    def __init__(self, store: Path, hub: LocalHub) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        environment = os.environ | {
            "ROLLOUT_EXPLORER_ADMIN_TOKEN": "rx-test-token-of-the-operator",
            "ROLLOUT_EXPLORER_HUB_ENDPOINT": hub.url,
        }
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "explorer", "serve", "--engine", "tiny"),
                *("--store", str(store), "--port", self.url.rpartition(":")[2]),
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Process:
        for _ in range(300):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/healthz").status_code == 200:
                    return self
            time.sleep(0.1)
        raise AssertionError("the server did not start")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(20)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"authorization": "Bearer rx-test-token-of-the-operator"}
        answer = httpx.request(
            method, f"{self.url}/api/v1{path}", json=body, headers=headers, timeout=30
        )
        assert answer.status_code < 300, answer.text
        return answer.json()

    def until(self, job_id: str, *states: str) -> Any:
        for _ in range(600):
            job = self.api("GET", f"/datasets/{job_id}")
            if job["state"] in states:
                return job
            time.sleep(0.05)
        raise AssertionError(job)


def test_kill_9_in_the_middle_of_an_upload_loses_nothing(hub: LocalHub, tmp_path: Path) -> None:
    store, token = tmp_path / "s.duckdb", hub.people.add("ada")
    with publishing(store, hub, token) as site:
        site.rollout("one", run="good")
    hub.faults.add(UPLOAD, waiting(2), first=2)
    with Process(store, hub) as killed:
        body = ORDER | {"query": "run=good", "target": "ada/killed"}
        job_id = killed.api("POST", "/datasets", body)["job_id"]
        seen = killed.until(job_id, "written", "failed")["result"]["manifest_sha256"]
        killed.api("POST", f"/datasets/{job_id}/publish", {"token": token})
        killed.until(job_id, "publishing", "done", "failed")
        while len(hub.faults.asked(UPLOAD)) < 2:
            time.sleep(0.02)
    files = hub.shelf.repos["dataset", "ada/killed"].head.files
    assert "manifest.json" not in files
    with Process(store, hub) as again:
        assert again.until(job_id, "waiting", "done", "failed")["state"] == "waiting"
        again.api("POST", f"/datasets/{job_id}/go-on", {"token": token})
        job = again.until(job_id, "done", "failed")
    assert job["state"] == "done", job
    assert job["result"]["manifest_sha256"] == seen
    repo = hub.shelf.repos["dataset", "ada/killed"]
    there = hub.shelf.content(repo.head.files["manifest.json"])
    assert hashlib.sha256(there).hexdigest() == seen

"""A whole server whose datasets go to the local Hub, and the few steps that tests take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from explorer.access.grants import ObjectKind, SubjectKind, Terms, Wanted
from explorer.access.oidc import ProviderToken, SignedIn
from explorer.access.people import NOBODY, Caller, How, Person, Role
from explorer.access.policy import Kind
from explorer.engine.scripted import ScriptedEngine
from tests.hub.server import LocalHub
from tests.live import Live, serving

OPERATOR = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)
DAY_US = 24 * 3600 * 1_000_000
SCRIPT = [{"text": "an answer"}]
SECRET = "ghp_" + "a1B2" * 9
ORDER: dict[str, Any] = {"title": "A set", "licence": "cc-by-4.0"}


@dataclass
class Publishing:
    """The server, the Hub, and a token of somebody there who may write."""

    live: Live
    hub: LocalHub
    token: str

    def post(self, path: str, status: int = 202, **body: Any) -> Any:
        return self.live.api("POST", path, body, status=status)

    def rollout(self, text: str = "hi", *, run: str = "r", close: bool = True) -> str:
        """A rollout with one call."""
        rollout_id, key = self.live.create(run=run, task="t")
        self.live.chat(key, messages=[{"role": "user", "content": text}])
        if close:
            self.close(rollout_id)
        return rollout_id

    def close(self, rollout_id: str) -> None:
        self.live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {"ok": True})

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.live.api("GET", f"/api/v1/datasets/{job_id}")
        return found

    def until(self, job_id: str, *states: str, seconds: float = 30) -> dict[str, Any]:
        """The job once it stands in one of these states."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            job = self.job(job_id)
            if job["state"] in states:
                return job
            time.sleep(0.05)
        raise AssertionError(f"never {states}: {job}")

    def dry_run(self, **more: Any) -> dict[str, Any]:
        """A dry run that is done."""
        made = self.post("/api/v1/datasets", **(ORDER | more))
        return self.until(made["job_id"], "written", "failed")

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Rows of the audit log, the newest first."""
        rows = self.live.api("GET", "/api/v1/audit?limit=1000")["rows"]
        return [row for row in rows if row["event"] in names]

    def session(self, person: Person, token: str = "", *scopes: str) -> dict[str, str]:
        """Headers of somebody who signed in, with leave to publish where a token is given."""
        given = None
        if token:
            ends = self.live.application.access.grants.clock() + DAY_US
            given = ProviderToken(token, frozenset(scopes or ("contribute-repos",)), ends)
        value, _ = self.live.application.sign_in.open_session(
            SignedIn(person, (), given), NOBODY
        )
        return {"cookie": f"__Host-rx-session={value}", "origin": self.live.url,
                "sec-fetch-site": "same-origin"}  # fmt: skip

    def grant(self, subject: str, dataset: str, uses: int | None = None) -> str:
        """A grant to publish to one dataset."""
        access = self.live.application.access
        wanted = Wanted(
            SubjectKind.PERSON, subject, subject, ObjectKind.DATASET, (dataset,),
            (Kind.PUBLISH,), "to test",
        )  # fmt: skip
        terms = Terms(access.grants.clock() + DAY_US, uses)
        return access.grants.give(OPERATOR, wanted, terms).grant_id

    def ask(self, headers: dict[str, str], method: str, path: str, **more: Any) -> Any:
        """A request of somebody."""
        return httpx.request(method, self.live.url + path, headers=headers, timeout=30, **more)


@contextmanager
def publishing(store: Path, hub: LocalHub, token: str, **settings: Any) -> Iterator[Publishing]:
    """The server on a store; started again on the same store, it is one that restarted."""
    with serving(
        ScriptedEngine(SCRIPT),
        store,
        hub_endpoint=hub.url,
        rate_per_minute=0,
        allow_uncertified=True,
        **settings,
    ) as live:
        yield Publishing(live, hub, token)

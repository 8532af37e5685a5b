"""While nobody decided about a secret, holders of grants hear nothing of a document: not its
bytes, and not its hash, by which a guess could be tried."""

from __future__ import annotations

from pathlib import Path

import httpx

from explorer.access.grants import ObjectKind, SubjectKind, Terms, Wanted
from explorer.access.oidc import SignedIn
from explorer.access.people import NOBODY, Caller, How, Person, Role
from explorer.access.policy import Kind, Level
from explorer.access.visibility import Target
from explorer.engine.scripted import ScriptedEngine
from tests.live import serving
from tests.web.test_secrets import KEY

HOST = "demo.example"
OPERATOR = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)
ANA = Person("oidc:ana", "ana")


def test_no_hash_of_a_document_that_may_hold_a_secret(tmp_path: Path) -> None:
    engine = ScriptedEngine([{"text": "an answer"}])
    with serving(
        engine, tmp_path / "s.duckdb", allowed_hosts=(HOST,), rate_per_minute=0
    ) as live:
        rollout_id, key = live.create()
        live.chat(key, messages=[{"role": "user", "content": f"the key is {KEY}"}])
        live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {})
        access = live.application.access
        access.visibility.set(OPERATOR, Target.ROLLOUT, rollout_id, Level.PUBLIC, "to test")
        wanted = Wanted(
            *(SubjectKind.PERSON, ANA.subject, "ana", ObjectKind.ROLLOUTS, (rollout_id,)),
            *((Kind.CAPTURE_AUDIT,), "to test"),
        )
        access.grants.give(OPERATOR, wanted, Terms(None, None))
        value, _ = live.application.sign_in.open_session(SignedIn(ANA, (), None), NOBODY)

        def take(**headers: str) -> httpx.Response:
            given = {"host": HOST, "cookie": f"__Host-rx-session={value}", **headers}
            address = f"{live.url}/api/v1/rollouts/{rollout_id}/capture-audit"
            return httpx.get(address, headers=given, timeout=30)

        for answer in (take(), take(**{"if-none-match": "*"}), take(range="bytes=5-")):
            assert answer.status_code == 409
            assert answer.json()["error"]["code"] == "secrets_undecided"
            assert "etag" not in answer.headers
        # Who has it already may know that it is the same, once it may leave.
        found = live.api("GET", f"/api/v1/rollouts/{rollout_id}/secrets")["findings"]
        for each in found:
            live.api(
                "POST",
                f"/api/v1/rollouts/{rollout_id}/secrets/{each['finding_id']}",
                {"decision": "release", "reason": "to test"},
                status=201,
            )
        whole = take()
        assert whole.status_code == 200
        assert take(**{"if-none-match": whole.headers["etag"]}).status_code == 304

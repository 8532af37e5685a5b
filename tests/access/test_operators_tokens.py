"""What the operator's token opened ends with it: nobody stays operator by an older token."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from explorer.access.audit import AuditLog
from explorer.access.database import AccessDatabase
from explorer.access.operator import Operator
from explorer.access.people import Caller, How, Person, Role, Scope
from explorer.access.signing_in import SignIn
from explorer.engine.scripted import ScriptedEngine
from explorer.errors import InvalidValue
from explorer.settings import load
from tests.live import serving

OPERATOR = Caller(Role.OPERATOR, How.OPERATOR_TOKEN)
ANA = Person("oidc:ana", "ana")


def opened(database: AccessDatabase, token: str) -> SignIn:
    """A start of the server with this operator's token."""
    operator = Operator(token=token, trust_loopback=False, open_to_all=False)
    return SignIn.of(load(), database, AuditLog(database), operator)


def test_a_token_of_the_operator_ends_when_the_operators_token_is_changed(
    tmp_path: Path,
) -> None:
    database = AccessDatabase(tmp_path / "a.duckdb")
    try:
        first = opened(database, "one")
        secret, _ = first.tokens.make(OPERATOR, "backup", [Scope.OPERATE], 1)
        person, _ = first.tokens.make(
            Caller(Role.VIEWER, How.SESSION, person=ANA), "notebook", [Scope.READ], 1
        )
        assert first.tokens.find(secret) is not None
        same = opened(database, "one").tokens
        assert same.find(secret) is not None
        changed = opened(database, "another").tokens
        assert changed.find(secret) is None
        # A person's is theirs, whoever is the operator.
        assert changed.find(person) is not None
    finally:
        database.close()


def test_whoever_shows_nothing_makes_no_token_that_lasts(tmp_path: Path) -> None:
    engine = ScriptedEngine([{"text": "an answer"}])
    with serving(engine, tmp_path / "s.duckdb", allow_public_without_auth=True) as live:
        made = httpx.post(
            f"{live.url}/api/v1/tokens",
            json={"label": "for later", "scopes": ["operate"]},
            timeout=30,
        )
        assert made.status_code == 422
        assert "sign in" in made.json()["error"]["message"]
        tokens = live.application.sign_in.tokens
        assert tokens.of("operator") == []
        with pytest.raises(InvalidValue):
            tokens.make(Caller(Role.OPERATOR, How.NOTHING), "later", [Scope.READ], 1)

"""The flow with a provider that lies in every way it can; its server and keys are real."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from explorer.access.logins import Login
from explorer.access.oidc import SignedIn, person_of
from explorer.errors import SignInFailed
from explorer.sign_in_settings import ProviderSettings
from tests.access.making import CLIENT, Liar, Parts, liar, other_keys, parts


def part(told: object) -> str:
    """One part of a token, without a signature."""
    return base64.urlsafe_b64encode(json.dumps(told).encode()).decode().rstrip("=")


@pytest.fixture
def provider() -> Iterator[Liar]:
    with liar() as made:
        yield made


@pytest.fixture
def made(provider: Liar, tmp_path: Path) -> Iterator[Parts]:
    with parts(tmp_path / "a.duckdb", providers=(provider.settings(),)) as built:
        yield built


def begin(made: Parts, publish: bool = False) -> Login:
    return made.sign_in.logins.start(
        provider="liar",
        browser="b" * 43,
        next="/",
        publish=publish,
        redirect_uri="https://here.example/sign-in/liar/callback",
    )


def finish(made: Parts, provider: Liar, login: Login | None = None, **reply: str) -> SignedIn:
    """One whole sign-in: the code that the provider would give, exchanged."""

    async def work() -> SignedIn:
        chosen = login or begin(made)
        address = await made.sign_in.openid.address(chosen)
        query = parse_qs(urlsplit(address).query)
        provider.nonce = query["nonce"][0]
        return await made.sign_in.openid.finish(chosen, {"code": "c-1", **reply})

    return asyncio.run(work())


def why(made: Parts, provider: Liar, **reply: str) -> str:
    with pytest.raises(SignInFailed) as caught:
        finish(made, provider, None, **reply)
    for secret in filter(None, ("at-1", "c-1", provider.nonce)):
        assert secret not in caught.value.message
    return caught.value.why


def test_an_honest_provider_is_believed(made: Parts, provider: Liar) -> None:
    found = finish(made, provider)
    assert found.person.subject == "liar:u-1"
    assert found.person.name == "someone"
    assert found.token is not None
    assert found.token.access_token == "at-1"
    assert "at-1" not in repr(found)


def test_auth_11_the_request_has_a_challenge_of_the_verifier(
    made: Parts, provider: Liar
) -> None:
    login = begin(made)
    finish(made, provider, login)
    address = asyncio.run(made.sign_in.openid.address(login))
    query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    digest = hashlib.sha256(login.verifier.encode()).digest()
    assert query == {
        "response_type": "code",
        "client_id": CLIENT,
        "redirect_uri": login.redirect_uri,
        "scope": "openid profile",
        "state": login.state,
        "nonce": login.nonce,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
    }
    form = next(form for path, _, form in provider.asked if path == "/token")
    assert form == {
        "grant_type": ["authorization_code"],
        "code": ["c-1"],
        "redirect_uri": [login.redirect_uri],
        "code_verifier": [login.verifier],
        "client_id": [CLIENT],
    }


@pytest.mark.parametrize(
    ("claims", "drop", "claim"),
    [
        ({"nonce": "another"}, (), "nonce"),
        ({}, ("nonce",), "nonce"),
        ({"aud": "another"}, (), "aud"),
        ({"aud": ["another", "third"]}, (), "aud"),
        ({"aud": [CLIENT, "another"]}, (), "azp"),
        ({"aud": [CLIENT, "another"], "azp": "another"}, (), "azp"),
        ({"azp": "another"}, (), "azp"),
        ({}, ("aud",), "aud"),
        ({"iss": "https://another.example"}, (), "iss"),
        ({}, ("iss",), "iss"),
        ({"exp": int(time.time()) - 120}, (), "exp"),
        ({"exp": "soon"}, (), "exp"),
        ({}, ("exp",), "exp"),
        ({"iat": int(time.time()) + 3600}, (), "iat"),
        ({"nbf": int(time.time()) + 3600}, (), "nbf"),
        ({}, ("sub",), "sub"),
        ({"sub": 7}, (), "sub"),
        ({"at_hash": "of another token"}, (), "at_hash"),
    ],
)
def test_a_wrong_claim_signs_nobody_in(
    made: Parts, provider: Liar, claims: dict[str, Any], drop: tuple[str, ...], claim: str
) -> None:
    provider.claims, provider.drop = claims, drop
    assert why(made, provider) == f"claim:{claim}"


def test_a_signature_of_another_key_signs_nobody_in(made: Parts, provider: Liar) -> None:
    provider.sign_with = other_keys()[0]
    assert why(made, provider) == "signature"


def test_a_shared_secret_signs_nobody_in(made: Parts, provider: Liar) -> None:
    provider.sign_with, provider.algorithm = other_keys()[2], "HS256"
    assert why(made, provider) == "alg"


def test_the_public_key_as_a_shared_secret_signs_nobody_in(made: Parts, provider: Liar) -> None:
    now = int(time.time())
    body = {"iss": provider.issuer, "sub": "u-1", "aud": CLIENT, "iat": now, "exp": now + 300}
    signed = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(body)}"
    public = provider.key.as_pem(private=False)
    digest = hmac.new(public, signed.encode(), hashlib.sha256).digest()
    provider.raw_id_token = f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
    assert why(made, provider) == "alg"


@pytest.mark.parametrize("alg", ["none", "None", "", None, ["RS256"]])
def test_no_signature_signs_nobody_in(made: Parts, provider: Liar, alg: object) -> None:
    now = int(time.time())
    body = {
        "iss": provider.issuer,
        "sub": "u-1",
        "aud": CLIENT,
        "iat": now,
        "exp": now + 300,
    }
    provider.raw_id_token = f"{part({'alg': alg, 'kid': 'one'})}.{part(body)}."
    assert why(made, provider) == "alg"


@pytest.mark.parametrize("raw", ["", "a.b", "a.b.c", "é.é.é", "." * 400, "e30.e30.e30"])
def test_no_token_at_all_signs_nobody_in(made: Parts, provider: Liar, raw: str) -> None:
    provider.raw_id_token = raw
    assert why(made, provider) == "alg"


def test_a_new_key_is_looked_up_once(made: Parts, provider: Liar) -> None:
    finish(made, provider)
    new = other_keys()[1]
    provider.sign_with, provider.algorithm, provider.header = new, "ES256", {"kid": "two"}
    # It is not published yet; and asking again at once would let anybody make us ask.
    assert why(made, provider) == "key"
    assert provider.paths().count("/keys") == 1
    provider.published.append(new)
    providers = made.sign_in.providers
    old = providers._clock
    providers._clock = lambda: old() + 6
    assert finish(made, provider).person.subject == "liar:u-1"
    assert provider.paths().count("/keys") == 2


@pytest.mark.parametrize("alg", ["RS512", "PS256", "ES256", "EdDSA", "Ed25519"])
def test_every_kind_of_published_key_is_understood(
    made: Parts, provider: Liar, alg: str
) -> None:
    key: RSAKey | ECKey | OKPKey = provider.key
    if alg.startswith("ES"):
        key = ECKey.generate_key("P-256", {"kid": "new"})
    elif alg.startswith("Ed"):
        key = OKPKey.generate_key("Ed25519", {"kid": "new"})
    provider.published = [key]
    provider.sign_with, provider.algorithm = key, alg
    provider.header = {"kid": key.kid}
    if alg == "EdDSA":
        half = hashlib.sha512(b"at-1").digest()[:32]
        provider.claims = {"at_hash": base64.urlsafe_b64encode(half).decode().rstrip("=")}
    assert finish(made, provider).person.subject == "liar:u-1"
    # The same key under the name of another kind signs nobody in.
    provider.algorithm = "ES256" if alg[:2] != "ES" else "RS256"
    provider.raw_id_token = f"{part({'alg': provider.algorithm, 'kid': key.kid})}.e30.e30"
    assert why(made, provider) == "key"


def test_a_token_that_names_no_key_means_the_only_one(made: Parts, provider: Liar) -> None:
    provider.header = {"kid": None}
    now = int(time.time())
    login = begin(made)
    told = {
        "iss": provider.issuer,
        "sub": "u-1",
        "aud": CLIENT,
        "iat": now,
        "exp": now + 300,
        "nonce": login.nonce,
    }
    provider.raw_id_token = jwt.encode({"alg": "RS256"}, told, provider.key)
    assert finish(made, provider, login).person.subject == "liar:u-1"


def test_the_discovery_document_of_another_issuer_is_refused(
    made: Parts, provider: Liar
) -> None:
    provider.discovery = {"issuer": "https://another.example"}
    assert why(made, provider) == "provider"


def test_a_provider_without_s256_is_refused(made: Parts, provider: Liar) -> None:
    provider.discovery = {"code_challenge_methods_supported": ["plain"]}
    assert why(made, provider) == "provider"


def test_an_answer_of_another_provider_is_refused(made: Parts, provider: Liar) -> None:
    provider.discovery = {"authorization_response_iss_parameter_supported": True}
    assert why(made, provider) == "iss"
    assert why(made, provider, iss="https://another.example") == "iss"
    assert finish(made, provider, iss=provider.issuer).person.subject == "liar:u-1"


def test_what_the_provider_says_is_told_in_our_words(made: Parts, provider: Liar) -> None:
    with pytest.raises(SignInFailed) as caught:
        finish(made, provider, error="<script>", error_description="<b>at-1</b>")
    assert caught.value.why == "refused:other"
    assert "<" not in caught.value.message
    assert why(made, provider, error="access_denied") == "refused:access_denied"
    assert "/token" not in provider.paths()


def test_user_information_must_be_about_the_same_person(made: Parts, provider: Liar) -> None:
    provider.userinfo = {"sub": "u-2", "orgs": [{"sub": "o-1", "name": "bank"}]}
    assert why(made, provider) == "userinfo"
    provider.userinfo = None
    assert why(made, provider) == "provider"


def test_the_id_token_wins_over_user_information(made: Parts, provider: Liar) -> None:
    provider.userinfo = {"preferred_username": "root", "orgs": [{"sub": "o-1", "name": "lab"}]}
    found = finish(made, provider).person
    assert found.name == "someone"
    assert [each.subject for each in found.memberships] == ["o-1"]


def test_auth_06_nothing_of_one_person_is_sent_for_another(made: Parts, provider: Liar) -> None:
    for number in (1, 2):
        provider.token_reply = {"access_token": f"at-of-{number}"}
        found = finish(made, provider)
        assert found.token is not None
        assert found.token.access_token == f"at-of-{number}"
    # Every answer set a cookie; none came back, and each token was shown for its own person.
    assert all("cookie" not in headers for _, headers, _ in provider.asked)
    shown = [headers["authorization"] for path, headers, _ in provider.asked if path == "/me"]
    assert shown == ["Bearer at-of-1", "Bearer at-of-2"]


@pytest.mark.parametrize(
    ("ways", "in_body"),
    [
        (None, False),
        (["client_secret_basic", "client_secret_post"], False),
        (["client_secret_post"], True),
    ],
)
def test_the_secret_goes_where_the_provider_wants_it(
    provider: Liar, tmp_path: Path, ways: list[str] | None, in_body: bool
) -> None:
    secret = "p%ss: wörd+/&"
    provider.discovery = {"token_endpoint_auth_methods_supported": ways} if ways else {}
    given = provider.settings(client_secret=secret)
    with parts(tmp_path / "a.duckdb", providers=(given,)) as made:
        finish(made, provider)
        assert secret not in repr(made.settings)
    _, headers, form = next(each for each in provider.asked if each[0] == "/token")
    if in_body:
        assert form["client_secret"] == [secret]
        assert "authorization" not in headers
    else:
        pair = base64.b64decode(headers["authorization"].removeprefix("Basic ")).decode()
        assert pair == f"{CLIENT}:p%25ss%3A%20w%C3%B6rd%2B%2F%26"
        assert "client_secret" not in form


def test_an_issuer_on_a_private_network_must_be_allowed(provider: Liar, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be an https address"):
        ProviderSettings(**provider.settings(allow_private=False))


SETTINGS = ProviderSettings(name="hub", issuer="https://huggingface.co", client_id="c")


def test_nothing_of_a_sign_in_is_logged(
    made: Parts, provider: Liar, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    login = begin(made)
    finish(made, provider, login)
    provider.sign_with = other_keys()[0]
    assert why(made, provider) == "signature"
    for secret in (login.state, login.nonce, login.verifier, "at-1", "c-1"):
        assert secret not in caplog.text


def test_memberships_with_restrictions_do_not_count() -> None:
    orgs: list[Any] = [
        {"sub": "o-1", "preferred_username": "lab", "roleInOrg": "admin"},
        {"sub": "o-2", "name": "bank", "securityRestrictions": ["mfa"]},
        {"sub": "o-3", "name": "club", "securityRestrictions": {"odd": 1}},
        {"sub": "o-4", "name": "free", "securityRestrictions": []},
        "group-of-keycloak",
        {"name": "without a subject"},
        {"sub": "bad\nsubject"},
        7,
        None,
    ]
    person, restricted = person_of(SETTINGS, {"sub": "u-1", "name": "N", "orgs": orgs})
    assert [each.subject for each in person.memberships] == ["o-1", "o-4", "group-of-keycloak"]
    assert person.memberships[0].role == "admin"
    assert restricted == ("bank", "club")


@pytest.mark.parametrize("sub", ["", "org:lab", "a\nb", "a\u202eb", "x" * 300, None, 5, ["u"]])
def test_a_subject_that_could_be_mistaken_is_refused(sub: object) -> None:
    with pytest.raises(SignInFailed):
        person_of(SETTINGS, {"sub": sub})


def test_a_name_is_shown_without_what_could_mislead() -> None:
    told = {"sub": "u-1", "preferred_username": "  an\u202ea\n\x00 " + "x" * 500}
    assert person_of(SETTINGS, told)[0].name == ("ana " + "x" * 500)[:100]
    assert person_of(SETTINGS, {"sub": "u-1", "name": "\u200b"})[0].name == "u-1"


def test_hugging_face_is_asked_for_what_it_needs() -> None:
    assert SETTINGS.scopes == ("openid", "profile", "read-memberships")
    assert SETTINGS.publish_scopes == ("contribute-repos",)
    other = ProviderSettings(name="corp", issuer="https://login.example", client_id="c")
    assert (other.scopes, other.publish_scopes) == (("openid", "profile"), ())

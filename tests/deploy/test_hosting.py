"""Settings of a server that others can reach, and what the public profile fixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from explorer.errors import ConfigurationError
from explorer.hosting import RetentionLimit
from explorer.settings import load

TOKEN = "t" * 40


def test_the_public_profile_is_read_only_without_sql_and_imports_and_shows_everything() -> None:
    settings = load(profile="public", host="0.0.0.0", admin_token=TOKEN)
    assert settings.read_only
    assert not settings.sql_console_on
    assert not settings.imports
    assert settings.default_visibility == "public"
    assert settings.rate_per_minute == 240
    assert "public demo" in settings.banner_text
    assert "every 24 hours" in settings.banner_text
    assert load(profile="public", banner="Mine.", reset_every_hours=1).banner_text == "Mine."


def test_a_store_that_is_only_shown_says_so() -> None:
    assert load(read_only=True).banner_text == "This server shows a store and records nothing."


def test_without_a_profile_nothing_is_public_and_there_is_no_banner() -> None:
    settings = load()
    assert (settings.default_visibility, settings.banner_text) == ("private", "")
    assert settings.imports
    assert not settings.read_only
    assert settings.reset_every_hours == 0


@pytest.mark.parametrize(
    "wrong", [{"sql_console": True}, {"imports": True}, {"read_only": False}]
)
def test_the_public_profile_cannot_be_weakened(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="public profile needs " + next(iter(wrong))):
        load(profile="public", **wrong)


def test_the_public_profile_may_be_less_open() -> None:
    settings = load(profile="public", default_visibility="signed-in", rate_per_minute=10)
    assert (settings.default_visibility, settings.rate_per_minute) == ("signed-in", 10)


def test_the_public_profile_still_needs_the_operators_token_on_a_public_bind() -> None:
    with pytest.raises(ConfigurationError, match="ROLLOUT_EXPLORER_ADMIN_TOKEN"):
        load(profile="public", host="0.0.0.0")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trusted_proxies", "10.0.0.0/33"),
        ("trusted_proxies", "proxy.example"),
        ("outbound_private", "10.0.0.1"),
        ("outbound_private", "https://idp.test:443"),
        ("retention", {"secret": {"days": 1}}),
        ("retention", {"private": {"weeks": 1}}),
        ("retention", {"private": {"days": 0}}),
        ("default_visibility", "open"),
        ("profile", "demo"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"ROLLOUT_EXPLORER_{name.upper()}"):
        load(**{name: value})


def test_retention_is_a_table_of_the_file_and_json_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROLLOUT_EXPLORER_RETENTION", '{"private": {"days": 30}}')
    assert load().retention == {"private": RetentionLimit(days=30)}
    monkeypatch.delenv("ROLLOUT_EXPLORER_RETENTION")
    file = tmp_path / "explorer.toml"
    file.write_text('[retention.public]\nbytes = 5\n[retention."signed-in"]\ndays = 1.5\n')
    monkeypatch.setenv("ROLLOUT_EXPLORER_CONFIG", str(file))
    assert load().retention == {
        "public": RetentionLimit(bytes=5),
        "signed-in": RetentionLimit(days=1.5),
    }


def test_a_space_gives_the_address_and_says_that_it_frames_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not load().framed
    monkeypatch.setenv("SPACE_HOST", "me-demo.hf.space")
    monkeypatch.setenv("SPACE_ID", "me/demo")
    settings = load()
    assert settings.public_url == "https://me-demo.hf.space"
    assert settings.framed
    assert load(public_url="https://mine.example").public_url == "https://mine.example"
    assert not load(in_space=False).framed


def test_lists_are_split_at_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_EXPLORER_TRUSTED_PROXIES", "10.0.0.0/8, ::1")
    monkeypatch.setenv("ROLLOUT_EXPLORER_OUTBOUND_PRIVATE", "IDP.test:8443,[::1]:9")
    settings = load()
    assert settings.trusted_proxies == ("10.0.0.0/8", "::1")
    assert settings.outbound_private == ("idp.test:8443", "[::1]:9")

"""Settings of signing in: the providers, how long a session lasts, who has which role.

Owns: their names, defaults and validation, and the variables by which a Hugging Face Space
tells its program of its provider. Must not know: how signing in works.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

HUGGING_FACE = "huggingface"
_HUB = "https://huggingface.co"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
# A name that would read like a page of ours.
_TAKEN = frozenset(("operator", "org"))
_ALWAYS = ("openid", "profile")
_HUB_SCOPES = (*_ALWAYS, "read-memberships")
# To create repositories and to write to those only: asked for when somebody publishes.
_HUB_PUBLISH = ("contribute-repos",)


class ProviderSettings(BaseModel):
    """One OpenID provider that people may sign in with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="Short name; part of addresses and of every subject.")
    title: str = Field(default="", description="What people call it; default: its name.")
    issuer: str = Field(description="Its address, as its discovery document names it.")
    client_id: str = Field(min_length=1, description="Id of this server there.")
    client_secret: SecretStr | None = Field(default=None, description="None: a public client.")
    scopes: tuple[str, ...] = Field(default=(), description="Default: openid and profile.")
    publish_scopes: tuple[str, ...] = Field(default=(), description="Asked for to publish.")
    memberships: str = Field(default="orgs", description="Claim that lists organisations.")
    allow_private: bool = Field(
        default=False, description="The issuer may lie on a private network, and without TLS."
    )

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value) or value in _TAKEN:
            raise ValueError(
                "a provider's name has lower-case letters, digits and -, begins with a letter, "
                f"and is none of {', '.join(sorted(_TAKEN))}"
            )
        return value

    @field_validator("scopes", "publish_scopes", mode="before")
    @classmethod
    def _split_scopes(cls, value: object) -> object:
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _by_issuer(cls, given: Any) -> Any:
        """What follows from the issuer, where nobody said otherwise."""
        if not isinstance(given, dict):
            return given
        made = dict(given)
        on_hub = str(made.get("issuer", "")).rstrip("/") == _HUB
        if not made.get("scopes"):
            made["scopes"] = _HUB_SCOPES if on_hub else _ALWAYS
        if on_hub and "publish_scopes" not in made:
            made["publish_scopes"] = _HUB_PUBLISH
        if not made.get("title"):
            made["title"] = "Hugging Face" if on_hub else str(made.get("name", "")).capitalize()
        return made

    @model_validator(mode="after")
    def _is_usable(self) -> ProviderSettings:
        parts = urlsplit(self.issuer)
        plain = parts.scheme == "http" and self.allow_private
        if not (parts.scheme == "https" or plain) or not parts.hostname or parts.query:
            raise ValueError(
                f"the issuer {self.issuer!r} must be an https address; http only with "
                "allow_private"
            )
        if "openid" not in self.scopes:
            raise ValueError("`scopes` must hold `openid`, or nobody can be told who signs in")
        return self


class SignInSettings(BaseSettings):
    """Settings of signing in."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    providers: tuple[ProviderSettings, ...] = Field(
        (),
        description=(
            "OpenID providers that people may sign in with: a JSON list in the variable, "
            "`[[providers]]` tables in the file; see "
            "[Let people sign in](../how-to/sign-in.md)."
        ),
    )
    session_hours: float = Field(
        12.0, gt=0, le=720, description="How long somebody stays signed in (hours)."
    )
    token_days: float = Field(
        90.0, gt=0, le=3650, description="Longest life of a person's API token (days)."
    )
    operators: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "Subjects (comma-separated) who may do everything: `provider:sub`, or "
            "`provider:org:sub` for the members of an organisation. `/account` shows yours."
        ),
    )
    curators: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Subjects, as in `operators`, who may label, override and publish."
    )
    hub_endpoint: str = Field(
        _HUB, description="Address of the Hub whose dataset gates grants may name."
    )
    access_store: Path | None = Field(
        None,
        description=(
            "The DuckDB file of sessions, tokens, grants and the audit log. Default: beside "
            "the store, with `.access` in its name."
        ),
    )

    @field_validator("operators", "curators", mode="before")
    @classmethod
    def _split_subjects(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @model_validator(mode="before")
    @classmethod
    def _with_space(cls, given: Any) -> Any:
        """Adds the provider of the Space, unless one of that name is set."""
        found = space_provider(os.environ)
        if found is None or not isinstance(given, dict):
            return given
        named = list(given.get("providers") or ())
        if any(_name_of(each) == HUGGING_FACE for each in named):
            return given
        return {**given, "providers": [*named, found]}

    @field_validator("providers")
    @classmethod
    def _are_distinct(cls, value: tuple[ProviderSettings, ...]) -> tuple[ProviderSettings, ...]:
        names = [each.name for each in value]
        if len(set(names)) < len(names):
            raise ValueError("two providers have the same name")
        return value

    @field_validator("operators", "curators")
    @classmethod
    def _are_subjects(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        known = info.data.get("providers")
        names = {each.name for each in known} if known is not None else set()
        for each in value:
            provider, _, sub = each.partition(":")
            if not sub or (known is not None and provider not in names):
                raise ValueError(
                    f"{each!r} is not `provider:sub` with one of the providers "
                    f"({', '.join(sorted(names)) or 'none is set'})"
                )
        return value

    @property
    def outbound_addresses(self) -> tuple[str, ...]:
        """`host:port` of the issuers that may lie on a private network."""
        return tuple(
            _host_and_port(each.issuer) for each in self.providers if each.allow_private
        )


def space_provider(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """The provider that a Space tells its program of; None elsewhere.

    Only in a Space: the names of these variables are too common to mean us elsewhere.
    """
    client, issuer = environ.get("OAUTH_CLIENT_ID"), environ.get("OPENID_PROVIDER_URL")
    if not environ.get("SPACE_ID") or not client or not issuer:
        return None
    declared = environ.get("OAUTH_SCOPES", "").split()
    return {
        "name": HUGGING_FACE,
        "title": "Hugging Face",
        "issuer": issuer.rstrip("/"),
        "client_id": client,
        "client_secret": environ.get("OAUTH_CLIENT_SECRET") or None,
        # What the Space did not declare, the Hub refuses.
        "scopes": _declared(_HUB_SCOPES, (*_ALWAYS, *declared)),
        "publish_scopes": _declared(_HUB_PUBLISH, declared),
    }


def _declared(wanted: Iterable[str], declared: Iterable[str]) -> tuple[str, ...]:
    allowed = set(declared)
    return tuple(each for each in wanted if each in allowed)


def _name_of(provider: object) -> object:
    if isinstance(provider, dict):
        return provider.get("name")
    return getattr(provider, "name", None)


def _host_and_port(issuer: str) -> str:
    parts = urlsplit(issuer)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.hostname}:{port}"

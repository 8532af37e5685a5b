"""Settings of a server that others can reach: the network in front of it, and the public demo.

Owns: their names, defaults and validation, and what the public profile fixes.
Must not know: what any of them does; settings of recording and judging.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

Visibility = Literal["public", "signed-in", "granted", "private"]

# A public demo shows and never takes: none of these is a matter of taste there.
FIXED_IN_PUBLIC: dict[str, object] = {
    "read_only": True,
    "sql_console": False,
    "imports": False,
}
# These a person may choose otherwise.
PUBLIC_DEFAULTS: dict[str, object] = {
    "default_visibility": "public",
    "rate_per_minute": 240.0,
    "rate_burst": 120,
    "reset_every_hours": 24.0,
}


class RetentionLimit(BaseModel):
    """How long and how much is kept; what is left out has no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    days: float | None = Field(
        default=None, gt=0, description="Oldest age of a rollout (days)."
    )
    bytes: int | None = Field(
        default=None, ge=0, description="Most that all its rollouts may take (bytes)."
    )


class HostingSettings(BaseSettings):
    """Settings of a server that others can reach."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "Addresses or networks (comma-separated) of the reverse proxies in front. Only of "
            "them `X-Forwarded-For` and `X-Forwarded-Proto` are believed."
        ),
    )
    outbound_private: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "Addresses `host:port` (comma-separated), as sign-in providers are named by, that "
            "may lie on a private network or be asked without TLS. Any other must be public."
        ),
    )
    rate_per_minute: float = Field(
        600.0,
        ge=0,
        description=(
            "Requests that one address may make, static files and calls with a known capture "
            "key apart; the operator may make any number; 0 sets no limit (per minute)."
        ),
    )
    rate_burst: int = Field(
        300, ge=1, description="Requests of one address at once, before its rate counts."
    )
    max_request_bytes: int = Field(
        1024 * 1024,
        ge=1024,
        description=(
            "Largest body of a request that is neither a call, an import nor a trajectory "
            "(bytes)."
        ),
    )
    public_url_probe_s: float = Field(
        300.0,
        ge=0,
        description=(
            "Time between probes of the public address; while another server or nobody "
            "answers there, no rollout is created; 0 never asks (seconds)."
        ),
    )
    in_space: bool | None = Field(
        None,
        description=(
            "Whether the server runs in a Hugging Face Space, whose page frames ours; then "
            "huggingface.co may frame it. Default: whether `SPACE_ID` is set."
        ),
    )
    profile: Literal["local", "public"] = Field(
        "local",
        description=(
            "`public` is a demo on the open internet: the store is read-only, SQL and imports "
            "are off, rollouts are public, visitors' own state is wiped on a timer."
        ),
    )
    read_only: bool = Field(
        False,
        description=(
            "Open the store for reading only: nothing is recorded, and its file and folder "
            "need not be writable."
        ),
    )
    imports: bool = Field(True, description="Whether captures of other systems are imported.")
    banner: str = Field(
        "",
        max_length=500,
        description="A sentence on every page. Default: none, in the public profile its own.",
    )
    reset_every_hours: float = Field(
        0.0,
        ge=0,
        description=(
            "Time after which the sessions, tokens and requests of visitors are wiped; the "
            "audit log stays; 0 never (hours)."
        ),
    )
    default_visibility: Visibility = Field(
        "private", description="Who may see a rollout about which nobody decided."
    )
    retention: dict[Visibility, RetentionLimit] = Field(
        {},
        description=(
            "How long and how much is kept, by visibility: "
            '`{"private": {"days": 30, "bytes": 10000000000}}`. What is over is deleted, the '
            "oldest first; the audit log keeps a row."
        ),
    )
    compact_at_start: bool = Field(
        False,
        description=(
            "Before serving, when rollouts were deleted: copy the living ones to a fresh file, "
            "so that the bytes of deleted ones are gone."
        ),
    )

    @field_validator("trusted_proxies", "outbound_private", mode="before")
    @classmethod
    def _split_lists(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip().lower() for part in value.split(",") if part.strip())
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            ipaddress.ip_network(each, strict=False)
        return value

    @field_validator("outbound_private")
    @classmethod
    def _have_ports(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return _with_ports(value)

    @model_validator(mode="before")
    @classmethod
    def _by_place(cls, given: Any) -> Any:
        """What the place the server runs at implies, where nobody said otherwise."""
        if not isinstance(given, dict):
            return given
        made = dict(given)
        space = os.environ.get("SPACE_HOST")
        if space and made.get("public_url") is None:
            made["public_url"] = f"https://{space}"
        if made.get("profile") == "public":
            for name, value in FIXED_IN_PUBLIC.items():
                made.setdefault(name, value)
            for name, value in PUBLIC_DEFAULTS.items():
                made.setdefault(name, value)
        return made

    @model_validator(mode="after")
    def _public_takes_nothing(self) -> HostingSettings:
        if self.profile == "public":
            for name, value in FIXED_IN_PUBLIC.items():
                if getattr(self, name) != value:
                    raise ValueError(
                        f"the public profile needs {name} to be {str(value).lower()}; leave "
                        "the setting out, or choose the profile `local`"
                    )
        return self

    @property
    def framed(self) -> bool:
        """Whether the page of a Space frames ours."""
        return bool(os.environ.get("SPACE_ID")) if self.in_space is None else self.in_space

    @property
    def banner_text(self) -> str:
        """The sentence on every page, empty without one."""
        if self.banner:
            return self.banner
        if self.profile != "public":
            shown = "This server shows a store and records nothing."
            return shown if self.read_only else ""
        reset = (
            f" What visitors leave is wiped every {self.reset_every_hours:g} hours."
            if self.reset_every_hours
            else ""
        )
        return (
            "This is a public demo: look at everything, search, compare, sign in and ask for "
            f"downloads; nothing can be recorded, imported or changed.{reset}"
        )


def _with_ports(addresses: Iterable[str]) -> tuple[str, ...]:
    found = tuple(addresses)
    for each in found:
        parts = urlsplit(f"//{each}")
        if parts.hostname is None or parts.port is None or parts.path:
            raise ValueError(f"{each!r} is not host:port")
    return found

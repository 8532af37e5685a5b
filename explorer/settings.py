"""Every setting, once: environment variables `ROLLOUT_EXPLORER_*` or a TOML file.

Owns: names, defaults, units and validation of settings.
Must not know: what any of them does.

A TOML file is named by ``ROLLOUT_EXPLORER_CONFIG``; its keys are the lower-case
names below. The environment wins over the file; a flag of the command wins over both.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from explorer.errors import ConfigurationError
from explorer.hosting import HostingSettings
from explorer.sign_in_settings import SignInSettings

PREFIX = "ROLLOUT_EXPLORER_"


class Settings(HostingSettings, SignInSettings):
    """All settings; the description of each is its documentation."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address the server listens on.")
    port: int = Field(7860, ge=0, le=65535, description="Port; 0 takes a free one.")
    store: Path = Field(
        Path("rollouts.duckdb"), description="The DuckDB file that holds every rollout."
    )
    engine: str = Field(
        "tiny",
        description=(
            "What samples tokens: `tiny` (built in), an OpenAI-compatible URL, "
            "`vllm:MODEL`, `local:PATH_OR_HUB_ID` or `scripted:FILE`."
        ),
    )
    model: str | None = Field(
        None, description="Model name to ask the engine for; default: the engine's first."
    )
    tokenizer: str | None = Field(
        None,
        description=(
            "Path or Hub id of a tokenizer that decodes ids for people when the engine "
            "cannot give the bytes of its vocabulary. It never makes ids."
        ),
    )
    vllm_args: str = Field(
        "",
        description=(
            "More flags for the `vllm serve` that `--engine vllm:MODEL` starts, such as "
            "`--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3`."
        ),
    )
    engine_api_key: SecretStr | None = Field(
        None, description="Bearer token sent to the engine."
    )
    admin_token: SecretStr | None = Field(
        None,
        description=(
            "Operator's bearer token. On loopback one is made at start when none is set."
        ),
    )
    receipt_key: Path | None = Field(
        None,
        description=(
            "File with the key that receipts of closed rollouts are signed with: an Ed25519 "
            "key in PEM, or a secret of at least 32 bytes (HMAC)."
        ),
    )
    allow_uncertified: bool = Field(
        False,
        description=(
            "Let an engine without a passing logprob certificate count as trainable; "
            "every verdict and export then says so."
        ),
    )
    policy: str = Field(
        "default",
        description=(
            "What may train: the name of a policy that ships (`default`, `strict`, `async`), "
            "or a TOML file with a `name`, a `version` and the switches that differ."
        ),
    )
    allow_public_without_auth: bool = Field(
        False,
        description="Start on a public address although nobody has to sign in. Dangerous.",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "Host names (comma-separated) the server answers to, beside the loopback names "
            "and the address it listens on."
        ),
    )
    public_url: str | None = Field(
        None, description="Base address printed and returned when it is not host:port."
    )
    max_body_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="Largest request body, after decompression (bytes).",
    )
    body_timeout_s: float = Field(
        300.0, gt=0, description="Longest wait for a whole request body (seconds)."
    )
    max_in_flight: int = Field(
        1024, ge=1, description="Calls at the engine at once; above this callers get 429."
    )
    engine_timeout_s: float = Field(
        900.0, gt=0, description="Longest wait for one generation (seconds)."
    )
    engine_connect_timeout_s: float = Field(
        30.0, gt=0, description="Longest wait for a connection to the engine (seconds)."
    )
    status_hold_s: float = Field(
        5.0,
        ge=0,
        description=(
            "How long a streamed reply's status line is held back, so that an early failure "
            "is an HTTP error and not an error event (seconds)."
        ),
    )
    keepalive_s: float = Field(
        5.0, gt=0, description="Time between keep-alive comments on a held stream (seconds)."
    )
    fence_wait_s: float = Field(
        30.0,
        ge=0,
        description=(
            "Longest wait of a call while a trainer loads new weights; then it is answered "
            "with 429, which SDKs try again (seconds)."
        ),
    )
    fence_engine_control: Literal["off", "auto"] = Field(
        "off",
        description=(
            "`auto` drives a vLLM that runs in development mode when weights change: it is "
            "paused, told the new version, its prefix cache reset, and resumed; what it calls "
            "its weights is read before and after each call."
        ),
    )
    retry_window_s: float = Field(
        600.0,
        ge=0,
        description=(
            "How long a reply is kept for a retry of the same request, told by an "
            "idempotency key or an SDK's retry counter; 0 keeps none (seconds)."
        ),
    )
    token_in: bool = Field(
        default=False,
        description="Whether the prompts of new rollouts begin with the exact ids of the call "
        "that they continue, where a rollout does not say it itself.",
    )
    one_system: bool = Field(
        False,
        description=(
            "The engine's chat template takes one leading system message only: leading ones "
            "are joined, later ones are spoken by the user."
        ),
    )
    unary_keepalive: bool = Field(
        False,
        description=(
            "Keep the line of an un-streamed reply alive with blanks, for a proxy in front "
            "that gives up on silence; an error then comes with status 200."
        ),
    )
    harmless_fields: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "Request fields (comma-separated) that you vouch for: your engine lets none of "
            "them shape the sampling. Any other field we do not know masks its call."
        ),
    )
    probe_interval_s: float = Field(
        300.0,
        ge=0,
        description=(
            "Time between probes of an engine that gives no cause for doubt, about nine "
            "one-token calls each; 0 probes at start and in doubt only (seconds)."
        ),
    )
    top_logprobs: int = Field(
        0, ge=0, le=20, description="Alternatives recorded per sampled token (0 to 20)."
    )
    delta_ratio_low: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Least ratio of trainer to rollout probability that counts as noise.",
    )
    delta_ratio_high: float = Field(
        1.1, ge=1, le=1000, description="Greatest such ratio that counts as noise."
    )
    importance_cap: float = Field(
        2.0, gt=0, le=1000, description="Cap of truncated importance weights, as shown."
    )
    sql_console: bool | None = Field(
        None,
        description=(
            "Let the operator run SQL over a copy of the store, each query in a process of its "
            "own. Default: on where only this machine can reach the server, and off in `demo`."
        ),
    )
    custody: Literal["embedded", "external"] = Field(
        "embedded",
        description=(
            "Who keeps the tokens: `embedded`, this server; `external`, the inference worker "
            "that `engine` names, while this server keeps coordinates without tokens."
        ),
    )
    custody_ledger: Path | None = Field(
        None,
        description=(
            "Ledger of external custody: a file that ends in `.duckdb`, or a folder for one "
            "file of JSON lines a rollout. Default: `.custody.duckdb` beside the store."
        ),
    )
    nemo_gym_control_token_env: str = Field(
        "NEMO_GYM_TOKEN_CAPTURE_CONTROL_TOKEN",
        min_length=1,
        description=(
            "Name of the environment variable with the bearer token that reads manifests of "
            "external custody. The token itself is never written anywhere."
        ),
    )
    min_free_bytes: int = Field(
        256 * 1024 * 1024,
        ge=0,
        description="Free disk space below which no new call is admitted (bytes).",
    )
    lineage_bytes: int = Field(
        128 * 1024 * 1024,
        ge=1024 * 1024,
        description="Memory for the prefix indexes of recent rollouts (bytes).",
    )
    dataset_days: float = Field(
        7.0,
        gt=0,
        description=(
            "How long the files of a dataset that was written from a page are kept here after "
            "its job ended (days); what was published stays."
        ),
    )
    log_level: str = Field("info", description="Log level: debug, info, warning or error.")

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip().lower() for part in value.split(",") if part.strip())
        return value

    @field_validator("harmless_fields", mode="before")
    @classmethod
    def _split_fields(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        config = os.environ.get(f"{PREFIX}CONFIG")
        if config:
            if not Path(config).is_file():
                raise ConfigurationError(
                    f"{PREFIX}CONFIG names {config}, which is not a file; "
                    "unset it or point it at a TOML file"
                )
            sources.append(TomlConfigSettingsSource(settings_cls, toml_file=config))
        return tuple(sources)

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def sql_console_on(self) -> bool:
        """Whether the SQL console answers."""
        return self.on_loopback if self.sql_console is None else self.sql_console


def is_loopback(host: str) -> bool:
    """Whether `host` (a name or an address) is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _wrong_setting(loc: tuple[int | str, ...], message: str) -> str:
    """One setting that does not work: `ROLLOUT_EXPLORER_PROVIDERS, 0, issuer: …`."""
    said = message.removeprefix("Value error, ").replace("a valid tuple", "a list")
    if not loc:
        return said
    inner = [str(part) for part in loc[1:] if part != "[key]"]
    return f"{', '.join([f'{PREFIX}{loc[0]}'.upper(), *inner])}: {said}"


def load(**flags: object) -> Settings:
    """Settings from flags, environment and file; `None` flags are ignored.

    Raises:
        ConfigurationError: names every setting that is wrong and why.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        lines = [_wrong_setting(item["loc"], item["msg"]) for item in error.errors()]
        raise ConfigurationError("these settings do not work: " + "; ".join(lines)) from error
    except SettingsError as error:
        raise ConfigurationError(
            f"these settings do not work: a variable that takes JSON holds none: {error}"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(
            f"the file that {PREFIX}CONFIG names is no TOML: {error}"
        ) from error
    if (
        not settings.on_loopback
        and settings.admin_token is None
        and not settings.allow_public_without_auth
    ):
        raise ConfigurationError(
            f"refusing to listen on {settings.host} without an operator's token: set "
            f"{PREFIX}ADMIN_TOKEN, or {PREFIX}ALLOW_PUBLIC_WITHOUT_AUTH=1 if anybody may do "
            "anything"
        )
    return settings

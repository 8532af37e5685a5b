"""The policy that a server judges by, as its settings name it. Wiring only."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

from explorer.errors import ConfigurationError
from explorer.settings import PREFIX, Settings
from explorer.trace.policy import SHIPPED, Policy, read_policy


def policy_of(settings: Settings) -> Policy:
    """The named policy, or the one in the file that is named.

    Raises:
        ConfigurationError: neither, or the file is no policy.
    """
    policy = SHIPPED.get(settings.policy) or _from_file(Path(settings.policy))
    if settings.allow_uncertified and not policy.allow_uncertified:
        # Switched from outside, so the plain name would say less than is true.
        name = f"{policy.name}+allow_uncertified"
        policy = replace(policy, name=name, allow_uncertified=True)
    return policy


def _from_file(path: Path) -> Policy:
    names = ", ".join(SHIPPED)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(
            f"{PREFIX}POLICY is {str(path)!r}, which is no policy that ships ({names}) and no "
            f"TOML file that can be read: {error}"
        ) from error
    try:
        return read_policy(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error.message}") from error

"""Makes a profile ready to run: variables, files in a private folder, arguments.

Owns: where the placeholders' values come from, and how secrets are masked.
Must not know: processes, the server's API.

Nothing is written outside the private folder: a person's own configuration is neither
read by us nor changed.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from explorer.harness.profile import OVERLAY, Profile, fill, program_at

DEFAULT_CONTEXT = 32_768
MASK = "***"
# The settings of this program are not the harness's business, and two are secrets.
_OURS = "ROLLOUT_EXPLORER_"
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_OWN_KEYS = re.compile(r"(rx[ka]_)[A-Za-z0-9_-]{12,}")
_FILLED_FOR_PERSONS = ("openai_base", "anthropic_base", "google_base", "key", "model")


@dataclass(frozen=True, slots=True)
class Target:
    """Where the harness is sent.

    Attributes:
        rollout_id: the public id.
        key: the capture key.
        page: address of the rollout's page.
        openai, anthropic, google: base addresses with the key inside.
        model: name of the engine's model.
        context: its context length (tokens).
    """

    rollout_id: str
    key: str
    page: str
    openai: str
    anthropic: str
    google: str
    model: str
    context: int = DEFAULT_CONTEXT

    @classmethod
    def of(
        cls, made: Mapping[str, object], public_url: str | None, model: str, context: int
    ) -> Target:
        """From the answer to a new rollout.

        `public_url` is the address that the harness reaches the server by, when that is
        not the one the server was asked by.
        """
        rollout_id, key = str(made["rollout_id"]), str(made["capture_key"])
        bases = made["base_urls"]
        assert isinstance(bases, Mapping)
        openai, anthropic = str(bases["openai"]), str(bases["anthropic"])
        google, page = str(bases["google"]), str(made["url"])
        if public_url:
            base = public_url.rstrip("/")
            anthropic = google = f"{base}/k/{key}"
            openai, page = f"{anthropic}/v1", f"{base}/rollouts/{rollout_id}"
        return cls(rollout_id, key, page, openai, anthropic, google, model, context)

    def values(self, wire: str, home: Path) -> dict[str, str]:
        """The placeholders' values."""
        base = {"messages": self.anthropic, "google": self.google}.get(wire, self.openai)
        return {
            "openai_base": self.openai,
            "anthropic_base": self.anthropic,
            "google_base": self.google,
            "base": base,
            "key": self.key,
            "model": self.model,
            "context": str(self.context),
            "home": str(home),
            "overlay": str(OVERLAY),
        }


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is run: `set_names` are the variables that we set, `files` those written."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    set_names: tuple[str, ...]
    files: tuple[Path, ...]


def prepare(
    profile: Profile,
    wire: str,
    target: Target,
    command: tuple[str, ...],
    home: Path,
    inherited: Mapping[str, str],
) -> Prepared:
    """Writes the profile's files into `home`; the command line and variables to run with."""
    values = target.values(wire, home)
    values |= {word: by_wire[wire] for word, by_wire in profile.words.items()}
    files = tuple(_write(profile, wire, home, values))
    ours = {name: fill(text, values) for name, text in profile.environment(wire).items()}
    ours[f"{_OURS}ROLLOUT_ID"] = target.rollout_id
    ours[f"{_OURS}URL"] = target.page
    environment = clean(inherited, profile) | ours
    environment |= _around_proxies(environment, target)
    return Prepared(
        command=_command(profile, command, values),
        environment=environment,
        set_names=tuple(ours),
        files=files,
    )


def config_sha256(profile: Profile, wire: str, command: tuple[str, ...]) -> str:
    """Digest of how the harness is set up: its command line and all that the profile sets.

    Placeholders stand for addresses and keys, so that runs of one set-up have one digest.
    """
    parts = {
        "profile": profile.name,
        "wire": wire,
        "command": command,
        "environment": profile.environment(wire),
        "unset": sorted(profile.unset),
        "files": [(file.path, file.content) for file in profile.files_for(wire)],
        "arguments": [(item.add, item.unless) for item in profile.arguments],
    }
    text = json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


def clean(inherited: Mapping[str, str], profile: Profile) -> dict[str, str]:
    """The person's environment without our settings and without what would send the
    harness's calls elsewhere."""
    return {
        name: value
        for name, value in inherited.items()
        if not name.startswith(_OURS) and name not in profile.unset
    }


def _write(profile: Profile, wire: str, home: Path, values: Mapping[str, str]) -> list[Path]:
    # Inside quotes, a JSON escape is right for TOML and for double-quoted YAML too.
    escaped = {name: json.dumps(value)[1:-1] for name, value in values.items()}
    written = []
    for file in profile.files_for(wire):
        path = home / file.path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(fill(file.content, escaped))
        written.append(path)
    return written


def _command(
    profile: Profile, command: tuple[str, ...], values: Mapping[str, str]
) -> tuple[str, ...]:
    """The person's words with addresses filled in, and the profile's arguments.

    A word with white space is a task for a model, not an option: it is left alone.
    """
    fillable = {name: values[name] for name in _FILLED_FOR_PERSONS}
    words = [word if re.search(r"\s", word) else fill(word, fillable) for word in command]
    at = program_at(command) + 1
    added: list[str] = []
    # A script around the harness would not know what to do with them.
    for item in profile.arguments if profile.runs(command) else ():
        given = {word.partition("=")[0] for word in command[at:]}
        if not given & set(item.unless):
            added += [fill(word, values) for word in item.add]
    return (*words[:at], *added, *words[at:])


def _around_proxies(environment: Mapping[str, str], target: Target) -> dict[str, str]:
    """A person's HTTP proxy cannot reach this machine's own loopback address."""
    host = urlsplit(target.openai).hostname or ""
    if not _is_loopback(host) or not any(environment.get(name) for name in _PROXIES):
        return {}
    found = {}
    for name in ("no_proxy", "NO_PROXY"):
        parts = [part for part in environment.get(name, "").split(",") if part.strip()]
        found[name] = ",".join([*parts, *(one for one in [host] if one not in parts)])
    return found


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def masked(text: str, key: str) -> str:
    """`text` without the capture key, and without any other key of ours."""
    if key:
        text = text.replace(key, f"rxk_{MASK}")
    return _OWN_KEYS.sub(rf"\1{MASK}", text)

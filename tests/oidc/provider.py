"""A real OpenID provider (npm `oidc-provider`) in a process of its own.

    with provider([f"{explorer}/sign-in/test/callback"]) as running:
        Settings(providers=(running.settings(),), …)

Its people are `ana` (of the organisation `lab`, and of `bank`, whose single sign-on she has
not done), `ben` (of none) and `cleo` (of `lab`); each signs in by one button.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".oidc-provider"
NODE = FOLDER / "node_modules" / ".bin" / "node"
LIBRARY = FOLDER / "node_modules" / "oidc-provider" / "lib" / "index.js"
REQUIRE = "ROLLOUT_EXPLORER_REQUIRE_OIDC"
CLIENT, SECRET = "explorer", "a secret: with/odd?characters&"
PUBLIC_CLIENT = "explorer-public"


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass(frozen=True)
class RealProvider:
    """A running provider."""

    issuer: str

    def settings(self, **more: Any) -> dict[str, Any]:
        """The setting of the explorer that names it."""
        return {
            "name": "test",
            "title": "Test provider",
            "issuer": self.issuer,
            "client_id": CLIENT,
            "client_secret": SECRET,
            "scopes": "openid profile read-memberships",
            "publish_scopes": "contribute-repos",
            "allow_private": True,
        } | more


def skip_without_provider() -> None:
    """Skips where the provider is not installed, unless nothing may be skipped."""
    if NODE.exists() and LIBRARY.exists():
        return
    reason = "no OpenID provider here: sh scripts/install-oidc-provider (needs npm)"
    if os.environ.get(REQUIRE):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def provider(redirects: Sequence[str]) -> Iterator[RealProvider]:
    """A running provider that sends people back to these addresses only."""
    skip_without_provider()
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    client = {"redirect_uris": list(redirects), "grant_types": ["authorization_code"]}
    given = {
        "library": str(LIBRARY),
        "issuer": issuer,
        "port": port,
        "clients": [
            {**client, "client_id": CLIENT, "client_secret": SECRET},
            {**client, "client_id": PUBLIC_CLIENT, "token_endpoint_auth_method": "none"},
        ],
    }
    process = subprocess.Popen(
        [str(NODE), str(Path(__file__).with_name("provider.mjs")), json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.strip() == "ready":
                break
        else:
            raise AssertionError("the provider did not start:\n" + "".join(said))
        yield RealProvider(issuer)
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()

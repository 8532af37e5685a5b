"""Where the caller of a request is kept, between the gate and whoever asks for it.

Owns: one key of the ASGI scope. Must not know: how the caller was found out.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from explorer.access.people import NOBODY, Caller

CALLER_KEY = "rollout_explorer.caller"


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """Who makes this request; nobody where no gate has looked."""
    found = scope.get(CALLER_KEY)
    return found if isinstance(found, Caller) else NOBODY


def set_caller(scope: MutableMapping[str, Any], caller: Caller) -> None:
    """Keeps who makes this request, for everything behind the gate."""
    scope[CALLER_KEY] = caller

"""The storage key of a staged call, which is also a safe path.

Owns: how two ids become one key. Must not know: any storage.

For ids of letters, digits, points, lines and hyphens the key is the usual one, rollout and
call with a slash between. Any other character is written as `%XX`, so that two pairs of ids
never share a key and no id can lead out of a folder. An id that is long becomes its hash.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

from explorer.custody.records import StagedCallBaseSnapshot

LONGEST_PART = 120
_PART = re.compile(r"~[0-9a-f]{64}|[A-Za-z0-9_%-][A-Za-z0-9._%-]{0,119}")


def key_of(call: StagedCallBaseSnapshot) -> str:
    """The key under which a call is stored."""
    return f"{key_part(call.rollout_id)}/{key_part(call.model_call_id)}"


def key_part(name: str) -> str:
    """One id as a part of a key; different ids give different parts."""
    part = quote(name, safe="").replace("~", "%7E")
    if part.startswith("."):
        part = "%2E" + part[1:]
    if len(part) > LONGEST_PART:
        return "~" + hashlib.sha256(name.encode()).hexdigest()
    return part


def parts_of(key: str) -> tuple[str, str]:
    """The two parts of a key.

    Raises:
        KeyError: no call can have this key.
    """
    rollout, _, call = key.partition("/")
    if not _PART.fullmatch(rollout) or not _PART.fullmatch(call):
        raise KeyError(f"{key[:200]!r} is no key of a staged call")
    return rollout, call

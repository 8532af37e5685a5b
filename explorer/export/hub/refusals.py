"""What a failure of the Hub means: whether it may pass, and what to do about it.

Owns: telling failures apart, and the sentences in which they are told. None has a token in
it, nor the signature of an address.
Must not know: when something is tried again.
"""

from __future__ import annotations

import json
import re

import httpx2
from huggingface_hub.errors import (
    BucketNotFoundError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from explorer.errors import (
    HeadMoved,
    HubConflict,
    HubForbidden,
    HubGated,
    HubNotFound,
    HubRefused,
    HubUnauthorised,
    HubUnavailable,
    PublishFailed,
)
from explorer.export.hub.wire import TryAgain

# Of the library, of HTTP, of Xet (the builtin ones), and of answers that are not the Hub's.
FAILURES = (
    *(httpx2.HTTPError, EntryNotFoundError, ConnectionError, PermissionError),
    *(RuntimeError, ValueError, KeyError, TypeError),
)


def passing(error: BaseException) -> TryAgain | None:
    """A failure that may pass, where `wire` did not see it."""
    if isinstance(error, TryAgain):
        return error
    if isinstance(error, httpx2.TransportError):
        # While an answer was read, not when it was asked for.
        return TryAgain(f"the connection broke ({type(error).__name__})")
    status = _status(error)
    if status == 409 and "in progress" in str(error):
        # One commit at a time: whoever comes second is told to come again.
        return TryAgain("it is busy with another change of the same place", 409)
    if isinstance(error, ConnectionError) and not isinstance(error, OfflineModeIsEnabled):
        return TryAgain("the Xet storage failed") if status in (None, 408, 429) else None
    return None


def _status(error: BaseException) -> int | None:
    """The HTTP status that it comes from."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code
    if isinstance(error, PermissionError):
        return 401
    # So the Xet library says whatever happened to one of its requests.
    found = re.search(r"\((4\d\d) ", str(error)) if isinstance(error, ConnectionError) else None
    return int(found[1]) if found else None


_GATE = (
    "it is behind a gate: its owner decides who may read it. Ask for access on its page on the "
    "Hub, and use a token of the account that was let in"
)
_REFUSED = (
    "the Hub does not take this token: it is mistyped, ended or taken back; make one at "
    "https://huggingface.co/settings/tokens"
)
_SCOPE = (
    "this token may not do that; it needs the scope `contribute-repos` (creates repositories, "
    "and touches only those), or `write`, and its account must belong to the owner"
)
_MEANING: dict[int, tuple[type[PublishFailed], str]] = {
    401: (HubUnauthorised, _REFUSED),
    402: (HubForbidden, "the Hub wants the account to pay for this"),
    403: (HubForbidden, _SCOPE),
    404: (HubNotFound, "it is not there, or this token may not see it"),
    409: (HubConflict, "something else is there already"),
    412: (HeadMoved, "somebody else published there meanwhile; plan again"),
}


def _meaning(error: BaseException, status: int | None) -> tuple[type[PublishFailed], str]:
    if isinstance(error, GatedRepoError):
        return HubGated, _GATE
    missing = (RepositoryNotFoundError, RevisionNotFoundError, BucketNotFoundError)
    if isinstance(error, (*missing, EntryNotFoundError)):
        if status == 401:
            return HubNotFound, "it is not there, or it is private and needs a token"
        return _MEANING[404]
    return _MEANING.get(status or 0, (HubRefused, ""))


def refusal(what: str, error: BaseException, endpoint: str, token: str | None) -> PublishFailed:
    """What a failure that will not pass is told as."""
    status = _status(error)
    theirs = error.server_message or "" if isinstance(error, HfHubHTTPError) else str(error)
    words = harmless(theirs, token)
    start = f"could not {what}: "
    if isinstance(error, OfflineModeIsEnabled):
        return HubUnavailable(start + "HF_HUB_OFFLINE is set; unset it to reach the Hub")
    if isinstance(error, (json.JSONDecodeError, KeyError, TypeError)):
        return HubUnavailable(
            start + f"what answers at {endpoint} does not speak as the Hub does; check the "
            "address, and what stands between"
        )
    kind, said = _meaning(error, status)
    if not said:
        return kind(start + f"the Hub does not take it: {words or type(error).__name__}")
    return kind(start + said + (f" (the Hub: {words})" if words else ""))


def harmless(words: str, token: str | None) -> str:
    """Somebody else's words: short, one line, no token, no signature of an address."""
    if token:
        words = words.replace(token, "[token]")
    words = re.sub(r"hf_[A-Za-z0-9_]{6,}", "[token]", words)
    words = re.sub(r"(https?://[^\s?'\"]*)\?[^\s'\"]*", r"\1?...", words)
    kept = "".join(letter if letter.isprintable() else " " for letter in words)
    return " ".join(kept.split())[:300]

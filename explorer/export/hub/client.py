"""The Hub's API with a given token only, patient, and with errors that say what to do.

Owns: repeating what may pass, and what each refusal of the Hub means to a publisher.
Must not know: datasets, what is published.

The token is the one that was given. Nothing reads `HF_REFUSED` or a login that the machine
has: a server must never publish as itself for a visitor.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, get_session, hf_hub_url
from huggingface_hub.errors import (
    BucketNotFoundError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

from explorer import __version__
from explorer.errors import (
    ConfigurationError,
    HeadMoved,
    HubConflict,
    HubForbidden,
    HubGated,
    HubNotFound,
    HubRateLimited,
    HubRefused,
    HubUnauthorised,
    HubUnavailable,
    PublishFailed,
)
from explorer.export.hub.target import go_on
from explorer.export.hub.wire import Patience, TryAgain, publishing

HUB = "https://huggingface.co"
AGENT = f"rollout-explorer/{__version__}"
_PIECE = 1 << 20
_GREETINGS = 4

T = TypeVar("T")


def checked_endpoint(endpoint: str | None) -> str:
    """The Hub's address; `HF_ENDPOINT`'s where none is given, as everywhere with the Hub.

    Raises:
        ConfigurationError: a token would travel to it in the open.
    """
    address = (endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    parts = urlsplit(address)
    here = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and here)):
        raise ConfigurationError(
            f"the Hub's address {address[:80]!r} must begin with https://, or the token would "
            "travel unprotected; http:// is for this machine only"
        )
    return address


@dataclass(frozen=True)
class HubClient:
    """Asks the Hub.

    Attributes:
        token: the only one that is ever sent; None sends none.
        stop: ends waiting, and uploads.
    """

    endpoint: str
    token: str | None = field(repr=False)
    patience: Patience = field(default_factory=Patience)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.token is not None and not re.fullmatch(r"[!-~]{1,4096}", self.token):
            raise HubUnauthorised(
                "the token has spaces or other characters that none has; copy it again"
            )

    def until(self, stop: threading.Event) -> HubClient:
        """The same, but stopped by `stop`."""
        return replace(self, stop=stop)

    def greet(self) -> None:
        """First contact: whose token it is. An address where nobody answers is told soon.

        Raises:
            HubUnauthorised: the Hub takes no such token.
        """
        patience = replace(self.patience, tries=min(self.patience.tries, _GREETINGS))
        brief = replace(self, patience=patience)
        brief.call("learn whose token it is", self.api.whoami)

    @property
    def api(self) -> HfApi:
        """The library's client; call it through `call`."""
        # `False`, not `None`: that would be the machine's own login.
        return HfApi(
            endpoint=self.endpoint,
            token=self.token or False,
            library_name="rollout-explorer",
            library_version=__version__,
            headers={"user-agent": AGENT},
        )

    def call(
        self, what: str, doing: Callable[[], T], done: Callable[[], T | None] | None = None
    ) -> T:
        """Does something, again and again while its failures may pass.

        Args:
            what: for messages: "publish to ada/set".
            doing: safe to do twice.
            done: asked before each further try whether an earlier one did it after all.

        Raises:
            PublishFailed: it failed for good, or for too long.
        """
        tried = 0
        while True:
            tried += 1
            again = self._once(what, doing)
            if not isinstance(again, TryAgain):
                return again
            self._wait(what, tried, again)
            found = done() if done is not None else None
            if found is not None:
                return found

    def _once(self, what: str, doing: Callable[[], T]) -> T | TryAgain:
        try:
            with publishing(self.stop):
                return doing()
        except TryAgain as again:
            return again
        except httpx2.TransportError as error:
            # While an answer was read, not when it was asked for.
            return TryAgain(f"the connection broke ({type(error).__name__})")
        except RuntimeError as error:
            # The library wraps what happens to a large file's upload.
            if isinstance(error.__cause__, TryAgain):
                return error.__cause__
            if isinstance(error.__cause__, PublishFailed):
                raise error.__cause__ from None
            raise self._refusal(what, error.__cause__ or error) from None
        except OfflineModeIsEnabled:
            raise HubUnavailable(
                f"could not {what}: HF_HUB_OFFLINE is set; unset it to reach the Hub"
            ) from None
        except ConnectionError as error:
            # So the Xet library says whatever happened to one of its requests.
            status = re.search(r"\((4\d\d) ", str(error))
            if status is None or status[1] in ("408", "429"):
                return TryAgain("the Xet storage failed")
            raise self._refusal(what, error, int(status[1])) from None
        except PermissionError as error:
            raise self._refusal(what, error, 401) from None
        except (httpx2.HTTPError, EntryNotFoundError, ValueError, KeyError, TypeError) as error:
            raise self._refusal(what, error) from None

    def _wait(self, what: str, tried: int, again: TryAgain) -> None:
        limited = again.status == 429
        kind = HubRateLimited if limited else HubUnavailable
        if again.asked is not None and again.asked > self.patience.limit:
            raise kind(
                f"could not {what}: the Hub asks to wait {again.asked / 60:.0f} minutes; "
                "publish again then, it goes on where it was"
            )
        if tried >= self.patience.tries:
            raise kind(
                f"could not {what}: {again.why}, {tried} times, at {self.endpoint}; publish "
                "again later, it goes on where it was"
            )
        self.stop.wait(self.patience.wait(tried, again.asked))
        go_on(self.stop)

    def _refusal(
        self, what: str, error: BaseException, status: int | None = None
    ) -> PublishFailed:
        """What a failure that will not pass means, without the token in any form."""
        if isinstance(error, HfHubHTTPError):
            status = error.response.status_code
        words = self.harmless(
            (error.server_message or "") if isinstance(error, HfHubHTTPError) else str(error)
        )
        start = f"could not {what}: "
        if isinstance(error, (json.JSONDecodeError, KeyError, TypeError)):
            return HubUnavailable(
                start
                + f"what answers at {self.endpoint} does not speak as the Hub does; check "
                "the address, and what stands between"
            )
        kind, said = _meaning(error, status)
        if kind is HubRefused and said == "":
            told = f"the Hub does not take it: {words or type(error).__name__}"
            return HubRefused(start + told)
        return kind(start + said + (f" (the Hub: {words})" if words else ""))

    def harmless(self, words: str) -> str:
        """Somebody else's words: short, one line, no token, no signature of an address."""
        if self.token:
            words = words.replace(self.token, "[token]")
        words = re.sub(r"hf_[A-Za-z0-9_]{6,}", "[token]", words)
        words = re.sub(r"(https?://[^\s?'\"]*)\?[^\s'\"]*", r"\1?...", words)
        kept = "".join(letter if letter.isprintable() else " " for letter in words)
        return " ".join(kept.split())[:300]

    # -- what the library does not offer ------------------------------------------

    def check_card(self, text: str) -> None:
        """Whether the Hub takes a card: asked before anything goes up.

        Raises:
            HubRefused: it does not; with its words.
        """

        def asking() -> None:
            answer = get_session().post(
                f"{self.endpoint}/api/validate-yaml",
                headers=self._headers(),
                json={"content": text, "repoType": "dataset"},
            )
            hf_raise_for_status(answer)

        self.call("have the card checked", asking)

    def download(self, what: str, address: str, to: Path, most: int | None = None) -> None:
        """A file of the Hub, whole or not at all."""
        beside = to.with_name(f".{to.name}.arriving")

        def loading() -> None:
            size = 0
            with get_session().stream("GET", address, headers=self._headers()) as answer:
                hf_raise_for_status(answer)
                with beside.open("wb") as file:
                    for piece in answer.iter_raw(_PIECE):
                        go_on(self.stop)
                        size += len(piece)
                        if most is not None and size > most:
                            raise HubConflict(f"could not {what}: it is larger than {most} B")
                        file.write(piece)

        try:
            self.call(what, loading)
            os.replace(beside, to)
        finally:
            beside.unlink(missing_ok=True)

    def file_address(self, repo_id: str, path: str, revision: str | None) -> str:
        """Where a dataset's file is read."""
        return hf_hub_url(
            repo_id, path, repo_type="dataset", revision=revision, endpoint=self.endpoint
        )

    def _headers(self) -> dict[str, str]:
        sent = {"user-agent": AGENT, "accept-encoding": "identity"}
        return sent | ({"authorization": f"Bearer {self.token}"} if self.token else {})


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

"""The Hub's API with a given token only, and patient.

Owns: repeating what may pass, and the requests that the library has no method for.
Must not know: datasets, what is published.

The token is the one that was given. Nothing reads `HF_TOKEN` or a login that the machine
has: a server must never publish as itself for a visitor.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from huggingface_hub import HfApi, get_session, hf_hub_url
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

from explorer import __version__
from explorer.errors import (
    ConfigurationError,
    HubConflict,
    HubNotFound,
    HubRateLimited,
    HubUnauthorised,
    HubUnavailable,
    PublishFailed,
)
from explorer.export.hub.refusals import FAILURES, passing, refusal
from explorer.export.hub.target import go_on
from explorer.export.hub.wire import Patience, TryAgain, publishing

HUB = "https://huggingface.co"
AGENT = f"rollout-explorer/{__version__}"
_PIECE = 1 << 20
# Tries; enough for a moment's trouble, few enough to notice a wrong address.
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

    def seen(self, looking: Callable[[], T | None]) -> T | None:
        """What is looked for, as soon as the Hub shows it: what it tells of a place can be
        seconds behind what was done there. None where it never does."""
        for tried in range(1, self.patience.tries + 1):
            try:
                found = looking()
            except HubNotFound:
                found = None
            if found is not None:
                return found
            self.stop.wait(self.patience.wait(tried, None))
            go_on(self.stop)
        return None

    def _once(self, what: str, doing: Callable[[], T]) -> T | TryAgain:
        try:
            with publishing(self.stop):
                return doing()
        except TryAgain as again:
            return again
        except FAILURES as error:
            # The library wraps what happens to a large file's upload.
            wrapped = error.__cause__ if isinstance(error, RuntimeError) else None
            real = wrapped or error
            if isinstance(real, PublishFailed):
                raise real from None
            again_or_not = passing(real)
            if again_or_not is not None:
                return again_or_not
            raise refusal(what, real, self.endpoint, self.token) from None

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

"""What a place to publish to must be able to do.

Owns: the protocol of targets, and the words in which they are asked and answer.
Must not know: any place, how a dataset is made. Everything blocks; call it in a thread.

Every place keeps one promise as well as it can: a reader never sees a manifest or a card that
names a file which is not there, and nothing that is there is written over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from explorer.errors import PublishStopped

MANIFEST = "manifest.json"
CARD = "README.md"

# Called with a phase in words, and how many bytes of how many are done.
Listener = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Head:
    """What is there now.

    Attributes:
        revision: names this state; None where nothing is there, or states have no names.
        manifest: bytes of its manifest; None where it has none.
    """

    revision: str | None
    manifest: bytes | None


@dataclass(frozen=True, slots=True)
class Upload:
    """What is to be there.

    Attributes:
        folder: where the files lie.
        files: data files, relative to it, in order; those that are there already may be
            among them.
        last: what names them, so that it comes last.
        message: what the change is called, where changes have names.
    """

    folder: Path
    files: tuple[str, ...]
    last: tuple[str, ...] = (MANIFEST, CARD)
    message: str = "Publish a dataset"

    @property
    def names(self) -> tuple[str, ...]:
        """Every file, what names the others last."""
        return (*(name for name in self.files if name not in self.last), *self.last)

    def size(self, name: str) -> int:
        """Of one of them, in bytes."""
        return (self.folder / name).stat().st_size


@dataclass(frozen=True, slots=True)
class Published:
    """What became of it.

    Attributes:
        url: where people find it.
        revision: of what is there now, as in `Head`.
        uploaded, skipped: files that were sent, and those that were there.
        bytes: of the files that were sent.
    """

    url: str
    revision: str | None
    uploaded: int
    skipped: int
    bytes: int


class Target(Protocol):
    """A place to publish to. Every method may raise `PublishFailed`.

    Attributes:
        title: what people call it.
    """

    title: str

    def prepare(self) -> None:
        """Does everything that can fail cheaply: the name, the token, its rights, what is
        there already; makes the place, with its visibility and its gate."""

    def head(self) -> Head:
        """What is there now."""

    def fetch(self, path: str, to: Path) -> None:
        """Writes one file of what is there to `to`."""

    def put(
        self, upload: Upload, head: Head, listener: Listener, stop: threading.Event
    ) -> Published:
        """Makes it what is there, if that is still `head`; goes on where an earlier try
        ended.

        Raises:
            HeadMoved: somebody else published meanwhile; read `head` and plan again.
            PublishStopped: `stop` was set.
        """

    def remove(self, reason: str, whole: bool) -> None:
        """Takes the files away and says so where they were; `whole`: the place, too."""


def go_on(stop: threading.Event) -> None:
    """Raises:
    PublishStopped: it is to stop.
    """
    if stop.is_set():
        raise PublishStopped(
            "publishing was stopped; what was uploaded so far stays, is not shown to readers "
            "and is used when the same dataset is published again"
        )


_WITHDRAWN = "# Withdrawn\n"


def is_withdrawn(card: str) -> bool:
    """Whether a card is one that stands where a dataset was; a place may put tags before."""
    return _WITHDRAWN.strip() in card.splitlines()


def withdrawn_card(reason: str) -> str:
    """What stands where a dataset was."""
    kept = "".join(letter if letter.isprintable() else " " for letter in reason)[:2000]
    # Indented by four, it is shown as it is, whatever somebody wrote.
    return (
        f"{_WITHDRAWN}\nThe dataset that was here has been withdrawn by those who published "
        f"it. They say why:\n\n    {kept.strip() or 'no reason was given'}\n\n"
        "Where a place keeps earlier revisions, those still hold the data; do not use it.\n"
    )

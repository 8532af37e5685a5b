"""Where a dataset is published, as people write it, read before anything is done.

Owns: the kinds of targets and how each is spelled in one way.
Must not know: how a target is reached, who may publish to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from explorer.errors import InvalidValue

_DATASET, _BUCKET, _FILE = "hf://datasets/", "hf://buckets/", "file:"
MOST_LETTERS = 400


class Place(StrEnum):
    """The kinds of targets."""

    DATASET = "dataset"
    BUCKET = "bucket"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class Where:
    """A target that was read.

    Attributes:
        name: `namespace/name` of a dataset, the rest of the address of a bucket, a path.
    """

    place: Place
    name: str

    @property
    def text(self) -> str:
        """The one spelling that is kept."""
        if self.place is Place.DATASET:
            return self.name
        return f"{_BUCKET if self.place is Place.BUCKET else _FILE}{self.name}"


def read_where(text: str) -> Where:
    """The target that somebody wrote.

    Raises:
        InvalidValue: it is none; says what can be written.
    """
    given = text.strip()
    if not given or len(given) > MOST_LETTERS:
        raise InvalidValue(
            "`target` says where it goes: `namespace/name` of a dataset on the Hub, or "
            "`hf://buckets/namespace/name`",
            path="$.target",
        )
    if given.startswith(_BUCKET):
        return Where(Place.BUCKET, given.removeprefix(_BUCKET))
    if given.startswith(_FILE):
        return Where(Place.FOLDER, given.removeprefix(_FILE))
    if given in (".", "..") or given.startswith(("/", "./", "../", "~/")):
        return Where(Place.FOLDER, str(Path(given).expanduser()))
    return Where(Place.DATASET, given.removeprefix(_DATASET))


def needs_token(target: str) -> bool:
    """Whether publishing there takes a token."""
    return not target or read_where(target).place is not Place.FOLDER


def repo_of(target: str) -> str | None:
    """The name of the dataset on the Hub; None where it is none."""
    if not target:
        return None
    where = read_where(target)
    return where.name if where.place is Place.DATASET else None

"""What an adapter is: one rollout in, rows or lines or files of somebody else's format out.

Owns: the shape of adapters and of what they give.
Must not know: files, folders, digests, any one format.

An adapter may leave fields out; it never makes one up. It is given the record, the verdict
and, where it asks for them, the texts of requests and replies; what follows from those alone
can be made again by whoever checks a dataset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from explorer.export.dataset.rows import Texts, no_texts
from explorer.export.dataset.schema import Column
from explorer.records import RolloutRecord
from explorer.trace.verdict import Judgement


class Layout(StrEnum):
    """How what an adapter gives lies in the dataset's folder."""

    PARQUET = "parquet"  # one more config: Parquet shards in a folder of the adapter's name
    LINES = "lines"  # text files of many lines each, split at the shard size
    FILES = "files"  # one file a piece, named by the adapter


@dataclass(frozen=True, slots=True)
class Subject:
    """One sealed rollout that is in the dataset.

    Attributes:
        texts: a call's request and reply as text; None for each that is not there or is
            no UTF-8. Gives nothing where the dataset is made without bodies.
    """

    record: RolloutRecord
    judgement: Judgement
    texts: Texts = no_texts


@dataclass(frozen=True, slots=True)
class Row:
    """A row by column name (`Layout.PARQUET`); a column that is left out is null."""

    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end (`Layout.LINES`)."""

    data: bytes


@dataclass(frozen=True, slots=True)
class File:
    """A whole file (`Layout.FILES`).

    Attributes:
        stem: name without suffix, of our own ids only (letters, digits, `-`), never a name
            that somebody gave; unique in the adapter, whatever the case of its letters.
    """

    stem: str
    data: bytes


Piece = Row | Line | File


class Adapter(ABC):
    """One format. A new object is made for every dataset that is written.

    Attributes:
        name: of the adapter, its folder in the dataset, and its config where it has one.
        about: one sentence: who reads it, and what of the record is not in it.
        needs_texts: it is made from the texts of requests and replies; a dataset with it is
            written with bodies.
        columns: of its rows (`Layout.PARQUET`).
        suffix: of its files, without the dot (`Layout.LINES`, `Layout.FILES`).
        header: first line of each file (`Layout.LINES`), for CSV.
    """

    name: ClassVar[str]
    layout: ClassVar[Layout]
    about: ClassVar[str]
    needs_texts: ClassVar[bool] = False
    columns: ClassVar[tuple[Column, ...]] = ()
    suffix: ClassVar[str] = ""
    header: ClassVar[bytes] = b""

    @abstractmethod
    def add(self, subject: Subject) -> Iterable[Piece]:
        """What follows from one more rollout; rollouts come in the dataset's order.

        Raises:
            RecordInconsistent: the rollout cannot be told in this format without making
                something up.
        """

    def finish(self) -> Iterable[Piece]:
        """What follows from several rollouts together, after the last one."""
        return ()

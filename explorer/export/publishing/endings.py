"""Why a job ends, waits or does not begin, in words, and what its folder must be before.

Owns: the sentences, and the two looks at the disk. Must not know: jobs, who does the work.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from explorer.export.hub.target import MANIFEST

WAITS = (
    "it was uploading, or about to, and the token for it was only in memory: sign in again, "
    "or give the token again, to go on"
)

DELETED = "a rollout of it was deleted meanwhile: let it go on without that one"
NO_ROOM = (
    "the disk is nearly full, and recording comes first: remove files of other jobs, or of "
    "elsewhere, and let it go on"
)
STARTED_ANEW = "the server was started anew meanwhile; its schedule makes another job"


def room_for(folder: Path, least: int) -> bool:
    """Whether the disk of a folder, which need not be there yet, has so many bytes left."""
    there = folder if folder.is_dir() else folder.parent
    return shutil.disk_usage(there).free >= least


def make_ready(folder: Path) -> None:
    """The folder is new, or holds a whole dataset of an earlier try."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.is_dir() and not (folder / MANIFEST).is_file():
        shutil.rmtree(folder)


def disk_words(error: OSError) -> str:
    """An error of the disk as its reader needs it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: remove files of other jobs, or of elsewhere, and go on"
    return f"a file could not be read or written: {error.strerror or type(error).__name__}"

"""The side file of the search where nobody changes it.

Owns: opening it without locks or files beside it, so that its folder need not be writable.
Must not know: what is in it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote


def open_shown(path: Path, version: int) -> sqlite3.Connection:
    """The file as it is.

    Raises:
        sqlite3.OperationalError: it is not there, or of another version.
    """
    address = f"file:{quote(str(path.absolute()))}?immutable=1"
    found = sqlite3.connect(address, uri=True, check_same_thread=False)
    try:
        known = found.execute("PRAGMA user_version").fetchone()[0]
        if known != version:
            raise sqlite3.OperationalError(f"the file is of version {known}")
    except sqlite3.Error:
        found.close()
        raise
    return found

"""What a manifest says to those who only move it: whether it is ours, and its files.

Owns: telling ours from others'. Must not know: where it lies.
"""

from __future__ import annotations

import orjson

from explorer.errors import HubConflict
from explorer.export.dataset.manifest import FORMAT


def is_ours(manifest: bytes) -> bool:
    """By its format; a version that this program does not read is still ours."""
    try:
        document = orjson.loads(manifest)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def folders_of(manifest: bytes) -> set[str]:
    """The folders that one of ours has its files in.

    Raises:
        HubConflict: it cannot be read so far.
    """
    return {name.split("/")[0] for name in named_files(manifest)}


def named_files(manifest: bytes) -> list[str]:
    """Every data file that one of ours names, of whatever version.

    Raises:
        HubConflict: it cannot be read so far.
    """
    document = orjson.loads(manifest)
    try:
        entries = [*document["configs"].values(), *document.get("extras", {}).values()]
        return [str(file["path"]) for entry in entries for file in entry["files"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise HubConflict(
            "its manifest does not say which files are the dataset's; delete them by hand"
        ) from error

"""What a person saw in a dry run is what is published, or they are asked again.

Owns: the comparison, right before anything is uploaded.
Must not know: any one place, jobs.

Between a dry run and publishing, people decide and rollouts are deleted. A dataset that grows
cannot be compared: what is there already was not in the dry run.
"""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from explorer.errors import ExplorerError
from explorer.export.hub.target import MANIFEST, Head, Listener, Published, Target, Upload


class ChangedSince(ExplorerError):
    """What would be published is not what the dry run showed."""

    status = 409
    code = "changed_since"


class Approved:
    """A target that takes only the manifest that a person saw.

    Args:
        target: does everything.
        sha256: of the manifest that was seen.
    """

    def __init__(self, target: Target, sha256: str) -> None:
        self.title = target.title
        self.repo_id: str | None = getattr(target, "repo_id", None)
        self._target = target
        self._sha256 = sha256

    def prepare(self) -> None:
        self._target.prepare()

    def head(self) -> Head:
        return self._target.head()

    def fetch(self, path: str, to: Path) -> None:
        self._target.fetch(path, to)

    def put(
        self, upload: Upload, head: Head, listener: Listener, stop: threading.Event
    ) -> Published:
        """As the target's.

        Raises:
            ChangedSince: nothing was uploaded.
        """
        made = hashlib.sha256((upload.folder / MANIFEST).read_bytes()).hexdigest()
        if head.manifest is None and made != self._sha256:
            raise ChangedSince(
                "what would be published is not what the dry run showed: something was "
                "decided, changed or deleted since. It was written anew and nothing was "
                "uploaded: look at it, and publish then"
            )
        return self._target.put(upload, head, listener, stop)

    def remove(self, reason: str, whole: bool) -> None:
        self._target.remove(reason, whole)

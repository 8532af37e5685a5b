"""A publisher in a process of its own, which tests kill.

    python -m tests.hub.publisher URL REPO FOLDER [OPERATIONS]

The token comes by standard input.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tests.hub.making import described, unheard


def main() -> None:
    """Publishes a folder, as the command does."""
    url, repo_id, folder, *more = sys.argv[1:]
    from explorer.export.hub.client import HubClient
    from explorer.export.hub.dataset import HubDataset
    from tests.hub.making import QUICK

    client = HubClient(url, sys.stdin.readline().strip(), QUICK)
    target = HubDataset(repo_id, client, operations=int(more[0]) if more else 500)
    root = Path(folder)
    files = sorted(str(path.relative_to(root)) for path in root.glob("*/*"))
    target.prepare()
    target.put(described(root, tuple(files)), target.head(), unheard, threading.Event())


if __name__ == "__main__":
    main()

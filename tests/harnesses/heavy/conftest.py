"""Harnesses that are large or slow: collected by `make test-harnesses` only."""

from __future__ import annotations

import os

from tests.harnesses.installed import HEAVY

collect_ignore_glob = [] if os.environ.get(HEAVY) else ["test_*.py"]

"""How the tests start a browser: the system's Chromium, a fresh profile, no phoning home."""

from __future__ import annotations

import os

from playwright.sync_api import Browser, Playwright

EXECUTABLE = os.environ.get("ROLLOUT_EXPLORER_TEST_CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def launch(playwright: Playwright) -> Browser:
    """A headless browser with an empty profile."""
    return playwright.chromium.launch(executable_path=EXECUTABLE, args=ARGUMENTS)

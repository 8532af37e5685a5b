"""Order of the tests, skips that count as failures where nothing may be skipped, and what
would make a slow machine fail or wait for nothing."""

from __future__ import annotations

import os
from collections.abc import Generator
from functools import lru_cache
from typing import Any

import httpx._transports.default
import hypothesis
import pytest

# The local Hub of tests/hub speaks the plain protocol; read once, when the client is imported.
os.environ.setdefault("HF_HUB_DISABLE_XET", "1")

# How long an example takes says more of the machine than of the code.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")

# A client reads every root certificate anew, 30 ms of each `httpx.get`; nothing here speaks
# TLS with the world, and thousands of requests are made.
_TRANSPORT: Any = httpx._transports.default
_fresh_context = _TRANSPORT.create_ssl_context


@lru_cache(maxsize=1)
def _shared_context() -> Any:
    return _fresh_context()


def _context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
    if verify is True and cert is None:
        return _shared_context()
    return _fresh_context(verify=verify, cert=cert, trust_env=trust_env)


_TRANSPORT.create_ssl_context = _context

REQUIRE = "ROLLOUT_EXPLORER_REQUIRE_CONSUMERS"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests last: Playwright keeps an event loop running in the main thread until
    the session ends, and no other test could start one of its own."""
    items.sort(key=_drives_a_browser)


def _drives_a_browser(item: pytest.Item) -> bool:
    """By its mark, or by the fixture it asks for: a forgotten mark must break nothing."""
    asks = "browser" in getattr(item, "fixturenames", ())
    return asks or item.get_closest_marker("browser") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns skips into failures when the environment says that nothing may be skipped."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get(REQUIRE):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else ""
        report.outcome = "failed"
        report.longrepr = f"{REQUIRE} is set, but {item.nodeid} was skipped: {reason}"
    return report

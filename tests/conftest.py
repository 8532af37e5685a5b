"""Order of the tests, and skips that count as failures where nothing may be skipped."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

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

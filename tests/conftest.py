"""Where the consumers' libraries must be there, a skipped test is a failed one."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

REQUIRE = "ROLLOUT_EXPLORER_REQUIRE_CONSUMERS"


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

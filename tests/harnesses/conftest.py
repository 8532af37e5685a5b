"""What the tests of real harnesses prove, written down."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "harness(profile, check): what is proved of which harness"
    )

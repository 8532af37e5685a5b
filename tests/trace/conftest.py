"""Property tests without a clock: a busy machine must not fail them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("trace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trace")

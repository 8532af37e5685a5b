"""The digest of a harness's configuration, as the caller gives it."""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    "ALTER TABLE rollout ADD COLUMN IF NOT EXISTS harness_config_sha256 VARCHAR",
)

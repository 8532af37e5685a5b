"""How streamed replies of a rollout reach the harness; older rollouts were synthesised."""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    "ALTER TABLE rollout ADD COLUMN IF NOT EXISTS streaming VARCHAR DEFAULT 'synthesised'",
)

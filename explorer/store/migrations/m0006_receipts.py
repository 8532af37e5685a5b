"""Receipts of closed rollouts as they were issued."""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    "CREATE TABLE IF NOT EXISTS receipt (\n"
    "  rollout_id VARCHAR NOT NULL,\n"
    "  number INTEGER NOT NULL,\n"
    "  issued_time TIMESTAMPTZ NOT NULL,\n"
    "  sha256 VARCHAR NOT NULL,\n"
    "  algorithm VARCHAR,\n"
    "  key_id VARCHAR,\n"
    "  signature VARCHAR,\n"
    "  PRIMARY KEY (rollout_id, number)\n"
    ")",
)

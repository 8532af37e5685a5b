"""What people write beside rollouts: labels and notes, and saved views of the list."""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    "CREATE TABLE IF NOT EXISTS annotation (\n"
    "  annotation_id VARCHAR NOT NULL,\n"
    "  rollout_id VARCHAR NOT NULL,\n"
    "  annotated_time TIMESTAMPTZ NOT NULL,\n"
    "  who VARCHAR NOT NULL,\n"
    "  label VARCHAR,\n"
    "  note VARCHAR,\n"
    "  call_id VARCHAR,\n"
    "  span_start BIGINT,\n"
    "  span_end BIGINT,\n"
    "  withdraws VARCHAR,\n"
    "  PRIMARY KEY (annotation_id)\n"
    ")",
    "CREATE TABLE IF NOT EXISTS saved_view (\n"
    "  name VARCHAR NOT NULL,\n"
    "  saved_time TIMESTAMPTZ NOT NULL,\n"
    "  who VARCHAR NOT NULL,\n"
    "  query VARCHAR NOT NULL,\n"
    "  dropped BOOLEAN NOT NULL,\n"
    "  PRIMARY KEY (name, saved_time)\n"
    ")",
)

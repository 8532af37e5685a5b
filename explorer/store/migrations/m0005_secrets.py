"""What looks like a secret in a rollout, when it was looked for, and what people decided."""

from __future__ import annotations

STATEMENTS: tuple[str, ...] = (
    "CREATE TABLE IF NOT EXISTS secret_scan (\n"
    "  rollout_id VARCHAR NOT NULL,\n"
    "  scanned_time TIMESTAMPTZ NOT NULL,\n"
    "  scan_version INTEGER NOT NULL,\n"
    "  stamp VARCHAR NOT NULL,\n"
    "  n_secrets BIGINT NOT NULL,\n"
    "  n_paths BIGINT NOT NULL,\n"
    "  PRIMARY KEY (rollout_id, scanned_time)\n"
    ")",
    "CREATE TABLE IF NOT EXISTS secret_finding (\n"
    "  rollout_id VARCHAR NOT NULL,\n"
    "  finding_id VARCHAR NOT NULL,\n"
    "  found_time TIMESTAMPTZ NOT NULL,\n"
    "  kind VARCHAR NOT NULL,\n"
    "  blocks BOOLEAN NOT NULL,\n"
    "  listed BOOLEAN NOT NULL,\n"
    "  PRIMARY KEY (rollout_id, finding_id)\n"
    ")",
    "CREATE TABLE IF NOT EXISTS secret_decision (\n"
    "  decision_id VARCHAR NOT NULL,\n"
    "  rollout_id VARCHAR NOT NULL,\n"
    "  finding_id VARCHAR NOT NULL,\n"
    "  decided_time TIMESTAMPTZ NOT NULL,\n"
    "  decision VARCHAR NOT NULL,\n"
    "  who VARCHAR NOT NULL,\n"
    "  reason VARCHAR NOT NULL,\n"
    "  PRIMARY KEY (decision_id)\n"
    ")",
)

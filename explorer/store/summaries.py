"""One line per rollout, derived from all its rows and kept in memory while they stand.

Owns: the derived table that listings read, and when it is made again.
Must not know: filters, pages.

Every table only ever grows, so equal row counts mean equal rows: the table is made again,
whole, when a count has changed. With 10,000 rollouts of 50 calls that takes 30 ms, and
asking for the counts one or two; keeping counters in step with the writer instead would
put a second truth beside the rows.
"""
# ruff: noqa: S608 (the fragments are constants of this package)

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from explorer.store.database import Database

# No file can give a database this name: it has a slash.
CATALOG = "listing/in memory"
SUMMARY = f'"{CATALOG}".summary'
STAMP = f'"{CATALOG}".stamp'

_COUNTED = (
    "SELECT (SELECT count(*) FROM rollout), (SELECT count(*) FROM rollout_event), "
    "(SELECT count(*) FROM call), (SELECT count(*) FROM judgement), "
    "(SELECT count(*) FROM weight_update), (SELECT count(*) FROM delta_summary)"
)
_STATE = """
state AS (
  SELECT rollout_id,
    CASE WHEN bool_or(kind = 'deleted') THEN 'deleted'
         WHEN bool_or(kind = 'closed') THEN 'closed' ELSE 'open' END AS status,
    epoch_us(max(event_time) FILTER (kind = 'closed')) AS closed_us,
    arg_max(reward, sequence) FILTER (reward IS NOT NULL) AS reward,
    arg_max(ok, sequence) FILTER (ok IS NOT NULL) AS ok
  FROM rollout_event GROUP BY rollout_id)"""
SAMPLED = "status = 'committed' AND completion_len > 0"
_COUNTS = f"""
counts AS (
  SELECT rollout_id, count(*) AS n_calls,
    count(*) FILTER (status <> 'committed') AS n_failed,
    coalesce(sum(completion_len), 0)::BIGINT AS generated_tokens,
    min(least(weight_version_start, weight_version_end)) FILTER ({SAMPLED}) AS version_low,
    max(greatest(weight_version_start, weight_version_end)) FILTER ({SAMPLED})
      AS version_high,
    count(*) FILTER ({SAMPLED} AND weight_version_start IS DISTINCT FROM weight_version_end)
      AS n_crossed,
    -- As `trace.versions.sampled_us`: what waited for new weights was sampled under them.
    min(CASE WHEN weight_version_start = weight_version_end THEN ended_time
             ELSE started_time END) FILTER ({SAMPLED}) AS sampled_from
  FROM call WHERE ended GROUP BY rollout_id)"""
# The weights announced last, and since when numbers mean the same: `trace.versions.Line`.
_WEIGHTS = """
told AS (
  SELECT weight_version, update_time, number,
    lag(weight_version) OVER (ORDER BY number) AS before
  FROM weight_update WHERE state = 'ready' AND weight_version IS NOT NULL),
weights AS (
  SELECT arg_max(weight_version, number) AS newest,
    coalesce(max(update_time) FILTER (weight_version < before), min(update_time)) AS since
  FROM told)"""
_VERDICT = """
verdict AS (
  SELECT * FROM judgement
  QUALIFY row_number() OVER (PARTITION BY rollout_id
    ORDER BY judged_time DESC, inputs_sha256) = 1)"""
_DELTA = """
off AS (
  SELECT rollout_id, abs_p99,
    CASE WHEN n_compared > 0 THEN n_outside / n_compared END AS outside
  FROM delta_summary
  QUALIFY row_number() OVER (PARTITION BY rollout_id
    ORDER BY computed_time DESC, inputs_sha256) = 1)"""
_MAKE = f"""
CREATE OR REPLACE TABLE {SUMMARY} AS
WITH {_STATE}, {_COUNTS}, {_VERDICT}, {_WEIGHTS}, {_DELTA}
SELECT r.rollout_id, r.run, r.task, r.group_name, coalesce(r.group_name, r.task) AS cohort,
  r.attempt, r.purpose, r.harness, r.model, epoch_us(r.created_time) AS created_us,
  coalesce(s.status, 'open') AS status, s.closed_us, s.reward, s.ok,
  coalesce(c.n_calls, 0) AS n_calls, coalesce(c.n_failed, 0) AS n_failed,
  coalesce(c.generated_tokens, 0) AS generated_tokens,
  v.inputs_sha256, v.policy, epoch_us(v.judged_time) AS judged_us, v.trainable,
  v.supervised_tokens, v.generated_tokens AS judged_tokens, v.n_calls AS judged_calls,
  v.n_fatal, v.n_warn, v.reasons,
  TRY(json_extract_string(v.reasons, '$[0]')) AS reason,
  -- Tokens that a verdict against the rollout keeps from training are not trainable.
  CASE WHEN v.trainable THEN v.supervised_tokens WHEN NOT v.trainable THEN 0 END AS trained,
  CASE WHEN v.generated_tokens > 0
       THEN CASE WHEN v.trainable THEN v.supervised_tokens / v.generated_tokens ELSE 0.0 END
       END AS share,
  c.version_low, c.version_high, coalesce(c.n_crossed, 0) AS n_crossed,
  CASE WHEN c.sampled_from >= w.since THEN w.newest - c.version_low END AS behind,
  d.abs_p99 AS delta_p99, d.outside AS delta_outside,
  CASE WHEN TRY(json_type(r.metadata, '/global_step')) IN ('UBIGINT', 'BIGINT')
       THEN TRY_CAST(json_extract_string(r.metadata, '/global_step') AS BIGINT) END AS step,
  CASE WHEN v.n_fatal > 0 THEN 'fatal' WHEN v.n_warn > 0 THEN 'warn'
       WHEN v.n_fatal = 0 THEN 'none' END AS grade
FROM rollout r LEFT JOIN state s USING (rollout_id) LEFT JOIN counts c USING (rollout_id)
  LEFT JOIN verdict v USING (rollout_id) LEFT JOIN off d USING (rollout_id)
  CROSS JOIN weights w
ORDER BY created_us, r.rollout_id"""
_HAS_MARK = (
    "SELECT count(*) FROM duckdb_tables() "
    f"WHERE database_name = '{CATALOG}' AND table_name = 'stamp'"
)


class Summaries:
    """Lends cursors on which `SUMMARY` says what the store says."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._gate = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A cursor on which every query sees one state of the summaries."""
        with self._gate, self._database.reading() as cursor:
            self._refresh(cursor)
        with self._database.snapshot() as cursor:
            yield cursor

    def _refresh(self, cursor: Any) -> None:
        # The stamp is kept beside the table: both vanish when the file is opened again.
        cursor.execute(f"ATTACH IF NOT EXISTS ':memory:' AS \"{CATALOG}\"")
        made = None
        if cursor.execute(_HAS_MARK).fetchone()[0]:
            made = cursor.execute(f"SELECT * FROM {STAMP}").fetchone()
        if made is not None and made == cursor.execute(_COUNTED).fetchone():
            return
        cursor.execute("BEGIN TRANSACTION")
        try:
            cursor.execute(f"CREATE OR REPLACE TABLE {STAMP} AS {_COUNTED}")
            cursor.execute(_MAKE)
            cursor.execute("COMMIT")
        except BaseException:
            cursor.execute("ROLLBACK")
            raise

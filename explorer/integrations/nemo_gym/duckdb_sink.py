"""Staged calls as rows of a DuckDB file of their own.

Owns: the table, its columns, its transactions.
Must not know: what is staged, who asks.

Tokens are BLOBs of little-endian numbers, because each small commit to a table with a LIST
writes a whole vector of lists again. One process has the file open; its threads stage at once,
each with a cursor, and hold no lock of ours. A row is durable when its commit returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from explorer.custody.fields import dump, loads
from explorer.custody.records import (
    StagedCallBaseSnapshot,
    StagedCallRecord,
    StageResult,
)
from explorer.integrations.nemo_gym.keys import key_of

_PLAIN = (
    *("rollout_id", "model_call_id", "parent_call_id", "mode", "prev_len", "delta_len"),
    *("cum_len", "weight_version", "digest", "extras_digest", "chain_hash", "cumulative_hash"),
    *("schema_version", "digest_version", "extras_digest_version"),
)
_COLUMNS = {
    "token_ids_delta": "<u8",
    "token_mask_delta": "<f8",
    "generation_log_probs_delta": "<f8",
}
_NAMES = ("staging_key", *_PLAIN, *_COLUMNS, "extras")
_TEXTS = {
    *("staging_key", "rollout_id", "model_call_id", "parent_call_id", "mode", "digest"),
    *("extras_digest", "chain_hash", "cumulative_hash", "extras"),
}
_NULLABLE = {"parent_call_id", "extras"}
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "storage_compatibility_version": "v1.5.0",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_INSERT = f"INSERT INTO staged_call VALUES ({', '.join('?' * len(_NAMES))})"  # noqa: S608
_SELECT = f"SELECT {', '.join(_NAMES)} FROM staged_call WHERE staging_key IN "  # noqa: S608
# Keys that one question asks for.
_AT_ONCE = 500


class DuckDBSink:
    """A `StagingSink` and `StagingSource` over one DuckDB file.

    Args:
        path: made when it is not there, unless `read_only`.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self._connection = duckdb.connect(str(path), read_only=read_only, config=_CONFIG)
        if not read_only:
            self._connection.execute(_ddl())

    def close(self) -> None:
        """Writes the log into the file and lets go of it."""
        self._connection.close()

    def stage(
        self, record: StagedCallRecord, *, attachments: Mapping[str, Any] | None = None
    ) -> StageResult:
        """As `StagingSink.stage`.

        Raises:
            TypeError: attachments; a row has no place for them.
            duckdb.Error: the row cannot be written.
        """
        if attachments:
            raise TypeError("a table of staged calls takes no attachments")
        key = key_of(record)
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(_INSERT, _row(key, record))
            except (duckdb.ConstraintException, duckdb.TransactionException):
                if not self._is_stored(key, record):
                    return StageResult(ok=False, error=f"another call is stored under {key}")
        return StageResult(ok=True, staging_key=key)

    def _is_stored(self, key: str, record: StagedCallRecord) -> bool:
        try:
            return self.fetch([key]) == [record]
        except LookupError:
            return False

    def fetch(self, staging_keys: Sequence[str]) -> list[StagedCallBaseSnapshot]:
        """As `StagingSource.fetch`.

        Raises:
            LookupError: a key is not there.
            ValueError: a row is damaged.
        """
        found: dict[str, StagedCallRecord] = {}
        wanted = list(dict.fromkeys(staging_keys))
        with self._connection.cursor() as cursor:
            for start in range(0, len(wanted), _AT_ONCE):
                asked = wanted[start : start + _AT_ONCE]
                marks = ", ".join("?" * len(asked))
                rows = cursor.execute(f"{_SELECT} ({marks})", asked).fetchall()
                found |= {row[0]: _record(row) for row in rows}
        missing = next((key for key in wanted if key not in found), None)
        if missing is not None:
            raise KeyError(f"no staged call {missing}")
        return [found[key] for key in staging_keys]


def _ddl() -> str:
    columns = []
    for name in _NAMES:
        kind = "BLOB" if name in _COLUMNS else "VARCHAR" if name in _TEXTS else "UBIGINT"
        columns.append(f"{name} {kind}{'' if name in _NULLABLE else ' NOT NULL'}")
    return (
        f"CREATE TABLE IF NOT EXISTS staged_call ({', '.join(columns)}, "
        "PRIMARY KEY (staging_key))"
    )


def _row(key: str, record: StagedCallRecord) -> list[Any]:
    plain = [getattr(record, name) for name in _PLAIN]
    blobs = [_bytes(getattr(record, name), kind) for name, kind in _COLUMNS.items()]
    return [key, *plain, *blobs, None if record.extras is None else dump(record.extras)]


def _bytes(column: NDArray[Any], kind: str) -> bytes:
    return column.astype(kind).tobytes()


def _record(row: Sequence[Any]) -> StagedCallRecord:
    values = dict(zip(_NAMES, row, strict=True))
    values.pop("staging_key")
    for name, kind in _COLUMNS.items():
        values[name] = np.frombuffer(values[name], kind)
    if values["extras"] is not None:
        values["extras"] = loads(values["extras"])
    record = StagedCallRecord.parse(values)
    if key_of(record) != row[0]:
        raise LookupError(f"{key_of(record)} lies in place of {row[0]}")
    return record

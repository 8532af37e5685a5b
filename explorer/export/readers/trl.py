"""TRL: the Parquet files that `log_completions` writes, one completion a row.

Owns: their columns. Must not know: other formats.

Text only: TRL logs neither ids nor logprobs here.
"""

from __future__ import annotations

import io
import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from explorer.export.readers import values
from explorer.export.readers.neutral import ImportedCall, ImportedRollout

_MOST_ROWS = 20_000
# Of the values of all rows, unpacked; and of those unpacked in one go.
_MOST_BYTES, _AT_ONCE = 512 * 1024 * 1024, 256 * 1024 * 1024
_OWN = ("step", "prompt", "completion", "advantage")


def read(data: bytes) -> tuple[ImportedRollout, ...]:
    """One rollout per row; rows of one step and prompt are a group."""
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        if file.metadata.num_rows > _MOST_ROWS:
            values.refuse("$", f"has more than {_MOST_ROWS} rows")
        table = _table(file)
    except (pa.ArrowException, OSError) as error:
        values.refuse("$", f"not Parquet that can be read: {str(error)[:120]}")
    if "prompt" not in table.column_names or "completion" not in table.column_names:
        values.refuse("$", "has no columns `prompt` and `completion`: no completions of TRL")
    rewards = [
        field.name
        for field in table.schema
        if field.name not in _OWN
        and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
    ]
    budget = values.Budget()
    groups: dict[tuple[Any, str], list[int]] = {}
    found = []
    for index, row in enumerate(table.to_pylist()):
        place = f"row {index}"
        key = (row.get("step"), repr(row["prompt"]))
        group = groups.setdefault(key, [len(groups), 0])
        scored = {name: _score(row[name]) for name in rewards}
        found.append(
            ImportedRollout(
                source=place,
                calls=_calls(row, place, budget),
                task=f"prompt {group[0]}",
                group=f"step {row.get('step')}, prompt {group[0]}",
                attempt=group[1],
                harness="trl",
                reward=next(iter(scored.values())) if len(scored) == 1 else None,
                rewards={
                    values.name(name) or "reward": value for name, value in scored.items()
                },
                notes={"advantage": str(row["advantage"])} if "advantage" in row else {},
            )
        )
        group[1] += 1
    return tuple(found)


def _table(file: pq.ParquetFile) -> pa.Table:
    """Every row. A value stored once may stand in every row, so the rows are unpacked in
    parts that stay small however large one value is."""
    meta = file.metadata
    groups = [meta.row_group(index) for index in range(meta.num_row_groups)]
    whole = sum(
        group.column(index).total_uncompressed_size
        for group in groups
        for index in range(group.num_columns)
    )
    if whole > _MOST_BYTES:
        values.refuse("$", f"comes to more than {_MOST_BYTES:,} bytes; split the file")
    parts, size = [], 0
    for part in file.iter_batches(max(1, min(1024, _AT_ONCE // max(1, whole)))):
        size += part.nbytes
        if size > _MOST_BYTES:
            values.refuse("$", f"comes to more than {_MOST_BYTES:,} bytes; split the file")
        parts.append(part)
    return pa.Table.from_batches(parts, schema=file.schema_arrow)


def _score(value: Any) -> float | None:
    """A reward; what the function left out (NaN in the file) is none."""
    return None if value is None or not math.isfinite(value) else float(value)


def _calls(row: dict[str, Any], path: str, budget: values.Budget) -> tuple[ImportedCall, ...]:
    said = list(values.messages(row["prompt"], f"{path}.prompt"))
    size = values.written_size(said, f"{path}.prompt")
    budget.spend(size, path)
    completion = row["completion"]
    if isinstance(completion, str):
        reply = {"role": "assistant", "content": completion}
        return (ImportedCall(messages=tuple(said), reply=reply, source=path),)
    calls = []
    for item in values.messages(completion, f"{path}.completion"):
        written = values.written_size(item, f"{path}.completion")
        if item["role"] == "assistant":
            budget.spend(size, path)
            calls.append(ImportedCall(messages=tuple(said), reply=item, source=path))
        said.append(item)
        size += written
    return tuple(calls)

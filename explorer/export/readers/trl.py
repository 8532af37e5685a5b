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
_OWN = ("step", "prompt", "completion", "advantage")


def read(data: bytes) -> tuple[ImportedRollout, ...]:
    """One rollout per row; rows of one step and prompt are a group."""
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        if file.metadata.num_rows > _MOST_ROWS:
            values.refuse("$", f"has more than {_MOST_ROWS} rows")
        table = file.read()
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
                calls=_calls(row, place),
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


def _score(value: Any) -> float | None:
    """A reward; what the function left out (NaN in the file) is none."""
    return None if value is None or not math.isfinite(value) else float(value)


def _calls(row: dict[str, Any], path: str) -> tuple[ImportedCall, ...]:
    said = list(values.messages(row["prompt"], f"{path}.prompt"))
    completion = row["completion"]
    if isinstance(completion, str):
        reply = {"role": "assistant", "content": completion}
        return (ImportedCall(messages=tuple(said), reply=reply, source=path),)
    calls = []
    for item in values.messages(completion, f"{path}.completion"):
        if item["role"] == "assistant":
            calls.append(ImportedCall(messages=tuple(said), reply=item, source=path))
        said.append(item)
    return tuple(calls)

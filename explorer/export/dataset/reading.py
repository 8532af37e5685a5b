"""The record of a rollout, read back from its rows in `rollouts` and `calls`.

Owns: the way back, so that a dataset can be judged again where it lies.
Must not know: what is decided from the record, files. Rows are somebody's data: nothing in
them is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import orjson

from explorer.errors import InvalidValue
from explorer.export.dataset.schema import CALLS, CONFIGS
from explorer.export.dataset.values import ids_of, json_value, logprobs_of
from explorer.records import (
    Admission,
    Call,
    CallId,
    Certificate,
    Override,
    Rollout,
    RolloutEvent,
    RolloutRecord,
)
from explorer.trace.audit_reader import CallArrays, ReadAudit, read_call, read_part
from explorer.trace.policy import Policy

_ARRAYS = frozenset(("prompt_delta", "completion", "logprobs", "mask_reasons"))
_PLAIN_CALL = [column.name for column in CALLS if column.name not in _ARRAYS]
_JSON = {
    config: frozenset(column.name for column in columns if column.kind == "json")
    for config, columns in CONFIGS.items()
}


def read_rollout(row: Any, calls: Sequence[Any]) -> ReadAudit:
    """The record of a rollout and the policy that it was judged by.

    Args:
        row: a batch or table with its one row.
        calls: batches with its calls, in order.

    Raises:
        InvalidValue: names the place.
    """
    found = _plain(row.to_pylist()[0], "rollouts", "$")
    rollout = read_part(
        Rollout,
        {
            item.name: "" if item.name == "key_hash" else found.get(item.name)
            for item in fields(Rollout)
        },
        "$",
    )
    certificate = found["certificate"]
    record = RolloutRecord(
        rollout=rollout,
        events=_all(RolloutEvent, found, "events"),
        calls=tuple(_calls(calls, rollout)),
        certificate=None
        if certificate is None
        else read_part(Certificate, certificate, "$.certificate"),
        overrides=_all(Override, found, "overrides"),
        open_calls=_all(Admission, found, "open_calls"),
        certificates=_all(Certificate, found, "certificates"),
        contradicted=_contradicted(found),
    )
    return ReadAudit(record, read_part(Policy, found["policy"], "$.policy"))


def _plain(row: dict[str, Any], config: str, path: str) -> dict[str, Any]:
    for name in _JSON[config]:
        if row.get(name) is not None:
            try:
                row[name] = json_value(row[name])
            except orjson.JSONDecodeError as error:
                raise InvalidValue("is no JSON", path=f"{path}.{name}") from error
    return row


def _all(kind: type[Any], found: dict[str, Any], key: str) -> tuple[Any, ...]:
    values = found[key]
    if not isinstance(values, list):
        raise InvalidValue("must be a JSON list", path=f"$.{key}")
    return tuple(
        read_part(kind, value, f"$.{key}[{place}]") for place, value in enumerate(values)
    )


def _contradicted(found: dict[str, Any]) -> dict[CallId, str]:
    given = found["contradicted"]
    if not isinstance(given, dict) or not all(
        isinstance(words, str) for words in given.values()
    ):
        raise InvalidValue("must hold texts by call", path="$.contradicted")
    return {CallId(name): words for name, words in given.items()}


def _calls(batches: Sequence[Any], rollout: Rollout) -> list[Call]:
    made: list[Call] = []
    known: dict[str, tuple[str, ...]] = {}
    for batch in batches:
        arrays = {name: _one(batch.column(name)) for name in _ARRAYS}
        plain = batch.select(_PLAIN_CALL).to_pylist()
        for row, entry in enumerate(plain):
            path = f"$.calls[{len(made)}]"
            top = entry.pop("top_logprobs")
            call = read_call(
                _plain(entry, "calls", path),
                CallArrays(
                    ids_of(arrays["prompt_delta"], row),
                    ids_of(arrays["completion"], row),
                    logprobs_of(arrays["logprobs"], row),
                    None if top is None else top.encode(),
                ),
                rollout.rollout_id,
                known,
                path,
            )
            if call.call_id in known:
                raise InvalidValue(f"call {call.call_id[:80]} stands there twice", path=path)
            known[call.call_id] = call.message_digests
            made.append(call)
    return made


def _one(column: Any) -> Any:
    """A column as one array, whether of a batch or of a table."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column

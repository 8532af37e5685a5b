"""Trainers' files as postings: one JSON object a line, in the shape that each trainer writes.

Owns: the field names of each format. Must not know: how rows are matched to calls, HTTP.

    jsonl     ours: {rollout_id, weight_version, source, kind?, calls: [...]}, or rows as below
    prime-rl  `token_exports/step_N/rank_R.jsonl`: token_ids, loss_mask, inference_logprobs,
              trainer_logprobs; values count where the mask is true
    nemo-rl   `train_data_stepN.jsonl`: token_ids, token_loss_mask, input_lengths,
              generation_logprobs, prev_logprobs; each a batch of one, padded
    trl       the dictionary that GRPOTrainer makes of a batch, one sequence a line: prompt_ids,
              prompt_mask, completion_ids, completion_mask, tool_mask?, old_per_token_logps,
              sampling_per_token_logps?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from explorer.errors import InvalidValue
from explorer.export.telling import read_json

FORMATS = ("jsonl", "trl", "prime-rl", "nemo-rl")


@dataclass(frozen=True, slots=True)
class Line:
    """What one line tells: a posting about a rollout, or a row to be matched by its tokens."""

    number: int
    rollout_id: str | None = None
    posting: Mapping[str, Any] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)


def read_lines(data: bytes, format_: str) -> Iterator[Line]:
    """What a file tells, line by line; empty lines are passed over.

    Raises:
        InvalidValue: names the line and what is wrong with it.
    """
    reader = _READERS[format_]
    for number, raw in enumerate(data.splitlines(), 1):
        if not raw.strip():
            continue
        try:
            item = read_json(raw)
        except InvalidValue as error:
            raise InvalidValue(f"line {number}: {error.message}") from error
        if not isinstance(item, dict):
            raise InvalidValue(f"line {number} is no JSON object")
        yield reader(number, item)


def _need(number: int, item: Mapping[str, Any], name: str) -> list[Any]:
    """A list of one sequence; a batch of one is taken apart."""
    value = item.get(name)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list):
        raise InvalidValue(f"line {number} has no list `{name}`; is this the right format?")
    return value


def _ours(number: int, item: Mapping[str, Any]) -> Line:
    if "rollout_id" in item:
        rollout_id = item["rollout_id"]
        if not isinstance(rollout_id, str) or not rollout_id.isprintable():
            raise InvalidValue(f"line {number}: `rollout_id` must be the id of a rollout")
        body = {key: value for key, value in item.items() if key != "rollout_id"}
        return Line(number, rollout_id, body)
    names = ("token_ids", "logps", "rollout_logps", "mask")
    row = {name: item[name] for name in names if item.get(name) is not None}
    if "token_ids" not in row or "logps" not in row:
        raise InvalidValue(
            f"line {number} has neither `rollout_id` with `calls` nor `token_ids` with `logps`"
        )
    return Line(number, row={**row, "line": number})


def _row(number: int, ids: list[Any], logps: list[Any], given: Any, mask: list[Any]) -> Line:
    row = {"token_ids": ids, "logps": logps, "mask": mask, "line": number}
    return Line(number, row=row if given is None else {**row, "rollout_logps": given})


def _prime_rl(number: int, item: Mapping[str, Any]) -> Line:
    return _row(
        number,
        _need(number, item, "token_ids"),
        _need(number, item, "trainer_logprobs"),
        _need(number, item, "inference_logprobs"),
        _need(number, item, "loss_mask"),
    )


def _nemo_rl(number: int, item: Mapping[str, Any]) -> Line:
    ids = _need(number, item, "token_ids")
    length = item.get("input_lengths", len(ids))
    if isinstance(length, list) and len(length) == 1:
        length = length[0]
    if type(length) is not int or not 0 <= length <= len(ids):
        raise InvalidValue(f"line {number}: `input_lengths` does not fit {len(ids)} tokens")
    mask = [int(bool(each)) for each in _need(number, item, "token_loss_mask")[:length]]
    return _row(
        number,
        ids[:length],
        _need(number, item, "prev_logprobs")[:length],
        _need(number, item, "generation_logprobs")[:length],
        mask,
    )


def _trl(number: int, item: Mapping[str, Any]) -> Line:
    prompt = _kept(number, item, "prompt_ids", "prompt_mask")
    ids, keep = (
        _need(number, item, "completion_ids"),
        _optional(number, item, "completion_mask"),
    )
    tools = _optional(number, item, "tool_mask")
    logps = _need(number, item, "old_per_token_logps")
    given = _optional(number, item, "sampling_per_token_logps")
    for name, found in (("old_per_token_logps", logps), ("sampling_per_token_logps", given)):
        if found is not None and len(found) != len(ids):
            raise InvalidValue(
                f"line {number}: `{name}` has {len(found)} entries, `completion_ids` {len(ids)}"
            )
    places = [place for place in range(len(ids)) if keep is None or _at(keep, place)]
    nothing = [None] * len(prompt)
    mask = [0] * len(prompt) + [int(tools is None or bool(_at(tools, p))) for p in places]
    return _row(
        number,
        prompt + [ids[place] for place in places],
        nothing + [logps[place] for place in places],
        None if given is None else nothing + [given[place] for place in places],
        mask,
    )


def _optional(number: int, item: Mapping[str, Any], name: str) -> list[Any] | None:
    return None if item.get(name) is None else _need(number, item, name)


def _at(values: list[Any], place: int) -> Any:
    return values[place] if place < len(values) else 0


def _kept(number: int, item: Mapping[str, Any], name: str, mask: str) -> list[Any]:
    ids, keep = _need(number, item, name), _optional(number, item, mask)
    return [each for place, each in enumerate(ids) if keep is None or _at(keep, place)]


_READERS: dict[str, Callable[[int, Mapping[str, Any]], Line]] = {
    "jsonl": _ours,
    "trl": _trl,
    "prime-rl": _prime_rl,
    "nemo-rl": _nemo_rl,
}

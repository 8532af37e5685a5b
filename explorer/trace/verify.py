"""Checks an exported file by itself: no server, no store.

Owns: `verify`: which kind of file it is, what is checked of each, and the report.
Must not know: where the file came from.

A Capture audit holds the whole record, so it is judged again and written again: what this
program writes must be what the file says. A Training trace holds less: every rule of its
contract is checked, its chain of token hashes, and that each masked token has a reason that
fits; given the audit of the same rollout, it must be exactly the trace of that audit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from explorer.errors import ExplorerError, InvalidValue
from explorer.trace.assemble import training_trace
from explorer.trace.audit import capture_audit
from explorer.trace.audit_reader import is_audit, read_audit
from explorer.trace.inputs import JUDGE_VERSION
from explorer.trace.refusals import refusals
from explorer.trace.tracefile import Turns, check_trace, is_trace
from explorer.trace.verdict import Judgement, judge

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in a file.

    Attributes:
        kind: ``capture-audit`` or ``training-trace``.
        ok: the file holds together and says what its own contents say.
        trainable: the verdict, decided anew (audit) or claimed by being there (trace).
        problems: everything that does not fit, in words with a place.
        facts: counts for people and programs.
        notes: what was not checked, and why.
    """

    kind: str
    ok: bool
    trainable: bool
    problems: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def verify(data: bytes, against: bytes | None = None) -> Report:
    """Verifies one exported document.

    Args:
        against: the Capture audit of the same rollout, for a Training trace.

    Raises:
        InvalidValue: not JSON, or no document that this program writes.
    """
    document = parse(data)
    if is_audit(document):
        if against is not None:
            raise InvalidValue("an audit is verified by itself; give a Training trace first")
        return _audit(data, document)
    if is_trace(document):
        return _trace(data, document, against)
    raise InvalidValue(
        "this file is neither a Training trace nor a Capture audit; `verify` reads what "
        "`/training-trace` and `/capture-audit` give"
    )


def parse(data: bytes) -> Any:
    """The JSON document.

    Raises:
        InvalidValue: it is none.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidValue(f"this is not JSON: {error}") from error
    if not _spelt_by_us(document, data):
        _refuse_doubles(data)
    return document


def _spelt_by_us(document: Any, data: bytes) -> bool:
    try:
        return orjson.dumps(document) == data
    except TypeError:  # nested more deeply than is ever written
        return False


def _refuse_doubles(data: bytes) -> None:
    """Of a name that stands twice in an object one reader takes the first value, another the
    last: such a document says two things.

    Raises:
        InvalidValue: it has one, or is nested too deeply to tell.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidValue(f"`{twice[:60]}` stands twice in one object")
        return found

    try:
        json.loads(data, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"this is not JSON that can be verified: {error}") from error


def _audit(data: bytes, document: dict[str, Any]) -> Report:
    read = read_audit(document)
    judgement = judge(read.record, read.policy)
    said, told = document.get("annotations"), document.get("trainer_logprobs")
    again = b"".join(capture_audit(read.record, judgement, said, told))
    problems: list[str] = []
    notes: list[str] = []
    if again != data:
        problems = list(_differences(document, orjson.loads(again)))
        if not problems:
            notes.append("the same content, spelt in another way than this program does")
    unproved = [f"`{name}`" for name in ("annotations", "trainer_logprobs") if name in document]
    if unproved:
        notes.append(
            f"{' and '.join(unproved)}: what people and trainers told stands here as it was "
            "told; nothing in the file proves it, and no decision reads it"
        )
    made_by = document.get("provenance", {})
    made_by = made_by.get("judge_version") if isinstance(made_by, dict) else None
    if problems and made_by != JUDGE_VERSION:
        notes.append(
            f"the file was judged by rules of version {str(made_by)[:20]}, this program has "
            f"{JUDGE_VERSION}: differences may be those of the rules"
        )
    return Report(
        kind="capture-audit",
        ok=not problems,
        trainable=judgement.trainable,
        problems=tuple(problems),
        facts=_facts(judgement) | {"calls": len(read.record.calls)},
        notes=tuple(notes),
    )


def _facts(judgement: Judgement) -> dict[str, Any]:
    return {
        "rollout_id": judgement.rollout_id,
        "reasons": [reason.code for reason in judgement.reasons],
        "supervised_tokens": judgement.supervised_tokens,
        "generated_tokens": judgement.generated_tokens,
        "policy": judgement.policy.title,
        "inputs_sha256": judgement.inputs_sha256,
    }


def _differences(said: Any, found: Any, path: str = "$") -> Iterator[str]:
    """Where a file says something else than follows from it, the first few."""
    for place, (item, told, follows) in enumerate(_walk(said, found, path)):
        if place == _SHOWN:
            yield "… and more"
            return
        yield f"{item}: the file says {_short(told)}, its contents give {_short(follows)}"


def _walk(said: Any, found: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    stack = [(path, said, found)]
    while stack:
        place, one, two = stack.pop()
        if type(one) is dict and type(two) is dict:
            keys = dict.fromkeys((*one, *two))
            stack.extend(
                (f"{place}.{key[:60]}", one.get(key, _ABSENT), two.get(key, _ABSENT))
                for key in reversed(keys)
            )
        elif type(one) is list and type(two) is list and len(one) == len(two):
            stack.extend(
                (f"{place}[{index}]", left, right)
                for index, (left, right) in reversed(
                    list(enumerate(zip(one, two, strict=True)))
                )
                # Containers are looked into: 1, 1.0 and true are equal in Python.
                if left != right or type(left) is not type(right) or type(left) in _NESTED
            )
        elif type(one) is not type(two) or one != two:
            yield place, one, two


_NESTED = (dict, list)


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _trace(data: bytes, document: dict[str, Any], against: bytes | None) -> Report:
    turns = Turns()
    problems = check_trace(document, turns)
    notes = []
    if against is None:
        notes.append(
            "alone, a trace proves its ids and its mask; that no logprob, reward or turn was "
            "changed or left out is proved by --against its Capture audit"
        )
    elif not problems:
        problems += _against(data, against, turns)
    if not problems and turns.chained < turns.n_turns:
        left = turns.n_turns - turns.chained
        notes.append(
            f"the token hashes of {left} turns cannot be computed from the trace alone"
        )
    return Report(
        kind="training-trace",
        ok=not problems,
        trainable=not problems,
        problems=tuple(problems),
        facts=turns.facts(),
        notes=tuple(notes),
    )


def _against(data: bytes, against: bytes, turns: Turns) -> list[str]:
    """What sets a trace apart from that of the audit."""
    document = parse(against)
    if not is_audit(document):
        raise InvalidValue("a trace is verified against the Capture audit of its rollout")
    read = read_audit(document)
    own, other = turns.facts()["rollout_id"], str(read.record.rollout.rollout_id)
    if own != other:
        return [f"the trace is of rollout {own}, the audit of another one: {other[:80]}"]
    judgement = judge(read.record, read.policy)
    if refusals(judgement):
        codes = ", ".join(reason.code for reason in refusals(judgement))
        return [f"the audit's rollout may not be used: {codes}"]
    try:
        again = b"".join(training_trace(read.record, judgement))
    except ExplorerError as error:
        return [f"the audit gives no trace: {error.message}"]
    if again == data:
        return []
    return list(_differences(orjson.loads(data), orjson.loads(again)))

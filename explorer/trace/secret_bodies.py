"""Secrets in the exact bytes of a call: read once, and hidden without breaking the JSON.

Owns: what of a body is new, text that is split over events or list items, and a body as a
reader without leave sees it.
Must not know: the store, pages.

A body is overwritten in place where that leaves JSON and hides everything; where token ids
or pieces of tokens would still spell the secret they are taken out; else it is withheld
whole. What is given out was scanned again: nothing found reads from it in any view.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson

from explorer.records import Body, BodyKind, CallId
from explorer.trace.secret_scan import Place, RolloutScan
from explorer.trace.secret_text import Masker, joined, scan

OVERLAP_BYTES = 4096
REMEMBERED = 3
MOST_UNPACKED = 32 * 1024 * 1024
_MOST_LEVELS = 64
# Members that spell a text once more, token by token.
_TOKEN_NAMES = (
    "prompt_token_ids", "token_ids", "completion_token_ids", "output_token_ids", "input_ids",
    "logprobs", "prompt_logprobs", "tokens", "top_logprobs", "output_ids",
)  # fmt: skip
_TOKEN_MARKS = tuple(f'"{name}"'.encode() for name in _TOKEN_NAMES)
_FEWEST_IDS = 4
_NUMBERS = re.compile(rb"\[[0-9][0-9, \n]{62,}\]")
_PACKED = b"\x1f\x8b"


class BodyScan:
    """Scans the bodies of one rollout's calls, in order, each stretch once."""

    def __init__(self, scan_of: RolloutScan) -> None:
        self._scan = scan_of
        self._recent: dict[BodyKind, list[bytes]] = {}

    def call(self, call_id: CallId, bodies: tuple[Body, ...]) -> None:
        """Scans what the bodies of a call have that the ones before had not."""
        for each in bodies:
            # A list of numbers is no text; what its ids spell is read from the record.
            body = replace(each, data=_NUMBERS.sub(b"[]", each.data))
            place = Place(body.kind.value, call_id)
            self._scan.text(self._fresh(body), place)
            for pieces in _hidden_texts(body):
                hits = scan(b"".join(pieces))
                apart = bool(hits) and not _fragments(body.data)
                begun = _begun(pieces) if apart else set()
                for hit in hits:
                    if hit.start not in begun:
                        self._scan.note(hit.kind, hit.value, place)
            if body.headers:
                lines = "\n".join(f"{name}: {value}" for name, value in body.headers)
                self._scan.text(lines.encode("utf-8", "surrogatepass"), place)

    def _fresh(self, body: Body) -> bytes:
        recent = self._recent.setdefault(body.kind, [])
        shared = max((_shared(body.data, other) for other in recent), default=0)
        recent.insert(0, body.data)
        del recent[REMEMBERED:]
        start = max(0, shared - OVERLAP_BYTES)
        return body.data[start:] if start else body.data


def _shared(one: bytes, other: bytes) -> int:
    """How many leading bytes are equal."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _hidden_texts(body: Body, *, every: bool = False) -> Iterator[list[bytes]]:
    """What a body says that stands nowhere in it in one piece, in pieces: packed, or split
    over the events of a stream or the items of a list."""
    data = body.data
    if data[:2] == _PACKED:
        try:
            data = zlib.decompressobj(31).decompress(data, MOST_UNPACKED)
        except zlib.error:
            return
        yield [b"", data]
    if not (every or body.kind is BodyKind.REPLY):
        return
    for texts in _leaves(data).values():
        if len(texts) > 1:
            yield [text.encode("utf-8", "surrogatepass") for text in texts]


def _leaves(data: bytes) -> dict[str, list[str]]:
    """The texts of a document or of a stream's events, in order, by their member's name."""
    found: dict[str, list[str]] = {}
    for document in _documents(data):
        waiting: list[tuple[str, Any, int]] = [("", document, 0)]
        while waiting:
            name, value, depth = waiting.pop()
            if isinstance(value, str):
                found.setdefault(name, []).append(value)
            elif isinstance(value, dict) and depth < _MOST_LEVELS:
                items = [(str(key), item, depth + 1) for key, item in value.items()]
                waiting += reversed(items)
            elif isinstance(value, list) and depth < _MOST_LEVELS:
                if value and isinstance(value[0], int):
                    continue
                waiting += [(name, item, depth + 1) for item in reversed(value)]
    return found


def _documents(data: bytes) -> Iterator[Any]:
    if is_stream(data):
        for line in data.splitlines():
            if line.startswith(b"data:"):
                try:
                    yield orjson.loads(line[5:])
                except orjson.JSONDecodeError:
                    continue
        return
    try:
        yield orjson.loads(data)
    except orjson.JSONDecodeError:
        return


def is_stream(data: bytes) -> bool:
    """Whether a body is a stream of events."""
    return data.startswith((b"data:", b"event:", b":")) or b"\ndata:" in data[:4096]


@dataclass(frozen=True, slots=True, eq=False)
class ShownBody:
    """A body as it may be shown; `told` says what of it is hidden, empty for nothing."""

    body: Body
    told: str = ""


def shown_body(body: Body, masker: Masker, *, tokens_hidden: bool) -> ShownBody:
    """The body without what is secret.

    Args:
        masker: knows the rollout's secrets.
        tokens_hidden: tokens of this call's prompt or reply are hidden, so ids go, too.
    """
    headers = tuple((name, masker.text(value, mark="*")) for name, value in body.headers)
    body = replace(body, headers=headers)
    spans = masker.spans(body.data)
    if _in_pieces(body, masker):
        return _withheld(body, "a secret in it is split or packed, so no part can be hidden")
    if not (spans or tokens_hidden):
        return ShownBody(body)
    spelled = any(mark in body.data for mark in _TOKEN_MARKS) or _lists_ids(body)
    if not (spans or spelled):
        return ShownBody(body)
    data, told = body.data, "what looks like a secret is overwritten with *"
    if spelled:
        cut = _without_tokens(data)
        if cut is None:
            return _withheld(body, "its token ids would spell out what is hidden")
        data, told = cut, f"{told}; token ids and logprobs, which spell it, are left out"
    data = masker.data(data)
    made = replace(body, data=data)
    if not _still_reads(body.data, data):
        return _withheld(body, "hiding a part of it would leave no valid JSON")
    if scan_again(made, masker):
        return _withheld(body, "a secret in it would still read from what is left")
    return ShownBody(made, told)


def _fragments(data: bytes) -> bool:
    """Whether the pieces of a body belong together: events of one stream, or one packed
    text."""
    return is_stream(data) or data[:2] == _PACKED


def _begun(pieces: list[bytes]) -> set[int]:
    """Where a secret begins that one piece holds whole. Items of a list are mostly texts of
    their own: what the next one begins with does not go on with it."""
    found, at = set(), 0
    for piece in pieces:
        found |= {at + hit.start for hit in scan(piece)}
        at += len(piece)
    return found


def _in_pieces(body: Body, masker: Masker) -> bool:
    """Whether a body tells a secret of which no piece, or not every piece, would be hidden
    where it stands."""
    for pieces in _hidden_texts(body, every=True):
        found = masker.spans(b"".join(pieces))
        if found and body.data[:2] == _PACKED:
            return True
        alone, at = [], 0
        for piece in pieces if found else ():
            alone += [(at + start, at + end) for start, end in masker.spans(piece)]
            at += len(piece)
        covered = joined(alone) if is_stream(body.data) else alone
        starts = set() if is_stream(body.data) else {start for start, _ in alone}
        for start, end in found:
            whole = any(first <= start and end <= last for first, last in covered)
            if not whole and start not in starts:
                return True
    return False


def scan_again(body: Body, masker: Masker) -> bool:
    """Whether any view of a body still tells a secret."""
    return bool(masker.spans(body.data)) or _in_pieces(body, masker)


def _withheld(body: Body, why: str) -> ShownBody:
    told = f"the {body.kind.value} is withheld whole: {why}"
    return ShownBody(replace(body, data=orjson.dumps({"withheld": told})), told)


def _still_reads(before: bytes, after: bytes) -> bool:
    """Whether JSON is still JSON."""
    if before == after or is_stream(before):
        return True
    try:
        orjson.loads(before)
    except orjson.JSONDecodeError:
        return True
    try:
        orjson.loads(after)
    except orjson.JSONDecodeError:
        return False
    return True


def _lists_ids(body: Body) -> bool:
    """Whether any list of numbers, under whatever name, could be token ids."""
    return any(_ids_in(document) for document in _documents(body.data))


def _ids_in(document: Any) -> bool:
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            if _is_ids(value):
                return True
            waiting += value
    return False


def _is_ids(value: list[Any]) -> bool:
    return len(value) >= _FEWEST_IDS and all(type(item) is int for item in value)


def _without_tokens(data: bytes) -> bytes | None:
    """A document without the members that spell its text; None when it cannot be made."""
    if is_stream(data):
        return None
    try:
        return orjson.dumps(_cut(orjson.loads(data), 0))
    except (orjson.JSONDecodeError, TypeError, RecursionError):
        return None


def _cut(value: Any, depth: int) -> Any:
    if depth > _MOST_LEVELS:
        return None
    if isinstance(value, dict):
        return {
            name: None
            if name in _TOKEN_NAMES and isinstance(item, dict | list)
            else _cut(item, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return None if _is_ids(value) else [_cut(item, depth + 1) for item in value]
    return value

"""A label or a note as a person gives it, read with errors that say what to change.

Owns: the fields of an annotation and their limits. An annotation never changes a mask.
Must not know: routes, rows.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from explorer.errors import InvalidValue
from explorer.records import Call, RolloutRecord
from explorer.store.remarks import Annotation
from explorer.web.api_requests import only, read_object

FIELDS = frozenset({"label", "note", "who", "call_id", "start", "end"})
LABEL_LETTERS = 60
NOTE_LETTERS = 4000
_LABEL = re.compile(r"[\w][\w .:/+-]*")
_DIGITS = re.compile("[0-9]{1,9}")


def read_annotation(raw: bytes, record: RolloutRecord, time_us: int) -> Annotation:
    """`{label?, note?, who?, call_id?, start?, end?}`: a label, a note, or both.

    Raises:
        InvalidValue: names the field.
    """
    return annotation_of(read_object(raw), record, time_us)


def read_annotation_form(raw: bytes, record: RolloutRecord, time_us: int) -> Annotation:
    """The same from a page's form: empty fields are absent, positions are numbers.

    Raises:
        InvalidValue: names the field.
    """
    body: dict[str, Any] = read_form(raw)
    for name in ("start", "end"):
        if name in body:
            found = body[name]
            body[name] = int(found) if _DIGITS.fullmatch(found) else None
    return annotation_of(body, record, time_us)


def read_form(raw: bytes) -> dict[str, str]:
    """The fields of a form that have a value, the first of each name.

    Raises:
        InvalidValue: it is no form.
    """
    return {name: values[0] for name, values in read_fields(raw).items()}


def read_fields(raw: bytes, most: int = 20) -> dict[str, list[str]]:
    """The fields of a form that have a value, every one.

    Raises:
        InvalidValue: it is no form, or has more than `most` fields.
    """
    try:
        given = parse_qs(raw.decode("utf-8"), max_num_fields=most)
    except ValueError as error:
        raise InvalidValue(f"the form cannot be read: {error}") from error
    # A form sends the line ends of text areas as CR LF.
    found = {
        name: [value.replace("\r\n", "\n").strip() for value in values]
        for name, values in given.items()
    }
    return {name: kept for name, values in found.items() if (kept := [v for v in values if v])}


def annotation_of(body: Mapping[str, Any], record: RolloutRecord, time_us: int) -> Annotation:
    """The annotation that the fields of `body` describe.

    Raises:
        InvalidValue: names the field.
    """
    only(body, FIELDS)
    label = _words(body, "label", LABEL_LETTERS)
    note = _words(body, "note", NOTE_LETTERS)
    if label is None and note is None:
        raise InvalidValue("give a `label`, a `note`, or both", path="$.label")
    if label is not None and not _LABEL.fullmatch(label):
        raise InvalidValue(
            "a `label` has letters, digits, spaces and . : / + - _, and begins with a letter "
            "or digit; write more into `note`",
            path="$.label",
        )
    call = next((item for item in record.calls if item.call_id == body.get("call_id")), None)
    if call is None and body.get("call_id") is not None:
        raise InvalidValue("`call_id` must be a call of this rollout", path="$.call_id")
    start, end = _span(body, call)
    return Annotation(
        annotation_id=f"an_{secrets.token_hex(16)}",
        rollout_id=record.rollout.rollout_id,
        time_us=time_us,
        who=_words(body, "who", 200) or "operator",
        label=label,
        note=note,
        call_id=None if call is None else call.call_id,
        start=start,
        end=end,
    )


def withdrawal(annotation: Annotation, who: str, time_us: int) -> Annotation:
    """The row that takes an annotation back."""
    return Annotation(
        annotation_id=f"an_{secrets.token_hex(16)}",
        rollout_id=annotation.rollout_id,
        time_us=time_us,
        who=who,
        withdraws=annotation.annotation_id,
    )


def _words(body: Mapping[str, Any], name: str, letters: int) -> str | None:
    value = body.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidValue(f"`{name}` must be text", path=f"$.{name}")
    if len(value) > letters:
        raise InvalidValue(
            f"`{name}` has {len(value):,} letters; at most {letters:,} are kept",
            path=f"$.{name}",
        )
    return value.strip() or None


def _span(body: Mapping[str, Any], call: Call | None) -> tuple[int | None, int | None]:
    """Token positions in the call's prompt+completion, the end exclusive."""
    if "start" not in body and "end" not in body:
        return None, None
    if call is None:
        raise InvalidValue("`start` and `end` count tokens of a `call_id`", path="$.call_id")
    start, end = body.get("start"), body.get("end")
    length = (call.prompt_len or 0) + (call.completion_len or 0)
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= length:
        raise InvalidValue(
            f"`start` and `end` must be token positions with 0 <= start < end <= {length}",
            path="$.start",
        )
    return start, end

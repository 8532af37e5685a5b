"""A person's decision about a rollout, read with errors that say what to change.

Owns: the fields of an override and what each kind needs. It may remove tokens, change a role
or accept a logprob kind; nothing here could give an id or a logprob.
Must not know: routes, what an override does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from fastapi import Request

from explorer.access.audit import Event
from explorer.errors import InvalidValue
from explorer.records import Call, Override, Role, RolloutRecord
from explorer.web.access import note_down
from explorer.web.api_requests import only, read_object, text

_DIGITS = re.compile("[0-9]{1,9}")
KINDS = ("role", "exclude_call", "exclude_span", "accept_logprobs", "accept_versions")


def read_override(raw: bytes, record: RolloutRecord, time_us: int) -> Override:
    """`{kind, reason, who?, call_id?, role?, start?, end?}`.

    An override may remove tokens, change a role or accept a logprob kind; nothing here
    could give an id or a logprob.

    Raises:
        InvalidValue: names the field.
    """
    return override_of(read_object(raw), record, time_us)


def read_override_form(raw: bytes, record: RolloutRecord, time_us: int) -> Override:
    """The same from a page's form: empty fields are absent, positions are numbers.

    Raises:
        InvalidValue: names the field.
    """
    try:
        given = parse_qs(raw.decode("utf-8"), max_num_fields=20)
    except ValueError as error:
        raise InvalidValue(f"the form cannot be read: {error}") from error
    body: dict[str, Any] = {name: values[0].strip() for name, values in given.items()}
    body = {name: value for name, value in body.items() if value}
    if body.get("kind") != "role":
        body.pop("role", None)
    for name in ("start", "end"):
        text_of = str(body.pop(name, ""))
        if body.get("kind") == "exclude_span":
            body[name] = int(text_of) if _DIGITS.fullmatch(text_of) else None
    return override_of(body, record, time_us)


def override_of(body: Mapping[str, Any], record: RolloutRecord, time_us: int) -> Override:
    """The decision that the fields of `body` describe.

    Raises:
        InvalidValue: names the field.
    """
    only(body, {"kind", "reason", "who", "call_id", "role", "start", "end"})
    kind = body.get("kind")
    if kind not in KINDS:
        raise InvalidValue(f"`kind` must be one of {', '.join(KINDS)}", path="$.kind")
    reason = text(body, "reason")
    if reason is None:
        raise InvalidValue("give `reason`: it is kept and shown", path="$.reason")
    call = next((item for item in record.calls if item.call_id == body.get("call_id")), None)
    needed = kind in ("role", "exclude_call", "exclude_span")
    if call is None and (needed or body.get("call_id") is not None):
        raise InvalidValue("`call_id` must be a call of this rollout", path="$.call_id")
    role = None
    if kind == "role":
        try:
            role = Role(str(body.get("role")))
        except ValueError as error:
            known = ", ".join(Role)
            raise InvalidValue(f"`role` must be one of {known}", path="$.role") from error
    start, end = _span(body, call) if kind == "exclude_span" and call else (None, None)
    return Override(
        kind=str(kind),
        reason=reason,
        who=text(body, "who") or "operator",
        time_us=time_us,
        call_id=call.call_id if call else None,
        role=role,
        start=start,
        end=end,
    )


def _span(body: Mapping[str, Any], call: Call) -> tuple[int, int]:
    """Token positions in the call's prompt+completion, the end exclusive."""
    start, end = body.get("start"), body.get("end")
    length = (call.prompt_len or 0) + (call.completion_len or 0)
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= length:
        raise InvalidValue(
            f"`start` and `end` must be token positions with 0 <= start < end <= {length}",
            path="$.start",
        )
    first = call.prompt_len or 0
    if end <= first:
        # It could only be recorded, never taken back, and would change nothing.
        own = f"{first} up to, without, {length}" if first < length else "none"
        raise InvalidValue(
            f"no token there was sampled in this call; its sampled ones are {own}",
            path="$.end",
        )
    return start, end


async def note_override(request: Request, rollout_id: str, override: Override) -> None:
    """The audit log tells of a decision that changes what an export holds."""
    await note_down(
        request,
        Event.OVERRIDE,
        f"rollout {rollout_id}",
        override.reason,
        kind=override.kind,
        call=override.call_id,
    )

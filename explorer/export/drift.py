"""Whether a local rendering of each request equals the prompt that the engine reported.

Owns: the comparison, which calls it can be made for, and its results.
Must not know: HTTP, pages; whether the rollout trains, for nothing here changes that.

A result is `match`, `mismatch` or `not checkable` with a reason. It says whether data made by
rendering messages anew would be the data that was sampled; no id of it is ever exported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import orjson

from explorer.engine.rerender import Arguments, Renderer, find_renderer, forms
from explorer.errors import BadRequest, ConfigurationError
from explorer.export.judged import Judged
from explorer.records import Body, BodyKind, Call, CallId, IdArray, Rollout
from explorer.trace.prefix import shared_length

# Tokens that are decoded before and behind the first difference.
BEFORE, BEHIND = 40, 24
_LEARNED = "learned:"

ReadBodies = Callable[[CallId], Sequence[Body]]


class DriftResult(StrEnum):
    """What came of one call."""

    MATCH = "match"
    MISMATCH = "mismatch"
    NOT_CHECKABLE = "not checkable"


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the first difference: its token there (None: it ends) and what follows."""

    token_id: int | None
    token: str
    text: str


@dataclass(frozen=True, slots=True)
class Form:
    """The request with the arguments of its tool calls in one form.

    Attributes:
        position: the first token that differs, None when none does.
        before: the text before it, which both sides share.
    """

    arguments: Arguments
    result: DriftResult
    reason: str = ""
    rendered_tokens: int = 0
    position: int | None = None
    before: str = ""
    engine: Side | None = None
    rendered: Side | None = None


@dataclass(frozen=True, slots=True)
class CallDrift:
    """One call: a match if any form matches; else the form that agrees longest says why."""

    call_id: CallId
    sequence: int
    result: DriftResult
    reason: str
    prompt_tokens: int | None
    forms: tuple[Form, ...] = ()

    @property
    def nearest(self) -> Form | None:
        """The form that agrees with the engine's prompt, or does so for longest."""
        if not self.forms:
            return None
        rank = {DriftResult.MATCH: 2, DriftResult.MISMATCH: 1, DriftResult.NOT_CHECKABLE: 0}
        return max(self.forms, key=lambda form: (rank[form.result], form.position or 0))


@dataclass(frozen=True, slots=True)
class RolloutDrift:
    """Some calls of a rollout.

    Attributes:
        renderer: whose template was used, empty when there is none.
        template_sha256: of that template; served_template_sha256: of the engine's, as far as
            it was told. same_template: None where one of them is unknown.
        following: the number of the first call that was left for the next time, or None.
    """

    renderer: str
    template_sha256: str | None
    served_template_sha256: str | None
    same_template: bool | None
    calls: tuple[CallDrift, ...]
    total: int
    following: int | None


class DriftChecker:
    """Renders and compares; blocks, and is not for the event loop.

    Args:
        tokenizer, engine: the settings of these names.
        bodies: reads what is stored of a call.
    """

    def __init__(self, tokenizer: str | None, engine: str, bodies: ReadBodies) -> None:
        self._tokenizer = tokenizer
        self._engine = engine
        self._bodies = bodies
        self._kept: dict[str, Renderer] = {}
        # Loading takes long, and a tokenizer is used by one thread at a time.
        self._lock = threading.Lock()

    def check(self, judged: Judged, first: int, limit: int) -> RolloutDrift:
        """Up to `limit` calls in order of admission, from number `first` on."""
        rollout = judged.record.rollout
        calls = sorted(judged.record.calls, key=lambda call: (call.sequence, call.call_id))
        chosen = calls[first : first + limit]
        following = first + limit if first + limit < len(calls) else None
        with self._lock:
            renderer, problem = self._renderer(rollout)
            found = tuple(self._call(judged, call, renderer, problem) for call in chosen)
        used = None if renderer is None else renderer.template_sha256
        served = rollout.chat_template_sha256
        return RolloutDrift(
            renderer="" if renderer is None else renderer.name,
            template_sha256=used,
            served_template_sha256=served,
            same_template=None if used is None or served is None else used == served,
            calls=found,
            total=len(calls),
            following=following,
        )

    def _renderer(self, rollout: Rollout) -> tuple[Renderer | None, str]:
        kind = rollout.engine_kind
        renderer = self._kept.get(kind)
        if renderer is None:
            try:
                renderer = find_renderer(kind, self._tokenizer, self._engine)
            except ConfigurationError as error:
                return None, error.message
            self._kept[kind] = renderer
        known = rollout.tokenizer_id
        told = known is not None and not known.startswith(_LEARNED)
        if told and known != renderer.tokenizer_sha256:
            return renderer, f"its ids are of another tokenizer than that of {renderer.name}"
        return renderer, ""

    def _call(
        self, judged: Judged, call: Call, renderer: Renderer | None, problem: str
    ) -> CallDrift:
        ids = None
        if call.prompt_delta is not None and judged.sequences.problem(call.call_id) is None:
            ids = judged.sequences.prompt(call.call_id)
        why = problem or ("" if ids is not None else "the ids of its prompt are not on record")
        body = None if why else self._submitted(call.call_id)
        if isinstance(body, str):
            why, body = body, None
        length = None if ids is None else int(ids.size)
        if renderer is None or ids is None or body is None:
            result = DriftResult.NOT_CHECKABLE
            return CallDrift(call.call_id, call.sequence, result, why, length)
        found = tuple(
            compare(renderer, form, changed, ids) for form, changed in forms(body).items()
        )
        made = CallDrift(call.call_id, call.sequence, found[0].result, "", length, found)
        nearest = made.nearest
        assert nearest is not None  # there is at least one form
        result, why = nearest.result, nearest.reason
        return CallDrift(call.call_id, call.sequence, result, why, length, found)

    def _submitted(self, call_id: CallId) -> Mapping[str, Any] | str:
        """What the engine was sent, or why it cannot be rendered."""
        data = next(
            (body.data for body in self._bodies(call_id) if body.kind is BodyKind.SUBMITTED),
            None,
        )
        if data is None:
            return "what the engine was sent is not on record"
        try:
            body = orjson.loads(data)
        except orjson.JSONDecodeError:
            return "what the engine was sent is no JSON"
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            return "it has no messages, so no template made its prompt"
        sent = body.get("kv_transfer_params")
        if isinstance(sent, Mapping) and sent.get("prompt_token_ids") is not None:
            return "its prompt was sent as ids, so no template made it"
        if body.get("chat_template") is not None:
            return "it brought a template of its own"
        return body


def compare(
    renderer: Renderer, arguments: Arguments, body: Mapping[str, Any], ids: IdArray
) -> Form:
    """One rendering beside the engine's prompt."""
    try:
        rendered = np.array(renderer.ids(body), np.int32)
    except (BadRequest, RecursionError) as error:
        why = error.message if isinstance(error, BadRequest) else "it is nested too deeply"
        return Form(arguments, DriftResult.NOT_CHECKABLE, why)
    size = int(rendered.size)
    if np.array_equal(rendered, ids):
        return Form(arguments, DriftResult.MATCH, rendered_tokens=size)
    at = shared_length(ids, rendered)
    return Form(
        arguments,
        DriftResult.MISMATCH,
        rendered_tokens=size,
        position=at,
        before=_decoded(renderer, ids[max(0, at - BEFORE) : at]),
        engine=_side(renderer, ids, at),
        rendered=_side(renderer, rendered, at),
    )


def _side(renderer: Renderer, ids: np.ndarray[Any, np.dtype[Any]], at: int) -> Side:
    if at >= ids.size:
        return Side(None, "", "")
    return Side(
        token_id=int(ids[at]),
        token=_decoded(renderer, ids[at : at + 1]),
        text=_decoded(renderer, ids[at : at + BEHIND]),
    )


def _decoded(renderer: Renderer, ids: np.ndarray[Any, np.dtype[Any]]) -> str:
    return b"".join(renderer.raw(int(item)) for item in ids).decode("utf-8", "replace")

"""A call whose tokens an inference worker keeps: what is asked, what is taken out, what is
acknowledged.

Owns: the fields between us and the worker, the stripping of tokens, what external custody
refuses, the ledger's part of a call's end.
Must not know: sockets, the order of a call's life, where the ledger is.

The worker gets `ng_capture` with the request and answers with `ng_commit_coords`. Tokens,
logprobs and routes leave a reply before anything else reads it, whatever happens to the call,
so none is stored or served.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from explorer.capture import events as ev
from explorer.custody import admission as gate
from explorer.custody.errors import FingerprintError, LedgerError
from explorer.custody.fingerprint import request_items, response_items
from explorer.custody.ledger import CaptureLedger
from explorer.custody.records import UNRESOLVED_PARENT, CaptureAdmission
from explorer.engine.reply import ParsedReply
from explorer.errors import ExternalCustodyUnsupported, StoreFailed
from explorer.records import CaptureLevel, Note, Streaming

ADMISSION, COORDINATES, PREFIX = (
    "ng_capture",
    "ng_commit_coords",
    "required_prefix_token_ids",
)
_CAPTURE = ("logprobs", "top_logprobs", "return_token_ids", "return_tokens_as_token_ids")
# Wherever in a reply they stand: what a worker acknowledges, and everything that holds tokens,
# how likely they were, or which way they went.
_HIDDEN = frozenset(
    {
        *(COORDINATES, "prompt_token_ids", "prompt_logprobs", "kv_transfer_params"),
        *("logprobs", "token_ids", "generation_token_ids", "generation_log_probs"),
        *("routed_experts", "compact_prompt_token_ids"),
    }
)


def check(body: Mapping[str, Any], streaming: Streaming, *, stream: bool) -> None:
    """Raises `ExternalCustodyUnsupported` for a call that no worker could acknowledge."""
    if "messages" not in body:
        raise ExternalCustodyUnsupported(
            "external custody captures chat only: plain completions and prompts of ids are not "
            "served; send messages, or set ROLLOUT_EXPLORER_CUSTODY=embedded"
        )
    if stream and streaming is Streaming.PASSTHROUGH:
        raise ExternalCustodyUnsupported(
            "external custody asks the engine for whole replies: create the rollout with "
            "streaming buffered"
        )


class ExternalCall:
    """What external custody keeps of one call on its way."""

    def __init__(self) -> None:
        self._items: list[dict[str, Any]] | None = None
        self._admission: CaptureAdmission | None = None
        self._admitted_at = 0.0
        self._coordinates: Any = None

    def authorise(self, messages: Sequence[Any], tools: Sequence[Any]) -> ev.Authorise:
        """Asks whether the call may be captured."""
        try:
            self._items = request_items({"messages": list(messages), "tools": list(tools)})
        except FingerprintError:
            self._items = None
        return ev.Authorise(self._items)

    def asked(self, body: Mapping[str, Any], event: ev.Authorised) -> dict[str, Any]:
        """The body for the worker; without an admission one that captures nothing."""
        dropped = (ADMISSION, COORDINATES, PREFIX, "stream_options", *_CAPTURE)
        asked = {key: value for key, value in body.items() if key not in dropped}
        asked["stream"] = False
        self._admission, self._admitted_at = event.admission, event.time_us / 1e6
        if self._admission is None:
            return asked
        asked |= {
            ADMISSION: self._admission.to_json(),
            "logprobs": True,
            "top_logprobs": 0,
            "return_tokens_as_token_ids": True,
        }
        if self._admission.parent_call_id is not None:
            asked[PREFIX] = list(self._admission.required_prefix_token_ids)
        return asked

    def cleaned(self, event: ev.Event) -> ev.Event:
        """The event without a token; what a worker acknowledged is kept here."""
        if not isinstance(event, ev.EngineAnswered):
            return event
        coordinates, body = stripped(event.reply.body)
        if coordinates is not None:
            self._coordinates = coordinates
        return replace(event, reply=replace(event.reply, body=body))

    def as_text(self, parsed: ParsedReply) -> ParsedReply:
        """A reply as it goes on record: text, whatever it holds; people are told why."""
        note = Note(
            "external_custody",
            "the tokens are kept by the inference worker, not here: the rollout's custody "
            "manifest says whether they were captured",
        )
        return replace(parsed, level=CaptureLevel.TEXT, notes=(*parsed.notes, note))

    def settle(
        self, reply: Mapping[str, Any] | None, served_id: str | None
    ) -> ev.Settle | None:
        """What the ledger is told at the call's end; nothing where it was not admitted.

        Args:
            reply: the reply as the harness will echo it; None where there is none.
        """
        if self._admission is None:
            return None
        if reply is None or self._items is None:
            return ev.Settle(self._admission, None, None)
        try:
            said = response_items(reply)
        except FingerprintError:
            # Without a form it can be found by nobody, and its commit is refused.
            said = [{"role": "assistant", "content": 0}]
        served = gate.Served(served_id, self._admitted_at, self._items, said)
        return ev.Settle(self._admission, self._coordinates, served)


def stripped(raw: bytes) -> tuple[Any, bytes]:
    """(coordinates, the reply without them and without tokens); never raises.

    A body that is no JSON is kept only where it does not even begin as such, and names none of
    these fields: an error page helps people, half a completion could hold tokens.
    """
    body: Any = None
    safe = b""
    try:
        body = _loads(raw)
        if isinstance(body, dict):
            coordinates = body.get(COORDINATES)
            safe = _dumps(_without(body))
            return coordinates, safe
    except (ValueError, RecursionError, TypeError):
        body = None
    begins = raw.lstrip()[:1] in (b"{", b"[")
    if body is None and not begins and not any(name.encode() in raw for name in _HIDDEN):
        return None, raw
    return None, safe


def _without(value: Any) -> Any:
    """A value of a reply without the hidden fields."""
    if isinstance(value, dict):
        return {key: _without(each) for key, each in value.items() if key not in _HIDDEN}
    if isinstance(value, list):
        return [_without(each) for each in value]
    return value


def _loads(raw: bytes) -> Any:
    """JSON as engines write it, with NaN."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(raw)


def _dumps(body: Any) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(body).encode()


@dataclass(frozen=True, slots=True)
class Gatekeeper:
    """The ledger's part in every call; blocks, call it in a thread."""

    ledger: CaptureLedger

    def authorise(
        self, rollout_id: str, call_id: str, items: Sequence[dict[str, Any]] | None
    ) -> CaptureAdmission | None:
        """The admission of a call; None where it was poisoned instead.

        Raises:
            LedgerError: the ledger cannot be used.
        """
        if items is None:
            self.ledger.record_failure(rollout_id, call_id, UNRESOLVED_PARENT)
            return None
        return gate.admit(self.ledger, rollout_id, call_id, items).admission

    def settle(self, command: ev.Settle) -> bool:
        """Commits or poisons an admitted call; whether it is committed.

        Raises:
            LedgerError: the ledger cannot be used.
        """
        committed = False
        if command.served is not None:
            found = gate.settle(command.admission, command.coordinates, command.served)
            committed = gate.commit(self.ledger, command.admission, found)
        gate.finish(self.ledger, command.admission, committed)
        return committed

    def stray(self, rollout_id: str, call_id: str) -> None:
        """A request at an address that is no route: whether it would have generated, nobody
        can say, so the rollout does not train.

        Raises:
            StoreFailed: the ledger cannot be used.
        """
        try:
            self.ledger.record_failure(rollout_id, call_id, UNRESOLVED_PARENT)
        except LedgerError as error:
            raise StoreFailed(f"the custody ledger cannot be used: {error.code}") from error

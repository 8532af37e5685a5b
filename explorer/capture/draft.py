"""The call record as it grows: what is known so far, turned into a `Call` when it ends.

Owns: which facts of request and reply go into which field of the record.
Must not know: the order of a call's life (`exchange` does), IO.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from explorer.capture.experts import committed_experts
from explorer.capture.fence import Ended
from explorer.capture.fingerprint import (
    message_digest,
    message_digests,
    system_digest,
    tools_digest,
)
from explorer.capture.sampling import Shaped
from explorer.engine.protocol import EngineReply
from explorer.engine.reply import ParsedReply
from explorer.errors import BadRequest, ExplorerError
from explorer.records import (
    Body,
    BodyKind,
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Dialect,
    FailureKind,
    IdArray,
    Note,
    RolloutId,
)
from explorer.wire.claims import LONGEST, json_claims
from explorer.wire.neutral import NeutralRequest

PREVIEW_CHARS = 200
# Levels of a sampling field that every reader of an exported record can read.
_DEEPEST = 100
_RETRIES = re.compile("[0-9]{1,6}")

# Header names that a harness uses to say who it is; claims, never authority.
CLAIM_HEADERS = frozenset(
    [
        "user-agent",
        "x-session-id",
        "x-parent-session-id",
        "session_id",
        "conversation_id",
        "x-conversation-id",
        "x-openai-subagent",
        "x-session-affinity",
        "x-parent-session-affinity",
        "x-stainless-retry-count",
        "x-request-kind",
        "x-agent-id",
        "x-thread-id",
        "x-app",
        "originator",
        "idempotency-key",
        "session-id",
        "thread-id",
        "parent-thread-id",
        "x-codex-parent-thread-id",
        "x-claude-code-session-id",
        "x-claude-code-agent-id",
        "x-client-request-id",
        "x-codex-window-id",
        "x-affinity",
    ]
)
# Headers whose value is a JSON object of further claims.
_JSON_HEADERS = frozenset(["x-codex-turn-metadata"])


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a call hangs: its stored parent and how many tokens it shares with it."""

    parent_id: CallId | None
    prefix_len: int
    chain_hash: bytes


class Draft:
    """Collects one call's facts; each `…ed` method is called at most once."""

    def __init__(
        self, call_id: CallId, rollout_id: RolloutId, sequence: int, dialect: Dialect
    ) -> None:
        self._facts: dict[str, Any] = {
            "call_id": call_id,
            "rollout_id": rollout_id,
            "sequence": sequence,
            "dialect": dialect,
        }
        self._ids = (call_id, rollout_id)
        self.raw = b""
        self._notes: tuple[Note, ...] = ()
        self._message: dict[str, Any] | None = None
        self._headers: tuple[tuple[str, str], ...] = ()
        self._reply: EngineReply | None = None
        self.submitted: bytes | None = None
        self.request_sha256 = ""

    def started(self, time_us: int, raw: bytes, headers: tuple[tuple[str, str], ...]) -> None:
        """The request arrived; `headers` are without credentials already."""
        self.raw, self._headers = raw, headers
        self.request_sha256 = hashlib.sha256(raw).hexdigest()
        claims = {name: value[:LONGEST] for name, value in headers if name in CLAIM_HEADERS}
        for name, value in headers:
            if name in _JSON_HEADERS:
                claims = json_claims(value) | claims
        self._facts |= {"started_us": time_us, "claims": claims}
        retries = claims.get("x-stainless-retry-count", "0")
        self._facts["retry_count"] = int(retries) if _RETRIES.fullmatch(retries) else 0

    def asked(
        self, request: NeutralRequest, shaped: Shaped, weight_version: int | None
    ) -> None:
        """The request was understood and shaped for the engine.

        Raises:
            BadRequest: it cannot be written as JSON again.
        """
        try:
            self.submitted = orjson.dumps(shaped.body)
        except TypeError as error:
            raise BadRequest(f"the request cannot be sent to the engine: {error}") from error
        if _deeper_than(_DEEPEST, shaped.requested, shaped.submitted):
            raise BadRequest(
                f"a sampling field of the request is nested more than {_DEEPEST} levels deep"
            )
        self._notes = (*request.notes, *shaped.notes)
        messages, tools = request.messages, request.tools
        self._facts["claims"] = {**request.claims, **self._facts["claims"]}
        self._facts |= {
            "stream": request.stream,
            "model_requested": request.model,
            "requested_sampling": shaped.requested,
            "submitted_sampling": shaped.submitted,
            "constraints": shaped.constraints,
            "greedy": shaped.greedy,
            "n_tools": len(tools),
            "n_messages": len(messages),
            "system_digest": system_digest(messages),
            "tools_digest": tools_digest(tools),
            "message_digests": message_digests(messages),
            "weight_version_start": weight_version,
        }

    def said(self, reply: Mapping[str, Any]) -> None:
        """The reply with the ids that the harness gets, by which an echo is known."""
        self._message = reply["choices"][0]["message"]

    def wrote(self, request: NeutralRequest, reply: EngineReply) -> None:
        """The proxy answered in the engine's place."""
        self._reply = reply
        self._facts |= {
            "stream": request.stream,
            "model_requested": request.model,
        }

    def keep(self, reply: EngineReply) -> None:
        """The engine's bytes as they came, also where they cannot be understood."""
        self._reply = reply

    def answered(
        self,
        time_us: int,
        reply: EngineReply,
        parsed: ParsedReply,
        ended: Ended,
        certificate_id: str,
    ) -> None:
        """The engine replied, well or not; `ended` says what is known of its weights,
        `certificate_id` what is proved of it."""
        self.keep(reply)
        text = parsed.message.get("content") or parsed.message.get("reasoning") or ""
        experts, unread = committed_experts(parsed)
        self._facts |= {
            "ended_us": time_us,
            "engine_ms": (time_us - self._facts["started_us"]) / 1000,
            "upstream_status": reply.status,
            "finish_reason": parsed.finish_reason,
            "stop_reason": parsed.stop_reason,
            "capture_level": parsed.level,
            "upstream_id": parsed.upstream_id,
            "model_served": parsed.model,
            "engine_weight_label": parsed.weight_label,
            "routed_experts": experts,
            "weight_version_end": ended.version,
            "weight_spans": ended.spans,
            "certificate_id": certificate_id,
            "logprobs": parsed.logprobs,
            "top_logprobs": parsed.top_logprobs,
            "usage_prompt": parsed.usage.get("prompt"),
            "usage_completion": parsed.usage.get("completion"),
            "usage_cached": parsed.usage.get("cached"),
            "usage_reasoning": parsed.usage.get("reasoning"),
            "notes": (*self._notes, *reply.notes, *parsed.notes, *ended.notes, *unread),
            "preview": _preview(text, parsed.message),
            "failure_kind": parsed.failure,
            "failure_detail": parsed.failure_detail,
            "reply_digest": message_digest(self._message or parsed.message)
            if parsed.message
            else None,
        }

    def placed(self, placement: Placement, prompt: IdArray, completion: IdArray) -> None:
        """The call's parent is known: its tokens become a delta."""
        self._facts |= {
            "stored_parent_id": placement.parent_id,
            "prefix_len": placement.prefix_len,
            "prompt_len": int(prompt.size),
            "completion_len": int(completion.size),
            "prompt_delta": prompt[placement.prefix_len :],
            "completion": completion,
            "chain_hash": placement.chain_hash,
        }

    def finished(
        self, status: CallStatus, http_status: int, served_id: str, served_sha256: str
    ) -> Call:
        """The record of a call whose reply the harness will get."""
        return Call(
            **self._facts
            | {
                "status": status,
                "http_status": http_status,
                "response_id": served_id,
                "served_sha256": served_sha256,
            }
        )

    def failed(self, time_us: int, kind: FailureKind, detail: str, http_status: int) -> Call:
        """The record of a call that the engine did not answer as it must."""
        return Call(
            **self._facts
            | {
                "status": CallStatus.FAILED,
                "failure_kind": kind,
                "failure_detail": detail[:2000],
                "http_status": http_status,
                "ended_us": time_us,
                "engine_ms": (time_us - self._facts["started_us"]) / 1000,
            }
        )

    def aborted(self, time_us: int, kind: FailureKind, detail: str) -> Call:
        """The record of a call that nobody waits for any more."""
        return Call(
            **self._facts
            | {
                "status": CallStatus.ABORTED,
                "failure_kind": kind,
                "failure_detail": detail,
                "ended_us": time_us,
                "engine_ms": (time_us - self._facts["started_us"]) / 1000,
            }
        )

    def refused(
        self,
        time_us: int,
        error: ExplorerError,
        kind: FailureKind,
        answered: int | None = None,
    ) -> Call:
        """The record of a request that never reached the engine; `answered` is the status
        of a closing turn that we wrote instead of an error."""
        return Call(
            **self._facts
            | {
                "status": CallStatus.REFUSED,
                "failure_kind": kind,
                "failure_detail": error.message[:2000],
                "http_status": answered or error.status,
                "ended_us": time_us,
                "capture_level": CaptureLevel.TEXT,
                "injected": answered is not None,
            }
        )

    def bodies(self) -> tuple[Body, ...]:
        """Raw bytes seen so far: as asked, as sent, as answered."""
        call_id, rollout_id = self._ids
        bodies = [Body(call_id, rollout_id, BodyKind.REQUEST, self.raw, self._headers)]
        if self.submitted is not None:
            bodies.append(Body(call_id, rollout_id, BodyKind.SUBMITTED, self.submitted))
        if self._reply is not None:
            bodies.append(
                Body(
                    call_id,
                    rollout_id,
                    BodyKind.REPLY,
                    self._reply.body,
                    self._reply.headers,
                )
            )
        return tuple(bodies)


def _deeper_than(levels: int, *values: Any) -> bool:
    """Whether some value is nested more deeply."""
    found: list[Any] = list(values)
    for _ in range(levels + 1):
        found = [
            item
            for value in found
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not found:
            return False
    return True


def _preview(text: Any, message: dict[str, Any]) -> str:
    """The first words of a reply, or the names of the tools it calls."""
    if isinstance(text, str) and text.strip():
        return _clean(text.strip()[:PREVIEW_CHARS])
    calls = message.get("tool_calls")
    names = [
        str(function.get("name"))
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict)
    ]
    return _clean(", ".join(names)[:PREVIEW_CHARS])


def _clean(text: str) -> str:
    # A lone surrogate cannot be written as UTF-8; the raw body keeps it.
    return text.encode("utf-8", "replace").decode("utf-8")

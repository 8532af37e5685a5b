"""The nouns of the project as frozen records, and the closed vocabularies.

Owns: id types, enumerations and the records that travel between rooms.
Must not know: HTTP, the database, the clock, any dialect or engine.

Units: every ``*_us`` field is microseconds since the Unix epoch (UTC); every
``*_ms`` field is a duration in milliseconds. Token ids are ``int32`` arrays and
logprobs ``float32`` arrays, one-dimensional, little-endian when written out.

Size: the records name each other; in two modules every reader would need both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

RolloutId = NewType("RolloutId", str)
CallId = NewType("CallId", str)
KeyHash = NewType("KeyHash", str)
TokenizerId = NewType("TokenizerId", str)

IdArray = NDArray[np.int32]
LogprobArray = NDArray[np.float32]

# A logprob that the engine sent as null (or did not send) is this one NaN, so
# that "missing" can never be read as a number and survives a round trip as bytes.
NULL_LOGPROB_BITS = 0x7FC00001
# The certificate id of a call made while nothing was proved about the engine: it had
# just failed or changed, and had not been probed again.
NOT_CERTIFIED = "none"
# vLLM clamps -inf to this value and uses it for missing entries: no number at all.
SENTINEL_LOGPROB = -9999.0
# Finish reasons of a generation that something other than the model or its limit ended.
ABORTS = frozenset(("abort", "aborted", "error", "cancelled", "canceled", "timeout"))


class Dialect(StrEnum):
    """The wire a harness speaks, with the names used on every surface."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GOOGLE = "google"


class CallStatus(StrEnum):
    """Where a call's life ended (``OPEN``: it has not ended yet)."""

    OPEN = "open"
    COMMITTED = "committed"
    FAILED = "failed"
    ABORTED = "aborted"
    REFUSED = "refused"


class FailureKind(StrEnum):
    """What exactly went wrong with a failed, aborted or refused call."""

    UPSTREAM_STATUS = "upstream_status"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_MALFORMED = "upstream_malformed"
    FAILED_MIDSTREAM = "failed_midstream"
    INCOMPLETE = "incomplete"
    ENGINE_ABORTED = "engine_aborted"
    CLIENT_GONE = "client_gone"
    LOST_ON_RESTART = "lost_on_restart"
    SHUTDOWN = "shutdown"
    BAD_REQUEST = "bad_request"
    SEALED = "sealed"
    BUDGET = "budget"
    CONTEXT = "context"
    UNSUPPORTED = "unsupported"
    STORE_FAILED = "store_failed"
    FENCED = "fenced"


class CaptureLevel(StrEnum):
    """What the record of a call can support; only ``TOKENS`` can train."""

    TOKENS = "tokens"
    LOGPROBS = "logprobs"
    TEXT = "text"


class Role(StrEnum):
    """What a call was for."""

    AGENT = "agent"
    SUBAGENT = "subagent"
    AUXILIARY = "auxiliary"
    DISCARDED = "discarded"
    FAILED = "failed"


class Grade(StrEnum):
    """How much a finding weighs; ``FATAL`` on an agent call forbids training."""

    FATAL = "FATAL"
    WARN = "WARN"
    INFO = "INFO"


class Purpose(StrEnum):
    """What the rollout was made for; an ``EVAL`` rollout never trains."""

    TRAIN = "train"
    EVAL = "eval"


class Streaming(StrEnum):
    """How a rollout's streamed replies reach the harness."""

    SYNTHESISED = "synthesised"
    PASSTHROUGH = "passthrough"


class LogprobKind(StrEnum):
    """What the engine's logprobs were proved to be."""

    PROCESSED = "processed"
    RAW = "raw"
    LOGITS = "logits"
    UNKNOWN = "unknown"


class MaskReason(StrEnum):
    """Why a token trains (``SAMPLED``) or does not (all others). Closed."""

    SAMPLED = "sampled"
    PROMPT = "prompt"
    ENVIRONMENT = "environment"
    AUXILIARY = "auxiliary"
    SUBAGENT = "subagent"
    DISCARDED = "discarded"
    AMBIGUOUS_SIBLING = "ambiguous_sibling"
    FAILED_CALL = "failed_call"
    ABORTED = "aborted"
    LOGPROB_MISSING = "logprob_missing"
    LOGPROB_NOT_FINITE = "logprob_not_finite"
    COUNT_MISMATCH = "count_mismatch"
    PROMPT_IDS_MISSING = "prompt_ids_missing"
    CAPTURE_LEVEL = "capture_level"
    UNCERTIFIED = "uncertified"
    CONSTRAINED = "constrained"
    GREEDY = "greedy"
    TRUNCATED_POLICY = "truncated_policy"
    STOP_POLICY = "stop_policy"
    UNPARSED_POLICY = "unparsed_policy"
    VERSION_CROSSED = "version_crossed"
    INJECTED_BY_PROXY = "injected_by_proxy"
    OWNED_BY_OTHER_ROW = "owned_by_other_row"
    EXCLUDED_BY_USER = "excluded_by_user"


class EventKind(StrEnum):
    """Events from which a rollout's state is read; rows are only ever added."""

    STARTED = "started"
    REWARD = "reward"
    CLOSED = "closed"
    OVERRIDE = "override"
    JOINED = "joined"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Where:
    """What a finding points at; ``start``/``end`` are token positions in the call's
    prompt+completion sequence, end exclusive."""

    rollout_id: RolloutId
    call_id: CallId | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A graded fact about a rollout, with the id it concerns."""

    code: str
    grade: Grade
    where: Where
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A fact seen while a reply was parsed, kept with the call; ``trace`` grades it."""

    code: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """Which weights sampled a part of a completion, as the engine itself says.

    ``start``/``end`` are places in the completion, end exclusive. ``version_label`` is the
    engine's own text; ``weight_version`` is the announced version that has this label,
    None where none has.
    """

    version_label: str
    weight_version: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """What a trainer told about the engine's weights, or what became of it.

    ``state``: ``syncing`` (``weight_version`` is the coming one), ``ready`` (it is the one
    that samples now), or ``unknown`` (nobody knows which weights the engine has: a lease ran
    out, an engine went away; ``weight_version`` is then the last one that was known).
    """

    number: int
    time_us: int
    state: str
    weight_version: int | None
    engine_weight_label: str | None = None
    detail: dict[str, Any] = field(default_factory=dict)


class Fallback(StrEnum):
    """Why token-in sent messages although ids might have been sent. Closed."""

    HISTORY_EDITED = "history_edited"
    AMBIGUOUS_PARENT = "ambiguous_parent"
    SYSTEM_CHANGED = "system_changed"
    TOOLS_CHANGED = "tools_changed"
    RENDERING_CHANGED = "rendering_changed"
    PARENT_NOT_CAPTURED = "parent_not_captured"
    PARENT_CUT = "parent_cut"
    NOT_TEXT = "not_text"
    PREFILL = "prefill"
    OWN_IDS = "own_ids"
    TEMPLATE_NOT_EXTENDABLE = "template_not_extendable"
    TEMPLATE_DIFFERS = "template_differs"
    NO_TOKENIZER = "no_tokenizer"
    ENGINE_TAKES_NO_IDS = "engine_takes_no_ids"
    REPLY_PARSER_UNKNOWN = "reply_parser_unknown"
    CHAT_ONLY = "chat_only"
    TOO_LONG = "too_long"


@dataclass(frozen=True, slots=True)
class TokenIn:
    """What token-in did for one call.

    Attributes:
        sent: the prompt was sent as ids: the parent's own, then those of what is new.
        how: by which field or route they were sent: ``kv_transfer_params``, ``completions``.
        parent_id: the call whose prompt and completion the ids begin with.
        prefix_len: tokens of it; what follows was tokenised here.
        avoided_break: rendering the messages would have left the parent's tokens.
        differs_at: the first token at which it would; None where it would not, or where
            nobody could say.
        compared: whether the messages were rendered too, so that `avoided_break` is known.
        same: whether the engine says that it read the ids that were sent; None where they
            were not, or where it does not say.
        fallback: why messages were sent although an earlier call might have been continued.
    """

    sent: bool = False
    how: str | None = None
    parent_id: CallId | None = None
    prefix_len: int = 0
    avoided_break: bool = False
    differs_at: int | None = None
    compared: bool = False
    same: bool | None = None
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt of an agent at one task under one capture key (insert-only row)."""

    rollout_id: RolloutId
    created_us: int
    key_hash: KeyHash
    run: str
    task: str | None = None
    group: str | None = None
    attempt: int | None = None
    purpose: Purpose = Purpose.TRAIN
    harness: str | None = None
    harness_version: str | None = None
    harness_config_sha256: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    budgets: dict[str, Any] = field(default_factory=dict)
    streaming: Streaming = Streaming.SYNTHESISED
    token_in: bool = False
    engine_kind: str = ""
    engine_name: str = ""
    engine_version: str = ""
    model: str = ""
    tokenizer_id: TokenizerId | None = None
    chat_template_sha256: str | None = None
    certificate_id: str | None = None
    app_version: str = ""


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """One thing that happened to a rollout after it began."""

    rollout_id: RolloutId
    sequence: int
    time_us: int
    kind: EventKind
    reward: float | None = None
    ok: bool | None = None
    reason: str | None = None
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Admission:
    """The row written when a call enters, before the engine is asked."""

    call_id: CallId
    rollout_id: RolloutId
    sequence: int
    started_us: int
    dialect: Dialect
    stream: bool
    n_tools: int
    request_sha256: str


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One model request and its reply, as stored: tokens as a delta.

    ``prompt_delta`` holds the prompt ids after the first ``prefix_len`` tokens of
    the stored parent's prompt+completion; a root has ``prefix_len`` 0.
    ``logprobs`` has one entry per completion id, or is None when not captured.
    ``certificate_id`` names what was proved about the engine when it answered; None
    leaves it to the rollout's own certificate, `NOT_CERTIFIED` says nothing was.
    ``routed_experts`` stands for the experts that the engine named, which are in its reply:
    their type, shape and digest (`custody.routes.commitment`).
    ``top_logprobs`` is None or the engine's alternatives as JSON bytes: a list,
    one entry per completion id, of ``[token_id | null, text, logprob]`` triples.
    """

    call_id: CallId
    rollout_id: RolloutId
    sequence: int
    dialect: Dialect
    status: CallStatus
    started_us: int
    ended_us: int
    failure_kind: FailureKind | None = None
    failure_detail: str | None = None
    stream: bool = False
    http_status: int | None = None
    upstream_status: int | None = None
    engine_ms: float | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None
    capture_level: CaptureLevel = CaptureLevel.TEXT
    response_id: str | None = None
    upstream_id: str | None = None
    model_requested: str | None = None
    model_served: str | None = None
    weight_version_start: int | None = None
    weight_version_end: int | None = None
    engine_weight_label: str | None = None
    weight_spans: tuple[WeightSpan, ...] = ()
    routed_experts: str | None = None
    certificate_id: str | None = None
    requested_sampling: dict[str, Any] = field(default_factory=dict)
    submitted_sampling: dict[str, Any] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()
    greedy: bool = False
    injected: bool = False
    n_tools: int = 0
    n_messages: int = 0
    system_digest: str | None = None
    tools_digest: str | None = None
    message_digests: tuple[str, ...] = ()
    reply_digest: str | None = None
    claims: dict[str, str] = field(default_factory=dict)
    retry_count: int = 0
    stored_parent_id: CallId | None = None
    prefix_len: int = 0
    prompt_len: int | None = None
    completion_len: int | None = None
    prompt_delta: IdArray | None = None
    completion: IdArray | None = None
    logprobs: LogprobArray | None = None
    top_logprobs: bytes | None = None
    chain_hash: bytes | None = None
    usage_prompt: int | None = None
    usage_completion: int | None = None
    usage_cached: int | None = None
    usage_reasoning: int | None = None
    notes: tuple[Note, ...] = ()
    preview: str = ""
    served_sha256: str | None = None
    token_in: TokenIn | None = None


class BodyKind(StrEnum):
    """Which bytes of a call a raw body holds."""

    REQUEST = "request"
    SUBMITTED = "submitted"
    REPLY = "reply"


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """Exact bytes of one direction of one call, without credentials in ``headers``."""

    call_id: CallId
    rollout_id: RolloutId
    kind: BodyKind
    data: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class VocabularyEntry:
    """One token of one tokenizer: its exact bytes and whether it is special."""

    tokenizer_id: TokenizerId
    token_id: int
    raw: bytes
    special: bool


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a probe measured about an engine, and what follows from it.

    ``numbers`` holds the raw measurements by test name; ``failures`` says in words
    why a capture level or the logprob kind is lower than it could be.
    """

    certificate_id: str
    time_us: int
    engine_kind: str
    engine_name: str
    engine_version: str
    model: str
    fingerprint: str | None
    capture_level: CaptureLevel
    logprob_kind: LogprobKind
    certifiable: bool
    numbers: dict[str, Any] = field(default_factory=dict)
    failures: tuple[str, ...] = ()

    @property
    def passing(self) -> bool:
        """Whether calls made under this certificate may count as trainable."""
        return (
            self.certifiable
            and self.capture_level is CaptureLevel.TOKENS
            and self.logprob_kind is LogprobKind.PROCESSED
        )


@dataclass(frozen=True, slots=True)
class Override:
    """A person's recorded decision; it may remove tokens, change a role or accept a
    logprob kind, and can never supply an id or a logprob."""

    kind: (
        str  # "role" | "exclude_span" | "exclude_call" | "accept_logprobs" | "accept_versions"
    )
    reason: str
    who: str
    time_us: int
    call_id: CallId | None = None
    role: Role | None = None
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RolloutRecord:
    """Everything the judge reads about one rollout; calls in admission order.

    ``certificate`` is the one in force when the rollout was made, ``certificates`` are
    those that its calls name. ``contradicted`` says in words where the engine's own bytes
    were read again and say something else than the row of a call.
    """

    rollout: Rollout
    events: tuple[RolloutEvent, ...]
    calls: tuple[Call, ...]
    certificate: Certificate | None = None
    overrides: tuple[Override, ...] = ()
    open_calls: tuple[Admission, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    contradicted: dict[CallId, str] = field(default_factory=dict)

    def certificate_of(self, call: Call) -> Certificate | None:
        """What was proved about the engine when it answered this call."""
        if call.certificate_id is None:
            return self.certificate
        known = (*self.certificates, *((self.certificate,) if self.certificate else ()))
        return next(
            (found for found in known if found.certificate_id == call.certificate_id), None
        )

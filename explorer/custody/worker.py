"""The worker's side of a captured call: begin, complete or fail, once.

Owns: the checks against the admission, the order stage then acknowledge, the single claim.
Must not know: HTTP, any storage, any engine.

What goes wrong with a capture never goes wrong with the reply: it becomes coordinates that say
`capture_failed`. Only a caller that breaks the contract itself gets an exception.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from explorer.custody.conformance import assert_golden_vectors
from explorer.custody.digest import chain_hash, cumulative_hash
from explorer.custody.protocols import (
    CaptureAdapter,
    Material,
    StagingSink,
    WeightVersionProvider,
)
from explorer.custody.records import (
    CaptureAdmission,
    CommitCoords,
    StagedCallRecord,
    StageResult,
)
from explorer.custody.staging import (
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    SCHEMA_VERSION,
    build_delta,
    encode_f32,
    extras_digest,
    staging_digest,
    token_array,
)

log = logging.getLogger(__name__)

_MOST_VERSION = 1 << 64
_VERSIONS = {
    "schema_version": SCHEMA_VERSION,
    "digest_version": DIGEST_VERSION,
    "extras_digest_version": EXTRAS_DIGEST_VERSION,
}


class CaptureError(Exception):
    """The caller broke the contract: an admission, a prefix or a second ending."""


class StreamingUnsupportedError(CaptureError):
    """A captured call cannot be streamed from the engine."""


@dataclass(eq=False, slots=True)
class ActiveCall:
    """A call between its beginning and its one ending.

    Attributes:
        prefix: the ids that its prompt must begin with.
        weight_version: as it was when it began.
    """

    admission: CaptureAdmission
    prefix: NDArray[np.uint64]
    weight_version: int
    _claim: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def claim(self) -> None:
        """Ends the call for everybody else.

        Raises:
            CaptureError: it was ended already.
        """
        if not self._claim.acquire(blocking=False):
            raise CaptureError(f"call {self.admission.model_call_id} was ended already")


class RolloutTokenCapture:
    """Captures calls into one sink; may be used from many threads.

    Args:
        weight_version: asked when a call begins without one.

    Raises:
        ConformanceError: the digests of this code are not the frozen ones.
    """

    def __init__(
        self,
        sink: StagingSink,
        weight_version: WeightVersionProvider,
        adapter: CaptureAdapter | None = None,
    ) -> None:
        assert_golden_vectors()
        self._sink = sink
        self._weight_version = weight_version
        self.adapter = adapter

    def begin(
        self,
        admission: CaptureAdmission,
        prefix: Sequence[int] | NDArray[Any] | None = None,
        *,
        weight_version: int | None = None,
        streaming: bool = False,
    ) -> ActiveCall:
        """Begins an admitted call.

        Args:
            prefix: the parent's whole sequence, where the admission names where it is stored.

        Raises:
            TypeError: not an admission.
            CaptureError: a prefix that is not the admitted one, a weight version that is none,
                or a stream.
        """
        if not isinstance(admission, CaptureAdmission):
            raise TypeError(f"an admission is wanted, not a {type(admission).__name__}")
        if streaming:
            raise StreamingUnsupportedError("a captured call is asked for whole")
        ids = _prefix(admission, prefix)
        version = self._weight_version() if weight_version is None else weight_version
        if type(version) is not int or not 0 <= version < _MOST_VERSION:
            raise CaptureError(f"a weight version is a number from 0 on, not {version!r}")
        return ActiveCall(admission, ids, version)

    def complete(self, call: ActiveCall, material: Material) -> CommitCoords:
        """Stages what the engine gave, and acknowledges it.

        Raises:
            CaptureError: the call was ended already.
        """
        return self._captured(call, lambda: material)

    def complete_from_reply(self, call: ActiveCall, reply: Any) -> CommitCoords:
        """The same from an engine's own reply, read by the adapter.

        Raises:
            CaptureError: there is no adapter, or the call was ended already.
        """
        if self.adapter is None:
            raise CaptureError("no adapter was installed that reads replies")
        adapter = self.adapter
        return self._captured(call, lambda: adapter.extract(reply))

    def _captured(self, call: ActiveCall, read: Callable[[], Material]) -> CommitCoords:
        call.claim()
        try:
            material = read()
            record = _record(call, material)
            staged = self._stage(record, material.attachments)
            return _coordinates(record, _accepted(staged))
        except Exception as error:  # noqa: BLE001
            # A sink may raise anything and an engine's reply may hold anything; the client
            # gets its reply all the same, and the call is poisoned.
            name = call.admission.model_call_id
            log.warning("call %s is not captured: %s: %s", name, type(error).__name__, error)
            return _failed(call)

    def fail(self, call: ActiveCall) -> CommitCoords:
        """Ends a call of which nothing is captured.

        Raises:
            CaptureError: it was ended already.
        """
        call.claim()
        return _failed(call)

    def _stage(
        self, record: StagedCallRecord, attachments: Mapping[str, Any] | None
    ) -> StageResult:
        if attachments:
            result = self._sink.stage(record, attachments=attachments)
        else:
            result = self._sink.stage(record)
        if not isinstance(result, StageResult):
            raise TypeError(f"a sink gave a {type(result).__name__}")
        return result


class CaptureHost(Protocol):
    """A serving layer that takes a capture."""

    def install_token_capture(self, capture: RolloutTokenCapture) -> None:
        """Uses it for every admitted call from here on."""


def install_capture(
    host: CaptureHost,
    *,
    sink: StagingSink,
    weight_version: WeightVersionProvider,
    adapter: CaptureAdapter | None = None,
) -> RolloutTokenCapture:
    """Installs a capture in a serving layer.

    Raises:
        TypeError: the layer takes none.
        ConformanceError: the digests of this code are not the frozen ones.
    """
    install = getattr(host, "install_token_capture", None)
    if not callable(install):
        raise TypeError(f"a {type(host).__name__} has no install_token_capture")
    capture = RolloutTokenCapture(sink, weight_version, adapter)
    install(capture)
    return capture


def _prefix(
    admission: CaptureAdmission, given: Sequence[int] | NDArray[Any] | None
) -> NDArray[np.uint64]:
    """The prefix that a call must begin with, from its admission or its storage."""
    inline = admission.required_prefix_token_ids
    if admission.mode == "text":
        if given is not None and len(given):
            raise CaptureError("a root has no prefix")
        return np.zeros(0, np.uint64)
    if given is None:
        if admission.staging_chain:
            raise CaptureError("the prefix is in storage; fetch it and give it")
        given = inline
    try:
        ids = token_array(given)
    except (TypeError, ValueError) as error:
        raise CaptureError(f"the prefix holds no token ids: {error}") from None
    if ids.size != admission.prev_len:
        raise CaptureError(f"the prefix has {ids.size} ids, admitted were {admission.prev_len}")
    if inline and not np.array_equal(ids, token_array(inline)):
        raise CaptureError("the prefix is not that of the admission")
    return ids


def _record(call: ActiveCall, material: Material) -> StagedCallRecord:
    """What is staged.

    Raises:
        TypeError, ValueError: the reply does not continue the prefix, or cannot be encoded.
    """
    admission = call.admission
    # A column of float32, as engines have, is taken as it is.
    encode_f32(material.logprobs)
    prompt = token_array(material.prompt)
    generated = token_array(material.generated)
    if not np.array_equal(prompt[: admission.prev_len], call.prefix):
        raise ValueError("the engine's prompt does not begin with the authorised prefix")
    delta = build_delta(prompt, generated, material.logprobs, admission.prev_len)
    extras = None if material.extras is None else dict(material.extras)
    parent = admission.parent_chain_hash
    chain = chain_hash(None if parent is None else bytes.fromhex(parent), delta.token_ids)
    values: dict[str, Any] = {
        "rollout_id": admission.rollout_id,
        "model_call_id": admission.model_call_id,
        "parent_call_id": admission.parent_call_id,
        "mode": admission.mode,
        "weight_version": call.weight_version,
        "prev_len": admission.prev_len,
        "delta_len": delta.token_ids.size,
        "cum_len": admission.prev_len + delta.token_ids.size,
        "token_ids_delta": delta.token_ids,
        "token_mask_delta": delta.mask,
        "generation_log_probs_delta": delta.logprobs,
        "extras_digest": extras_digest(extras),
        "chain_hash": chain.hex(),
        "cumulative_hash": cumulative_hash(prompt, generated).hex(),
    }
    digest = staging_digest(SimpleNamespace(**values, **_VERSIONS))
    return StagedCallRecord(**values, extras=extras, digest=digest)


def _accepted(staged: StageResult) -> StageResult:
    """Raises `ValueError` where a sink took nothing."""
    if not staged.ok:
        raise ValueError(f"the sink refused: {staged.error}")
    return staged


def _coordinates(record: StagedCallRecord, staged: StageResult) -> CommitCoords:
    """The acknowledgement of a call that is durable."""
    return CommitCoords(
        rollout_id=record.rollout_id,
        model_call_id=record.model_call_id,
        parent_call_id=record.parent_call_id,
        prev_len=record.prev_len,
        delta_len=record.delta_len,
        cum_len=record.cum_len,
        weight_version=record.weight_version,
        digest=record.digest,
        extras_digest=record.extras_digest,
        staging_key=staged.staging_key,
        chain_hash=record.chain_hash,
        cumulative_hash=record.cumulative_hash,
    )


def _failed(call: ActiveCall) -> CommitCoords:
    """The acknowledgement of a call of which nothing was captured."""
    admission = call.admission
    return CommitCoords(
        rollout_id=admission.rollout_id,
        model_call_id=admission.model_call_id,
        parent_call_id=admission.parent_call_id,
        prev_len=admission.prev_len,
        delta_len=0,
        cum_len=admission.prev_len,
        weight_version=call.weight_version,
        disposition="capture_failed",
    )

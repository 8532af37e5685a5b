"""Foreign captures become rollouts of this store, marked as what they are.

Owns: how a neutral rollout is written, its ids, and what is claimed about its engine.
Must not know: any format, HTTP.

Nobody measured the engine behind a file. Every imported rollout carries a certificate that
says so and that nobody can accept, so no token of it ever trains; the file's own mask is kept
as a claim.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from explorer.capture.fingerprint import (
    message_digest,
    message_digests,
    system_digest,
    tools_digest,
)
from explorer.capture.ids import hash_key, new_capture_key
from explorer.custody.digest import chain_hash
from explorer.errors import StoreFailed
from explorer.export.readers import read
from explorer.export.readers.neutral import ImportedCall, ImportedRollout
from explorer.records import (
    NULL_LOGPROB_BITS,
    Body,
    BodyKind,
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Certificate,
    Dialect,
    EventKind,
    IdArray,
    LogprobArray,
    LogprobKind,
    Rollout,
    RolloutEvent,
    RolloutId,
)
from explorer.store.interface import RolloutStatus, Store

ENGINE = "imported"
_PREVIEW = 200
_NAMES = {True: "imported-with-masks", False: "imported-without-masks"}


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did; `known` were imported from the same file before."""

    format: str
    sha256: str
    imported: tuple[RolloutId, ...]
    known: tuple[RolloutId, ...]


def certificate_for(*, masks: bool, now_us: int) -> Certificate:
    """What is known about the engine behind a file: nothing, whatever the file says."""
    failures = ["The numbers are the file's own, and no probe ever saw that engine"]
    if not masks:
        failures.append("It was imported without explicit loss masks, for reading only")
    return Certificate(
        certificate_id=_NAMES[masks],
        time_us=now_us,
        engine_kind=ENGINE,
        engine_name=ENGINE,
        engine_version="",
        model="",
        fingerprint=None,
        capture_level=CaptureLevel.TEXT,
        logprob_kind=LogprobKind.UNKNOWN,
        certifiable=False,
        failures=tuple(failures),
    )


async def import_bytes(
    store: Store, data: bytes, *, file: str, format_: str, run: str, now_us: int
) -> ImportReport:
    """Read everything, then write what is not here yet.

    Raises:
        InvalidValue: the file cannot be read; nothing was written.
        StoreFailed: the store refused; what was begun is marked as deleted.
    """
    # Reading and making take seconds for a large file; calls are recorded meanwhile.
    name, found = await asyncio.to_thread(read, data, format_)
    sha256 = hashlib.sha256(data).hexdigest()
    made, known = [], []
    for index, told in enumerate(found):
        if not told.calls:
            continue
        rollout_id, new = await _free_id(store, f"{sha256}/{index}", now_us)
        if not new:
            known.append(rollout_id)
            continue
        where = {"format": name, "file": file, "file_sha256": sha256, "part": told.source}
        await _write(store, rollout_id, told, where, (run, now_us + index))
        made.append(rollout_id)
    return ImportReport(name, sha256, tuple(made), tuple(known))


def _id_of(seed: str) -> str:
    text = hashlib.sha256(f"rollout-explorer import {seed}".encode()).hexdigest()
    # The form of our ids (UUID version 8: made of a hash).
    return f"{text[:8]}-{text[8:12]}-8{text[13:16]}-8{text[17:20]}-{text[20:32]}"


async def _free_id(store: Store, seed: str, now_us: int) -> tuple[RolloutId, bool]:
    """The id for a part of a file: that of the rollout it became, or a fresh one.

    What an interrupted import left behind is deleted; what a person deleted may come again.
    """
    attempt = 0
    while True:
        rollout_id = RolloutId(_id_of(f"{seed}/{attempt}"))
        state = store.rollout_state(rollout_id)
        if state is None:
            return rollout_id, True
        if state.status is RolloutStatus.CLOSED:
            return rollout_id, False
        if state.status is RolloutStatus.OPEN:
            await store.add_event(RolloutEvent(rollout_id, -1, now_us, EventKind.DELETED))
        attempt += 1


async def _write(
    store: Store,
    rollout_id: RolloutId,
    told: ImportedRollout,
    where: Mapping[str, str],
    run: tuple[str, int],
) -> None:
    masks = all(call.mask is not None for call in told.calls)
    name, now_us = run
    certificate = certificate_for(masks=masks, now_us=now_us)
    if store.certificate(certificate.certificate_id) is None:
        await store.add_certificate(certificate)
    rollout = Rollout(
        rollout_id=rollout_id,
        created_us=now_us,
        key_hash=hash_key(new_capture_key()),
        run=name,
        task=told.task,
        group=told.group,
        attempt=told.attempt,
        harness=told.harness,
        harness_version=told.harness_version,
        metadata={"imported": {**where, **told.notes}},
        engine_kind=ENGINE,
        engine_name=f"{ENGINE} from {where['format']}",
        model=told.model or "",
        certificate_id=certificate.certificate_id,
    )
    maker = Maker(rollout, certificate.certificate_id)
    calls = await asyncio.to_thread(maker.calls, told.calls)
    await store.add_rollout(rollout)
    try:
        for call, bodies in calls:
            await store.commit_call(call, bodies)
        if told.reward is not None or told.ok is not None or told.rewards:
            payload = {"rewards": dict(told.rewards)} if told.rewards else {}
            await store.add_event(
                RolloutEvent(
                    rollout_id,
                    -1,
                    now_us,
                    EventKind.REWARD,
                    reward=told.reward,
                    ok=told.ok,
                    payload=payload,
                )
            )
        await store.add_event(
            RolloutEvent(
                rollout_id, -1, now_us, EventKind.CLOSED, ok=told.ok, reason=told.reason
            )
        )
    except StoreFailed:
        await store.add_event(RolloutEvent(rollout_id, -1, now_us, EventKind.DELETED))
        raise


class Maker:
    """Makes the calls of one rollout: each a delta on the longest of the calls before it."""

    def __init__(self, rollout: Rollout, certificate_id: str) -> None:
        self._rollout = rollout
        self._certificate_id = certificate_id
        self._whole: list[tuple[CallId, IdArray, bytes]] = []

    def calls(self, told: tuple[ImportedCall, ...]) -> list[tuple[Call, list[Body]]]:
        """Every call with its bodies, in order."""
        return [self._call(index, call) for index, call in enumerate(told)]

    def _call(self, index: int, told: ImportedCall) -> tuple[Call, list[Body]]:
        started = told.time_us or self._rollout.created_us + index
        text = told.reply.get("content")
        call = Call(
            call_id=CallId(_id_of(f"{self._rollout.rollout_id}/call/{index}")),
            rollout_id=self._rollout.rollout_id,
            sequence=index,
            dialect=Dialect.CHAT,
            status=CallStatus.COMMITTED,
            started_us=started,
            ended_us=started,
            finish_reason=told.finish_reason,
            capture_level=_level(told),
            model_requested=told.model,
            model_served=told.model,
            certificate_id=self._certificate_id,
            requested_sampling=dict(told.sampling),
            n_tools=len(told.tools),
            n_messages=len(told.messages),
            system_digest=system_digest(told.messages),
            tools_digest=tools_digest(told.tools),
            message_digests=message_digests(told.messages),
            reply_digest=message_digest(told.reply),
            claims=_claims(told),
            preview=text[:_PREVIEW].encode("utf-8", "replace").decode()
            if isinstance(text, str)
            else "",
        )
        call = self._with_tokens(call, told)
        return call, _bodies(call, told)

    def _with_tokens(self, call: Call, told: ImportedCall) -> Call:
        if told.completion_ids is None:
            return call
        completion = np.array(told.completion_ids, np.int32)
        logprobs = _logprobs(told)
        call = replace(
            call, completion=completion, completion_len=completion.size, logprobs=logprobs
        )
        if not told.prompt_ids:
            return call
        prompt = np.array(told.prompt_ids, np.int32)
        parent, before, link = self._parent(prompt)
        delta = prompt[before:]
        made = chain_hash(link, np.concatenate((delta, completion)))
        self._whole.append((call.call_id, np.concatenate((prompt, completion)), made))
        return replace(
            call,
            stored_parent_id=parent,
            prefix_len=before,
            prompt_len=prompt.size,
            prompt_delta=delta,
            chain_hash=made,
        )

    def _parent(self, prompt: IdArray) -> tuple[CallId | None, int, bytes | None]:
        """The earlier call whose prompt and completion are the longest start of this prompt."""
        for call_id, whole, link in sorted(
            self._whole, key=lambda each: each[1].size, reverse=True
        ):
            size = whole.size
            if 0 < size <= prompt.size and np.array_equal(whole, prompt[:size]):
                return call_id, size, link
        return None, 0, None


def _level(told: ImportedCall) -> CaptureLevel:
    if told.prompt_ids and told.completion_ids and told.logprobs is not None:
        return CaptureLevel.TOKENS
    return CaptureLevel.LOGPROBS if told.logprobs else CaptureLevel.TEXT


def _logprobs(told: ImportedCall) -> LogprobArray | None:
    if told.logprobs is None:
        return None
    made = np.array([0.0 if item is None else item for item in told.logprobs], np.float32)
    missing = [item is None for item in told.logprobs]
    made.view(np.uint32)[missing] = NULL_LOGPROB_BITS
    return made


def _claims(told: ImportedCall) -> dict[str, str]:
    """What the file says and nobody here relies on."""
    found = {"imported_as": told.source} if told.source else {}
    if told.mask is not None:
        found["imported_loss_mask"] = f"{sum(told.mask)} of {len(told.mask)} sampled tokens" + (
            f" ({runs_of(told.mask)})" if told.mask else ""
        )
    return found


def runs_of(mask: tuple[int, ...], most: int = 12) -> str:
    """A mask as runs, such as `0×3 1×61`; long ones are cut."""
    runs: list[list[int]] = []
    for bit in mask:
        if runs and runs[-1][0] == bit:
            runs[-1][1] += 1
        else:
            runs.append([bit, 1])
    shown = " ".join(f"{bit}×{count}" for bit, count in runs[:most])
    return shown if len(runs) <= most else f"{shown} … {len(runs) - most} more runs"


def _bodies(call: Call, told: ImportedCall) -> list[Body]:
    """Request and reply as chat bodies made from the file, so that they read like any other."""
    asked: dict[str, Any] = {"model": told.model, "messages": list(told.messages)}
    if told.tools:
        asked["tools"] = list(told.tools)
    choice: dict[str, Any] = {
        "index": 0,
        "message": dict(told.reply),
        "finish_reason": call.finish_reason,
    }
    if call.completion is not None:
        choice["token_ids"] = call.completion.tolist()
        if call.logprobs is not None and told.logprobs is not None:
            choice["logprobs"] = {
                "content": [
                    {
                        "token": f"token_id:{each}",
                        "logprob": None if item is None else float(value),
                    }
                    for each, value, item in zip(
                        call.completion.tolist(), call.logprobs, told.logprobs, strict=True
                    )
                ]
            }
    answer: dict[str, Any] = {"object": "chat.completion", "model": told.model}
    answer["choices"] = [choice]
    if told.prompt_ids:
        answer["prompt_token_ids"] = list(told.prompt_ids)
    return [
        Body(
            call_id=call.call_id,
            rollout_id=call.rollout_id,
            kind=kind,
            data=json.dumps(value).encode(),
            headers=(("content-type", "application/json"), ("x-made-by", "import")),
        )
        for kind, value in ((BodyKind.REQUEST, asked), (BodyKind.REPLY, answer))
    ]

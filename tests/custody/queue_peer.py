"""Stages into a real TransferQueue; run by an interpreter that has `transferqueue`.

Ray, the controller and the storage are processes of their own; what is used of ours needs
numpy only.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import ray  # type: ignore[import-not-found]
import transfer_queue

from explorer.custody.protocols import Material, StagingSink, StagingSource
from explorer.custody.rebuild import verify_and_linearize
from explorer.custody.records import CallRecord, CaptureAdmission, CommitCoords, RolloutReceipt
from explorer.custody.worker import RolloutTokenCapture
from explorer.integrations.nemo_gym.transfer_queue import TransferQueueSink

SHARED = (
    *("model_call_id", "parent_call_id", "prev_len", "delta_len", "cum_len", "digest"),
    *("weight_version", "extras_digest", "staging_key", "chain_hash", "cumulative_hash"),
)


def main() -> None:
    """Every check; raises at the first that fails."""
    sink: Any = TransferQueueSink("test")
    assert isinstance(sink, StagingSink)
    assert isinstance(sink, StagingSource)
    capture = RolloutTokenCapture(sink, lambda: 7)
    chain(sink, capture)
    many(sink, capture)
    refused(sink, capture)


def chain(sink: Any, capture: RolloutTokenCapture) -> None:
    """A rollout of three calls is read back in any order and verifies."""
    rows: list[CallRecord] = []
    ids: list[int] = []
    last: CommitCoords | None = None
    keys: tuple[str, ...] = ()
    for number in range(3):
        prompt = [*ids, 10 * number, 10 * number + 1]
        admission = CaptureAdmission(
            rollout_id="r/ö", model_call_id=f"c{number}", mode="token_in" if last else "text",
            parent_call_id=last.model_call_id if last else None,
            prev_len=last.cum_len if last else 0,
            staging_chain=keys,
            parent_chain_hash=last.chain_hash if last else None,
        )  # fmt: skip
        prefix = [id_ for call in sink.fetch(keys) for id_ in call.token_ids_delta.tolist()]
        extras = {"routed_experts": "nrlre1:int8:1x1x1:AA==", "n": [1, 1.0]} if number else None
        logprobs = np.array([-0.1, -1e-30], np.float64)
        sampled = [2**62 + number, 5]
        last = capture.complete(
            capture.begin(admission, prefix), Material(prompt, sampled, logprobs, extras)
        )
        assert last.disposition == "staged", last
        ids = [*prompt, *sampled]
        assert last.staging_key is not None
        keys = (*keys, last.staging_key)
        fields = {name: getattr(last, name) for name in SHARED}
        rows.append(CallRecord(**fields, mode=admission.mode, response_id=f"resp-{number}"))
    found = sink.fetch(keys[::-1])
    assert [call.model_call_id for call in found] == ["c2", "c1", "c0"]
    assert found[0].extras == {"routed_experts": "nrlre1:int8:1x1x1:AA==", "n": [1, 1.0]}
    assert found[0].generation_log_probs_delta[-1] == -1e-30
    receipt = RolloutReceipt(
        rollout_id="r/ö", manifest=tuple(rows), terminal_model_call_id="c2",
        terminal_selection="declared",
    )  # fmt: skip
    assert verify_and_linearize(receipt, sink.fetch(keys)).token_ids.tolist() == ids


def many(sink: Any, capture: RolloutTokenCapture) -> None:
    """Eight threads stage at once."""
    gate = threading.Barrier(8)

    def stage(number: int) -> str:
        admission = CaptureAdmission(rollout_id="m", model_call_id=str(number), mode="text")
        call = capture.begin(admission)
        gate.wait()
        coords = capture.complete(call, Material(list(range(number + 1)), [number], [-0.5]))
        assert coords.staging_key is not None, coords
        return coords.staging_key

    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(stage, range(8)))
    assert [call.token_ids_delta.size for call in sink.fetch(keys)] == list(range(2, 10))


def refused(sink: Any, capture: RolloutTokenCapture) -> None:
    """What the queue cannot hold, and what it does not hold."""
    call = capture.begin(CaptureAdmission(rollout_id="m", model_call_id="big", mode="text"))
    coords = capture.complete(call, Material([1], [2**63], [-0.5]))
    assert coords.disposition == "capture_failed"
    for keys in (["m/zz"], ["m/0", "m/zz"]):
        try:
            sink.fetch(keys)
        except LookupError:
            continue
        raise AssertionError(f"{keys} were found")


if __name__ == "__main__":
    # One processor each for the controller and two storage units, however many there are.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    transfer_queue.init()
    try:
        main()
    finally:
        transfer_queue.close()
        ray.shutdown()
    print("all of it holds")

"""What custody costs: a worker's digests, and the verification of a closed rollout.

    python -m benchmarks.custody [--rounds 5]

One line of calls, half of each new call carried and half generated. Each figure is the CPU time
of one thread as a ratio to a bare SHA-256, in the same rounds, over exactly the messages that
the format makes one hash, which is the least that anyone can spend. Aims: a worker at most 1.5,
verifying parsed records at most 6. Reading the records from JSON is counted apart, beside
`json.loads` alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from explorer.custody import digest, staging
from explorer.custody.fields import loads
from explorer.custody.protocols import Material
from explorer.custody.rebuild import verify_and_linearize
from explorer.custody.records import (
    CallRecord,
    CaptureAdmission,
    CommitCoords,
    RolloutReceipt,
    StagedCallBaseSnapshot,
    StagedCallRecord,
    StageResult,
)
from explorer.custody.worker import RolloutTokenCapture

SIZES = ((200, 32_000), (1000, 128_000))
WORKER_AIM = 1.5
VERIFY_AIM = 6.0
_COPIED = (
    *("model_call_id", "parent_call_id", "prev_len", "delta_len", "cum_len", "weight_version"),
    *("digest", "extras_digest", "staging_key", "mode", "chain_hash", "cumulative_hash"),
)


class Turn(NamedTuple):
    """What an engine tells a worker about one call."""

    prompt: NDArray[np.uint64]
    generated: NDArray[np.uint64]
    logprobs: NDArray[np.float64]
    prev_len: int


class Lists(NamedTuple):
    """The same as it comes out of JSON."""

    prompt: list[int]
    generated: list[int]
    logprobs: list[float]
    prev_len: int


def conversation(calls: int, tokens: int) -> list[Turn]:
    random = np.random.default_rng(7)
    ids = random.integers(0, 150_000, tokens).astype(np.uint64)
    each = tokens // calls
    turns: list[Turn] = []
    for start in range(0, calls * each, each):
        middle, end = start + each // 2, start + each
        logprobs = -random.exponential(0.7, end - middle)
        turns.append(Turn(ids[:middle], ids[middle:end], logprobs, start))
    return turns


def work(turns: Sequence[Turn | Lists]) -> Iterator[dict[str, Any]]:
    """The digests of every call, as a worker makes them one after the other."""
    chain: bytes | None = None
    for number, turn in enumerate(turns):
        delta = staging.build_delta(*turn)
        call = Staged()
        call.model_call_id = f"call-{number:04}"
        call.parent_call_id = f"call-{number - 1:04}" if number else None
        call.mode = "token_in" if number else "text"
        call.prev_len = turn.prev_len
        call.delta_len = len(delta.token_ids)
        call.cum_len = len(turn.prompt) + len(turn.generated)
        call.token_ids_delta, call.token_mask_delta = delta.token_ids, delta.mask
        call.generation_log_probs_delta = delta.logprobs
        columns = staging.encode_columns(call)
        chain = digest.chain_hash_of(chain, columns.size, columns.token_ids)
        call.extras_digest = staging.extras_digest(None)
        call.chain_hash = chain.hex()
        call.cumulative_hash = digest.cumulative_hash(turn.prompt, turn.generated).hex()
        call.digest = staging.staging_digest(call, columns)
        yield vars(call)


class Nowhere:
    """A sink that takes everything at once: what is measured is the worker."""

    def stage(self, record: StagedCallRecord, *, attachments: object = None) -> StageResult:
        return StageResult(ok=True, staging_key=record.staging_key)


def captured(worker: RolloutTokenCapture, turns: Sequence[Turn]) -> None:
    """The calls through the worker itself: admission, prefix, delta, record, coordinates."""
    before: CommitCoords | None = None
    prefix: NDArray[np.uint64] | None = None
    for number, turn in enumerate(turns):
        admission = CaptureAdmission(
            rollout_id="rollout-1",
            model_call_id=f"call-{number:04}",
            mode="text" if before is None else "token_in",
            parent_call_id=None if before is None else before.model_call_id,
            prev_len=0 if before is None else before.cum_len,
            staging_chain=() if before is None else (str(before.staging_key),),
            parent_chain_hash=None if before is None else before.chain_hash,
        )
        call = worker.begin(admission, prefix)
        before = worker.complete(call, Material(turn.prompt, turn.generated, turn.logprobs))
        if before.disposition != "staged":
            raise AssertionError("a call was not captured")
        prefix = np.concatenate((turn.prompt, turn.generated))


class Staged:
    """The fields of one staged call while it is made."""

    schema_version = staging.SCHEMA_VERSION
    digest_version = staging.DIGEST_VERSION
    extras_digest_version = staging.EXTRAS_DIGEST_VERSION
    rollout_id = "rollout-1"
    weight_version = 7
    model_call_id: str
    parent_call_id: str | None
    mode: str
    prev_len: int
    delta_len: int
    cum_len: int
    token_ids_delta: digest.Tokens
    token_mask_delta: staging.Floats
    generation_log_probs_delta: staging.Floats
    extras_digest: str
    chain_hash: str
    cumulative_hash: str
    digest: str


def closed(turns: Sequence[Turn]) -> tuple[RolloutReceipt, list[StagedCallBaseSnapshot]]:
    """The rollout as it is verified."""
    common = {"rollout_id": Staged.rollout_id, "weight_version": Staged.weight_version}
    calls = [StagedCallBaseSnapshot.parse(fields | common) for fields in work(turns)]
    rows = [
        CallRecord.parse(
            {name: getattr(call, name) for name in _COPIED} | {"response_id": call.digest}
        )
        for call in calls
    ]
    receipt = RolloutReceipt(
        rollout_id=Staged.rollout_id,
        manifest=tuple(rows),
        terminal_model_call_id=rows[-1].model_call_id,
        terminal_selection="declared",
    )
    return receipt, calls


def messages(calls: Sequence[StagedCallBaseSnapshot]) -> tuple[list[bytes], list[bytes]]:
    """Every message that a worker must hash for these calls, and every one that verifying must.

    They are written out here a second time, and must have the digests of the calls.
    """
    worker: list[bytes] = []
    verify: list[bytes] = []
    whole, chain = b"", b"\0"
    for call in calls:
        ids = call.token_ids_delta.astype(">u8").tobytes()
        count = call.delta_len.to_bytes(8, "big")
        whole += ids
        ends = call.cum_len.to_bytes(8, "big")
        message = (digest.CHAIN_TAG + chain + count + ids, digest.PREFIX_TAG + ends + whole)
        chain = b"\1" + hashlib.sha256(message[0]).digest()
        assert chain[1:].hex() == call.chain_hash, "not the message of a chain hash"
        found = hashlib.sha256(message[1]).hexdigest()
        assert found == call.cumulative_hash, "not the message of a cumulative hash"
        staged = staged_message(call, count, ids)
        assert hashlib.sha256(staged).hexdigest() == call.digest, "not the message of a digest"
        extras = staging.EXTRAS_TAG + bytes([staging.EXTRAS_DIGEST_VERSION]) + b"N"
        worker += [*message, extras, staged]
        verify += [message[0], staged]
    return worker, [*verify, digest.PREFIX_TAG + ends + whole]


def staged_message(call: StagedCallBaseSnapshot, count: bytes, ids: bytes) -> bytes:
    """The message of a staging digest."""

    def framed(value: bytes) -> bytes:
        return len(value).to_bytes(8, "big") + value

    parent = call.parent_call_id
    lengths = (call.prev_len, call.delta_len, call.cum_len, call.weight_version)
    pieces = [
        staging.CALL_TAG + bytes(staging.VERSIONS),
        framed(call.rollout_id.encode()) + framed(call.model_call_id.encode()),
        b"\0" if parent is None else b"\1" + framed(parent.encode()),
        framed(call.mode.encode()),
        *(value.to_bytes(8, "big") for value in lengths),
        framed(count + ids),
        framed(count + call.token_mask_delta.astype(">f4").tobytes()),
        framed(count + call.generation_log_probs_delta.astype(">f4").tobytes()),
        bytes.fromhex(call.extras_digest),
        b"\1" + bytes.fromhex(call.chain_hash) + b"\1" + bytes.fromhex(call.cumulative_hash),
    ]
    return b"".join(pieces)


def hashed(many: Sequence[bytes]) -> None:
    """The yardstick."""
    for message in many:
        hashlib.sha256(message).digest()


def seconds(part: Callable[[], object]) -> float:
    """The CPU time of one run."""
    start = time.process_time()
    part()
    return time.process_time() - start


def measure(calls: int, tokens: int, rounds: int) -> None:
    turns = conversation(calls, tokens)
    receipt, staged = closed(turns)
    # Made once by a serving system; it checks the golden vectors then.
    worker = RolloutTokenCapture(Nowhere(), lambda: 7)
    for_worker, for_verify = messages(staged)
    document = json.dumps(
        {"receipt": receipt.to_json(), "calls": [call.to_json() for call in staged]}
    )
    lists = [
        Lists(
            turn.prompt.tolist(), turn.generated.tolist(), turn.logprobs.tolist(), turn.prev_len
        )
        for turn in turns
    ]

    def parse() -> tuple[RolloutReceipt, list[StagedCallBaseSnapshot]]:
        read = loads(document)
        return RolloutReceipt.parse(read["receipt"]), [
            StagedCallBaseSnapshot.parse(call) for call in read["calls"]
        ]

    parts: dict[str, tuple[Callable[[], object], list[bytes], float | None]] = {
        "RolloutTokenCapture": (
            lambda: captured(worker, turns),
            for_worker,
            WORKER_AIM,
        ),
        "worker, ids as arrays": (lambda: list(work(turns)), for_worker, WORKER_AIM),
        "worker, ids as lists": (lambda: list(work(lists)), for_worker, None),
        "verify parsed records": (
            lambda: verify_and_linearize(receipt, staged),
            for_verify,
            VERIFY_AIM,
        ),
        "parse JSON and verify": (lambda: verify_and_linearize(*parse()), for_verify, None),
        "json.loads alone": (lambda: json.loads(document), for_verify, None),
    }
    print(f"{calls} calls, {tokens} tokens")
    for name, (part, bytes_of, aim) in parts.items():
        part()
        bare_part = partial(hashed, bytes_of)
        pairs = [(seconds(part), seconds(bare_part)) for _ in range(rounds)]
        ours = min(spent for spent, _ in pairs)
        bare = min(spent for _, spent in pairs)
        ratio = statistics.median(mine / theirs for mine, theirs in pairs)
        wanted = f"  (aim {aim})" if aim else ""
        size = sum(map(len, bytes_of)) / 1e6
        print(
            f"  {name:<22} {ours * 1e3:9.2f} ms  SHA-256 of {size:6.1f} MB "
            f"{bare * 1e3:7.2f} ms  ratio {ratio:7.2f}{wanted}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for calls, tokens in SIZES:
        measure(calls, tokens, args.rounds)


if __name__ == "__main__":
    main()

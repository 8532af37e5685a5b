"""Answers questions with the real `nemo-gym`; run by an interpreter that has it.

Reads one JSON list of [operation, arguments] from standard input, writes the list of answers.
Uses nothing of ours. An answer is {"value": …} or {"refused": code or type}.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from nemo_gym.token_id_capture import fingerprint, terminal  # type: ignore[import-not-found]
from nemo_gym.token_id_capture.adapters.vllm import VLLMCaptureAdapter  # type: ignore[import-not-found]
from nemo_gym.token_id_capture.lineage import FileLineageStore  # type: ignore[import-not-found]
from nemo_gym.token_id_capture.staging import (  # type: ignore[import-not-found]
    capture,
    digest,
    rebuild,
    records,
    routes,
)
from nemo_gym.token_id_capture.staging.terminal import select_terminal_call  # type: ignore[import-not-found]


def receipt(base: Any, changes: Any) -> Any:
    """`verify_and_linearize` of a rollout that a damaged store gives."""
    made = records.RolloutReceipt.model_validate(base["receipt"])
    calls = [records.StagedCallBaseSnapshot.model_validate(call) for call in base["snapshots"]]
    for change in changes:
        index, name, to = change.get("index"), change.get("field"), change.get("to")
        if change["do"] == "order" and change["of"] == "snapshot":
            calls = [calls[place] for place in to]
        elif change["do"] == "order":
            made.__dict__["manifest"] = [made.manifest[place] for place in to]
        elif change["do"] == "rehash":
            fields = calls[index].model_dump()
            fields.pop("digest")
            found = digest.compute_staging_digest(**fields)
            calls[index].__dict__["digest"] = made.manifest[index].__dict__["digest"] = found
        else:
            target = made
            if change["of"] != "receipt":
                target = (calls if change["of"] == "snapshot" else made.manifest)[index]
            target.__dict__[name] = to
    row = rebuild.verify_and_linearize(made, calls)
    return {
        "rollout_id": row.rollout_id,
        "token_ids": row.token_ids,
        "token_mask": row.token_mask,
        "logprobs": row.logprobs,
        "model_call_ids": row.model_call_ids,
        "prompt_len": row.prompt_len,
        "weight_versions": row.weight_versions,
        "weight_version_spans": [
            list(vars(span).values()) for span in row.weight_version_spans
        ],
        "link_spans": row.link_spans,
        "extras_commitments": [list(vars(item).values()) for item in row.extras_commitments],
    }


def rows(payloads: Any) -> Any:
    """Manifest rows."""
    return [records.CallRecord.model_validate(payload) for payload in payloads]


def select(payloads: Any) -> Any:
    """The parent-link heuristic."""
    found = select_terminal_call(rows(payloads))
    return [found.terminal_model_call_id, found.reason]


def resolve(payloads: Any, response: Any, explicit: Any, declared: Any) -> Any:
    """The witnesses."""
    found = terminal.resolve_terminal(
        rows(payloads), response, explicit, declared_response_id=declared
    )
    return [found.model_call_id, found.method, found.reason]


def parse(name: str, payload: Any) -> Any:
    """Whether a record is taken, as it is written back."""
    return getattr(records, name).model_validate(payload).model_dump(mode="json")


def write(root: str, commits: Any, failures: Any) -> Any:
    """Writes a ledger."""
    store = FileLineageStore(root)

    async def run() -> None:
        for item in commits:
            await store.record(records.CaptureLedgerCommit.model_validate(item))
        for item in failures:
            await store.record_failure(*item)

    asyncio.run(run())
    return True


def manifest(root: str, rollout_id: str) -> Any:
    """Reads a ledger."""
    return asyncio.run(FileLineageStore(root).manifest(rollout_id))


def lineage(root: str, rollout_id: str, items: Any) -> Any:
    """Resolves a parent in a ledger: [status, call, length, chain, chain hash]."""
    found = asyncio.run(FileLineageStore(root).resolve(rollout_id, items))
    match = found.match
    if match is None:
        return [found.status.value, None, 0, [], None]
    chain = list(match.staging_chain)
    return [found.status.value, match.model_call_id, match.prev_len, chain, match.chain_hash]


class _Memory:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.staged: list[Any] = []

    def stage(self, record: Any, *, attachments: Any = None) -> Any:
        self.staged.append(record.model_dump(mode="json"))
        return records.StageResult(ok=True, staging_key=record.staging_key)


def captured(admission: Any, prefix: Any, version: int, material: Any) -> Any:
    """One call through the worker: the acknowledgement and what was staged."""
    sink = _Memory()
    worker = capture.RolloutTokenCapture(sink=sink, weight_version_fn=lambda: version)
    call = worker.begin_call(
        records.CaptureAdmission.model_validate(admission), prefix_token_ids=prefix
    )
    coords = worker.complete_call(call, **material)
    return [coords.model_dump(mode="json"), sink.staged]


def decoded(payload: Any) -> Any:
    """An envelope of routed experts, as nested lists."""
    found = routes.decode_routed_experts(payload)
    return [found.values, routes.routed_experts_token_count(payload)]


def extracted(reply: Any) -> Any:
    """What the adapter for vLLM reads."""
    adapter = VLLMCaptureAdapter()
    ids, logprobs = adapter.extract_generation(reply)
    return [adapter.extract_prompt_ids(reply), ids, logprobs, adapter.extract_extras(reply)]


OPERATIONS: dict[str, Any] = {
    "extras": digest.compute_extras_digest,
    "cumulative": digest.hash_token_ids,
    "chain": digest.compute_chain_hash,
    "staging": lambda fields: digest.compute_staging_digest(**fields),
    "delta": lambda fields: digest.build_staging_delta(**fields),
    "arguments": fingerprint.canonicalize_tool_arguments,
    "assistant": fingerprint.assistant_fingerprint,
    "conversation": fingerprint.conversation_digest,
    "receipt": receipt,
    "select": select,
    "resolve": resolve,
    "parse": parse,
    "write": write,
    "manifest": manifest,
    "lineage": lineage,
    "captured": captured,
    "decoded": decoded,
    "extracted": extracted,
    "span": lambda carry, made, staged: str(
        getattr(
            found := routes.classify_route_span(
                carry_len=carry, generation_len=made, staged_route_len=staged
            ),
            "value",
            found,
        )
    ),
    "encode": lambda values, dtype: routes.encode_routed_experts(values, dtype=dtype),
}


def answer(operation: str, arguments: Any) -> Any:
    """One answer."""
    try:
        return {"value": OPERATIONS[operation](*arguments)}
    except Exception as error:  # noqa: BLE001 - whatever it raises is its answer
        return {"refused": getattr(error, "code", type(error).__name__)}


if __name__ == "__main__":
    json.dump([answer(*question) for question in json.load(sys.stdin)], sys.stdout)

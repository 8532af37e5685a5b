"""Experts that an engine names are kept in its reply and committed to in custody."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from explorer.custody.errors import RecordError
from explorer.custody.routes import as_envelope, commitment, committed_extras, decode_routes
from explorer.custody.staging import extras_digest
from explorer.engine.scripted import ScriptedEngine
from explorer.trace.audit_reader import read_audit
from explorer.trace.custody_calls import custody_calls
from tests.live import serving


def npy(array: np.ndarray[Any, Any]) -> str:
    """As vLLM sends it."""
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


ROUTES = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2)


@pytest.mark.parametrize(
    "array",
    [
        ROUTES,
        ROUTES.astype(np.int64) * 1000,
        np.asfortranarray(ROUTES.astype(">i4")),
        ROUTES.astype(np.int16) - 1,
    ],
)
def test_an_array_becomes_the_envelope(array: np.ndarray[Any, Any]) -> None:
    envelope = as_envelope(npy(array))
    assert decode_routes(envelope).values.tolist() == array.tolist()
    assert as_envelope(envelope) == envelope
    assert as_envelope(array.tolist()) == envelope
    assert committed_extras(commitment(envelope)) == extras_digest({"routed_experts": envelope})


def _headed(header: bytes, data: bytes = b"a" * 8) -> str:
    """A file with a header of somebody's own."""
    size = len(header).to_bytes(2, "little")
    return base64.b64encode(np.lib.format.magic(1, 0) + size + header + data).decode()


def _forged(shape: str, descr: str = "'|i1'", data: bytes = b"a" * 8) -> str:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n"
    return _headed(header.encode(), data)


@pytest.mark.parametrize(
    "routes",
    [
        *("", "nonsense!", base64.b64encode(b"not numpy at all").decode(), 7, {}, [], [[1]]),
        npy(ROUTES.astype(np.float32)),
        npy(ROUTES.ravel()),
        npy(np.zeros((0, 2, 2), np.int8)),
        npy(np.full((1, 1, 1), 2**40)),
        npy(ROUTES)[:-4],
        _forged(f"({2**40}, {2**40}, {2**40})"),
        *map(_forged, ("(-1, -1, 8)", "(-2, -4, 1)", "(True, 4, 2)", "(1, 1, '8')")),
        _forged("(1, 1, 1)", "'|O'"),
        _forged("(1, 1, 8)", "',,'"),
        _headed(b"__import__('os')    "),
        *map(_headed, (b"-" * 5000 + b"1", b"{'descr': '''", b"{[]: 1}", b"{1: 2, 'a': 3}")),
    ],
)
def test_what_is_no_array_of_routes_is_refused(routes: Any) -> None:
    with pytest.raises(RecordError):
        as_envelope(routes)


@pytest.mark.parametrize("text", ["", "x", "nrlre1:int8:1x1x1:", "nrlre1:int8:1x1x1:AA=="])
def test_a_commitment_ends_in_a_digest(text: str) -> None:
    with pytest.raises(RecordError):
        committed_extras(text)


def entry(routes: Any) -> dict[str, Any]:
    """A scripted reply that names experts."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "ok"},
        "finish_reason": "stop",
        "token_ids": [5, 6],
        "logprobs": {
            "content": [{"token": "o", "logprob": -0.5}, {"token": "k", "logprob": 0}]
        },
        "routed_experts": routes,
    }
    return {"prompt_token_ids": [1, 2], "patch": {"choices": [choice]}}


def test_the_audit_and_the_receipt_commit_to_them(tmp_path: Path) -> None:
    engine = ScriptedEngine([entry(npy(ROUTES)), entry("broken")])
    with serving(engine, tmp_path / "s.duckdb", allow_uncertified=True) as live:
        rollout_id, key = live.create()
        served = live.chat(key)
        assert "routed_experts" not in served.text
        live.chat(key, messages=[{"role": "user", "content": "other"}])
        live.api("POST", f"/api/v1/rollouts/{rollout_id}/reward", {"reward": 1.0})
        live.api("POST", f"/api/v1/rollouts/{rollout_id}/close", {})
        audit = httpx.get(
            f"{live.url}/api/v1/rollouts/{rollout_id}/capture-audit",
            headers={"authorization": f"Bearer {live.token}"},
        ).content
    envelope = as_envelope(npy(ROUTES))
    record = read_audit(orjson.loads(audit)).record
    named, unread = record.calls
    assert named.routed_experts == commitment(envelope)
    assert unread.routed_experts is None
    assert "routed_experts_unreadable" in {note.code for note in unread.notes}
    digest = extras_digest({"routed_experts": envelope})
    assert custody_calls(record).by_id[named.call_id].row.extras_digest == digest
    rows = orjson.loads(audit)["custody"]["manifest"]
    assert digest in {row["extras_digest"] for row in rows}

"""Every fuzz target against inputs from Hypothesis: bytes, JSON, and damaged real traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import DATA, TARGETS

KEYS = st.sampled_from(
    [
        *(
            "messages",
            "input",
            "contents",
            "prompt",
            "tools",
            "role",
            "content",
            "parts",
            "type",
        ),
        *("text", "id", "call_id", "name", "arguments", "function", "tool_calls", "choices"),
        *("message", "delta", "index", "usage", "finish_reason", "token_ids", "logprobs"),
        *("functionCall", "functionResponse", "args", "response", "reasoning", "summary"),
        *("tool_use_id", "thinking", "signature", "source", "system", "stream", "n", "error"),
        *("previous_response_id", "instructions", "generationConfig", "data", "tool_choice"),
    ]
)
WORDS = st.sampled_from(
    [
        *("user", "assistant", "system", "tool", "model", "function", "text", "message"),
        *("input_text", "output_text", "function_call", "function_call_output", "reasoning"),
        *("tool_use", "tool_result", "thinking", "image", "custom", "namespace", "{}", ""),
        *("item_reference", "\ud800", "call_0", "resp_x"),
    ]
)
VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**70)
    | st.floats(allow_nan=False)
    | WORDS
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=14,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=6).map(lambda made: json.dumps(made).encode())
STREAMS = st.lists(
    OBJECTS.map(lambda data: b"data: " + data + b"\n\n") | st.binary(max_size=20), max_size=5
).map(b"".join)


def _recorded() -> list[bytes]:
    """Bodies of recorded requests and replies, both dialects' and engines'."""
    found: list[bytes] = []
    folders: dict[Path, int] = {}
    for file in sorted((DATA / "harness").rglob("*.jsonl")):
        folders[file.parent] = folders.get(file.parent, 0) + 1
        if folders[file.parent] > 1:
            continue
        for line in file.read_text(encoding="utf-8").splitlines()[1:3]:
            call = json.loads(line)
            if call.get("body"):
                found.append(json.dumps(call["body"])[:30_000].encode())
            reply = (call.get("response") or {}).get("body")
            if isinstance(reply, str):
                found.append(reply[:10_000].encode())
    for folder in ("vllm", "vllm_completions"):
        for name in ("response.json", "request.json", "response.sse"):
            for file in sorted((DATA / folder).rglob(name))[:6]:
                found.append(file.read_bytes()[:30_000])
    found.append(b'{"prompt": "x", "max_tokens": 3, "logprobs": 2}')
    found.append(b"/k/rxk_abc/v1beta/models/m:streamGenerateContent?alt=sse&key=rxk_x")
    found.append(b'{"budgets": {"calls": 3}, "sampling": {"temperature": 1}, "streaming": "x"}')
    return found


RECORDED = _recorded()


@st.composite
def damaged(draw: Any) -> bytes:
    """Real bytes with a piece cut out, doubled or overwritten."""
    data = bytearray(draw(st.sampled_from(RECORDED)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.integers(0, 40))
        piece = draw(st.binary(max_size=6) | st.just(bytes(data[at : at + length])))
        data[at : at + length] = piece
    return bytes(data)


INPUTS = st.binary(max_size=200) | OBJECTS | STREAMS | damaged()


def test_there_is_real_traffic_to_damage() -> None:
    assert len(RECORDED) > 20
    assert (Path(DATA) / "harness").is_dir()


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=INPUTS)
def test_no_bytes_break_a_parser(name: str, data: bytes) -> None:
    TARGETS[name](data)

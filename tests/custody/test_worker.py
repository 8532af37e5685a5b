"""The worker: what is staged, what is acknowledged, and that no failure reaches the reply."""

from __future__ import annotations

import base64
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.custody.adapter import VllmAdapter
from explorer.custody.digest import chain_hash
from explorer.custody.errors import RecordError
from explorer.custody.protocols import Material, StagingSink
from explorer.custody.records import (
    CaptureAdmission,
    CommitCoords,
    StagedCallRecord,
    StageResult,
)
from explorer.custody.routes import (
    decode_routes,
    encode_routes,
    route_span,
    routed_tokens,
)
from explorer.custody.worker import (
    CaptureError,
    RolloutTokenCapture,
    StreamingUnsupportedError,
    install_capture,
)

ROOT = CaptureAdmission(rollout_id="r1", model_call_id="a", mode="text")
GIVEN = Material([1, 2], [3], [-0.1])


@dataclass
class Memory:
    """A sink that keeps what it is given, or does what it is told."""

    staged: dict[str, StagedCallRecord] = field(default_factory=dict)
    attached: list[Any] = field(default_factory=list)
    answers: Any = None
    wait_s: float = 0.0
    together: int = 0
    inside: int = 0

    def stage(self, record: StagedCallRecord, *, attachments: Any = None) -> Any:
        self.inside += 1
        self.together = max(self.together, self.inside)
        time.sleep(self.wait_s)
        self.inside -= 1
        if isinstance(self.answers, Exception):
            raise self.answers
        if self.answers is not None:
            return self.answers
        self.staged[record.staging_key] = record
        self.attached.append(attachments)
        return StageResult(ok=True, staging_key=record.staging_key)


def worker(sink: Any, version: int = 7) -> RolloutTokenCapture:
    return RolloutTokenCapture(sink, lambda: version, VllmAdapter())


def child(parent: CommitCoords, **values: Any) -> CaptureAdmission:
    fields: dict[str, Any] = {
        "rollout_id": "r1",
        "model_call_id": "b",
        "parent_call_id": parent.model_call_id,
        "prev_len": parent.cum_len,
        "mode": "token_in",
        "staging_chain": (parent.staging_key,),
        "parent_chain_hash": parent.chain_hash,
    }
    return CaptureAdmission(**fields | values)


def test_the_vectors_of_a_root_and_its_child() -> None:
    """Digests that two implementations gave: `staging, root` and `staging, child`."""
    sink = Memory()
    assert isinstance(sink, StagingSink)
    capture = worker(sink)
    first = capture.complete(capture.begin(ROOT), GIVEN)
    assert first.digest == "00575c206500c97d8c2c1759a894b558b4b4b7268a2c18e5aebb48982a625311"
    call = capture.begin(child(first), [1, 2, 3])
    second = capture.complete(call, Material([1, 2, 3, 4], [5], [-0.1]))
    assert second.digest == "ebe99f9dc77cafc797d08485d3cf867322858c9150698e9eeb8506d7a75e39a5"
    assert (second.prev_len, second.delta_len, second.cum_len) == (3, 2, 5)
    assert second.staging_key == "r1/b"
    assert first.chain_hash is not None
    linked = chain_hash(bytes.fromhex(first.chain_hash), [4, 5]).hex()
    assert second.chain_hash == linked
    assert sink.staged["r1/b"].token_mask_delta.tolist() == [0.0, 1.0]
    assert sink.attached == [None, None]


def test_arrays_of_the_engine_give_what_lists_give() -> None:
    one, two = Memory(), Memory()
    lists = worker(one)
    arrays = worker(two)
    material = Material(
        np.array([1, 2], np.int32), np.array([3], np.int32), np.array([-0.1], np.float32)
    )
    first = lists.complete(lists.begin(ROOT), Material([1, 2], [3], [float(np.float32(-0.1))]))
    second = arrays.complete(arrays.begin(ROOT), material)
    assert first == second


def test_case_30_a_prompt_that_does_not_begin_with_the_parent() -> None:
    sink = Memory()
    capture = worker(sink)
    first = capture.complete(capture.begin(ROOT), GIVEN)
    call = capture.begin(child(first), [1, 2, 3])
    coords = capture.complete(call, Material([1, 2, 9, 4], [5], [-0.1]))
    assert coords.disposition == "capture_failed"
    assert (coords.prev_len, coords.delta_len, coords.cum_len) == (3, 0, 3)
    assert set(sink.staged) == {"r1/a"}


@pytest.mark.parametrize(
    "answer",
    [OSError("disk"), StageResult(ok=False, error="full"), {"ok": True}, KeyError("x"), 5],
)
def test_case_31_a_sink_that_raises_rejects_or_gives_something_else(answer: Any) -> None:
    capture = worker(Memory(answers=answer))
    coords = capture.complete(capture.begin(ROOT), GIVEN)
    assert coords.disposition == "capture_failed"
    assert coords.digest is None
    assert CommitCoords.parse(coords.to_json()) == coords


@pytest.mark.parametrize(
    "material",
    [
        Material([1], [2], [-0.1], {"x": (1,)}),
        Material([1], [2], [-0.1], {"x": 2**80}),
        Material([1], [2], [-0.1], {"x": float("nan")}),
        Material([1], [2], [-0.1], {1: "x"}),  # type: ignore[dict-item]
        Material([1], [2], [0]),
        Material([1], [2], [True]),
        Material([1], [2], [float("-inf")]),
        Material([1], [2, 3], [-0.1]),
        Material([-1], [2], [-0.1]),
        Material([1], [2**64], [-0.1]),
        Material([1.0], [2], [-0.1]),  # type: ignore[list-item]
        Material([], [], []),
    ],
)
def test_case_29_what_cannot_be_encoded_is_not_captured(material: Material) -> None:
    sink = Memory()
    capture = worker(sink)
    assert capture.complete(capture.begin(ROOT), material).disposition == "capture_failed"
    assert not sink.staged


def test_case_32_a_second_ending_and_eight_racing_ones() -> None:
    sink = Memory(wait_s=0.02)
    capture = worker(sink)
    call = capture.begin(ROOT)

    def end(_: int) -> bool:
        try:
            capture.complete(call, GIVEN)
        except CaptureError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(end, range(8))) == [False] * 7 + [True]
    assert list(sink.staged) == ["r1/a"]
    with pytest.raises(CaptureError, match="ended already"):
        capture.fail(call)


def test_no_lock_is_held_while_a_sink_writes() -> None:
    sink = Memory(wait_s=0.1)
    capture = worker(sink)
    calls = [
        capture.begin(CaptureAdmission(rollout_id="r1", model_call_id=str(number), mode="text"))
        for number in range(4)
    ]
    gate = threading.Barrier(4)

    def end(call: Any) -> None:
        gate.wait()
        capture.complete(call, GIVEN)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(end, calls))
    assert sink.together == 4


def test_what_breaks_the_contract_is_an_error_of_the_caller() -> None:
    capture = worker(Memory())
    first = capture.complete(capture.begin(ROOT), GIVEN)
    stored = child(first)
    inline = child(first, staging_chain=(), required_prefix_token_ids=(1, 2, 3))
    with pytest.raises(TypeError, match="an admission is wanted"):
        capture.begin({})  # type: ignore[arg-type]
    with pytest.raises(StreamingUnsupportedError):
        capture.begin(ROOT, streaming=True)
    for admission, prefix, words in (
        (ROOT, [1], "a root has no prefix"),
        (stored, None, "in storage"),
        (stored, [1, 2], "has 2 ids, admitted were 3"),
        (stored, [1, 2, -3], "no token ids"),
        (inline, [1, 2, 4], "not that of the admission"),
    ):
        with pytest.raises(CaptureError, match=words):
            capture.begin(admission, prefix)
    for version in (-1, True, 1.0, 1 << 64):
        with pytest.raises(CaptureError, match="a weight version"):
            capture.begin(ROOT, weight_version=version)  # type: ignore[arg-type]
    assert capture.begin(inline).prefix.tolist() == [1, 2, 3]
    assert capture.begin(ROOT, []).weight_version == 7
    assert capture.begin(ROOT, weight_version=9).weight_version == 9


def test_attachments_reach_the_sink_and_no_digest() -> None:
    sink = Memory()
    capture = worker(sink)
    plain = capture.complete(capture.begin(ROOT), GIVEN)
    more = Material([1, 2], [3], [-0.1], attachments={"pixels": object()})
    assert capture.complete(capture.begin(ROOT), more) == plain
    assert set(sink.attached[1]) == {"pixels"}

    class Old:
        def stage(self, record: StagedCallRecord) -> StageResult:
            return StageResult(ok=True, staging_key="k")

    old = worker(Old())
    assert old.complete(old.begin(ROOT), GIVEN).staging_key == "k"
    assert old.complete(old.begin(ROOT), more).disposition == "capture_failed"


def test_it_is_installed_in_what_takes_it() -> None:
    class Host:
        def install_token_capture(self, capture: RolloutTokenCapture) -> None:
            self.capture = capture

    host = Host()
    made = install_capture(host, sink=Memory(), weight_version=lambda: 1)
    assert host.capture is made
    with pytest.raises(CaptureError, match="no adapter"):
        made.complete_from_reply(made.begin(ROOT), {})
    with pytest.raises(TypeError, match="install_token_capture"):
        install_capture(object(), sink=Memory(), weight_version=lambda: 1)  # type: ignore[arg-type]


def test_a_worker_does_not_start_where_the_digests_are_not_the_frozen_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from explorer.custody.conformance import ConformanceError

    monkeypatch.setattr("explorer.custody.digest.CHAIN_TAG", b"another")
    with pytest.raises(ConformanceError):
        worker(Memory())


# -- vLLM's replies


def reply(**message: Any) -> dict[str, Any]:
    listed = [{"token": "token_id:3", "logprob": -0.5}, {"token": "token_id:4", "logprob": 0}]
    choice = {"message": {"role": "assistant", **message}, "logprobs": {"content": listed}}
    return {"id": "x", "prompt_token_ids": [1, 2], "choices": [choice]}


def test_both_forms_of_a_reply_are_read() -> None:
    adapter = VllmAdapter()
    found = adapter.extract(reply())
    assert (found.prompt, found.generated, found.logprobs) == ([1, 2], [3, 4], [-0.5, 0.0])
    own = reply(generation_token_ids=[8], generation_log_probs=[-1.5], routed_experts="nr")
    found = adapter.extract(own)
    assert (found.generated, found.logprobs, found.extras) == (
        [8],
        [-1.5],
        {"routed_experts": "nr"},
    )
    inner = reply(prompt_token_ids=[5]) | {"prompt_token_ids": None}
    assert adapter.extract(inner).prompt == [5]
    assert adapter.enter_prefix({"a": 1}, [4]) == {"a": 1, "required_prefix_token_ids": [4]}
    assert adapter.enter_prefix({"a": 1}, []) == {"a": 1}


@pytest.mark.parametrize(
    "bad",
    [
        *(None, [], {}, {"choices": []}, {"choices": [1]}, {"choices": [{}]}),
        reply() | {"choices": reply()["choices"] * 2},
        reply() | {"prompt_token_ids": None},
        reply() | {"prompt_token_ids": [True]},
        reply(generation_token_ids=[1]),
        reply(generation_token_ids=["1"], generation_log_probs=[-1.0]),
        reply(routed_experts=5),
        reply() | {"media_spans": {}},
        reply() | {"media_spans": [1]},
        {"prompt_token_ids": [1], "choices": [{"message": {}, "logprobs": {"content": [{}]}}]},
        {
            "prompt_token_ids": [1],
            "choices": [
                {"message": {}, "logprobs": {"content": [{"token": "Hi", "logprob": -1.0}]}}
            ],
        },
    ],
)
def test_a_reply_that_does_not_hold_all_of_it_is_not_captured(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"reply|choice|message|logprob|ids|form|object|id"):
        VllmAdapter().extract(bad)
    sink = Memory()
    capture = worker(sink)
    assert capture.complete_from_reply(capture.begin(ROOT), bad).disposition == "capture_failed"
    assert not sink.staged


# -- routed experts

ROUTES = st.integers(1, 4).flatmap(
    lambda tokens: st.integers(1, 3).flatmap(
        lambda layers: st.integers(1, 3).flatmap(
            lambda choices: st.lists(
                st.lists(
                    st.lists(st.integers(-1, 127), min_size=choices, max_size=choices),
                    min_size=layers,
                    max_size=layers,
                ),
                min_size=tokens,
                max_size=tokens,
            )
        )
    )
)


@given(ROUTES, st.sampled_from(["int8", "int16", "int32"]))
def test_routes_come_back_and_tell_their_tokens(values: Any, dtype: str) -> None:
    text = encode_routes(values, dtype)
    found = decode_routes(text)
    assert found.values.tolist() == values
    assert found.dtype == dtype
    assert routed_tokens(text) == routed_tokens(values) == len(values)
    assert decode_routes(values).values.tolist() == values


def envelope(shape: str, raw: bytes, dtype: str = "int8", magic: str = "nrlre1") -> str:
    return f"{magic}:{dtype}:{shape}:{base64.b64encode(raw).decode()}"


@pytest.mark.parametrize(
    "bad",
    [
        envelope("1x1x1", b"\0", magic="nrlre2"),
        envelope("1x1x1", b"\0" * 8, dtype="int64"),
        envelope("1x1", b"\0"),
        envelope("0x1x1", b""),
        envelope("1x1x2", b"\0"),
        envelope("1x1x1", b"\0\0"),
        "nrlre1:int8:1x1x1:AA",
        "nrlre1:int8:1x1x1:A*==",
        "nrlre1:int8:1x1x1:AA==\n",
        "nrlre1:int8:01x1x1:AA==",
        "nrlre1:int8:9999999999x9999999999x9999999999:AA==",
        *([], [[]], [[[]]], [[[1], [2, 3]]], [[[1]], [[1], [2]]], [[[True]]], [[[1.0]]]),
        *([[[2**70]]], [1], None, 5, b"nrlre1:int8:1x1x1:AA=="),
    ],
)
def test_case_45_what_is_no_envelope(bad: Any) -> None:
    with pytest.raises(RecordError):
        decode_routes(bad)


def test_case_45_what_does_not_fit_is_not_written() -> None:
    with pytest.raises(RecordError, match="does not fit int8"):
        encode_routes([[[128]]], "int8")
    with pytest.raises(RecordError, match="not 'int64'"):
        encode_routes([[[1]]], "int64")
    with pytest.raises(RecordError, match="whole numbers"):
        encode_routes(np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("carry", "made", "staged", "span"),
    [
        *((3, 2, 5, "full"), (3, 2, 4, "tail"), (3, 2, 2, "tail"), (3, 2, 1, "sentinel")),
        *((0, 2, 2, "full"), (3, 2, 0, "sentinel"), (3, 0, 3, "full"), (3, 0, 2, "sentinel")),
    ],
)
def test_which_routes_belong_to_what_was_generated(
    carry: int, made: int, staged: int, span: str
) -> None:
    assert route_span(carry, made, staged) == span

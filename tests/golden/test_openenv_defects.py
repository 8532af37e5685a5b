"""OpenEnv 0.10's five seed defects and eleven other weak points: each is right here.

What another test proves already is not proved twice: `docs/reference/cases.md` lists it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from typing import Any

import httpx
import orjson
import pytest

from explorer.engine.scripted import ScriptedEngine
from explorer.errors import NotTrainable, RecordInconsistent
from explorer.records import (
    Call,
    CallId,
    CallStatus,
    CaptureLevel,
    Certificate,
    EventKind,
    FailureKind,
    Grade,
    LogprobKind,
    MaskReason,
    Purpose,
    Role,
    RolloutRecord,
)
from explorer.trace.assemble import training_trace
from explorer.trace.audit import capture_audit
from explorer.trace.mask import CallMask, Span
from explorer.trace.verdict import Judgement, judge
from explorer.trace.verify import verify
from tests.live import Live, serving
from tests.trace.build import (
    CERTIFIED,
    event,
    failed_call,
    make_call,
    override,
    record,
    two_turns,
)

TITLE = make_call("title", 0, [90, 91], [92, 93], n_tools=0)


def refused(made: RolloutRecord) -> list[str]:
    """The codes with which every format refuses a rollout."""
    judgement = judge(made)
    with pytest.raises(NotTrainable) as refusal:
        training_trace(made, judgement)
    codes = [reason["code"] for reason in refusal.value.details["reasons"]]
    assert codes == [reason.code for reason in judgement.reasons]
    return codes


def traced(made: RolloutRecord) -> tuple[Judgement, list[dict[str, Any]]]:
    judgement = judge(made)
    turns: list[dict[str, Any]] = orjson.loads(b"".join(training_trace(made, judgement)))[
        "turns"
    ]
    return judgement, turns


# -- seed defects -----------------------------------------------------------------------------


def masked(document: dict[str, Any]) -> None:
    for turn in document["turns"]:
        turn["loss_mask"] = [0] * len(turn["loss_mask"])
        turn["metadata"]["mask_spans"] = [[0, len(turn["loss_mask"]), "auxiliary"]]


def emptied(document: dict[str, Any]) -> None:
    masked(document)
    (turn,) = document["turns"]
    prompt = turn["prompt_token_ids"]
    turn.update(completion_token_ids=[], per_token_logps=[], loss_mask=[0] * len(prompt))
    turn["metadata"]["mask_spans"] = [[0, len(prompt), "prompt"]]
    turn["metadata"]["chain_hash"] = None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda document: document["turns"].clear(), "no_turns"),
        (masked, "nothing_trainable"),
        (emptied, "nothing_trainable"),
    ],
)
def test_seed_1_a_file_in_which_nothing_trains_is_no_trace(
    change: Callable[[dict[str, Any]], None], code: str
) -> None:
    """OpenEnv's class takes such a file; here it does not pass, whoever wrote it."""
    made = record(make_call("a", 1, [1, 2], [3, 4], n_tools=1))
    document = orjson.loads(b"".join(training_trace(made, judge(made))))
    change(document)
    report = verify(orjson.dumps(document))
    assert not report.ok
    assert not report.trainable
    assert any(code in problem for problem in report.problems), report.problems


def test_seed_1_a_rollout_in_which_nothing_trains_leaves_as_audit_only() -> None:
    for made, code in (
        (record(), "no_turns"),
        (record(failed_call("a", 1)), "no_turns"),
        (record(make_call("a", 1, [1], [], n_tools=1)), "nothing_trainable"),
        (record(make_call("a", 1, [1], [2], greedy=True)), "nothing_trainable"),
    ):
        assert refused(made) == [code]
        audit = b"".join(capture_audit(made, judge(made)))
        assert (verify(audit).ok, verify(audit).trainable) == (True, False)


@pytest.mark.parametrize(
    "certificate",
    [
        None,
        replace(CERTIFIED, logprob_kind=LogprobKind.UNKNOWN),
        replace(CERTIFIED, logprob_kind=LogprobKind.RAW),
        replace(CERTIFIED, logprob_kind=LogprobKind.LOGITS),
        replace(CERTIFIED, capture_level=CaptureLevel.LOGPROBS),
        replace(CERTIFIED, certifiable=False),
    ],
    ids=["none", "unknown", "raw", "logits", "level", "scripted"],
)
def test_seed_2_only_measured_processed_logprobs_train(certificate: Certificate | None) -> None:
    """That the calls came at the level `tokens`, or that somebody says so, proves nothing."""
    made = record(*two_turns(), certificate=certificate)
    codes = refused(made)
    assert set(codes) & {"uncertified_engine", "raw_logprobs", "scripted_engine"}
    assert judge(made).supervised_tokens == 0
    reasons = {mask.reason for mask in judge(made).masks.values()}
    assert reasons == {MaskReason.UNCERTIFIED}


def test_seed_2_the_evidence_and_its_time_stand_on_the_trace() -> None:
    _, turns = traced(record(*two_turns()))
    stamped = turns[0]["metadata"]["certificate"]
    assert stamped["logprob_kind"] == "processed"
    assert stamped["numbers"] == {"ratio": 1.0}
    assert stamped["time_us"] == CERTIFIED.time_us
    assert {item["metadata"]["certificate_id"] for item in turns} == {"cert-1"}


def test_seed_3_a_title_call_is_no_agent_when_the_agents_only_call_failed() -> None:
    made = record(TITLE, failed_call("main", 1, n_tools=5))
    judgement = judge(made)
    assert judgement.roles[CallId("title")].role is Role.AUXILIARY
    assert judgement.roles[CallId("main")].role is Role.FAILED
    assert judgement.n_agent_calls == 0
    assert judgement.supervised_tokens == 0
    assert refused(made) == ["nothing_trainable"]


@pytest.mark.parametrize("reward", [None, 0.0, 1.0])
def test_seed_4_a_rollout_that_failed_is_refused_whatever_its_reward(
    reward: float | None,
) -> None:
    closed = event(EventKind.CLOSED, ok=False, reward=reward, reason="tests failed")
    made = record(*two_turns(), events=[closed])
    assert judge(made).supervised_tokens == 3  # there is something to train, and still
    assert refused(made) == ["rollout_failed"]
    assert refused(record(events=[closed])) == ["rollout_failed", "no_turns"]


def test_seed_4_only_a_later_word_on_record_lets_it_through() -> None:
    """Nobody can wave a failed rollout through at export: that it is well after all is an
    event with a time, a reason and whoever said so, and travels in the audit."""
    closed = event(EventKind.CLOSED, 1, ok=False, reward=0.0)
    for kind in ("accept_logprobs", "accept_versions"):
        waved = [override(kind)]
        assert refused(record(*two_turns(), events=[closed], overrides=waved)) == [
            "rollout_failed"
        ]
    again = event(EventKind.REWARD, 2, ok=True, reward=1.0, reason="the grader was wrong")
    made = record(*two_turns(), events=[closed, again])
    judgement, _ = traced(made)
    audit = orjson.loads(b"".join(capture_audit(made, judgement)))
    assert [item["ok"] for item in audit["events"]] == [False, True]
    assert audit["events"][1]["reason"] == "the grader was wrong"


def test_seed_4_captured_as_text_is_never_for_training() -> None:
    first, second = two_turns()
    text = [replace(call, capture_level=CaptureLevel.TEXT) for call in (first, second)]
    made = record(*text, purpose=Purpose.TRAIN)
    assert refused(made) == ["capture_level_low", "nothing_trainable"]


def test_seed_5_a_rollout_of_one_call_is_a_warning_and_trains() -> None:
    judgement, turns = traced(record(make_call("a", 1, [1, 2], [3, 4], n_tools=1)))
    (single,) = [item for item in judgement.findings if item.code == "degenerate_rollout"]
    assert single.grade is Grade.WARN
    assert [item["loss_mask"] for item in turns] == [[0, 0, 1, 1]]


# -- the other weak points ------------------------------------------------------------------


def test_weak_6_one_bad_auxiliary_call_blocks_nothing_and_is_named() -> None:
    bad = replace(TITLE, logprobs=TITLE.logprobs[:1] if TITLE.logprobs is not None else None)
    made = record(bad, *two_turns())
    judgement, turns = traced(made)
    (found,) = [item for item in judgement.findings if item.code == "logprob_misalign"]
    assert (found.where.call_id, found.grade) == ("title", Grade.WARN)
    assert [item["node_id"] for item in turns] == ["a", "b"]
    # The same fault in a call of the agent blocks every format, by one gate.
    agents = replace(bad, n_tools=1)
    assert refused(record(agents, *two_turns())) == ["logprob_misalign"]


def test_weak_11_a_deletion_is_a_reason_and_takes_nothing_out_of_an_audit() -> None:
    deleted = event(EventKind.DELETED, 2)
    made = record(*two_turns(), events=[event(EventKind.CLOSED, ok=True), deleted])
    assert refused(made) == ["rollout_deleted"]
    audit = orjson.loads(b"".join(capture_audit(made, judge(made))))
    assert [call["call_id"] for call in audit["calls"]] == ["a", "b"]


def conversation(turns: int) -> RolloutRecord:
    """Each turn adds 30 tokens of environment and 10 sampled ones."""
    calls: list[Call] = []
    whole: list[int] = []
    for number in range(1, turns + 1):
        whole = [*whole, *range(30)]
        parent = calls[-1] if calls else None
        digests = tuple(f"{place:032x}" for place in range(2 * number - 1))
        calls.append(
            make_call(
                f"c{number}",
                number,
                whole,
                list(range(10)),
                parent=parent,
                n_tools=1,
                message_digests=digests,
            )
        )
        whole = [*whole, *range(10)]
    return record(*calls)


def test_weak_12_the_audit_holds_each_token_once_and_comes_in_pieces() -> None:
    """Twice the turns is twice the file, and no piece of it grows with the conversation."""
    sizes, pieces = [], []
    for turns in (50, 100, 200):
        made = conversation(turns)
        judgement = judge(made)
        chunks = [len(chunk) for chunk in capture_audit(made, judgement)]
        document = orjson.loads(b"".join(capture_audit(made, judgement)))
        ids = sum(
            len(call["prompt_delta"]) + len(call["completion_token_ids"])
            for call in document["calls"]
        )
        assert ids == 40 * turns == document["totals"]["stored_tokens"]
        sizes.append(sum(chunks))
        pieces.append(max(chunks[1:-1]))
        spans = [len(mask.own) for mask in judgement.masks.values()]
        assert max(spans) == 2
    assert sizes[2] < 4.2 * sizes[0]
    assert pieces[2] < 1.1 * pieces[0]


def test_weak_14_neither_of_two_last_answers_trains_and_an_unseen_reply_never_does() -> None:
    first, second = two_turns()
    again = make_call("c", 3, [1, 2, 3, 4, 5], [7], n_tools=2)
    judgement, turns = traced(record(first, second, again))
    assert judgement.roles[CallId("b")].ambiguous
    assert judgement.roles[CallId("c")].ambiguous
    assert {item["node_id"]: sum(item["loss_mask"]) for item in turns} == {
        "a": 2,
        "b": 0,
        "c": 0,
    }
    gone = replace(
        second,
        status=CallStatus.ABORTED,
        failure_kind=FailureKind.CLIENT_GONE,
        usage_prompt=None,
    )
    judgement, turns = traced(record(first, gone))
    assert judgement.masks[CallId("b")].reason is MaskReason.ABORTED
    assert [item["node_id"] for item in turns] == ["a"]


def test_weak_15_every_branch_leaves_and_not_only_the_longest() -> None:
    first, second = two_turns()
    short = make_call("c", 3, [1, 2, 3, 4, 9], [8], parent=first, n_tools=2)
    deeper = make_call("d", 4, [1, 2, 3, 4, 5, 6, 1], [2], parent=second, n_tools=2)
    _, turns = traced(record(first, second, short, deeper))
    assert [item["node_id"] for item in turns] == ["a", "b", "d", "c"]
    assert all(sum(item["loss_mask"]) for item in turns)


def test_weak_16_what_was_judged_cannot_be_changed_unseen() -> None:
    made = record(*two_turns())
    judgement = judge(made)
    with pytest.raises(FrozenInstanceError):
        judgement.trainable = False  # type: ignore[misc]
    mask = judgement.masks[CallId("a")]
    with pytest.raises(FrozenInstanceError):
        mask.own = ()  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        made.calls[0].completion = None  # type: ignore[misc]
    # A mask that would supervise a prompt token gives no bits at all.
    forged = CallMask(
        mask.call_id, 2, 4, (Span(0, 4, MaskReason.SAMPLED),), None, None, supervised=4
    )
    with pytest.raises(RecordInconsistent, match="prompt token"):
        forged.completion_bits()
    # Arrays can be written to, so the judgement is tied to what they held.
    assert made.calls[0].completion is not None
    made.calls[0].completion[0] = 9
    with pytest.raises(RecordInconsistent):
        training_trace(made, judgement)
    assert "chain_mismatch" in [reason.code for reason in judge(made).reasons]


# -- through the running server -------------------------------------------------------------

SCRIPT: list[dict[str, Any]] = [
    {"when": {"contains": "slow please"}, "text": "late", "delay_ms": 900},
    {"when": {"contains": "seed not allowed"}, "status": 400},
    {"when": {"contains": ""}, "text": "ok"},
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("defects") / "store.duckdb"
    with serving(ScriptedEngine(SCRIPT), store) as running:
        yield running


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_weak_9_there_is_no_second_door_beside_the_guarded_surfaces(live: Live) -> None:
    """No MCP: nothing answers there, so nothing can be started from there."""
    before = live.api("GET", "/api/v1/rollouts")["rollouts"]
    for path in ("/mcp", "/mcp/", "/sse", "/gradio_api/mcp", "/api/v1/mcp"):
        answer = httpx.post(
            live.url + path,
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call"},
            headers={"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        )
        assert answer.status_code in (401, 403, 404), path
    assert live.api("GET", "/api/v1/rollouts")["rollouts"] == before


COUNTS = (
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
    "/v1beta/models/m:countTokens",
)


@pytest.mark.parametrize("path", COUNTS)
def test_weak_10_counting_needs_a_key_and_survives_any_message(live: Live, path: str) -> None:
    assert httpx.post(live.url + path, json={}).status_code == 401
    rollout, key = live.create()
    odd: list[Any] = [None, 5, "x", [], [[]], [5], [{"role": 5}], [{"content": {}}], {"a": 1}]
    for value in odd:
        body = {"model": "m", "messages": value, "input": value, "contents": value}
        answer = httpx.post(live.url + path, json=body, headers={"x-api-key": key})
        assert answer.status_code < 500, (value, answer.text)
    assert live.calls(rollout) == []


def test_weak_10_health_says_nothing_of_the_engine(live: Live) -> None:
    for path in ("/healthz", "/readyz"):
        answer = httpx.get(live.url + path)
        assert "http" not in answer.text
        assert "engine" not in answer.text.lower() or "url" not in answer.text.lower()


def test_weak_11_a_new_rollout_never_merges_with_an_old_one(live: Live) -> None:
    """Ids are ours: a caller can neither choose one nor write into one that is there."""
    rollout, _ = live.create(purpose="train", budgets={"calls": 3})
    live.api("POST", "/api/v1/rollouts", {"rollout_id": rollout, "purpose": "eval"}, status=422)
    shown = live.api("GET", f"/api/v1/rollouts/{rollout}")
    assert shown["purpose"] == "train"
    assert shown["budgets"] == {"calls": 3}


def test_weak_11_closing_during_a_call_keeps_the_turn_and_says_so(live: Live) -> None:
    """The turn in flight ends, is on record, and the next request is told that it is over."""
    rollout, key = live.create()
    answers: list[httpx.Response] = []
    call = threading.Thread(
        target=lambda: answers.append(live.chat(key, messages=said("slow please")))
    )
    call.start()
    time.sleep(0.3)
    live.api("POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True})
    call.join(30)
    assert [answer.status_code for answer in answers] == [200]
    assert [item["status"] for item in live.calls(rollout)] == ["committed"]
    assert live.chat(key, messages=said("hi")).status_code == 400


def test_weak_11_a_deleted_rollout_takes_no_further_turn(live: Live) -> None:
    rollout, key = live.create()
    assert live.chat(key, messages=said("hi")).is_success
    live.api("DELETE", f"/api/v1/rollouts/{rollout}", status=204)
    assert live.chat(key, messages=said("hi")).status_code == 401
    live.api("GET", f"/api/v1/rollouts/{rollout}", status=404)


def test_weak_13_a_refused_request_changes_no_other_rollout(live: Live) -> None:
    """Nothing is learned from an error: no parameter is dropped, for this call or the next."""
    one, key = live.create()
    body: dict[str, Any] = {
        "messages": said("seed not allowed"),
        "seed": 7,
        "frequency_penalty": 0.5,
    }
    assert live.chat(key, **body).status_code == 400
    assert [call["status"] for call in live.calls(one)] == ["failed"]
    other, second = live.create()
    assert live.chat(second, messages=said("hi"), seed=7, frequency_penalty=0.5).is_success
    (call,) = live.calls(other)
    raw = live.api("GET", f"/api/v1/rollouts/{other}/raw/{call['call_id']}?kind=submitted")
    assert raw["seed"] == 7

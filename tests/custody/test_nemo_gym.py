"""Ours against the real `nemo-gym` 0.7.0, value for value and refusal for refusal.

Its metadata ask for Python 3.13.14, so it cannot stand in the environment of the tests. Name an
interpreter that has it in ROLLOUT_EXPLORER_NEMO_GYM_PYTHON (of Python 3.11 too, where it was
installed with `--no-deps --ignore-requires-python` beside pydantic and orjson); without one
these tests are skipped, and the golden vectors, which it confirmed, stand for it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from explorer.custody import conformance, records
from explorer.custody.adapter import VllmAdapter
from explorer.custody.admission import resolve_parent
from explorer.custody.canonical import canonical_arguments
from explorer.custody.digest import chain_hash, cumulative_hash
from explorer.custody.errors import FingerprintError, ReceiptVerificationError, RecordError
from explorer.custody.fields import Record
from explorer.custody.fingerprint import assistant_fingerprint, conversation_digest
from explorer.custody.jsonl import JsonlLedger
from explorer.custody.protocols import Material
from explorer.custody.rebuild import verify_and_linearize
from explorer.custody.records import CallRecord, CaptureLedgerCommit
from explorer.custody.routes import decode_routes, encode_routes, route_span, routed_tokens
from explorer.custody.staging import extras_digest, staging_digest
from explorer.custody.terminal import resolve_terminal, select_terminal_call
from explorer.custody.worker import CaptureError, RolloutTokenCapture
from tests.custody.build import SHARED, Rollout, linear, loose, random_tree

VARIABLE = "ROLLOUT_EXPLORER_NEMO_GYM_PYTHON"
PEER = Path(__file__).with_name("peer.py")
ROUNDS = int(os.environ.get("ROLLOUT_EXPLORER_NEMO_GYM_ROUNDS", "2000"))

pytestmark = pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"{VARIABLE} names no interpreter with nemo-gym 0.7.0"
)


def ask(questions: list[Any]) -> list[Any]:
    """The real package's answers."""
    done = subprocess.run(
        [os.environ[VARIABLE], str(PEER)],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[Any] = json.loads(done.stdout)
    assert len(answers) == len(questions)
    return answers


def ours(function: Callable[[], Any]) -> Any:
    """Our answer in the form of theirs."""
    try:
        return {"value": function()}
    except ReceiptVerificationError as error:
        return {"refused": error.code}
    except (TypeError, ValueError):
        return {"refused": "any"}


def same(theirs: Any, mine: Any) -> bool:
    """Equal values, or both refused (with one code where ours has one)."""
    if "refused" in mine and mine["refused"] == "any":
        return "refused" in theirs
    return bool(theirs == json.loads(json.dumps(mine)))


def _cumulative(tokens: list[Any]) -> str:
    return cumulative_hash(tokens).hex()


def _chain(parent: str | None, tokens: list[Any]) -> str:
    return chain_hash(None if parent is None else bytes.fromhex(parent), tokens).hex()


def compare(questions: list[Any], answers: list[Callable[[], Any]]) -> None:
    """Every answer is ours."""
    for question, theirs, mine in zip(questions, ask(questions), answers, strict=True):
        found = ours(mine)
        assert same(theirs, found), f"{question}: theirs {theirs}, ours {found}"


def test_every_golden_vector_is_theirs_too() -> None:
    vectors = conformance.load_golden_vectors()
    questions: list[Any] = []
    wanted: list[Any] = []
    for item in vectors["extras"]:
        questions.append(["extras", [item["extras"]]])
        wanted.append(item["digest"])
    for item in vectors["cumulative"]:
        questions.append(["cumulative", [item["tokens"]]])
        wanted.append(item["digest"])
    for item in vectors["chain"]:
        questions.append(["chain", [item["parent"], item["delta"]]])
        wanted.append(item["digest"])
    for item in vectors["staged_calls"]:
        questions.append(["staging", [item["call"]]])
        wanted.append(item["digest"])
    for item in vectors["arguments"]:
        questions.append(["arguments", [item["text"]]])
        wanted.append(item["canonical"])
    for item in vectors["fingerprints"]:
        for name in ("assistant", "conversation"):
            questions.append([name, [item["items"]]])
            wanted.append(item[name])
    for theirs, value, question in zip(ask(questions), wanted, questions, strict=True):
        assert theirs.get("value") == value, question
    cases = vectors["receipts"]["cases"]
    asked = [["receipt", [vectors["receipts"]["base"], case["changes"]]] for case in cases]
    for theirs, case in zip(ask(asked), cases, strict=True):
        assert theirs.get("refused") == case["code"], (case["name"], theirs)


INTEGERS = (0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1)
FLOATS = (0.0, -0.0, 1.0, -0.1, 1e15, 1e16, 1e22, 1e-5, 1e-6, 5e-324, 1.5e300, 2.0**-149)
TEXTS = ("", "a", "é", "\ud800", "😀", '"\\\x00\n', "None", "ﬀ\u0301", " x ", "[1]", "NaN")


def value(source: random.Random, depth: int = 3) -> Any:
    """Any JSON value, edge cases first."""
    kind = source.randint(0, 7 if depth else 5)
    if kind == 6:
        return [value(source, depth - 1) for _ in range(source.randint(0, 3))]
    if kind == 7:
        names = [source.choice(TEXTS) for _ in range(source.randint(0, 3))]
        return {name: value(source, depth - 1) for name in names}
    simple = (
        *(None, source.choice([True, False]), source.choice(INTEGERS), source.choice(FLOATS)),
        *(source.choice(TEXTS), source.uniform(-1e6, 1e6) * 10 ** source.randint(-20, 20)),
    )
    return simple[kind]


def test_digests_of_random_values() -> None:
    source = random.Random(1)
    questions: list[Any] = []
    answers: list[Callable[[], Any]] = []
    for _ in range(ROUNDS):
        extras = source.choice([None, {"a": value(source)}, value(source)])
        tokens: list[Any] = [
            source.choice([*INTEGERS[:7], 5, 5, 5, 5]) for _ in range(source.randint(0, 4))
        ]
        if source.random() < 0.1:
            tokens.append(source.choice([True, 1.0, "1", None, 2**64]))
        parent = source.choice([None, "ab" * 32])
        questions += [
            ["extras", [extras]],
            ["cumulative", [tokens]],
            ["chain", [parent, tokens]],
        ]
        answers += [
            partial(extras_digest, extras),
            partial(_cumulative, tokens),
            partial(_chain, parent, tokens),
        ]
    compare(questions, answers)


def test_staging_digests_of_random_calls() -> None:
    source = random.Random(2)
    questions: list[Any] = []
    answers: list[Callable[[], Any]] = []
    for seed in range(ROUNDS):
        fields = source.choice(random_tree(seed, 3).calls).to_json()
        fields.pop("digest")
        if source.random() < 0.5:
            name = source.choice(list(fields))
            fields[name] = source.choice(
                [value(source, 1), [value(source, 0)] * fields["delta_len"], None, 1.0, True]
            )
        if source.random() < 0.3:
            made = fields["generation_log_probs_delta"]
            if isinstance(made, list) and made:
                made[-1] = source.choice(
                    [2.0**-150, 1 + 2**-24, 3.5e38, 1e400, -1e-40, -0.0, 1]
                )
        questions.append(["staging", [fields]])
        answers.append(partial(staging_digest, loose(fields)))
    compare(questions, answers)


def item(source: random.Random) -> Any:
    """A random item of a conversation, mostly of a form that somebody sends."""
    part = {
        "type": source.choice(
            ["text", "input_text", "output_text", "refusal", "image_url", None]
        ),
        "text": source.choice(TEXTS),
        source.choice(["annotations", "x"]): value(source, 1),
    }
    use = {"type": "tool_use", "id": source.choice([*TEXTS, 5, None]), "name": "f"}
    use["input"] = value(source, 2)
    result = {"type": "tool_result", "tool_use_id": "t", "content": value(source, 1)}
    content = source.choice(
        [
            None,
            *TEXTS,
            [],
            [part],
            [part, use, result],
            [source.choice(TEXTS)],
            value(source, 1),
        ]
    )
    arguments = source.choice([json.dumps(value(source)), value(source, 2), *TEXTS])
    call = {"id": source.choice(TEXTS), "function": {"name": "g", "arguments": arguments}}
    return source.choice(
        [
            {"role": "user", "content": content},
            {"role": "assistant", "content": content},
            {"role": "assistant", "content": None, "tool_calls": [call] * source.randint(0, 2)},
            {"role": "tool", "tool_call_id": source.choice(TEXTS), "content": content},
            {"type": "function_call", "call_id": source.choice(TEXTS), "arguments": arguments},
            {
                "type": "function_call",
                "id": "i",
                "name": source.choice(TEXTS),
                "namespace": "n",
            },
            {"type": "function_call_output", "call_id": "c", "output": value(source, 2)},
            {"type": "reasoning", "summary": [value(source, 1)]},
            {
                "type": source.choice(TEXTS),
                "role": source.choice([*TEXTS, None]),
                "content": "x",
            },
        ]
    )


def test_fingerprints_of_random_conversations() -> None:
    source = random.Random(3)
    questions: list[Any] = []
    answers: list[Callable[[], Any]] = []
    for _ in range(ROUNDS):
        items = [item(source) for _ in range(source.randint(0, 4))]
        arguments = source.choice([value(source), json.dumps(value(source)), *TEXTS])
        questions += [["assistant", [items]], ["conversation", [items]]]
        questions.append(["arguments", [arguments]])
        answers += [
            partial(assistant_fingerprint, items),
            partial(conversation_digest, items),
            partial(canonical_arguments, arguments),
        ]
    compare(questions, answers)


def linearized(base: Any, changes: list[Any]) -> Any:
    """Our row in the form of theirs."""
    receipt, calls = conformance.changed(base, changes)
    row = verify_and_linearize(receipt, calls)
    return {
        "rollout_id": row.rollout_id,
        "token_ids": row.token_ids.tolist(),
        "token_mask": row.token_mask.tolist(),
        "logprobs": row.logprobs.tolist(),
        "model_call_ids": row.model_call_ids,
        "prompt_len": row.prompt_len,
        "weight_versions": row.weight_versions,
        "weight_version_spans": row.weight_version_spans,
        "link_spans": row.link_spans,
        "extras_commitments": row.extras_commitments,
    }


def damage(source: random.Random, rollout: Rollout) -> list[Any]:
    """Random changes of a rollout: fields of rows and calls, links, order."""
    changes: list[Any] = []
    names = [call.model_call_id for call in rollout.calls]
    for _ in range(source.choice([0, 1, 1, 2, 3])):
        index = source.randrange(len(names))
        other = source.choice(rollout.calls)
        both = source.choice([("row",), ("snapshot",), ("row", "snapshot")])
        kind = source.randint(0, 5)
        if kind == 0:
            places = source.choices(range(len(names)), k=len(names) - (source.random() < 0.3))
            changes += [{"do": "order", "of": of, "to": places} for of in both]
            names = [names[place] for place in places]
            if not names or len(both) == 1:
                break
            continue
        name: str
        to: Any
        name, to = source.choice(
            [
                ("parent_call_id", source.choice([None, "absent", other.model_call_id])),
                ("chain_hash", source.choice(["11" * 32, other.chain_hash])),
                ("cumulative_hash", source.choice(["11" * 32, other.cumulative_hash])),
                ("weight_version", 5),
                ("prev_len", other.cum_len),
                ("cum_len", other.cum_len),
                ("mode", "text"),
                ("rollout_id", "other"),
            ]
        )
        if name == "rollout_id":
            both = ("snapshot",)
        changes += [
            {"do": "set", "of": of, "index": index, "field": name, "to": to} for of in both
        ]
        if name == "parent_call_id" and to not in (None, "absent") and kind > 2:
            for of in both:
                set_to = {"do": "set", "of": of, "index": index}
                length = rollout.calls[index].delta_len
                changes.append({**set_to, "field": "prev_len", "to": other.cum_len})
                changes.append({**set_to, "field": "cum_len", "to": other.cum_len + length})
                changes.append({**set_to, "field": "mode", "to": "token_in"})
    return changes


def rehashable(base: Any, changes: list[Any], source: random.Random) -> list[Any]:
    """The changes, with the digests that then belong to the calls, where there are any."""
    tried = [*changes]
    for index in range(len(base["snapshots"])):
        attempt = [*tried, {"do": "rehash", "of": "snapshot", "index": index}]
        try:
            conformance.changed(base, attempt)
        except (TypeError, ValueError, IndexError):
            continue
        tried = attempt
    return tried if source.random() < 0.8 else changes


def test_random_rollouts_sound_and_damaged() -> None:
    source = random.Random(4)
    questions: list[Any] = []
    answers: list[Callable[[], Any]] = []
    for seed in range(ROUNDS):
        rollout = random_tree(seed)
        terminal = source.choice(rollout.calls).model_call_id
        base = {
            "receipt": rollout.receipt(terminal).to_json(),
            "snapshots": [call.to_json() for call in rollout.calls],
        }
        changes = rehashable(base, damage(source, rollout), source)
        questions.append(["receipt", [base, changes]])
        answers.append(partial(linearized, base, changes))
    compare(questions, answers)


def rewired(source: random.Random, rollout: Rollout) -> list[Any]:
    """New parents for most calls, lengths fitting more often than not."""
    ends = {call.model_call_id: call.cum_len for call in rollout.calls}
    changes: list[Any] = []
    for index, call in enumerate(rollout.calls):
        if source.random() < 0.3:
            continue
        parent = source.choice([*ends] * 4 + ["absent"])
        start = ends.get(parent, 3) if source.random() < 0.9 else 5
        end = start + call.delta_len
        values = {"parent_call_id": parent, "prev_len": start, "cum_len": end}
        values["mode"] = "token_in"
        ends[call.model_call_id] = end
        for name, to in values.items():
            for of in ("row", "snapshot"):
                changes.append({"do": "set", "of": of, "index": index, "field": name, "to": to})
        changes.append({"do": "rehash", "of": "snapshot", "index": index})
    return changes


def test_random_graphs() -> None:
    source = random.Random(6)
    questions: list[Any] = []
    answers: list[Callable[[], Any]] = []
    for seed in range(ROUNDS):
        rollout = random_tree(seed)
        base = {
            "receipt": rollout.receipt().to_json(),
            "snapshots": [call.to_json() for call in rollout.calls],
        }
        changes = rewired(source, rollout)
        questions.append(["receipt", [base, changes]])
        answers.append(partial(linearized, base, changes))
    compare(questions, answers)


def test_terminals_of_random_trees() -> None:
    source = random.Random(5)
    questions: list[Any] = []
    answers: list[Callable[[], Any]] = []
    says = [{"role": "assistant", "content": text} for text in ("x", "y", "z")]
    prints = [assistant_fingerprint([one]) for one in says]
    prints += [assistant_fingerprint(says[:2]), assistant_fingerprint([says[0]] * 2)]
    for seed in range(ROUNDS):
        rollout = random_tree(seed)
        rows: list[CallRecord] = []
        for call in rollout.calls:
            like = source.choice(rollout.calls)
            values: dict[str, Any] = {
                "response_id": source.choice(["r1", "r2", "r3"]),
                "output_fingerprint": source.choice([None, *prints]),
                "continuation_fingerprint": source.choice([None, *prints]),
                "fingerprint_version": source.choice([2, 2, 2, 1]),
            }
            if source.random() < 0.3 and like.cum_len == call.cum_len:
                values["cumulative_hash"] = like.cumulative_hash
                values["chain_hash"] = like.chain_hash
            if source.random() < 0.1 and call.parent_call_id:
                values["parent_call_id"] = source.choice(["absent", like.model_call_id])
            rows.append(rollout.row(call, **values))
        if source.random() < 0.1:
            rows.append(source.choice(rows))
        if source.random() < 0.05:
            rows = [row for row in rows if row.parent_call_id is not None]
        output = source.choice(
            [
                *(None, [], [5], "x", [says[0]], says[:2]),
                [says[0], {"role": "user"}, says[1]],
                [{"type": "reasoning"}, says[2]],
                [{"role": "assistant", "content": 5}],
            ]
        )
        response: dict[str, Any] | None = source.choice(
            [None, {"id": source.choice(["r1", "r9", "", None, 5])}]
        )
        if response is not None and output is not None:
            response["output"] = output
        explicit = source.choice([None, None, "call-0", "call-1", "absent"])
        declared = source.choice([None, None, "r1", "r2", "r9"])
        payloads = [row.to_json() for row in rows]
        questions += [
            ["select", [payloads]],
            ["resolve", [payloads, response, explicit, declared]],
        ]
        answers += [
            partial(select_terminal_call, rows),
            partial(
                resolve_terminal,
                rows,
                response,
                explicit_call_id=explicit,
                declared_response_id=declared,
            ),
        ]
    compare(questions, answers)


def conversation(count: int) -> list[dict[str, Any]]:
    """A dialogue of `count` rounds."""
    return [
        {"role": role, "content": f"{role} {index}"}
        for index in range(count)
        for role in ("user", "assistant")
    ]


def commits() -> list[CaptureLedgerCommit]:
    """The commits of a linear rollout with its conversation."""
    rollout, chain, found = linear(4), [], []
    for index, call in enumerate(rollout.calls):
        items = conversation(index + 1)
        chain.append(call.staging_key)
        found.append(
            CaptureLedgerCommit(
                rollout_id="r1",
                record=rollout.row(
                    call,
                    admitted_at=1.25 * index,
                    fingerprint_version=2,
                    output_fingerprint=assistant_fingerprint(items[-1:]),
                    continuation_fingerprint=assistant_fingerprint(items),
                ),
                staging_chain=tuple(chain),
                request_items=tuple(items[:-1]),
                response_items=tuple(items[-1:]),
            )
        )
    return found


def test_ledger_files_are_the_same_bytes(tmp_path: Path) -> None:
    made, failures = commits(), [["r1", "x", "worker_capture_failed"], ["r1", "c0", "odd é"]]
    theirs, mine = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    written = ask([["write", [str(theirs), [item.to_json() for item in made], failures]]])
    assert written == [{"value": True}]
    ledger = JsonlLedger(mine)
    for commit in made:
        ledger.record(commit)
    for rollout_id, call, reason in failures:
        ledger.record_failure(rollout_id, call, reason)
    name = "r1.lineage.jsonl"
    assert (mine / name).read_bytes() == (theirs / name).read_bytes()
    read, found = ask(
        [
            ["manifest", [str(mine), "r1"]],
            [
                "lineage",
                [str(mine), "r1", [*conversation(3), {"role": "user", "content": "u"}]],
            ],
        ]
    )
    assert read["value"] == JsonlLedger(theirs).manifest("r1").to_json()
    resolution = resolve_parent(JsonlLedger(theirs), "r1", [*conversation(3), {"role": "user"}])
    assert resolution.parent is not None
    call = resolution.parent.model_call_id
    chain = list(ledger.staging_chain("r1", call))
    assert found["value"] == [
        resolution.status,
        call,
        resolution.parent.cum_len,
        chain,
        resolution.parent.chain_hash,
    ]


def test_a_conversation_of_ours_is_refused_where_theirs_is() -> None:
    bad = [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[1e400]"}}]}]
    (theirs,) = ask([["assistant", [bad]]])
    assert theirs == {"value": assistant_fingerprint(bad)}
    with pytest.raises(FingerprintError):
        assistant_fingerprint([{"role": "assistant", "content": 5}])


# Where the real package takes a number for a boolean, or text that UTF-8 cannot write.
STRICTER = ("expected a boolean, got int", "got True", "got bool", "an unpaired surrogate")


def samples() -> list[Record]:
    """Sound records of every kind."""
    rollout = linear()
    coords: list[Record] = []
    for call in rollout.calls[:2]:
        fields = {name: getattr(call, name) for name in SHARED if name != "mode"}
        fields |= {"rollout_id": "r1", "staging_key": call.staging_key}
        coords.append(records.CommitCoords.parse(fields))
    child: dict[str, Any] = {
        "parent_call_id": "p",
        "prev_len": 2,
        "parent_chain_hash": "ab" * 32,
    }
    child |= {"mode": "token_in", "staging_chain": ["k"]}
    identity = {"rollout_id": "r1", "model_call_id": "a"}
    return [
        records.CaptureAdmission.parse({**identity, "mode": "text"}),
        records.CaptureAdmission.parse({**identity, **child}),
        records.StageResult(ok=True, staging_key="k"),
        records.StageResult(ok=False, error="e"),
        records.ManifestFailure(model_call_id="a", reason="x"),
        records.RolloutManifest(rollout_id="r1", records=rollout.rows()),
        records.StagedCallRecord.parse(rollout.calls[1].to_json()),
        rollout.receipt(),
        rollout.receipt(capture_poisoned=True, failure_reason="x"),
        *(*rollout.calls[:2], *rollout.rows()[:2], *coords, *commits()[:2]),
    ]


def test_records_of_random_fields() -> None:
    """Ours takes nothing that theirs refuses, and refuses more for three reasons only."""
    source = random.Random(7)
    likely: list[Any] = [
        None,
        "",
        0,
        1,
        3,
        1.5,
        "text",
        "token_in",
        "ab" * 32,
        [],
        True,
        "capture_failed",
    ]
    made = samples()
    questions: list[Any] = []
    found: list[Any] = []
    for _ in range(ROUNDS):
        sample = source.choice(made)
        payload = json.loads(json.dumps(sample.to_json()))
        for _ in range(source.choice([0, 1, 1, 2])):
            name = source.choice(sorted(payload))
            if source.random() < 0.15:
                del payload[name]
            else:
                payload[name] = source.choice([value(source, 1), *likely, [1, 2, 0.5], ["a"]])
        questions.append(["parse", [type(sample).__name__, payload]])
        try:
            found.append({"value": type(sample).parse(payload).to_json()})
        except RecordError as error:
            found.append(error.detail)
    taken = 0
    for question, theirs, mine in zip(questions, ask(questions), found, strict=True):
        if isinstance(mine, dict):
            assert theirs == mine, question
            taken += 1
        elif "value" in theirs:
            assert any(reason in mine for reason in STRICTER), (question, mine)
    assert taken > ROUNDS / 10


class _Sink:
    def __init__(self) -> None:
        self.staged: list[Any] = []

    def stage(self, record: records.StagedCallRecord, *, attachments: Any = None) -> Any:
        self.staged.append(record.to_json())
        return records.StageResult(ok=True, staging_key=record.staging_key)


def _captured(admission: Any, prefix: Any, version: int, material: Any) -> Any:
    sink = _Sink()
    worker = RolloutTokenCapture(sink, lambda: version)
    call = worker.begin(records.CaptureAdmission.parse(admission), prefix)
    given = Material(
        material["prompt_token_ids"],
        material["generated_token_ids"],
        material["generated_logprobs"],
        material["extras"],
    )
    return [worker.complete(call, given).to_json(), sink.staged]


def _call(rng: random.Random) -> list[Any]:
    """An admission, a prefix, a version and material; some of it does not fit."""
    before = [rng.randrange(1000) for _ in range(rng.choice((0, 0, 1, 5)))]
    child = bool(before)
    prompt = [*before, *(rng.randrange(2**20) for _ in range(rng.choice((0, 1, 4))))]
    made = [rng.choice((rng.randrange(2**20), 2**40)) for _ in range(rng.choice((0, 1, 3)))]
    logprobs = [rng.choice((-0.0, -rng.random() * 20, -1e-9)) for _ in made]
    if rng.random() < 0.1 and prompt:
        prompt[rng.randrange(len(prompt))] += 1
    if rng.random() < 0.1:
        logprobs.append(-1.0)
    if rng.random() < 0.1 and made:
        made[0] = -1
    prefix = list(before) if rng.random() < 0.9 else [*before, 1]
    admission: dict[str, Any] = {"rollout_id": "r", "model_call_id": "c", "mode": "text"}
    if child:
        admission |= {
            "mode": "token_in",
            "parent_call_id": "p",
            "prev_len": len(before),
            "parent_chain_hash": f"{rng.getrandbits(256):064x}",
        }
        if rng.random() < 0.5:
            admission["staging_chain"] = ["r/p"]
        else:
            admission["required_prefix_token_ids"] = before
    extras = rng.choice(
        (None, {}, {"routed_experts": "x", "n": [1, 1.5, None, True]}, {"n": 2**70})
    )
    material = {
        "prompt_token_ids": prompt,
        "generated_token_ids": made,
        "generated_logprobs": logprobs,
        "extras": extras,
    }
    return [admission, prefix, rng.randrange(3), material]


def test_the_worker_acknowledges_and_stages_what_theirs_does() -> None:
    rng = random.Random(31)
    asked = [_call(rng) for _ in range(ROUNDS)]
    answers = ask([["captured", each] for each in asked])
    staged = failed = refused = 0
    for each, theirs in zip(asked, answers, strict=True):
        try:
            mine = _captured(*each)
        except CaptureError:
            refused += 1
            assert theirs == {"refused": "CaptureError"}, each
            continue
        assert theirs.get("value") == json.loads(json.dumps(mine)), each
        staged += bool(mine[1])
        failed += not mine[1]
    assert min(staged, failed, refused) > ROUNDS // 50


def test_routes_are_read_and_written_alike() -> None:
    rng = random.Random(32)
    questions: list[Any] = []
    answers: list[Callable[[], Any]] = []

    def read(payload: Any) -> Any:
        return [decode_routes(payload).values.tolist(), routed_tokens(payload)]

    for _ in range(ROUNDS // 4):
        sizes = [rng.choice((1, 2, 3)) for _ in range(3)]
        values = [
            [[rng.randrange(-1, 140) for _ in range(sizes[2])] for _ in range(sizes[1])]
            for _ in range(sizes[0])
        ]
        dtype = rng.choice(("int8", "int16", "int32", "int64"))
        questions.append(["encode", [values, dtype]])
        answers.append(partial(encode_routes, values, dtype))
        payload: Any = values
        if rng.random() < 0.7:
            payload = encode_routes(values, "int16")
            if rng.random() < 0.5:
                at = rng.randrange(len(payload))
                payload = payload[:at] + rng.choice("x:1Aé") + payload[at + 1 :]
        questions.append(["decoded", [payload]])
        answers.append(partial(read, payload))
        span = [rng.randrange(4) for _ in range(3)]
        questions.append(["span", span])
        answers.append(partial(route_span, *span))
    compare(questions, answers)


def test_what_is_read_of_a_reply_of_vllm_is_what_they_read() -> None:
    """Theirs makes numbers of texts and texts of numbers; ours refuses such a reply."""
    rng = random.Random(33)
    replies = [_reply(rng) for _ in range(ROUNDS // 2)]
    taken = 0
    for reply, theirs in zip(replies, ask([["extracted", [r]] for r in replies]), strict=True):
        try:
            found = VllmAdapter().extract(reply)
        except ValueError:
            continue
        taken += 1
        mine = [found.prompt, found.generated, found.logprobs, found.extras]
        assert theirs == {"value": mine}, reply
    assert taken > len(replies) // 20


def _reply(rng: random.Random) -> Any:
    ids = [rng.randrange(100) for _ in range(rng.randrange(3))]
    message: dict[str, Any] = {"content": "x"}
    choice: dict[str, Any] = {"message": message}
    reply: dict[str, Any] = {"choices": [choice]}
    place = rng.choice((reply, message, {}))
    place["prompt_token_ids"] = rng.choice(([1, 2], [1], ["1"]))
    if rng.random() < 0.5:
        message["generation_token_ids"] = ids
        message["generation_log_probs"] = [-0.5 for _ in ids]
    if rng.random() < 0.7:
        form = rng.choice(("token_id:{}", "token_id:{}", "{}", "id:{}"))
        choice["logprobs"] = {
            "content": [{"token": form.format(each), "logprob": -0.25} for each in ids]
        }
    if rng.random() < 0.3:
        rng.choice((reply, message))["routed_experts"] = rng.choice(("x", [[[1]]], 5))
    if rng.random() < 0.1:
        reply["choices"] = reply["choices"] * rng.choice((0, 2))
    return reply

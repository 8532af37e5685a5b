"""Handed cases that are about a whole rollout and what leaves of it; and the table of all."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest

from explorer.errors import RecordInconsistent
from explorer.records import CallId, EventKind, MaskReason, WeightSpan
from explorer.trace.assemble import training_trace
from explorer.trace.audit import capture_audit
from explorer.trace.audit_reader import read_audit
from explorer.trace.mask import Span
from explorer.trace.policy import DEFAULT_POLICY, SHIPPED, Crossing
from explorer.trace.verdict import judge
from explorer.trace.verify import verify
from explorer.trace.versions import token_versions
from tests.trace.build import event, make_call, record, two_turns

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "cases.md"
# Handed as areas of the trace contract, with OpenEnv's five seed defects and eleven more.
WANTED = (
    *(f"tok-{number:02d}" for number in (1, 2, 4, 7, 8, 9, 12, 13, 14, 15, 16, 17, 18)),
    *(f"lp-{number:02d}" for number in (1, 2, 3, 4, 5, 7, 9)),
    *(f"fin-{number:02d}" for number in (1, 2, 3, 4)),
    *(f"mask-{number:02d}" for number in (1, 2, 4, 6, 7, 8, 11, 12)),
    *(f"uni-{number:02d}" for number in (2, 3, 4, 6)),
    *("clk-02", "ver-01", "rew-02"),
    # Of the explorer.
    *("ui-01", "csv-01", "size-01", "size-03", "size-04", "xss-01", "xss-03"),
    # Of who may see and take what.
    *(f"auth-{number:02d}" for number in (1, 4, 5, 6, 9, 10, 11, 12)),
    # Of datasets that are published.
    *(f"hub-{number:02d}" for number in (2, 3, 5, 6, 7)),
    "zip-01",
    *("csrf-01", "leak-01", "sec-02", "path-01", "dep-01"),
    # Of datasets.
    *("pq-01", "pq-02", "pq-04"),
    *(f"seed {number}" for number in range(1, 6)),
    *(f"weak {number}" for number in range(6, 17)),
)
NOT_YET: frozenset[str] = frozenset()


# -- cases ------------------------------------------------------------------------------------


def test_ver_01_a_call_across_a_sync_is_flagged_and_versions_travel_with_every_turn() -> None:
    first, second = two_turns()
    across = make_call("c", 3, [1, 2, 3, 4, 5, 6, 7], [8, 9], n_tools=2, weight_version_end=8)
    after = make_call(
        "d",
        4,
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 1],
        [2],
        n_tools=2,
        weight_version_start=8,
        weight_version_end=8,
    )
    made = record(first, second, across, after)
    judgement = judge(made)
    assert [(reason.code, reason.call_ids) for reason in judgement.reasons] == [
        ("version_crossed", ("c",))
    ]
    judgement = judge(made, SHIPPED["async"])
    assert judgement.trainable
    turns = orjson.loads(b"".join(training_trace(made, judgement)))["turns"]
    versions = [
        (turn["metadata"]["weight_version_start"], turn["metadata"]["weight_version_end"])
        for turn in turns
    ]
    assert versions == [(7, 7), (7, 7), (7, 8), (8, 8)]
    # By token: whatever trains has one version, and the call across has none that trains.
    per_token = [
        start
        for turn, (start, _) in zip(turns, versions, strict=True)
        for bit in turn["loss_mask"]
        if bit
    ]
    assert per_token == [7, 7, 7, 8]
    assert turns[0]["metadata"]["provenance"]["weight_versions"] == [7, 8]
    spans = [turn["metadata"]["weight_version_spans"] for turn in turns]
    assert spans == [[[0, 2, 7]], [[0, 1, 7]], [[0, 2, None]], [[0, 1, 8]]]
    assert [token_versions(call) for call in made.calls] == [[7, 7], [7], [None, None], [8]]


def test_ver_01_the_engines_spans_expand_a_call_across_a_sync_to_its_tokens() -> None:
    first, second = two_turns()
    across = make_call(
        "c",
        3,
        [1, 2, 3, 4, 5, 6, 7],
        [8, 9],
        n_tools=2,
        weight_version_end=8,
        weight_spans=(WeightSpan("7", 7, 0, 1), WeightSpan("8", 8, 1, 2)),
    )
    made = record(first, second, across)
    # By default it still does not train: the version of each token is known, and they differ.
    assert [reason.code for reason in judge(made).reasons] == ["version_crossed"]
    trains = judge(made, replace(SHIPPED["async"], version_crossed=Crossing.TRAIN))
    assert trains.trainable
    audit = orjson.loads(b"".join(capture_audit(made, trains)))
    assert [call["version_spans"] for call in audit["calls"]] == [
        [[0, 2, 7, 0]],
        [[0, 1, 7, 0]],
        [[0, 1, 7, 1], [1, 2, 8, 0]],
    ]
    assert read_audit(audit).record.calls[2].weight_spans == across.weight_spans


@pytest.mark.parametrize("trains", [True, False])
def test_fin_04_what_becomes_of_cut_turns_is_a_switch_that_every_export_names(
    trains: bool,
) -> None:
    first, second = two_turns()
    made = record(first, replace(second, finish_reason="length"))
    policy = replace(DEFAULT_POLICY, name="mine", train_truncated=trains)
    judgement = judge(made, policy)
    assert "truncated_turn" in [item.code for item in judgement.findings_of(CallId("b"))]
    bits = judgement.masks[CallId("b")].bits().tolist()
    assert bits == [0, 0, 0, 0, 0, int(trains)]
    trace = orjson.loads(b"".join(training_trace(made, judgement)))
    audit = orjson.loads(b"".join(capture_audit(made, judgement)))
    for written in (trace["turns"][0]["metadata"]["policy"], audit["policy"]):
        assert (written["name"], written["train_truncated"]) == ("mine", trains)


@pytest.mark.parametrize("by", [-1, 1])
def test_mask_01_a_mask_of_another_length_stops_the_export(by: int) -> None:
    made = record(*two_turns())
    judgement = judge(made)
    mask = judgement.masks[CallId("b")]
    longer = replace(
        mask,
        length=mask.length + by,
        own=(*mask.own[:-1], Span(5, 6 + by, MaskReason.SAMPLED)),
    )
    forged = replace(judgement, masks={**judgement.masks, CallId("b"): longer})
    with pytest.raises(RecordInconsistent):
        b"".join(training_trace(made, forged))
    document = orjson.loads(b"".join(training_trace(made, judgement)))
    bits = document["turns"][1]["loss_mask"]
    document["turns"][1]["loss_mask"] = bits[:-1] if by < 0 else [*bits, 1]
    report = verify(orjson.dumps(document))
    assert not report.ok
    assert any("length_mismatch" in problem for problem in report.problems)


def test_mask_08_a_failed_rollout_without_calls_has_no_row_and_is_told() -> None:
    made = record(events=[event(EventKind.CLOSED, ok=False, reward=0.0)])
    judgement = judge(made)
    audit = orjson.loads(b"".join(capture_audit(made, judgement)))
    assert (audit["totals"]["calls"], audit["calls"]) == (0, [])
    codes = [reason["code"] for reason in audit["verdict"]["reasons"]]
    assert codes == ["rollout_failed", "no_turns"]
    assert (audit["reward"], audit["state"]["ok"]) == (0.0, False)


# -- the table -----------------------------------------------------------------------------


def rows() -> list[tuple[str, str, list[str]]]:
    """Id, what must hold and the tests of every line of the table."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and re.fullmatch(r"`[a-z]+[- ]\d+`", cells[0]):
            found.append(
                (cells[0].strip("`"), cells[1], re.findall(r"`(tests/[^`]+)`", cells[2]))
            )
    return found


ROWS = rows()


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


def test_the_table_has_every_case_once() -> None:
    assert [name for name, *_ in ROWS] == list(dict.fromkeys(name for name, *_ in ROWS))
    assert {name for name, *_ in ROWS} == set(WANTED)


@pytest.mark.parametrize(
    ("name", "holds", "tests"), ROWS, ids=[row[0].replace(" ", "-") for row in ROWS]
)
def test_every_test_of_the_table_exists(name: str, holds: str, tests: list[str]) -> None:
    assert len(holds) > 20
    assert bool(tests) is (name not in NOT_YET)
    for test in tests:
        path, _, function = test.partition("::")
        assert function in functions(ROOT / path), test


def test_a_test_that_carries_a_cases_id_is_in_the_table() -> None:
    """So that a reader of the table misses none of them."""
    listed = {(name, test) for name, _, tests in ROWS for test in tests}
    missing: list[Any] = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for function in functions(path):
            test = f"{path.relative_to(ROOT).as_posix()}::{function}"
            for kind, number in re.findall(r"(?<![a-z])([a-z]+)_(\d+)(?!\d)", function):
                spelt = {f"{kind}-{number}", f"{kind} {number}"} & set(WANTED)
                missing += [(name, test) for name in spelt if (name, test) not in listed]
    assert missing == []

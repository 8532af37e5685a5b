"""Every reason has one golden rollout in which it holds and a nearest neighbour in which it
does not, and every surface says the same about each.

`masks/NAME.fails.json`: the sampled tokens at `at` have that reason, and nothing else has.
`masks/NAME.passes.json`: one fact is another, nothing has the reason, and the tokens train.
`verdicts/CODE.fails.json` and `.passes.json`: the same for what forbids training.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given

from explorer.errors import NotTrainable, RolloutOpen
from explorer.records import Call, Grade, MaskReason
from explorer.trace import refusals as refusals_module
from explorer.trace import verdict as verdict_module
from explorer.trace.assemble import training_trace
from explorer.trace.audit import capture_audit
from explorer.trace.audit_reader import read_audit
from explorer.trace.findings import FINDINGS
from explorer.trace.refusals import refusals
from explorer.trace.verdict import judge
from explorer.trace.verify import verify
from tests.golden.reading import Golden, names, read
from tests.trace.build import record
from tests.trace.test_properties import faulty

TRACE = Path(inspect.getfile(verdict_module)).parent
# Reasons that only say where a token stands: other tokens have them in any rollout.
STRUCTURE = frozenset(
    (
        MaskReason.SAMPLED,
        MaskReason.PROMPT,
        MaskReason.ENVIRONMENT,
        MaskReason.OWNED_BY_OTHER_ROW,
    )
)
# Graded anew where they are found, and never FATAL.
NEVER_FATAL = frozenset(("prefix_break",))


def literals(module: Any, function: str) -> set[str]:
    """The codes that a module gives to calls of `function`."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.add(first.value)
    return found


def graded_anew() -> set[str]:
    """The codes whose grade is not always that of the table."""
    found = {"version_crossed"}  # `verdict._refuse_crossings`
    for path in TRACE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") == "make_finding"
                and len(node.args) > 3
                and isinstance(node.args[0], ast.Constant)
            ):
                found.add(str(node.args[0].value))
    return found


def reason_codes() -> set[str]:
    """Every code that can stand against a rollout."""
    fatal = {code for code, spec in FINDINGS.items() if spec.grade is Grade.FATAL}
    stated = literals(verdict_module, "Reason") | literals(refusals_module, "Reason")
    return fatal | (graded_anew() - NEVER_FATAL) | stated


MASKS = sorted(MaskReason)
CODES = sorted(reason_codes())
every_file = pytest.mark.parametrize(
    ("kind", "name", "end"),
    [
        (kind, name, end)
        for kind, all_names in (("masks", MASKS), ("verdicts", CODES))
        for name in all_names
        for end in ("fails", "passes")
    ],
    ids=lambda value: str(value),
)


def mask_at(golden: Golden) -> set[str]:
    """The reasons that the file expects at its place."""
    assert golden.at is not None, golden.path.name
    call_id, start, end = golden.at
    found = set()
    for first, last, why in golden.calls[call_id][2]:
        if first < end and start < last:
            found.add(why)
    return found


def expected_spans(golden: Golden) -> list[tuple[str, int, int, str]]:
    return [
        (call_id, start, end, why)
        for call_id, (_, _, spans) in golden.calls.items()
        for start, end, why in spans
    ]


# -- the closed lists are covered ---------------------------------------------------------


def test_every_reason_has_its_pair_and_no_file_is_left_over() -> None:
    for kind, wanted in (("masks", set(MASKS)), ("verdicts", set(CODES))):
        for end in ("fails", "passes"):
            assert names(kind, end) == {str(name) for name in wanted}


def test_the_codes_are_those_of_the_program() -> None:
    """The list is read from the code; these stand for its four sources."""
    assert {"token_count_mismatch", "version_crossed", "rollout_open", "reward_missing"} <= set(
        CODES
    )
    assert literals(verdict_module, "Reason") == {
        "rollout_deleted",
        "rollout_open",
        "rollout_failed",
        "eval_purpose",
    }
    assert literals(refusals_module, "Reason") == {"reward_missing"}
    assert graded_anew() >= {"version_crossed", "atif_aux_calls", "atif_calls_missing"}


@given(faulty())
def test_no_rollout_has_a_reason_outside_the_lists(calls: list[Call]) -> None:
    judgement = judge(record(*calls))
    assert {reason.code for reason in judgement.reasons} <= set(CODES)
    assert set(judgement.mask_counts) <= set(MASKS)


# -- what a person decided is what the judge decides ----------------------------------------


@every_file
def test_the_judge_decides_what_a_person_decided(kind: str, name: str, end: str) -> None:
    golden = read(kind, name, end)
    judgement = judge(golden.record, golden.policy)
    found = {
        call_id: (
            str(judgement.roles[call_id].role),
            judgement.roles[call_id].rule,
            [
                (span.start, span.end, str(span.reason))
                for span in judgement.masks[call_id].spans
            ],
        )
        for call_id in judgement.tree.nodes
    }
    assert found == golden.calls
    against = {
        reason.code: [str(call_id) for call_id in reason.call_ids]
        for reason in refusals(judgement, golden.needs)
    }
    assert against == golden.reasons
    assert list(against) == list(golden.reasons)
    assert golden.trainable is not bool(against)


@every_file
def test_every_surface_says_the_same(kind: str, name: str, end: str) -> None:
    golden = read(kind, name, end)
    judgement = judge(golden.record, golden.policy)
    codes = list(golden.reasons)
    if codes:
        wanted = RolloutOpen if "rollout_open" in codes else NotTrainable
        with pytest.raises((NotTrainable, RolloutOpen)) as refusal:
            training_trace(golden.record, judgement, golden.needs)
        assert type(refusal.value) is wanted
        assert refusal.value.status == 409
        assert [item["code"] for item in refusal.value.details["reasons"]] == codes
    else:
        trace = b"".join(training_trace(golden.record, judgement, golden.needs))
        turns = orjson.loads(trace)["turns"]
        ones = sum(sum(turn["loss_mask"]) for turn in turns)
        assert ones == judgement.supervised_tokens > 0
        report = verify(trace)
        assert (report.ok, report.problems) == (True, ())
    audit = b"".join(capture_audit(golden.record, judgement))
    report = verify(audit)
    assert (report.ok, report.problems) == (True, ())
    of_the_rollout = [code for code in codes if code != "reward_missing"]
    assert report.facts["reasons"] == of_the_rollout
    assert report.trainable is not bool(of_the_rollout)
    if not codes:
        assert verify(trace, audit).problems == ()
    again = read_audit(orjson.loads(audit))
    assert judge(again.record, again.policy).inputs_sha256 == judgement.inputs_sha256


# -- what makes a pair ----------------------------------------------------------------------


@pytest.mark.parametrize("reason", [item for item in MASKS if item is not MaskReason.SAMPLED])
def test_a_mask_reason_holds_there_and_nowhere_else(reason: MaskReason) -> None:
    fails, passes = read("masks", reason, "fails"), read("masks", reason, "passes")
    assert mask_at(fails) == {str(reason)}
    assert mask_at(passes) == {"sampled"}
    if reason in STRUCTURE:
        return
    assert fails.at is not None
    elsewhere = {
        why
        for call_id, start, end, why in expected_spans(fails)
        if not (call_id == fails.at[0] and fails.at[1] <= start and end <= fails.at[2])
        # Of two answers that nobody took both are in doubt.
        and not (reason is MaskReason.AMBIGUOUS_SIBLING and call_id == "b")
    }
    assert str(reason) not in elsewhere
    assert str(reason) not in {why for *_, why in expected_spans(passes)}
    assert passes.trainable


def test_sampled_is_the_reason_that_trains() -> None:
    fails, passes = read("masks", "sampled", "fails"), read("masks", "sampled", "passes")
    assert mask_at(passes) == {"sampled"}
    assert passes.trainable
    assert "sampled" not in {why for *_, why in expected_spans(fails)}
    assert not fails.trainable


@pytest.mark.parametrize("code", CODES)
def test_a_verdict_reason_holds_in_one_of_the_two(code: str) -> None:
    fails, passes = read("verdicts", code, "fails"), read("verdicts", code, "passes")
    # Nothing else stands against the rollout, but that nothing is left may follow.
    assert set(fails.reasons) - {"nothing_trainable"} <= {code}
    assert code in fails.reasons
    assert passes.reasons == {}
    assert mask_at(passes) == {"sampled"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("masks", name) for name in MASKS] + [("verdicts", code) for code in CODES],
)
def test_the_two_of_a_pair_differ_in_one_fact(kind: str, name: str) -> None:
    """One member of the rollout, or one call; the files say it in words, too."""
    fails, passes = read(kind, name, "fails"), read(kind, name, "passes")
    said = {"about", "at", "expect", "calls"}
    one, two = fails.document, passes.document
    members = {
        key for key in (set(one) | set(two)) - said if one.get(key, None) != two.get(key, None)
    }
    calls = {
        call["call"]
        for here, there in ((one, two), (two, one))
        for call in here["calls"]
        if call not in there["calls"]
    }
    assert len(members) + len(calls) == 1, (members, calls)
    assert one["about"] != two["about"]

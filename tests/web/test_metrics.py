"""Entropy, weight versions, the worst tokens and a branch's numbers: each from the record."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from explorer.export.judged import Judged
from explorer.records import WeightSpan
from explorer.trace.sequences import Sequences
from explorer.trace.verdict import judge
from explorer.web.alternatives import entropies_of, entropy_of
from explorer.web.branch import CROSSED, ENTROPY_EDGES, METRICS, VERSION_CLASSES, branch_view
from explorer.web.legends import legend
from tests.trace.build import record, two_turns
from tests.web.conftest import Site


def row(*shares: float) -> list[tuple[int | None, str, float | None]]:
    return [(n, "t", math.log(share)) for n, share in enumerate(shares)]


def test_entropy_counts_the_rest_as_one_outcome() -> None:
    assert entropy_of(row(1.0)) == pytest.approx(0.0, abs=1e-9)
    assert entropy_of(row(0.5, 0.5)) == pytest.approx(math.log(2))
    assert entropy_of(row(0.5, 0.25)) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))


@pytest.mark.parametrize(
    "alternatives",
    [
        [],
        [(1, "a", None)],
        row(0.9, 0.8),
        [(1, "a", math.nan)],
        [(1, "a", 3.0)],
        [*row(0.5), (9, "a", 3.0)],
    ],
    ids=["none", "null", "more than one", "not a number", "above one", "one above one"],
)
def test_what_is_no_distribution_has_no_entropy(alternatives: Any) -> None:
    assert entropy_of(alternatives) is None


def test_entropies_need_a_row_for_every_token(site: Site) -> None:
    call = site.made["ranked"].calls[0]
    assert call.completion is not None
    rows = json.loads(call.top_logprobs or b"[]")
    assert entropies_of(call).size == call.completion.size
    assert entropies_of(replace(call, top_logprobs=json.dumps(rows[:-1]).encode())).size == 0
    assert entropies_of(replace(call, top_logprobs=None)).size == 0


def values(site: Site, name: str, column: str) -> np.ndarray[Any, Any]:
    kind = "<f4" if column.endswith("-values") else "u1"
    path = site.url(f"/rollouts/{{{name}}}/columns/{column}")
    return np.frombuffer(site.client.get(path).content, dtype=kind)


def test_columns_agree_with_their_values(site: Site) -> None:
    entropy, bins = values(site, "ranked", "entropy-values"), values(site, "ranked", "entropy")
    known = ~np.isnan(entropy)
    assert known.any()
    assert (np.digitize(entropy[known], ENTROPY_EDGES) == bins[known]).all()
    assert not np.isin(bins[~known], range(1, 9)).any()
    logprobs = values(site, "ranked", "logprob-values")
    masks = values(site, "ranked", "mask")
    assert np.isnan(logprobs[masks == 0]).all()
    # The inspector says the same number.
    at = int(np.flatnonzero(known)[0])
    token: Any = site.json(f"/rollouts/{{ranked}}/tokens/inspect.json?t={at}")["token"]
    assert token["entropy"] == pytest.approx(float(entropy[at]), abs=1e-5)
    assert token["weight_text"] == "7"
    assert values(site, "small", "entropy").max() in (0, 9)


def test_every_metric_has_a_class_for_every_code(site: Site) -> None:
    for metric, classes in METRICS.items():
        codes = set(values(site, "ranked", metric).tolist())
        assert max(codes) < len(classes) == (5 if metric == "mask" else 10)
        assert (
            site.client.get(site.url(f"/rollouts/{{ranked}}/tokens?m={metric}")).status_code
            == 200
        )


def test_versions_are_named_and_a_change_within_a_call_is_its_own(site: Site) -> None:
    twin: Any = site.json("/rollouts/{small}/tokens.json?m=version")
    assert twin["metric"] == "version"
    assert twin["legend"]["versions"] == [["v0", "7"]]
    first, second = two_turns()
    crossed = replace(second, weight_version_start=8, weight_version_end=9)
    spans = (WeightSpan("8", 8, 0, 1),)
    whole = replace(crossed, weight_version_end=8)
    unknown = "unknown: changed within the call"
    for last, wanted, named in (
        (crossed, CROSSED, unknown),
        (whole, 2, "8"),
        # What the engine says of each token wins over what the call saw.
        (replace(crossed, weight_spans=spans), 2, "8"),
    ):
        made = record(first, last)
        judged = Judged(made, judge(made), Sequences(made.calls))
        view = branch_view(judged, last.call_id)
        own = view.segments[-1]
        assert set(view.version_column[own.start : own.end].tolist()) == {wanted}
        assert [text for _, text in legend(judged, view).versions] == ["7", named]
    assert VERSION_CLASSES[CROSSED] == "vx"


def test_the_worst_tokens_are_the_lowest_logprobs(site: Site) -> None:
    twin: Any = site.json("/rollouts/{forked}/tokens.json")
    logprobs = values(site, "forked", "logprob-values")
    worst = twin["worst"]
    assert 0 < len(worst) <= 12
    lowest = np.sort(logprobs[~np.isnan(logprobs)])[: len(worst)]
    assert [item["logprob"] for item in worst] == pytest.approx(lowest.tolist())
    for item in worst:
        assert float(logprobs[item["index"]]) == pytest.approx(item["logprob"])


def test_turns_in_numbers_add_up(site: Site) -> None:
    twin: Any = site.json("/rollouts/{forked}/tokens.json")
    turns = twin["turns"]
    assert sum(turn["sampled"] for turn in turns) == twin["sampled_tokens"]
    assert sum(turn["trained"] for turn in turns) == twin["trained_tokens"]
    assert sum(turn["outliers"] for turn in turns) == twin["outliers"]

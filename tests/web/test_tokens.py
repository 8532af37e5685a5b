"""The token pane shows the captured tokens, all of them, and nothing else."""

from __future__ import annotations

from html import unescape
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.trace.decode import REST_MARK, pieces, visible
from explorer.web.alternatives import BEYOND, NO_VALUE, rank_code, rank_of
from explorer.web.markup import BLOCK, LONGEST_BLOCK, base_classes, cuts, token_text
from tests.web.conftest import Site
from tests.web.parsing import read
from tests.web.vocabulary import table


def shown_text(text: str) -> str:
    """What an element's text must be: hidden characters spelled out, the rest as is."""
    return "".join(c if c in " \n\t" else visible(c) for c in text)


@pytest.mark.parametrize("name", ["small", "forked", "hostile", "refused", "ranked", "open"])
def test_shown_tokens_are_the_captured_tokens(site: Site, name: str) -> None:
    twin = site.json(f"/rollouts/{{{name}}}/tokens.json")
    leaf = twin["branch"]
    made = site.made[name]
    ids = next(made.fulls[call.call_id] for call in made.calls if call.call_id == leaf)
    sections = twin["sections"]
    assert isinstance(sections, list)
    assert [token for section in sections for token in section["token_ids"]] == ids
    tokens = read(site.text(f"/rollouts/{{{name}}}/tokens")).tokens
    drawn = pieces(ids, table())
    assert len(tokens) == len(ids)
    assert b"".join(piece.raw for piece in drawn) == b"".join(table()[i][0] for i in ids)
    for token, piece in zip(tokens, drawn, strict=True):
        assert token.text == shown_text(piece.text)


@given(st.lists(st.integers(0, len(table()) - 1), max_size=60))
def test_any_tokens_keep_their_text(ids: list[int]) -> None:
    for piece in pieces(ids, table()):
        shown = unescape(token_text(piece).replace("<u></u>", ""))
        for tag in ("<b class=ctl>", "</b>", "<u class=t></u>"):
            shown = shown.replace(tag, "")
        if "\ufffd" in piece.text:
            assert shown == piece.display.removeprefix(REST_MARK)
        else:
            assert shown == shown_text(piece.text)
        assert ("u" in base_classes(piece).split()) == (
            piece.partial == "rest" and not piece.text
        )


@given(
    st.lists(st.integers(0, 5_000), unique=True).map(sorted),
    st.integers(0, 3_000),
    st.integers(0, 2_000),
)
def test_blocks_cover_a_section_and_end_at_line_ends(
    ends: list[int], start: int, length: int
) -> None:
    end = start + length
    inside = [place for place in ends if start <= place < end]
    edges = cuts(inside, start, end)
    assert (edges[0], edges[-1]) == (start, end)
    for first, last in pairwise(edges):
        assert first < last or start == end
        assert last - first <= LONGEST_BLOCK
        if last != end and last - 1 not in inside:
            # Only where no line ends in reach.
            assert last - first == BLOCK
            assert not [place for place in inside if first <= place < first + LONGEST_BLOCK]


def test_mask_on_screen_is_the_verdicts(site: Site) -> None:
    for name in ("small", "ranked", "hostile"):
        twin = site.json(f"/rollouts/{{{name}}}/tokens.json")
        header = twin["header"]
        assert isinstance(header, dict)
        assert twin["trained_tokens"] == header["verdict"]["supervised_tokens"]
        column = site.client.get(site.url(f"/rollouts/{{{name}}}/columns/mask")).content
        assert column.count(1) == twin["trained_tokens"]


def test_columns_agree_with_the_page(site: Site) -> None:
    tokens = read(site.text("/rollouts/{small}/tokens")).tokens
    column = site.client.get(site.url("/rollouts/{small}/columns/logprob")).content
    names = ["", "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "bn"]
    for token, code in zip(tokens, column, strict=True):
        classes = token.attributes.get("class", "").split()
        assert [c for c in classes if c[0] == "b"] == ([names[code]] if code else [])


def test_a_missing_logprob_is_no_value_and_never_zero(site: Site) -> None:
    page = site.json("/rollouts/{refused}/tokens.json")
    sections = page["sections"]
    assert isinstance(sections, list)
    at = sections[1]["start"] + 3
    column = site.client.get(site.url("/rollouts/{refused}/columns/logprob")).content
    assert column[at] == NO_VALUE
    token = site.json(f"/rollouts/{{refused}}/tokens/inspect.json?t={at}")["token"]
    assert isinstance(token, dict)
    assert token["logprob"] is None
    assert token["probability"] is None
    assert "0.0" not in token["logprob_text"]
    assert token["reason"] == "logprob_missing"


def test_inspector_has_bytes_id_and_logprob(site: Site) -> None:
    made = site.made["small"]
    last = made.calls[-1]
    assert last.logprobs is not None
    ids = made.fulls[last.call_id]
    at = len(ids) - 2
    token = site.json(f"/rollouts/{{small}}/tokens/inspect.json?t={at}")["token"]
    assert isinstance(token, dict)
    assert token["token_id"] == ids[at]
    assert bytes.fromhex(token["hex_bytes"]) == table()[ids[at]][0]
    assert np.float32(token["logprob"]) == last.logprobs[-2]
    assert token["trained"] is True


def test_ids_column_is_the_ids(site: Site) -> None:
    made = site.made["forked"]
    leaf = site.json("/rollouts/{forked}/tokens.json")["branch"]
    data = site.client.get(site.url(f"/rollouts/{{forked}}/columns/ids?branch={leaf}")).content
    ids = next(made.fulls[call.call_id] for call in made.calls if call.call_id == leaf)
    assert np.frombuffer(data, "<i4").tolist() == ids


def test_discarded_branch_is_shown_hatched(site: Site) -> None:
    twin = site.json("/rollouts/{forked}/tokens.json")
    tree = twin["tree"]
    assert isinstance(tree, list)
    discarded = [row for row in tree if row["role"] == "discarded"]
    assert discarded[0]["rule"] == "sibling_continued"
    page = read(site.client.get(discarded[0]["href"].split("#")[0]).text)
    sections = [e for e in page.elements if "turn" in e.attributes.get("class", "").split()]
    assert "hatched" in sections[-1].attributes["class"]


def test_every_call_stands_in_the_tree_once(site: Site) -> None:
    for name, made in site.made.items():
        tree = site.json(f"/rollouts/{{{name}}}/tokens.json")["tree"]
        assert isinstance(tree, list)
        calls = [row["call_id"] for row in tree if row["role"] != "prompt"]
        assert sorted(calls) == sorted(call.call_id for call in made.calls)
        labels = [row["label"] for row in tree if row["role"] != "prompt"]
        assert len(set(labels)) == len(labels)


def test_prefix_break_says_where_and_which_tokens(site: Site) -> None:
    tree = site.json("/rollouts/{forked}/tokens.json")["tree"]
    assert isinstance(tree, list)
    notes = [row["broke"] for row in tree if row["broke"] and row["broke"]["kind"] == "break"]
    assert len(notes) == 1
    assert notes[0]["expected"].strip() == "make"
    assert notes[0]["actual"].strip() == "delete"
    assert notes[0]["offset"] > 10


@pytest.mark.parametrize(
    ("token", "logprob", "row", "rank"),
    [
        (1, -0.1, [(1, "", -0.1), (2, "", -2.0)], 1),
        (2, -2.0, [(1, "", -0.1), (2, "", -2.0)], 2),
        (3, -5.0, [(1, "", -0.1), (2, "", -2.0)], 0),
        (3, -1.0, [(1, "", -0.1), (2, "", -2.0)], 2),
        (3, -1.0, [], None),
        (3, float("nan"), [(1, "", -0.1)], None),
    ],
)
def test_rank(
    token: int,
    logprob: float,
    row: list[tuple[int | None, str, float | None]],
    rank: int | None,
) -> None:
    assert rank_of(token, logprob, row) == rank


def test_rank_codes_are_bins() -> None:
    ranks = (1, 2, 3, 4, 5, 6, 10, 11, 20, 21, 500)
    assert [rank_code(rank) for rank in ranks] == [0, 1, 2, 3, 3, 4, 4, 5, 5, BEYOND, BEYOND]
    assert rank_code(0) == BEYOND
    assert rank_code(None) == NO_VALUE

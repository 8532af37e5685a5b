"""Rollouts that lack things: every tab still answers, and says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import httpx
import numpy as np
import pytest

from explorer.records import (
    Body,
    BodyKind,
    CallStatus,
    CaptureLevel,
    FailureKind,
    LogprobKind,
    TokenizerId,
)
from explorer.web.header import TABS
from explorer.web.tokens import FOLDED, PART, SEND_WHOLE
from tests.web import seeds
from tests.web.conftest import Site
from tests.web.parsing import read
from tests.web.seeds import FIRST, Maker, maker, very_long
from tests.web.serving import serving
from tests.web.vocabulary import entries


def text_only() -> Maker:
    """No ids at all."""
    made = maker("text-only")
    made.call("hello there", said=FIRST)
    made.calls[0] = replace(
        made.calls[0],
        capture_level=CaptureLevel.TEXT,
        prompt_delta=None,
        completion=None,
        logprobs=None,
        prompt_len=None,
        completion_len=None,
        chain_hash=None,
    )
    return made


def unknown_tokenizer() -> Maker:
    """Ids whose bytes nobody knows."""
    made = maker("unknown-tokenizer")
    made.rollout = replace(made.rollout, tokenizer_id=TokenizerId("never-stored"))
    made.call("hello there", said=FIRST)
    return made


def strange_bodies() -> Maker:
    """Bodies that are no JSON, deep JSON, and JSON of another shape."""
    made = maker("strange-bodies")
    for data in (
        b"\xff\x00not json",
        b"[" * 50_000,
        b'{"messages": 7}',
        b"",
        b'{"choices": [3]}',
    ):
        made.call("reply", said=FIRST)
        call = made.calls[-1]
        made.bodies[-1] = [Body(call.call_id, call.rollout_id, kind, data) for kind in BodyKind]
    return made


def strange_numbers() -> Maker:
    """Logprobs that are no numbers, alternatives that are no list."""
    made = maker("strange-numbers")
    made.call("reply with some words in it", said=FIRST)
    call = made.calls[0]
    assert call.logprobs is not None
    values = call.logprobs.copy()
    values[:4] = [np.nan, -np.inf, -9999.0, 0.5]
    made.calls[0] = replace(call, logprobs=values, top_logprobs=b'{"not": "a list"}')
    made.call("lost", said=FIRST)
    made.calls[1] = replace(
        made.calls[1],
        status=CallStatus.ABORTED,
        failure_kind=FailureKind.LOST_ON_RESTART,
        failure_detail="the server stopped",
        engine_ms=None,
        finish_reason=None,
    )
    return made


def no_calls() -> Maker:
    """Nothing happened yet."""
    return maker("no-calls")


ODD = (text_only, unknown_tokenizer, strange_bodies, strange_numbers, no_calls, very_long)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The odd ones, served; the engine's logprobs are raw."""
    with serving(tmp_path_factory.mktemp("odd")) as served:
        raw = replace(
            seeds.CERTIFICATE,
            logprob_kind=LogprobKind.RAW,
            failures=("logprobs are those before temperature",),
        )
        served.call(partial(served.store.add_certificate, raw))
        served.call(partial(served.store.add_vocabulary, entries()))
        made = {make.__name__: make() for make in ODD}
        for item in made.values():
            served.call(partial(seeds.write, served.store, item, 0.5, None, close=True))
        with httpx.Client(base_url=served.url, timeout=60) as client:
            yield Site(served, client, made)


@pytest.mark.parametrize("tab", [name for name, _ in TABS])
@pytest.mark.parametrize("name", [make.__name__ for make in ODD])
def test_every_tab_answers(odd: Site, name: str, tab: str) -> None:
    assert "Not trainable: " in read(odd.text(f"/rollouts/{{{name}}}/{tab}")).text
    odd.json(f"/rollouts/{{{name}}}/{tab}.json")


@pytest.mark.parametrize("name", [make.__name__ for make in ODD])
def test_every_request_answers(odd: Site, name: str) -> None:
    for call in odd.made[name].calls[:5]:
        path = f"/rollouts/{{{name}}}/requests/{call.call_id}"
        odd.text(path)
        odd.text(f"{path}?all=request")


def test_why_there_are_no_tokens(odd: Site) -> None:
    assert "No token ids were captured" in read(odd.text("/rollouts/{text_only}/tokens")).text
    assert "No call was made" in read(odd.text("/rollouts/{no_calls}/tokens")).text


def test_unknown_ids_are_shown_as_ids(odd: Site) -> None:
    tokens = read(odd.text("/rollouts/{unknown_tokenizer}/tokens")).tokens
    ids = odd.made["unknown_tokenizer"].fulls[odd.made["unknown_tokenizer"].calls[0].call_id]
    assert [token.text for token in tokens] == [f"⟨{token}⟩" for token in ids]


def test_no_usable_number_is_no_value(odd: Site) -> None:
    twin = odd.json("/rollouts/{strange_numbers}/tokens.json")
    sections = twin["sections"]
    assert isinstance(sections, list)
    at = sections[1]["start"]
    path = f"/rollouts/{{strange_numbers}}/columns/logprob?branch={twin['branch']}"
    column = odd.client.get(odd.url(path)).content
    assert list(column[at : at + 4]) == [9, 9, 9, 0]


def test_long_prompts_are_folded_and_open_on_demand(odd: Site) -> None:
    twin = odd.json("/rollouts/{very_long}/tokens.json")
    assert int(str(twin["total_tokens"])) > SEND_WHOLE
    sections = twin["sections"]
    assert isinstance(sections, list)
    assert sections[0]["shown"] == FOLDED
    assert sections[-1]["shown"] == sections[-1]["count"]
    part = odd.client.get(sections[0]["more_part"], headers={"HX-Request": "true"})
    tokens = read(part.text).tokens
    assert len(tokens) == PART
    assert "<html" not in part.text
    # Without a script the same link shows the page with that token on it.
    plain = odd.client.get(sections[0]["more_part"], follow_redirects=True)
    assert any(e.attributes.get("id") == f"t{FOLDED}" for e in read(plain.text).tokens)


def test_a_linked_token_is_on_the_page_however_deep(odd: Site) -> None:
    twin = odd.json("/rollouts/{very_long}/tokens.json")
    sections = twin["sections"]
    assert isinstance(sections, list)
    at = sections[2]["start"] + sections[2]["count"] - 3
    page = read(odd.text(f"/rollouts/{{very_long}}/tokens?t={at}"))
    assert any(e.attributes.get("id") == f"t{at}" for e in page.tokens)
    assert "position" in page.text

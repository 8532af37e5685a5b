"""Two calls of a rollout side by side, and two to four rollouts aligned by turn."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from explorer.custody.digest import cumulative_hash
from tests.web.conftest import Site
from tests.web.parsing import lookup, read
from tests.web.seeds import FIRST, TOOL_OUTPUT, Maker, maker, write
from tests.web.serving import serving

SYSTEM = FIRST[0][1]


def fork(site: Site, a: int, b: int, more: str = "") -> dict[str, Any]:
    """The twin of two calls of the forked seed."""
    calls = site.made["forked"].calls
    pair = f"a={calls[a].call_id}&b={calls[b].call_id}{more}"
    return site.json(f"/rollouts/{{forked}}/compare.json?{pair}")


def served_pages(folder: Path, makers: list[Maker], *paths: str) -> list[httpx.Response]:
    """Answers of a server that has these rollouts."""
    with serving(folder) as served:
        for made in makers:
            served.call(partial(write, served.store, made, 1.0, True, close=True))
        with httpx.Client(base_url=served.url, timeout=60) as client:
            return [client.get(path) for path in paths]


def test_kept_and_discarded_share_a_proved_prefix(site: Site) -> None:
    made, twin = site.made["forked"], fork(site, 4, 3)
    found = twin["divergence"]
    kept, discarded = made.ids(made.calls[4].call_id), made.ids(made.calls[3].call_id)
    at = found["position"]
    assert list(kept[:at]) == list(discarded[:at])
    assert kept[at] != discarded[at]
    assert found["proved"] is True
    assert found["hash_a"] == found["hash_b"] == cumulative_hash(kept[:at]).hex()
    page = read(site.text(f"/rollouts/{{forked}}/compare?a={twin['left']}&b={twin['right']}"))
    assert "identical ids ✓" in page.text
    assert page.text.count(str(found["hash_a"])) == 2


def test_both_probabilities_are_of_the_sampled_tokens(site: Site) -> None:
    made, found = site.made["forked"], fork(site, 4, 3)["divergence"]
    for side, number in (("a", 4), ("b", 3)):
        call = made.calls[number]
        assert call.completion is not None
        assert call.logprobs is not None
        place = found["position"] - (call.prompt_len or 0)
        assert found[side]["token_id"] == call.completion[place]
        assert found[side]["logprob"] == pytest.approx(float(call.logprobs[place]))
        shown = math.exp(float(call.logprobs[place]))
        assert found[side]["probability_text"] == f"p {shown:.2f}".replace("p 0.", "p .")


def test_a_prompt_token_has_no_probability(site: Site) -> None:
    found = fork(site, 4, 8)["divergence"]
    assert [found[side]["probability_text"] for side in "ab"] == ["prompt, not sampled"] * 2
    assert [found[side]["logprob"] for side in "ab"] == [None, None]


def test_what_follows_is_the_captured_ids_and_masks(site: Site) -> None:
    made, twin = site.made["forked"], fork(site, 4, 3)
    for side, number in zip(twin["sides"], (4, 3), strict=True):
        ids = made.ids(made.calls[number].call_id)
        shown = [token for part in side["parts"] for token in part["token_ids"]]
        assert shown == ids[twin["shared"] :].tolist()
        assert side["after"] == len(shown) == side["shown"]
    kept, discarded = twin["sides"]
    assert kept["trained"] == kept["after"]
    assert (discarded["trained"], discarded["role"]) == (0, "discarded")
    assert [part["hatched"] for part in discarded["parts"]] == [True]


def test_the_tokens_of_both_sides_are_on_the_page_in_order(site: Site) -> None:
    twin = fork(site, 4, 3)
    page = read(site.text(f"/rollouts/{{forked}}/compare?a={twin['left']}&b={twin['right']}"))
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    assert {f"a{twin['shared']}", f"b{twin['shared']}"} <= set(ids)
    bodies = [e for e in page.tokens if e.attributes.get("class", "") or not e.attributes]
    assert len(bodies) >= sum(side["shown"] for side in twin["sides"])


def test_a_long_side_is_cut_and_can_be_shown(site: Site) -> None:
    cut = fork(site, 6, 8)
    left = cut["sides"][0]
    assert left["shown"] == 400 < left["after"]
    assert "all=a" in left["all_href"]
    whole = fork(site, 6, 8, "&all=a")["sides"][0]
    assert whole["shown"] == whole["after"]
    assert whole["all_href"] is None


def test_numbers_equal_the_twin(site: Site) -> None:
    for path in ("/rollouts/{forked}/compare", "/compare?id={small}&id={forked}&id={refused}"):
        page, twin = read(site.text(path)), site.json(path.replace("compare", "compare.json"))
        assert len(page.numbers) > 3
        for number in page.numbers:
            assert number.attributes["value"] == str(lookup(twin, number.attributes["data-k"]))


def test_the_tree_offers_every_fork_and_break(site: Site) -> None:
    rows = site.json("/rollouts/{forked}/conversation.json")["tree"]
    assert isinstance(rows, list)
    offered = {row["label"]: row["compare_label"] for row in rows if row["compare_href"]}
    assert offered == {
        "3′": "compare 3 | 3′",
        "4′": "compare 4 | 4′",
        "6": "compare 5 | 6",
    }
    for row in rows:
        if row["compare_href"]:
            assert site.json(row["compare_href"].replace("?", ".json?"))["problem"] == ""
    page = read(site.text("/rollouts/{forked}/conversation"))
    links = [e for e in page.elements if "cmp" in e.attributes.get("class", "").split()]
    assert [link.text for link in links] == list(offered.values())


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("a=nothing&b=else", "no call “nothing”"),
        ("a={one}&b={one}", "the same call"),
        ("a={one}", "No call left another one"),
    ],
)
def test_what_cannot_be_compared_says_why(site: Site, query: str, words: str) -> None:
    one = site.made["small"].calls[0].call_id
    twin = site.json("/rollouts/{small}/compare.json?" + query.format(one=one))
    assert words in str(twin["problem"])
    assert twin["sides"] == []
    assert twin["divergence"] is None


def test_calls_without_ids_prove_nothing(tmp_path: Path) -> None:
    made = maker("textual")
    for reply in ("one", "two"):
        made.call(
            reply,
            said=FIRST,
            prompt_delta=None,
            prompt_len=None,
            completion=None,
            completion_len=None,
            logprobs=None,
            chain_hash=None,
        )
    a, b = (call.call_id for call in made.calls)
    path = f"/rollouts/{made.rollout.rollout_id}/compare.json?a={a}&b={b}"
    (answer,) = served_pages(tmp_path, [made], path)
    assert "placed by its messages" in answer.json()["problem"]


def test_twins_are_the_same_to_the_end(tmp_path: Path) -> None:
    made = maker("twins")
    one = made.call("look", said=FIRST)
    for _ in range(2):
        made.call("again", parent=one, said=(("tool", TOOL_OUTPUT),))
    a, b = (call.call_id for call in made.calls[1:])
    base = f"/rollouts/{made.rollout.rollout_id}/compare"
    twin, page = served_pages(
        tmp_path, [made], f"{base}.json?a={a}&b={b}", f"{base}?a={a}&b={b}"
    )
    assert twin.json()["divergence"] is None
    assert twin.json()["shared"] == len(made.ids(a))
    assert "Both rows are the same" in read(page.text).text


def test_a_row_that_ends_says_so(site: Site) -> None:
    found = fork(site, 1, 2)["divergence"]
    assert found["a"]["token_id"] is None
    assert found["a"]["probability_text"] == "the row ends here"


def test_mask_04_a_changed_system_prompt_is_shown_as_a_diff(tmp_path: Path) -> None:
    made = maker("system-changed")
    lines = [f"Rule {number}: be careful.\n" for number in range(300)]
    before = (("system", SYSTEM + "".join(lines)), FIRST[1])
    lines[200] = "Rule 200: be quick and <b>bold</b>.\n"
    after = (("system", SYSTEM + "".join(lines)), FIRST[1])
    one = made.call("look", said=before)
    said = (*after, ("assistant", "look"), ("tool", TOOL_OUTPUT))
    two = made.call("done", said=said)
    echoed = [{"role": role, "content": words} for role, words in said]
    echoed[2] = made.messages[one][-1]
    echoed[3]["tool_call_id"] = "call_1"
    made.rebody(1, echoed)
    base = f"/rollouts/{made.rollout.rollout_id}"
    tree, twin, page = served_pages(
        tmp_path,
        [made],
        f"{base}/conversation.json",
        f"{base}/compare.json?a={one}&b={two}",
        f"{base}/compare?a={one}&b={two}",
    )
    rows = {row["call_id"]: row for row in tree.json()["tree"]}
    causes = [row["broke"]["cause"] for row in tree.json()["tree"] if row["broke"]]
    assert causes == ["The system prompt changed."]
    assert rows[two]["compare_href"] == f"{base}/compare?a={one}&b={two}"
    assert "The system prompt changed." in twin.json()["cause"]
    system = twin.json()["system"]
    assert (system["gone"], system["new"]) == (1, 1)
    changed = {line["kind"]: line["text"] for line in system["lines"] if line["text"]}
    assert changed["new"] == "quick and <b>bold</b>"
    assert changed["gone"] == "careful"
    assert any(line["kind"] == "fold" and line["count"] > 190 for line in system["lines"])
    assert "<b>bold</b>" not in page.text  # shown as text


# ---- two to four rollouts -----------------------------------------------------------------


def test_facts_and_first_difference_per_pair(site: Site) -> None:
    twin: Any = site.json("/compare.json?id={small}&id={forked}&id={refused}")
    facts = {fact["name"]: fact for fact in twin["facts"]}
    assert facts["reward"]["values"] == ["1.00", "0.00", "0.00"]
    assert facts["reward"]["equal"] is False
    assert facts["model"]["equal"] is True
    assert [pair["names"] for pair in twin["pairs"]] == ["AB", "AC", "BC"]
    made = site.made
    small, forked = (made[name] for name in ("small", "forked"))
    found = twin["pairs"][0]["divergence"]
    a = small.ids(small.calls[-1].call_id).tolist()
    b = forked.ids(forked.calls[1].call_id).tolist()
    at = next(n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    assert found["position"] == at
    assert found["hash_a"] == found["hash_b"] == cumulative_hash(a[:at]).hex()
    assert f"#t{at}" in twin["pairs"][0]["a_href"]
    assert site.text(twin["pairs"][0]["b_href"].replace("{", "{{"))


def test_equal_turns_are_folded(tmp_path: Path) -> None:
    makers = []
    for name, last in (("one", "stop here"), ("two", "go on")):
        made = maker(name, group="g")
        first = made.call("look", said=FIRST)
        made.call(last, parent=first, said=(("tool", TOOL_OUTPUT),))
        makers.append(made)
    query = "&".join(f"id={made.rollout.rollout_id}" for made in makers)
    twin, page, group = served_pages(
        tmp_path,
        makers,
        f"/compare.json?{query}",
        f"/compare?{query}",
        "/runs/grpo-tiny%20%23412/groups/g",
    )
    assert [turn["equal"] for turn in twin.json()["turns"]] == [True, False]
    (pair,) = twin.json()["pairs"]
    assert pair["turn"] == "turn 2"
    assert [cell["parts_here"] for cell in twin.json()["turns"][1]["cells"]] == [False, True]
    assert "the same ids in all, folded" in read(page.text).text
    assert group.status_code == 303
    assert all(made.rollout.rollout_id in group.headers["location"] for made in makers)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_only_two_to_four_are_compared(site: Site, count: int) -> None:
    names = list(site.made)[:count]
    reply = site.client.get("/compare?" + "&".join(f"id={site.id(name)}" for name in names))
    assert reply.status_code in (400, 422)
    assert "two to 4 different rollouts" in reply.text


def test_unknown_rollouts_and_groups_are_not_found(site: Site) -> None:
    assert site.client.get(site.url("/compare?id={small}&id=nobody")).status_code == 404
    run = "/runs/grpo-tiny%20%23412/groups"
    assert site.client.get(f"{run}/no-such").status_code == 404
    assert site.client.get(f"{run}/g1?a=77").status_code == 404


def test_samples_of_a_group_by_attempt(site: Site) -> None:
    reply = site.client.get("/runs/grpo-tiny%20%23412/groups/g1?a=2&b=1")
    assert reply.headers["location"] == site.url("/compare?id={forked}&id={small}")


def test_other_tasks_and_tokenizers_are_named(tmp_path: Path) -> None:
    made = [maker("here", group="g"), maker("there", task="another")]
    for each in made:
        each.call("look", said=FIRST)
    strange = made[1].rollout
    object.__setattr__(strange, "tokenizer_id", "another-tokenizer")
    query = "&".join(f"id={each.rollout.rollout_id}" for each in made)
    (twin,) = served_pages(tmp_path, made, f"/compare.json?{query}")
    assert len(twin.json()["notices"]) == 2
    assert "tokenizers" in twin.json()["pairs"][0]["problem"]
    assert twin.json()["pairs"][0]["divergence"] is None
    assert [turn["equal"] for turn in twin.json()["turns"]] == [False]


def test_hostile_text_is_text(site: Site) -> None:
    page = read(site.text("/compare?id={hostile}&id={small}"))
    assert not [e for e in page.elements if e.tag in ("img", "iframe")]
    assert "<img src=x onerror=alert(1)>" in page.text
    assert "\u202e" not in page.text


def test_the_group_tab_says_where_each_sample_parts(site: Site) -> None:
    twin: Any = site.json("/rollouts/{forked}/group.json")
    assert [item["rollout_id"] for item in twin["pairs"]] == [
        site.id("small"),
        site.id("refused"),
    ]
    assert twin["uncompared"] == 0
    both: Any = site.json("/compare.json?id={forked}&id={small}")
    mine, there = twin["pairs"][0]["pair"]["divergence"], both["pairs"][0]["divergence"]
    assert mine == there
    page = read(site.text("/rollouts/{forked}/group"))
    boxes = [e.attributes for e in page.elements if e.attributes.get("type") == "checkbox"]
    assert {box["value"] for box in boxes} == {
        site.id(name) for name in ("small", "forked", "refused")
    }
    assert [box["value"] for box in boxes if "checked" in box] == [site.id("forked")]
    for number in page.numbers:
        assert number.attributes["value"] == str(lookup(twin, number.attributes["data-k"]))


def test_a_rollout_alone_has_nobody_to_compare_with(site: Site) -> None:
    twin: Any = site.json("/rollouts/{open}/group.json")
    assert twin["pairs"] == []
    assert "Compare two to four" not in site.text("/rollouts/{open}/group")

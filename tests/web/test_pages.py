"""Lists, filters, paging, errors, and reading without a script."""

from __future__ import annotations

from functools import partial

import httpx
import pytest

from explorer.web.header import TABS
from tests.web import seeds
from tests.web.conftest import Site
from tests.web.parsing import read
from tests.web.serving import serving


def rows_of(site: Site, query: str) -> list[str]:
    """Ids that the list shows for a query."""
    rows = site.json(f"/rollouts.json?{query}")["rows"]
    assert isinstance(rows, list)
    return [row["rollout_id"] for row in rows]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("run=eval-night", {"open"}),
        ("task=other-task", {"ranked"}),
        ("state=open", {"open"}),
        ("reward_min=0.4&reward_max=0.6", {"hostile"}),
        ("q=OTHER-TASK", {"ranked"}),
        ("q=nothing-like-this", set()),
        ("group=g1", {"small", "forked", "refused"}),
    ],
)
def test_filters(site: Site, query: str, names: set[str]) -> None:
    assert set(rows_of(site, query)) == {site.id(name) for name in names}


def test_sort_and_order(site: Site) -> None:
    rewarded = rows_of(site, "reward=0..&sort=-reward")
    assert len(rewarded) > 2
    assert rewarded == rows_of(site, "reward_min=0&sort=reward&order=asc")[::-1]
    assert rewarded == rows_of(site, "reward=0..&sort=reward&order=desc")


def test_filters_stay_in_the_form_and_become_chips(site: Site) -> None:
    page = read(site.text("/rollouts?q=fix&reward=0.1..&state=closed&sort=-calls"))
    inputs = {e.attributes.get("name"): e.attributes.get("value") for e in page.elements}
    assert inputs["q"] == "fix"
    assert inputs["reward"] == "0.1.."
    assert inputs["state"] == "closed"
    assert inputs["sort"] == "-calls"
    twin = site.json("/rollouts.json?q=fix&reward=0.1..&state=closed&sort=-calls")
    chips = twin["chips"]
    assert isinstance(chips, list)
    assert [chip["name"] for chip in chips] == ["q", "reward", "state"]
    assert chips[2]["remove_href"] == "/rollouts?q=fix&reward=0.1..&sort=-calls"


def test_what_cannot_be_read_is_said_and_ignored(site: Site) -> None:
    wrong = "state=asleep&sort=beauty&reward=high&trainable=maybe&colour=red&cols=smell"
    twin = site.json(f"/rollouts.json?{wrong}")
    problems = twin["problems"]
    assert isinstance(problems, list)
    assert len(problems) == 6
    assert not twin["filtered"]
    assert rows_of(site, wrong) == rows_of(site, "")
    page = read(site.text(f"/rollouts?{wrong}"))
    assert "Ignored: `reward` “high” is not a number" in page.text


def test_empty_results_are_honest(site: Site) -> None:
    page = read(site.text("/rollouts?q=nothing-like-this")).text
    assert "No rollout matches these filters." in page


def test_paging_reaches_every_rollout_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("many")) as served:
        for number in range(130):
            made = seeds.maker(f"many-{number}")
            served.call(partial(served.store.add_rollout, made.rollout))
        seen: list[str] = []
        href: str | None = "/rollouts.json"
        with httpx.Client(base_url=served.url, timeout=30) as client:
            while href:
                twin = client.get(href.replace("/rollouts?", "/rollouts.json?")).json()
                seen += [row["rollout_id"] for row in twin["rows"]]
                href = twin["next_href"]
                assert twin["total"] == 130
        assert len(seen) == len(set(seen)) == 130


def test_empty_server_says_how_to_begin(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        serving(tmp_path_factory.mktemp("empty")) as served,
        httpx.Client(base_url=served.url, timeout=30) as client,
    ):
        text = read(client.get("/").text).text
        assert "No rollouts yet" in text
        assert f"OPENAI_BASE_URL={served.url}/k/" in text
        assert f"--store {served.store.path}" in text
        assert "No engine has been probed yet" in text
        for path in ("/runs", "/rollouts", "/engine"):
            assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/runs/no-such-run",
        "/rollouts/no-such-rollout/tokens",
        "/rollouts/{small}/no-such-tab",
        "/rollouts/{small}/requests/no-such-call",
        "/rollouts/{small}/tokens?branch=no-such-call",
        "/rollouts/{small}/columns/beauty",
    ],
)
def test_what_is_not_there_is_a_page(site: Site, path: str) -> None:
    reply = site.client.get(site.url(path))
    assert reply.status_code == 404
    assert "<h1>404 · not found</h1>" in reply.text
    assert "Traceback" not in reply.text


@pytest.mark.parametrize("path", ["/runs/no-such-run.json", "/rollouts/no/tokens.json"])
def test_what_is_not_there_is_an_error_in_a_twin(site: Site, path: str) -> None:
    reply = site.client.get(path)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("t", ["", "x", "-1", "99999999", "1e3"])
def test_a_token_that_is_not_there(site: Site, t: str) -> None:
    reply = site.client.get(site.url(f"/rollouts/{{small}}/tokens/inspect.json?t={t}"))
    assert reply.status_code == 422
    assert site.client.get(site.url(f"/rollouts/{{small}}/tokens?t={t}")).status_code == 200


def test_a_rollout_opens_on_its_tokens(site: Site) -> None:
    reply = site.client.get(site.url("/rollouts/{small}"))
    assert reply.status_code == 303
    assert reply.headers["location"].endswith("/tokens")


def test_reading_needs_no_script(site: Site) -> None:
    tokens = read(site.text("/rollouts/{small}/tokens?t=40&m=mask&ids=1"))
    assert "The test fails because the lock is taken twice." in tokens.text
    assert "position" in tokens.text
    assert any(e.attributes.get("data-i") for e in tokens.tokens)
    assert any(e.attributes.get("id") == "t40" for e in tokens.tokens)
    talk = read(site.text("/rollouts/{small}/conversation")).text
    assert "Please repair the test file and make the tests pass." in talk
    form = [
        e
        for e in tokens.elements
        if e.tag == "form" and "controls" in e.attributes.get("class", "")
    ]
    assert form[0].attributes["method"] == "get"


def test_verdict_and_downloads(site: Site) -> None:
    page = read(site.text("/rollouts/{small}/tokens"))
    links = [e for e in page.elements if e.attributes.get("href", "").startswith("/api/")]
    assert {e.attributes["href"].rsplit("/", 1)[1] for e in links} == {
        "training-trace",
        "capture-audit",
    }
    page = read(site.text("/rollouts/{refused}/tokens"))
    links = [e for e in page.elements if e.attributes.get("href", "").startswith("/api/")]
    assert [e.attributes["href"].rsplit("/", 1)[1] for e in links] == ["capture-audit"]
    assert "Refused: " in page.text
    assert "Not trainable: " in page.text


def test_group_links_lead_to_the_neighbours(site: Site) -> None:
    neighbours = site.json("/rollouts/{forked}/timing.json")["header"]
    assert isinstance(neighbours, dict)
    assert neighbours["neighbours"]["size"] == 3
    assert site.id("small") in neighbours["neighbours"]["previous"]
    assert neighbours["neighbours"]["following"].endswith("/timing")


def test_zero_variance_groups_are_marked(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("zero")) as served:
        for name in ("one", "two"):
            made = seeds.maker(name)
            served.call(partial(seeds.write, served.store, made, 1.0, True, close=True))
        with httpx.Client(base_url=served.url, timeout=30) as client:
            twin = client.get("/runs/grpo-tiny%20%23412.json").json()
            assert twin["n_zero_variance"] == 1
            assert "no variance" in client.get("/runs/grpo-tiny%20%23412").text


@pytest.mark.parametrize("tab", [name for name, _ in TABS])
def test_pages_are_private_and_compressed(site: Site, tab: str) -> None:
    reply = site.client.get(site.url(f"/rollouts/{{small}}/{tab}"))
    assert "private" in reply.headers["cache-control"]
    assert reply.headers["content-encoding"] == "gzip"
    plain = site.client.get(
        site.url(f"/rollouts/{{small}}/{tab}"), headers={"Accept-Encoding": "identity"}
    )
    assert "content-encoding" not in plain.headers
    assert plain.text == reply.text


@pytest.mark.parametrize(("cookie", "attribute"), [("dark", 'data-theme="dark"'), ("x", None)])
def test_theme_is_in_the_first_byte(site: Site, cookie: str, attribute: str | None) -> None:
    page = site.client.get("/", headers={"Cookie": f"theme={cookie}"}).text
    assert ("data-theme=" in page.split("<head>")[0]) == (attribute is not None)


def test_an_open_rollout_says_so(site: Site) -> None:
    text = read(site.text("/rollouts/{open}/tokens")).text
    assert "Not trainable: The rollout is still open." in text


def test_every_tab_names_a_call_by_its_turn(site: Site) -> None:
    tree = site.json("/rollouts/{forked}/tokens.json")["tree"]
    assert isinstance(tree, list)
    labels = {row["call_id"]: row["label"] for row in tree if row["role"] != "prompt"}
    rows = site.json("/rollouts/{forked}/requests.json")["rows"]
    assert isinstance(rows, list)
    assert {row["call_id"]: row["turn"] for row in rows} == labels
    timing = site.json("/rollouts/{forked}/timing.json")["rows"]
    assert isinstance(timing, list)
    assert [row["turn"] for row in timing] == [row["turn"] for row in rows]
    failed = next(row for row in rows if row["status"] == "failed")
    page = read(site.text(failed["href"])).text
    assert f"Call {failed['sequence']}, turn {failed['turn']}" in page
    found = site.json("/rollouts/{forked}/findings.json")["findings"]
    assert isinstance(found, list)
    where = [item["where"] for item in found if item["code"] == "call_failed"]
    assert where == [f"turn {failed['turn']} (call {failed['sequence']})"]
    assert not [item for item in found if any(call in item["message"] for call in labels)]


def test_a_prefix_break_leads_to_the_token_it_left(site: Site) -> None:
    tree = site.json("/rollouts/{forked}/tokens.json")["tree"]
    assert isinstance(tree, list)
    (note,) = [row["broke"] for row in tree if row["broke"] and row["broke"]["kind"] == "break"]
    inspected = site.json(note["href"].split("#")[0].replace("/tokens?", "/tokens.json?"))
    token = inspected["inspected"]
    assert isinstance(token, dict)
    assert token["index"] == note["offset"]
    assert token["text"].replace("␣", " ") == note["expected"]


def test_the_grid_heads_its_columns_with_the_attempts(site: Site) -> None:
    run = site.json("/runs/grpo-tiny%20%23412.json")
    columns, groups = run["columns"], run["groups"]
    assert isinstance(columns, list)
    assert isinstance(groups, list)
    assert len(columns) == run["width"]
    attempts = [[sample["attempt"] for sample in group["samples"]] for group in groups]
    same = all(
        len({row[place] for row in attempts if len(row) > place}) == 1
        for place in range(len(columns))
    )
    assert columns[0] == (f"#{attempts[0][0]}" if same else "1")


def test_the_group_marks_the_rollout_at_hand(site: Site) -> None:
    page = read(site.text("/rollouts/{forked}/group"))
    (here,) = [e for e in page.elements if e.attributes.get("class") == "here"]
    assert site.id("forked")[:4] in here.text

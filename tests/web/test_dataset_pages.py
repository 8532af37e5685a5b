"""The pages about datasets: what they say, by themselves and with a whole server behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from explorer.access.people import Person, Role
from tests.hub.server import LocalHub
from tests.web.conftest import Site
from tests.web.parsing import read
from tests.web.publishing import OPERATOR, ORDER, SECRET, Publishing, publishing


def test_the_form_counts_what_a_dataset_would_hold(site: Site) -> None:
    page = site.json("/datasets/publish.json?run=grpo-tiny%20%23412")
    rows = site.json("/rollouts.json?run=grpo-tiny%20%23412&limit=500")["rows"]
    assert isinstance(rows, list)
    closed = [row for row in rows if row["status"] == "closed"]
    assert page["rollouts"] == len(rows)
    assert page["open"] == len(rows) - len(closed)
    trained = [row for row in closed if row["trainable"]]
    assert page["trainable"] == len(trained)
    assert page["supervised_tokens"] == sum(row["supervised_tokens"] for row in trained)
    untrained = page["untrained"]
    assert isinstance(untrained, list)
    assert sum(row["count"] for row in untrained) == len(closed) - len(trained)
    for row in untrained:
        if row["href"]:
            answer = site.json(row["href"].replace("?", ".json?", 1))
            assert answer["total"] == row["count"], row


def test_a_job_shows_its_card_as_text_and_nothing_of_it_as_markup(site: Site) -> None:
    text = site.text("/datasets/{dry_run}")
    assert "Bold" in text
    assert "<b>words</b>" not in text
    assert "license: cc-by-4.0" in text
    page = site.json("/datasets/{dry_run}.json")
    written = page["written"]
    assert isinstance(written, dict)
    names = {row["name"] for row in written["configs"]}
    assert names >= {"rollouts", "calls", "sequences", "sft"}
    columns = {
        row["name"]: [each["value"] for each in row["columns"]] for row in written["configs"]
    }
    assert "loss_mask" in columns["sequences"]
    assert len(written["files"]) == written["n_files"]


def test_a_job_that_runs_reloads_itself_with_and_without_script(site: Site) -> None:
    page = read(site.text("/datasets/{going}"))
    polled = [each for each in page.elements if "hx-get" in each.attributes]
    assert [each.attributes["hx-trigger"] for each in polled] == ["every 1s"]
    assert '<noscript><meta http-equiv="refresh"' in site.text("/datasets/{going}")
    part = site.client.get(polled[0].attributes["hx-get"])
    assert part.status_code == 200
    assert "hx-refresh" not in part.headers
    assert "2.9 MiB of 11.4 MiB" in part.text
    ended = site.client.get(site.url("/datasets/{dry_run}/progress"))
    assert ended.headers["hx-refresh"] == "true"


def test_no_field_asks_the_browser_to_remember_a_token(site: Site) -> None:
    for path in ("/datasets/{dry_run}", "/datasets/{broken}", "/datasets"):
        page = read(site.text(path))
        tokens = [e for e in page.elements if e.attributes.get("name") == "token"]
        assert tokens, path
        for each in tokens:
            assert each.attributes["type"] == "password"
            assert each.attributes["autocomplete"] == "off"
            assert "value" not in each.attributes


# -- with a whole server


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    with LocalHub() as made:
        yield made


@pytest.fixture(scope="module")
def whole(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publishing]:
    folder = tmp_path_factory.mktemp("pages")
    with publishing(folder / "s.duckdb", hub, hub.people.add("ada")) as made:
        made.rollout("one", run="good")
        made.rollout(f"the key is {SECRET}", run="good")
        yield made


def _form(whole: Publishing, path: str, **fields: str) -> httpx.Response:
    """A form as a browser on this machine sends it."""
    headers = {"origin": whole.live.url, "sec-fetch-site": "same-origin"}
    answer: httpx.Response = whole.ask(headers, "POST", path, data=fields)
    return answer


def test_a_form_leads_to_its_job_and_that_to_the_hub(whole: Publishing) -> None:
    fields = {"query": "run=good", "target": "ada/by-form", "visibility": "private",
              "gated": "no", "formats": "sft"}  # fmt: skip
    answer = _form(whole, "/datasets", **ORDER, **fields)
    assert answer.status_code == 303, answer.text
    href = answer.headers["location"]
    whole.until(href.rpartition("/")[2], "written")
    page = whole.ask({}, "GET", href).text
    assert SECRET not in page
    assert "a secret is undecided or withheld" in page
    assert "Publish 1 rollout" in page
    sent = _form(whole, f"{href}/publish", visibility="private", token=whole.token)
    assert sent.status_code == 303, sent.text
    assert whole.token not in sent.text + str(sent.headers)
    whole.until(href.rpartition("/")[2], "done")
    page = whole.ask({}, "GET", href).text
    assert f'href="{whole.hub.url}/datasets/ada/by-form"' in page
    assert whole.token not in page
    files = whole.hub.shelf.repos["dataset", "ada/by-form"].head.files
    assert any(name.startswith("sft/") for name in files)


def test_the_hits_of_a_secret_stand_with_where_they_are(whole: Publishing) -> None:
    job = whole.dry_run(query="run=good")
    page = whole.ask({}, "GET", f"/datasets/{job['job_id']}.json").json()
    (each,) = page["written"]["secrets"]
    assert each["href"].endswith("/findings#secrets")
    (hit,) = each["hits"]
    assert hit["item"]["state"] == "undecided"
    assert hit["item"]["places"]
    assert all(place["href"].startswith("/rollouts/") for place in hit["item"]["places"])
    assert re.search("the key is ?█████", hit["around"]), hit
    assert SECRET not in str(page)
    form = whole.ask({}, "GET", "/datasets/publish.json?run=good").json()
    assert form["undecided"] == 1
    assert form["undecided_rollouts"][0]["value"] == each["href"]


def test_hub_06_a_form_left_at_its_defaults_is_private(whole: Publishing) -> None:
    page = read(whole.ask({}, "GET", "/datasets/publish?run=good").text)
    ticked = [
        each.attributes["value"]
        for each in page.elements
        if each.attributes.get("name") in ("visibility", "gated", "formats", "bodies")
        and "checked" in each.attributes
    ]
    assert ticked == ["private", "no"]
    href = _form(whole, "/datasets", **ORDER, query="run=good", target="ada/left").headers[
        "location"
    ]
    job_id = href.rpartition("/")[2]
    whole.until(job_id, "written")
    # The page of the job, left at its defaults, too.
    assert _form(whole, f"{href}/publish", token=whole.token).status_code == 303
    whole.until(job_id, "done")
    assert whole.hub.shelf.repos["dataset", "ada/left"].private


def test_a_job_that_published_nothing_is_taken_off_the_list(whole: Publishing) -> None:
    job = whole.dry_run(query="run=good")
    path = f"/datasets/{job['job_id']}"
    assert "Take the job off the list" in whole.ask({}, "GET", path).text
    assert _form(whole, f"{path}/forget").headers["location"] == "/datasets"
    assert whole.ask({}, "GET", path).status_code == 404
    out = whole.dry_run(query="run=good", target="ada/out")["job_id"]
    whole.post(f"/api/v1/datasets/{out}/publish", token=whole.token)
    whole.until(out, "done")
    assert "Take the job off the list" not in whole.ask({}, "GET", f"/datasets/{out}").text
    assert _form(whole, f"/datasets/{out}/forget").status_code == 422
    again = _form(whole, f"/datasets/{out}/publish", token=whole.token)
    assert again.status_code == 422
    assert "published already" in again.text


def test_a_form_of_another_site_does_nothing(whole: Publishing) -> None:
    headers = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    before = len(whole.live.api("GET", "/api/v1/datasets")["datasets"])
    answer = whole.ask(headers, "POST", "/datasets", data=ORDER | {"query": "run=good"})
    assert answer.status_code in (401, 403)
    assert len(whole.live.api("GET", "/api/v1/datasets")["datasets"]) == before


def test_a_mistake_in_the_form_says_how_to_get_back(whole: Publishing) -> None:
    answer = _form(whole, "/datasets", **ORDER, query="run=good", target="a/b--c")
    assert answer.status_code == 422
    assert "Back leads to the form" in answer.text


def test_who_may_not_publish_is_told_how_to_ask(whole: Publishing) -> None:
    headers = whole.session(Person("oidc:viewer", "Viewer"))
    page = whole.ask(headers, "GET", "/datasets.json").json()
    assert page["leave"]["allowed"] is False
    assert page["leave"]["ask_href"].startswith("/grants/new")
    assert page["jobs"] == []
    assert page["schedules"] == []
    form = whole.ask(headers, "GET", page["leave"]["ask_href"]).text
    assert 'name="dataset"' in form
    asked = whole.ask(
        headers, "POST", "/grants",
        data={"object_kind": "dataset", "dataset": "ada/wanted", "purpose": "to share it"},
    )  # fmt: skip
    assert asked.status_code == 303, asked.text
    grant = whole.live.application.access.grants.all[0]
    assert grant.wanted.objects == ("ada/wanted",)
    assert [kind.value for kind in grant.wanted.kinds] == ["publish"]


def test_local_folders_are_for_the_operator_of_a_server_of_this_machine(
    whole: Publishing, tmp_path: Path
) -> None:
    whole.live.application.sign_in.roles.change(
        "oidc:curator", Role.CURATOR, True, OPERATOR, "to test"
    )
    curator = whole.session(Person("oidc:curator", "Curator"))
    body = ORDER | {"query": "run=good"}
    for where in (f"file:{tmp_path}/a", str(tmp_path / "a"), "../a", "~/a"):
        answer = whole.ask(curator, "POST", "/api/v1/datasets", json=body | {"target": where})
        assert answer.status_code == 403, where
    job = whole.dry_run(query="run=good", target=f"file:{tmp_path}/a")
    whole.post(f"/api/v1/datasets/{job['job_id']}/publish")
    assert whole.until(job["job_id"], "done", "failed")["state"] == "done"
    assert (tmp_path / "a" / "manifest.json").is_file()


def test_a_server_that_only_shows_publishes_nothing(hub: LocalHub, tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    with publishing(store, hub, "hf_x") as made:
        made.rollout("one", run="good")
    with publishing(store, hub, "hf_x", read_only=True) as shown:
        page = shown.ask({}, "GET", "/datasets.json").json()
        assert "only shows its store" in page["leave"]["words"]
        answer = shown.live.api("POST", "/api/v1/datasets", ORDER, status=403)
        assert answer["error"]["code"] == "read_only"

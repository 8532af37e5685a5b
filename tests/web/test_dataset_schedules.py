"""A saved view that publishes itself: with the same gates, and with a reason when it pauses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from explorer.access.people import Person, Role
from explorer.export.dataset.manifest import Manifest, parse_manifest
from tests.hub.server import LocalHub
from tests.web.publishing import OPERATOR, ORDER, SECRET, Publishing, publishing


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with LocalHub() as made:
        yield made


@pytest.fixture
def site(hub: LocalHub, tmp_path: Path) -> Iterator[Publishing]:
    with publishing(tmp_path / "s.duckdb", hub, hub.people.add("ada")) as made:
        yield made


def view(site: Publishing, query: str = "run=good", name: str = "good ones") -> None:
    site.live.api("POST", "/api/v1/views", {"name": name, "query": query}, status=201)


def schedule(site: Publishing, status: int = 201, **more: Any) -> Any:
    body = ORDER | {"view": "good ones", "target": "ada/good", "token": site.token} | more
    return site.live.api("POST", "/api/v1/dataset-schedules", body, status=status)


def look(site: Publishing) -> None:
    """The next look is due: tests do not wait a minute."""
    desk = site.live.application.publishing.desk
    assert desk.looks is not None
    assert desk.worker is not None
    desk.looks.look_again()
    for each in desk.schedules.all:
        if each.next_us is not None:
            desk.schedules.keep(replace(each, next_us=0))
    site.live.loop.call_soon_threadsafe(desk.worker.wake)


def told(site: Publishing) -> dict[str, Any]:
    (found,) = site.live.api("GET", "/api/v1/dataset-schedules")["schedules"]
    return dict(found)


def until(site: Publishing, **wanted: Any) -> dict[str, Any]:
    """The schedule once it says this."""
    for _ in range(200):
        found = told(site)
        if all(found[name] == value for name, value in wanted.items()):
            return found
        time.sleep(0.05)
    raise AssertionError(f"never {wanted}: {found}")


def published(site: Publishing) -> Manifest:
    repo = site.hub.shelf.repos["dataset", "ada/good"]
    return parse_manifest(site.hub.shelf.content(repo.head.files["manifest.json"]))


def ids(site: Publishing) -> list[str]:
    return [str(each.rollout_id) for each in published(site).rollouts]


def test_what_closes_is_added_and_what_was_published_stays(site: Publishing) -> None:
    first, late = site.rollout("one", run="good"), site.rollout("two", run="good", close=False)
    other = site.rollout("not in the view", run="other")
    view(site)
    schedule(site)
    until(site, published=1)
    assert ids(site) == [first]
    before = dict(site.hub.shelf.repos["dataset", "ada/good"].head.files)
    look(site)
    time.sleep(0.5)
    assert len(site.live.api("GET", "/api/v1/datasets")["datasets"]) == 1, "nothing was new"
    site.close(late)
    look(site)
    until(site, published=2)
    assert ids(site) == [first, late]
    assert other not in ids(site)
    after = site.hub.shelf.repos["dataset", "ada/good"].head.files
    shards = {name: file for name, file in before.items() if name.endswith(".parquet")}
    assert shards.items() <= after.items(), "a published file changed"
    jobs = site.live.api("GET", "/api/v1/datasets")["datasets"]
    assert {job["schedule_id"] for job in jobs} == {told(site)["schedule_id"]}
    assert site.hub.shelf.repos["dataset", "ada/good"].private


def test_a_secret_waits_for_a_person_and_is_added_then(site: Publishing) -> None:
    good, secret = site.rollout("one", run="good"), site.rollout(f"key {SECRET}", run="good")
    view(site)
    schedule(site)
    until(site, published=1)
    look(site)
    time.sleep(0.5)
    assert ids(site) == [good]
    assert len(site.live.api("GET", "/api/v1/datasets")["datasets"]) == 1
    found = site.live.api("GET", f"/api/v1/rollouts/{secret}/secrets")["findings"]
    for each in found:
        if each["blocks"]:
            site.live.api(
                "POST",
                f"/api/v1/rollouts/{secret}/secrets/{each['finding_id']}",
                {"decision": "not_a_secret", "reason": "made up"},
                status=201,
            )
    look(site)
    until(site, published=2)
    assert set(ids(site)) == {good, secret}


def test_it_pauses_when_its_view_is_changed_or_dropped(site: Publishing) -> None:
    site.rollout("one", run="good")
    view(site)
    made = schedule(site)
    until(site, published=1)
    view(site, "run=other")
    site.rollout("two", run="good")
    look(site)
    paused = until(site, state="paused")
    assert "was changed" in paused["paused"]
    assert published(site).rollouts
    path = f"/api/v1/dataset-schedules/{made['schedule_id']}"
    site.rollout("three", run="other")
    site.post(f"{path}/go-on", 200, token=site.token)
    until(site, published=2)
    site.live.api("DELETE", "/api/v1/views/good ones", status=204)
    look(site)
    assert "was dropped" in until(site, state="paused")["paused"]
    site.live.api("DELETE", path, status=204)
    assert site.live.api("GET", "/api/v1/dataset-schedules")["schedules"] == []
    changes = [row["detail"] for row in site.events("dataset_schedule")]
    assert len(changes) == 5, changes


def test_what_was_yanked_is_not_brought_back_by_a_schedule(site: Publishing) -> None:
    site.rollout("one", run="good")
    view(site)
    schedule(site)
    first = until(site, published=1)["last_job"]
    site.until(first, "done")
    site.rollout("two", run="good")
    look(site)
    newest = until(site, published=2)["last_job"]
    site.until(newest, "done")
    site.post(f"/api/v1/datasets/{newest}/take-back", 200, reason="a name", token=site.token)
    # The earlier job's rollouts went with it.
    assert site.until(first, "done")["removed"] == "yanked"
    assert "taken back" in told(site)["paused"]
    site.rollout("three", run="good")
    look(site)
    time.sleep(0.5)
    assert told(site)["last_job"] == newest
    assert set(site.hub.shelf.repos["dataset", "ada/good"].head.files) == {
        ".gitattributes",
        "README.md",
    }


def test_after_a_restart_it_says_what_to_do(hub: LocalHub, tmp_path: Path) -> None:
    store, token = tmp_path / "s.duckdb", hub.people.add("ada")
    with publishing(store, hub, token) as site:
        site.rollout("one", run="good")
        view(site)
        schedule(site)
        until(site, published=1)
    with publishing(store, hub, token) as site:
        # At once: a schedule that silently did nothing would be worse.
        paused = until(site, state="paused")
        assert "let it go on with a token" in paused["paused"]
        site.rollout("two", run="good")
        path = f"/api/v1/dataset-schedules/{paused['schedule_id']}/go-on"
        site.post(path, 401)
        site.post(path, 200, token=token)
        until(site, published=2)
    assert token.encode() not in (tmp_path / "s.access.duckdb").read_bytes()


def test_it_waits_longer_after_each_failure_and_gives_up_in_words(site: Publishing) -> None:
    site.rollout("one", run="good")
    view(site)
    schedule(site, token="hf_nobodys")
    paused = until(site, state="paused")
    assert paused["failures"] == 1
    assert "failed" in paused["paused"]
    assert "hf_nobodys" not in str(paused)
    path = f"/api/v1/dataset-schedules/{paused['schedule_id']}/go-on"
    site.post(path, 200, token=site.token)
    until(site, published=1, failures=0)


def test_the_same_gates_hold(site: Publishing) -> None:
    site.rollout("one", run="good")
    view(site)
    assert "again" in schedule(site, 422, private=False)["error"]["message"]
    assert "OWNER/NAME" in schedule(site, 422, target="bad")["error"]["message"]
    body = {"view": "", "query": "run=good"}
    assert "saved `view`" in schedule(site, 422, **body)["error"]["message"]
    schedule(site, 401, token="")
    schedule(site, private=False, confirm="ada/good")
    until(site, published=1)
    assert not site.hub.shelf.repos["dataset", "ada/good"].private
    assert "already" in schedule(site, 422)["error"]["message"]


def test_only_those_who_may_publish_everything_make_one(site: Publishing) -> None:
    site.rollout("one", run="good")
    view(site)
    eve = Person("oidc:eve", "Eve")
    site.grant(eve.subject, "ada/good")
    body = ORDER | {"view": "good ones", "target": "ada/good", "token": site.token}
    answer = site.ask(site.session(eve), "POST", "/api/v1/dataset-schedules", json=body)
    assert answer.status_code == 403
    roles = site.live.application.sign_in.roles
    roles.change(eve.subject, Role.CURATOR, True, OPERATOR, "to test")
    answer = site.ask(site.session(eve), "POST", "/api/v1/dataset-schedules", json=body)
    assert answer.status_code == 201, answer.text
    until(site, published=1)
    roles.change(eve.subject, Role.CURATOR, False, OPERATOR, "to test")
    site.rollout("two", run="good")
    look(site)
    assert "may not publish any more" in until(site, state="paused")["paused"]
    assert len(ids(site)) == 1

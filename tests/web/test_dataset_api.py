"""Datasets over the API of a whole server, published to the local Hub by the real client."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from explorer.access.people import Person, Role
from explorer.access.policy import Level
from explorer.access.visibility import Target
from explorer.export.dataset.manifest import parse_manifest
from explorer.export.publishing.checking import check_folder
from tests.hub.server import LocalHub
from tests.web.publishing import OPERATOR, ORDER, SECRET, Publishing, publishing

HUB_PERSON = Person("huggingface:ada", "Ada")
LOGIN = "hf_tokenOfTheServer"


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    with LocalHub() as made:
        yield made


@pytest.fixture(scope="module")
def site(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publishing]:
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_TOKEN", LOGIN)
    folder = tmp_path_factory.mktemp("publishing")
    with publishing(folder / "s.duckdb", hub, hub.people.add("ada")) as made:
        made.rollout("one", run="good")
        made.rollout("two", run="good")
        made.rollout("three", run="good", close=False)
        made.rollout(f"the key is {SECRET}", run="good")
        yield made
    patch.undo()
    assert LOGIN not in hub.faults.tokens


def test_a_dry_run_says_what_is_in_it_and_writes_it_here_only(site: Publishing) -> None:
    before = len(site.hub.shelf.repos)
    job = site.dry_run(query="run=good", target="ada/dry")
    result = job["result"]
    assert (job["asked"], result["rollouts"], result["n_excluded"]) == (4, 2, 2)
    assert result["left_out"] == {"rollout_open": 1, "secrets_undecided": 1}
    assert sum(result["untrained"].values()) == 2  # a scripted engine trains nothing
    assert {each["name"] for each in result["configs"]} == {"rollouts", "calls", "sequences"}
    folder = site.live.application.publishing.desk.folder(job["job_id"])
    manifest = parse_manifest((folder / "manifest.json").read_bytes())
    assert [str(each.rollout_id) for each in manifest.rollouts]
    assert "license: cc-by-4.0" in (folder / "README.md").read_text()
    assert len(site.hub.shelf.repos) == before


def test_hub_03_a_wrong_name_is_refused_before_anything_is_written(site: Publishing) -> None:
    many = len(site.live.api("GET", "/api/v1/datasets")["datasets"])
    wrong = ("me/my--data", "me/..x", "me/" + "a" * 120, "My Data", "nobody", "ada/x.git")
    for name in wrong:
        answer = site.live.api("POST", "/api/v1/datasets", ORDER | {"target": name}, status=422)
        assert answer["error"]["code"] == "hub_name_invalid"
        # The rule is spelled out, in the form, too.
        assert "at most 96" in answer["error"]["message"]
        form = {"origin": site.live.url, "sec-fetch-site": "same-origin"}
        page = site.ask(form, "POST", "/datasets", data=ORDER | {"target": name})
        assert page.status_code == 422
        assert "at most 96" in page.text
    assert len(site.live.api("GET", "/api/v1/datasets")["datasets"]) == many


def test_hub_06_private_unless_public_is_chosen_and_named_again(site: Publishing) -> None:
    job = site.dry_run(query="run=good", target="ada/seen")
    assert job["choices"]["private"] is True
    path = f"/api/v1/datasets/{job['job_id']}/publish"
    for confirm in ({}, {"confirm": "ada/other"}, {"confirm": "seen"}):
        refused = site.post(path, 422, private=False, token=site.token, **confirm)
        assert "again" in refused["error"]["message"]
    assert site.job(job["job_id"])["state"] == "written"
    site.post(path, private=False, confirm="ada/seen", token=site.token)
    site.until(job["job_id"], "done")
    place = site.hub.shelf.repos["dataset", "ada/seen"]
    assert place.private is False


def test_it_is_published_as_it_was_seen_and_the_token_is_nowhere(site: Publishing) -> None:
    job = site.dry_run(query="run=good", target="ada/first")
    seen = job["result"]["manifest_sha256"]
    site.post(f"/api/v1/datasets/{job['job_id']}/publish", token=site.token)
    done = site.until(job["job_id"], "done", "failed")
    assert done["state"] == "done", done
    assert done["result"]["url"].endswith("/datasets/ada/first")
    assert done["result"]["manifest_sha256"] == seen
    repo = site.hub.shelf.repos["dataset", "ada/first"]
    assert repo.private
    assert done["result"]["revision"] == repo.head.oid
    assert set(repo.head.files) >= {"README.md", "manifest.json"}
    site.live.application.access.database.write(lambda rows: None)
    kept = Path(site.live.application.access.database.path)
    for path in (kept, kept.with_name(kept.name + ".wal")):
        if path.exists():
            assert site.token.encode() not in path.read_bytes()
    assert site.token not in json.dumps(site.job(job["job_id"]))
    assert site.live.application.publishing.desk.leaves.token(job["job_id"]) is None


def test_a_program_publishes_in_one_step(site: Publishing) -> None:
    made = site.post(
        "/api/v1/datasets",
        **ORDER,
        query="run=good",
        target="ada/one-step",
        dry_run=False,
        token=site.token,
    )
    assert made["state"] == "queued"
    assert made["dry_run"] is False
    assert site.until(made["job_id"], "done", "failed")["state"] == "done"
    again = site.post(
        "/api/v1/datasets",
        **ORDER,
        query="run=good",
        target="ada/one-step",
        dry_run=False,
        token=site.token,
    )
    done = site.until(again["job_id"], "done", "failed")
    assert done["result"]["nothing_new"] is True
    assert done["result"]["already"] == 2


def test_what_was_done_is_in_the_audit_log(site: Publishing) -> None:
    job = site.dry_run(query="run=good", target="ada/told")
    site.post(f"/api/v1/datasets/{job['job_id']}/publish", token=site.token)
    site.until(job["job_id"], "done")
    about = f"dataset {job['job_id']}"
    rows = [row for row in site.events(*_ALL) if row["object"] == about]
    assert [row["event"] for row in reversed(rows)] == [
        "dataset_dry_run",
        "dataset_planned",
        "dataset_begun",
        "dataset_planned",
        "dataset_published",
    ]
    assert all(site.token not in json.dumps(row) for row in rows)
    assert json.loads(rows[0]["detail"])["url"].endswith("/datasets/ada/told")


_ALL = ("dataset_dry_run", "dataset_planned", "dataset_begun", "dataset_published",
        "dataset_failed", "dataset_removed", "dataset_schedule")  # fmt: skip


def test_what_changed_since_the_dry_run_is_shown_again_first(site: Publishing) -> None:
    rollout = site.rollout("changing", run="changing")
    job = site.dry_run(query="run=changing", target="ada/changing")
    call = site.live.calls(rollout)[0]["call_id"]
    override = {"kind": "exclude_call", "call_id": call, "reason": "not this one", "who": "me"}
    answer = httpx.post(
        f"{site.live.url}/api/v1/rollouts/{rollout}/overrides",
        json=override,
        headers={"authorization": f"Bearer {site.live.token}"},
    )
    assert answer.status_code < 300, answer.text
    site.post(f"/api/v1/datasets/{job['job_id']}/publish", token=site.token)
    again = site.until(job["job_id"], "written", "done", "failed")
    assert (again["state"], again["error"]["code"]) == ("written", "changed_since")
    assert again["result"]["manifest_sha256"] != job["result"]["manifest_sha256"]
    assert "manifest.json" not in site.hub.shelf.repos["dataset", "ada/changing"].head.files
    site.post(f"/api/v1/datasets/{job['job_id']}/publish", token=site.token)
    assert site.until(job["job_id"], "done", "failed")["state"] == "done"


def test_without_a_token_nothing_is_published(site: Publishing) -> None:
    job = site.dry_run(query="run=good", target="ada/none")
    refused = site.post(f"/api/v1/datasets/{job['job_id']}/publish", 401)
    assert "never used" in refused["error"]["message"]
    assert site.job(job["job_id"])["state"] == "written"


def test_a_wrong_token_fails_in_words_and_another_goes_on(site: Publishing) -> None:
    job = site.dry_run(query="run=good", target="ada/wrong")
    site.post(f"/api/v1/datasets/{job['job_id']}/publish", token="hf_nobodys")
    failed = site.until(job["job_id"], "failed", "done")
    assert failed["error"]["code"] == "hub_unauthorised"
    assert "hf_nobodys" not in json.dumps(failed)
    site.post(f"/api/v1/datasets/{job['job_id']}/go-on", token=site.token)
    assert site.until(job["job_id"], "done", "failed")["state"] == "done"


def test_a_token_that_may_not_write_is_refused(site: Publishing) -> None:
    reader = site.hub.people.add("ada", "read")
    job = site.dry_run(query="run=good", target="ada/readers")
    site.post(f"/api/v1/datasets/{job['job_id']}/publish", token=reader)
    failed = site.until(job["job_id"], "failed", "done")
    assert failed["error"]["code"] == "hub_forbidden"


def test_it_is_taken_back_with_a_reason_and_deleted_with_its_name(site: Publishing) -> None:
    job = site.dry_run(query="run=good", target="ada/back")
    path = f"/api/v1/datasets/{job['job_id']}"
    site.post(f"{path}/publish", token=site.token)
    site.until(job["job_id"], "done")
    site.post(f"{path}/take-back", 422, token=site.token)
    yanked = site.post(f"{path}/take-back", 200, reason="a mistake", token=site.token)
    assert yanked["removed"] == "yanked"
    files = site.hub.shelf.repos["dataset", "ada/back"].head.files
    assert not [name for name in files if name.endswith(".parquet")]
    again = site.dry_run(query="run=good", target="ada/gone")
    path = f"/api/v1/datasets/{again['job_id']}"
    site.post(f"{path}/publish", token=site.token)
    site.until(again["job_id"], "done")
    site.post(f"{path}/take-back", 422, reason="r", confirm="ada/back", token=site.token)
    site.post(f"{path}/take-back", 200, reason="r", confirm="ada/gone", token=site.token)
    assert ("dataset", "ada/gone") not in site.hub.shelf.repos
    assert [row["reason"] for row in site.events("dataset_removed")] == ["r", "a mistake"]


def test_a_zip_of_it_is_checked_alone_and_written_down(
    site: Publishing, tmp_path: Path
) -> None:
    job = site.dry_run(query="run=good", formats=["sft"])
    answer = site.ask(
        {"authorization": f"Bearer {site.live.token}"},
        "GET",
        f"/datasets/{job['job_id']}/files.zip",
    )
    assert answer.status_code == 200
    with zipfile.ZipFile(io.BytesIO(answer.content)) as found:
        found.extractall(tmp_path)
    report = check_folder(tmp_path)
    assert report.ok, report.problems
    row = site.events("download")[0]
    assert row["complete"]
    assert row["object"] == f"dataset {job['job_id']}"


def test_files_are_removed_by_hand_and_the_job_remains(site: Publishing) -> None:
    job = site.dry_run(query="run=good")
    folder = site.live.application.publishing.desk.folder(job["job_id"])
    assert folder.is_dir()
    site.live.api("DELETE", f"/api/v1/datasets/{job['job_id']}", status=204)
    assert not folder.exists()
    assert site.job(job["job_id"])["files"] is False
    site.live.api("DELETE", f"/api/v1/datasets/{job['job_id']}?forget=1", status=204)
    site.live.api("GET", f"/api/v1/datasets/{job['job_id']}", status=404)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"licence": "mit"}, "title"),
        ({"title": "t"}, "licence"),
        (ORDER | {"private": "no"}, "`private` is true or false"),
        (ORDER | {"formats": ["sft", "nothing"]}, "nothing"),
        (ORDER | {"view": "not-there"}, "no saved view"),
        (ORDER | {"query": "colour=red"}, "colour"),
        (ORDER | {"query": "run=not-there"}, "nothing to write"),
        (ORDER | {"query": "run=good", "view": "v"}, "not both"),
        (ORDER | {"token": "a b"}, "holds a space"),
        (ORDER | {"gated": "perhaps"}, "no, auto or manual"),
        (ORDER | {"gate_prompt": "promise"}, "gate"),
        (ORDER | {"surprise": 1}, "surprise"),
        (ORDER | {"dry_run": False}, "target"),
    ],
)
def test_what_cannot_be_is_said(site: Publishing, body: dict[str, object], words: str) -> None:
    answer = httpx.post(
        f"{site.live.url}/api/v1/datasets",
        json=body,
        headers={"authorization": f"Bearer {site.live.token}"},
    )
    assert answer.status_code in (401, 404, 422), answer.text
    assert words in answer.json()["error"]["message"]


# -- who may


def test_a_person_publishes_with_their_own_sign_in(site: Publishing) -> None:
    site.live.application.sign_in.roles.change(
        HUB_PERSON.subject, Role.CURATOR, True, OPERATOR, "to test"
    )
    own = site.hub.people.add("ada", "contribute-repos")
    headers = site.session(HUB_PERSON, own)
    body = ORDER | {"query": "run=good", "target": "ada/signed"}
    made = site.ask(headers, "POST", "/api/v1/datasets", json=body).json()
    site.until(made["job_id"], "written")
    site.ask(headers, "POST", f"/api/v1/datasets/{made['job_id']}/publish", json={})
    done = site.until(made["job_id"], "done", "failed")
    assert done["state"] == "done", done
    assert own in site.hub.faults.tokens
    # One that was given without leave to publish is not taken.
    plain = site.session(HUB_PERSON, own, "openid", "profile")
    made = site.ask(plain, "POST", "/api/v1/datasets", json=body).json()
    site.until(made["job_id"], "written")
    answer = site.ask(plain, "POST", f"/api/v1/datasets/{made['job_id']}/publish", json={})
    assert answer.status_code == 401


def test_a_grant_lets_a_person_publish_to_that_dataset_and_what_they_see(
    site: Publishing,
) -> None:
    open_one, hidden = site.rollout("open", run="granted"), site.rollout("hid", run="granted")
    visibility = site.live.application.access.visibility
    visibility.set(OPERATOR, Target.ROLLOUT, open_one, Level.SIGNED_IN, "to test")
    visibility.set(OPERATOR, Target.ROLLOUT, hidden, Level.PRIVATE, "to test")
    eve = Person("oidc:eve", "Eve")
    headers = site.session(eve)
    body = ORDER | {"query": "run=granted", "target": "ada/granted"}
    refused = site.ask(headers, "POST", "/api/v1/datasets", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "grant_needed")
    grant_id = site.grant(eve.subject, "ada/granted", uses=1)
    for other in ({"target": "ada/others"}, {"target": ""}, {"target": "hf://buckets/ada/b"}):
        refused = site.ask(headers, "POST", "/api/v1/datasets", json=body | other)
        assert refused.status_code == 403, refused.text
    made = site.ask(headers, "POST", "/api/v1/datasets", json=body)
    assert made.status_code == 202, made.text
    job_id = made.json()["job_id"]
    job = site.until(job_id, "written")
    assert (job["asked"], job["result"]["rollouts"]) == (1, 1)
    # Somebody else does not see the job, nor may its files be taken whole.
    other = site.session(Person("oidc:mallory", "Mallory"))
    assert site.ask(other, "GET", f"/api/v1/datasets/{job_id}").status_code == 404
    assert site.ask(headers, "GET", f"/datasets/{job_id}/files.zip").status_code == 403
    path = f"/api/v1/datasets/{job_id}/publish"
    assert site.ask(headers, "POST", path, json={"token": site.token}).status_code == 202
    assert site.until(job_id, "done", "failed")["state"] == "done"
    grant = site.live.application.access.grants.get(grant_id)
    assert [use.rollout_id for use in grant.uses] == [f"dataset {job_id}"]
    made = site.ask(headers, "POST", "/api/v1/datasets", json=body)
    assert made.status_code == 403


def test_what_is_closed_to_somebody_meanwhile_is_not_published_by_them(
    site: Publishing,
) -> None:
    rollout = site.rollout("open", run="closing")
    visibility = site.live.application.access.visibility
    visibility.set(OPERATOR, Target.ROLLOUT, rollout, Level.SIGNED_IN, "to test")
    kim = Person("oidc:kim", "Kim")
    headers = site.session(kim)
    site.grant(kim.subject, "ada/closing")
    body = ORDER | {"query": "run=closing", "target": "ada/closing"}
    job_id = site.ask(headers, "POST", "/api/v1/datasets", json=body).json()["job_id"]
    site.until(job_id, "written")
    visibility.set(OPERATOR, Target.ROLLOUT, rollout, Level.PRIVATE, "to test")
    path = f"/api/v1/datasets/{job_id}/publish"
    answer = site.ask(headers, "POST", path, json={"token": site.token})
    assert answer.status_code == 403
    assert "not open to you" in answer.json()["error"]["message"]


def test_visitors_see_nothing_of_it(site: Publishing) -> None:
    headers = {"host": "demo.example"}
    for path in ("/datasets.json", "/datasets/publish.json", "/api/v1/datasets"):
        answer = site.ask(headers, "GET", path)
        assert answer.status_code in (401, 403, 421), path


def test_nobody_publishes_by_passing_a_gate(site: Publishing) -> None:
    body = {
        "dataset": "ada/gate",
        "kinds": ["publish"],
        "subject": "hub:ada/readers",
        "purpose": "to test",
    }
    answer = site.live.api("POST", "/api/v1/grants", body, status=422)
    assert "only reads" in answer["error"]["message"]
    given = body | {"subject": "oidc:org:acme"}
    assert site.live.api("POST", "/api/v1/grants", given, status=201)["state"] == "approved"

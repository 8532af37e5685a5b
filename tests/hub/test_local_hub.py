"""The local Hub, asked by the real client: what the other tests rest on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.hub.faults import Limit
from tests.hub.server import LocalHub

REPO = "ada/set"
CARD = b"---\nlicense: mit\n---\n\n# A set\n"


@pytest.fixture
def api(hub: LocalHub, ada: str, monkeypatch: pytest.MonkeyPatch) -> HfApi:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    made = HfApi(endpoint=hub.url, token=ada)
    made.create_repo(REPO, repo_type="dataset", private=True)
    return made


def add(api: HfApi, files: dict[str, bytes], parent: str | None = None) -> str:
    operations = [CommitOperationAdd(path, content) for path, content in files.items()]
    made = api.create_commit(
        REPO, operations, commit_message="add", repo_type="dataset", parent_commit=parent
    )
    return str(made.oid)


def test_who_one_is(hub: LocalHub, api: HfApi) -> None:
    me = api.whoami()
    assert (me["name"], me["auth"]["accessToken"]["role"]) == ("ada", "write")
    member = HfApi(endpoint=hub.url, token=hub.people.add("cy", "read", ("lab",)))
    assert [org["name"] for org in member.whoami()["orgs"]] == ["lab"]
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        api.whoami(token="hf_nobodys")


def test_a_repository_is_made_once(api: HfApi) -> None:
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo(REPO, repo_type="dataset")
    again = api.create_repo(REPO, repo_type="dataset", exist_ok=True)
    assert again.repo_id == REPO
    assert api.dataset_info(REPO).private is True
    api.delete_repo(REPO, repo_type="dataset")
    assert not api.repo_exists(REPO, repo_type="dataset")


def test_files_small_and_large_come_back_as_they_went(
    hub: LocalHub, api: HfApi, tmp_path: Path
) -> None:
    hub.part_size = 1000
    content = bytes(range(256)) * 10
    revision = add(api, {"a/b.parquet": content, "README.md": CARD, "empty.txt": b""})
    assert hub.faults.asked(r"PUT /upload/\w+\.00003")
    info = api.get_paths_info(REPO, ["a/b.parquet", "a", "no"], repo_type="dataset")
    assert [item.path for item in info] == ["a/b.parquet", "a"]
    assert info[0].lfs.sha256 == hashlib.sha256(content).hexdigest()  # type: ignore[union-attr]
    for name, wanted in (("a/b.parquet", content), ("README.md", CARD), ("empty.txt", b"")):
        path = api.hf_hub_download(REPO, name, repo_type="dataset", cache_dir=tmp_path / "c")
        assert Path(path).read_bytes() == wanted
        assert revision in path
    with pytest.raises(EntryNotFoundError):
        api.hf_hub_download(REPO, "no", repo_type="dataset", cache_dir=tmp_path / "c")
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info(REPO, revision="gone")


def test_what_is_there_by_its_hash_is_not_sent_again(hub: LocalHub, api: HfApi) -> None:
    add(api, {"a.parquet": b"x" * 100})
    hub.faults.clear()
    add(api, {"b.parquet": b"x" * 100})
    assert hub.faults.asked("objects/batch")
    assert not hub.faults.asked("PUT /upload")


def test_a_commit_stands_on_its_parent(hub: LocalHub, api: HfApi) -> None:
    first = hub.dataset(REPO).head.oid
    second = add(api, {"a.json": b"{}"}, first)
    with pytest.raises(HfHubHTTPError) as refused:
        add(api, {"b.json": b"{}"}, first)
    assert refused.value.response.status_code == 412
    assert [commit.oid for commit in hub.dataset(REPO).history] == [first, second]
    refs = api.list_repo_refs(REPO, repo_type="dataset")
    assert refs.branches[0].target_commit == second
    commits = api.list_repo_commits(REPO, repo_type="dataset")
    assert [commit.title for commit in commits] == ["add", "initial commit"]


def test_a_commit_is_whole_or_not_at_all(hub: LocalHub, api: HfApi) -> None:
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd("a.json", b"{}"),
        CommitOperationDelete("no.json"),
    ]
    with pytest.raises(EntryNotFoundError, match="doesn't exist"):
        api.create_commit(REPO, operations, commit_message="m", repo_type="dataset")
    assert set(hub.dataset(REPO).head.files) == {".gitattributes"}


def test_cards_are_checked(api: HfApi) -> None:
    with pytest.raises(ValueError, match='"license" must be one of'):
        add(api, {"README.md": b"---\nlicense: mine\n---\n"})
    with pytest.raises(ValueError, match="Invalid YAML"):
        add(api, {"README.md": b"---\na: [\n---\n"})
    with pytest.warns(UserWarning, match="empty or missing yaml"):
        add(api, {"README.md": b"no front matter\n"})


def test_lists_come_in_pages(hub: LocalHub, api: HfApi) -> None:
    files = {f"d{at % 7}/f{at:04}.json": b"{}" for at in range(500)}
    add(api, files)
    hub.page = 40
    hub.faults.clear()
    listed = api.list_repo_files(REPO, repo_type="dataset")
    assert set(listed) == set(files) | {".gitattributes"}
    assert len(hub.faults.asked("GET .*/tree/")) == 13
    top = [item.path for item in api.list_repo_tree(REPO, repo_type="dataset")]
    assert top == [".gitattributes", *(f"d{at}" for at in range(7))]


def test_private_is_not_there_for_others(hub: LocalHub, api: HfApi) -> None:
    for token in (False, hub.people.add("bob"), hub.people.add("ada", "contribute-repos")):
        with pytest.raises(RepositoryNotFoundError):
            api.dataset_info(REPO, token=token)
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        api.dataset_info(REPO, token="hf_nobodys")
    assert api.dataset_info(REPO, token=hub.people.add("ada", "read")).private


def test_a_gate_shows_the_page_and_keeps_the_files(
    hub: LocalHub, api: HfApi, tmp_path: Path
) -> None:
    add(api, {"a.json": b"{}"})
    api.update_repo_settings(REPO, repo_type="dataset", gated="manual", private=False)
    bob = hub.people.add("bob")
    assert api.dataset_info(REPO, token=bob).gated == "manual"
    for token, status in ((False, 401), (bob, 403)):
        with pytest.raises(GatedRepoError) as refused:
            api.auth_check(REPO, repo_type="dataset", token=token)
        assert refused.value.response.status_code == status
        with pytest.raises(GatedRepoError):
            api.hf_hub_download(
                REPO, "a.json", repo_type="dataset", token=token, cache_dir=tmp_path
            )
    hub.dataset(REPO).let_in.add("bob")
    api.auth_check(REPO, repo_type="dataset", token=bob)
    api.auth_check(REPO, repo_type="dataset")


def test_scopes(hub: LocalHub, api: HfApi) -> None:
    reader = HfApi(endpoint=hub.url, token=hub.people.add("ada", "read"))
    with pytest.raises(HfHubHTTPError, match="403"):
        reader.create_repo("ada/other", repo_type="dataset")
    contributor = HfApi(endpoint=hub.url, token=hub.people.add("ada", "contribute-repos"))
    contributor.create_repo("ada/own", repo_type="dataset", private=True)
    contributor.auth_check("ada/own", repo_type="dataset", write=True)
    api.update_repo_settings(REPO, repo_type="dataset", private=False)
    with pytest.raises(HfHubHTTPError, match="403"):
        contributor.auth_check(REPO, repo_type="dataset", write=True)
    with pytest.raises(HfHubHTTPError, match="403"):
        contributor.create_repo("bob/x", repo_type="dataset")


def test_pieces_of_a_file_and_where_large_ones_lie(hub: LocalHub, api: HfApi, ada: str) -> None:
    add(api, {"a.json": b"0123456789", "b.parquet": b"x" * 50})
    headers = {"authorization": f"Bearer {ada}"}
    address = f"{hub.url}/datasets/{REPO}/resolve/main"
    piece = httpx.get(f"{address}/a.json", headers=headers | {"range": "bytes=2-4"})
    assert (piece.status_code, piece.content) == (206, b"234")
    assert piece.headers["content-range"] == "bytes 2-4/10"
    end = httpx.get(f"{address}/a.json", headers=headers | {"range": "bytes=-3"})
    assert end.content == b"789"
    beyond = httpx.get(f"{address}/a.json", headers=headers | {"range": "bytes=20-"})
    assert beyond.status_code == 416
    moved = httpx.head(f"{address}/b.parquet", headers=headers)
    assert (moved.status_code, moved.headers["x-linked-size"]) == (302, "50")
    assert moved.headers["x-repo-commit"] == hub.dataset(REPO).head.oid
    assert httpx.get(moved.headers["location"]).content == b"x" * 50
    assert httpx.get(moved.headers["location"].split("?")[0]).status_code == 403


def test_a_limit_counts_and_says_until_when(hub: LocalHub, ada: str) -> None:
    hub.limit = Limit(quota=3, window=60)
    headers = {"authorization": f"Bearer {ada}"}
    answers = [httpx.get(f"{hub.url}/api/whoami-v2", headers=headers) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[0].headers["ratelimit"].startswith('"api";r=2;t=')
    assert answers[3].headers["ratelimit"].startswith('"api";r=0;t=')


def test_xet_is_refused_as_where_there_is_none(
    hub: LocalHub, api: HfApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    with pytest.raises(Exception, match=r"404|Xet|not found|Not Found"):
        add(api, {"a.parquet": b"x" * 100})
    assert set(hub.dataset(REPO).head.files) == {".gitattributes"}

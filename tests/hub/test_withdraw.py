"""Taking a published dataset away: what goes, what stays, and what never was ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from explorer.errors import (
    HeadMoved,
    HubConflict,
    HubForbidden,
    HubNotFound,
    HubUnavailable,
)
from tests.hub.faults import calling, failing
from tests.hub.making import (
    NEVER,
    REPO,
    check_history,
    dataset,
    described,
    set_of,
    unheard,
)
from tests.hub.server import LocalHub


def test_yank_says_why_and_keeps_what_was(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path, 6, 100), dataset(hub, ada, operations=3)
    target.prepare()
    before = target.put(upload, target.head(), unheard, NEVER).revision
    target.remove("a secret\x1b[31m <script>`x`</script>\n# It was mine", whole=False)
    repo = hub.dataset(REPO)
    assert set(repo.head.files) == {".gitattributes", "README.md"}
    card = hub.shelf.read(repo, "README.md").decode()
    assert "    a secret [31m <script>`x`</script> # It was mine\n" in card
    assert "earlier revisions" in card
    assert set(upload.files) <= set(repo.commits[str(before)].files)
    check_history(hub, repo)
    # Another may be published there.
    target.prepare()
    assert target.head().manifest is None
    target.put(upload, target.head(), unheard, NEVER)
    assert set(upload.files) <= set(repo.head.files)


def test_a_yank_that_loses_a_race_changes_nothing(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    target = dataset(hub, ada)
    target.prepare()
    target.put(set_of(tmp_path / "one", 1), target.head(), unheard, NEVER)
    two = described(set_of(tmp_path / "one", 1).folder, set_of(tmp_path / "one", 1).files)
    (tmp_path / "one" / "manifest.json").write_text('{"format": "rollout-explorer/dataset"}')
    hub.faults.add(
        "/commit/",
        calling(lambda: dataset(hub, ada).put(two, dataset(hub, ada).head(), unheard, NEVER)),
    )
    with pytest.raises(HeadMoved):
        target.remove("why", whole=False)
    assert "manifest.json" in hub.dataset(REPO).head.files


def by_hand(hub: LocalHub, name: str) -> None:
    """Somebody adds a file on the Hub's page."""
    repo = hub.dataset(REPO)
    files = repo.head.files | {name: hub.shelf.small(b"mine")}
    hub.shelf.commit(repo, "main", files, ("by hand", "", "ada"))


def test_what_others_put_beside_it_stays(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path, 2), dataset(hub, ada)
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    by_hand(hub, "notebook.ipynb")
    with pytest.raises(HubConflict, match=r"holds something else, too \('notebook"):
        target.remove("why", whole=True)
    target.remove("why", whole=False)
    assert set(hub.dataset(REPO).head.files) == {
        *(".gitattributes", "README.md", "notebook.ipynb")
    }
    for whole in (True, False):
        with pytest.raises(HubNotFound, match="no dataset of ours"):
            target.remove("why", whole)


def test_what_was_uploaded_halfway_is_withdrawn_too(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    upload, target = set_of(tmp_path, 12, 100), dataset(hub, ada, operations=5)
    target.prepare()
    hub.faults.add("/commit/", failing(503), first=2, times=99)
    with pytest.raises(HubUnavailable):
        target.put(upload, target.head(), unheard, NEVER)
    hub.faults.clear()
    assert len(hub.dataset(REPO).head.files) == 4
    target.remove("why", whole=False)
    assert set(hub.dataset(REPO).head.files) == {".gitattributes", "README.md"}


def test_what_is_not_ours_is_not_deleted(hub: LocalHub, ada: str) -> None:
    repo = hub.shelf.create("dataset", REPO, True, "ada")
    by_hand(hub, "thesis.csv")
    for whole in (True, False):
        with pytest.raises(HubNotFound, match="no dataset of ours"):
            dataset(hub, ada).remove("why", whole)
    assert repo.head.title == "by hand"


def test_deleting_it_whole(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path, 1), dataset(hub, ada)
    for how in ("empty", "published", "withdrawn"):
        target.prepare()
        if how != "empty":
            target.put(upload, target.head(), unheard, NEVER)
        if how == "withdrawn":
            target.remove("why", whole=False)
        with pytest.raises(HubForbidden, match="`manage-repos`; withdraw the dataset without"):
            dataset(hub, hub.people.add("ada", "read")).remove("why", whole=True)
        target.remove("why", whole=True)
        assert hub.shelf.repos == {}
    for whole in (True, False):
        with pytest.raises(HubNotFound, match="is not there"):
            target.remove("why", whole)

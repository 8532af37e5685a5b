"""Publishing to a dataset: what arrives, in which order, and what is never written over."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from explorer.errors import (
    HeadMoved,
    HubConflict,
    HubForbidden,
    HubGated,
    HubNotFound,
    HubRefused,
    HubUnauthorised,
    PublishStopped,
)
from explorer.export.hub.target import Head, Upload
from tests.hub.faults import calling, failing
from tests.hub.making import (
    NEVER,
    REPO,
    check_history,
    dataset,
    described,
    names_of,
    set_of,
    unheard,
)
from tests.hub.server import LocalHub


def test_everything_arrives_in_one_commit(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path, 3, more=("sft/rows.jsonl",)), dataset(hub, ada)
    target.prepare()
    assert target.head() == Head(hub.dataset(REPO).head.oid, None)
    told: list[tuple[str, int, int]] = []
    published = target.put(upload, target.head(), lambda *said: told.append(said), NEVER)
    repo = hub.dataset(REPO)
    assert len(repo.history) == 2
    assert published.revision == repo.head.oid
    assert published.url == f"{hub.url}/datasets/{REPO}"
    names = [*upload.files, *upload.last]
    sizes = {name: (tmp_path / name).stat().st_size for name in names}
    assert (published.uploaded, published.skipped) == (len(names), 0)
    assert published.bytes == sum(sizes.values())
    wanted = {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in names
    }
    found = hub.shelf.sums(repo)
    del found[".gitattributes"]
    assert found == wanted
    assert told[0] == ("uploading", 0, sum(sizes.values()))
    assert told[-1] == ("uploading", sum(sizes.values()), sum(sizes.values()))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    check_history(hub, repo)


def test_hub_06_a_dataset_is_private_unless_public_is_asked_for(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    target = dataset(hub, ada)
    target.prepare()
    assert hub.dataset(REPO).private is True
    # Not for a moment was it public: it was made so.
    assert not hub.faults.asked("PUT .*/settings")
    dataset(hub, ada, "ada/open", private=False).prepare()
    assert hub.dataset("ada/open").private is False


def test_what_is_there_is_another_visibility_or_gate_than_was_asked_for(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    target = dataset(hub, ada)
    target.prepare()
    target.put(set_of(tmp_path, 1), target.head(), unheard, NEVER)
    with pytest.raises(HubConflict, match="is private, and public was asked for"):
        dataset(hub, ada, private=False).prepare()
    with pytest.raises(HubConflict, match="has no gate, and a manual gate was asked for"):
        dataset(hub, ada, gated="manual").prepare()
    hub.dataset(REPO).private = False
    with pytest.raises(HubConflict, match="is public, and private was asked for"):
        target.prepare()
    assert hub.dataset(REPO).gated is False


def test_the_gate_is_there_before_the_data(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    target = dataset(hub, ada, private=False, gated="manual")
    target.prepare()
    assert hub.dataset(REPO).gated == "manual"
    target.put(set_of(tmp_path, 1), target.head(), unheard, NEVER)
    log = hub.faults.log
    settings = next(at for at, line in enumerate(log) if line.startswith("PUT /api/"))
    assert settings < next(at for at, line in enumerate(log) if "/preupload/" in line)
    # Again: it is as asked, and nothing is set.
    hub.faults.clear()
    target.prepare()
    assert not hub.faults.asked("PUT ")


def test_hub_07_a_gate_is_explained_as_a_gate_and_a_token_is_sent_where_there_is_one(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    target = dataset(hub, ada, private=False, gated="manual")
    target.prepare()
    upload = set_of(tmp_path / "set", 1)
    target.put(upload, target.head(), unheard, NEVER)
    bob = hub.people.add("bob")
    # The first is answered 401, the second 403: both are a gate, neither "log in" nor "rights".
    for token in (None, bob):
        with pytest.raises(HubGated, match=r"behind a gate.*Ask for access") as refused:
            dataset(hub, token).fetch(upload.files[0], tmp_path / "got")
        assert refused.value.code == "hub_gated"
        assert not (tmp_path / "got").exists()
    hub.dataset(REPO).let_in.add("bob")
    dataset(hub, bob).fetch(upload.files[0], tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == (tmp_path / "set" / upload.files[0]).read_bytes()


def test_publishing_again_changes_nothing(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path, 2), dataset(hub, ada)
    target.prepare()
    first = target.put(upload, target.head(), unheard, NEVER)
    hub.faults.clear()
    target.prepare()
    again = target.put(upload, target.head(), unheard, NEVER)
    assert (again.revision, again.uploaded, again.skipped) == (first.revision, 0, 4)
    assert not hub.faults.asked("PUT /upload|/commit/|/preupload/")


def test_large_files_go_up_in_parts(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    hub.part_size = 1_000_000
    upload, target = set_of(tmp_path, 1, size=3_500_000), dataset(hub, ada)
    target.prepare()
    hub.faults.add(r"PUT /upload/\w+\.00003", failing(503))
    told: list[int] = []
    target.put(upload, target.head(), lambda _, done, of: told.append(done), NEVER)
    assert (
        hub.shelf.read(hub.dataset(REPO), upload.files[0])
        == (tmp_path / upload.files[0]).read_bytes()
    )
    # Told while it went, and from the start again when it failed.
    assert len(told) > 4
    assert told != sorted(told)


def test_appending_sends_only_what_is_new(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path, 2), dataset(hub, ada)
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    before = hub.shelf.sums(hub.dataset(REPO))
    new = names_of(1, part=7)[0]
    (tmp_path / new).write_bytes(b"new rows")
    head = target.head()
    assert head.manifest == (tmp_path / "manifest.json").read_bytes()
    hub.faults.clear()
    more = described(tmp_path, (*upload.files, new))
    published = target.put(more, head, unheard, NEVER)
    assert (published.uploaded, published.skipped) == (3, 2)
    assert len(hub.faults.asked("PUT /upload")) == 1
    after = hub.shelf.sums(hub.dataset(REPO))
    assert {name: after[name] for name in upload.files} == {
        name: before[name] for name in upload.files
    }
    check_history(hub, hub.dataset(REPO))


def test_nothing_is_written_over(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path, 2), dataset(hub, ada)
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    (tmp_path / upload.files[1]).write_bytes(b"other rows under the same name")
    before = hub.dataset(REPO).head
    with pytest.raises(HubConflict, match="another file of the name sequences/part-00001"):
        target.put(upload, target.head(), unheard, NEVER)
    assert hub.dataset(REPO).head is before


def test_of_two_publishers_at_once_one_is_told_to_plan_again(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    one, two = set_of(tmp_path / "one", 1), set_of(tmp_path / "two", 2)
    target, head = dataset(hub, ada), None
    target.prepare()
    head = target.head()
    # The second publishes while the first is about to commit.
    hub.faults.add(
        "/commit/", calling(lambda: dataset(hub, ada).put(two, head, unheard, NEVER))
    )
    with pytest.raises(HeadMoved) as moved:
        target.put(one, head, unheard, NEVER)
    assert moved.value.retryable
    repo = hub.dataset(REPO)
    assert len(repo.history) == 2
    assert set(two.files) <= set(repo.head.files)
    # And a head that moved before is not even begun with.
    hub.faults.clear()
    with pytest.raises(HeadMoved):
        target.put(one, head, unheard, NEVER)
    assert not hub.faults.asked("preupload|upload|commit")


def test_hub_02_a_commit_has_so_many_files_and_no_more(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    upload, target = set_of(tmp_path, 12, size=100), dataset(hub, ada, operations=5)
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    repo = hub.dataset(REPO)
    sizes = [
        len(set(new.files.items()) - set(old.files.items()))
        for old, new in zip(repo.history, repo.history[1:], strict=False)
    ]
    assert sum(sizes) == 14
    assert max(sizes) <= 5
    for commit in repo.history[:-1]:
        assert "manifest.json" not in commit.files
        assert "README.md" not in commit.files
    assert [commit.title for commit in repo.history[1:]] == [
        f"Publish 5 shards (part {at} of 4)" for at in (1, 2, 3, 4)
    ]
    check_history(hub, repo)


def test_a_thousand_small_files_are_one_dataset_of_few_requests(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    names = tuple(f"verifiers/{at:05}.json" for at in range(400))
    upload, target = set_of(tmp_path, 1, 100, names), dataset(hub, ada)
    hub.page = 50
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    repo = hub.dataset(REPO)
    assert len(repo.history) == 2
    assert len(repo.head.files) == 404
    # Each is asked about once, and small ones travel in the commit.
    assert len(hub.faults.asked("PUT /upload")) == 1
    assert len(hub.faults.asked("/preupload/")) <= 404


def test_a_card_that_the_hub_refuses_is_refused_before_anything_goes_up(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    upload, target = set_of(tmp_path, 1), dataset(hub, ada)
    target.prepare()
    (tmp_path / "README.md").write_text("---\nlicense: my-own\n---\n")
    with pytest.raises(HubRefused, match='"license" must be one of'):
        target.put(upload, target.head(), unheard, NEVER)
    assert not hub.faults.asked("preupload|upload/|commit/")


def test_a_gitignore_there_is_noticed(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path, 1), dataset(hub, ada)
    target.prepare()
    hub.ignored = r".*\.parquet"
    with pytest.raises(HubConflict, match=r"such as a \.gitignore"):
        target.put(upload, target.head(), unheard, NEVER)


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ({"README.md": b"mine"}, False),
        ({"data.csv": b"a,b"}, True),
        ({"manifest.json": b"{}"}, True),
        ({"manifest.json": b"not json"}, True),
        ({"manifest.json": b'{"format": "rollout-explorer/dataset", "configs": {}}'}, False),
    ],
)
def test_what_is_not_ours_is_left_alone(
    hub: LocalHub, ada: str, files: dict[str, bytes], refused: bool
) -> None:
    repo = hub.shelf.create("dataset", REPO, True, "ada")
    new = {name: hub.shelf.small(content) for name, content in files.items()}
    hub.shelf.commit(repo, "main", repo.head.files | new, ("by hand", "", "ada"))
    if not refused:
        dataset(hub, ada).prepare()
        return
    with pytest.raises(HubConflict, match="choose another name"):
        dataset(hub, ada).prepare()
    assert repo.head.title == "by hand"


def test_tokens_that_do_not_do(hub: LocalHub, ada: str) -> None:
    with pytest.raises(HubUnauthorised, match="needs a token of your own"):
        dataset(hub, None).prepare()
    assert hub.faults.log == []
    with pytest.raises(HubUnauthorised, match="does not take this token"):
        dataset(hub, "hf_mistyped").prepare()
    for token in (hub.people.add("ada", "read"), hub.people.add("bob")):
        with pytest.raises(HubForbidden, match="`contribute-repos`"):
            dataset(hub, token).prepare()
    assert hub.shelf.repos == {}
    # One that exists and is not theirs to write.
    dataset(hub, ada, private=False).prepare()
    with pytest.raises(HubForbidden, match=f"could not write to {REPO}"):
        dataset(hub, hub.people.add("bob"), private=False).prepare()
    # A private one of somebody else looks like none, and cannot be made either.
    dataset(hub, ada, "ada/hidden").prepare()
    with pytest.raises(HubForbidden):
        dataset(hub, hub.people.add("bob"), "ada/hidden").prepare()


def test_a_contributing_token_publishes_what_it_made(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    token = hub.people.add("ada", "contribute-repos")
    target = dataset(hub, token, gated="auto")
    target.prepare()
    target.put(set_of(tmp_path, 1), target.head(), unheard, NEVER)
    assert "manifest.json" in hub.dataset(REPO).head.files
    dataset(hub, ada, "ada/by-hand", private=False).prepare()
    with pytest.raises(HubForbidden):
        dataset(hub, token, "ada/by-hand", private=False).prepare()


def test_an_organisation_that_one_belongs_to(hub: LocalHub, tmp_path: Path) -> None:
    member = hub.people.add("cy", "write", ("lab",))
    target = dataset(hub, member, "lab/set")
    target.prepare()
    target.put(set_of(tmp_path, 1), target.head(), unheard, NEVER)
    assert hub.dataset("lab/set").private


def test_it_stops_between_files_and_within_one(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path, 3, size=3_000_000), dataset(hub, ada)
    target.prepare()
    for after in (0, 3_500_000):
        stop = threading.Event()

        def heard(phase: str, done: int, of: int, stop: threading.Event = stop) -> None:
            if done > after:  # noqa: B023
                stop.set()

        with pytest.raises(PublishStopped, match="used when"):
            target.put(upload, target.head(), heard, stop)
    assert len(hub.dataset(REPO).history) == 1
    hub.faults.clear()
    target.put(upload, target.head(), unheard, NEVER)
    # The first file was there by then.
    assert len(hub.faults.asked("PUT /upload")) == 2


def test_small_files_of_many_bytes_are_not_all_in_one_commit(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    names = tuple(f"sessions/part-{at:05}-{at:016x}.jsonl" for at in range(9))
    upload, target = set_of(tmp_path, 1, 100, names), dataset(hub, ada)
    for name in names:
        (tmp_path / name).write_bytes(b'{"a": "%s"}\n' % (b"x" * 9_000_000))
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    repo = hub.dataset(REPO)
    assert len(repo.history) == 3
    check_history(hub, repo)


def test_a_file_that_is_not_there(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    target = dataset(hub, ada)
    assert target.head() == Head(None, None)
    with pytest.raises(HubNotFound):
        target.put(Upload(tmp_path, ()), Head(None, None), unheard, NEVER)
    target.prepare()
    with pytest.raises(HubNotFound):
        target.fetch("no/such.parquet", tmp_path / "x")

"""A Storage Bucket as a target: the real Xet client, and what a bucket cannot promise."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from explorer.errors import (
    HeadMoved,
    HubConflict,
    HubForbidden,
    HubNotFound,
    HubRefused,
    HubUnauthorised,
    PublishStopped,
)
from explorer.export.hub.target import Head, Target
from explorer.export.hub.targets import target_of
from tests.hub.faults import calling, failing
from tests.hub.making import NEVER, QUICK, described, names_of, set_of, unheard
from tests.hub.server import LocalHub

WHERE = "hf://buckets/ada/live"


@pytest.fixture(autouse=True)
def _own_xet_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test uploaded must not be known to the next one's client."""
    monkeypatch.setenv("HF_XET_CACHE", str(tmp_path / "xet"))
    monkeypatch.setenv("HF_XET_TELEMETRY_ENABLED", "0")


def bucket(
    hub: LocalHub, token: str | None, where: str = WHERE, private: bool = True
) -> Target:
    return target_of(
        where, token=token, private=private, gated="", endpoint=hub.url, patience=QUICK
    )


def content(hub: LocalHub, bucket_id: str = "ada/live") -> dict[str, bytes]:
    files = hub.buckets[bucket_id].files
    return {path: hub.storage.read(files[path].xet) for path in sorted(files)}


def local(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_everything_arrives_what_names_it_last(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path / "set", 3), bucket(hub, ada)
    target.prepare()
    assert hub.buckets["ada/live"].private is True
    assert target.head() == Head(None, None)
    seen: list[set[str]] = []
    files = hub.buckets["ada/live"].files
    hub.faults.add("/batch", calling(lambda: seen.append(set(files)), before=False), times=99)
    told: list[tuple[str, int, int]] = []
    published = target.put(upload, target.head(), lambda *said: told.append(said), NEVER)
    assert content(hub) == local(tmp_path / "set")
    # At no moment is there a manifest or a card without every file that it names.
    assert all(
        set(upload.files) <= names for names in seen if names & {"manifest.json", "README.md"}
    )
    assert (published.uploaded, published.skipped) == (5, 0)
    assert told[-1][1] == told[-1][2] == published.bytes
    assert target.head().revision == published.revision
    target.fetch(upload.files[0], tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == (tmp_path / "set" / upload.files[0]).read_bytes()
    again = target.put(upload, target.head(), unheard, NEVER)
    assert (again.uploaded, again.skipped) == (0, 5)


def test_a_folder_in_a_bucket_leaves_the_rest_of_it_alone(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    api = HfApi(endpoint=hub.url, token=ada)
    api.create_bucket("ada/live", private=True)
    mine: list[tuple[str | Path | bytes, str]] = [
        (b"mine", "notes.txt"),
        (b"other", "runs/one-more/x"),
    ]
    api.batch_bucket_files("ada/live", add=mine)
    kept = {"notes.txt", "runs/one-more/x"}
    with pytest.raises(HubConflict, match=r"holds something else \('notes\.txt'"):
        bucket(hub, ada).prepare()
    upload, target = set_of(tmp_path / "set", 1), bucket(hub, ada, f"{WHERE}/runs/one/")
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    assert set(content(hub)) == {*kept, *(f"runs/one/{name}" for name in upload.names)}
    target.remove("why", whole=False)
    assert set(content(hub)) == {*kept, "runs/one/README.md"}
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    target.remove("why", whole=True)
    assert set(content(hub)) == kept


def test_appending_and_nothing_written_over(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path / "set", 2), bucket(hub, ada)
    target.prepare()
    head = target.head()
    target.put(upload, head, unheard, NEVER)
    with pytest.raises(HeadMoved):
        target.put(upload, head, unheard, NEVER)
    new = names_of(1, part=9)[0]
    (tmp_path / "set" / new).write_bytes(b"new rows")
    published = target.put(
        described(tmp_path / "set", (*upload.files, new)), target.head(), unheard, NEVER
    )
    assert (published.uploaded, published.skipped) == (3, 2)
    (tmp_path / "set" / upload.files[0]).write_bytes(b"other rows under the same name")
    before = content(hub)
    with pytest.raises(HubConflict, match="another file of the name"):
        target.put(upload, target.head(), unheard, NEVER)
    assert content(hub) == before


def test_one_who_publishes_between_our_files_is_noticed(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    one, two = set_of(tmp_path / "one", 2), set_of(tmp_path / "two", 1, size=50)
    (tmp_path / "two" / one.files[0]).unlink()
    other = names_of(1, part=5)[0]
    (tmp_path / "two" / other).write_bytes(b"theirs")
    two = described(tmp_path / "two", (other,))
    target = bucket(hub, ada)
    target.prepare()
    head = target.head()
    hub.faults.add(
        "/batch", calling(lambda: bucket(hub, ada).put(two, head, unheard, NEVER)), first=2
    )
    with pytest.raises(HeadMoved):
        target.put(one, head, unheard, NEVER)
    found = content(hub)
    assert found["manifest.json"] == (tmp_path / "two" / "manifest.json").read_bytes()
    assert found[other] == b"theirs"


def test_stopped_it_is_known_as_ours_and_goes_on(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    upload, target = set_of(tmp_path / "set", 3), bucket(hub, ada)
    target.prepare()
    stop = threading.Event()

    def heard(phase: str, done: int, of: int) -> None:
        if done:
            stop.set()

    with pytest.raises(PublishStopped):
        target.put(upload, target.head(), heard, stop)
    assert "manifest.json" not in content(hub)
    target.prepare()
    published = target.put(upload, target.head(), unheard, NEVER)
    assert published.skipped == 1
    assert content(hub) == local(tmp_path / "set")


def test_yank_and_delete(hub: LocalHub, ada: str, tmp_path: Path) -> None:
    upload, target = set_of(tmp_path / "set", 2), bucket(hub, ada)
    target.prepare()
    with pytest.raises(HubNotFound):
        target.remove("why", whole=False)
    target.put(upload, target.head(), unheard, NEVER)
    target.remove("wrong rewards", whole=False)
    assert set(content(hub)) == {"README.md"}
    assert b"    wrong rewards\n" in content(hub)["README.md"]
    target.prepare()
    target.put(upload, target.head(), unheard, NEVER)
    target.remove("wrong rewards", whole=True)
    assert hub.buckets == {}
    # Withdrawn before, or never filled.
    for filled in (True, False):
        target.prepare()
        if filled:
            target.put(upload, target.head(), unheard, NEVER)
            target.remove("wrong rewards", whole=False)
        target.remove("wrong rewards", whole=True)
        assert hub.buckets == {}
    with pytest.raises(HubNotFound):
        target.remove("again", whole=True)


def test_what_is_refused_before_anything_goes_up(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    with pytest.raises(HubUnauthorised, match="needs a token of your own"):
        bucket(hub, None).prepare()
    with pytest.raises(HubForbidden):
        bucket(hub, hub.people.add("bob")).prepare()
    with pytest.raises(HubRefused, match="has no gate"):
        target_of(WHERE, token=ada, private=True, gated="auto", endpoint=hub.url)
    bucket(hub, ada, private=False).prepare()
    with pytest.raises(HubConflict, match="is public, which is not what was asked for"):
        bucket(hub, ada).prepare()
    assert hub.buckets["ada/live"].files == {}


def test_a_batch_that_fails_is_tried_again_or_told(
    hub: LocalHub, ada: str, tmp_path: Path
) -> None:
    upload, target = set_of(tmp_path / "set", 1), bucket(hub, ada)
    target.prepare()
    hub.faults.add("/batch", failing(503), times=2)
    target.put(upload, target.head(), unheard, NEVER)
    assert content(hub) == local(tmp_path / "set")
    hub.faults.add("xet-write-token", failing(403, "no write access"), times=99)
    new = names_of(1, part=4)[0]
    (tmp_path / "set" / new).write_bytes(b"new rows")
    with pytest.raises(HubForbidden, match="could not begin to publish to the bucket") as no:
        target.put(
            described(tmp_path / "set", (*upload.files, new)), target.head(), unheard, NEVER
        )
    assert ada not in no.value.message

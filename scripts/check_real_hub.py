"""Ask the real Hub what the local one cannot know: publish, look, and delete again.

    HF_TOKEN=hf_... python -m scripts.check_real_hub
    python -m scripts.check_real_hub --endpoint http://127.0.0.1:8090 --bucket

It makes two private datasets (and with `--bucket` a private bucket) under the token's account,
publishes a handful of rollouts made up for it with the same targets that the program uses,
looks at what the Hub makes of it, and deletes them. Nothing of yours is touched or sent. It
asks before it begins; without HF_TOKEN it asks for a token, which it keeps in memory.

Each line says what was seen. It ends with 1 where something is not as the program expects.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi

from explorer.errors import (
    HeadMoved,
    HubConflict,
    HubNotFound,
    PublishFailed,
    PublishStopped,
)
from explorer.export.card.card import card_text
from explorer.export.card.choice import CardChoice
from explorer.export.dataset.manifest import read_manifest
from explorer.export.hub.client import HUB, HubClient, checked_endpoint
from explorer.export.hub.dataset import HubDataset, commit
from explorer.export.hub.target import Listener, Target, Upload
from explorer.export.hub.targets import target_of
from explorer.store.duckdb_store import DuckDBStore

NEVER = threading.Event()
LOADER = """
import json, sys
from datasets import load_dataset
asked = json.load(sys.stdin)
found = load_dataset(asked["name"], "sequences", split="train", token=asked["token"])
print(len(found), "rows", found.column_names[:4])
"""


class NotAsExpected(Exception):
    """What was seen is not what the program relies on."""


@dataclass
class Check:
    """What is checked with, and what came of it."""

    token: str
    endpoint: str
    owner: str
    folder: Path
    name: str = field(default_factory=lambda: f"rollout-explorer-check-{secrets.token_hex(4)}")
    wrong: list[str] = field(default_factory=list)
    made: list[Target] = field(default_factory=list)

    @property
    def api(self) -> HfApi:
        return HfApi(endpoint=self.endpoint, token=self.token)

    def target(self, name: str, gated: bool = False, private: bool = True) -> HubDataset:
        """A dataset of the account."""
        made = target_of(
            f"{self.owner}/{name}",
            token=self.token,
            private=private,
            gated="manual" if gated else "",
            endpoint=self.endpoint,
        )
        assert isinstance(made, HubDataset)
        return made

    def step(self, what: str, doing: Callable[[], str]) -> None:
        """Does one thing and says what was seen."""
        print(f"  {what} ...", flush=True)
        try:
            print(f"    {doing()}")
        except (PublishFailed, NotAsExpected) as error:
            self.wrong.append(what)
            print(f"    NOT AS EXPECTED: {error}")


def expect(true: bool, otherwise: str) -> None:
    """Raises:
    NotAsExpected: it is not so.
    """
    if not true:
        raise NotAsExpected(otherwise)


@contextmanager
def expected(kind: type[PublishFailed], otherwise: str) -> Iterator[None]:
    """The same for a refusal that must come."""
    try:
        yield
    except kind as error:
        print(f"    refused as it must be: {error.message}")
        return
    raise NotAsExpected(otherwise)


def made_up(folder: Path, name: str) -> Upload:
    """A dataset of a few rollouts that nobody ran."""
    from tests.export.datasets import OPTIONS, fill, written

    async def make() -> None:
        with tempfile.TemporaryDirectory() as store_folder:
            store = DuckDBStore(Path(store_folder) / "s.duckdb", OPTIONS)
            await fill(store)
            await written(store, folder)
            await store.close()

    asyncio.run(make())
    manifest = read_manifest(folder)
    choice = CardChoice("A check of Rollout Explorer, to be deleted", "cc0-1.0")
    (folder / "README.md").write_text(card_text(manifest, choice, name), encoding="utf-8")
    return Upload(folder, tuple(file.path for file in manifest.files), message="Check")


def silent(phase: str, done: int, of: int) -> None:
    """Nobody watches."""


def check_dataset(check: Check) -> None:
    """A private dataset: made, interrupted, finished, raced, loaded, withdrawn."""
    target = check.target(check.name)
    upload = made_up(check.folder, f"{check.owner}/{check.name}")

    def prepared() -> str:
        check.made.append(target)
        target.prepare()
        info = check.api.dataset_info(target.repo_id)
        expect(info.private is True, "the repository is not private")
        expect(info.gated in (False, None), f"it has a gate already: {info.gated!r}")
        files = sorted(sibling.rfilename for sibling in info.siblings or ())
        expect(files == [".gitattributes"], f"a new repository holds {files}")
        return f"private, holds {files}"

    def interrupted() -> str:
        stop = threading.Event()
        with expected(PublishStopped, "it did not stop"):
            target.put(upload, target.head(), _stopping(stop), stop)
        expect(target.head().manifest is None, "readers see an unfinished set")
        return "nothing of it is shown"

    def resumed() -> str:
        target.prepare()
        published = target.put(upload, target.head(), silent, NEVER)
        commits = check.api.list_repo_commits(target.repo_id, repo_type="dataset")
        expect(len(commits) == 2, f"there are {len(commits)} commits, not 2")
        again = target.put(upload, target.head(), silent, NEVER)
        expect(again.uploaded == 0, f"{again.uploaded} files were sent twice")
        return (
            f"{published.uploaded} files, {published.bytes} bytes, one commit; {published.url}"
        )

    def raced() -> str:
        first = check.api.list_repo_commits(target.repo_id, repo_type="dataset")[-1].commit_id
        other = CommitOperationAdd("other.json", b"{}")
        with expected(HeadMoved, "a commit was taken that stands on an old one"):
            commit(target.repository, [other], first, "A race", [])
        return "the head is as it was"

    check.step("prepare a private dataset", prepared)
    check.step("publish, and stop in the middle", interrupted)
    check.step("publish again", resumed)
    check.step("commit on a head that has moved (412)", raced)
    check.step("read every file back", lambda: read_back(target, upload))
    check.step("ask for another visibility", lambda: other_settings(check, target))
    check.step("load it with datasets", lambda: loaded(check, target))
    check.step("withdraw it", lambda: withdrawn(check, target, upload))


def _stopping(stop: threading.Event) -> Listener:
    def heard(phase: str, done: int, of: int) -> None:
        if done:
            stop.set()

    return heard


def read_back(target: Target, upload: Upload) -> str:
    """Whether the Hub gives what it got."""
    with tempfile.TemporaryDirectory() as folder:
        for name in upload.names:
            to = Path(folder) / "file"
            target.fetch(name, to)
            same = to.read_bytes() == (upload.folder / name).read_bytes()
            expect(same, f"{name} came back changed")
    return f"{len(upload.names)} files, each as it was sent"


def other_settings(check: Check, target: HubDataset) -> str:
    """Whether what is there is left as it is."""
    with expected(HubConflict, "a private dataset was taken for a public one"):
        check.target(check.name, private=False).prepare()
    with expected(HubConflict, "an open dataset was taken for a gated one"):
        check.target(check.name, gated=True).prepare()
    info = check.api.dataset_info(target.repo_id)
    expect(info.private is True and not info.gated, "its settings changed")
    return "its settings are as they were"


def loaded(check: Check, target: HubDataset) -> str:
    """By `datasets`, in a process of its own, where it is installed."""
    environment = os.environ | {"HF_ENDPOINT": check.endpoint}
    with tempfile.TemporaryDirectory() as home:
        run = subprocess.run(
            [sys.executable, "-c", LOADER],
            input=json.dumps({"name": target.repo_id, "token": check.token}),
            env=environment | {"HF_HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )
    if "No module named 'datasets'" in run.stderr:
        return "skipped: `datasets` is not installed here"
    last = (run.stderr.strip().splitlines() or [""])[-1].replace(check.token, "[token]")
    expect(run.returncode == 0, f"it was not loaded: {last[:300]}")
    return run.stdout.strip()


def withdrawn(check: Check, target: HubDataset, upload: Upload) -> str:
    """Yank: gone from the head, there in the history."""
    before = target.head().revision
    target.remove("a check", whole=False)
    names = check.api.list_repo_files(target.repo_id, repo_type="dataset")
    expect(set(names) <= {".gitattributes", "README.md"}, f"it still holds {names}")
    old = check.api.list_repo_files(target.repo_id, repo_type="dataset", revision=before)
    expect(upload.files[0] in old, "the old revision has lost its files")
    return "the files are gone from the head; the old revision has them"


def check_gate(check: Check) -> None:
    """A gate is there before the data."""
    target = check.target(f"{check.name}-gated", gated=True)

    def gated() -> str:
        check.made.append(target)
        target.prepare()
        info = check.api.dataset_info(target.repo_id)
        expect(info.gated == "manual", f"the gate is {info.gated!r}")
        return f"private: {info.private}, gate: {info.gated}"

    check.step("prepare a gated dataset", gated)


def check_bucket(check: Check) -> None:
    """A bucket: published to by Xet, read back, emptied."""
    where = f"hf://buckets/{check.owner}/{check.name}"
    target = target_of(
        where, token=check.token, private=True, gated="", endpoint=check.endpoint
    )
    folder = check.folder / "bucket"
    upload = made_up(folder, f"{check.owner}/{check.name}")

    def published() -> str:
        check.made.append(target)
        target.prepare()
        put = target.put(upload, target.head(), silent, NEVER)
        again = target.put(upload, target.head(), silent, NEVER)
        expect(again.uploaded == 0, f"{again.uploaded} files were sent twice")
        return f"{put.uploaded} files by Xet; {put.url}"

    check.step("publish to a private bucket", published)
    check.step("read every file of it back", lambda: read_back(target, upload))


def clean_up(check: Check) -> None:
    """Deletes everything that was made."""
    for target in reversed(check.made):

        def deleted(target: Target = target) -> str:
            try:
                target.remove("a check", whole=True)
            except HubNotFound:
                return "was not made"
            expect(target.head().revision is None, "it is still there; delete it by hand")
            return "deleted"

        check.step(f"delete {target.title}", deleted)


def main() -> int:
    """Asks, checks, deletes."""
    parser = argparse.ArgumentParser(prog="python -m scripts.check_real_hub")
    parser.add_argument("--endpoint", help=f"of the Hub; {HUB} unless given")
    parser.add_argument("--owner", help="account or organisation; the token's unless given")
    parser.add_argument("--bucket", action="store_true", help="a Storage Bucket, too")
    parser.add_argument("--yes", action="store_true", help="does not ask")
    wanted = parser.parse_args()
    endpoint = checked_endpoint(wanted.endpoint)
    token = os.environ.get("HF_TOKEN") or getpass.getpass("A token that may write and delete: ")
    client = HubClient(endpoint, token)
    try:
        me = client.call("learn whose token it is", client.api.whoami)
    except PublishFailed as error:
        print(error.message)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        check = Check(token, endpoint, wanted.owner or str(me["name"]), Path(folder) / "set")
        print(
            f"At {endpoint} as {me['name']}: private datasets {check.owner}/{check.name} and "
            f"{check.name}-gated{', and a bucket of that name,' if wanted.bucket else ''} are "
            "made and deleted again."
        )
        if not wanted.yes and input("Go on? [y/N] ").strip().lower() != "y":
            return 1
        try:
            check_dataset(check)
            check_gate(check)
            if wanted.bucket:
                check_bucket(check)
        finally:
            clean_up(check)
    print("As expected." if not check.wrong else f"Not as expected: {', '.join(check.wrong)}")
    return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

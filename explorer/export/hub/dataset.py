"""A dataset on the Hub as a target: private unless asked, whole at every commit.

Owns: the order in which things reach a repository.
Must not know: how a dataset is made, HTTP.

Data files go up first, where no reader sees them. One commit then shows them with the
manifest and the card; where there are too many for one, the last commit has those two. Each
commit names the one that it stands on, and the Hub refuses it when that is not the head.
"""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from explorer.errors import (
    HeadMoved,
    HubConflict,
    HubForbidden,
    HubNotFound,
    HubUnauthorised,
)
from explorer.export.hub.client import HubClient
from explorer.export.hub.reading import Account, Reading, digests, digests_of
from explorer.export.hub.repository import (
    ATTRIBUTES,
    BY_US,
    Gate,
    LocalFile,
    Repository,
    names_of,
)
from explorer.export.hub.target import (
    CARD,
    MANIFEST,
    Head,
    Listener,
    Published,
    Upload,
    go_on,
    withdrawn_card,
)

# The Hub takes more; a commit of thousands is slow there, and one lost answer costs them all.
OPERATIONS = 500
# Bytes: what the Hub may take for a small file, and the most of such in one commit.
_SMALL, _INSIDE = 10 * 1024 * 1024, 64 * 1024 * 1024
_LARGEST_MANIFEST = 512 * 1024 * 1024
_WITHDRAWN = "---\ntags:\n- withdrawn\n---\n\n"


@dataclass
class HubDataset:
    """A dataset repository; see `Target`.

    Attributes:
        operations: the most of one commit.
    """

    repo_id: str
    client: HubClient
    private: bool = True
    gated: Gate = ""
    operations: int = OPERATIONS
    title: str = field(init=False)

    def __post_init__(self) -> None:
        self.title = self.repository.title

    @property
    def repository(self) -> Repository:
        return Repository(self.repo_id, self.client)

    def prepare(self) -> None:
        """The token, its rights, what is there; makes the repository and its gate."""
        if self.client.token is None:
            raise HubUnauthorised(
                f"publishing to {self.title} needs a token of your own with the scope "
                "`contribute-repos` or `write`; none was given, and none is looked for"
            )
        repository = self.repository
        self.client.greet()
        info = repository.info()
        if info is None:
            repository.create(self.private)
            info = self.client.seen(repository.info)
        if info is None:
            raise HubNotFound(
                f"{self.title} cannot be seen with this token; choose another name"
            )
        repository.check_rights()
        repository.check_content(names_of(info), self.head().manifest)
        # Before any data goes up: it never lies there without its gate.
        repository.check_settings(info, self.private, self.gated)

    def head(self) -> Head:
        """What is there now."""
        info = self.repository.info()
        if info is None or info.sha is None:
            return Head(None, None)
        if MANIFEST not in names_of(info):
            return Head(info.sha, None)
        with tempfile.TemporaryDirectory() as folder:
            to = Path(folder) / MANIFEST
            self.repository.load(MANIFEST, to, info.sha, _LARGEST_MANIFEST)
            return Head(info.sha, to.read_bytes())

    def fetch(self, path: str, to: Path) -> None:
        """One file of what is there."""
        self.repository.load(path, to, None)

    def put(
        self, upload: Upload, head: Head, listener: Listener, stop: threading.Event
    ) -> Published:
        """The data files, then one commit that shows everything; see the module."""
        pushing = _Pushing(replace(self, client=self.client.until(stop)), upload)
        return pushing.put(head, listener)

    def remove(self, reason: str, whole: bool) -> None:
        """Yank: our files go and the card says why; earlier revisions keep them. `whole`:
        the repository goes, where it holds nothing else."""
        repository = self.repository
        info = repository.info()
        if info is None or info.sha is None:
            raise HubNotFound(f"{self.title} is not there")
        names = names_of(info)
        if whole and names <= {ATTRIBUTES}:
            self._delete()
            return
        ours, others = repository.files_of_ours(names, self.head().manifest)
        if whole and others:
            raise HubConflict(
                f"{self.title} holds something else, too ({ascii(min(others))[:80]} for one); "
                "withdraw the dataset only, or delete the repository on its settings page"
            )
        if whole:
            self._delete()
            return
        text = (_WITHDRAWN + withdrawn_card(reason)).encode()
        card, shown = (
            CommitOperationAdd(CARD, text),
            [LocalFile(CARD, Path(), digests_of(text))],
        )
        # What names the files goes with the first commit; they go with it, or after it.
        gone = sorted(ours, key=lambda name: (name != MANIFEST, name))
        operations = [card, *(CommitOperationDelete(name, is_folder=False) for name in gone)]
        parent = info.sha
        for start in range(0, len(operations), self.operations):
            piece = operations[start : start + self.operations]
            parent = commit(repository, piece, parent, "Withdraw the dataset", shown)
            shown = []

    def _delete(self) -> None:
        repository, api = self.repository, self.client.api
        try:
            self.client.call(
                f"delete {self.repo_id}",
                lambda: api.delete_repo(self.repo_id, repo_type="dataset"),
                lambda: None if repository.info() else True,
            )
        except HubForbidden as error:
            raise HubForbidden(
                f"could not delete {self.repo_id}: that needs a token with `write` or "
                "`manage-repos`; withdraw the dataset without deleting its repository, or "
                "delete it on its settings page"
            ) from error


@dataclass
class _Pushing:
    """One publishing to a repository."""

    target: HubDataset
    upload: Upload

    def put(self, head: Head, listener: Listener) -> Published:
        target, repository = self.target, self.target.repository
        info = repository.info()
        if info is None or info.sha is None:
            raise HubNotFound(f"{target.title} is not there; it was to be made before")
        if info.sha != head.revision:
            raise HeadMoved(f"{target.title} changed since it was looked at; plan again")
        files = self._files()
        missing = self._missing(files, info.sha)
        account = Account(listener, "uploading", sum(file.digests.size for file in files))
        ready = self._uploaded(files, {file.path for file in missing}, account)
        revision = self._committed(ready, missing, info.sha)
        return Published(
            url=f"{target.client.endpoint}/datasets/{target.repo_id}",
            revision=revision,
            uploaded=len(missing),
            skipped=len(files) - len(missing),
            bytes=sum(file.digests.size for file in missing),
        )

    def _files(self) -> list[LocalFile]:
        """Everything, with digests; a card that the Hub would refuse is refused now."""
        folder, stop = self.upload.folder, self.target.client.stop
        if CARD in self.upload.last:
            text = (folder / CARD).read_text(encoding="utf-8")
            self.target.client.check_card(text)
        return [
            LocalFile(name, folder / name, digests(folder / name, stop))
            for name in self.upload.names
        ]

    def _missing(self, files: list[LocalFile], revision: str) -> list[LocalFile]:
        """Those that are not there as they are to be.

        Raises:
            HubConflict: one would be written over.
        """
        there = self.target.repository.there([file.path for file in files], revision)
        missing = [file for file in files if not file.same(there.get(file.path))]
        for file in missing:
            if file.path in there and file.path not in self.upload.last:
                raise HubConflict(
                    f"{self.target.title} has another file of the name {file.path}, and "
                    "nothing is written over"
                )
        return missing

    def _uploaded(
        self, files: list[LocalFile], wanted: set[str], account: Account
    ) -> dict[str, CommitOperationAdd]:
        """By path, what can be committed: large files are at the Hub by then."""
        ready = {}
        for file in files:
            go_on(self.target.client.stop)
            if file.path in wanted:
                ready[file.path] = self._sent(file, account)
            account.done(file.digests.size)
        return ready

    def _sent(self, file: LocalFile, account: Account) -> CommitOperationAdd:
        client, repo_id = self.target.client, self.target.repo_id
        source = Reading(file.local, client.stop, account.at)
        operation = CommitOperationAdd(file.path, file.local)
        operation.upload_info.sha256 = bytes.fromhex(file.digests.sha256)
        operation.path_or_fileobj = source  # type: ignore[assignment]

        def sending() -> None:
            source.rewind()
            # What an earlier try sent is there by its hash, and is not sent again.
            client.api.preupload_lfs_files(
                repo_id, [operation], repo_type="dataset", free_memory=False
            )

        client.call(f"upload {file.path} to {repo_id}", sending)
        source.rewind()
        return operation

    def _committed(
        self, ready: dict[str, CommitOperationAdd], missing: list[LocalFile], parent: str
    ) -> str:
        """The revision that has everything."""
        target = self.target
        last = [ready.pop(name) for name in self.upload.last if name in ready]
        pieces = _pieces(list(ready.values()), max(target.operations - len(last), 1))
        pieces[-1] = [*pieces[-1], *last]
        for number, piece in enumerate(pieces, start=1):
            if not piece:
                break
            part = f" (part {number} of {len(pieces)})" if len(pieces) > 1 else ""
            paths = {operation.path_in_repo for operation in piece}
            shown = [file for file in missing if file.path in paths]
            title = self.upload.message + part
            parent = commit(target.repository, piece, parent, title, shown)
        self._read_back(missing, parent)
        return parent

    def _read_back(self, files: list[LocalFile], revision: str) -> None:
        """Whether the Hub shows what was sent; a `.gitignore` there may have left files out."""
        if not files:
            return
        repository, paths = self.target.repository, [file.path for file in files]
        there = self.target.client.seen(lambda: repository.there(paths, revision)) or {}
        for file in files:
            if not file.same(there.get(file.path)):
                raise HubConflict(
                    f"{self.target.title} does not show {file.path} as it was sent; something "
                    "there, such as a .gitignore, keeps it out: look at it before you use it"
                )


def _pieces(data: list[CommitOperationAdd], room: int) -> list[list[CommitOperationAdd]]:
    """What goes into each commit; at least one piece, which may be empty."""
    pieces: list[list[CommitOperationAdd]] = [[]]
    inside = 0
    for operation in data:
        # A small file may travel inside the commit, which is built in memory.
        size = operation.upload_info.size
        weight = size if size <= _SMALL else 0
        if len(pieces[-1]) == room or inside + weight > _INSIDE:
            pieces.append([])
            inside = 0
        pieces[-1].append(operation)
        inside += weight
    return pieces


def commit(
    repository: Repository,
    operations: list[Any],
    parent: str,
    title: str,
    shown: list[LocalFile],
) -> str:
    """One commit, once: also when the answer to it is lost.

    Args:
        parent: the head that it stands on.
        shown: by these is known whether it is there.

    Raises:
        HeadMoved: `parent` is not the head.
    """
    client, repo_id = repository.client, repository.repo_id

    def committing() -> str:
        for operation in operations:
            source = getattr(operation, "path_or_fileobj", None)
            if isinstance(source, Reading):
                source.rewind()
        made = client.api.create_commit(
            repo_id,
            operations,
            commit_message=title,
            commit_description=BY_US,
            repo_type="dataset",
            parent_commit=parent,
        )
        return str(made.oid)

    def moved() -> str | None:
        """The head, if it is another by now."""
        info = repository.info()
        return info.sha if info is not None and info.sha != parent else None

    def shows(head: str | None) -> str | None:
        if head is None or not shown:
            return None
        there = repository.there([file.path for file in shown], head)
        return head if all(f.same(there.get(f.path)) for f in shown) else None

    try:
        return client.call(f"publish to {repo_id}", committing, lambda: shows(moved()))
    except HeadMoved:
        # Either by somebody else, or by an earlier try of ours whose answer was lost. Whoever
        # plans again must see the new head.
        if (found := shows(client.seen(moved))) is None:
            raise
        return found

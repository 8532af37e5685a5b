"""A Storage Bucket as a target: as much of the promises as a place without revisions can keep.

Owns: the order in which files reach a bucket, and what is looked at before.
Must not know: how a dataset is made.

A bucket has no commits and no conditions: what is looked at before a write may change before
the write. So two publishers at the same moment can both succeed, and the later manifest stands;
data files carry their content in their names, so none of them is harmed. Between the manifest
and the card there is a moment in which they are of two states. Files go up by Xet, the only way
in; it cannot be stopped within a file. Publish frozen sets to a dataset.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from huggingface_hub import BucketFile, BucketInfo

from explorer.errors import HeadMoved, HubConflict, HubNotFound, HubRefused, HubUnauthorised
from explorer.export.hub.client import HubClient
from explorer.export.hub.ours import is_ours, named_files
from explorer.export.hub.reading import Account
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

_LARGEST_MANIFEST = 512 * 1024 * 1024


@dataclass
class Bucket:
    """A bucket, or a folder in one; see `Target`."""

    bucket_id: str
    client: HubClient
    prefix: str = ""
    private: bool = True
    title: str = field(init=False)

    def __post_init__(self) -> None:
        where = f"{self.bucket_id}/{self.prefix}" if self.prefix else self.bucket_id
        self.title = f"the bucket {where} on the Hub"

    def _at(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def _info(self) -> BucketInfo | None:
        api = self.client.api
        try:
            return self.client.call(
                f"look at {self.title}", lambda: api.bucket_info(self.bucket_id)
            )
        except HubNotFound:
            return None

    def _files(self) -> list[str]:
        """Every file of it, relative to the folder."""
        api, start = self.client.api, f"{self.prefix}/" if self.prefix else ""
        items = self.client.call(
            f"list {self.title}",
            lambda: list(
                api.list_bucket_tree(self.bucket_id, self.prefix or None, recursive=True)
            ),
        )
        # The Hub compares letters: of `runs/1` it lists `runs/10/...`, too.
        return [
            item.path.removeprefix(start)
            for item in items
            if isinstance(item, BucketFile) and item.path.startswith(start)
        ]

    def prepare(self) -> None:
        """The token, what is there; makes the bucket."""
        if self.client.token is None:
            raise HubUnauthorised(
                f"publishing to {self.title} needs a token of your own with the scope "
                "`contribute-repos` or `write`; none was given, and none is looked for"
            )
        self.client.greet()
        info = self._info()
        if info is None:
            self._create()
            info = self.client.seen(self._info)
        if info is None:
            raise HubNotFound(f"{self.title} cannot be seen with this token; choose another")
        if info.private != self.private:
            now = "private" if info.private else "public"
            raise HubConflict(
                f"the bucket {self.bucket_id} is {now}, which is not what was asked for; "
                "nothing changes that silently: ask for what it is, or change its settings"
            )
        self._check_content()

    def _create(self) -> None:
        api = self.client.api
        try:
            self.client.call(
                f"create {self.bucket_id}",
                lambda: api.create_bucket(self.bucket_id, private=self.private),
            )
        except HubConflict:
            return

    def _check_content(self) -> None:
        files, manifest = self._files(), self.head().manifest
        if manifest is not None and is_ours(manifest):
            return
        foreign = [name for name in files if name not in (CARD, self._begun)]
        if foreign and self._begun not in files:
            raise HubConflict(
                f"{self.title} holds something else ({ascii(foreign[0])[:80]} for one), and "
                "nothing is written over; choose another, or a folder in it"
            )

    # Lies there while a publishing is not at its end: how its remains are known as ours.
    _begun = ".rollout-explorer.arriving"

    def head(self) -> Head:
        """What is there now; a state is named by the digest of its manifest."""
        with tempfile.TemporaryDirectory() as folder:
            to = Path(folder) / MANIFEST
            try:
                self._load(MANIFEST, to, _LARGEST_MANIFEST)
            except HubNotFound:
                return Head(None, None)
            manifest = to.read_bytes()
        return Head(hashlib.sha256(manifest).hexdigest(), manifest)

    def fetch(self, path: str, to: Path) -> None:
        """One file of what is there."""
        self._load(path, to, None)

    def _load(self, path: str, to: Path, most: int | None) -> None:
        at = quote(self._at(path))
        address = f"{self.client.endpoint}/buckets/{self.bucket_id}/resolve/{at}"
        self.client.download(f"read {path} of {self.title}", address, to, most)

    def put(
        self, upload: Upload, head: Head, listener: Listener, stop: threading.Event
    ) -> Published:
        """Data files one by one, then manifest and card; see the module."""
        here = replace(self, client=self.client.until(stop))
        return here._put(upload, head, listener)

    def _put(self, upload: Upload, head: Head, listener: Listener) -> Published:
        self._check_unmoved(head)
        names = upload.names
        sizes = {name: upload.size(name) for name in names}
        missing = self._missing(upload, names)
        account = Account(listener, "uploading", sum(sizes.values()))
        if set(missing) - set(upload.last):
            self._batch("begin to publish to", [(b"on its way\n", self._at(self._begun))], [])
        for name in names:
            go_on(self.client.stop)
            if name in missing and name not in upload.last:
                self._batch("publish to", [(upload.folder / name, self._at(name))], [])
            if name not in upload.last:
                account.done(sizes[name])
        self._check_unmoved(head)
        last = [
            (upload.folder / name, self._at(name)) for name in upload.last if name in missing
        ]
        gone = [self._at(self._begun)] if self._begun in self._files() else []
        if last or gone:
            self._batch("publish to", last, gone)
        for name in upload.last:
            account.done(sizes[name])
        return Published(
            url=f"{self.client.endpoint}/buckets/{self.bucket_id}",
            revision=self.head().revision,
            uploaded=len(missing),
            skipped=len(names) - len(missing),
            bytes=sum(sizes[name] for name in missing),
        )

    def _check_unmoved(self, head: Head) -> None:
        if self.head().revision != head.revision:
            raise HeadMoved(f"{self.title} changed since it was looked at; plan again")

    def _missing(self, upload: Upload, names: tuple[str, ...]) -> list[str]:
        """Those that are not there as they are to be, by their Xet hashes."""
        api = self.client.api
        infos = self.client.call(
            f"look at the files of {self.title}",
            lambda: list(
                api.get_bucket_paths_info(self.bucket_id, [self._at(name) for name in names])
            ),
        )
        there = {info.path: info.xet_hash for info in infos}
        found = _xet_hashes([str(upload.folder / name) for name in names])
        missing = []
        for name, hashed in zip(names, found, strict=True):
            if there.get(self._at(name)) == hashed:
                continue
            if self._at(name) in there and name not in upload.last:
                raise HubConflict(
                    f"{self.title} has another file of the name {name}, and nothing is written "
                    "over"
                )
            missing.append(name)
        return missing

    def _batch(
        self, what: str, add: Sequence[tuple[Path | bytes, str]], gone: list[str]
    ) -> None:
        api = self.client.api
        self.client.call(
            f"{what} {self.title}",
            lambda: api.batch_bucket_files(self.bucket_id, add=list(add), delete=gone),
        )

    def remove(self, reason: str, whole: bool) -> None:
        """Deletes what its manifest names; a bucket keeps no revisions. `whole`: a bucket that
        holds nothing else goes, too."""
        manifest = self.head().manifest
        withdrawn = manifest is None and set(self._files()) <= {CARD, self._begun}
        if whole and withdrawn and self._info() is not None:
            self._remove_whole()
            return
        if manifest is None or not is_ours(manifest):
            raise HubNotFound(f"{self.title} has no dataset of ours")
        named = [self._at(name) for name in named_files(manifest)]
        self._batch("withdraw the manifest of", [], [self._at(MANIFEST)])
        card = withdrawn_card(reason).encode()
        self._batch("withdraw the card of", [(card, self._at(CARD))], [])
        if named:
            self._batch("withdraw the files of", [], named)
        if whole:
            self._remove_whole()

    def _remove_whole(self) -> None:
        left = self._files()
        if self.prefix:
            gone = [self._at(name) for name in left if name in (CARD, self._begun)]
            self._batch("delete the card of", [], gone)
            return
        others = [name for name in left if name not in (CARD, self._begun)]
        if others:
            raise HubConflict(
                f"{self.title} holds something else, so it stays ({ascii(others[0])[:80]} for "
                "one); the dataset in it is gone"
            )
        api = self.client.api
        self.client.call(f"delete {self.title}", lambda: api.delete_bucket(self.bucket_id))


def _xet_hashes(paths: list[str]) -> list[str]:
    """By what a bucket knows its files."""
    try:
        import hf_xet  # type: ignore[import-untyped]
    except ImportError as error:
        raise HubRefused(
            "a Storage Bucket takes files by Xet only, and this platform has no hf_xet; "
            "publish to a dataset"
        ) from error
    return [str(info.hash) for info in hf_xet.hash_files(paths)]

"""What the local Hub keeps: repositories with their whole history, and blobs by content.

Owns: commits, what each of them has, and the large files' storage.
Must not know: HTTP, people.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

# What a new repository begins with; these go into large file storage whatever their size.
ATTRIBUTES = "".join(
    f"*.{ending} filter=lfs diff=lfs merge=lfs -text\n"
    for ending in ("7z", "arrow", "bin", "gz", "npy", "parquet", "zip", "zst")
).encode()
LARGE = tuple(f".{line.split()[0][2:]}" for line in ATTRIBUTES.decode().splitlines())
SMALL_ENOUGH = 10 * 1024 * 1024


def git_oid(content: bytes) -> str:
    """A blob's name in git."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def pointer(sha256: str, size: int) -> bytes:
    """What git keeps of a large file."""
    head = "version https://git-lfs.github.com/spec/v1"
    return f"{head}\noid sha256:{sha256}\nsize {size}\n".encode()


@dataclass(frozen=True)
class File:
    """A file of a commit; `sha256` where it is a large one."""

    oid: str
    size: int
    sha256: str | None = None


@dataclass(frozen=True)
class Commit:
    """A state of a repository; `at` is when it came to be, by the clock of `monotonic`."""

    oid: str
    parent: str | None
    title: str
    message: str
    author: str
    date: str
    files: dict[str, File]
    at: float


@dataclass
class Place:
    """A repository or a bucket, as far as rights go."""

    kind: str
    id: str
    private: bool
    gated: str | bool = False
    let_in: set[str] = field(default_factory=set)


@dataclass
class Repo(Place):
    """A repository with its branches; `lfs` are the large files that were uploaded to it."""

    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    lfs: set[str] = field(default_factory=set)

    @property
    def head(self) -> Commit:
        return self.commits[self.branches["main"]]

    @property
    def history(self) -> list[Commit]:
        """Of the main branch, the oldest first."""
        found, at = [], self.branches.get("main")
        while at is not None:
            found.append(self.commits[at])
            at = self.commits[at].parent
        return found[::-1]

    def told(self, lag: float) -> Commit | None:
        """The head as it was that long ago."""
        now = time.monotonic()
        return next((one for one in reversed(self.history) if now - one.at >= lag), None)

    def at(self, revision: str) -> Commit | None:
        """By branch or commit."""
        return self.commits.get(self.branches.get(revision, revision))


@dataclass
class Shelf:
    """Every repository, and the content of every file by its hash."""

    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def create(self, kind: str, repo_id: str, private: bool, author: str) -> Repo:
        """A new repository with its first commit."""
        repo = Repo(kind, repo_id, private)
        self.repos[kind, repo_id] = repo
        first = {".gitattributes": self.small(ATTRIBUTES)}
        self.commit(repo, "main", first, ("initial commit", "", author))
        return repo

    def small(self, content: bytes) -> File:
        """A file that git itself keeps."""
        oid = git_oid(content)
        self.blobs[oid] = content
        return File(oid, len(content))

    def large(self, sha256: str) -> File:
        """A file of the large files' storage."""
        size = len(self.blobs[sha256])
        return File(git_oid(pointer(sha256, size)), size, sha256)

    def commit(
        self, repo: Repo, branch: str, files: dict[str, File], told: tuple[str, str, str]
    ) -> Commit:
        """A new head of a branch; `told`: title, message, author."""
        parent = repo.branches.get(branch)
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        content = {path: file.oid for path, file in sorted(files.items())}
        named = json.dumps([content, parent, told, date, len(repo.commits)])
        oid = hashlib.sha1(named.encode()).hexdigest()
        title, message, author = told
        now = time.monotonic()
        commit = Commit(oid, parent, title, message, author, date, dict(files), now)
        repo.commits[oid] = commit
        repo.branches[branch] = oid
        return commit

    def content(self, file: File) -> bytes:
        """Its bytes."""
        return self.blobs[file.sha256 or file.oid]

    def read(self, repo: Repo, path: str, revision: str = "main") -> bytes:
        """A file as a reader of that revision sees it."""
        commit = repo.at(revision)
        assert commit is not None
        return self.content(commit.files[path])

    def sums(self, repo: Repo, revision: str = "main") -> dict[str, str]:
        """SHA-256 of every file of a revision."""
        commit = repo.at(revision)
        assert commit is not None
        return {
            path: hashlib.sha256(self.content(file)).hexdigest()
            for path, file in sorted(commit.files.items())
        }

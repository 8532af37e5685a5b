"""The local Hub's answers about files: lists, facts about paths, and their bytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.hub import people
from tests.hub.api_repos import commit_of, lfs_of, seen
from tests.hub.repos import Commit, File, git_oid
from tests.hub.wire import Answer, Refusal, Request, Route, route, told

if TYPE_CHECKING:
    from tests.hub.server import LocalHub

MOST_PATHS = 1000


def _file(path: str, file: File) -> dict[str, Any]:
    known = {"type": "file", "path": path, "oid": file.oid, "size": file.size}
    return known | lfs_of(file, "oid")


def _folder(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "oid": git_oid(path.encode()), "size": 0}


def _listed(commit: Commit, below: str, recursive: bool) -> list[dict[str, Any]]:
    """Files and folders below a folder."""
    start = f"{below}/" if below else ""
    folders: set[str] = set()
    found = []
    for path, file in commit.files.items():
        if not path.startswith(start):
            continue
        parts = path[len(start) :].split("/")
        depth = len(parts) if recursive else min(len(parts), 2)
        folders.update(start + "/".join(parts[:at]) for at in range(1, depth))
        if recursive or len(parts) == 1:
            found.append(_file(path, file))
    return sorted(
        [*found, *(_folder(folder) for folder in folders)], key=lambda item: item["path"]
    )


def tree(
    hub: LocalHub, request: Request, kind: str, ns: str, name: str, rev: str, path: str = ""
) -> Answer:
    """Pages of a list, each naming the next one in its `Link` header."""
    repo = seen(hub, request, kind, ns, name)
    items = _listed(commit_of(repo, rev), path, request.one("recursive").lower() == "true")
    if path and not items:
        raise Refusal(404, f'{path} does not exist on "{rev}"', "EntryNotFound")
    start = int(request.one("cursor", "0"))
    page = items[start : start + hub.page]
    headers = {}
    if start + hub.page < len(items):
        kept = {key: values[0] for key, values in request.query.items()}
        query = kept | {"cursor": str(start + hub.page)}
        asked = "&".join(f"{key}={quote(value)}" for key, value in query.items())
        headers["Link"] = f'<{request.base}{request.path}?{asked}>; rel="next"'
    return told(page, headers=headers)


def paths_info(
    hub: LocalHub, request: Request, kind: str, ns: str, name: str, rev: str
) -> Answer:
    """Facts about the paths that are there; nothing about others."""
    repo = seen(hub, request, kind, ns, name)
    commit = commit_of(repo, rev)
    sent = request.headers.get("content-type") or ""
    asked = request.json() if "json" in sent else request.form()
    paths = asked.get("paths", [])
    if len(paths) > MOST_PATHS:
        raise Refusal(413, "too many parameters")
    found = []
    for path in paths:
        if path in commit.files:
            found.append(_file(path, commit.files[path]))
        elif any(known.startswith(f"{path}/") for known in commit.files):
            found.append(_folder(path))
    return told(found)


def resolve(
    hub: LocalHub, request: Request, kind: str, ns: str, name: str, rev: str, path: str
) -> Answer:
    """A file, or where the large one lies: another host, which gets no token."""
    token = hub.people.who(request.token)
    repo = hub.shelf.repos.get((kind.removesuffix("s"), f"{ns}/{name}"))
    people.read(token, repo)
    assert repo is not None
    commit = commit_of(repo, rev)
    file = commit.files.get(path)
    if file is None:
        raise Refusal(404, "Entry not found", "EntryNotFound")
    headers = {"X-Repo-Commit": commit.oid, "Accept-Ranges": "bytes"}
    if file.sha256 is None:
        headers["ETag"] = f'"{file.oid}"'
        return ranged(request, hub.shelf.content(file), headers)
    headers |= {
        "X-Linked-Size": str(file.size),
        "X-Linked-Etag": f'"{file.sha256}"',
        "Location": hub.signed(f"/storage/{file.sha256}"),
    }
    return Answer(302, b"", headers)


def model_resolve(
    hub: LocalHub, request: Request, ns: str, name: str, rev: str, path: str
) -> Answer:
    return resolve(hub, request, "models", ns, name, rev, path)


def stored(hub: LocalHub, request: Request, oid: str) -> Answer:
    """A large file's bytes, by a signed address."""
    hub.check_signed(request)
    if "authorization" in request.headers:
        raise Refusal(400, "the storage must never see a token")
    return ranged(request, hub.shelf.blobs[oid], {"ETag": f'"{oid}"'})


def ranged(request: Request, content: bytes, headers: dict[str, str]) -> Answer:
    """A file, or the piece of it that was asked for."""
    headers = {"content-type": "application/octet-stream"} | headers
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range") or "")
    if request.method == "HEAD" or not found:
        return Answer(200, content, headers)
    size = len(content)
    if found[1]:
        start, end = int(found[1]), min(int(found[2] or size - 1), size - 1)
    else:
        start, end = max(size - int(found[2]), 0), size - 1
    if start >= size:
        return Answer(416, b"", headers | {"Content-Range": f"bytes */{size}"})
    headers["Content-Range"] = f"bytes {start}-{end}/{size}"
    return Answer(206, content[start : end + 1], headers)


ROUTES: list[Route] = [
    route("GET", "/api/<kind>/<ns>/<name>/tree/<rev>", tree),
    route("GET", "/api/<kind>/<ns>/<name>/tree/<rev>/<path...>", tree),
    route("POST", "/api/<kind>/<ns>/<name>/paths-info/<rev>", paths_info),
    *(
        route(method, "/<kind>/<ns>/<name>/resolve/<rev>/<path...>", resolve)
        for method in ("GET", "HEAD")
    ),
    *(
        route(method, "/<ns>/<name>/resolve/<rev>/<path...>", model_resolve)
        for method in ("GET", "HEAD")
    ),
    *(route(method, "/storage/<oid>", stored) for method in ("GET", "HEAD")),
]

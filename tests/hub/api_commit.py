"""The local Hub's answers to whoever uploads: how a file goes up, the large ones, commits."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from math import ceil
from typing import TYPE_CHECKING, Any

from tests.hub import people
from tests.hub.api_repos import card_errors, commit_of, seen
from tests.hub.repos import LARGE, SMALL_ENOUGH, Repo
from tests.hub.wire import Answer, Refusal, Request, Route, route, told

if TYPE_CHECKING:
    from tests.hub.server import LocalHub


def _writable(hub: LocalHub, request: Request, kind: str, ns: str, name: str) -> Repo:
    repo = hub.shelf.repos.get((kind.removesuffix("s"), f"{ns}/{name}"))
    people.write(hub.people.who(request.token), repo)
    assert repo is not None
    return repo


def _is_large(path: str, size: int, sample: bytes) -> bool:
    return path.endswith(LARGE) or size > SMALL_ENOUGH or b"\0" in sample


def preupload(
    hub: LocalHub, request: Request, kind: str, ns: str, name: str, rev: str
) -> Answer:
    """For each file: through git or large file storage, and what lies there already."""
    repo = _writable(hub, request, kind, ns, name)
    commit = commit_of(repo, rev)
    files = []
    for asked in request.json()["files"]:
        path, sample = asked["path"], base64.b64decode(asked["sample"])
        large = _is_large(path, asked["size"], sample)
        said: dict[str, Any] = {
            "path": path,
            "uploadMode": "lfs" if large else "regular",
            "shouldIgnore": bool(re.fullmatch(hub.ignored, path)),
        }
        if there := commit.files.get(path):
            said["oid"] = there.sha256 or there.oid
        files.append(said)
    return told({"files": files})


def batch(hub: LocalHub, request: Request, kind: str, ns: str, name: str) -> Answer:
    """Where to put large files; nothing for those that this repository has."""
    repo = _writable(hub, request, kind, ns, name)
    objects = []
    for asked in request.json()["objects"]:
        oid, size = asked["oid"], asked["size"]
        said: dict[str, Any] = {"oid": oid, "size": size, "authenticated": True}
        if oid not in repo.lfs:
            upload: dict[str, Any] = {"href": hub.signed(f"/upload/{oid}"), "header": {}}
            if size > hub.part_size:
                upload = _in_parts(hub, request, oid, size)
            verify = f"{request.base}/{hub.prefix(repo.kind)}{repo.id}.git/info/lfs/verify"
            said["actions"] = {"upload": upload, "verify": {"href": verify, "header": {}}}
        objects.append(said)
    return told({"transfer": "basic", "objects": objects})


def _in_parts(hub: LocalHub, request: Request, oid: str, size: int) -> dict[str, Any]:
    parts = ceil(size / hub.part_size)
    header = {"chunk_size": str(hub.part_size)}
    for number in range(1, parts + 1):
        header[f"{number:05}"] = hub.signed(f"/upload/{oid}.{number:05}")
    return {"href": f"{request.base}/complete/{oid}", "header": header}


def put(hub: LocalHub, request: Request, oid: str) -> Answer:
    """A large file, or a part of one, by a signed address and without a token."""
    hub.check_signed(request)
    if "authorization" in request.headers:
        raise Refusal(400, "the storage must never see a token")
    if "content-length" not in request.headers:
        raise Refusal(501, "A header you provided implies functionality not implemented")
    found = hashlib.sha256(request.body).hexdigest()
    if len(oid) == 64 and found != oid:
        raise Refusal(400, "BadDigest")
    hub.incoming[oid] = request.body
    return Answer(200, b"", {"ETag": f'"{found[:32]}"'})


def complete(hub: LocalHub, request: Request, oid: str) -> Answer:
    parts = request.json()["parts"]
    names = [f"{oid}.{part['partNumber']:05}" for part in parts]
    hub.incoming[oid] = b"".join(hub.incoming.pop(part) for part in names)
    return told({})


def verify(hub: LocalHub, request: Request, kind: str, ns: str, name: str) -> Answer:
    """Whether a large file arrived whole; from here on the repository has it."""
    repo = _writable(hub, request, kind, ns, name)
    asked = request.json()
    content = hub.incoming.get(asked["oid"], hub.shelf.blobs.get(asked["oid"], b""))
    if hashlib.sha256(content).hexdigest() != asked["oid"] or len(content) != asked["size"]:
        raise Refusal(404, "Object does not exist on the server")
    hub.shelf.blobs[asked["oid"]] = content
    hub.incoming.pop(asked["oid"], None)
    repo.lfs.add(asked["oid"])
    return told({})


def commit(hub: LocalHub, request: Request, kind: str, ns: str, name: str, rev: str) -> Answer:
    """All operations of a commit, or none of them."""
    repo = _writable(hub, request, kind, ns, name)
    lines = [json.loads(line) for line in request.body.splitlines()]
    head = next(line["value"] for line in lines if line["key"] == "header")
    now = commit_of(repo, rev)
    if head.get("parentCommit") not in (None, now.oid):
        raise Refusal(412, "A commit has happened since. Please refresh and try again.")
    files = dict(now.files)
    for line in lines:
        _apply(hub, repo, files, line["key"], line["value"])
    token = hub.people.who(request.token)
    assert token is not None
    message = head["summary"], head.get("description", ""), token.person.name
    made = hub.shelf.commit(repo, rev, files, message)
    url = f"{request.base}/{hub.prefix(repo.kind)}{repo.id}/commit/{made.oid}"
    return told({"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": ""})


def _apply(
    hub: LocalHub, repo: Repo, files: dict[str, Any], key: str, value: dict[str, Any]
) -> None:
    path = value.get("path", "")
    if key == "file":
        content = base64.b64decode(value["content"])
        if path == "README.md" and (errors := card_errors(content.decode())):
            raise Refusal(400, f"Invalid metadata in README.md: {errors[0]}")
        files[path] = hub.shelf.small(content)
    elif key == "lfsFile":
        if value["oid"] not in repo.lfs:
            raise Refusal(
                400, "Your push was rejected because an LFS pointer pointed to no file"
            )
        files[path] = hub.shelf.large(value["oid"])
    elif key == "deletedFile":
        if path not in files:
            raise Refusal(404, "A file with this name doesn't exist", "EntryNotFound")
        del files[path]
    elif key == "deletedFolder":
        for known in [known for known in files if known.startswith(path.rstrip("/") + "/")]:
            del files[known]


def no_xet(hub: LocalHub, request: Request, kind: str, ns: str, name: str, rev: str) -> Answer:
    """This Hub has no Xet for repositories: the client is refused, and must be told not to."""
    seen(hub, request, kind, ns, name)
    raise Refusal(404, "Xet is not enabled for this repository")


ROUTES: list[Route] = [
    route("POST", "/api/<kind>/<ns>/<name>/preupload/<rev>", preupload),
    route("POST", "/api/<kind>/<ns>/<name>/commit/<rev>", commit),
    *(
        route("GET", f"/api/<kind>/<ns>/<name>/{asked}/<rev>", no_xet)
        for asked in ("xet-write-token", "xet-read-token")
    ),
    route("POST", r"/<kind>/<ns>/<name>\.git/info/lfs/objects/batch", batch),
    route("POST", r"/<kind>/<ns>/<name>\.git/info/lfs/verify", verify),
    route("PUT", "/upload/<oid>", put),
    route("POST", "/complete/<oid>", complete),
]

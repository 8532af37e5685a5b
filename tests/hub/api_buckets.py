"""The local Hub's answers about Storage Buckets, and those of the Xet storage behind them."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.hub import people
from tests.hub.api_files import ranged
from tests.hub.repos import Place
from tests.hub.wire import Answer, Refusal, Request, Route, route, told

if TYPE_CHECKING:
    from tests.hub.server import LocalHub


@dataclass(frozen=True)
class Stored:
    """A file of a bucket."""

    xet: str
    size: int
    mtime: int


@dataclass
class BucketPlace(Place):
    """A bucket: the present files, and nothing of before."""

    files: dict[str, Stored] = field(default_factory=dict)


def _seen(hub: LocalHub, request: Request, ns: str, name: str) -> BucketPlace:
    bucket = hub.buckets.get(f"{ns}/{name}")
    people.see(hub.people.who(request.token), bucket)
    assert bucket is not None
    return bucket


def _writable(hub: LocalHub, request: Request, ns: str, name: str) -> BucketPlace:
    bucket = hub.buckets.get(f"{ns}/{name}")
    people.write(hub.people.who(request.token), bucket)
    assert bucket is not None
    return bucket


def create(hub: LocalHub, request: Request, ns: str, name: str) -> Answer:
    token = people.may_create(hub.people.who(request.token), "bucket", ns)
    bucket_id = f"{ns}/{name}"
    url = f"{request.base}/buckets/{bucket_id}"
    if bucket_id in hub.buckets:
        raise Refusal(409, "You already created this bucket", url=url)
    private = request.json().get("visibility", "public") == "private"
    hub.buckets[bucket_id] = BucketPlace("bucket", bucket_id, private)
    token.created.add(("bucket", bucket_id))
    return told({"url": url})


def info(hub: LocalHub, request: Request, ns: str, name: str) -> Answer:
    bucket = _seen(hub, request, ns, name)
    return told(
        {
            "id": bucket.id,
            "private": bucket.private,
            "createdAt": "2026-01-01T00:00:00.000Z",
            "size": sum(file.size for file in bucket.files.values()),
            "totalFiles": len(bucket.files),
        }
    )


def delete(hub: LocalHub, request: Request, ns: str, name: str) -> Answer:
    people.write(hub.people.who(request.token), hub.buckets.get(f"{ns}/{name}"), deletes=True)
    del hub.buckets[f"{ns}/{name}"]
    return Answer()


def _entry(path: str, file: Stored) -> dict[str, Any]:
    return {
        "type": "file",
        "path": path,
        "size": file.size,
        "xetHash": file.xet,
        "mtime": "2026-01-01T00:00:00.000Z",
    }


def tree(hub: LocalHub, request: Request, ns: str, name: str, path: str = "") -> Answer:
    """Every file below a prefix; folders are not listed."""
    bucket = _seen(hub, request, ns, name)
    found = sorted(known for known in bucket.files if known.startswith(path))
    start = int(request.one("cursor", "0"))
    headers = {}
    if start + hub.page < len(found):
        asked = f"recursive=true&cursor={start + hub.page}"
        headers["Link"] = f'<{request.base}{quote(request.path)}?{asked}>; rel="next"'
    page = [_entry(known, bucket.files[known]) for known in found[start : start + hub.page]]
    return told(page, headers=headers)


def paths_info(hub: LocalHub, request: Request, ns: str, name: str) -> Answer:
    bucket = _seen(hub, request, ns, name)
    asked = request.json()["paths"]
    return told([_entry(path, bucket.files[path]) for path in asked if path in bucket.files])


def batch(hub: LocalHub, request: Request, ns: str, name: str) -> Answer:
    """One operation after the other; those that fail are told, the others are done."""
    bucket = _writable(hub, request, ns, name)
    failed = []
    lines = [json.loads(line) for line in request.body.splitlines() if line]
    for line in lines:
        path = line["path"]
        if line["type"] == "deleteFile":
            if bucket.files.pop(path, None) is None:
                failed.append({"path": path, "error": "no such file"})
        elif line["xetHash"] not in hub.storage.files:
            failed.append({"path": path, "error": "its content was not uploaded"})
        else:
            size = len(hub.storage.read(line["xetHash"]))
            bucket.files[path] = Stored(line["xetHash"], size, line["mtime"])
    status = 422 if failed and len(failed) == len(lines) else 200
    return told({"success": not failed, "failed": failed}, status)


def resolve(hub: LocalHub, request: Request, ns: str, name: str, path: str) -> Answer:
    bucket = hub.buckets.get(f"{ns}/{name}")
    people.read(hub.people.who(request.token), bucket)
    assert bucket is not None
    file = bucket.files.get(path)
    if file is None:
        raise Refusal(404, "Entry not found", "EntryNotFound")
    refresh = f"{request.base}/api/buckets/{bucket.id}/xet-read-token"
    headers = {
        "X-Xet-Hash": file.xet,
        "X-Linked-Size": str(file.size),
        "X-Linked-Etag": f'"{file.xet}"',
        "Link": f'<{refresh}>; rel="xet-auth"',
        "Location": hub.signed(f"/xet-file/{file.xet}"),
    }
    return Answer(302, b"", headers)


def whole_file(hub: LocalHub, request: Request, oid: str) -> Answer:
    """For those who do not speak Xet."""
    hub.check_signed(request)
    return ranged(request, hub.storage.read(oid), {"ETag": f'"{oid}"'})


def write_token(hub: LocalHub, request: Request, ns: str, name: str) -> Answer:
    _writable(hub, request, ns, name)
    return _xet_token(hub, request)


def read_token(hub: LocalHub, request: Request, ns: str, name: str) -> Answer:
    _seen(hub, request, ns, name)
    return _xet_token(hub, request)


def _xet_token(hub: LocalHub, request: Request) -> Answer:
    ends = int(time.time()) + 3600
    body = {"accessToken": "xet-access", "exp": ends, "casUrl": f"{hub.storage_url}/cas"}
    headers = {
        "X-Xet-Cas-Url": body["casUrl"],
        "X-Xet-Access-Token": "xet-access",
        "X-Xet-Token-Expiration": str(ends),
    }
    return told(body, headers={name: str(value) for name, value in headers.items()})


def _xet_only(request: Request) -> None:
    if request.token != "xet-access":
        raise Refusal(401, "the storage takes its own token only")


def put_block(hub: LocalHub, request: Request, oid: str) -> Answer:
    _xet_only(request)
    new = oid not in hub.storage.blocks
    hub.storage.blocks[oid] = request.body
    return told({"was_inserted": new})


def put_shard(hub: LocalHub, request: Request) -> Answer:
    _xet_only(request)
    try:
        hub.storage.add_shard(request.body)
    except ValueError as error:
        raise Refusal(400, str(error)) from error
    return told({"result": 1})


def reconstruction(hub: LocalHub, request: Request, oid: str) -> Answer:
    _xet_only(request)
    if oid not in hub.storage.files:
        raise Refusal(404, "no such file")
    found = re.fullmatch(r"bytes=(\d+)-\d*", request.headers.get("range") or "")
    if found and int(found[1]) >= len(hub.storage.read(oid)):
        return Answer(416)
    return told(
        hub.storage.reconstruction(oid, lambda block: hub.signed(f"/xet-block/{block}"))
    )


def block(hub: LocalHub, request: Request, oid: str) -> Answer:
    hub.check_signed(request)
    return ranged(request, hub.storage.blocks[oid], {})


BUCKET = "/api/buckets/<ns>/<name>"
ROUTES: list[Route] = [
    route("POST", BUCKET, create),
    route("GET", BUCKET, info),
    route("DELETE", BUCKET, delete),
    route("GET", f"{BUCKET}/tree", tree),
    route("GET", f"{BUCKET}/tree/<path...>", tree),
    route("POST", f"{BUCKET}/paths-info", paths_info),
    route("POST", f"{BUCKET}/batch", batch),
    route("GET", f"{BUCKET}/xet-write-token", write_token),
    route("GET", f"{BUCKET}/xet-read-token", read_token),
    *(
        route(method, "/buckets/<ns>/<name>/resolve/<path...>", resolve)
        for method in ("GET", "HEAD")
    ),
    route("GET", "/xet-file/<oid>", whole_file),
    route("GET", "/xet-block/<oid>", block),
    route("POST", "/cas/v1/xorbs/default/<oid>", put_block),
    route("POST", "/cas/v1/shards", put_shard),
    route("GET", "/cas/v1/reconstructions/<oid>", reconstruction),
]

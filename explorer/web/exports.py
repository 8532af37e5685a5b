"""The documents that leave: streamed, compressed, named by the hash of their content.

Owns: `/training-trace` and `/capture-audit`, their ETag, encodings and query parameters.
Must not know: what stands in the documents, who may read them.

Nothing is made on the event loop, and no document is ever whole in memory: it is made once
to hash it (kept for the next time) and once to send it.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
import zstandard
from fastapi import APIRouter, Request
from fastapi.responses import Response

from explorer.errors import InvalidValue
from explorer.export.deltas import told_json
from explorer.export.judged import Content, Judged
from explorer.trace.assemble import training_trace
from explorer.trace.audit import capture_audit
from explorer.trace.contract import contract
from explorer.trace.refusals import Need
from explorer.web import api_shapes as shapes
from explorer.web.api import Api, judged_or_404
from explorer.web.desk_access import ApiServices
from explorer.web.handing import Handed, handed_out, parcel_of, require_released

router = APIRouter(prefix="/api/v1")

Make = Callable[[], Iterator[bytes]]
# Bytes that one trip to a worker thread makes at least, unless the document ends.
_STEP = 256 * 1024
_RANGE = re.compile(r"bytes=([0-9]{1,18})-")


@router.get("/rollouts/{rollout_id}/training-trace")
async def get_training_trace(rollout_id: str, request: Request, api: Api) -> Response:
    """OpenEnv's `TrainingTrace` v1, streamed; 409 with every reason when refused.

    `?needs=reward` also refuses a rollout that nobody has scored.
    """
    _only(request, "needs")
    judged = await judged_or_404(api, rollout_id)
    needs = _needs(request.query_params.getlist("needs"))

    def make() -> Iterator[bytes]:
        return training_trace(judged.record, judged.judgement, needs)

    return await _download(request, api, Document(judged, make, "training-trace"))


@router.get("/rollouts/{rollout_id}/capture-audit")
async def get_capture_audit(rollout_id: str, request: Request, api: Api) -> Response:
    """Every call that reached the proxy, with roles, masks, findings and totals.

    `?format=contract` gives the shape of OpenEnv's old `contract.json`; `?notes=1` adds the
    labels and notes of people under `annotations`, `?trainer_logprobs=1` what trainers told.
    """
    _only(request, "format", "notes", "trainer_logprobs")
    judged = await judged_or_404(api, rollout_id)
    wanted = request.query_params.get("format", "audit")
    if wanted not in ("audit", "contract"):
        raise InvalidValue("`format` of the Capture audit is `audit` or `contract`")
    noted, told = (
        _flag(request, "notes", "labels and notes"),
        _flag(request, "trainer_logprobs", "what trainers told"),
    )
    if wanted == "contract":
        if noted or told:
            name = "notes" if noted else "trainer_logprobs"
            raise InvalidValue(f"`{name}` goes with the Capture audit, not with `contract`")
        made = partial(contract, judged.record, judged.judgement)
        return await _download(request, api, Document(judged, made, "contract"))
    if not noted and not told:
        audit = partial(capture_audit, judged.record, judged.judgement)
        return await _download(request, api, Document(judged, audit, "capture-audit"))
    rollout_id = judged.record.rollout.rollout_id

    def work() -> tuple[Any, Any, str]:
        said = [shapes.plain(each) for each in api.store.annotations(rollout_id)]
        sets = told_json(api.store.trainer_logps(rollout_id))
        both = (said if noted else None, sets if told else None)
        return *both, hashlib.sha256(orjson.dumps(both)).hexdigest()

    # Neither is an input of the verdict, so the judged rollout does not change with them.
    said, sets, stamp = await asyncio.to_thread(work)
    audit = partial(capture_audit, judged.record, judged.judgement, said, sets)
    more = Document(judged, audit, "capture-audit", f"notes-{stamp}")
    return await _download(request, api, more)


def _flag(request: Request, name: str, what: str) -> bool:
    value = request.query_params.get(name, "0")
    if value not in ("0", "1"):
        raise InvalidValue(f"`{name}` is 1 to have {what}, or 0")
    return value == "1"


def _only(request: Request, *known: str) -> None:
    """A misspelt `needs` must not give what it was to refuse."""
    for name in request.query_params:
        if name not in known:
            there = " and ".join(f"`{each}`" for each in known)
            raise InvalidValue(f"there is no parameter `{name}` here; there is {there}")


def _needs(given: list[str]) -> tuple[Need, ...]:
    words = [word for text in given for word in text.split(",") if word]
    try:
        return tuple(Need(word) for word in words)
    except ValueError as error:
        known = ", ".join(f"`{need}`" for need in Need)
        raise InvalidValue(f"`needs` may be {known}") from error


def _content(judged: Judged, kind: str, make: Make) -> Content:
    """Hash and size of a document; makes it where they are not known yet."""
    if kind not in judged.contents:
        digest, size = hashlib.sha256(), 0
        for chunk in make():
            digest.update(chunk)
            size += len(chunk)
        judged.contents[kind] = Content(digest.hexdigest(), size)
    return judged.contents[kind]


def _encoding(request: Request) -> str:
    """The best encoding that the reader takes: `zstd`, `gzip` or `identity`."""
    accepted: dict[str, float] = {}
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = part.strip().partition(";")
        try:
            accepted[name.strip()] = float(weight.strip().removeprefix("q=") or 1)
        except ValueError:
            accepted[name.strip()] = 0.0
    best = max(("zstd", "gzip"), key=lambda name: accepted.get(name, 0.0))
    return best if accepted.get(best, 0.0) > 0 else "identity"


@dataclass(frozen=True, slots=True)
class Document:
    """A document that can be made.

    Attributes:
        kind: part of its file name.
        content_of: names its content where one kind has several.
    """

    judged: Judged
    make: Make
    kind: str
    content_of: str = ""

    @property
    def rollout_id(self) -> str:
        """The rollout it is of."""
        return str(self.judged.record.rollout.rollout_id)

    @property
    def name(self) -> str:
        """The file's name, made of our own ids."""
        return f"{self.rollout_id}.{self.kind}.json"


async def _download(request: Request, api: ApiServices, document: Document) -> Response:
    # A refusal comes before anything else, so that it is a 409 whatever was asked.
    await asyncio.to_thread(document.make)
    named = document.content_of or document.kind
    content = await asyncio.to_thread(_content, document.judged, named, document.make)
    encoding = _encoding(request)
    suffix = "" if encoding == "identity" else f"-{encoding}"
    etag = f'"{content.sha256}{suffix}"'
    headers = shapes.download_headers(document.name, etag) | {"vary": "Accept-Encoding"}
    parcel = parcel_of(
        request, document.rollout_id, document.name, etag=content.sha256, encoding=encoding
    )
    await require_released(request, parcel)
    if _known(request.headers.get("if-none-match"), content.sha256):
        return Response(status_code=304, headers=headers)
    first, length = 0, None
    if encoding == "identity":
        headers["accept-ranges"] = "bytes"
        first = _first_byte(request, etag, content.size)
        length = content.size - first
        headers["content-length"] = str(length)
        if first:
            headers["content-range"] = f"bytes {first}-{content.size - 1}/{content.size}"
    else:
        headers["content-encoding"] = encoding
    chunks = _body(_skipped(_encoded(document.make(), encoding), first))
    body = await handed_out(
        api, request, replace(parcel, first_byte=first, length=length), chunks
    )
    return Handed(
        body,
        status_code=206 if first else 200,
        media_type="application/json",
        headers=headers,
    )


def _first_byte(request: Request, etag: str, size: int) -> int:
    """Where to go on from: `Range: bytes=N-`, of the document that `If-Range` names.

    Any other range is answered with the whole, as HTTP allows.
    """
    found = _RANGE.fullmatch(request.headers.get("range", ""))
    if found is None or request.headers.get("if-range", etag) != etag:
        return 0
    first = int(found[1])
    return first if first < size else 0


def _skipped(chunks: Iterator[bytes], first: int) -> Iterator[bytes]:
    """The chunks without the first so many bytes."""
    for chunk in chunks:
        if first >= len(chunk):
            first -= len(chunk)
            continue
        yield chunk[first:] if first else chunk
        first = 0


def _known(told: str | None, sha256: str) -> bool:
    """Whether the reader has this content already, in whatever encoding it came."""
    if told is None:
        return False
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in told.split(",")]
    return "*" in tags or any(tag.partition("-")[0] == sha256 for tag in tags)


async def _body(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        step = await asyncio.to_thread(_step, chunks)
        if not step:
            return
        yield step


def _step(chunks: Iterator[bytes]) -> bytes:
    """The next stretch of a document; empty at its end."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= _STEP:
            break
    return b"".join(parts)


def _encoded(chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    if encoding == "zstd":
        return _zstd(chunks)
    return _gzip(chunks) if encoding == "gzip" else chunks


def _zstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    writer = zstandard.ZstdCompressor(level=3).compressobj()
    for chunk in chunks:
        yield writer.compress(chunk)
    yield writer.flush()


def _gzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    held = io.BytesIO()
    # No time in the header: the same content gives the same bytes.
    with gzip.GzipFile(fileobj=held, mode="wb", compresslevel=6, mtime=0) as writer:
        for chunk in chunks:
            writer.write(chunk)
            yield held.getvalue()
            held.seek(0)
            held.truncate()
    yield held.getvalue()

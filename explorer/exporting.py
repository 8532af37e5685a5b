"""The commands `export` and `verify`: documents to files, and what was written checked alone.
Wiring only.

Owns: names of files, what is printed, exit statuses.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import zstandard

from explorer import runfile
from explorer.capture.ids import is_id
from explorer.datasets import DatasetOrder, Wanted, export_dataset
from explorer.errors import ConfigurationError, InvalidValue
from explorer.export.adapters.registry import adapters_of
from explorer.export.dataset.archive import unpack
from explorer.export.publishing.checking import check_folder
from explorer.export.receipt_check import check_receipts
from explorer.export.signing import read_key
from explorer.integrations.client import ApiError, ExplorerClient
from explorer.reach import reach
from explorer.running import say
from explorer.server import run_loop
from explorer.settings import Settings
from explorer.trace.verify import Report, verify

# Format of `--format`: address below the rollout, and what the file name ends with.
FORMATS = {
    "training-trace": ("training-trace", "training-trace"),
    "capture-audit": ("capture-audit", "capture-audit"),
    "contract": ("capture-audit?format=contract", "contract"),
}
# Not a document a rollout, but a folder of all of them, or that folder as one file.
DATASET, ARCHIVE = "parquet", "zip"
_LARGEST = 4 * 1024**3
_CUT_ZIP = "is no zip file that can be read: it broke off, or is something else"


@dataclass(frozen=True, slots=True)
class Order:
    """What to export.

    Attributes:
        rollout_ids: those named, in order.
        view: filters as in the page's address, or the name of a saved view; every rollout
            that they show.
        format: a key of `FORMATS`.
        out: a file, or a folder where there may be several.
        needs: what the reader cannot do without, comma-separated.
        notes: whether the Capture audit holds labels and notes of people.
    """

    rollout_ids: tuple[str, ...]
    view: str | None
    format: str
    out: Path
    needs: str = ""
    notes: bool = False

    @property
    def several(self) -> bool:
        """Whether `out` is a folder."""
        return self.view is not None or len(self.rollout_ids) > 1 or self.out.is_dir()

    @property
    def address(self) -> str:
        """Below the rollout's own address."""
        address, _ = FORMATS[self.format]
        if self.notes and self.format == "capture-audit":
            return f"{address}?notes=1"
        asks = self.needs and self.format == "training-trace"
        return f"{address}?needs={self.needs}" if asks else address

    def target(self, rollout_id: str) -> Path:
        """The file of one rollout."""
        _, suffix = FORMATS[self.format]
        return self.out / f"{rollout_id}.{suffix}.json" if self.several else self.out


def export(settings: Settings, order: Order) -> int:
    """Writes one file a rollout; a refusal is said and costs no other rollout its file.

    Returns:
        The exit status: 0 when every rollout was written.
    """

    async def work(client: ExplorerClient) -> int:
        refused = written = 0
        async for rollout_id in _wanted(client, order):
            target = order.target(rollout_id)
            path = f"/api/v1/rollouts/{rollout_id}/{order.address}"
            try:
                size = await _fetch(client, path, target)
            except ApiError as error:
                refused += 1
                say(f"refused  {rollout_id}: {error.message}")
                continue
            written += 1
            say(f"written  {target} ({size} bytes)")
        if order.view is not None:
            say(f"in all   {written} written, {refused} refused")
        return refused

    _check_names(order.rollout_ids)
    new = not order.out.exists()
    if order.several:
        _make_folder(order.out)
    try:
        return 1 if run_loop(reach(settings, work)) else 0
    except ConfigurationError:
        if new and order.out.is_dir():
            with contextlib.suppress(OSError):  # something was written after all
                order.out.rmdir()
        raise


def export_parquet(settings: Settings, order: Order, how: Mapping[str, Any]) -> int:
    """Writes one dataset of the same rollouts that `export` would write a file each of.

    Args:
        how: further fields of `DatasetOrder`.

    Returns:
        The exit status: 0 when every rollout is in it.
    """
    adapters_of(how["formats"])
    archive = order.format == ARCHIVE
    return export_dataset(
        settings, DatasetOrder(wanted_by(order), order.out, **how, archive=archive)
    )


def wanted_by(order: Order) -> Wanted:
    """Finds the rollouts of an order, given a client.

    Raises:
        ConfigurationError: an id that was named is none.
    """
    _check_names(order.rollout_ids)
    return lambda client: _wanted(client, order)


async def _wanted(client: ExplorerClient, order: Order) -> AsyncIterator[str]:
    """The ids that were named, then those that the view shows, page by page."""
    for rollout_id in order.rollout_ids:
        yield rollout_id
    if order.view is None:
        return
    query = await _query_of(client, order.view)
    cursor: str | None = ""
    while cursor is not None:
        asked = [query, "limit=200", f"cursor={quote(cursor)}" if cursor else ""]
        page = await client.list("&".join(part for part in asked if part))
        cursor = page["next"]
        for row in page["rollouts"]:
            yield row["rollout_id"]


async def _query_of(client: ExplorerClient, view: str) -> str:
    """The query of a saved view, when `view` is a name; names hold no =.

    Raises:
        ConfigurationError: no view has this name.
    """
    if "=" in view or not view:
        return view
    saved = await client.request("GET", "/api/v1/views")
    known = {row["name"]: row["query"] for row in saved["views"]}
    if view not in known:
        there = f"there are {', '.join(sorted(known))}" if known else "none is saved"
        raise ConfigurationError(
            f"no view is called {view!r}: {there}; a filter is written field=value"
        )
    return str(known[view])


def _check_names(rollout_ids: Sequence[str]) -> None:
    """An id names a file, so it must have the form of ours."""
    for each in rollout_ids:
        if not is_id(each):
            raise ConfigurationError(
                f"{each!r} is no rollout's id: 32 hexadecimal digits in five groups"
            )


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigurationError(f"{out} is a file; several rollouts need a folder") from error
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be made: {error.strerror}") from error


async def _fetch(client: ExplorerClient, path: str, target: Path) -> int:
    """Streams a document to a file beside its place, and moves it there when it is whole.

    Raises:
        ApiError: the server refused.
        ConfigurationError: it cannot be written, or what came is not what was announced.
    """
    beside = target.with_name(target.name + ".part")
    digest, size = hashlib.sha256(), 0
    try:
        async with client.download(path) as answer:
            with beside.open("wb") as file:
                async for chunk in answer.content.iter_any():
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
            told = answer.headers.get("etag", "").strip('"').partition("-")[0]
        if told != digest.hexdigest():
            raise ConfigurationError(f"{path}: the document broke off; ask for it again")
        os.replace(beside, target)
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)
    return size


@dataclass(frozen=True, slots=True)
class Beside:
    """What files are verified with.

    Attributes:
        against: the Capture audit of a Training trace.
        receipts: those of an audit's rollout.
        key: that signed them.
    """

    against: Path | None = None
    receipts: Path | None = None
    key: Path | None = None


def check(settings: Settings, names: Sequence[str], beside: Beside, *, as_json: bool) -> int:
    """Verifies files, or rollouts of the store by id, and says what was found.

    Returns:
        The exit status: 0 when everything holds together, whatever the verdicts are.
    """
    other = None if beside.against is None else read_file(beside.against)
    sound = True
    reports = []
    for name in names:
        path = Path(name)
        _require_alone(name, path, beside)
        if is_id(name) and not path.exists():
            found = _of_rollout(settings, name)
        elif path.is_dir():
            found = [_of_folder(path)]
        elif zipfile.is_zipfile(path):
            found = [_of_archive(path)]
        elif path.suffix == ".zip" and path.is_file():
            found = [Report("unreadable", False, False, (f"{path} {_CUT_ZIP}",))]
        else:
            try:
                found = [_with_receipts(path, verify(read_file(path), other), beside)]
            except InvalidValue as error:
                place = error.details.get("path")
                where = f" at {place}" if place else ""
                found = [Report("unreadable", False, False, (f"{error.message}{where}",))]
        for report in found:
            sound = sound and report.ok
            reports.append({"name": name, **asdict(report)})
            if not as_json:
                _print(name, report)
    if as_json:
        click.echo(json.dumps(reports, indent=1, ensure_ascii=False))
    return 0 if sound else 1


def _require_alone(name: str, path: Path, beside: Beside) -> None:
    """Raises:
    ConfigurationError: something was given to compare with, and would not be looked at.
    """
    one_file = path.is_file() and not zipfile.is_zipfile(path)
    if not one_file and (beside.against or beside.receipts) and (path.exists() or is_id(name)):
        raise ConfigurationError(
            f"{name} is no single document: --against and --receipts go with the file of a "
            "trace or of an audit"
        )


def _with_receipts(path: Path, report: Report, beside: Beside) -> Report:
    """With what the receipts of an audit's rollout add."""
    if beside.receipts is None:
        return report
    if report.kind != "capture-audit":
        raise InvalidValue("receipts are checked against a Capture audit")
    key = None if beside.key is None else read_key(beside.key)
    return check_receipts(report, read_file(path), read_file(beside.receipts), key)


def _of_folder(path: Path) -> Report:
    """What was found in a dataset."""
    try:
        return check_folder(path)
    except InvalidValue as error:
        place = error.details.get("path")
        where = f" at {place}" if place else ""
        return Report("unreadable", False, False, (f"{error.message}{where}",))


def _of_archive(path: Path) -> Report:
    """The same in a zip file."""
    with tempfile.TemporaryDirectory(prefix="rollout-explorer-") as folder:
        try:
            unpack(path, Path(folder) / "data")
        except InvalidValue as error:
            return Report("unreadable", False, False, (error.message,))
        return _of_folder(Path(folder) / "data")


def _of_rollout(settings: Settings, rollout_id: str) -> list[Report]:
    """The audit that the store gives, and the trace against it where there is one."""

    async def work(client: ExplorerClient) -> list[Report]:
        base = f"/api/v1/rollouts/{rollout_id}"
        audit = await client.read(f"{base}/capture-audit")
        reports = [verify(audit)]
        if reports[0].trainable:
            reports.append(verify(await client.read(f"{base}/training-trace"), audit))
        return reports

    if runfile.read(settings.store) is None and not settings.store.is_file():
        raise ConfigurationError(
            f"{rollout_id} is no file, and there is no store at {settings.store}"
        )
    return run_loop(reach(settings, work))


def read_file(path: Path) -> bytes:
    """A file's bytes, unpacked when it is gzip or zstd.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(path) as file:
                raw = file.read(_LARGEST)
        elif raw[:4] == b"\x28\xb5\x2f\xfd":
            with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
                raw = reader.read(_LARGEST)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    return raw


def _print(name: str, report: Report) -> None:
    # What does not hold together has no verdict that anybody may go by.
    mark = "NOT SOUND, do not use it"
    if report.ok:
        mark = f"sound, {'trainable' if report.trainable else 'not trainable'}"
    lines = [f"{name}: {report.kind}, {mark}"]
    lines += [f"  problem: {problem}" for problem in report.problems]
    lines += [
        f"  {key.replace('_', ' ')}: {_words(value)}" for key, value in report.facts.items()
    ]
    lines += [f"  note: {note}" for note in report.notes]
    for line in lines:
        # A file may hold what a terminal would obey.
        click.echo("".join(letter if letter.isprintable() else "?" for letter in line))


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)

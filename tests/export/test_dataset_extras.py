"""What adapters give lies beside the record, is checked from it, and can be added to."""

from __future__ import annotations

import hashlib
import io
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from explorer.errors import ConfigurationError, InvalidValue, PublishStopped, RecordInconsistent
from explorer.export.dataset.adapter import Adapter, File, Layout, Line, Piece, Row, Subject
from explorer.export.dataset.checking import check_dataset
from explorer.export.dataset.making import Shape, make_dataset
from explorer.export.dataset.manifest import MANIFEST, Manifest, manifest_bytes, read_manifest
from explorer.export.dataset.planning import plan
from explorer.export.dataset.schema import Column
from explorer.export.dataset.writer import Limits
from explorer.records import RolloutId
from explorer.store.duckdb_store import DuckDBStore
from tests.export.datasets import ALL, FORKED, ODD, PLAIN, source_of
from tests.export.test_dataset_files import in_store

SMALL = Limits(row_group_bytes=1, shard_bytes=1)


class Ids(Adapter):
    """One row a call that has ids, and one at the end that counts them."""

    name = "ids_only"
    layout = Layout.PARQUET
    about = "For tests."
    columns: ClassVar[tuple[Column, ...]] = (
        Column("call", "text", "Its call.", True),
        Column("ids", "ids", "Sampled ids."),
        Column("logprobs", "logprobs", "Theirs."),
        Column("score", "float", "Nothing."),
    )

    def __init__(self) -> None:
        self._seen = 0

    def add(self, subject: Subject) -> Iterable[Piece]:
        for call in subject.record.calls:
            if call.completion is not None:
                self._seen += 1
                holes = None if call.logprobs is None else [None] * call.completion.size
                yield Row({"call": call.call_id, "ids": call.completion, "logprobs": holes})

    def finish(self) -> Iterable[Piece]:
        yield Row({"call": f"{self._seen} in all"})


class Names(Adapter):
    """A line a rollout."""

    name = "names"
    layout = Layout.LINES
    about = "For tests."
    suffix = "csv"
    header = b"rollout,calls"

    def add(self, subject: Subject) -> Iterable[Piece]:
        rollout = subject.record.rollout
        yield Line(f"{rollout.rollout_id},{len(subject.record.calls)}".encode())


class Said(Adapter):
    """A file a rollout, of what the harness sent."""

    name = "said"
    layout = Layout.FILES
    about = "For tests."
    suffix = "json"
    needs_texts = True

    def add(self, subject: Subject) -> Iterable[Piece]:
        texts = [subject.texts(call.call_id)[0] for call in subject.record.calls]
        yield File(subject.record.rollout.rollout_id, orjson.dumps(texts))


KINDS: dict[str, type[Adapter]] = {kind.name: kind for kind in (Ids, Names, Said)}


def adapters_of(names: Iterable[str]) -> list[Adapter]:
    wanted = set(names)
    return [kind() for name, kind in KINDS.items() if name in wanted]


def every() -> list[Adapter]:
    return adapters_of(KINDS)


async def made_of(
    store: DuckDBStore, folder: Path, names: Iterable[RolloutId], **shape: Any
) -> Manifest:
    source = source_of(store)
    planned = await plan(source, names)
    return await make_dataset(source, planned, folder, Shape(adapters=every, **shape))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extras")

    async def work(store: DuckDBStore) -> Manifest:
        return await made_of(store, folder / "data", ALL)

    in_store(folder / "s.duckdb", work)
    return folder / "data"


def test_every_layout_is_written_named_and_made_again(made: Path) -> None:
    manifest = read_manifest(made)
    assert {name: entry.rows for name, entry in manifest.extras.items()} == {
        "ids_only": 11,
        "names": 3,
        "said": 3,
    }
    (part,) = manifest.parts
    assert part.bodies
    assert part.extras == {"ids_only": 11, "names": 3, "said": 3}
    (lines,) = manifest.extras["names"].files
    text = (made / lines.path).read_text().splitlines()
    assert text == ["rollout,calls", f"{ODD},4", f"{FORKED},6", f"{PLAIN},1"]
    (rows,) = manifest.extras["ids_only"].files
    table = pq.read_table(made / rows.path)
    assert table.column("score").null_count == table.num_rows == 11
    assert table.column("call").to_pylist()[-1] == "10 in all"
    said = orjson.loads((made / f"said/{PLAIN}.json").read_bytes())
    assert orjson.loads(said[0])["id"] == "p-a"
    report = check_dataset(made, adapters_of)
    assert report.ok, report.problems
    assert report.facts["formats"] == ["ids_only", "names", "said"]


def _changed_bytes(folder: Path) -> None:
    path = next((folder / "names").iterdir())
    path.write_bytes(path.read_bytes().replace(b",1", b",2"))


def _forged(folder: Path, name: str, data: Callable[[bytes], bytes], more: int = 0) -> None:
    """A file changed with its digest, and `more` rows in all counts, made to fit."""
    document = orjson.loads((folder / MANIFEST).read_bytes())
    entry = document["extras"][name]["files"][0]
    entry["rows"] += more
    document["extras"][name]["rows"] += more
    document["parts"][0]["extras"][name] += more
    old = folder / entry["path"]
    raw = data(old.read_bytes())
    old.unlink()
    entry["sha256"] = hashlib.sha256(raw).hexdigest()
    entry["size"] = len(raw)
    if "part-" in entry["path"]:
        stem, _, suffix = entry["path"].rpartition(".")
        entry["path"] = f"{stem.rpartition('-')[0]}-{entry['sha256'][:16]}.{suffix}"
    (folder / entry["path"]).write_bytes(raw)
    (folder / MANIFEST).write_bytes(orjson.dumps(document))


def _forged_line(folder: Path) -> None:
    _forged(folder, "names", lambda raw: raw.replace(b",1", b",2"))


def _line_more(folder: Path) -> None:
    _forged(folder, "names", lambda raw: raw + b"x,1\n", 1)


def _no_header(folder: Path) -> None:
    _forged(folder, "names", lambda raw: b"x,y\n" + raw.split(b"\n", 1)[1])


def _forged_file(folder: Path) -> None:
    _forged(folder, "said", lambda raw: raw.replace(b"o-a", b"o-z"))


def _forged_row(folder: Path) -> None:
    def changed(raw: bytes) -> bytes:
        table = pq.read_table(io.BytesIO(raw))
        ids = table.column("ids").to_pylist()
        ids[0][0] += 1
        place = table.schema.get_field_index("ids")

        table = table.set_column(
            place, table.schema.field(place), pa.array(ids, table.schema.field(place).type)
        )
        out = io.BytesIO()
        pq.write_table(table, out)
        return out.getvalue()

    _forged(folder, "ids_only", changed)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_changed_bytes, "was changed"),
        (_forged_line, "`names` is not what follows"),
        (_line_more, "more than its rollouts give"),
        (_no_header, "`names` is not what follows"),
        (_forged_file, "`said` is not what follows"),
        (_forged_row, "`ids_only` is not what follows"),
    ],
)
def test_whatever_is_changed_in_it_is_found(
    made: Path, tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(made, folder)
    change(folder)
    problems = check_dataset(folder, adapters_of).problems
    assert any(words in problem for problem in problems), problems


def test_a_strange_file_among_them_is_found_and_a_strange_name_refused(
    made: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(made, folder)
    (folder / "names" / "more.csv").write_text("x")
    problems = check_dataset(folder, adapters_of).problems
    assert any("does not name this file" in problem for problem in problems)
    document = orjson.loads((folder / MANIFEST).read_bytes())
    document["extras"]["names"]["files"][0]["path"] = "said/part-00000-0123456789abcdef.csv"
    (folder / MANIFEST).write_bytes(orjson.dumps(document))
    with pytest.raises(InvalidValue, match="names a file"):
        read_manifest(folder)


def test_a_format_that_nobody_knows_is_said(made: Path) -> None:
    with pytest.raises(InvalidValue, match="nobody here knows the format"):
        check_dataset(made)


def test_lower_limits_split_them_and_change_nothing(made: Path, tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> Manifest:
        return await made_of(store, tmp_path / "data", ALL, limits=SMALL)

    manifest = in_store(tmp_path / "s.duckdb", work)
    assert len(manifest.extras["names"].files) == 3
    assert len(manifest.extras["ids_only"].files) == 11
    assert check_dataset(tmp_path / "data", adapters_of).ok


def test_what_is_added_stands_behind_and_changes_nothing(tmp_path: Path) -> None:
    whole = tmp_path / "whole"

    async def work(store: DuckDBStore) -> tuple[Manifest, Manifest]:
        first = await made_of(store, whole, [FORKED])
        more = await made_of(store, tmp_path / "more", ALL, old=first)
        return first, more

    async def twice(store: DuckDBStore) -> None:
        source = source_of(store)
        planned = await plan(source, [PLAIN])
        with pytest.raises(ConfigurationError, match="these formats: ids_only, names, said"):
            await make_dataset(source, planned, tmp_path / "x", Shape(old=first))

    first, _ = in_store(tmp_path / "s.duckdb", work)
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    more = read_manifest(tmp_path / "more")
    # `forked` is there already, `open` is open; the two others are new.
    assert [part.rollouts for part in more.parts] == [1, 2]
    assert [entry.rollout_id for entry in more.rollouts] == [FORKED, ODD, PLAIN]
    old_paths = {file.path for file in first.files}
    for path in (tmp_path / "more").rglob("*"):
        name = path.relative_to(tmp_path / "more").as_posix()
        if path.is_file() and name != MANIFEST:
            assert name not in old_paths
            shutil.copyfile(path, whole / name)
    shutil.copyfile(tmp_path / "more" / MANIFEST, whole / MANIFEST)
    assert all(
        path.read_bytes() == raw for path, raw in before.items() if path.name != MANIFEST
    )
    report = check_dataset(whole, adapters_of)
    assert report.ok, report.problems
    assert report.facts["judged_again"] == 3
    assert report.facts["parts"] == 2
    in_store(tmp_path / "s.duckdb", twice, full=False)


def test_the_manifest_says_the_same_when_it_is_read_and_written(made: Path) -> None:
    assert manifest_bytes(read_manifest(made)) == (made / MANIFEST).read_bytes()


def test_stopped_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    stop = threading.Event()

    async def work(store: DuckDBStore) -> None:
        source = source_of(store)
        planned = await plan(source, ALL)
        with pytest.raises(PublishStopped):
            await make_dataset(
                source,
                planned,
                tmp_path / "out" / "data",
                Shape(adapters=every),
                listener=lambda done, of: stop.set(),
                stop=stop,
            )

    in_store(tmp_path / "s.duckdb", work)
    assert list((tmp_path / "out").iterdir()) == []


class Torn(Names):
    """Cannot tell one rollout."""

    name = "torn"

    def add(self, subject: Subject) -> Iterable[Piece]:
        if subject.record.rollout.rollout_id == ODD:
            raise RecordInconsistent("it has no end")
        yield from super().add(subject)


def test_a_rollout_that_a_format_cannot_tell_is_left_out_of_all(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> Manifest:
        source = source_of(store)
        shape = Shape(adapters=lambda: [Torn()])
        return await make_dataset(source, await plan(source, ALL), tmp_path / "d", shape)

    manifest = in_store(tmp_path / "s.duckdb", work)
    assert [entry.rollout_id for entry in manifest.rollouts] == [FORKED, PLAIN]
    told = {item.rollout_id: item.reason for item in manifest.excluded}
    assert told[ODD] == "it has no end"
    assert manifest.extras["torn"].rows == 2

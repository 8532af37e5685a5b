"""A dataset as a zip file: the same bytes each time, our own names, and back again."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import orjson
import pytest

from explorer.errors import InvalidValue
from explorer.export.dataset.archive import names_of, unpack, write_zip, zip_pieces
from explorer.export.dataset.checking import check_dataset
from explorer.export.dataset.making import Shape, make_dataset
from explorer.export.dataset.manifest import MANIFEST, Manifest, read_manifest
from explorer.export.dataset.planning import plan
from explorer.records import RolloutId
from explorer.store.duckdb_store import DuckDBStore
from tests.export.datasets import ALL, add, source_of
from tests.export.test_dataset_extras import adapters_of, every
from tests.export.test_dataset_files import in_store
from tests.trace.build import make_call


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zip")

    async def work(store: DuckDBStore) -> Manifest:
        source = source_of(store)
        shape = Shape(adapters=every)
        return await make_dataset(source, await plan(source, ALL), folder / "data", shape)

    in_store(folder / "s.duckdb", work)
    return folder / "data"


def test_it_comes_back_whole_and_its_bytes_are_the_same_each_time(
    made: Path, tmp_path: Path
) -> None:
    manifest = read_manifest(made)
    size = write_zip(made, manifest, tmp_path / "d.zip")
    assert size == (tmp_path / "d.zip").stat().st_size
    assert (tmp_path / "d.zip").read_bytes() == b"".join(zip_pieces(made, manifest))
    unpack(tmp_path / "d.zip", tmp_path / "back")
    for name in names_of(made, manifest):
        assert (tmp_path / "back" / name).read_bytes() == (made / name).read_bytes()
    assert check_dataset(tmp_path / "back", adapters_of).ok


def test_zip_01_names_are_of_our_ids_and_titles_only_inside(tmp_path: Path) -> None:
    titles = ("../a", "A", "a", "")
    names = [RolloutId(f"01990000-0000-7000-8000-0000000000a{n}") for n in range(4)]

    async def work(store: DuckDBStore) -> Manifest:
        for number, (name, title) in enumerate(zip(names, titles, strict=True)):
            call = make_call(f"z-{number}", 1, [1], [2], n_tools=1)
            await add(store, name, [call], closed=number, task=title, metadata={"title": title})
        source = source_of(store)
        shape = Shape(adapters=every)
        return await make_dataset(source, await plan(source, names), tmp_path / "d", shape)

    manifest = in_store(tmp_path / "s.duckdb", work, full=False)
    write_zip(tmp_path / "d", manifest, tmp_path / "d.zip")
    with zipfile.ZipFile(tmp_path / "d.zip") as opened:
        entries = opened.namelist()
        assert opened.testzip() is None
    assert len({entry.lower() for entry in entries}) == len(entries)
    assert {f"said/{name}.json" for name in names} <= set(entries)
    for entry in entries:
        assert not entry.startswith("/")
        assert ".." not in entry.split("/")
    unpack(tmp_path / "d.zip", tmp_path / "back")
    row = check_dataset(tmp_path / "back", adapters_of)
    assert row.ok


def _zip(entries: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in entries.items():
            opened.writestr(name, data)
    return made.getvalue()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"a.txt": b"x"}, "it is no dataset"),
        ({MANIFEST: b"{}"}, "not that of a dataset"),
        ({"../out": b"x"}, "does not name '../out'"),
        ({"/etc/out": b"x"}, "does not name '/etc/out'"),
        ({"README.md": b"0" * (17 * 1024 * 1024)}, "larger than it may be"),
    ],
)
def test_what_is_no_dataset_is_said_and_nothing_else_is_unpacked(
    made: Path, tmp_path: Path, entries: dict[str, bytes], words: str
) -> None:
    if "does not name" in words or "larger" in words:
        entries = {MANIFEST: (made / MANIFEST).read_bytes()} | entries
    (tmp_path / "d.zip").write_bytes(_zip(entries))
    with pytest.raises(InvalidValue, match=words):
        unpack(tmp_path / "d.zip", tmp_path / "in" / "back")
    assert not (tmp_path / "in" / "out").exists()


def test_a_file_larger_than_its_manifest_says_is_refused(made: Path, tmp_path: Path) -> None:
    document = orjson.loads((made / MANIFEST).read_bytes())
    name = document["configs"]["rollouts"]["files"][0]["path"]
    bomb = _zip({MANIFEST: (made / MANIFEST).read_bytes(), name: b"\0" * 50_000_000})
    (tmp_path / "d.zip").write_bytes(bomb)
    with pytest.raises(InvalidValue, match="larger than it may be"):
        unpack(tmp_path / "d.zip", tmp_path / "back")


def test_no_zip_at_all_is_said(tmp_path: Path) -> None:
    (tmp_path / "d.zip").write_bytes(b"PK\x03\x04 no")
    with pytest.raises(InvalidValue, match="no zip file"):
        unpack(tmp_path / "d.zip", tmp_path / "back")

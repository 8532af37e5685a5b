"""A dataset that somebody forged with every digest made to fit is never called sound."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from explorer.errors import ConfigurationError, HubConflict, InvalidValue
from explorer.export.card.card import card_text
from explorer.export.dataset.manifest import CARD, MANIFEST, parse_manifest
from explorer.export.publishing.checking import check_folder
from explorer.export.publishing.procedure import Order, Prepared, prepare
from explorer.records import RolloutId
from explorer.store.duckdb_store import DuckDBStore
from tests.export.cards import CHOICE
from tests.export.datasets import ALL, FORKED, ODD, PLAIN, source_of
from tests.export.test_dataset_files import in_store
from tests.export.test_publishing_procedure import held, place, published

FORMATS = ("sft", "grpo", "calls_jsonl", "custody", "summary", "training_traces")


async def _prepared(
    store: DuckDBStore, folder: Path, names: tuple[RolloutId, ...], old: Prepared | None
) -> Prepared:
    return await prepare(
        source_of(store),
        Order(names, CHOICE, FORMATS),
        folder,
        old=None if old is None else old.manifest,
        told=lambda _: None,
        stop=threading.Event(),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("forged")

    async def work(store: DuckDBStore) -> Prepared:
        return await _prepared(store, root / "data", ALL, None)

    in_store(root / "s.duckdb", work)
    assert check_folder(root / "data").ok
    return root / "data"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "data")
    return tmp_path / "data"


def _document(folder: Path) -> Any:
    return orjson.loads((folder / MANIFEST).read_bytes())


def _keep(folder: Path, document: Any) -> None:
    """The manifest, with a card that goes with it where one can be made."""
    raw = orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"
    (folder / MANIFEST).write_bytes(raw)
    try:
        card = card_text(parse_manifest(raw), CHOICE, None)
    except (InvalidValue, ValueError, KeyError):
        return
    (folder / CARD).write_text(card, encoding="utf-8")


def _file(folder: Path, name: str, raw: bytes, rows: int, suffix: str) -> dict[str, Any]:
    digest = hashlib.sha256(raw).hexdigest()
    path = f"{name}-{digest[:16]}.{suffix}"
    (folder / path).write_bytes(raw)
    return {
        "path": path,
        "rows": rows,
        "row_groups": 1,
        "size": len(raw),
        "sha256": digest,
    }


def _problems(folder: Path) -> tuple[str, ...]:
    """What the check says; a folder that it refuses outright is no dataset either."""
    try:
        report = check_folder(folder)
    except InvalidValue as error:
        return (error.message,)
    return report.problems


def _parquet(table: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _other_table(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    document = _document(folder)
    entry = document["extras"][name]
    old = folder / entry["files"][0]["path"]
    table = change(pq.read_table(old))
    old.unlink()
    entry["files"] = [
        _file(folder, f"{name}/part-00000", _parquet(table), table.num_rows, "parquet")
    ]
    _keep(folder, document)


# -- each forgery


def _column_more(folder: Path) -> None:
    """Trainers take columns by their names."""

    def change(table: Any) -> Any:
        ids = table.column("input_ids").to_pylist()
        ones = pa.array([[1] * len(row) for row in ids], pa.list_(pa.int8()))
        return table.append_column("completion_mask", ones)

    _other_table(folder, "sft", change)


def _column_twice(folder: Path) -> None:
    def change(table: Any) -> Any:
        return table.append_column("labels", table.column("input_ids"))

    _other_table(folder, "sft", change)


def _columns_moved(folder: Path) -> None:
    _other_table(folder, "sft", lambda table: table.select(table.column_names[::-1]))


def _extra_rows(folder: Path) -> None:
    document = _document(folder)
    document["extras"]["sft"]["rows"] += 1000
    _keep(folder, document)


def _extra_file_rows(folder: Path) -> None:
    document = _document(folder)
    document["extras"]["sft"]["files"][0]["rows"] = 0
    _keep(folder, document)


def _layout(folder: Path) -> None:
    document = _document(folder)
    document["extras"]["sft"]["layout"] = "lines"
    _keep(folder, document)


def _layout_unknown(folder: Path) -> None:
    document = _document(folder)
    document["extras"]["sft"]["layout"] = "zip"
    _keep(folder, document)


def _texts_denied(folder: Path) -> None:
    document = _document(folder)
    document["extras"]["sft"]["needs_texts"] = True
    _keep(folder, document)


def _reasons_renamed(folder: Path) -> None:
    document = _document(folder)
    reasons = document["mask_reasons"]
    one, two = list(reasons)[:2]
    reasons[one], reasons[two] = reasons[two], reasons[one]
    _keep(folder, document)


def _policy(folder: Path) -> None:
    document = _document(folder)
    (digest,) = document["policies"]
    switches = document["policies"][digest]
    name = next(key for key, value in switches.items() if isinstance(value, bool))
    switches[name] = not switches[name]
    _keep(folder, document)


def _policy_more(folder: Path) -> None:
    document = _document(folder)
    document["policies"]["0" * 64] = {"strict": True}
    _keep(folder, document)


def _policy_gone(folder: Path) -> None:
    document = _document(folder)
    document["policies"] = {}
    _keep(folder, document)


def _part_less_than_nothing(folder: Path) -> None:
    document = _document(folder)
    part = document["parts"][0]
    document["parts"] = [
        part | {"rollouts": part["rollouts"] + 3},
        part | {"rollouts": -3},
    ]
    _keep(folder, document)


def _counted_less_than_nothing(folder: Path) -> None:
    document = _document(folder)
    document["parts"][0]["extras"]["sft"] = -5
    document["parts"][0]["judge_version"] = 1
    _keep(folder, document)


def _unknown_in_a_part(folder: Path) -> None:
    document = _document(folder)
    document["parts"][0]["extras"]["spam"] = 1
    document["parts"][0]["judge_version"] = 1
    _keep(folder, document)


def _format_without_entry(folder: Path) -> None:
    """Rows with other labels, in a folder that the manifest does not name."""
    document = _document(folder)
    del document["extras"]["sft"]
    del document["parts"][0]["extras"]["sft"]
    _keep(folder, document)


def _data_beside(folder: Path) -> None:
    """A reader that is told no files takes whatever it finds."""
    (folder / "data").mkdir()
    shutil.copy(next((folder / "sft").iterdir()), folder / "data" / "train.parquet")


def _data_on_top(folder: Path) -> None:
    shutil.copy(next((folder / "sft").iterdir()), folder / "train.parquet")


def _linked_folder(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(next((folder / "sft").iterdir()), elsewhere / "train.parquet")
    (folder / "sequences" / "more").symlink_to(elsewhere)


def _pipe(folder: Path) -> None:
    """Whoever opens it waits for ever."""
    path = next((folder / "sequences").iterdir())
    path.unlink()
    os.mkfifo(path)


def _endless(folder: Path) -> None:
    path = next((folder / "sequences").iterdir())
    path.unlink()
    path.symlink_to("/dev/zero")


def _texts_hidden(folder: Path) -> None:
    document = _document(folder)
    old = folder / document["configs"]["calls"]["files"][0]["path"]
    table = pq.read_table(old)
    place = table.schema.get_field_index("request")
    told = pa.array(["a secret"] * table.num_rows, table.schema.field(place).type)
    table = table.set_column(place, table.schema.field(place), told)
    old.unlink()
    out = io.BytesIO()
    pq.write_table(table, out)
    document["configs"]["calls"]["files"] = [
        _file(folder, "calls/part-00000", out.getvalue(), table.num_rows, "parquet")
    ]
    assert document["parts"][0]["bodies"] is False
    _keep(folder, document)


def _key_more(folder: Path) -> None:
    document = _document(folder)
    document["configs"]["sequences"]["also"] = ["sft/part-00000.parquet"]
    _keep(folder, document)


def _key_twice(folder: Path) -> None:
    """Readers differ in which of the two they take."""
    raw = (folder / MANIFEST).read_bytes()
    assert raw.startswith(b"{")
    (folder / MANIFEST).write_bytes(b'{"configs": {},' + raw[1:])


def _other_rules(folder: Path) -> None:
    """Every token trains, and nobody is to make the rows again."""

    def change(table: Any) -> Any:
        place = table.schema.get_field_index("labels")
        kind = table.schema.field(place)
        return table.set_column(place, kind, table.column("input_ids").cast(kind.type))

    _other_table(folder, "sft", change)
    document = _document(folder)
    for part in document["parts"]:
        part["judge_version"] = 1
    _keep(folder, document)


FORGERIES = (
    _other_rules,
    _key_more,
    _key_twice,
    _column_more,
    _column_twice,
    _columns_moved,
    _extra_rows,
    _extra_file_rows,
    _layout,
    _layout_unknown,
    _texts_denied,
    _reasons_renamed,
    _policy,
    _policy_more,
    _policy_gone,
    _part_less_than_nothing,
    _counted_less_than_nothing,
    _unknown_in_a_part,
    _format_without_entry,
    _data_beside,
    _data_on_top,
    _linked_folder,
    _pipe,
    _endless,
    _texts_hidden,
)


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda each: each.__name__.strip("_"))
def test_a_forged_dataset_is_not_sound(folder: Path, forge: Callable[[Path], None]) -> None:
    forge(folder)
    assert _problems(folder)


def test_a_rollout_that_stands_in_two_parts_is_found(tmp_path: Path) -> None:
    """Else its tokens train twice."""

    async def work(store: DuckDBStore) -> None:
        old = await _prepared(store, tmp_path / "one", (ODD, FORKED, PLAIN), None)
        again = await _prepared(store, tmp_path / "two", (FORKED,), None)
        one = orjson.loads((tmp_path / "one" / MANIFEST).read_bytes())
        two = orjson.loads((tmp_path / "two" / MANIFEST).read_bytes())
        for kind in ("configs", "extras"):
            for name, entry in two[kind].items():
                for file in entry["files"]:
                    path = file["path"].replace("part-00000", "part-00001")
                    if not (tmp_path / "one" / path).exists():
                        shutil.copy(tmp_path / "two" / file["path"], tmp_path / "one" / path)
                    one[kind][name]["files"].append(file | {"path": path})
                one[kind][name]["rows"] += entry["rows"]
        one["parts"] += two["parts"]
        one["rollouts"] += two["rollouts"]
        for key in ("rollouts", "supervised_tokens"):
            one["counts"][key] += two["counts"][key]
        _keep(tmp_path / "one", one)
        assert old.added == 3
        assert again.added == 1

    in_store(tmp_path / "s.duckdb", work)
    assert _problems(tmp_path / "one")


def _config_gone(document: Any) -> None:
    del document["configs"]["sequences"]


def _config_more(document: Any) -> None:
    document["configs"]["spam"] = document["configs"]["sequences"] | {"rows": 0, "files": []}


def _other_columns(document: Any) -> None:
    document["extras"]["sft"]["schema_sha256"] = "0" * 64


def _other_layout(document: Any) -> None:
    document["extras"]["summary"]["layout"] = "files"


def _fewer_than_none(document: Any) -> None:
    document["parts"][0]["extras"]["sft"] = -1


def _switches(document: Any) -> None:
    (switches,) = document["policies"].values()
    switches["include_subagents"] = not switches["include_subagents"]


@pytest.mark.parametrize(
    "change",
    [_config_gone, _config_more, _other_columns, _other_layout, _fewer_than_none, _switches],
    ids=lambda each: each.__name__.strip("_"),
)
def test_nothing_is_added_to_a_manifest_that_somebody_changed(
    tmp_path: Path, change: Callable[[Any], None]
) -> None:
    """Whoever may write there may have written anything."""
    there = tmp_path / "there"

    async def work(store: DuckDBStore) -> None:
        await published(store, tmp_path / "w", place(there), (PLAIN,), formats=FORMATS)
        document = _document(there)
        change(document)
        (there / MANIFEST).write_bytes(orjson.dumps(document))
        before = held(there)
        with pytest.raises((HubConflict, ConfigurationError), match="under a new name"):
            await published(store, tmp_path / "w", place(there), ALL, formats=FORMATS)
        assert held(there) == before

    in_store(tmp_path / "s.duckdb", work)

"""Datasets in files: written from a real store, read by others, checked alone."""

from __future__ import annotations

import asyncio
import gc
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from explorer.errors import ConfigurationError, InvalidValue
from explorer.export.dataset.checking import check_dataset
from explorer.export.dataset.making import Shape, make_dataset
from explorer.export.dataset.manifest import MANIFEST, read_manifest
from explorer.export.dataset.planning import Plan, plan
from explorer.export.dataset.proof import prove
from explorer.export.dataset.reading import read_rollout
from explorer.export.dataset.rows import batches_of
from explorer.export.dataset.schema import (
    CONFIGS,
    DATASET_SCHEMA_VERSION,
    METADATA_KEY,
    schema_of,
)
from explorer.export.dataset.writer import DatasetWriter, Limits, ShardWriter
from explorer.records import RolloutId, TokenizerId, VocabularyEntry
from explorer.store.duckdb_store import DuckDBStore
from explorer.store.secret_marks import SecretDecision
from explorer.trace.inputs import hash_inputs
from explorer.trace.policy import DEFAULT_POLICY
from explorer.trace.secret_text import Masker
from explorer.trace.verdict import judge
from tests.export.datasets import (
    ALL,
    FORKED,
    ODD,
    OPEN,
    OPTIONS,
    PLAIN,
    add,
    fill,
    forge,
    source_of,
    table,
    written,
)
from tests.export.test_secrets import IDS, KEY, TOKENIZER, VOCABULARY
from tests.store.making import facts
from tests.trace.build import CERTIFIED, make_call

SMALL = Limits(row_group_bytes=1, shard_bytes=1)


def in_store(
    path: Path, work: Callable[[DuckDBStore], Awaitable[Any]], *, full: bool = True
) -> Any:
    """Runs `work` with a store, which holds the four rollouts if it is to be `full`."""

    async def run() -> Any:
        store = DuckDBStore(path, OPTIONS)
        try:
            if full:
                await fill(store)
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of all of them, with bodies; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("datasets")
    in_store(folder / "s.duckdb", lambda store: written(store, folder / "data", bodies=True))
    return folder / "data"


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def test_rows_stand_in_the_order_of_the_seals_and_what_is_left_out_is_told(made: Path) -> None:
    manifest = read_manifest(made)
    assert [entry.rollout_id for entry in manifest.rollouts] == [ODD, FORKED, PLAIN]
    assert [(item.rollout_id, item.code) for item in manifest.excluded] == [
        (OPEN, "rollout_open")
    ]
    for config in ("rollouts", "calls", "sequences"):
        names = table(made, config).column("rollout_id").to_pylist()
        assert names == sorted(names, key=[ODD, FORKED, PLAIN].index)
    rewards = table(made, "rollouts").column("reward").to_pylist()
    assert rewards == [0.0, 0.5, None]
    assert table(made, "sequences").column("reward").to_pylist() == [0.5, 0.5, None]
    by_id = {entry.rollout_id: entry for entry in manifest.rollouts}
    assert by_id[ODD].reasons
    assert by_id[ODD].sequences == 0
    assert by_id[ODD].calls == 4
    assert manifest.supervised_tokens == 7 + 3
    assert manifest.policies == {DEFAULT_POLICY.sha256: DEFAULT_POLICY.describe()}


def test_the_files_equal_the_store(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await written(store, tmp_path / "data")
        rollouts, calls = (table(tmp_path / "data", name) for name in ("rollouts", "calls"))
        for name in (ODD, FORKED, PLAIN):
            stored = store.record(name)
            assert stored is not None
            row = rollouts.filter(pc.equal(rollouts["rollout_id"], str(name)))
            mine = calls.filter(pc.equal(calls["rollout_id"], str(name)))
            read = read_rollout(row, mine.combine_chunks().to_batches())
            assert [facts(call) for call in read.record.calls] == [
                facts(call) for call in stored.calls
            ]
            assert read.record.events == stored.events
            assert read.record.certificate == stored.certificate
            assert hash_inputs(read.record, read.policy) == hash_inputs(stored, DEFAULT_POLICY)

    in_store(tmp_path / "s.duckdb", work)


def test_duckdb_reads_the_same_columns_of_nothing_but_null_too(made: Path) -> None:
    for config in CONFIGS:
        expected = table(made, config)
        relation = duckdb.sql(f"SELECT * FROM read_parquet('{made}/{config}/*.parquet')")
        assert relation is not None
        found = relation.to_arrow_table()
        assert found.column_names == expected.column_names
        assert found.num_rows == expected.num_rows
        for name in expected.column_names:
            one, two = found.column(name), expected.column(name)
            # By repr: NaN is equal to itself there.
            assert repr(one.to_pylist()) == repr(two.to_pylist()), name
    calls = table(made, "calls")
    empty = [name for name in calls.column_names if calls[name].null_count == calls.num_rows]
    assert {"reply", "upstream_id", "usage_cached"} <= set(empty)
    assert calls.schema.field("usage_cached").type == pa.int64()


def test_pq_01_a_request_is_the_text_that_was_sent(made: Path) -> None:
    requests = table(made, "calls").column("request").to_pylist()
    told = [orjson.loads(text)["tools"] for text in requests]
    assert {"args": {"a": 1}} in [tools[0] for tools in told]
    assert [tools[0] for tools in told].count({"args": {"b": "x"}}) == 1


def test_pq_02_lower_limits_split_groups_and_files_and_change_no_row(
    made: Path, tmp_path: Path
) -> None:
    def split(store: DuckDBStore) -> Any:
        return written(store, tmp_path / "data", SMALL, bodies=True)

    manifest = in_store(tmp_path / "s.duckdb", split)
    for config, entry in manifest.configs.items():
        assert [file.rows for file in entry.files] == [1] * entry.rows
        assert table(tmp_path / "data", config).to_pylist().__repr__() == repr(
            table(made, config).to_pylist()
        )
    assert check_dataset(tmp_path / "data").problems == ()


def test_pq_02_a_row_group_holds_as_much_as_it_may_and_a_file_too(tmp_path: Path) -> None:
    random = np.random.default_rng(1)

    async def work(store: DuckDBStore) -> Any:
        await store.add_certificate(CERTIFIED)
        names = [RolloutId(f"many-{number:02d}") for number in range(40)]
        for number, name in enumerate(names, 1):
            ids = random.integers(0, 150_000, 500).tolist()
            call = make_call(f"c{number}", 1, ids[:5], ids[5:], n_tools=1)
            await add(store, name, [call], closed=number)
        source = source_of(store)
        limits = Limits(row_group_bytes=40_000, shard_bytes=10_000)
        return await make_dataset(
            source, await plan(source, names), tmp_path / "d", Shape(limits)
        )

    manifest = in_store(tmp_path / "s.duckdb", work, full=False)
    files = manifest.configs["sequences"].files
    assert len(files) > 1
    assert any(file.row_groups > 1 for file in files)
    for file in files:
        whole = pq.read_table(tmp_path / "d" / file.path)
        shape = pq.ParquetFile(tmp_path / "d" / file.path).metadata
        assert shape.num_rows == whole.num_rows == file.rows
        for group in range(shape.num_row_groups):
            assert whole.nbytes / whole.num_rows * shape.row_group(group).num_rows < 50_000
    assert check_dataset(tmp_path / "d").problems == ()


def test_pq_04_each_file_says_its_schema_and_who_wrote_it(made: Path, copied: Path) -> None:
    for config in CONFIGS:
        for file in (made / config).iterdir():
            schema = pq.read_schema(file)
            assert schema.equals(schema_of(config))
            about = orjson.loads(schema.metadata[METADATA_KEY])
            assert about["schema_version"] == DATASET_SCHEMA_VERSION
            assert about["writer"].startswith("rollout-explorer ")
            assert about["mask_reasons"]["0"] == "sampled"
    calls = table(copied, "calls")
    forge(copied, "calls", calls.drop_columns(["weight_version_start"]))
    (problem,) = check_dataset(copied).problems
    assert "another schema" in problem
    forge(copied, "calls", calls.replace_schema_metadata({}))
    (problem,) = check_dataset(copied).problems
    assert "does not say" in problem
    document = orjson.loads((copied / MANIFEST).read_bytes())
    (copied / MANIFEST).write_bytes(orjson.dumps(document | {"schema_version": 2}))
    with pytest.raises(InvalidValue, match="schema version 1, not 2"):
        check_dataset(copied)


def test_the_same_rollouts_give_the_same_bytes_and_names(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await written(store, tmp_path / "one")
        await written(store, tmp_path / "two")
        await written(store, tmp_path / "two")

    in_store(tmp_path / "s.duckdb", work)
    one, two = (
        {
            path.relative_to(root): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }
        for root in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two
    assert len(one) == 4
    # Nothing is left of the work beside them.
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["one", "two"]


def test_a_folder_with_anything_else_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("x")

    async def work(store: DuckDBStore) -> None:
        for name in ("mine", "file"):
            with pytest.raises(ConfigurationError):
                await written(store, tmp_path / name)
        await written(store, tmp_path / "data")
        for place in ("letter.txt", "calls/letter.txt"):
            (tmp_path / "data" / place).write_text("dear")
            with pytest.raises(ConfigurationError, match="letter"):
                await written(store, tmp_path / "data")
            (tmp_path / "data" / place).rename(tmp_path / "mine" / "kept.txt")
        (tmp_path / "data" / MANIFEST).rename(tmp_path / "mine" / MANIFEST)
        with pytest.raises(ConfigurationError, match="part-"):
            await written(store, tmp_path / "data")
        # A disk that takes no more, or a folder that is somebody else's.
        with pytest.raises(ConfigurationError, match="cannot be"):
            await written(store, Path("/dev/full/data"))

    in_store(tmp_path / "s.duckdb", work)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    assert len(list((tmp_path / "data").glob("*/part-*.parquet"))) == 3


def test_ids_that_are_unknown_are_told_and_asked_for_twice_are_written_once(
    tmp_path: Path,
) -> None:
    async def work(store: DuckDBStore) -> Plan:
        return await plan(source_of(store), [PLAIN, RolloutId("who"), PLAIN, RolloutId("who")])

    planned = in_store(tmp_path / "s.duckdb", work)
    assert planned.rollouts == (PLAIN,)
    assert [(item.rollout_id, item.code) for item in planned.excluded] == [("who", "not_found")]


def test_what_goes_while_it_is_written_is_left_out(tmp_path: Path) -> None:
    """Its rows were on disk already; they are in no file that stays."""

    async def work(store: DuckDBStore) -> Any:
        forced = Plan((FORKED, OPEN, RolloutId("gone"), PLAIN), ())
        return await make_dataset(source_of(store), forced, tmp_path / "data")

    manifest = in_store(tmp_path / "s.duckdb", work)
    assert {item.rollout_id: item.code for item in manifest.excluded} == {
        OPEN: "record_inconsistent",
        "gone": "not_found",
    }
    assert [entry.rollout_id for entry in manifest.rollouts] == [FORKED, PLAIN]
    assert check_dataset(tmp_path / "data").problems == ()


# -- secrets -----------------------------------------------------------------------------------

SECRET = RolloutId("told")


async def with_secret(store: DuckDBStore) -> None:
    """A rollout whose ids spell a key, and nothing else does."""
    await store.add_vocabulary(
        [VocabularyEntry(TOKENIZER, each, *VOCABULARY[each]) for each in VOCABULARY]
    )
    call = make_call("s-a", 1, IDS[:8], IDS[8:], n_tools=1)
    await add(store, SECRET, [call], closed=50, tokenizer_id=TokenizerId(TOKENIZER))


def test_sec_02_a_rollout_whose_ids_spell_a_secret_is_left_out_whole(tmp_path: Path) -> None:
    async def work(store: DuckDBStore) -> None:
        await with_secret(store)
        source = source_of(store)
        planned = await plan(source, [SECRET, PLAIN])
        assert planned.rollouts == (PLAIN,)
        assert [(item.rollout_id, item.code) for item in planned.excluded] == [
            (SECRET, "secrets_undecided")
        ]
        # Also where nobody planned.
        forced = Plan((SECRET, PLAIN), ())
        manifest = await make_dataset(source, forced, tmp_path / "data")
        assert [entry.rollout_id for entry in manifest.rollouts] == [PLAIN]
        assert [item.code for item in manifest.excluded] == ["secrets_undecided"]
        for config in CONFIGS:
            assert str(SECRET) not in table(tmp_path / "data", config)["rollout_id"].to_pylist()
        review = source.secrets.review(SECRET)
        assert review is not None
        (found,) = review.secrets
        for number, word in enumerate(("withhold", "release")):
            decided = SecretDecision(
                f"sd_{number}", SECRET, found.finding.finding_id, 0, word, "Ada", "because"
            )
            await source.secrets.decide(decided)
            planned = await plan(source, [SECRET])
            assert (planned.rollouts == (SECRET,)) == (word == "release")
        manifest = await make_dataset(source, planned, tmp_path / "free")
        assert manifest.parts[0].secrets == {
            "rollouts": 1,
            "ids_decoded": 2 * len(IDS),
            "ids_unknown": 0,
        }
        # Decided after the plan: what a person says last counts.
        decided = replace(decided, decision_id="sd_9", decision="withhold")
        await source.secrets.decide(decided)
        manifest = await make_dataset(source, planned, tmp_path / "late")
        assert [item.code for item in manifest.excluded] == ["secrets_undecided"]
        assert manifest.rollouts == ()

    in_store(tmp_path / "s.duckdb", work)
    assert check_dataset(tmp_path / "data").ok
    assert check_dataset(tmp_path / "free").ok


def test_sec_02_the_proof_reads_what_was_written(tmp_path: Path) -> None:
    """Told of nothing but files, it finds the key in them; and only there."""

    async def work(store: DuckDBStore) -> None:
        await with_secret(store)
        writer = DatasetWriter(tmp_path, Limits())
        for name in (SECRET, PLAIN):
            stored = store.record(name)
            assert stored is not None
            for config, rows in batches_of(stored, judge(stored)):
                writer.add(config, rows)
        shards = writer.close()
        proof = prove(tmp_path, shards, lambda _: (VOCABULARY, Masker()))
        assert proof.telling == {SECRET}
        assert proof.rollouts == 2
        free = Masker((), frozenset((KEY.encode(),)))
        assert prove(tmp_path, shards, lambda _: (VOCABULARY, free)).telling == set()
        assert prove(tmp_path, shards, lambda _: ({}, Masker())).decoded == 0

    in_store(tmp_path / "s.duckdb", work)


# -- verify ------------------------------------------------------------------------------------


def test_a_sound_dataset_is_judged_again_whole(made: Path) -> None:
    report = check_dataset(made)
    assert report.problems == ()
    assert report.ok
    assert (report.facts["rollouts"], report.facts["judged_again"]) == (3, 3)
    assert report.facts["supervised_tokens"] == 10
    assert report.facts["left_out"] == ["rollout_open 1"]


def test_any_changed_byte_is_found(made: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    for number in range(12):
        folder = Path(shutil.copytree(made, tmp_path / str(number)))
        files = sorted(folder.glob("*/*.parquet"))
        file = files[number % len(files)]
        raw = bytearray(file.read_bytes())
        raw[int(random.integers(len(raw)))] ^= 1 << int(random.integers(8))
        file.write_bytes(raw)
        report = check_dataset(folder)
        assert not report.ok
        assert file.name in report.problems[0]


def _set(rows: Any, name: str, row: int, value: Any) -> Any:
    """A table with one value changed."""
    values = rows.column(name).to_pylist()
    values[row] = value
    place = rows.column_names.index(name)
    return rows.set_column(place, rows.field(place), pa.array(values, rows.field(place).type))


@pytest.mark.parametrize(
    ("config", "name", "value", "said"),
    [
        ("sequences", "loss_mask", [1, 0, 1, 1, 0, 1, 1], "do not fit together"),
        ("sequences", "mask_reasons", [1, 1, 22, 0, 2, 0, 0], "do not fit together"),
        ("sequences", "token_ids", [1, 2, 3, 4, 5, 6, 8], "not what follows"),
        ("sequences", "token_ids", [1, 2, 3, 4, 5, 6], "different lengths"),
        ("sequences", "logprobs", [None, None, -0.25, None, None, -1.0, -1.0], "without a"),
        (
            "sequences",
            "logprobs",
            [0.0, None, -0.25, -0.25, None, -1.0, -1.0],
            "nobody sampled",
        ),
        ("sequences", "owned", [False, True], "no call of this row sampled"),
        ("sequences", "reward", None, "`reward` is not that"),
        ("sequences", "weight_versions", [None] * 7, "not what follows"),
        ("sequences", "supervised_tokens", 5, "tokens train"),
        ("rollouts", "reward", None, "not what follows"),
        ("rollouts", "trainable", True, "its verdict"),
        ("rollouts", "events", "[]", "open rollout"),
        ("rollouts", "events", "{", "is no JSON"),
        ("calls", "logprobs", [-0.5, 0.0, -9999.0, 0.0], "inputs_sha256"),
        ("calls", "completion", [7, 8, 9, 1], "inputs_sha256"),
        ("calls", "mask_reasons", [0, 0, 0, 0], "not what follows"),
        ("calls", "status", "well", "cannot be read"),
    ],
)
def test_a_changed_value_is_found_with_every_digest_made_to_fit(
    copied: Path, config: str, name: str, value: Any, said: str
) -> None:
    forge(copied, config, _set(table(copied, config), name, 0, value))
    report = check_dataset(copied)
    assert not report.ok
    assert any(said in problem for problem in report.problems), report.problems


def test_a_mask_and_its_reason_changed_together_are_found(copied: Path) -> None:
    """The row keeps every rule; only the record says that the token may not train."""
    rows = table(copied, "sequences")
    rows = _set(rows, "loss_mask", 0, [0, 0, 0, 1, 0, 1, 1])
    rows = _set(rows, "mask_reasons", 0, [1, 1, 23, 0, 2, 0, 0])
    rows = _set(rows, "supervised_tokens", 0, 3)
    forge(copied, "sequences", rows)
    assert any("not what follows" in problem for problem in check_dataset(copied).problems)


def test_nulls_and_bytes_that_are_no_text_are_found(copied: Path) -> None:
    """Somebody's file: nothing in it may stop the check without a word."""
    good = table(copied, "sequences")
    for name, value in (("call_ids", [None, "f-b"]), ("completion_ends", [None, 7])):
        forge(copied, "sequences", _set(good, name, 0, value))
        assert any("not told" in problem for problem in check_dataset(copied).problems)
    forge(copied, "sequences", _set(good, "loss_mask", 0, [0, 0, None, 1, 0, 1, 1]))
    assert any("0 and 1" in problem for problem in check_dataset(copied).problems)
    raw = pa.array([b"\xff\xfe"] * good.num_rows, pa.binary())
    text = pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])
    place = good.column_names.index("rollout_id")
    forge(copied, "sequences", good.set_column(place, good.field(place), text))
    assert any("cannot be read" in problem for problem in check_dataset(copied).problems)


def test_what_the_documentation_says_of_reading_holds(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "export-a-dataset.md"
    blocks = re.findall(r"```py\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(made.parent)
    here: dict[str, Any] = {}
    for block in blocks:
        if "load_dataset" not in block:  # tests/consumers has it
            exec(block, here)
    assert [label for label in here["labels"] if label != -100] == here["trained"]
    for row in table(made, "sequences").to_pylist():
        for name, start in zip(row["call_ids"], row["completion_starts"], strict=True):
            assert here["prompt"](here["calls"][name]) == row["token_ids"][:start]
    (query,) = re.findall(r"```sql\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    relation = duckdb.sql(query)
    assert relation is not None
    assert relation.fetchall() == [("r", 3, 0.25)]


def test_a_span_that_trains_twice_is_found(copied: Path) -> None:
    rows = table(copied, "sequences")
    rows = _set(rows, "owned", 1, [True, True, True])
    rows = _set(rows, "loss_mask", 1, [0, 0, 1, 1, 0, 0, 1, 0, 1, 1])
    rows = _set(rows, "mask_reasons", 1, [1, 1, 0, 0, 2, 2, 0, 2, 0, 0])
    rows = _set(rows, "supervised_tokens", 1, 5)
    forge(copied, "sequences", rows)
    problems = check_dataset(copied).problems
    assert any("call f-a trains in another row" in problem for problem in problems)


@pytest.mark.parametrize("config", ["rollouts", "calls", "sequences"])
@pytest.mark.parametrize("what", ["drop", "twice", "swap"])
def test_a_dropped_doubled_or_moved_row_is_found(copied: Path, config: str, what: str) -> None:
    rows = table(copied, config)
    last = rows.num_rows - 1
    order = {
        "drop": [*range(last)],
        "twice": [*range(last), last, last],
        "swap": [last, *range(last)],
    }[what]
    forge(copied, config, rows.take(order))
    assert not check_dataset(copied).ok


@pytest.mark.parametrize("config", ["rollouts", "calls", "sequences"])
def test_a_missing_and_a_strange_file_are_found(copied: Path, config: str) -> None:
    (file,) = (copied / config).iterdir()
    shutil.copy(file, file.with_name("part-00001-0123456789abcdef.parquet"))
    assert any("does not name" in problem for problem in check_dataset(copied).problems)
    file.unlink()
    assert any("cannot be read" in problem for problem in check_dataset(copied).problems)


def test_a_manifest_that_counts_wrong_or_leads_elsewhere_is_no_dataset(copied: Path) -> None:
    path = copied / MANIFEST
    document = orjson.loads(path.read_bytes())
    calls = document["configs"]["calls"]
    elsewhere = calls | {"files": [calls["files"][0] | {"path": "../x"}]}
    changes: list[dict[str, Any]] = [
        {"counts": document["counts"] | {"supervised_tokens": 11}},
        {"excluded": []},
        {"format": "other"},
        {"rollouts": "none"},
        {"configs": document["configs"] | {"calls": elsewhere}},
    ]
    for change in changes:
        path.write_bytes(orjson.dumps(document | change))
        with pytest.raises(InvalidValue):
            check_dataset(copied)
    path.write_bytes(orjson.dumps(document | {"rollouts": document["rollouts"][:2]}))
    with pytest.raises(InvalidValue):
        check_dataset(copied)
    path.unlink()
    with pytest.raises(InvalidValue, match="no dataset"):
        check_dataset(copied)


def test_a_dataset_of_other_rules_is_not_called_sound(copied: Path) -> None:
    path = copied / MANIFEST
    document = orjson.loads(path.read_bytes())
    document["parts"][0]["judge_version"] = 1
    path.write_bytes(orjson.dumps(document))
    report = check_dataset(copied)
    assert not report.ok
    assert report.facts["judged_again"] == 0
    (problem,) = report.problems
    assert "judged by rules 1" in problem
    assert "the program that wrote it, rollout-explorer" in problem
    rows = table(copied, "sequences")
    forge(copied, "sequences", _set(rows, "loss_mask", 0, [1] * 7), judge_version=1)
    assert not check_dataset(copied).ok


def test_a_full_disk_is_an_error_and_nothing_more(tmp_path: Path, made: Path) -> None:
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "part-00000.writing").symlink_to("/dev/full")
    writer = ShardWriter(tmp_path, "calls", Limits())
    (rows,) = table(made, "calls").combine_chunks().to_batches()
    writer.add(rows)
    with pytest.raises(OSError, match="space"):
        writer.close()
    writer.abandon()
    del writer
    gc.collect()  # what complains while it is collected fails the test
    assert not list((tmp_path / "calls").glob("*.parquet"))


def test_a_config_without_rows_has_a_file_that_tells_its_schema(tmp_path: Path) -> None:
    (shard,) = ShardWriter(tmp_path, "sequences", Limits()).close()
    assert shard.rows == 0
    assert pq.read_schema(tmp_path / shard.path).equals(schema_of("sequences"))
    assert len(ALL) == 4
    assert FORKED in ALL

"""A dataset as the real `datasets` and `polars` read it."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest

from explorer.export.dataset.schema import CONFIGS
from explorer.store.duckdb_store import DuckDBStore
from tests.export.datasets import OPTIONS, fill, table, written

needs_datasets = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None,
    reason="datasets is not installed: `make test-consumers` runs these",
)

needs_polars = pytest.mark.skipif(
    importlib.util.find_spec("polars") is None,
    reason="polars is not installed: `make test-consumers` runs these",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets")

    async def make() -> None:
        store = DuckDBStore(folder / "s.duckdb", OPTIONS)
        await fill(store)
        await written(store, folder / "data")
        await store.close()

    asyncio.run(make())
    return folder / "data"


@needs_datasets
@pytest.mark.parametrize("config", list(CONFIGS))
def test_every_config_is_loaded_with_its_types_and_values(
    made: Path, config: str, tmp_path: Path
) -> None:
    from datasets import load_dataset

    expected = table(made, config)
    found = load_dataset(
        "parquet",
        data_files={"train": f"{made}/{config}/*.parquet"},
        split="train",
        cache_dir=str(tmp_path),
    )
    assert found.column_names == expected.column_names
    rows = found.with_format("arrow")[:]
    for name in expected.column_names:
        assert rows.column(name).type == expected.schema.field(name).type, name
        # By repr: NaN is equal to itself there.
        assert repr(rows.column(name).to_pylist()) == repr(expected.column(name).to_pylist())
    assert repr(found[0]) == repr(expected.slice(0, 1).to_pylist()[0])


@needs_datasets
def test_labels_made_as_the_documentation_says_train_what_the_verdict_trains(
    made: Path, tmp_path: Path
) -> None:
    from datasets import load_dataset

    files = f"{made}/sequences/*.parquet"
    found = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path))
    n_labels = 0
    for row in found:
        labels = [
            each if bit else -100
            for each, bit in zip(row["token_ids"], row["loss_mask"], strict=True)
        ]
        n_labels += sum(label != -100 for label in labels)
        assert row["reward"] is None or row["reward"] == 0.5
    assert (
        n_labels == sum(table(made, "rollouts").column("supervised_tokens").to_pylist()) == 10
    )


@needs_polars
@pytest.mark.parametrize("config", list(CONFIGS))
def test_polars_reads_every_config_with_its_types_and_values(made: Path, config: str) -> None:
    import polars

    expected = table(made, config)
    found = polars.read_parquet(f"{made}/{config}/*.parquet")
    assert found.columns == expected.column_names
    for name in found.columns:
        assert repr(found[name].to_list()) == repr(expected[name].to_pylist()), name
    types = {"rollouts": "reward", "calls": "logprobs", "sequences": "token_ids"}
    wanted = {
        "rollouts": polars.Float64,
        "calls": polars.List(polars.Float32),
        "sequences": polars.List(polars.Int32),
    }
    assert found.schema[types[config]] == wanted[config]

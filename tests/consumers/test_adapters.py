"""Formats beside a dataset, as the real packages read them and train on them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from explorer.demo.group import Outcome
from explorer.export.adapters.registry import ADAPTERS, adapters_of
from explorer.export.dataset.making import Shape, make_dataset
from explorer.export.dataset.manifest import Manifest, read_manifest
from explorer.export.dataset.planning import plan
from explorer.records import RolloutId
from tests.consumers.making import needs_openenv, needs_trl
from tests.consumers.test_dataset import needs_datasets
from tests.consumers.training import config, model_and_tokenizer, rows_of, trainer_class
from tests.docs.markdown import DOCS, fences
from tests.export.datasets import source_of
from tests.live import Live

PAGE = DOCS / "how-to" / "train-from-a-dataset.md"
# verifiers and Harbor want other versions of what is here, so they live beside it.
FORMATS = Path(os.environ.get("ROLLOUT_EXPLORER_FORMATS", ".venv-formats/bin/python"))
READERS = Path(__file__).with_name("foreign")
needs_formats = pytest.mark.skipif(
    not FORMATS.exists(),
    reason="verifiers and harbor are not installed: `make test-consumers` installs them",
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Third parties' deprecations are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def folder(
    live: Live, demo: dict[str, Outcome], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The demo's rollouts in every format, in `data`."""
    made = tmp_path_factory.mktemp("formats")

    async def make() -> Manifest:
        source = source_of(live.store)
        planned = await plan(source, [RolloutId(name) for name in demo])
        shape = Shape(adapters=lambda: adapters_of(ADAPTERS))
        return await make_dataset(source, planned, made / "data", shape)

    asyncio.run_coroutine_threadsafe(make(), live.loop).result(120)
    return made


@pytest.fixture(scope="module")
def total(folder: Path) -> int:
    """Tokens that train, by the verdicts."""
    manifest = read_manifest(folder / "data")
    found = sum(entry.supervised_tokens for entry in manifest.rollouts)
    assert found > 1000
    return found


def load(folder: Path, name: str, cache: Path) -> Any:
    from datasets import load_dataset

    files = f"{folder}/data/{name}/*.parquet"
    return load_dataset("parquet", data_files=files, split="train", cache_dir=str(cache))


# -- datasets -------------------------------------------------------------------------------


@needs_datasets
@pytest.mark.parametrize("name", ["sft", "grpo", "dpo"])
def test_rows_are_loaded_with_their_types_and_values(
    folder: Path, name: str, tmp_path: Path
) -> None:
    found = load(folder, name, tmp_path)
    (file,) = (folder / "data" / name).glob("*.parquet")
    expected = pq.read_table(file)
    assert found.column_names == [column.name for column in ADAPTERS[name].columns]
    assert found.to_list() == expected.to_pylist()
    types = {"ids": "List(Value('int32'))", "logprobs": "List(Value('float32'))"}
    for column in ADAPTERS[name].columns:
        if column.kind in types:
            assert repr(found.features[column.name]) == types[column.kind]


@needs_datasets
@pytest.mark.parametrize("name", ["calls_jsonl", "custody", "verifiers"])
def test_lines_are_loaded_and_not_taken_for_an_agents_session(
    folder: Path, name: str, tmp_path: Path
) -> None:
    from datasets import load_dataset

    files = f"{folder}/data/{name}/*.jsonl"
    found = load_dataset("json", data_files=files, split="train", cache_dir=str(tmp_path))
    (file,) = (folder / "data" / name).glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert found.num_rows == len(lines) > 20
    if name == "calls_jsonl":
        assert found.to_list() == lines
    if name == "custody":
        # To the last digit: digests are made of these.
        assert [row["staged"] for row in found] == [line["staged"] for line in lines]


@needs_datasets
def test_a_session_is_taken_for_one_unless_the_reader_says_otherwise(
    folder: Path, tmp_path: Path
) -> None:
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    files = f"{folder}/data/sessions/*.jsonl"
    with pytest.raises(DatasetGenerationError) as caught:
        load_dataset("json", data_files=files, split="train", cache_dir=str(tmp_path / "one"))
    assert "teich" in str(caught.value.__cause__)
    found = load_dataset(
        "json",
        data_files=files,
        split="train",
        cache_dir=str(tmp_path / "two"),
        parse_agent_traces=False,
    )
    assert {row["type"] for row in found} == {"session", "message"}


@needs_datasets
def test_the_summary_is_a_table(folder: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    files = f"{folder}/data/summary/*.csv"
    found = load_dataset("csv", data_files=files, split="train", cache_dir=str(tmp_path))
    manifest = read_manifest(folder / "data")
    assert found["rollout_id"][:] == [entry.rollout_id for entry in manifest.rollouts]
    assert sum(found["supervised_tokens"]) == sum(
        entry.supervised_tokens for entry in manifest.rollouts
    )


# -- OpenEnv --------------------------------------------------------------------------------


@needs_openenv
def test_openenv_reads_every_training_trace(live: Live, folder: Path, total: int) -> None:
    from explorer.integrations.openenv.package import TrainingTrace

    found = 0
    for file in sorted((folder / "data" / "training_traces").glob("*.json")):
        trace = TrainingTrace.model_validate_json(file.read_bytes())
        found += sum(sum(turn.loss_mask) for turn in trace.turns)
    assert found == total
    same = live.api("GET", f"/api/v1/rollouts/{file.stem}/training-trace")
    assert json.loads(file.read_bytes()) == same


# -- TRL ------------------------------------------------------------------------------------


@needs_trl
def test_the_sft_trainer_supervises_what_the_verdict_trains(
    folder: Path, total: int, weights: Path, tmp_path: Path
) -> None:
    from trl import SFTConfig, SFTTrainer

    rows = load(folder, "sft", tmp_path)

    def supervised(**more: Any) -> int:
        model, tokenizer = model_and_tokenizer(weights)
        given = {"report_to": [], "use_cpu": True, "bf16": False, "max_steps": 1}
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(str(tmp_path / "out"), **given | more),
            train_dataset=rows,
            processing_class=tokenizer,
        )
        trainer.train()
        return sum(
            int((batch["labels"] != -100).sum()) for batch in trainer.get_train_dataloader()
        )

    assert supervised(max_length=None) == total
    # What the how-to page warns of.
    assert supervised(max_length=64) < total / 2


@needs_trl
def test_a_mask_under_the_name_that_trl_has_for_it_trains_everything(
    folder: Path, total: int, weights: Path, tmp_path: Path
) -> None:
    """Why `sft` has labels: by default the trainer ignores `completion_mask`."""
    from trl import SFTConfig, SFTTrainer

    rows = load(folder, "sft", tmp_path).map(
        lambda row: {"completion_mask": [int(label != -100) for label in row["labels"]]},
        remove_columns=["labels"],
    )
    model, tokenizer = model_and_tokenizer(weights)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            str(tmp_path / "out"), report_to=[], use_cpu=True, bf16=False, max_length=None
        ),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    found = sum(
        int((batch["labels"] != -100).sum()) for batch in trainer.get_train_dataloader()
    )
    assert found == sum(map(len, rows["input_ids"])) > 2 * total


def grpo_groups(folder: Path, cache: Path) -> dict[str, list[dict[str, Any]]]:
    """Two rollouts a group, with different rewards."""
    by_group: dict[str, dict[float, dict[str, Any]]] = {}
    for row in load(folder, "grpo", cache):
        by_group.setdefault(row["group"], {})[row["reward"]] = row
    groups = {name: [*found.values()] for name, found in by_group.items() if len(found) > 1}
    assert len(groups) >= 2
    return groups


@needs_trl
@pytest.mark.parametrize("more", [{}, {"off_policy_mask_threshold": 5.0}])
def test_the_grpo_trainer_trains_exactly_the_tokens_of_the_mask(
    folder: Path, weights: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    from datasets import Dataset

    groups = grpo_groups(folder, tmp_path)
    keys = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")

    def replay(prompts: list[str], _: Any) -> dict[str, Any]:
        taken = dict.fromkeys(prompts, -1)
        batch = []
        for name in prompts:
            taken[name] += 1
            batch.append(groups[name][taken[name]])
        return {key: [row[key] for row in batch] for key in keys}

    def recorded(reward: list[float], **_: Any) -> list[float]:
        return reward

    model, tokenizer = model_and_tokenizer(weights)
    trainer = trainer_class()(
        model=model,
        args=config(tmp_path / "out", **more),
        train_dataset=Dataset.from_list([{"prompt": name} for name in groups]),
        processing_class=tokenizer,
        reward_funcs=[recorded],
        rollout_func=replay,
    )
    trainer.train()
    known = {
        (tuple(row["prompt_ids"]), tuple(row["completion_ids"])): row
        for rows in groups.values()
        for row in rows
    }
    supervised = context = 0
    for step in trainer.steps:
        for found in rows_of(step):
            row = known[found["prompt"], found["ids"]]
            assert list(found["mask"]) == row["env_mask"]
            assert [value != 0 for value in found["gradient"]] == [
                bit == 1 for bit in row["env_mask"]
            ]
            assert all(abs(value) < 1e6 for value in found["gradient"]), "no number is no step"
            for captured, logprob in zip(found["captured"], row["logprobs"], strict=True):
                # None reaches the trainer as "no value", which is not 0.
                assert (captured != captured) == (logprob is None)
                assert logprob is None or captured == pytest.approx(logprob, abs=1e-6)
            supervised += sum(row["env_mask"])
            context += len(row["env_mask"]) - sum(row["env_mask"])
    assert supervised > 100
    assert context > 50


@needs_trl
def test_the_dpo_collator_takes_pairs_and_trains_the_answers(
    folder: Path, weights: Path, tmp_path: Path
) -> None:
    from trl import DPOConfig, DPOTrainer

    class PairsOfIds(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset

    pairs = load(folder, "dpo", tmp_path)
    assert pairs.num_rows >= 2
    model, tokenizer = model_and_tokenizer(weights)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer = PairsOfIds(
        model=model,
        args=DPOConfig(
            str(tmp_path / "out"),
            report_to=[],
            use_cpu=True,
            bf16=False,
            max_steps=1,
            max_length=None,
            learning_rate=1e-3,
        ),
        train_dataset=pairs,
        processing_class=tokenizer,
    )
    sampled = sum(len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in pairs)
    batches = list(trainer.get_train_dataloader())
    assert sum(int(batch["completion_mask"].sum()) for batch in batches) == sampled
    trainer.train()
    assert any(
        bool((value.detach() != before[name]).any()) for name, value in model.named_parameters()
    )


@needs_trl
@pytest.mark.parametrize("trainer", ["SFTTrainer(", "GRPOTrainer(", "PairsOfIds("])
def test_what_the_how_to_page_shows_trains(folder: Path, trainer: str) -> None:
    (program,) = [
        content
        for language, content in fences(PAGE.read_text(encoding="utf-8"))
        if language == "python" and f"\n{trainer}" in content
    ]
    (folder / "program.py").write_text(program, encoding="utf-8")
    keep = {"PATH", "HOME", "PYTHONPATH", "LANG"}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name in keep}
        | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'train_loss'" in done.stdout


# -- verifiers and Harbor, each in its own environment --------------------------------------


def foreign(program: str, *given: str) -> dict[str, Any]:
    """What a program says that the other environment runs."""
    done = subprocess.run(
        [str(FORMATS), str(READERS / program), *given],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_formats
def test_verifiers_reads_every_episode_and_would_train_the_same_tokens(
    folder: Path, total: int
) -> None:
    (file,) = (folder / "data" / "verifiers").glob("*.jsonl")
    found = foreign("read_verifiers.py", str(file))
    manifest = read_manifest(folder / "data")
    assert found["ids"] == [entry.rollout_id for entry in manifest.rollouts]
    assert found["trained"] == total
    assert found["trainable"] == sum(entry.trainable for entry in manifest.rollouts)
    rows = pq.read_table(folder / "data" / "rollouts").to_pylist()
    assert found["rewards"] == [row["reward"] for row in rows]
    assert found["groups"] == [row["group"] for row in rows]
    # Every path is the sequence of its last call; every one in `sequences` is among them.
    for row in pq.read_table(folder / "data" / "sequences").to_pylist():
        assert any(
            path[: row["length"]] == row["token_ids"]
            for path in found["paths"][row["rollout_id"]]
        )


@needs_formats
def test_harbor_validates_every_trajectory(folder: Path) -> None:
    found = foreign("read_harbor.py", str(folder / "data" / "atif"))
    calls = pq.read_table(folder / "data" / "calls").to_pylist()
    answered = {row["call_id"]: row for row in calls if row["completion"] is not None}
    assert found["files"] == len(list((folder / "data" / "atif").glob("*.json"))) > 28
    assert sorted(found["calls"]) == sorted(answered)
    with_ids = {name: ids for name, ids in found["calls"].items() if ids is not None}
    assert len(with_ids) > 28
    for name, ids in with_ids.items():
        assert ids == answered[name]["completion"]
        assert set(answered[name]["mask_reasons"]) == {0}

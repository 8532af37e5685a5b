"""What a dataset costs beside a bare Parquet write of the same arrays.

    python -m benchmarks.dataset [--rollouts 1000] [--tokens 10000] [--calls 20] [--rounds 3]

Rollouts of `tokens` tokens in `calls` calls that continue each other, judged one after the
other. Parts, each in a process of its own: `ours` writes the dataset's three configs (rows
made, hashed, written; the judge and the evidence for the card are counted apart), `bare`
writes the same arrays with the same Parquet options and nothing else. They take turns, since
other work on the machine slows both; the median of the rounds' ratios counts. Aims: at most
1.5 of its time, and under 300 MB in all.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.export import our_record
from explorer.export.dataset.facts import Facts
from explorer.export.dataset.rows import Gatherer
from explorer.export.dataset.schema import CONFIGS, dictionary_columns, schema_of
from explorer.export.dataset.writer import DatasetWriter, Limits
from explorer.records import IdArray, LogprobArray, RolloutRecord
from explorer.trace.verdict import judge

RATIO_AIM = 1.5
MEMORY_AIM_MB = 300.0


def records(rollouts: int, tokens: int, calls: int) -> Iterator[RolloutRecord]:
    """Rollouts whose tokens differ; made one by one, as a store gives them."""
    random = np.random.default_rng(7)
    whole = our_record(calls, tokens)
    for _ in range(rollouts):
        yield replace(
            whole,
            calls=tuple(
                replace(
                    call,
                    prompt_delta=_ids(random, call.prompt_delta),
                    completion=_ids(random, call.completion),
                    logprobs=_logprobs(random, call.completion),
                )
                for call in whole.calls
            ),
        )


def _ids(random: np.random.Generator, like: IdArray | None) -> IdArray:
    """As many ids, the frequent ones often, as in text."""
    assert like is not None
    drawn = random.zipf(1.3, like.size) % 150_000
    return drawn.astype(np.int32)


def _logprobs(random: np.random.Generator, like: IdArray | None) -> LogprobArray:
    assert like is not None
    return -random.exponential(0.7, like.size).astype(np.float32)


def stored(record: RolloutRecord) -> int:
    """Tokens of a rollout, each once."""
    return sum(
        array.size
        for call in record.calls
        for array in (call.prompt_delta, call.completion)
        if array is not None
    )


@dataclass(frozen=True)
class Spent:
    """CPU seconds."""

    dataset: float
    judge: float
    evidence: float
    tokens: int


def ours(folder: Path, rollouts: int, tokens: int, calls: int) -> Spent:
    """As a dataset is written."""
    spent = judged = told = 0.0
    facts = Facts()
    n_tokens = 0
    writer = DatasetWriter(folder, Limits())
    gatherer = Gatherer(writer.add)
    for record in records(rollouts, tokens, calls):
        n_tokens += stored(record)
        start = time.process_time()
        judgement = judge(record)
        judged += time.process_time() - start
        start = time.process_time()
        gatherer.add(record, judgement)
        spent += time.process_time() - start
        start = time.process_time()
        facts.add(record, judgement)
        told += time.process_time() - start
    start = time.process_time()
    gatherer.finish()
    writer.close()
    spent += time.process_time() - start
    start = time.process_time()
    facts.to_json()
    return Spent(spent, judged, told + time.process_time() - start, n_tokens)


class Bare:
    """Writes the same arrays, a row group at a time, and counts only that."""

    def __init__(self, folder: Path) -> None:
        self.spent = 0.0
        self._held: dict[str, list[Any]] = {config: [] for config in CONFIGS}
        self._sizes = dict.fromkeys(CONFIGS, 0)
        folder.mkdir()
        self._writers = {
            config: pq.ParquetWriter(
                folder / f"{config}.parquet",
                schema_of(config),
                compression="zstd",
                use_dictionary=dictionary_columns(CONFIGS[config]),
                use_content_defined_chunking=True,
                write_page_index=True,
            )
            for config in CONFIGS
        }

    def add(self, config: str, rows: Any) -> None:
        if self._sizes[config] + rows.nbytes > Limits().row_group_bytes:
            self._write(config)
        self._held[config].append(rows)
        self._sizes[config] += rows.nbytes

    def _write(self, config: str) -> None:
        start = time.process_time()
        if self._held[config]:
            table = pa.Table.from_batches(self._held[config])
            self._writers[config].write_table(table, row_group_size=table.num_rows)
        self._held[config], self._sizes[config] = [], 0
        self.spent += time.process_time() - start

    def close(self) -> None:
        for config, writer in self._writers.items():
            self._write(config)
            start = time.process_time()
            writer.close()
            self.spent += time.process_time() - start


def bare(folder: Path, rollouts: int, tokens: int, calls: int) -> Spent:
    """The same arrays, made while the clock stands."""
    n_tokens = 0
    writer = Bare(folder)
    gatherer = Gatherer(writer.add)
    for record in records(rollouts, tokens, calls):
        n_tokens += stored(record)
        gatherer.add(record, judge(record))
    gatherer.finish()
    writer.close()
    return Spent(writer.spent, 0.0, 0.0, n_tokens)


def measure(part: str, rollouts: int, tokens: int, calls: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "data"
        run = {"ours": ours, "bare": bare}[part]
        spent = run(folder, rollouts, tokens, calls)
        written = sum(file.stat().st_size for file in folder.rglob("*.parquet"))
    return {
        "part": part,
        "seconds": spent.dataset,
        "judge_s": spent.judge,
        "evidence_s": spent.evidence,
        "tokens": spent.tokens,
        "bytes": written,
        "maxrss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=("ours", "bare"))
    args = parser.parse_args()
    sizes = (args.rollouts, args.tokens, args.calls)
    if args.part:
        print(json.dumps(measure(args.part, *sizes)))
        return
    rounds = [
        {part: measured(part, *sizes) for part in ("bare", "ours")} for _ in range(args.rounds)
    ]
    report(rounds, sizes[0])


def measured(part: str, *sizes: int) -> dict[str, Any]:
    """One part in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.dataset", "--part", part]
    for name, value in zip(("rollouts", "tokens", "calls"), sizes, strict=True):
        command += [f"--{name}", str(value)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def report(rounds: list[dict[str, dict[str, Any]]], rollouts: int) -> None:
    """Medians over the rounds."""

    def middle(part: str, name: str) -> float:
        return float(statistics.median(each[part][name] for each in rounds))

    print(f"{rollouts} rollouts, {rounds[0]['ours']['tokens']:,} tokens, {len(rounds)} rounds")
    memory = 0.0
    for part in ("bare", "ours"):
        memory = max(each[part]["maxrss_mb"] for each in rounds)
        print(
            f"  {part:<5} {middle(part, 'seconds'):7.2f} CPU s  "
            f"{middle(part, 'bytes') / 1e6:8.1f} MB on disk  {memory:6.0f} MB of memory at most"
        )
    print(
        f"  not counted above: the judge {middle('ours', 'judge_s'):.2f} CPU s, the evidence "
        f"for the card {middle('ours', 'evidence_s'):.2f} CPU s"
    )
    ratios = sorted(each["ours"]["seconds"] / each["bare"]["seconds"] for each in rounds)
    print(
        f"  ours / bare: {statistics.median(ratios):.2f} (aim at most {RATIO_AIM}; "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f})"
    )
    print(f"  memory: {memory:.0f} MB (aim under {MEMORY_AIM_MB:.0f})")
    assert np.isfinite(ratios).all()


if __name__ == "__main__":
    main()

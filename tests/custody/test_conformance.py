"""The golden vectors, their check, and that the core stands alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from explorer.custody import conformance

ROOT = Path(__file__).parents[2]

ALONE = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        inside = name == "explorer" or name.startswith("explorer.custody")
        if top == "explorer" and not inside:
            raise ImportError(f"{name} is blocked")
        if top not in sys.stdlib_module_names and top not in ("explorer", "numpy"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import explorer.custody
names = [m.name for m in pkgutil.iter_modules(explorer.custody.__path__)]
for name in names:
    importlib.import_module(f"explorer.custody.{name}")
from explorer.custody.conformance import assert_golden_vectors
print(len(names), assert_golden_vectors())
for blocked in ("explorer.errors", "pydantic"):
    try:
        importlib.import_module(blocked)
    except ImportError:
        print("blocked")
"""


def test_the_core_is_imported_and_proved_with_everything_else_blocked() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules, vectors, *blocked = done.stdout.split()
    assert int(modules) == len(list((ROOT / "explorer/custody").glob("[!_]*.py")))
    assert int(vectors) == conformance.assert_golden_vectors()
    assert blocked == ["blocked", "blocked"]


def test_published_and_doubly_confirmed_vectors_are_in_the_file() -> None:
    text = conformance.PATH.read_text()
    for digest in (
        # Published by NeMo Gym.
        "032024e899456be6e9a78c6d0399c5112d2ca7fa18d4ea9cf0d8cb7d0094f3a3",
        "1122c7fe7e914c809eb9b1c09b26d94a50c1eb2790e7430fbcd8363b846ccf27",
        # Extras, cumulative and chain hashes, staged calls.
        "a1edc33c107616cf344faf0103daa025cfb125f8e1c784ae5f6a49faf2b768b6",
        "1fd859b283c766e508af525e02edd53f1861163b644f36caccdb8b2316f52e77",
        "17088fc6f8fd317bf02bd83e106f7ca2dfb7b9cfc63927c2387d4c87f29578ef",
        "9901d8eb23d4383dc2f1a0aac0deca59b6c27071f8d4131997f8f4a0e692cfb8",
        "48e57a14b92bae4715336b34ecfc6570ae173a5248b845655d1446592c7c26c6",
        "64331b75313b5ac2083d786ede9ede247c96fbab1e04936effd04b22888993ab",
        "00575c206500c97d8c2c1759a894b558b4b4b7268a2c18e5aebb48982a625311",
        "ebe99f9dc77cafc797d08485d3cf867322858c9150698e9eeb8506d7a75e39a5",
        # Fingerprints.
        "c148be3ce2173664b9fa3d998a55c9677e386a55542a193f68630311208a7f71",
        "347662b1ef5564b5dce6f92401fe57a7e55bfad0886a3ffa75af867af0a92dec",
        "706943bb85be0e6410755902bc9407035765b066ed713ced797de6012aefff3b",
        "edd3713968ca572ae44468ff61fabbec572e8de247023892e8bdf0f55aa8cb9f",
    ):
        assert text.count(digest) >= 1, digest


@pytest.mark.parametrize(
    "place",
    [
        ("extras", 0, "digest"),
        ("cumulative", 1, "digest"),
        ("chain", 1, "digest"),
        ("float32", 2, "encoded"),
        ("staged_calls", 1, "digest"),
        ("arguments", 3, "canonical"),
        ("fingerprints", 0, "assistant"),
        ("fingerprints", 0, "conversation"),
        ("receipts", "cases", 1, "code"),
    ],
)
def test_a_mismatch_in_any_kind_of_vector_is_found(
    place: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = conformance.load_golden_vectors()
    target: Any = vectors
    for step in place[:-1]:
        target = target[step]
    target[place[-1]] = "0" + target[place[-1]][1:] if target[place[-1]][0] != "0" else "1"
    changed = tmp_path / "vectors.json"
    changed.write_text(json.dumps(vectors))
    monkeypatch.setattr(conformance, "PATH", changed)
    with pytest.raises(conformance.ConformanceError, match="vector_mismatch"):
        conformance.assert_golden_vectors()


# Not `wrong_model_call_id`, which the order check precedes, nor `empty_training_row`.
CODES = {
    *("unsupported_schema", "unsupported_digest", "unsupported_extras_digest"),
    *("rollout_failed", "capture_poisoned", "empty_manifest", "duplicate_manifest_row"),
    *("duplicate_staging_key", "row_count_mismatch", "duplicate_snapshot", "wrong_rollout"),
    *("snapshot_identity_mismatch", "snapshot_order_mismatch", "wrong_parent_call_id"),
    *("wrong_mode", "wrong_prev_len", "wrong_delta_len", "wrong_cum_len", "wrong_digest"),
    *("wrong_weight_version", "wrong_extras_digest", "wrong_chain_hash"),
    *("wrong_cumulative_hash", "wrong_schema_version", "wrong_digest_version"),
    *("wrong_extras_digest_version", "invalid_snapshot", "corrupt_digest", "missing_parent"),
    *("parent_length_mismatch", "lineage_cycle", "missing_terminal", "chain_hash_mismatch"),
    *("invalid_mask_order", "empty_generation", "cumulative_hash_mismatch"),
}


def test_every_code_of_the_verifier_has_a_vector() -> None:
    cases = conformance.load_golden_vectors()["receipts"]["cases"]
    assert {case["code"] for case in cases} == CODES | {None}

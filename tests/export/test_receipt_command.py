"""Receipts as a program gets them, and `verify --receipts --key`."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from explorer.engine.scripted import ScriptedEngine
from explorer.export.signing import PrivateKey
from explorer.records import RolloutId
from explorer.store.duckdb_store import DuckDBStore
from explorer.trace.audit import capture_audit
from explorer.trace.audit_reader import read_audit
from explorer.trace.verdict import judge
from tests.export.datasets import OPTIONS, add
from tests.export.test_dataset_command import command
from tests.export.test_sealing import pem
from tests.live import serving
from tests.trace.build import CERTIFIED, make_call

NAME = RolloutId("01990000-0000-7000-8000-0000000000aa")


@pytest.fixture
def files(made: Path, tmp_path: Path) -> Path:
    """A copy of `made`."""
    shutil.copytree(made, tmp_path / "files")
    return tmp_path / "files"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`audit.json`, `receipts.json` and `public.pem` of a server that signs."""
    tmp_path = tmp_path_factory.mktemp("receipts")
    private = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(pem(private))
    (tmp_path / "public.pem").write_text(PrivateKey(private).public.pem)
    store = DuckDBStore(tmp_path / "s.duckdb", OPTIONS)

    async def fill() -> None:
        await store.add_certificate(CERTIFIED)
        first = make_call("a", 1, [1, 2], [3, 4], response_id="r-a", n_tools=1)
        second = make_call(
            "b", 2, [1, 2, 3, 4, 5], [6], parent=first, response_id="r-b", n_tools=1
        )
        await add(store, NAME, [first, second], closed=1000, reward=0.5)
        await store.close()

    asyncio.run(fill())
    engine = ScriptedEngine([{"text": "x"}])
    with serving(engine, tmp_path / "s.duckdb", receipt_key=tmp_path / "key.pem") as served:
        base = f"{served.url}/api/v1/rollouts/{NAME}"
        for name in ("receipts", "capture-audit"):
            reply = httpx.get(
                f"{base}/{name}", headers={"authorization": f"Bearer {served.token}"}
            )
            assert reply.status_code == 200, reply.text
            (tmp_path / f"{name.rpartition('-')[2]}.json").write_bytes(reply.content)
    return tmp_path


def verified(folder: Path, *more: str | Path) -> tuple[int, Any]:
    done = command(
        "verify", folder / "audit.json", "--receipts", folder / "receipts.json", "--json", *more
    )
    return done.exit_code, json.loads(done.output)[0]


def test_a_receipt_is_verified_link_by_link_with_the_public_key(files: Path) -> None:
    told = orjson.loads((files / "receipts.json").read_bytes())
    (receipt,) = told["receipts"]
    assert (receipt["state"], receipt["signed"]) == ("as issued", "good")
    assert receipt["receipt"]["reward"] == 0.5
    assert receipt["receipt"]["terminal_model_call_id"] == "b"
    assert "token_ids" not in (files / "receipts.json").read_text()
    status, report = verified(files, "--key", files / "public.pem")
    assert status == 0, report
    assert report["facts"]["receipts_signed"] == 1
    assert report["facts"]["receipts_rebuilt"] == 1
    assert report["facts"]["links_that_hold"] == 2
    status, report = verified(files)
    assert status == 0
    assert any("--key" in note for note in report["notes"])


def _rewritten(folder: Path, change: Any) -> None:
    """An audit of another record that holds together by itself: only its receipts tell."""
    document = orjson.loads((folder / "audit.json").read_bytes())
    change(document)
    read = read_audit(document)
    made = b"".join(capture_audit(read.record, judge(read.record, read.policy)))
    (folder / "audit.json").write_bytes(made)
    assert command("verify", folder / "audit.json").exit_code == 0


def _reward(document: Any) -> None:
    for event in document["events"]:
        if event["kind"] == "closed":
            event["reward"] = 1.0


def _logprob(document: Any) -> None:
    document["calls"][1]["per_token_logps"][0] = -0.125


@pytest.mark.parametrize("change", [_reward, _logprob])
def test_a_forged_but_consistent_record_shows(files: Path, change: Any) -> None:
    _rewritten(files, change)
    status, report = verified(files, "--key", files / "public.pem")
    assert status == 1
    assert any("changed since it was issued" in words for words in report["problems"])
    # With receipts made to fit, the signature is missing.
    told = orjson.loads((files / "receipts.json").read_bytes())
    forged = orjson.loads((files / "audit.json").read_bytes())["custody"]["receipts"][0]
    told["receipts"][0]["sha256"] = forged["sha256"]
    content = told["receipts"][0]["receipt"]
    content["reward"] = forged["reward"]
    (files / "receipts.json").write_bytes(orjson.dumps(told))
    status, report = verified(files, "--key", files / "public.pem")
    assert status == 1
    assert any("signature is not of this key" in words for words in report["problems"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told.update(rollout_id="x"), "of another rollout"),
        (lambda told: told["receipts"].clear(), "was due"),
        (lambda told: told["receipts"][0].update(number=3), "no receipt of this number"),
        (lambda told: told["receipts"][0].update(sha256="0" * 64), "not that of its content"),
        (lambda told: told["receipts"][0].update(signature=None), "it is not signed"),
        (
            lambda told: told["receipts"][0]["signature"].update(key_id="other"),
            "signed by another key",
        ),
        (lambda told: told["receipts"][0].update(receipt={}), None),
        (lambda told: told["receipts"][0].update(signature="x"), None),
        (lambda told: told.update(receipts=5), None),
        (lambda told: told.update(receipts=[5]), None),
    ],
)
def test_receipts_that_do_not_fit_are_told(files: Path, change: Any, words: str | None) -> None:
    told = orjson.loads((files / "receipts.json").read_bytes())
    change(told)
    (files / "receipts.json").write_bytes(orjson.dumps(told))
    status, report = verified(files, "--key", files / "public.pem")
    assert status == 1
    if words is None:
        assert report["kind"] == "unreadable"
    else:
        assert any(words in problem for problem in report["problems"]), report["problems"]


def test_what_goes_with_what_is_said(files: Path) -> None:
    done = command("verify", files / "audit.json", "--key", files / "public.pem")
    assert done.exit_code == 2
    assert "--receipts" in done.stderr
    # A set, or an id, has none of its own: nothing would be looked at.
    for beside in ("--receipts", "--against"):
        done = command("verify", files, beside, files / "receipts.json")
        assert done.exit_code == 2
        assert "is no single document" in done.stderr

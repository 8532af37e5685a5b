"""Imported rollouts in a real store, through the API, the pages and the command."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from explorer import runfile
from explorer.cli import cli
from explorer.engine.tiny import TinyEngine
from explorer.records import NULL_LOGPROB_BITS
from tests.export.test_readers import DATA, TRIAL, bundle
from tests.live import Live, serving

TABS = ("conversation", "tokens", "timing", "requests", "group", "provenance", "findings")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("importing") / "store.duckdb"
    # The most generous server there can be: it takes an engine's word for its logprobs.
    with serving(TinyEngine(), store, allow_uncertified=True) as running:
        yield running


def post(live: Live, data: bytes, **query: str) -> httpx.Response:
    return httpx.post(
        f"{live.url}/api/v1/imports",
        params=query,
        content=data,
        headers={"authorization": f"Bearer {live.token}"},
        timeout=60,
    )


def imported(live: Live, data: bytes, **query: str) -> list[str]:
    """Ids of the rollouts of a file, whoever imported it first."""
    answer = post(live, data, **query)
    assert answer.status_code in (200, 201), answer.text
    found: list[str] = [*answer.json()["imported"], *answer.json()["known"]]
    return found


def file(name: str) -> bytes:
    return (DATA / name).read_bytes()


EVERY = {
    "openenv-training-trace.json": "tokens",
    "openenv-trace-entries.json": "tokens",
    "verifiers-traces.jsonl": "tokens",
    "atif-ids.json": "tokens",
    "atif-text.json": "text",
    "trl-completions.parquet": "text",
    "trial": "tokens",
}


def data_of(name: str) -> bytes:
    return bundle() if name == "trial" else file(name)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_imported_trains_whatever_anybody_accepts(live: Live, name: str) -> None:
    for rollout_id in imported(live, data_of(name), file=name):
        for kind in ("accept_logprobs", "accept_versions"):
            decision = {"kind": kind, "reason": "a test"}
            live.api("POST", f"/api/v1/rollouts/{rollout_id}/overrides", decision, status=201)
        shown = live.api("GET", f"/api/v1/rollouts/{rollout_id}")
        assert shown["verdict"]["trainable"] is False
        assert shown["verdict"]["supervised_tokens"] == 0
        reasons = {reason["code"]: reason["message"] for reason in shown["verdict"]["reasons"]}
        assert "was imported from a file" in reasons["imported"]
        masks = name.startswith(("openenv", "verifiers"))
        relay = not any(call["completion_len"] for call in live.calls(rollout_id))
        if not relay:
            said = "imported without explicit loss masks" in reasons["imported"]
            assert said is not masks
        trace = f"/api/v1/rollouts/{rollout_id}/training-trace"
        assert live.api("GET", trace, status=409)["error"]["code"] == "not_trainable"
        audit = live.api("GET", f"/api/v1/rollouts/{rollout_id}/capture-audit")
        assert json.dumps(audit).count('"imported"') >= 1


@pytest.mark.parametrize("name", EVERY)
def test_every_tab_shows_it(live: Live, name: str) -> None:
    rollout_id = imported(live, data_of(name), file=name)[0]
    for tab in TABS:
        page = httpx.get(f"{live.url}/rollouts/{rollout_id}/{tab}")
        assert page.status_code == 200, (tab, page.text[:300])
    levels = {call["capture_level"] for call in live.calls(rollout_id)}
    assert levels == {EVERY[name]}
    conversation = httpx.get(f"{live.url}/rollouts/{rollout_id}/conversation").text
    said = {"ope": "Two: a.py and b.py.", "ver": "It is 5.", "trl": "2 + 3", "tri": "Two: a.py"}
    assert said.get(name[:3], "Two: a.py and b.py.") in conversation


def test_tokens_logprobs_and_claims_are_those_of_the_file(live: Live) -> None:
    (rollout_id,) = imported(live, file("openenv-trace-entries.json"))
    record = live.store.record(rollout_id)  # type: ignore[arg-type]
    assert record is not None
    first, second = record.calls
    assert first.completion is not None
    assert first.completion.tolist() == [6, 7, 8]
    assert first.logprobs is not None
    assert first.logprobs.tolist() == [float(np.float32(x)) for x in (-0.1, -2.5, -0.01)]
    assert (second.stored_parent_id, second.prefix_len) == (first.call_id, 8)
    assert second.claims["imported_loss_mask"] == "1 of 2 sampled tokens (0×1 1×1)"
    assert second.claims["imported_as"] == "b1b2c3d4e5f6"
    judged = live.api("GET", f"/api/v1/rollouts/{rollout_id}/calls/{second.call_id}")
    assert {span["reason"] for span in judged["mask_spans"]} >= {"uncertified"}
    page = httpx.get(f"{live.url}/rollouts/{rollout_id}/requests/{second.call_id}").text
    assert "1 of 2 sampled tokens" in page


def test_its_bytes_and_chain_agree_with_its_rows(live: Live) -> None:
    for name in EVERY:
        for rollout_id in imported(live, data_of(name), file=name):
            found = live.api("GET", f"/api/v1/rollouts/{rollout_id}/findings")["findings"]
            codes = {item["code"] for item in found}
            assert not codes & {"bytes_disagree", "chain_mismatch", "record_inconsistent"}


def test_a_missing_logprob_stays_missing(live: Live) -> None:
    entry = json.loads(file("openenv-trace-entries.json"))[:1]
    entry[0]["per_token_logps"][1] = None
    (rollout_id,) = imported(live, json.dumps(entry).encode())
    record = live.store.record(rollout_id)  # type: ignore[arg-type]
    assert record is not None
    logprobs = record.calls[0].logprobs
    assert logprobs is not None
    assert logprobs.view(np.uint32).tolist()[1] == NULL_LOGPROB_BITS


def test_the_tree_of_verifiers_is_kept(live: Live) -> None:
    rollout_id = imported(live, file("verifiers-traces.jsonl"))[0]
    calls = live.calls(rollout_id)
    assert len(calls) == 3
    record = live.store.record(rollout_id)  # type: ignore[arg-type]
    assert record is not None
    first, left, right = record.calls
    assert left.stored_parent_id == right.stored_parent_id == first.call_id
    shown = live.api("GET", f"/api/v1/rollouts/{rollout_id}")
    assert shown["reward"] == 0.5


def test_it_is_marked_and_the_same_file_imports_nothing(live: Live) -> None:
    data = file("atif-text.json").replace(b"Be exact.", b"Be very exact.")
    first = post(live, data, file="run 7/traj.json", run="foreign")
    assert first.status_code == 201
    (rollout_id,) = first.json()["imported"]
    again = post(live, data, file="other name", run="another")
    assert again.status_code == 200
    assert (again.json()["imported"], again.json()["known"]) == ([], [rollout_id])
    rollout = live.store.rollout(rollout_id)
    assert rollout is not None
    assert rollout.run == "foreign"
    assert rollout.metadata["imported"]["file_sha256"] == first.json()["sha256"]
    assert rollout.metadata["imported"]["file"] == "run 7/traj.json"
    assert rollout.engine_name == "imported from atif"
    page = httpx.get(f"{live.url}/rollouts/{rollout_id}/provenance").text
    assert first.json()["sha256"] in page
    live.api("DELETE", f"/api/v1/rollouts/{rollout_id}", status=204)
    third = post(live, data, run="foreign")
    assert len(third.json()["imported"]) == 1
    assert third.json()["imported"] != [rollout_id]


def test_a_bad_file_writes_nothing(live: Live) -> None:
    before = live.store.health().commits
    good = file("verifiers-traces.jsonl").splitlines()[0]
    bad = post(live, good + b'\n{"traces": 3}\n', format="verifiers")
    assert bad.status_code == 422
    assert "line 2 traces" in bad.json()["error"]["message"]
    assert live.store.health().commits == before


def test_parameters_size_and_rights(live: Live) -> None:
    data = file("atif-text.json")
    assert post(live, data, fromat="atif").status_code == 422
    assert post(live, data, format="excel").status_code == 422
    assert post(live, data, run="a/b").status_code == 422
    assert httpx.post(f"{live.url}/api/v1/imports", content=data).status_code == 401
    too_much = b" " * (live.application.settings.max_body_bytes + 1)
    assert post(live, too_much).status_code == 413


def test_hostile_text_is_text(live: Live) -> None:
    document = json.loads(file("atif-text.json"))
    document["steps"][3]["message"] = "<script>alert(1)</script>\ud800\u202e"
    document["agent"]["name"] = "<img src=x>\x1b[31m" + "x" * 500
    (rollout_id,) = imported(live, json.dumps(document).encode(), file="<b>\x00\u202e.json")
    for tab in TABS:
        page = httpx.get(f"{live.url}/rollouts/{rollout_id}/{tab}")
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text


def command(store: Path, *given: str) -> Any:
    return CliRunner().invoke(cli, ["import", *given, "--store", str(store)])


def test_the_command_reads_files_and_folders_where_nobody_serves(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "jobs"
    shutil.copytree(TRIAL, folder / "count-files__abc")
    store = tmp_path / "store.duckdb"
    missing = command(store, str(folder))
    assert missing.exit_code == 2
    assert "there is no store" in missing.output
    with serving(TinyEngine(), store):
        pass
    done = command(store, str(folder), "--json")
    assert done.exit_code == 0, done.output
    assert "count-files__abc: 1 rollout imported as harbor" in done.output
    again = command(store, str(folder / "count-files__abc"))
    assert "1 were imported before" in again.output
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    refused = command(store, str(bad))
    assert refused.exit_code == 1
    assert "bad.json: this is no capture" in refused.output
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no capture" in command(store, str(empty)).output


def test_the_command_talks_to_the_server_that_has_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    with serving(TinyEngine(), store) as running:
        runfile.write(store, runfile.RunFile(running.url, running.token, os.getpid()))
        try:
            done = command(store, str(DATA / "verifiers-traces.jsonl"), "--run", "foreign")
        finally:
            runfile.remove(store)
        assert done.exit_code == 0, done.output
        listed = running.api("GET", "/api/v1/rollouts?run=foreign")["rollouts"]
        assert {row["harness"] for row in listed} == {"verifiers"}
        assert all(row["rollout_id"] in done.output for row in listed)
        assert len(listed) == 2


def chain(length: int) -> bytes:
    """An episode of verifiers in which every message is an answer to the one before."""
    nodes: list[dict[str, Any]] = [
        {"message": {"role": "user", "content": "a"}, "token_ids": [1, 2]}
    ]
    nodes += [
        {
            "parent": number,
            "sampled": True,
            "message": {"role": "assistant", "content": "x" * 2000},
            "token_ids": [3, 4],
            "mask": [1, 1],
        }
        for number in range(length)
    ]
    return json.dumps({"nodes": nodes}).encode()


def test_a_file_that_would_grow_without_end_is_refused(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorer.export.readers.values.MOST_WRITTEN", 400_000)
    answer = post(live, chain(60))
    assert answer.status_code == 422
    assert "split the file" in answer.json()["error"]["message"]
    steps: list[dict[str, Any]] = [{"source": "agent", "message": "x" * 2000}] * 60
    assert (
        post(
            live, json.dumps({"schema_version": "ATIF-v1.6", "steps": steps}).encode()
        ).status_code
        == 422
    )
    assert post(live, chain(10)).status_code == 201


def test_calls_are_recorded_while_a_file_is_imported(live: Live) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(post, live, chain(400))
        worst = 0.0
        while not slow.done():
            began = time.monotonic()
            assert httpx.get(live.url + "/healthz", timeout=60).status_code == 200
            worst = max(worst, time.monotonic() - began)
            time.sleep(0.02)
        assert slow.result().status_code == 201
    assert worst < 2


def test_one_file_imported_twice_at_once_is_one_rollout(live: Live) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = [each.json() for each in pool.map(lambda _: post(live, chain(30)), range(4))]
    made = [each for answer in answers for each in answer["imported"]]
    assert len(made) == 1
    assert all([*each["imported"], *each["known"]] == made for each in answers)
    assert live.api("GET", f"/api/v1/rollouts/{made[0]}")["status"] == "closed"


def parquet(**columns: Any) -> bytes:
    held = io.BytesIO()
    pq.write_table(pa.table(columns), held)
    return held.getvalue()


def test_what_json_has_no_form_for_is_refused_with_its_row(live: Live) -> None:
    answer = post(
        live, parquet(prompt=["a"], completion=[[{"role": "assistant", "content": b"\xff"}]])
    )
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith("row 0.completion")


def test_a_value_that_stands_in_every_row_is_not_unpacked(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorer.export.readers.trl._MOST_BYTES", 2_000_000)
    bomb = parquet(prompt=["a" * 100_000] * 500, completion=["b"] * 500)
    assert len(bomb) < 200_000
    answer = post(live, bomb)
    assert answer.status_code == 422
    assert "split the file" in answer.json()["error"]["message"]

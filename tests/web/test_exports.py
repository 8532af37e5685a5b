"""The documents that leave: hashed, compressed, refused in words, checked by the command."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import zstandard

from explorer.engine.tiny import TinyEngine
from explorer.trace.verify import verify
from tests.live import Live, serving


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("exports") / "store.duckdb"
    with serving(TinyEngine(), store) as running:
        yield running


def rollout(live: Live, *, reward: float | None = 0.5, ok: bool | None = True) -> str:
    """Two calls of an agent with a tool and a title call beside them, closed."""
    name, key = live.create(run="exports", task="t", metadata={"dataset": "d"})
    live.chat(key, messages=[{"role": "user", "content": "Title?"}], max_tokens=4)
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is 4 + 5?"}]
    for _ in range(2):
        reply = live.chat(key, messages=messages, tools=tools, max_tokens=12)
        said = {k: v for k, v in reply.json()["choices"][0]["message"].items() if v is not None}
        messages = [*messages, said, {"role": "user", "content": "And 2?"}]
    if reward is not None:
        live.api("POST", f"/api/v1/rollouts/{name}/reward", {"reward": reward})
    live.api("POST", f"/api/v1/rollouts/{name}/close", {} if ok is None else {"ok": ok})
    return name


def fetch(live: Live, name: str, what: str, **headers: str) -> httpx.Response:
    with httpx.Client(timeout=30) as client:
        request = client.build_request(
            "GET",
            f"{live.url}/api/v1/rollouts/{name}/{what}",
            headers={"authorization": f"Bearer {live.token}", "accept-encoding": ""} | headers,
        )
        return client.send(request)


@pytest.mark.parametrize(
    "what", ["training-trace", "capture-audit", "capture-audit?format=contract"]
)
def test_the_etag_is_the_hash_of_the_content(live: Live, what: str) -> None:
    name = rollout(live)
    plain = fetch(live, name, what)
    sha256 = hashlib.sha256(plain.content).hexdigest()
    assert plain.headers["etag"] == f'"{sha256}"'
    assert int(plain.headers["content-length"]) == len(plain.content)
    assert plain.headers["vary"] == "Accept-Encoding"
    for encoding in ("gzip", "zstd"):
        with httpx.stream(
            "GET",
            f"{live.url}/api/v1/rollouts/{name}/{what}",
            headers={
                "authorization": f"Bearer {live.token}",
                "accept-encoding": f"br, {encoding};q=0.5",
            },
        ) as packed:
            assert packed.headers["content-encoding"] == encoding
            assert packed.headers["etag"] == f'"{sha256}-{encoding}"'
            raw = b"".join(packed.iter_raw())
        assert len(raw) < len(plain.content)
        unpacked = (
            gzip.decompress(raw)
            if encoding == "gzip"
            else zstandard.ZstdDecompressor().decompressobj().decompress(raw)
        )
        assert unpacked == plain.content
    for told in (f'"{sha256}"', f'W/"{sha256}-gzip"', f'"other", "{sha256}-zstd"', "*"):
        again = fetch(live, name, what, **{"if-none-match": told})
        assert (again.status_code, again.content) == (304, b"")
    assert fetch(live, name, what, **{"if-none-match": '"other"'}).status_code == 200
    assert (
        fetch(live, name, what, **{"accept-encoding": "gzip;q=0, zstd;q=x"}).headers.get(
            "content-encoding"
        )
        is None
    )


def test_the_hash_follows_what_was_decided(live: Live) -> None:
    name = rollout(live)
    before = fetch(live, name, "training-trace").headers["etag"]
    call = orjson.loads(fetch(live, name, "training-trace").content)["turns"][0]["node_id"]
    live.api(
        "POST",
        f"/api/v1/rollouts/{name}/overrides",
        {"kind": "exclude_call", "call_id": call, "reason": "leaks the answer"},
        status=201,
    )
    after = fetch(live, name, "training-trace")
    assert after.headers["etag"] != before
    head = orjson.loads(after.content)["turns"][0]["metadata"]
    assert head["overrides"][0]["reason"] == "leaks the answer"
    assert head["policy"]["name"] == "default"


def test_page_api_and_address_say_the_same(live: Live) -> None:
    name = rollout(live, ok=False)
    shown = live.api("GET", f"/api/v1/rollouts/{name}")["verdict"]
    error = live.api("GET", f"/api/v1/rollouts/{name}/training-trace", status=409)["error"]
    assert error["details"]["reasons"] == shown["reasons"]
    page = httpx.get(
        f"{live.url}/rollouts/{name}/conversation.json",
        headers={"authorization": f"Bearer {live.token}"},
    ).json()
    button = page["header"]["downloads"][0]
    assert button["enabled"] is False
    assert button["reason"] == f"Refused: {error['message']}"
    assert fetch(live, name, "capture-audit").status_code == 200


def test_a_reader_that_needs_a_reward_is_refused_without_one(live: Live) -> None:
    name = rollout(live, reward=None)
    assert fetch(live, name, "training-trace").status_code == 200
    refused = fetch(live, name, "training-trace?needs=reward")
    assert refused.status_code == 409
    codes = [reason["code"] for reason in refused.json()["error"]["details"]["reasons"]]
    assert codes == ["reward_missing"]
    wrong = fetch(live, name, "training-trace?needs=rewards")
    assert (wrong.status_code, "`reward`" in wrong.text) == (422, True)
    wrong = fetch(live, name, "capture-audit?format=csv")
    assert (wrong.status_code, "`contract`" in wrong.text) == (422, True)


# The keys of OpenEnv 0.10's `contract.json`; what we add stands beside them.
CONTRACT = {
    *("schema_version", "task_id", "task_name", "dataset", "harness", "sandbox"),
    *("trial_name", "session_id", "reward", "rewards", "reward_key", "rollout_type"),
    *("capture_level", "n_trainable_tokens", "trace_entries", "turns"),
}
CONTRACT_TURN = {
    *("turn", "node_id", "prompt_token_ids", "completion_token_ids", "per_token_logps"),
    *("loss_mask", "finish_reason", "discarded", "trainable", "sampling_params"),
    "requested_sampling_params",
}


@pytest.mark.parametrize(
    ("what", "known"),
    [
        ("training-trace?need=reward", "`needs`"),
        ("training-trace?needs=reward&format=contract", "`needs`"),
        ("capture-audit?Format=contract", "`format`"),
        ("capture-audit?needs=reward", "`format`"),
    ],
)
def test_a_misspelt_parameter_is_refused(live: Live, what: str, known: str) -> None:
    answer = fetch(live, rollout(live), what)
    assert answer.status_code == 422
    assert f"there is {known}" in answer.json()["error"]["message"]


def test_the_old_contract_has_the_excluded_turns_too(live: Live) -> None:
    name = rollout(live)
    document = fetch(live, name, "capture-audit?format=contract").json()
    assert set(document) - CONTRACT == {"trainable", "reasons"}
    assert set(document) >= CONTRACT
    assert document["schema_version"] == 1
    assert (document["dataset"], document["reward"]) == ("d", 0.5)
    assert len(document["turns"]) == 3
    assert len(document["trace_entries"]) == 2
    for turn in document["turns"]:
        assert set(turn) - CONTRACT_TURN == {"role"}
        assert len(turn["loss_mask"]) == len(turn["prompt_token_ids"]) + len(
            turn["completion_token_ids"]
        )
    ones = sum(sum(turn["loss_mask"]) for turn in document["turns"])
    assert ones == document["n_trainable_tokens"] > 0
    title = next(turn for turn in document["turns"] if turn["role"] == "auxiliary")
    assert (title["trainable"], sum(title["loss_mask"])) == (False, 0)
    trace = fetch(live, name, "training-trace").json()
    assert [entry["loss_mask"] for entry in document["trace_entries"]] == [
        turn["loss_mask"] for turn in trace["turns"]
    ]


def test_the_contract_of_a_refused_rollout_trains_nothing(live: Live) -> None:
    document = fetch(live, rollout(live, ok=False), "capture-audit?format=contract").json()
    assert document["reasons"] == ["rollout_failed"]
    assert document["n_trainable_tokens"] == 0
    assert document["trace_entries"] == []
    assert len(document["turns"]) == 3
    assert not any(sum(turn["loss_mask"]) for turn in document["turns"])


def command(live: Live, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "explorer", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_files_are_written_and_checked_without_the_server(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    with serving(TinyEngine(), store) as live:
        good, bad = rollout(live), rollout(live, ok=False)
        audit = fetch(live, good, "capture-audit").content
    at = ("--store", str(store))
    out = tmp_path / "new" / "out"  # made where there is none
    done = command(live, "export", *at, "--out", str(out), good, bad)
    assert done.returncode == 1
    assert "written" in done.stderr
    assert f"refused  {bad}: The rollout failed." in done.stderr
    assert [path.name for path in out.iterdir()] == [f"{good}.training-trace.json"]
    for kind, file in (("capture-audit", "audit.json"), ("contract", "contract.json")):
        target = tmp_path / file
        done = command(live, "export", *at, "--format", kind, "--out", str(target), good)
        assert (done.returncode, target.exists()) == (0, True), done.stderr
    assert (tmp_path / "audit.json").read_bytes() == audit
    packed = tmp_path / "audit.json.gz"
    packed.write_bytes(gzip.compress(audit))
    trace = out / f"{good}.training-trace.json"
    done = command(live, "verify", str(trace), "--against", str(packed), "--json")
    assert done.returncode == 0, done.stdout
    report = orjson.loads(done.stdout)[0]
    assert (report["kind"], report["ok"], report["trainable"]) == ("training-trace", True, True)
    assert report["facts"]["supervised_tokens"] == verify(audit).facts["supervised_tokens"]
    done = command(live, "verify", str(packed), bad, *at)
    assert done.returncode == 0, done.stdout
    assert "capture-audit, sound, trainable" in done.stdout
    assert "capture-audit, sound, not trainable" in done.stdout
    document = orjson.loads(trace.read_bytes())
    document["turns"][0]["loss_mask"][0] = 1
    trace.write_bytes(orjson.dumps(document))
    done = command(live, "verify", str(trace))
    assert done.returncode == 1
    assert "NOT SOUND" in done.stdout
    assert "trainable_prompt" in done.stdout


def test_every_rollout_of_a_view(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    with serving(TinyEngine(), store) as live:
        good = {rollout(live) for _ in range(3)}
        rollout(live, ok=False)
    at = ("export", "--store", str(store), "--out", str(tmp_path / "out"))
    done = command(live, *at, "--view", "run=exports&trainable=yes")
    assert done.returncode == 0, done.stderr
    assert "3 written, 0 refused" in done.stderr
    names = {path.name.partition(".")[0] for path in (tmp_path / "out").iterdir()}
    assert names == good
    done = command(live, *at, "--view", "")
    assert (done.returncode, "3 written, 1 refused" in done.stderr) == (1, True)
    done = command(live, *at, "--view", "trainabel=yes")
    assert (done.returncode, "trainable" in done.stderr) == (2, True)
    assert "--view" in command(live, *at).stderr


def test_a_decision_from_the_command(tmp_path: Path) -> None:
    store = tmp_path / "store.duckdb"
    with serving(TinyEngine(), store) as live:
        name = rollout(live)
        call = fetch(live, name, "training-trace").json()["turns"][0]["node_id"]
    at = ("rollouts", "override", "--store", str(store), name)
    done = command(live, *at, "exclude_call", "--call", call, "--reason", "leaks")
    assert done.returncode == 0, done.stderr
    verdict = orjson.loads(done.stdout)
    assert verdict["masked_tokens"]["excluded_by_user"] > 0
    assert verdict["policy"]["name"] == "default"
    shown = orjson.loads(command(live, "rollouts", "show", *at[2:]).stdout)
    assert [item["reason"] for item in shown["overrides"]] == ["leaks"]
    done = command(live, *at, "exclude_span", "--call", call, "--reason", "r", "--start", "9")
    assert (done.returncode, "token positions" in done.stderr) == (2, True)


def test_the_commands_say_what_to_change(tmp_path: Path, live: Live) -> None:
    done = command(live, "verify", str(tmp_path / "none.json"))
    assert (done.returncode, "cannot be read" in done.stderr) == (2, True)
    wrong = tmp_path / "x.json"
    wrong.write_text("{}")
    done = command(live, "verify", str(wrong))
    assert (done.returncode, "Training trace" in done.stdout) == (1, True)
    done = command(live, "export", "--out", str(tmp_path / "a"), "no-id")
    assert (done.returncode, "'no-id' is no rollout's id" in done.stderr) == (2, True)
    good = rollout(live)
    nowhere = ("--store", str(tmp_path / "none.duckdb"), "--out", str(tmp_path / "new"))
    done = command(live, "export", *nowhere, "--view", "ok=yes")
    assert (done.returncode, "there is no store" in done.stderr) == (2, True)
    assert not (tmp_path / "new").exists()
    done = command(live, "export", "--out", str(wrong), good, good)
    assert (done.returncode, "is a file; several rollouts" in done.stderr) == (2, True)
    done = command(live, "export", "--out", str(wrong / "below"), good, good)
    assert (done.returncode, "cannot be made: Not a directory" in done.stderr) == (2, True)

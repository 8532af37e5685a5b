"""Trainers' files: each format as its trainer writes it, matched by tokens, sent by command."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from explorer import runfile
from explorer.cli import cli
from explorer.engine.tiny import TinyEngine
from explorer.errors import InvalidValue
from explorer.export.trainer_files import read_lines
from explorer.records import RolloutId
from tests.live import Live, serving

Row = dict[str, Any]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("files")
    with serving(TinyEngine(), folder / "store.duckdb") as running:
        yield running


def sampled(live: Live, run: str) -> tuple[str, list[dict[str, Any]]]:
    """A closed rollout of two calls that are roots of their own."""
    made, key = live.create(run=run)
    for text in ("What is 4 + 5?", "What is 7 + 1?"):
        reply = live.chat(
            key, messages=[{"role": "user", "content": text}], max_tokens=12, seed=len(text)
        )
        assert reply.status_code == 200
    live.api("POST", f"/api/v1/rollouts/{made}/close", {"ok": True})
    calls = [
        live.api("GET", f"/api/v1/rollouts/{made}/calls/{call['call_id']}")
        for call in live.calls(made)
    ]
    return made, calls


def lined(
    call: dict[str, Any], shift: float
) -> tuple[list[int], list[float], list[float], list[int]]:
    """Ids, engine's and trainer's logprobs and mask of a row; 0.0 is the padding of dumps."""
    prompt, ids = call["prompt_token_ids"], call["completion_token_ids"]
    own = [0.0] * len(prompt) + call["per_token_logps"]
    theirs = [0.0] * len(prompt) + [value + shift for value in call["per_token_logps"]]
    return [*prompt, *ids], own, theirs, [0] * len(prompt) + [1] * len(ids)


def prime_rl(call: dict[str, Any]) -> Row:
    ids, own, theirs, mask = lined(call, -0.5)
    flags = [bool(each) for each in mask]
    kept = {"schema_version": 1, "step": 3, "rank": 0, "entropy": own, "advantages": own}
    return kept | {
        "token_ids": ids,
        "loss_mask": flags,
        "inference_logprobs": own,
        "trainer_logprobs": theirs,
    }


def nemo_rl(call: dict[str, Any]) -> Row:
    ids, own, theirs, mask = lined(call, -0.5)
    pad = [0] * 5
    return {
        "token_ids": [ids + pad],
        "token_loss_mask": [mask + pad],
        "sample_loss_mask": [1],
        "generation_logprobs": [own + [0.0] * 5],
        "prev_logprobs": [theirs + [0.0] * 5],
        "input_lengths": [len(ids)],
        "rewards": [1.0],
        "idx": 0,
    }


def trl(call: dict[str, Any]) -> Row:
    ids, own, theirs, _ = lined(call, -0.5)
    n = len(call["prompt_token_ids"])
    return {
        "prompt_ids": [0, 0, *ids[:n]],
        "prompt_mask": [0, 0, *[1] * n],
        "completion_ids": [*ids[n:], 0],
        "completion_mask": [*[1] * (len(ids) - n), 0],
        "old_per_token_logps": [*theirs[n:], 0.0],
        "sampling_per_token_logps": [*own[n:], 0.0],
        "advantages": [0.3],
    }


def run_command(live: Live, path: Path, *more: str) -> tuple[int, str]:
    found = CliRunner().invoke(
        cli, ["trainer-logprobs", str(path), "--store", str(live.store.path), *more]
    )
    return found.exit_code, found.output


@pytest.mark.parametrize("make", [prime_rl, nemo_rl, trl])
def test_rows_of_each_trainer_find_their_calls(live: Live, tmp_path: Path, make: Any) -> None:
    format_ = make.__name__.replace("_", "-")
    made, calls = sampled(live, format_)
    path = tmp_path / "dump.jsonl"
    path.write_text("".join(json.dumps(make(call)) + "\n" for call in calls) + "\n")
    [*lines] = read_lines(path.read_bytes(), format_)
    body = {"weight_version": 4, "source": format_, "rows": [dict(each.row) for each in lines]}
    address = f"/api/v1/runs/{format_}/trainer-logprobs"
    answer = live.api("POST", address, body)
    assert answer == {
        "stored": 2, "replaced": 0, "unchanged": 0, "rollouts": 1, "unmatched": [],
    }  # fmt: skip
    summary = live.store.delta_summaries([RolloutId(made)])[RolloutId(made)]
    assert summary.n_compared == summary.n_training > 10
    assert summary.delta_p1 == pytest.approx(-0.5, abs=1e-4)
    assert summary.delta_p99 == pytest.approx(-0.5, abs=1e-4)
    # A column that is shifted by one is told from the engine's own values, and nothing stored.
    row = dict(lines[0].row)
    for name in ("logps", "rollout_logps"):
        row[name] = [row[name][-1], *row[name][:-1]]
    refused = live.api("POST", address, body | {"rows": [row], "source": "x"}, status=400)
    assert (
        "line 1: its own rollout logprobs are not those on record"
        in (refused["error"]["message"])
    )
    # Tokens of nobody are named, not guessed at.
    stranger = {**lines[1].row, "token_ids": [9] * len(lines[1].row["token_ids"])}
    answer = live.api("POST", address, body | {"rows": [stranger]})
    assert (answer["stored"], answer["unmatched"]) == (0, [2])


def test_the_command_sends_a_file_to_the_running_server(live: Live, tmp_path: Path) -> None:
    made, calls = sampled(live, "by-command")
    told = [
        {"call_id": call["call_id"], "per_token_logps": call["per_token_logps"]}
        for call in calls
    ]
    told[0]["per_token_logps"] = [-float("inf"), *told[0]["per_token_logps"][1:]]
    path = tmp_path / "told.jsonl"
    path.write_text(json.dumps({"rollout_id": made, "weight_version": 2, "calls": told}) + "\n")
    runfile.write(live.store.path, runfile.RunFile(live.url, live.token, os.getpid()))
    try:
        code, output = run_command(live, path)
        assert code == 0, output
        assert "2 stored" in output
        rows = live.store.trainer_logps(RolloutId(made))
        assert {row.source for row in rows} == {"file"}
        summary = live.store.delta_summaries([RolloutId(made)])[RolloutId(made)]
        assert summary.n_training - summary.n_compared == 1
        path.write_text(json.dumps({"rollout_id": made, "calls": []}) + "\n{oh\n")
        code, output = run_command(live, path)
        assert code != 0
        assert "line 2" in output
        path.write_text(json.dumps(prime_rl(calls[0])) + "\n")
        assert "--run" in run_command(live, path, "--format", "prime-rl")[1]
    finally:
        runfile.remove(live.store.path)


@pytest.mark.parametrize(
    ("format_", "line", "words"),
    [
        ("prime-rl", {"token_ids": [1]}, "has no list `trainer_logprobs`"),
        ("nemo-rl", {"token_ids": [[1]], "input_lengths": [2]}, "does not fit 1 tokens"),
        (
            "trl",
            {"prompt_ids": [1], "completion_ids": [2], "old_per_token_logps": []},
            "0 entr",
        ),
        ("jsonl", {"token_ids": [1]}, "neither `rollout_id`"),
        ("jsonl", [1], "no JSON object"),
        ("jsonl", {"rollout_id": "\ud800", "calls": []}, "id of a rollout"),
    ],
)
def test_lines_that_are_something_else_are_named(format_: str, line: Any, words: str) -> None:
    data = b"\n" + json.dumps(line).encode()
    with pytest.raises(InvalidValue, match="line 2") as raised:
        list(read_lines(data, format_))
    assert words in raised.value.message


def test_equal_ids_that_another_policy_sampled_are_passed_over(live: Live) -> None:
    made, calls = [], []
    for temperature in (1.0, 0.5):
        rollout_id, key = live.create(run="twice")
        asked = [{"role": "user", "content": "What is 4 + 5?"}]
        live.chat(key, messages=asked, max_tokens=6, seed=3, temperature=temperature)
        [call] = live.calls(rollout_id)
        made.append(rollout_id)
        calls.append(live.api("GET", f"/api/v1/rollouts/{rollout_id}/calls/{call['call_id']}"))
    assert calls[0]["completion_token_ids"] == calls[1]["completion_token_ids"]
    assert calls[0]["per_token_logps"] != pytest.approx(calls[1]["per_token_logps"], abs=0.01)
    [line] = read_lines(json.dumps(prime_rl(calls[0])).encode(), "prime-rl")
    body = {"weight_version": 4, "source": "prime-rl", "rows": [dict(line.row)]}
    answer = live.api("POST", "/api/v1/runs/twice/trainer-logprobs", body)
    assert (answer["stored"], answer["rollouts"], answer["unmatched"]) == (1, 1, [])
    assert live.api("GET", f"/api/v1/rollouts/{made[0]}/delta")["sets"]
    assert not live.api("GET", f"/api/v1/rollouts/{made[1]}/delta")["sets"]

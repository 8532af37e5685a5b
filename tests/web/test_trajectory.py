"""Closing with a trajectory over HTTP: sizes, wrong types, the answer and the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from explorer.engine.tiny import TinyEngine
from explorer.web import closing
from tests.live import Live, serving


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("closing") / "store.duckdb"
    with serving(TinyEngine(), store) as running:
        yield running


def asked(live: Live) -> tuple[str, dict[str, Any]]:
    """A rollout with one call, and that call whole."""
    rollout, key = live.create(run="closing")
    assert live.chat(key, max_tokens=12).status_code == 200
    (call,) = live.calls(rollout)
    return rollout, live.api("GET", f"/api/v1/rollouts/{rollout}/calls/{call['call_id']}")


def document(call: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """A trajectory that agrees with the call, but for what is changed."""
    metrics = {
        "completion_tokens": call["completion_len"],
        "prompt_tokens": call["prompt_len"],
        "completion_token_ids": call["completion_token_ids"],
        "prompt_token_ids": call["prompt_token_ids"],
        "logprobs": call["per_token_logps"],
    }
    step = {"step_id": 1, "source": "agent", "message": "x", "metrics": metrics | changed}
    return {"schema_version": "ATIF-v1.8", "agent": {"name": "a"}, "steps": [step]}


def close(live: Live, rollout: str, status: int = 200, **body: Any) -> Any:
    return live.api(
        "POST", f"/api/v1/rollouts/{rollout}/close", {"ok": True} | body, status=status
    )


def test_ids_that_agree_and_ids_that_do_not(live: Live) -> None:
    rollout, call = asked(live)
    assert close(live, rollout, trajectory=document(call))["trajectory"] == "match"
    rollout, call = asked(live)
    other = [*call["completion_token_ids"][:-1], 3]
    answer = close(live, rollout, trajectory=document(call, completion_token_ids=other))
    assert answer["trajectory"] == "MISMATCH"
    assert answer["verdict"]["trainable"] is False
    found = live.api("GET", f"/api/v1/rollouts/{rollout}/findings")["findings"]
    (differs,) = [item for item in found if item["code"] == "atif_ids_differ"]
    last = call["prompt_len"] + call["completion_len"] - 1
    assert differs["where"]["start"] == last


@pytest.mark.parametrize("given", [7, "x", [], {}, {"steps": None}, True])
def test_what_is_no_trajectory_is_refused_and_the_rollout_stays_open(
    live: Live, given: Any
) -> None:
    rollout, call = asked(live)
    error = close(live, rollout, 422, trajectory=given)["error"]
    assert "ATIF document" in error["message"]
    assert live.api("GET", f"/api/v1/rollouts/{rollout}")["status"] == "open"
    assert close(live, rollout, trajectory=document(call))["trajectory"] == "match"


def test_numbers_and_letters_that_only_python_reads(live: Live) -> None:
    rollout, call = asked(live)
    odd = document(call) | {"extra": {"cost": float("nan"), "big": 10**30, "text": "\ud800"}}
    assert close(live, rollout, trajectory=odd)["trajectory"] == "match"


def test_the_other_fields_are_checked_as_ever(live: Live) -> None:
    rollout, call = asked(live)
    given = document(call)
    assert "unknown fields okay" in str(close(live, rollout, 422, trajectory=given, okay=1))
    assert "exit_code" in str(close(live, rollout, 422, trajectory=given, exit_code="1"))
    assert "trajectory_problem" in str(close(live, rollout, 422, trajectory_problem=7))


def test_a_body_beyond_the_limit_is_refused_while_it_arrives(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout, call = asked(live)
    monkeypatch.setattr(closing, "MAX_BYTES", 1000)
    monkeypatch.setattr(closing, "_LIMIT", 1000)
    monkeypatch.setattr(closing, "MOST_CLOSING", 2000)
    error = close(live, rollout, 413, trajectory=document(call) | {"notes": "x" * 3000})[
        "error"
    ]
    assert "leave out `trajectory`" in error["message"]


def test_a_large_trajectory_is_read_beside_the_loop(live: Live) -> None:
    """Millions of ids, of which only what each prompt adds is kept."""
    rollout, call = asked(live)
    (step,) = document(call)["steps"]
    long = list(range(20_000))
    extra = [
        {"source": "agent", "metrics": {"completion_tokens": 1, "prompt_token_ids": long}}
        for _ in range(60)
    ]
    given = document(call) | {"steps": [step, *extra]}
    assert len(json.dumps(given)) > 5_000_000
    assert close(live, rollout, trajectory=given)["trajectory"] == "MISMATCH"


def test_the_findings_tab_shows_the_result(live: Live) -> None:
    rollout, call = asked(live)
    close(live, rollout, trajectory=document(call, completion_tokens=99))
    headers = {"authorization": f"Bearer {live.token}"}
    page = httpx.get(f"{live.url}/rollouts/{rollout}/findings", headers=headers).text
    assert "The harness's own trajectory" in page.replace("&#39;", "'")
    assert "MISMATCH" in page
    assert "turn_mismatch" in page
    provenance = httpx.get(f"{live.url}/rollouts/{rollout}/provenance", headers=headers).text
    assert "sha256" not in provenance.partition("How the harness ended")[2][:2000]

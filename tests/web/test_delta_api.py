"""Trainer logprobs over HTTP: what is taken, what is refused, and the measured noise floor."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from safetensors.numpy import load_file, save_file

from explorer.engine import tiny
from explorer.engine.protocol import EngineReply, EngineRequest
from explorer.engine.tiny import TinyEngine
from explorer.records import RolloutId
from explorer.trace.verify import verify
from tests.live import Live, serving

Told = dict[str, Any]
MODEL = Path(tiny.__file__).parent / "weights"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("delta") / "store.duckdb"
    with serving(TinyEngine(), store) as running:
        yield running


def rollout(live: Live, **more: Any) -> str:
    """A closed rollout of two turns that trains."""
    made, key = live.create(run="delta", task="t")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is 4 + 5?"}]
    for _ in range(2):
        reply = live.chat(key, messages=messages, max_tokens=16, seed=5, **more)
        assert reply.status_code == 200
        said = {k: v for k, v in reply.json()["choices"][0]["message"].items() if v is not None}
        messages = [*messages, said, {"role": "user", "content": "Say only: ok"}]
    live.api("POST", f"/api/v1/rollouts/{made}/reward", {"reward": 0.5})
    live.api("POST", f"/api/v1/rollouts/{made}/close", {"ok": True})
    return made


def details(live: Live, made: str) -> list[dict[str, Any]]:
    return [
        live.api("GET", f"/api/v1/rollouts/{made}/calls/{call['call_id']}")
        for call in live.calls(made)
    ]


def told(live: Live, made: str, shift: float = 0.0) -> Told:
    calls = [
        {
            "call_id": call["call_id"],
            "per_token_logps": [each + shift for each in call["per_token_logps"]],
            "completion_token_ids": call["completion_token_ids"],
        }
        for call in details(live, made)
    ]
    return {"weight_version": 3, "source": "trl", "calls": calls}


def summary(live: Live, made: str) -> Any:
    return live.store.delta_summaries([RolloutId(made)]).get(RolloutId(made))


def test_a_posting_is_idempotent_replaced_and_summed_up(live: Live) -> None:
    made = rollout(live)
    path = f"/api/v1/rollouts/{made}/trainer-logprobs"
    body = told(live, made, -0.5)
    assert live.api("POST", path, body) == {"stored": 2, "replaced": 0, "unchanged": 0}
    assert live.api("POST", path, body) == {"stored": 2, "replaced": 0, "unchanged": 2}
    verdict = live.api("GET", f"/api/v1/rollouts/{made}")["verdict"]
    first = summary(live, made)
    assert first.n_compared == first.n_training == verdict["supervised_tokens"] > 4
    assert first.abs_max == pytest.approx(0.5, abs=1e-5)
    assert first.n_outside == first.n_compared
    assert (first.source, first.weight_version, first.noise_kind) == ("trl", 3, None)
    # Nobody announced a version: which weights sampled is not known.
    assert first.n_unknown_version == first.n_compared
    body["calls"][1]["per_token_logps"][0] = None
    body["calls"] = body["calls"][1:]
    assert live.api("POST", path, body) == {"stored": 1, "replaced": 1, "unchanged": 0}
    assert summary(live, made).n_compared == first.n_compared - 1
    # Another version stands beside it, and lists are about what was told last.
    live.api("POST", path, told(live, made) | {"weight_version": 4})
    assert summary(live, made).weight_version == 4
    assert len({row.weight_version for row in live.store.trainer_logps(RolloutId(made))}) == 2
    # A decision takes tokens out: the summary follows the mask without another posting.
    call_id = body["calls"][0]["call_id"]
    decision = {"kind": "exclude_call", "call_id": call_id, "reason": "odd"}
    live.api("POST", f"/api/v1/rollouts/{made}/overrides", decision | {"who": "me"}, status=201)
    assert 0 < summary(live, made).n_training < first.n_training


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda b: b["calls"][1]["per_token_logps"].pop(), 400, "sampled tokens and"),
        (lambda b: b["calls"][1].update(call_id="0" * 32), 400, "no ended call"),
        (lambda b: b["calls"][1]["completion_token_ids"].pop(), 400, "sampled ids and"),
        (
            lambda b: b["calls"][1]["completion_token_ids"].__setitem__(0, 1),
            400,
            "other tokens",
        ),
        (lambda b: b["calls"][1]["per_token_logps"].__setitem__(0, 2.5), 422, "at most 0"),
        (lambda b: b["calls"][1]["per_token_logps"].__setitem__(0, 10**400), 422, "at most 0"),
        (
            lambda b: b["calls"][1]["per_token_logps"].__setitem__(0, True),
            422,
            "number or null",
        ),
        (lambda b: b["calls"].append(b["calls"][0]), 422, "twice"),
        (lambda b: b["calls"].clear(), 422, "at least one call"),
        (lambda b: b.update(weight_version=True), 422, "weight_version"),
        (lambda b: b.update(weight_version=-1), 422, "weight_version"),
        (lambda b: b.update(source=" "), 422, "$.source"),
        (lambda b: b.update(kind="guess"), 422, "trainer_repeat"),
        (lambda b: b.update(weights=8), 422, "no field `weights`"),
    ],
)
def test_what_does_not_fit_is_refused_whole(
    live: Live, change: Any, status: int, words: str
) -> None:
    made = _one(live)
    body = copy.deepcopy(_told_once(live, made))
    change(body)
    error = live.api("POST", f"/api/v1/rollouts/{made}/trainer-logprobs", body, status=status)
    assert words in error["error"]["message"]
    if "sampled tokens and" in words:
        details_ = error["error"]["details"]
        assert details_["sampled"] == details_["told"] + 1
        assert body["calls"][1]["call_id"] in error["error"]["message"]
    assert not live.store.has_trainer_logps(RolloutId(made))


_KEPT: dict[str, Any] = {}


def _one(live: Live) -> str:
    if "rollout" not in _KEPT:
        _KEPT["rollout"] = rollout(live)
    return str(_KEPT["rollout"])


def _told_once(live: Live, made: str) -> Told:
    if "told" not in _KEPT:
        _KEPT["told"] = told(live, made)
    return dict(_KEPT["told"])


def test_infinities_are_kept_apart_from_null_and_strangers_cannot_post(live: Live) -> None:
    made = rollout(live)
    path = f"{live.url}/api/v1/rollouts/{made}/trainer-logprobs"
    body = told(live, made)
    body["calls"][0]["per_token_logps"][:2] = [None, 12345678]
    raw = orjson.dumps(body).replace(b"12345678", b"-Infinity")
    operator = {"authorization": f"Bearer {live.token}"}
    for headers in ({}, {"authorization": "Bearer nobody"}):
        assert httpx.post(path, content=raw, headers=headers).status_code == 401
    assert httpx.post(path, content=raw, headers=operator).status_code == 200
    row = summary(live, made)
    assert row.n_training - row.n_compared == 2
    assert row.abs_max < 1e-6
    # The Capture audit has them when asked, and says what of them is no number.
    audit = f"/api/v1/rollouts/{made}/capture-audit"
    assert "trainer_logprobs" not in live.api("GET", audit)
    whole = live.api("GET", f"{audit}?trainer_logprobs=1")
    [told_set] = whole["trainer_logprobs"]
    assert (told_set["source"], told_set["weight_version"]) == ("trl", 3)
    by_id = {each["call_id"]: each for each in told_set["calls"]}
    first = by_id[body["calls"][0]["call_id"]]
    assert first["per_token_logps"][:2] == [None, None]
    assert first["not_finite"] == {"1": "-inf"}
    report = verify(orjson.dumps(whole))
    assert report.ok
    assert any("nothing in the file proves it" in note for note in report.notes)
    for bad in (b"[" * 100_000, b"{", raw.replace(b"-Infinity", b"Infinity")):
        assert httpx.post(path, content=bad, headers=operator).status_code == 422
    assert live.api("POST", "/api/v1/rollouts/x/trainer-logprobs", body, status=404)


def loaded(version: int, folder: Path) -> dict[str, Any]:
    """An announcement of weights that are not the shipped ones."""
    tensors = load_file(MODEL / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 0.9
    save_file(tensors, folder / "model.safetensors")
    return {"state": "ready", "weight_version": version, "weights_path": str(folder)}


def test_the_engine_scores_again_what_it_sampled_and_only_with_the_same_weights(
    live: Live, tmp_path: Path
) -> None:
    live.api("POST", "/api/v1/weights", {"state": "ready", "weight_version": 3})
    made = rollout(live)
    live.api("POST", f"/api/v1/rollouts/{made}/trainer-logprobs", told(live, made, -0.2))
    answer = live.api("POST", f"/api/v1/rollouts/{made}/rescore", {})
    assert (answer["stored"], answer["weight_version"], answer["skipped"]) == (2, 3, [])
    # A row that another begins with is not sent for its own sake.
    nodes = live.api("GET", f"/api/v1/rollouts/{made}/tree")["nodes"]
    leaves = [node for node in nodes if not node["children"]]
    assert answer["tokens_read"] == sum(
        node["prompt_len"] + node["completion_len"] for node in leaves
    )
    row = summary(live, made)
    assert row.n_same_version == row.n_compared
    assert row.noise_kind == "rescored"
    # The tiny policy in float32, against itself.
    assert row.noise_abs_p99 < 1e-4
    assert row.noise_share == 0.0
    assert row.n_outside == row.n_compared
    live.api("POST", "/api/v1/weights", loaded(4, tmp_path))
    refused = live.api("POST", f"/api/v1/rollouts/{made}/rescore", {}, status=409)
    assert "weight version 3, and the engine has 4" in refused["error"]["message"]
    warm = rollout(live, temperature=0.5)
    refused = live.api("POST", f"/api/v1/rollouts/{warm}/rescore", {}, status=409)
    assert "temperature 1" in refused["error"]["message"]
    # Weights that were loaded here change the fingerprint, and are the certified engine's.
    later = rollout(live)
    live.api("POST", f"/api/v1/rollouts/{later}/trainer-logprobs", told(live, later))
    answer = live.api("POST", f"/api/v1/rollouts/{later}/rescore", {})
    assert (answer["stored"], answer["weight_version"]) == (2, 4)
    assert summary(live, later).noise_abs_p99 < 1e-4


class Renamed(TinyEngine):
    """As an engine whose weights somebody changed without a word, but for their name."""

    name = b'"first"'

    async def generate(self, request: EngineRequest) -> EngineReply:
        reply = await super().generate(request)
        return replace(reply, body=reply.body.replace(b'"default"', self.name))


def test_each_call_of_a_sequence_was_sampled_by_the_weights_that_score_it(
    tmp_path: Path,
) -> None:
    engine = Renamed()
    with serving(engine, tmp_path / "store.duckdb") as live:
        made, key = live.create(token_in=True)
        messages = [{"role": "user", "content": "Say only: ok"}]
        reply = live.chat(key, messages=messages, max_tokens=60, seed=5).json()
        engine.name = b'"second"'
        text = reply["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": text}, messages[0]]
        assert live.chat(key, messages=messages, max_tokens=4).status_code == 200
        live.api("POST", f"/api/v1/rollouts/{made}/close", {"ok": True})
        record = live.store.record(RolloutId(made))
        assert record is not None
        assert [call.engine_weight_label for call in record.calls] == ["first", "second"]
        refused = live.api("POST", f"/api/v1/rollouts/{made}/rescore", {}, status=409)
    assert "weights second now, and sampled with first" in refused["error"]["message"]

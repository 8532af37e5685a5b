"""The certificate: real engines in every logprob mode, and the numbers that decide."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from explorer.engine.calibration import g_test
from explorer.engine.probe import calibration, certify, decide, slope
from explorer.engine.protocol import Engine, EngineReply, EngineRequest
from explorer.engine.scripted import ScriptedEngine
from explorer.engine.tiny import TinyEngine
from explorer.records import CaptureLevel, Certificate, LogprobKind

MODEL = Path(__file__).parents[1] / "data" / "tiny_model"


async def probed(engine: Engine) -> Certificate:
    await engine.start()
    try:
        return await certify(engine, 1)
    finally:
        await engine.stop()


def test_the_tiny_engine_is_certified_processed() -> None:
    certificate = asyncio.run(probed(TinyEngine(MODEL)))
    assert certificate.failures == ()
    assert certificate.passing
    assert certificate.logprob_kind is LogprobKind.PROCESSED
    numbers = certificate.numbers
    assert numbers["slope"]["0.5"] == pytest.approx(2.0, abs=1e-3)
    assert numbers["slope"]["2.0"] == pytest.approx(0.5, abs=1e-3)
    assert numbers["support"]["left"] == 2
    assert numbers["bias_shift"]["1.0"] == pytest.approx(2.0, abs=1e-3)
    assert numbers["bias_shift"]["2.0"] == pytest.approx(1.0, abs=1e-3)
    assert numbers["unary"]["completion_ids"] == numbers["unary"]["usage_completion"]
    assert numbers["stream"]["done"] is True


def test_a_raw_engine_is_told_from_outside_and_refused() -> None:
    certificate = asyncio.run(probed(TinyEngine(MODEL, logprobs_mode="raw_logprobs")))
    assert certificate.capture_level is CaptureLevel.TOKENS
    assert certificate.logprob_kind is LogprobKind.RAW
    assert not certificate.passing
    assert certificate.numbers["slope"]["0.5"] == pytest.approx(1.0, abs=1e-3)
    assert any("raw" in failure for failure in certificate.failures)


def test_a_scripted_engine_is_never_certified() -> None:
    script = [{"when": {"contains": ""}, "text": "ok"}]
    certificate = asyncio.run(probed(ScriptedEngine(script)))
    assert certificate.capture_level is CaptureLevel.TOKENS
    assert certificate.logprob_kind is LogprobKind.UNKNOWN
    assert not certificate.certifiable
    assert not certificate.passing


@pytest.mark.parametrize(
    ("entry", "level"),
    [
        ({"fault": "no_ids"}, CaptureLevel.LOGPROBS),
        ({"fault": "no_prompt_ids"}, CaptureLevel.LOGPROBS),
        ({"fault": "no_logprobs"}, CaptureLevel.TEXT),
        ({"fault": "wrong_usage"}, CaptureLevel.LOGPROBS),
        ({"status": 500}, CaptureLevel.TEXT),
        ({"fault": "placeholder_ids"}, CaptureLevel.TOKENS),
    ],
)
def test_tok_07_what_is_missing_lowers_the_level_before_any_rollout(
    entry: dict[str, Any], level: CaptureLevel
) -> None:
    script = [{"when": {"contains": ""}, "text": "ok"} | entry]
    certificate = asyncio.run(probed(ScriptedEngine(script)))
    assert certificate.capture_level is level
    if level is not CaptureLevel.TOKENS:
        assert certificate.failures


def test_an_engine_that_is_away_gets_a_certificate_that_says_so() -> None:
    from explorer.engine.http import HttpEngine

    certificate = asyncio.run(probed(HttpEngine("http://127.0.0.1:9")))
    assert certificate.engine_name == "unreachable"
    assert not certificate.passing
    assert "is the engine running" in certificate.failures[0]


class Odd(TinyEngine):
    """A real engine whose replies and streams are changed on their way."""

    def __init__(self, change: Any = None, stream: bytes = b"") -> None:
        super().__init__(MODEL)
        self._change, self._stream = change, stream

    async def generate(self, request: EngineRequest) -> EngineReply:
        reply = await super().generate(request)
        if self._change is None:
            return reply
        body = json.loads(reply.body)
        for entry in body["choices"][0]["logprobs"]["content"]:
            for place, item in enumerate(entry["top_logprobs"]):
                item["logprob"] = self._change(place)
        return EngineReply(reply.status, reply.headers, json.dumps(body).encode())

    async def stream(self, request: EngineRequest) -> AsyncIterator[bytes]:
        yield self._stream


@pytest.mark.parametrize(
    "change",
    [
        lambda place: "a",
        lambda place: True,
        lambda place: 1e6 - place,
        lambda place: -(10 ** (300 + place)),
        lambda place: float("nan"),
        lambda place: [place],
    ],
)
def test_alternatives_that_are_no_logprobs_certify_nothing(change: Any) -> None:
    certificate = asyncio.run(probed(Odd(change)))
    assert not certificate.passing
    assert certificate.failures


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices":[5]}',
        b'{"choices":[{"delta":"x"}]}',
        b'{"choices":[{"delta":{"tool_calls":5}}]}',
        b'{"choices":[{"delta":{"tool_calls":[5]}}]}',
        b'{"choices":[{"token_ids":5}]}',
        b'{"choices":[{"logprobs":5}]}',
        b"not JSON",
        b'{"choices":[{"index":{}}]}',
    ],
)
def test_an_odd_stream_is_reported_and_ends_no_probe(event: bytes) -> None:
    certificate = asyncio.run(probed(Odd(stream=b"data: " + event + b"\n\n")))
    assert certificate.passing
    assert any("stream" in failure for failure in certificate.failures)


def test_calibration_agrees_with_processed_and_not_with_raw() -> None:
    async def measured(mode: str) -> float:
        engine = TinyEngine(MODEL, logprobs_mode=mode)
        await engine.start()
        try:
            return (await calibration(engine, draws=160)).z
        finally:
            await engine.stop()

    assert asyncio.run(measured("processed_logprobs")) < 4
    assert asyncio.run(measured("raw_logprobs")) > 4


def test_the_slope_is_free_of_shifts() -> None:
    base = {"a": -0.1, "b": -1.0, "c": -2.5, "d": -4.0}
    halved = {token: value / 2 - 7 for token, value in base.items()}
    assert slope(base, halved) == pytest.approx(0.5)
    assert slope(base, {"a": -1.0}) is None


GOOD_SHIFT = {"1.0": 2.0, "2.0": 1.0}


@pytest.mark.parametrize(
    ("slopes", "left", "shifts", "logits", "kind"),
    [
        ({"0.5": 2.0, "2.0": 0.5}, 2, GOOD_SHIFT, False, LogprobKind.PROCESSED),
        ({"0.5": 2.0, "2.0": 0.5}, 2, GOOD_SHIFT, True, LogprobKind.LOGITS),
        ({"0.5": 2.0, "2.0": 0.5}, 10, GOOD_SHIFT, False, LogprobKind.UNKNOWN),
        ({"0.5": 2.0, "2.0": 0.5}, 2, {"1.0": 0.0, "2.0": 0.0}, False, LogprobKind.UNKNOWN),
        ({"0.5": 2.0, "2.0": 0.5}, 2, None, False, LogprobKind.UNKNOWN),
        ({"0.5": 1.0, "2.0": 1.0}, 10, {"1.0": 0.0}, False, LogprobKind.RAW),
        ({"0.5": 1.0, "2.0": 1.0}, 2, GOOD_SHIFT, False, LogprobKind.UNKNOWN),
        ({"0.5": 1.5, "2.0": 0.7}, 2, GOOD_SHIFT, False, LogprobKind.UNKNOWN),
        ({"0.5": None, "2.0": 0.5}, 2, GOOD_SHIFT, False, LogprobKind.UNKNOWN),
    ],
)
def test_only_agreeing_numbers_prove_anything(
    slopes: dict[str, float | None],
    left: int,
    shifts: dict[str, float] | None,
    logits: bool,
    kind: LogprobKind,
) -> None:
    assert decide(slopes, {"asked": 10, "left": left}, shifts, logits) is kind


def test_the_g_test_knows_a_fair_die_from_a_loaded_one() -> None:
    shares = {str(n): 1 / 6 for n in range(6)}
    fair = Counter({str(n): 100 for n in range(6)})
    loaded = Counter({"0": 200, **{str(n): 80 for n in range(1, 6)}})
    assert g_test(fair, shares, 600).z < 1
    assert g_test(loaded, shares, 600).z > 4
    # Draws that the report leaves no room for.
    assert g_test(Counter({"x": 60}), {"a": 1 - math.ulp(1)}, 60).z > 4

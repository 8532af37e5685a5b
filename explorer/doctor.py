"""`rollout-explorer doctor`: the certificate of an engine, in words.

Owns: what is said about a certificate.
"""

from __future__ import annotations

from typing import Any

from explorer.capture.ids import now_us
from explorer.engine.factory import make_engine
from explorer.engine.probe import calibration, certify
from explorer.errors import UpstreamFailed
from explorer.settings import Settings
from explorer.web.api_shapes import certificate_json, plain


async def examine(settings: Settings, *, calibrate: bool) -> dict[str, Any]:
    """Starts the engine, probes it, stops it; the certificate as JSON values."""
    engine = make_engine(settings)
    await engine.start()
    try:
        report = certificate_json(await certify(engine, now_us()))
        if calibrate:
            try:
                outcome = await calibration(engine)
                report["calibration"] = plain(outcome) | {"calibrated": outcome.calibrated}
            except (UpstreamFailed, KeyError, IndexError, TypeError) as error:
                report["calibration"] = {"calibrated": None, "error": str(error)}
    finally:
        await engine.stop()
    return report


def in_words(report: dict[str, Any]) -> str:
    """The report for a terminal."""
    certificate = report["certificate"]
    numbers = certificate["numbers"]
    lines = [
        f"engine        {certificate['engine_name']} {certificate['engine_version']} "
        f"({certificate['engine_kind']})",
        f"model         {certificate['model']}",
        f"fingerprint   {certificate['fingerprint'] or 'unknown'}",
        f"capture       {certificate['capture_level']}",
        f"logprobs      {certificate['logprob_kind']}",
    ]
    for name, label in (
        ("unary", "plain call"),
        ("stream", "stream"),
        ("slope", "A slope"),
        ("normalisation", "B normalised"),
        ("support", "C support"),
        ("bias_shift", "D processors"),
    ):
        if numbers.get(name) is not None:
            lines.append(f"{label:<13} {_numbers(numbers[name])}")
    drawn = report.get("calibration")
    if drawn is not None:
        lines.append(f"E calibration {_numbers(drawn)}")
    lines += [f"note          {failure}" for failure in certificate["failures"]]
    verdict = "trainable" if report["passing"] else "NOT trainable"
    lines.append(f"therefore     calls through this engine are {verdict}")
    return "\n".join(lines)


def _numbers(values: dict[str, Any]) -> str:
    def shown(value: Any) -> str:
        return f"{value:.5g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {shown(value)}" for name, value in values.items())

"""Certifies an engine from outside: what it returns, and what its logprobs are.

Owns: the questions asked of an engine and the numbers that decide.
Must not know: dialects of harnesses, the store.

What a normal reply cannot say, one-token questions can. At a fixed context the top
logprobs at temperature T are z/T - c, so differences between two tokens shrink by T in
processed mode and not at all in raw mode. Greedy proves nothing: both agree at T = 0.

    slope          A  fit of D(T) on D(1): 1/T processed, 1 raw
    normalisation  B  above 0, or summing above 1: logits, not probabilities
    support        C  top_k=2 must floor the third candidate
    processors     D  logit_bias of +2 must shift D by 2/T
    calibration    E  drawn counts against exp(reported), on demand (`calibrate`)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from explorer.engine.calibration import Calibration, calibrate
from explorer.engine.protocol import PROBE_ID, Engine, EngineFacts, EngineRequest
from explorer.engine.reply import ParsedReply, parse_reply
from explorer.engine.token_in import PROBED, find_way
from explorer.errors import UpstreamFailed
from explorer.records import CaptureLevel, Certificate, LogprobKind
from explorer.wire import chat, sse

# Under `numbers`: the model that the replies named, which need not be the one asked for.
MODEL_SERVED = "model_served"
TEMPERATURES = (0.5, 2.0)
TOLERANCE = 0.03  # relative error allowed on slopes and shifts
FLOOR = -9000.0
TOP = 10
# Contexts are tried in turn until one has enough spread; none of them matters itself.
CONTEXTS = (
    "Name one colour.",
    "What is 17 + 25?",
    "Say something surprising about rivers.",
    "Continue: the",
    "Write a long text.",
)
CAPTURE = {
    "return_token_ids": True,
    "logprobs": True,
    "include_reasoning": True,
    "top_p": 1.0,
}
_MIN_SHARED = 4
_MIN_SPREAD = 0.5


@dataclass(slots=True)
class Measured:
    """What was measured so far."""

    level: CaptureLevel = CaptureLevel.TEXT
    kind: LogprobKind = LogprobKind.UNKNOWN
    numbers: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    fingerprint: str | None = None


class Asker:
    """Asks an engine small questions, un-streamed."""

    def __init__(self, engine: Engine, facts: EngineFacts, timeout_s: float) -> None:
        self.engine = engine
        self.facts = facts
        self.timeout_s = timeout_s
        self.asked = 0

    def request(self, content: str, **more: Any) -> EngineRequest:
        """A chat request of one user message."""
        self.asked += 1
        body: dict[str, Any] = {
            "model": self.facts.model,
            "messages": [{"role": "user", "content": content}],
            **CAPTURE,
            **more,
        }
        return EngineRequest(body, f"{PROBE_ID}{self.asked}", self.timeout_s)

    async def ask(self, content: str, **more: Any) -> ParsedReply:
        """The parsed reply."""
        reply = await self.engine.generate(self.request(content, **more))
        return parse_reply(reply.status, reply.body)

    async def top(self, content: str, temperature: float, **more: Any) -> dict[str, float]:
        """Alternatives of one token by their id string (or text), floored ones left out.

        Empty when the engine gave none.
        """
        parsed = await self.ask(
            content,
            temperature=temperature,
            max_tokens=1,
            seed=1,
            top_logprobs=TOP,
            return_tokens_as_token_ids=True,
            **more,
        )
        if parsed.top_logprobs is None:
            return {}
        rows = orjson.loads(parsed.top_logprobs)
        return {
            str(token): float(value)
            for _, token, value in (rows[0] if rows else [])
            if value is not None and value > FLOOR
        }


async def certify(engine: Engine, time_us: int, *, timeout_s: float = 60.0) -> Certificate:
    """Probes an engine; about twelve one-token calls.

    Never raises for what the engine does: an engine that cannot be reached gets a
    certificate that says so.
    """
    measured = Measured()
    try:
        facts = await engine.facts()
    except UpstreamFailed as error:
        facts = EngineFacts("unreachable", "unknown", "unknown", None, None, None, None, True)
        measured.failures.append(error.message)
        return _certificate(engine, facts, measured, time_us)
    measured.fingerprint = facts.fingerprint
    asker = Asker(engine, facts, timeout_s)
    try:
        await _capture_level(asker, measured)
        if not facts.certifiable:
            measured.failures.append(
                f"the {facts.name} engine makes its logprobs up: nothing it says can train"
            )
        elif measured.level is not CaptureLevel.TEXT:
            await _logprob_kind(asker, measured)
        if measured.level is CaptureLevel.TOKENS:
            way = await find_way(asker)
            measured.numbers[PROBED] = None if way is None else way.value
    except UpstreamFailed as error:
        measured.failures.append(f"the probe broke off: {error.message}")
        measured.kind = LogprobKind.UNKNOWN
    measured.numbers["questions"] = asker.asked
    return _certificate(engine, facts, measured, time_us)


def _certificate(
    engine: Engine, facts: EngineFacts, measured: Measured, time_us: int
) -> Certificate:
    numbers = measured.numbers | {
        "max_model_len": facts.max_model_len,
        "tokenizer_sha256": facts.tokenizer_sha256,
        "chat_template_sha256": facts.chat_template_sha256,
        "flags": None if facts.flags is None else list(facts.flags),
    }
    identity = orjson.dumps(
        [engine.kind, facts.name, facts.model, time_us, str(sorted(numbers.items()))]
    )
    return Certificate(
        certificate_id=hashlib.sha256(identity).hexdigest()[:32],
        time_us=time_us,
        engine_kind=engine.kind,
        engine_name=facts.name,
        engine_version=facts.version,
        model=facts.model,
        fingerprint=measured.fingerprint,
        capture_level=measured.level,
        logprob_kind=measured.kind,
        certifiable=facts.certifiable,
        numbers=numbers,
        failures=tuple(measured.failures),
    )


async def _capture_level(asker: Asker, measured: Measured) -> None:
    """One plain and one streamed call: are ids, prompt ids and logprobs there, and do
    the counts agree with usage?"""
    unary = await asker.ask("Say only: ok", temperature=1.0, max_tokens=16, seed=1)
    if unary.failure is not None:
        measured.failures.append(f"a plain call failed: {unary.failure_detail}")
        return
    if unary.body is not None:
        measured.fingerprint = unary.fingerprint or measured.fingerprint
    bad = [f"{note.code} ({note.detail})" for note in unary.notes]
    measured.numbers["unary"] = _counts(unary)
    measured.numbers[MODEL_SERVED] = unary.model
    measured.level = unary.level
    # What was said, and how it was parsed, is no lack of the engine.
    harmless = ("ids_recovered", "tool_call", "arguments_not")
    serious = [text for text in bad if not text.startswith(harmless)]
    if serious:
        measured.failures.append("a plain reply: " + ", ".join(serious))
        if measured.level is CaptureLevel.TOKENS:
            measured.level = CaptureLevel.LOGPROBS
    if unary.logprobs is None:
        measured.level = CaptureLevel.TEXT
    await _stream_level(asker, measured)


async def _stream_level(asker: Asker, measured: Measured) -> None:
    # Calls go up un-streamed, so a stream without ids is reported and costs no level.
    decoder = sse.Decoder()
    events: list[sse.Event] = []
    request = asker.request("Say only: ok", temperature=1.0, max_tokens=16, seed=1)
    try:
        async for chunk in asker.engine.stream(request):
            events += decoder.feed(chunk)
        merged = chat.merge_stream(events)
        parsed = parse_reply(200, orjson.dumps(merged))
    except (UpstreamFailed, ValueError, TypeError, AttributeError) as error:
        measured.failures.append(f"a streamed call failed: {error}")
        return
    measured.numbers["stream"] = _counts(parsed) | {"done": bool(merged.get("_complete"))}
    if parsed.level is not CaptureLevel.TOKENS:
        measured.failures.append(
            "streams carry no token ids; calls are made un-streamed, so nothing is lost"
        )


def _counts(parsed: ParsedReply) -> dict[str, Any]:
    def size(array: Any) -> int | None:
        return None if array is None else int(array.size)

    return {
        "prompt_ids": size(parsed.prompt_ids),
        "completion_ids": size(parsed.completion_ids),
        "logprobs": size(parsed.logprobs),
        "usage_prompt": parsed.usage.get("prompt"),
        "usage_completion": parsed.usage.get("completion"),
    }


async def _logprob_kind(asker: Asker, measured: Measured) -> None:
    context, base = await _context_with_spread(asker)
    if context is None:
        measured.failures.append(
            "no probe context gave at least 4 alternatives with a spread of half a nat; "
            "does the engine cap top_logprobs (vLLM: --max-logprobs)?"
        )
        return
    numbers = measured.numbers
    total = sum(_exp(value) for value in base.values())
    numbers["normalisation"] = {"highest": max(base.values()), "sum": total}
    logits = max(base.values()) > 1e-3 or total > 1.01
    slopes: dict[str, float | None] = {}
    for temperature in TEMPERATURES:
        other = await asker.top(context, temperature)
        slopes[str(temperature)] = slope(base, other)
    numbers["slope"] = slopes
    numbers["support"] = await _support(asker, context, base)
    numbers["bias_shift"] = await _bias_shift(asker, context, base)
    measured.kind = decide(slopes, numbers["support"], numbers["bias_shift"], logits)
    if measured.kind is not LogprobKind.PROCESSED:
        measured.failures.append(_in_words(measured.kind, slopes))


async def _context_with_spread(asker: Asker) -> tuple[str | None, dict[str, float]]:
    for context in CONTEXTS:
        base = await asker.top(context, 1.0)
        if len(base) >= _MIN_SHARED and max(base.values()) - min(base.values()) > _MIN_SPREAD:
            return context, base
    return None, {}


def slope(base: Mapping[str, float], other: Mapping[str, float]) -> float | None:
    """Least-squares slope of all pairwise differences of `other` on those of `base`.

    None when fewer than 4 tokens are shared.
    """
    shared = sorted(set(base) & set(other))
    if len(shared) < _MIN_SHARED:
        return None
    top = bottom = 0.0
    for place, one in enumerate(shared):
        for two in shared[place + 1 :]:
            difference = base[one] - base[two]
            top += difference * (other[one] - other[two])
            bottom += difference * difference
    return top / bottom if bottom else None


async def _support(asker: Asker, context: str, base: Mapping[str, float]) -> dict[str, int]:
    limited = await asker.top(context, 1.0, top_k=2)
    return {"asked": len(base), "left": len(limited)}


async def _bias_shift(
    asker: Asker, context: str, base: Mapping[str, float]
) -> dict[str, float] | None:
    """How far a bias of +2 moved one token against another, by temperature."""
    ranked = sorted(base, key=lambda token: base[token], reverse=True)
    named = [token for token in ranked if token.startswith("token_id:")]
    if len(named) < 2:
        return None
    biased, reference = named[1], named[0]
    bias = {biased.removeprefix("token_id:"): 2.0}
    shifts = {}
    for temperature in (1.0, 2.0):
        plain = base if temperature == 1.0 else await asker.top(context, temperature)
        moved = await asker.top(context, temperature, logit_bias=bias)
        if not {biased, reference} <= set(plain) & set(moved):
            return None
        shifts[str(temperature)] = (moved[biased] - moved[reference]) - (
            plain[biased] - plain[reference]
        )
    return shifts


def decide(
    slopes: Mapping[str, float | None],
    support: Mapping[str, int],
    shifts: Mapping[str, float] | None,
    logits: bool,
) -> LogprobKind:
    """What the numbers prove; anything mixed is `UNKNOWN`."""
    if logits:
        return LogprobKind.LOGITS
    measured = [(float(t), value) for t, value in slopes.items() if value is not None]
    if len(measured) < len(TEMPERATURES):
        return LogprobKind.UNKNOWN
    processed = all(abs(value * t - 1) <= TOLERANCE for t, value in measured)
    raw = all(abs(value - 1) <= TOLERANCE for _, value in measured)
    floored = support["left"] <= 2
    if processed and floored and shifts is not None:
        moved = all(abs(value * float(t) - 2) <= 0.1 for t, value in shifts.items())
        return LogprobKind.PROCESSED if moved else LogprobKind.UNKNOWN
    if raw and not floored:
        still = shifts is None or all(abs(value) <= 0.1 for value in shifts.values())
        return LogprobKind.RAW if still else LogprobKind.UNKNOWN
    return LogprobKind.UNKNOWN


def _in_words(kind: LogprobKind, slopes: Mapping[str, float | None]) -> str:
    if kind is LogprobKind.RAW:
        return (
            "logprobs are raw: temperature, truncation and bias are not in them, so they are "
            "not the probabilities tokens were drawn with (vLLM: --logprobs-mode "
            "processed_logprobs)"
        )
    if kind is LogprobKind.LOGITS:
        return "the numbers are logits, not log-probabilities"
    shown = ", ".join(f"T={t}: {value}" for t, value in slopes.items())
    return f"the tests disagree about what the logprobs are (slopes {shown})"


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


async def calibration(
    engine: Engine, *, draws: int = 200, temperature: float = 2.0, timeout_s: float = 60.0
) -> Calibration:
    """Test E: are tokens drawn with the probabilities that are reported?

    Raises:
        UpstreamFailed: the engine broke off.
    """
    asker = Asker(engine, await engine.facts(), timeout_s)
    context, _ = await _context_with_spread(asker)
    content = context or CONTEXTS[0]

    async def draw(seed: int) -> tuple[str, dict[str, float]]:
        parsed = await asker.ask(
            content,
            temperature=temperature,
            max_tokens=1,
            seed=seed,
            top_logprobs=TOP,
            return_tokens_as_token_ids=True,
        )
        body = parsed.body or {}
        entry = body["choices"][0]["logprobs"]["content"][0]
        listed = {item["token"]: item["logprob"] for item in entry["top_logprobs"]}
        listed.setdefault(entry["token"], entry["logprob"])
        return entry["token"], listed

    return await calibrate(draw, draws)

"""Has the engine score again what it sampled: the noise floor of every comparison with it.

Owns: what can be compared, that the engine has the weights of the rollout while it is asked,
and which sequences are sent. Must not know: HTTP, pages, how the answer is compared.

Where two calls share their beginning, only the longer one is sent: its row holds the other's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from explorer.capture.fence import Fence
from explorer.capture.ids import now_us
from explorer.engine.protocol import Engine
from explorer.engine.rescoring import ScoredRow, score_row
from explorer.errors import RescoringRefused
from explorer.export.deltas import training_calls
from explorer.export.judged import Judged
from explorer.export.telling import Told, ToldCall
from explorer.records import Call, CallId, Certificate
from explorer.store.deltas import LogpsKind
from explorer.trace.mask import sampled_plainly
from explorer.trace.versions import token_versions

# Tokens that one order may send; each is read by the network once more.
MOST_TOKENS = 400_000


@dataclass(frozen=True, slots=True)
class Skipped:
    """A call that is not scored again, and why."""

    call_id: CallId
    why: str


@dataclass(frozen=True, slots=True)
class Rescored:
    """What the engine said, ready to be stored, and what it was not asked about."""

    told: Told
    skipped: tuple[Skipped, ...]
    rows: int
    tokens: int


class Rescoring:
    """Scores one rollout at a time.

    Args:
        engine: started.
        certificate: the newest one of the engine.
        certified: whether a fingerprint is the certified process, with any weights loaded here.
        fence: knows which weights the engine has.
    """

    def __init__(
        self,
        engine: Engine,
        certificate: Callable[[], Certificate | None],
        certified: Callable[[str], bool],
        fence: Fence,
        timeout_s: float,
    ) -> None:
        self._engine = engine
        self._certificate = certificate
        self._certified = certified
        self._fence = fence
        self._timeout_s = timeout_s
        self._one = asyncio.Lock()

    async def __call__(self, judged: Judged) -> Rescored:
        """What the engine makes of a rollout's training tokens now.

        Raises:
            RescoringRefused: it would compare unlike things; the message says which.
            UpstreamFailed: the engine cannot score.
        """
        certificate = self._certificate()
        if certificate is None:
            raise RescoringRefused("the engine was never reached")
        version = self._fence.standing(now_us()).version
        wanted, skipped = self._choose(judged, certificate, version)
        rows = await asyncio.to_thread(_rows, judged, wanted)
        tokens = sum(len(row.ids) for row in rows)
        if tokens > MOST_TOKENS:
            raise RescoringRefused(
                f"{tokens} tokens would have to be read again, {MOST_TOKENS} at most"
            )
        async with self._one:
            scored = [
                await self._score(row, certificate, version, place)
                for place, row in enumerate(rows)
            ]
        calls = tuple(
            ToldCall(part.call_id, each.logps[part.start : part.end].copy())
            for row, each in zip(rows, scored, strict=True)
            for part in row.parts
        )
        source = f"{certificate.engine_name} {certificate.engine_version}"[:80]
        told = Told(LogpsKind.RESCORED, source, version, calls)
        return Rescored(told, skipped, len(rows), tokens)

    def _choose(
        self, judged: Judged, certificate: Certificate, version: int | None
    ) -> tuple[list[Call], tuple[Skipped, ...]]:
        wanted, skipped = [], []
        for call, _ in training_calls(judged):
            why = _why_not(judged, call, certificate, version)
            if why:
                skipped.append(Skipped(call.call_id, why))
            else:
                wanted.append(call)
        if not wanted:
            raise RescoringRefused(
                skipped[0].why if skipped else "no token of this rollout trains",
                skipped=[{"call_id": each.call_id, "why": each.why} for each in skipped],
            )
        return wanted, tuple(skipped)

    async def _score(
        self, row: _Row, certificate: Certificate, version: int | None, place: int
    ) -> ScoredRow:
        """One sequence, while the fence counts it like a call."""
        name = CallId(f"rescore-{place}")
        ticket = self._fence.begin(name, now_us())
        if ticket is None:
            raise RescoringRefused("a trainer is loading weights; try again when it is done")
        try:
            scored = await score_row(
                self._engine, certificate.model, row.ids, name, self._timeout_s
            )
        except BaseException:
            self._fence.leave(name)
            raise
        ended = self._fence.end(name, now_us())
        if ended.notes or ended.version != version or ticket.version != version:
            raise RescoringRefused("the weights changed while the engine was asked")
        known, told = certificate.fingerprint, scored.fingerprint
        if known is not None and told is not None and not self._certified(told):
            raise RescoringRefused(f"the engine calls itself {told} now, and was {known}")
        others = [label for label in row.labels if label != scored.weight_label]
        if scored.weight_label is not None and others:
            raise RescoringRefused(
                f"the engine calls its weights {scored.weight_label} now, and sampled with "
                f"{others[0]}"
            )
        return scored


def _why_not(judged: Judged, call: Call, certificate: Certificate, version: int | None) -> str:
    """Why a call cannot be compared with what the engine would say now; empty when it can."""
    if not sampled_plainly(call):
        return (
            "it was not drawn at temperature 1 from the whole distribution, and an engine "
            "scores a prompt only so: the values would differ without any noise"
        )
    if judged.sequences.problem(call.call_id) is not None:
        return "its prompt ids are not known"
    versions = set(token_versions(call))
    if versions != {version}:
        had = ", ".join("unknown" if each is None else str(each) for each in versions)
        now = "unknown" if version is None else str(version)
        return f"it was sampled with weight version {had}, and the engine has {now}"
    own = judged.record.certificate_of(call)
    if own is None:
        return "nothing was proved about the engine that sampled it"
    for what, then, today in (
        ("engine", own.engine_name, certificate.engine_name),
        ("model", own.model, certificate.model),
        ("fingerprint", own.fingerprint, certificate.fingerprint),
    ):
        if then != today:
            return f"its {what} was {then}, and is {today} now"
    return ""


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a call's sampled ids stand in a row."""

    call_id: CallId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Row:
    ids: tuple[int, ...]
    parts: tuple[_Part, ...]
    labels: tuple[str, ...]


def _rows(judged: Judged, wanted: list[Call]) -> list[_Row]:
    """The fewest sequences that hold every call's row."""
    left = {call.call_id: call for call in wanted}
    masks = judged.judgement.masks
    found = []
    for call in sorted(wanted, key=lambda call: -masks[call.call_id].length):
        if call.call_id not in left:
            continue
        parts, labels = [], []
        for part in _line(judged, call):
            held = left.pop(part.call_id, None)
            if held is not None:
                parts.append(part)
                labels.append(held.engine_weight_label)
        ids = tuple(judged.sequences.full(call.call_id).tolist())
        found.append(
            _Row(ids, tuple(parts), tuple(each for each in labels if each is not None))
        )
    return found


def _line(judged: Judged, call: Call) -> Iterator[_Part]:
    """A call and those whose whole row its row begins with."""
    mask = judged.judgement.masks.get(call.call_id)
    while mask is not None:
        yield _Part(mask.call_id, mask.prompt_len, mask.length)
        mask = mask.parent

"""Keeps the certificate of the engine in force: probes at start, and again when in doubt.

Owns: when an engine counts as certified. After a failure to answer, or a reply with
another fingerprint, nothing is proved until a new probe has passed; calls that end in
between are recorded as not certified.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from explorer.capture.token_in import Book
from explorer.capture.token_in_call import TokenInPlan
from explorer.engine.probe import MODEL_SERVED, certify
from explorer.engine.protocol import Engine
from explorer.engine.suffix import EngineSuffix, SuffixTokenizer
from explorer.engine.token_in import TakesIds
from explorer.errors import ExplorerError
from explorer.records import NOT_CERTIFIED, CaptureLevel, Certificate

log = logging.getLogger(__name__)

UNREACHABLE = "unreachable"
FIRST_RETRY_S, RETRY_S = 0.2, 5.0


class Certifier:
    """The engine as the proxy may see it.

    Args:
        engine: started.
        keep: makes a new certificate durable.
        now_us: the clock (microseconds).
        model: name to ask for while no certificate says one.
        interval_s: time between probes of an engine that gives no cause for doubt
            (seconds); 0 never asks again.
        suffixes: tokenises what conversations add; None lets the engine do it.
    """

    def __init__(
        self,
        engine: Engine,
        keep: Callable[[Certificate], Awaitable[None]],
        now_us: Callable[[], int],
        model: str | None,
        interval_s: float = 0.0,
        suffixes: SuffixTokenizer | None = None,
    ) -> None:
        self._engine = engine
        self._suffixes = suffixes or EngineSuffix(engine)
        self._interval_s = interval_s
        self._routine: asyncio.Task[None] | None = None
        self._keep = keep
        self._now_us = now_us
        self._default_model = model
        self._doubt = True
        self._troubles = 0
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.latest: Certificate | None = None
        # Fingerprints of the certified process with weights that were loaded since.
        self._same_process: set[str] = set()
        # Names the weights that stay for now, None while they change: a probe then would
        # hang on a paused engine, or compare two policies.
        self.steady: Callable[[], int | None] = lambda: 0

    async def start(self) -> None:
        """The first probe; an engine that is away is probed again until it answers."""
        self._loop = asyncio.get_running_loop()
        await self._probe()
        if self._doubt:
            self._again()
        if self._interval_s > 0:
            self._routine = self._loop.create_task(self._now_and_then())

    async def stop(self) -> None:
        """Ends a probe that is under way."""
        tasks, self._task, self._routine = (self._task, self._routine), None, None
        for task in tasks:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _now_and_then(self) -> None:
        """An engine can be restarted in another mode between two calls and keep its
        fingerprint (vLLM's leaves the logprobs mode out): only asking again can tell."""
        while True:
            await asyncio.sleep(self._interval_s)
            steady = self.steady()
            if self._doubt or steady is None:
                continue
            again = await certify(self._engine, self._now_us())
            if self.steady() != steady:
                continue
            # The certificate in force stays while nothing differs: a call that is under way
            # must not lose it for having been asked about.
            if self.latest is None or not self._same(again, self.latest):
                log.warning("engine: a routine probe found another engine: probing again")
                self.trouble()

    async def _probe(self) -> None:
        before, steady = self._troubles, self.steady()
        certificate = await certify(self._engine, self._now_us())
        self.latest = certificate
        self._same_process.clear()
        for failure in certificate.failures:
            log.warning("engine: %s", failure)
        if certificate.engine_name == UNREACHABLE:
            self.trouble()
            return
        await self._keep(certificate)
        # Trouble or new weights while the questions were asked: they may have met two engines.
        self._doubt = self._troubles != before or steady is None or self.steady() != steady
        if self._doubt:
            self._again()

    def _again(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._until_certain())

    async def _until_certain(self) -> None:
        wait_s = FIRST_RETRY_S
        while self._doubt:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_S)
            if self.steady() is None:
                continue
            try:
                await self._probe()
            except ExplorerError as error:
                # The store may be away, too: nothing is certified until both are back.
                log.warning("engine: the certificate is not in force yet: %s", error)

    def level(self) -> CaptureLevel:
        """What the engine is asked for; everything, while nothing is known: the reply
        decides, and a wrong guess loses nothing."""
        if self.latest is None or self.latest.engine_name == UNREACHABLE:
            return CaptureLevel.TOKENS
        return self.latest.capture_level

    def token_in(self, book: Book) -> TokenInPlan:
        """How prompts are continued by their ids: as the probe found, and while in doubt
        about the engine not at all."""
        latest = self.latest
        sure = latest is not None and not self._doubt
        takes = TakesIds.told_by(latest.numbers) if sure and latest else TakesIds()
        return TokenInPlan(book, takes, self._suffixes)

    def model(self) -> str | None:
        """The model name to ask for; None keeps the caller's."""
        if self.latest is None or self.latest.model == "unknown":
            return self._default_model
        return self.latest.model

    def certificate(self, fingerprint: str | None, model: str | None) -> str:
        """The certificate in force, or `NOT_CERTIFIED` while in doubt; from any thread.

        `fingerprint` and `model` are what a reply names itself by, None where it does not.
        """
        latest = self.latest
        if self._doubt or latest is None:
            return NOT_CERTIFIED
        proved = (
            ("fingerprint", latest.fingerprint, fingerprint),
            ("model", latest.numbers.get(MODEL_SERVED), model),
        )
        for what, known, seen in proved:
            if None not in (known, seen) and known != seen and seen not in self._same_process:
                log.warning("engine: %s %s became %s: probing again", what, known, seen)
                self.trouble()
                return NOT_CERTIFIED
        return latest.certificate_id

    def weights_changed(self, fingerprint: str | None) -> None:
        """The certified process has other weights now. What was proved of its logprobs, its
        tokenizer and its template does not depend on them, so the certificate stays in
        force; the next routine probe asks again."""
        if fingerprint is not None:
            self._same_process.add(fingerprint)

    def certified(self, fingerprint: str) -> bool:
        """Whether that is the certified process, with any weights that were loaded here."""
        latest = self.latest
        return fingerprint in self._same_process or (
            latest is not None and latest.fingerprint == fingerprint
        )

    def _same(self, again: Certificate, latest: Certificate) -> bool:
        if again.fingerprint in self._same_process:
            again = replace(again, fingerprint=latest.fingerprint)
        return _conclusions(again) == _conclusions(latest)

    def trouble(self) -> None:
        """The engine may be another one when it answers next; from any thread."""
        self._doubt = True
        self._troubles += 1
        if self._loop is not None:
            # Large replies are read in a worker thread, which has no loop of its own.
            self._loop.call_soon_threadsafe(self._again)


def _conclusions(certificate: Certificate) -> tuple[object, ...]:
    """What a probe found, without the measurements' noise."""
    return (
        certificate.engine_name,
        certificate.engine_version,
        certificate.model,
        certificate.fingerprint,
        certificate.capture_level,
        certificate.logprob_kind,
        certificate.certifiable,
        certificate.numbers.get("tokenizer_sha256"),
        certificate.numbers.get("flags"),
    )

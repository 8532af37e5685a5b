"""When an engine counts as certified: doubt by fingerprint, by model, from any thread."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from explorer.certifier import Certifier
from explorer.engine.protocol import Engine
from explorer.engine.tiny import TinyEngine
from explorer.records import NOT_CERTIFIED, Certificate

MODEL = Path(__file__).parents[1] / "data" / "tiny_model"


async def asked(fingerprint: str | None, model: str | None) -> tuple[str, str, int]:
    """What a reply of that name gets in a worker thread, what a call gets after the new
    probe, and how many probes there were."""
    kept: list[Certificate] = []

    async def keep(certificate: Certificate) -> None:
        kept.append(certificate)

    engine = TinyEngine(MODEL)
    await engine.start()
    certifier = Certifier(engine, keep, lambda: len(kept), None)
    try:
        await certifier.start()
        at_once = await asyncio.to_thread(certifier.certificate, fingerprint, model)
        for _ in range(400):
            later = certifier.certificate(None, None)
            if later != NOT_CERTIFIED:
                break
            await asyncio.sleep(0.05)
        return at_once, later, len(kept)
    finally:
        await certifier.stop()
        await engine.stop()


@pytest.mark.parametrize(("fingerprint", "model"), [("another", None), (None, "another")])
def test_another_engine_is_doubted_also_by_a_large_reply_read_in_a_thread(
    fingerprint: str | None, model: str | None
) -> None:
    at_once, later, probes = asyncio.run(asked(fingerprint, model))
    assert at_once == NOT_CERTIFIED
    assert later != NOT_CERTIFIED
    assert probes == 2


def test_a_reply_that_names_nothing_is_believed() -> None:
    at_once, later, probes = asyncio.run(asked(None, None))
    assert at_once == later != NOT_CERTIFIED
    assert probes == 1


async def routine(modes: list[str]) -> tuple[list[str], int]:
    """Certificate ids seen over time by an engine that is swapped for one of another
    logprobs mode behind the same name and fingerprint."""
    kept: list[Certificate] = []

    async def keep(certificate: Certificate) -> None:
        kept.append(certificate)

    engines = [TinyEngine(MODEL, logprobs_mode=mode) for mode in modes]
    for engine in engines:
        await engine.start()
    current = Swapped(engines[0])
    certifier = Certifier(cast(Engine, current), keep, lambda: len(kept), None, interval_s=0.05)
    seen: list[str] = []
    try:
        await certifier.start()
        seen.append(certifier.certificate(None, None))
        await asyncio.sleep(1.0)
        seen.append(certifier.certificate(None, None))
        current.engine = engines[-1]
        for _ in range(400):
            if len(kept) > 1 and certifier.certificate(None, None) != NOT_CERTIFIED:
                break
            await asyncio.sleep(0.02)
        seen.append(kept[-1].logprob_kind.value)
        return seen, len(kept)
    finally:
        await certifier.stop()
        for engine in engines:
            await engine.stop()


class Swapped:
    """Passes everything on to the engine of the moment."""

    kind = "tiny"

    def __init__(self, engine: TinyEngine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def test_a_silent_restart_in_another_mode_is_found_by_asking_again() -> None:
    seen, kept = asyncio.run(routine(["processed_logprobs", "raw_logprobs"]))
    # While nothing differs the certificate in force stays, however often it is asked.
    assert seen[0] == seen[1] != NOT_CERTIFIED
    assert seen[2] == "raw"
    assert kept == 2


def test_trouble_in_the_middle_of_a_probe_is_not_forgotten_when_it_ends() -> None:
    async def work() -> tuple[str, str, int]:
        probes: list[Certificate] = []

        async def keep(certificate: Certificate) -> None:
            probes.append(certificate)
            if len(probes) == 1:
                certifier.trouble()

        engine = TinyEngine(MODEL)
        await engine.start()
        certifier = Certifier(engine, keep, lambda: len(probes), None)
        try:
            await certifier.start()
            at_once = certifier.certificate(None, None)
            for _ in range(400):
                later = certifier.certificate(None, None)
                if later != NOT_CERTIFIED:
                    break
                await asyncio.sleep(0.05)
            return at_once, later, len(probes)
        finally:
            await certifier.stop()
            await engine.stop()

    at_once, later, probes = asyncio.run(work())
    assert at_once == NOT_CERTIFIED
    assert later != NOT_CERTIFIED
    assert probes == 2


def test_weights_that_are_loaded_on_purpose_do_not_cost_the_certificate() -> None:
    async def main() -> None:
        engine = TinyEngine()
        await engine.start()
        kept: list[Certificate] = []

        proved = asyncio.Event()

        async def keep(certificate: Certificate) -> None:
            kept.append(certificate)
            proved.set()

        certifier = Certifier(engine, keep, lambda: 1, None)
        await certifier.start()
        own = certifier.certificate(kept[0].fingerprint, None)
        assert own == kept[0].certificate_id
        certifier.weights_changed("tiny-1-step8")
        assert certifier.certificate("tiny-1-step8", None) == own
        # One that nobody announced is another engine.
        assert certifier.certificate("tiny-1-other", None) == NOT_CERTIFIED
        # While weights change nothing can be proved.
        certifier.steady = lambda: None
        await asyncio.sleep(0.5)
        assert len(kept) == 1
        certifier.steady = lambda: 1
        proved.clear()
        await asyncio.wait_for(proved.wait(), 20)
        assert len(kept) == 2
        await certifier.stop()
        await engine.stop()

    asyncio.run(main())

"""When an engine counts as certified: doubt by fingerprint, by model, from any thread."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from explorer.certifier import Certifier
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

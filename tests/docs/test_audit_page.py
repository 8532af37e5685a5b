"""Every key of a real Capture audit is on its reference page, and no key that is not."""

from __future__ import annotations

import re
from pathlib import Path

import orjson

from tests.trace.build import record, two_turns
from tests.trace.test_audit import written

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "capture-audit.md"


def keys_of(section: str) -> set[str]:
    """The keys in the first column of a section's tables."""
    text = PAGE.read_text("utf-8").split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`[^|]*?) \|", text, re.M)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


def test_every_key_is_documented() -> None:
    first, second = two_turns()
    document = orjson.loads(written(record(first, second)))
    assert keys_of("The document") == set(document)
    assert keys_of("Totals") == set(document["totals"])
    assert keys_of("A call") == set(document["calls"][0])

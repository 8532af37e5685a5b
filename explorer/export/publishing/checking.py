"""Checks a dataset whole: the record, every other format, and the card.

Owns: what belongs to such a check. Must not know: what any part of it looks at.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from explorer.export.adapters.registry import adapters_of
from explorer.export.card.check import card_problems
from explorer.export.dataset.checking import check_dataset
from explorer.export.dataset.manifest import CARD, read_manifest
from explorer.trace.verify import Report


def check_folder(folder: Path) -> Report:
    """The report of `check_dataset`, and where the card says something else.

    Raises:
        InvalidValue: the manifest cannot be read.
    """
    report = check_dataset(folder, adapters_of)
    card = folder / CARD
    if not card.exists():
        return replace(report, notes=(*report.notes, f"it has no card ({CARD})"))
    try:
        text = card.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems: tuple[str, ...] = (f"{CARD} cannot be read: {str(error)[:80]}",)
    else:
        problems = tuple(
            f"{CARD}: {words}" for words in card_problems(text, read_manifest(folder))
        )
    return replace(report, ok=report.ok and not problems, problems=report.problems + problems)

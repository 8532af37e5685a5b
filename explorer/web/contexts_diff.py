"""What a difference between two texts says, every field documented.

Owns: `TextDiff` and its lines. Must not know: what the texts are.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer.web.contexts import said


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of a difference, or a fold of equal ones."""

    kind: str = said("`same`, `gone` (only before), `new` (only after) or `fold`.")
    text: str = said("The line, cut when it is long; of a fold, what it leaves out.")
    head: str = said("How the changed part of a line begins, where both lines share it.")
    tail: str = said("How it ends, likewise.")
    count: int = said("Equal lines in a fold, else 1.")


@dataclass(frozen=True, slots=True)
class TextDiff:
    """The difference of two texts, line by line, equal runs folded."""

    title: str = said("What is compared.")
    before: str = said("Name of the first side.")
    after: str = said("Name of the second side.")
    equal: bool = said("Whether both sides are the same.")
    lines: tuple[DiffLine, ...] = said("The lines.")
    gone: int = said("Lines only the first side has.")
    new: int = said("Lines only the second side has.")
    note: str = said("What was left out or could not be compared, and why.")

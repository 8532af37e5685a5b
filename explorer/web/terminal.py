"""Terminal output with its colours as classes; every other control stays visible.

Owns: which escape sequences are colours. Must not know: HTML.

Only the codes that set a colour or weight are taken out of the text. Moving the cursor,
setting a title or a link could hide text or forge it, so those are spelled out.
"""

from __future__ import annotations

import re
from typing import Final

from explorer.web.pretty import safe_text

_COLOUR: Final = re.compile(r"\x1b\[([0-9;]{0,24})m")
MOST_RUNS: Final = 600


def terminal_runs(text: str) -> tuple[tuple[str, str], ...]:
    """The text in runs of one look, as class and safe text; empty without colours."""
    if "\x1b[" not in text:
        return ()
    runs: list[tuple[str, str]] = []
    at, colour, bold = 0, "", ""
    for found in _COLOUR.finditer(text):
        if len(runs) >= MOST_RUNS:
            break
        _add(runs, colour, bold, text[at : found.start()])
        at = found.end()
        colour, bold = _after(found[1], colour, bold)
    _add(runs, colour, bold, text[at:])
    return tuple(runs) if at else ()


def _add(runs: list[tuple[str, str]], colour: str, bold: str, text: str) -> None:
    if text:
        runs.append((f"{colour} {bold}".strip(), safe_text(text)))


def _after(codes: str, colour: str, bold: str) -> tuple[str, str]:
    numbers = [int(code) if code else 0 for code in codes.split(";")]
    if numbers[:1] in ([38], [48]):
        # One of 256 or more colours: no class says it, so it is shown as plain text.
        return ("" if numbers[0] == 38 else colour), bold
    for number in numbers:
        if number == 0:
            colour, bold = "", ""
        elif number == 1:
            bold = "ab"
        elif number == 22:
            bold = ""
        elif number == 39:
            colour = ""
        elif 30 <= number <= 37 or 90 <= number <= 97:
            colour = f"a{number % 10}"
    return colour, bold

"""Cells of CSV files that people open in spreadsheets.

Owns: which text a spreadsheet would run, and what is done about it.
Must not know: which columns there are.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

# What spreadsheets take for a formula, in their full-width forms, too.
_RISKY = tuple("=+-@＝＋－＠")
_CONTROL = ("\t", "\r", "\n")


def safe_cell(value: Any) -> Any:
    """A value for CSV: text that a spreadsheet would run gets an apostrophe in front.

    Numbers keep their sign. Only CSV needs this: the other forms have types.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return value
    risky = value[:1] in _CONTROL or value.lstrip()[:1] in _RISKY
    return f"'{value}" if value.strip() and risky else value


def one_line(value: Any) -> Any:
    """A text without its line breaks, which stand as `\\n` and `\\r`; others as they are."""
    if isinstance(value, str):
        return value.replace("\r", "\\r").replace("\n", "\\n")
    return value


def csv_line(values: Iterable[Any]) -> bytes:
    """Safe cells as one line without its end, whatever line breaks are in them."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(
        [one_line(safe_cell(value)) for value in values]
    )
    return buffer.getvalue().encode("utf-8", "backslashreplace")

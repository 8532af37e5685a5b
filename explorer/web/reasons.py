"""Why a token trains or does not, in one line each: as pages say it."""

from __future__ import annotations

from explorer.trace.reason_words import MEANINGS

__all__ = ["MEANINGS"]

"""Tells an engine that is set up wrongly from a call that went wrong.

Owns: counting what is found as calls arrive, and when the same lack in a row becomes the
engine's fault. Must not know: pages, what a verdict is.

The checks are those of the verdict. An engine that was certified for token ids and gives
none, call after call, was restarted without the option: hours of rollouts would be empty, one
by one, each with a finding that nobody reads. So after a few of them new training rollouts are
refused with that reason, until a probe has found the engine well again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from explorer.errors import EngineSetUpWrong
from explorer.records import Call, CallStatus, Purpose
from explorer.trace.checks import check_call
from explorer.trace.findings import FINDINGS

log = logging.getLogger(__name__)

# What only the engine's own set-up leaves out of a whole reply.
SET_UP_CODES = ("no_prompt_ids", "ids_missing", "no_logprobs")
LIMIT = 5


class SetUpWatch:
    """Findings of calls as they are stored.

    Args:
        on_trouble: called once each time the engine is found to be set up wrongly.
    """

    def __init__(self, on_trouble: Callable[[], None] = lambda: None) -> None:
        self._on_trouble = on_trouble
        self._in_a_row: dict[str, int] = dict.fromkeys(SET_UP_CODES, 0)
        self.found: Counter[str] = Counter()
        self.reason = ""

    def saw(self, call: Call, *, promised: bool) -> None:
        """Looks at a call that was just stored.

        Args:
            promised: whether the engine was certified to give token ids when it was asked.
        """
        if call.status is not CallStatus.COMMITTED or call.injected:
            return
        codes = {finding.code for finding in check_call(call)}
        self.found.update(codes)
        if not promised:
            return
        for code in SET_UP_CODES:
            self._in_a_row[code] = self._in_a_row[code] + 1 if code in codes else 0
        if self.reason:
            return
        worst = max(SET_UP_CODES, key=self._in_a_row.__getitem__)
        if self._in_a_row[worst] >= LIMIT:
            spec = FINDINGS[worst]
            self.reason = (
                f"The last {self._in_a_row[worst]} calls lack what the engine was certified to "
                f"give. {spec.meaning} {spec.hint}"
            )
            log.error("engine: %s", self.reason)
            self._on_trouble()

    def probed(self) -> None:
        """The engine has a new certificate: what it says counts from here."""
        self._in_a_row = dict.fromkeys(SET_UP_CODES, 0)
        self.reason = ""

    def check(self, purpose: Purpose) -> None:
        """Raises:
        EngineSetUpWrong: a rollout to train from would be empty.
        """
        if self.reason and purpose is Purpose.TRAIN:
            raise EngineSetUpWrong(
                f"{self.reason} New rollouts to train from are refused until a probe finds the "
                "engine well; `purpose: eval` records all the same."
            )

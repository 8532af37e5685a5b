"""Sampled ids to text, one at a time: held-back characters and stop strings.

Owns: `TextTrail`. Must not know: sampling, requests, replies.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from explorer.engine.tiny.parts import Spellings


class TextTrail:
    """The text of one generation; call it with each id, it answers a matched stop string.

    Special tokens are left out of the text unless `keep_special`. A character whose bytes are
    spread over several tokens appears with the last of them.
    """

    def __init__(
        self,
        tokenizer: Spellings,
        stop: Sequence[str] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        keep_special: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = [text for text in stop if text]
        self._include_stop, self._min_tokens = include_stop, min_tokens
        self._keep_special = keep_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._longest = max(map(len, self._stop), default=0)
        self._seen = 0
        self.text = ""
        self.pieces: list[str] = []

    def __call__(self, token_id: int) -> str | None:
        """Add one id; gives the stop string that it completed, and cuts the text there."""
        self._seen += 1
        piece = ""
        if self._keep_special or not self._tokenizer.is_special(token_id):
            piece = self._decoder.decode(self._tokenizer.raw(token_id))
        before = len(self.text)
        self.text += piece
        self.pieces.append(piece)
        if not piece or not self._longest or self._seen <= self._min_tokens:
            return None
        for stop in self._stop:
            place = self.text.find(stop, max(0, before - len(stop) + 1))
            if place >= 0:
                self.text = self.text[: place + (len(stop) if self._include_stop else 0)]
                return stop
        return None

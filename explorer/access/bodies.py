"""How large a request body may be, before anything reads it.

Owns: the limit by address, by the announced length and by counting what comes.
Must not know: what bodies mean. Calls of harnesses have limits of their own.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from explorer.errors import BadRequest, BodyTooLarge

Receive = Callable[[], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits in bytes: `most`, and more at addresses that match a pattern.

    Attributes:
        setting: what to raise when a body is too large.
    """

    most: int = 1024 * 1024
    larger: tuple[tuple[re.Pattern[str], int], ...] = ()
    setting: str = "ROLLOUT_EXPLORER_MAX_REQUEST_BYTES"

    def at(self, path: str) -> int:
        """The limit at an address."""
        return next((most for where, most in self.larger if where.fullmatch(path)), self.most)

    def check_length(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Raises:
        BodyTooLarge: the announced length is over the limit.
        BadRequest: it is no number.
        """
        announced = headers.get(b"content-length")
        if announced is None:
            return
        if not announced.isdigit():
            raise BadRequest("Content-Length is not a number")
        # A number of very many digits is too large whatever they are.
        if len(announced) > 18 or int(announced) > self.at(path):
            raise self._too_large(path)

    def counted(self, path: str, receive: Receive) -> Receive:
        """`receive`, which ends with an error once more than the limit has come."""
        most, size = self.at(path), 0

        async def counting() -> dict[str, Any]:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > most:
                raise self._too_large(path)
            return message

        return counting

    def _too_large(self, path: str) -> BodyTooLarge:
        return BodyTooLarge(
            f"a request to this address takes at most {self.at(path)} bytes "
            f"({self.setting} is the limit of most)"
        )

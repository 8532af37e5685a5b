"""Whoever passes the gate of a dataset on the Hub: asked there, with their own token.

Owns: the question, when it is asked again, and whose token may be sent where.
Must not know: grants, routes.

The Hub keeps the list of who was let in, so it is asked at each download, and a person who
was put out there is refused here by the next one. For looking at pages an answer holds for a
minute. A token goes to the Hub only if the Hub gave it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from urllib.parse import quote

from explorer.access.outbound import Outbound
from explorer.access.people import Caller
from explorer.access.sessions import Sessions
from explorer.errors import AddressRefused, RemoteFailed
from explorer.sign_in_settings import HUGGING_FACE

log = logging.getLogger(__name__)

HOLDS_S = 60.0
MOST_ASKED = 8
_KEPT = 4096
_LETS_IN = 200


class HubGate:
    """Asks the Hub.

    Args:
        outbound: without cookies; the token is sent by call.
        sessions: hold the tokens that the Hub gave to people, in memory.
        endpoint: address of the Hub.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        outbound: Outbound,
        sessions: Sessions,
        endpoint: str,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._outbound = outbound
        self._sessions = sessions
        self._endpoint = endpoint.rstrip("/")
        self._clock = clock
        self._answers: OrderedDict[tuple[str, str], tuple[float, bool]] = OrderedDict()

    async def passed(
        self, caller: Caller, datasets: tuple[str, ...], fresh: bool
    ) -> frozenset[str]:
        """Which of some datasets let this person in; none where they cannot be asked.

        Args:
            datasets: `namespace/name`.
            fresh: ask again even if it was asked a moment ago.
        """
        if caller.person is None or caller.person.provider != HUGGING_FACE:
            return frozenset()
        token = self._sessions.provider_token(caller.session_hash)
        if token is None:
            return frozenset()
        wanted = tuple(dict.fromkeys(datasets))[:MOST_ASKED]
        return frozenset(
            [
                name
                for name in wanted
                if await self._lets_in((caller.session_hash, name), token.access_token, fresh)
            ]
        )

    async def _lets_in(self, key: tuple[str, str], token: str, fresh: bool) -> bool:
        at, answer = self._answers.get(key, (0.0, False))
        if not fresh and key in self._answers and self._clock() - at < HOLDS_S:
            return answer
        found = await self._ask(key[1], token)
        self._answers[key] = (self._clock(), found)
        self._answers.move_to_end(key)
        while len(self._answers) > _KEPT:
            self._answers.popitem(last=False)
        return found

    async def _ask(self, dataset: str, token: str) -> bool:
        """Where `HfApi.auth_check` asks, which keeps one client with cookies for everybody."""
        url = f"{self._endpoint}/api/datasets/{quote(dataset, safe='/')}/auth-check"
        try:
            reply = await self._outbound.request(
                "GET", url, headers={"authorization": f"Bearer {token}"}, timeout=10.0
            )
        except (RemoteFailed, AddressRefused) as error:
            # No answer is no leave.
            log.warning("the Hub could not be asked about %s: %s", dataset, error.message)
            return False
        return reply.status == _LETS_IN

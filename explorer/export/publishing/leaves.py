"""With whose token a job publishes: in memory for as long as it takes, never on disk.

Owns: which token belongs to which job or schedule, and who gave it.
Must not know: what a token may do at the Hub, jobs.

Two kinds. A token that was typed in is kept until its job is over. The provider's token of
somebody who signed in stays with their session, and is asked for each time: it ends when the
session does. After a restart there is neither, and whoever wants to go on gives it again. The
server's own token is none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from explorer.access.people import Caller

# The provider's token of a session, by the session's hash; None where there is none.
TokenOfSession = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Leave:
    """Who lets a job publish, and the token that they typed; empty for their session's."""

    caller: Caller
    typed: str = field(default="", repr=False)


class Leaves:
    """The tokens in use.

    Args:
        of_session: finds the provider's token of a session.
    """

    def __init__(self, of_session: TokenOfSession) -> None:
        self._of_session = of_session
        self._held: dict[str, Leave] = {}

    def give(self, key: str, caller: Caller, typed: str = "") -> None:
        """Holds a token for a job or schedule."""
        self._held[key] = Leave(caller, typed)

    def pass_on(self, key: str, to: str) -> None:
        """Lets a schedule's job use what the schedule was given."""
        if key in self._held:
            self._held[to] = self._held[key]

    def token(self, key: str) -> str | None:
        """The token to use now; None where it has to be given again."""
        held = self._held.get(key)
        return None if held is None else self._token(held)

    def usable(self, caller: Caller, typed: str) -> bool:
        """Whether this would give a token now."""
        return self._token(Leave(caller, typed)) is not None

    def caller(self, key: str) -> Caller | None:
        """Who gave it; None where nobody has, or the server was started since."""
        held = self._held.get(key)
        return None if held is None else held.caller

    def drop(self, key: str) -> None:
        """Forgets a token."""
        self._held.pop(key, None)

    def _token(self, held: Leave) -> str | None:
        if held.typed:
            return held.typed
        return self._of_session(held.caller.session_hash) if held.caller.session_hash else None

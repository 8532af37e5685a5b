"""Whether the public address leads to this very process.

Owns: the probe of that address, when it is made, and what follows from its answer.
Must not know: what is refused meanwhile.

A tunnel of yesterday, or one that another server took over, would send every harness into
nothing or to strangers. So the address is asked for this process's own number, on a timer and
before a rollout is created. It is asked from this machine: what only the world outside cannot
reach is not noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from urllib.parse import urlsplit

import orjson

from explorer.access.outbound import Outbound, OutboundPolicy
from explorer.errors import AddressRefused, PublicAddressDead, RemoteFailed

log = logging.getLogger(__name__)

# An answer as fresh as this is good enough for a new rollout (seconds).
FRESH_S = 10.0
_DEAD_FRESH_S = 1.0
_RETRY_S = 10.0
_FIRST_S = 1.0


class PublicAddress:
    """Watches one public address.

    Args:
        url: the base address; None where there is none.
        interval_s: time between probes; 0 never asks (seconds).
    """

    def __init__(self, url: str | None, interval_s: float) -> None:
        self.instance = secrets.token_hex(16)
        self.reason = ""
        self._url = (url or "").rstrip("/")
        self._interval_s = interval_s
        self._asked = float("-inf")
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._outbound = (
            Outbound(OutboundPolicy.listing(_listed(self._url))) if self.on else None
        )

    @property
    def on(self) -> bool:
        """Whether there is an address to ask."""
        return bool(self._url) and self._interval_s > 0

    def start(self) -> None:
        """Begins to watch; needs a running loop."""
        if self.on:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Ends it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._outbound is not None:
            await self._outbound.aclose()

    async def require(self) -> None:
        """Asks now, unless that was done just before.

        Raises:
            PublicAddressDead: another server or nobody answers there.
        """
        if not self.on:
            return
        async with self._lock:
            # Many who wait for a dead address share one answer.
            fresh = _DEAD_FRESH_S if self.reason else FRESH_S
            if time.monotonic() - self._asked > fresh:
                await self._probe()
        if self.reason:
            raise PublicAddressDead(
                f"{self.reason}; no rollout is created while harnesses could not reach it: "
                "start the tunnel again, or correct ROLLOUT_EXPLORER_PUBLIC_URL"
            )

    async def _watch(self) -> None:
        # The server begins to listen after everything else was started.
        await asyncio.sleep(_FIRST_S)
        while True:
            async with self._lock:
                before = self.reason
                await self._probe()
            if self.reason and self.reason != before:
                log.warning("%s", self.reason)
            elif before and not self.reason:
                log.info("the public address leads here again")
            pause = min(_RETRY_S, self._interval_s) if self.reason else self._interval_s
            await asyncio.sleep(pause)

    async def _probe(self) -> None:
        assert self._outbound is not None
        try:
            # A connection that was kept open may outlive the tunnel's name.
            reply = await self._outbound.request(
                "GET", f"{self._url}/healthz", headers={"connection": "close"}
            )
            found = orjson.loads(reply.body) if reply.status == 200 else None
        except (RemoteFailed, AddressRefused) as error:
            self.reason = f"the public address {self._url} does not answer ({error.message})"
        except orjson.JSONDecodeError:
            self.reason = self._foreign()
        else:
            known = isinstance(found, dict) and found.get("instance") == self.instance
            self.reason = "" if known else self._foreign()
        self._asked = time.monotonic()

    def _foreign(self) -> str:
        return f"the public address {self._url} leads to another server than this one"


def _listed(url: str) -> list[str]:
    """The operator named this address, so it may be private; https of it, too."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return [f"{host}:{port}", f"{host}:443"]

"""How often somebody may ask: token buckets in memory.

Owns: the buckets, how many are kept, and what counts as one address.
Must not know: what is asked for, who may ask at all.

A bucket holds up to a burst of tokens and fills at the rate; each request takes one. The
table has a bound: the bucket that was used least recently goes first. One network of IPv6
(a /64) is one address, because whoever has one address of it has all of them.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from explorer.access.proxies import read_address

MOST_BUCKETS = 20_000


class Limiter:
    """One rate for many keys. Safe from any thread.

    Args:
        per_minute: tokens that come back in a minute; 0 sets no limit.
        burst: tokens that a rested bucket holds.
        most: buckets that are kept.
        clock: seconds, from any start.
    """

    def __init__(
        self,
        per_minute: float,
        burst: int,
        *,
        most: int = MOST_BUCKETS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_s = per_minute / 60
        self._burst = float(burst)
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        # Key to (tokens, when that was so); the least recently used first.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str, cost: float = 1) -> float | None:
        """Takes `cost` tokens: None when they were there, else the seconds to wait.

        A refused request takes nothing.
        """
        if self._per_s <= 0:
            return None
        with self._lock:
            now = self._clock()
            tokens, since = self._buckets.pop(key, (self._burst, now))
            tokens = min(self._burst, tokens + max(0.0, now - since) * self._per_s)
            # What costs more than a whole bucket must find it full.
            due = min(cost, self._burst)
            allowed = tokens >= due
            self._buckets[key] = (tokens - due if allowed else tokens, now)
            while len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        return None if allowed else (due - tokens) / self._per_s


def address_key(host: str | None) -> str:
    """The key of a client's address: an IPv4 address, or the /64 of an IPv6 one."""
    address = read_address(host or "")
    if address is None:
        return "address:unknown"
    if isinstance(address, ipaddress.IPv6Address):
        network = ipaddress.IPv6Network((int(address) >> 64 << 64, 64))
        return f"address:{network}"
    return f"address:{address}"

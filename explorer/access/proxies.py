"""Who really asks, behind reverse proxies: forwarded headers of listed ones only.

Owns: which peers are proxies of ours, and reading the two headers that are believed.
Must not know: what is decided by the address.

A proxy appends the address it was asked from to ``X-Forwarded-For``; what stands further
left was sent by the client and may be made up. So the list is read from the right, over
proxies of ours, to the first address that is none.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Scope = dict[str, Any]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# More hops than any real chain has; what lies beyond is not read.
MOST_HOPS = 32


@dataclass(frozen=True, slots=True)
class Proxies:
    """The reverse proxies in front of this server."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, listed: Iterable[str]) -> Proxies:
        """From addresses and networks as text."""
        return cls(tuple(ipaddress.ip_network(each, strict=False) for each in listed))

    def lists(self, address: Address | None) -> bool:
        """Whether an address is one of a proxy of ours."""
        return address is not None and any(address in network for network in self.networks)

    def seen_through(self, scope: Scope) -> Scope:
        """The scope with the client and the scheme that a listed proxy tells of; as it is
        when the peer is not listed."""
        client = scope.get("client")
        if not self.networks or not client or not self.lists(read_address(client[0])):
            return scope
        chain = _values(scope, b"x-forwarded-for")[-MOST_HOPS:]
        found: str = client[0]
        for text in reversed(chain):
            address = read_address(text)
            if address is None:
                break  # not written by a proxy that we know how to read
            found = str(address)
            if not self.lists(address):
                break
        made = scope | {"client": (found, 0)}
        schemes = _values(scope, b"x-forwarded-proto")
        if schemes and schemes[-1].lower() in ("http", "https"):
            made["scheme"] = schemes[-1].lower()
        return made


def read_address(text: str) -> Address | None:
    """An address as headers and sockets have it, with or without a port; an IPv4 address
    in IPv6 clothes is the IPv4 address."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def _values(scope: Scope, wanted: bytes) -> list[str]:
    """The comma-separated values of every header of one name, in order."""
    return [
        part.strip()
        for name, value in scope["headers"]
        if name == wanted
        for part in value.decode("latin-1").split(",")
    ]

"""Headers of a call that tell of the network a harness runs in, not of what it asked.

Owns: which these are. Must not know: who may see them.
"""

from __future__ import annotations

from dataclasses import replace

from explorer.records import Body

_BEGINNINGS = (
    *("host", "via", "forwarded", "x-forwarded-", "x-original-", "x-real-ip", "x-client-ip"),
    *("true-client-ip", "x-envoy-", "x-amz", "x-azure-", "cf-", "fly-"),
)


def without_places(bodies: tuple[Body, ...]) -> tuple[Body, ...]:
    """Bodies without the headers that name machines and addresses."""
    return tuple(
        replace(
            body,
            headers=tuple(
                pair for pair in body.headers if not pair[0].lower().startswith(_BEGINNINGS)
            ),
        )
        for body in bodies
    )

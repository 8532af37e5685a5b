"""The weight fence in words and numbers, for the engine page and for `/metrics`.

Owns: how it is told. Must not know: when it shuts.
"""

from __future__ import annotations

from explorer.capture.fence import FenceState, Standing
from explorer.capture.fence_desk import FenceDesk
from explorer.web.words import iso


def fence_words(standing: Standing) -> str:
    """How the fence stands, in one line."""
    version = "no version was announced"
    if standing.version is not None:
        version = f"version {standing.version}"
    elif standing.doubt:
        version = f"unknown: {standing.doubt}"
    if standing.state is FenceState.READY:
        return version
    until = iso(standing.lease_expires_us) or "its lease is over"
    return (
        f"{version}; version {standing.coming} is being loaded, and new calls wait until it is "
        f"ready, at the latest until {until}"
    )


def fence_metrics(fences: FenceDesk) -> str:
    """Prometheus exposition; a version that nobody knows has no sample."""
    standing = fences.standing()
    rows: dict[str, int] = {
        "fence_syncing": int(standing.state is FenceState.SYNCING),
        "fence_version_unknown": int(bool(standing.doubt)),
        "fence_waiting_calls": fences.waiting,
        "fence_in_flight_calls": standing.in_flight,
    }
    if standing.version is not None:
        rows["fence_weight_version"] = standing.version
    return "".join(f"rollout_explorer_{name} {value}\n" for name, value in rows.items())

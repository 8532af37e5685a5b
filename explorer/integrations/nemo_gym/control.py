"""Reads what the proxy knows of a rollout's custody, without tokens.

Owns: the two addresses of a manifest, the bearer token, what a refusal says.
Must not know: tokens, receipts.
"""

from __future__ import annotations

from urllib.parse import quote

import aiohttp

from explorer.custody.errors import RecordError
from explorer.custody.fields import loads
from explorer.custody.records import RolloutManifest
from explorer.errors import ExplorerError

# The address that NeMo Gym's own servers answer at, and this server's own.
PEER_PATH = "/training-token-capture/control/rollouts/{rollout_id}/manifest"
OWN_PATH = "/api/v1/rollouts/{rollout_id}/custody/manifest"
_LARGEST = 256 * 1024 * 1024


class ControlError(ExplorerError):
    """No manifest: the server refused, gave something else, or is not there."""


class RolloutControlClient:
    """Reads manifests.

    Args:
        url: base address of the server.
        token: the bearer token; it is sent and told to nobody else.
        timeout_s: longest wait for one answer (seconds).
        path: where manifests are; `PEER_PATH` is answered by NeMo Gym's servers as well.
    """

    def __init__(
        self, url: str, token: str, timeout_s: float = 30.0, path: str = PEER_PATH
    ) -> None:
        self._url, self._path = url.rstrip("/"), path
        self._headers = {"Authorization": f"Bearer {token}"}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    def __repr__(self) -> str:
        return f"RolloutControlClient({self._url!r})"

    async def manifest(self, rollout_id: str) -> RolloutManifest:
        """Every committed call and every failure; empty for an unknown rollout.

        Raises:
            ControlError: there is none, or it is another rollout's.
        """
        address = self._url + self._path.format(rollout_id=quote(rollout_id, safe=""))
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.get(address, headers=self._headers, allow_redirects=False) as response,
            ):
                raw = await _body(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ControlError(f"{self._url} did not answer: {type(error).__name__}") from error
        if response.status != 200:
            said = raw[:300].decode("utf-8", "replace")
            raise ControlError(f"no manifest of {rollout_id!r}: {response.status} {said}")
        try:
            found = RolloutManifest.parse(loads(raw))
        except RecordError as error:
            raise ControlError(f"the manifest of {rollout_id!r}: {error.detail}") from error
        if found.rollout_id != rollout_id:
            raise ControlError(f"asked for {rollout_id!r}, got {found.rollout_id!r}")
        return found


async def _body(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_chunked(1 << 16):
        raw += chunk
        if len(raw) > _LARGEST:
            raise ControlError(f"the manifest has more than {_LARGEST} bytes")
    return bytes(raw)

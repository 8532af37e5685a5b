"""A thin client of the HTTP API, for the demo, commands and trainers.

Owns: addresses, the operator's token and errors of the API.
Must not know: anything inside the server; it speaks HTTP like anyone else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import aiohttp
import orjson

from explorer.errors import ExplorerError


class ApiError(ExplorerError):
    """The server refused; `code`, `status` and details are its own."""

    def __init__(
        self, status: int, code: str, message: str, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.http_status = status
        self.api_code = code
        self.details = details or {}

    @classmethod
    def read(cls, status: int, raw: bytes) -> ApiError:
        """From the body of a refusal, whatever it is."""
        try:
            error = orjson.loads(raw)["error"]
            code, message = str(error["code"]), str(error["message"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return cls(status, f"http_{status}", raw[:300].decode("utf-8", "replace"))
        details = error.get("details")
        return cls(status, code, message, details if isinstance(details, dict) else None)

    @property
    def reasons(self) -> list[dict[str, Any]]:
        """The verdict's reasons, where the refusal is about training."""
        found = self.details.get("reasons")
        if not isinstance(found, list):
            return []
        return [reason for reason in found if isinstance(reason, dict)]


class ExplorerClient:
    """Asynchronous client; use it as a context manager.

    Args:
        url: base address of the server.
        token: the operator's bearer token.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ExplorerClient:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=120)
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """One API call; the decoded JSON answer (None for an empty one).

        Raises:
            ApiError: the server refused, with its code and sentence.
        """
        assert self._session is not None, "use the client as a context manager"
        data = None if body is None else orjson.dumps(body)
        async with self._session.request(
            method, self.url + path, data=data, headers={"Content-Type": "application/json"}
        ) as response:
            raw = await response.read()
            if response.status >= 400:
                raise ApiError.read(response.status, raw)
            return orjson.loads(raw) if raw else None

    async def send(self, path: str, data: bytes) -> Any:
        """A file as the body of a request; the decoded JSON answer.

        Raises:
            ApiError: the server refused, with its code and sentence.
        """
        assert self._session is not None, "use the client as a context manager"
        kind = {"Content-Type": "application/octet-stream"}
        async with self._session.post(self.url + path, data=data, headers=kind) as response:
            raw = await response.read()
            if response.status >= 400:
                raise ApiError.read(response.status, raw)
            return orjson.loads(raw)

    @asynccontextmanager
    async def download(self, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer whose body is read piece by piece.

        Raises:
            ApiError: the server refused, with its code and sentence.
        """
        assert self._session is not None, "use the client as a context manager"
        timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
        async with self._session.get(self.url + path, timeout=timeout) as response:
            if response.status >= 400:
                raise ApiError.read(response.status, await response.read())
            yield response

    async def read(self, path: str) -> bytes:
        """A whole document as bytes; raises as `download`."""
        async with self.download(path) as response:
            return await response.read()

    async def create_rollout(self, **wanted: Any) -> dict[str, Any]:
        """A new rollout with its capture key and base addresses."""
        made: dict[str, Any] = await self.request("POST", "/api/v1/rollouts", wanted)
        return made

    async def reward(self, rollout_id: str, reward: float | None, **more: Any) -> None:
        """Records a reward."""
        await self.request(
            "POST", f"/api/v1/rollouts/{rollout_id}/reward", {"reward": reward} | more
        )

    async def close_rollout(self, rollout_id: str, **how: Any) -> dict[str, Any]:
        """Seals a rollout; answers with its status and verdict."""
        answer: dict[str, Any] = await self.request(
            "POST", f"/api/v1/rollouts/{rollout_id}/close", how
        )
        return answer

    async def show(self, rollout_id: str) -> dict[str, Any]:
        """Status, counts and verdict."""
        answer: dict[str, Any] = await self.request("GET", f"/api/v1/rollouts/{rollout_id}")
        return answer

    async def weights(
        self, state: str | None = None, weight_version: int | None = None, **more: Any
    ) -> dict[str, Any]:
        """The weight fence: with a state it is told, without one it is asked."""
        told = {"state": state, "weight_version": weight_version} | more
        answer: dict[str, Any] = (
            await self.request("GET", "/api/v1/weights")
            if state is None
            else await self.request("POST", "/api/v1/weights", told)
        )
        return answer

    async def post_trainer_logprobs(
        self,
        rollout_id: str,
        weight_version: int,
        calls: Sequence[Mapping[str, Any]],
        **more: str,
    ) -> dict[str, Any]:
        """What a trainer computed for the sampled tokens of a rollout's calls."""
        body = {"weight_version": weight_version, "calls": list(calls)} | more
        answer: dict[str, Any] = await self.request(
            "POST", f"/api/v1/rollouts/{rollout_id}/trainer-logprobs", body
        )
        return answer

    async def engine(self) -> dict[str, Any]:
        """The engine's certificate, with its model and context length."""
        answer: dict[str, Any] = await self.request("GET", "/api/v1/engine")
        return answer

    async def list(self, query: str = "") -> dict[str, Any]:
        """One page of rollouts; `query` as in the address."""
        path = "/api/v1/rollouts" + (f"?{query}" if query else "")
        answer: dict[str, Any] = await self.request("GET", path)
        return answer

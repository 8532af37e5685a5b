"""vLLM's routes for weights, which exist in its development mode only.

Owns: those routes, and finding out once whether they are there.
Must not know: who announces, which calls wait.

Nothing here is reachable through the proxy: these routes take no key, and one of them runs any
method of the engine's workers.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from explorer.engine.fence import UNREADABLE, Loaded, NoControl, Published, Step
from explorer.engine.http import HttpEngine
from explorer.engine.httpbody import read_reply
from explorer.engine.reply import loads
from explorer.engine.replyfacts import error_message, scalar_text
from explorer.errors import BadRequest, EngineMalformed, EngineUnavailable

log = logging.getLogger(__name__)

_CONTROL_S, _LABEL_S = 120.0, 10.0
_MOST_BYTES = 1024 * 1024
_LONGEST_LABEL = 200


class VllmControl(NoControl):
    """Drives a vLLM that runs with ``VLLM_SERVER_DEV_MODE=1``; leaves any other alone.

    ``GET /weight_info`` is asked once: an engine that answers 404 has no such routes and is
    never asked again.
    """

    def __init__(self, engine: HttpEngine) -> None:
        super().__init__()
        self._engine = engine
        self._has: bool | None = None

    async def _ask(
        self, method: str, path: str, body: Any = None, wait_s: float = _CONTROL_S
    ) -> tuple[int, Any]:
        """Status and JSON of a route; status 0 where there was no answer."""
        try:
            async with self._engine.session.request(
                method,
                self._engine.base + path,
                data=None if body is None else orjson.dumps(body),
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=wait_s),
                auto_decompress=False,
            ) as response:
                raw, _ = await read_reply(response, _MOST_BYTES)
                return response.status, loads(raw) if raw else None
        except (aiohttp.ClientError, EngineMalformed, EngineUnavailable, TimeoutError) as error:
            return 0, {"error": f"no answer: {type(error).__name__}"}
        except (ValueError, RecursionError):
            return 0, {"error": "an answer that is no JSON"}

    async def label(self) -> str | None:
        """What the engine calls its weights; `UNREADABLE` where it has the route and does not
        answer."""
        if self._has is False:
            return None
        status, said = await self._ask("GET", "/weight_info", wait_s=_LABEL_S)
        if status == 200 and isinstance(said, dict):
            self._has = self.names_weights = True
            return (scalar_text(said.get("weight_version")) or UNREADABLE)[:_LONGEST_LABEL]
        if self._has is None:
            if status in (404, 405, 501):
                self._has = False
                log.info("the engine has no GET /weight_info: weights are fenced here only")
            return None
        return UNREADABLE

    async def _there(self) -> bool:
        if self._has is None:
            await self.label()
        return bool(self._has)

    async def _step(self, name: str, path: str, body: Any = None) -> Step:
        status, said = await self._ask("POST", path, body)
        if status != 200:
            return Step(name, ok=False, said=f"{status or 'no answer'}: {error_message(said)}")
        if isinstance(said, dict) and said.get("success") is False:
            return Step(name, ok=False, said="the engine answered that it did not")
        return Step(name, ok=True)

    async def pause(self) -> Step | None:
        if not await self._there():
            return None
        return await self._step("pause", "/pause?mode=keep")

    async def resume(self) -> Step | None:
        if not await self._there():
            return None
        return await self._step("resume", "/resume")

    async def publish(self, label: str, *, paused: bool) -> Published:
        """Stops at the first step that fails: an engine that could not be told of its weights
        must not go on with them."""
        if not await self._there():
            return Published()
        orders: list[tuple[str, str, Any]] = [
            ("update_weight_version", "/update_weight_version", {"new_version": label}),
            ("reset_prefix_cache", "/reset_prefix_cache?reset_running_requests=true", None),
        ]
        if paused:
            orders.append(("resume", "/resume", None))
        steps: list[Step] = []
        for name, path, body in orders:
            steps.append(await self._step(name, path, body))
            if not steps[-1].ok:
                break
        return Published(tuple(steps), label)

    async def load(self, path: Path, label: str) -> Loaded:
        raise BadRequest(
            "`weights_path` is for the built-in tiny engine; a vLLM takes its weights from the "
            "trainer (its weight transfer, or `collective_rpc` `reload_weights`)"
        )

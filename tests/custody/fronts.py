"""Real servers for the tests of external custody: an engine behind HTTP, a worker before it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import orjson
import uvicorn

from explorer.custody.records import CaptureAdmission
from explorer.engine.protocol import Engine, EngineRequest


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """Serves an ASGI application on a free loopback port; gives its base address."""
    config = uvicorn.Config(app, port=0, log_config=None, ws="none", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


class EngineApp:
    """An engine of ours as an HTTP server of vLLM's dialect, un-streamed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: list[dict[str, Any]] = []
        self.gone = threading.Event()
        self.addresses: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await self.engine.start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self.engine.stop()
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.addresses.append(scope["raw_path"] + b"?" + scope["query_string"])
        raw = b""
        more = True
        while more:
            message = await receive()
            raw += message.get("body", b"")
            more = message.get("more_body", False)
        name = dict(scope["headers"]).get(b"x-request-id", b"").decode()
        answering = asyncio.ensure_future(self._answer(scope["path"], raw, name))
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            self.gone.set()
            return
        leaving.cancel()
        status, body = answering.result()
        head = [(b"content-type", b"application/json"), (b"x-engine", b"yes")]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, path: str, raw: bytes, name: str) -> tuple[int, bytes]:
        if path == "/v1/models":
            model = (await self.engine.facts()).model
            return 200, orjson.dumps({"data": [{"id": model, "owned_by": "test"}]})
        if path in ("/v1/chat/completions", "/v1/completions"):
            body = json.loads(raw)
            self.seen.append(body)
            if body.get("stream"):
                return 200, b'data: {"streamed":1}\n\ndata: [DONE]\n\n'
            known = {key: value for key, value in body.items() if not key.startswith("ng_")}
            # A probe's questions keep their name, by which a script is not used up.
            request = EngineRequest(known, name or f"up-{len(self.seen)}", 60)
            reply = await self.engine.generate(request)
            return reply.status, _as_token_ids(
                reply.body
            ) if reply.status == 200 else reply.body
        if path == "/tokenize":
            ids = await self.engine.tokenize(orjson.loads(raw))
            return 200, orjson.dumps({"tokens": list(ids)})
        return 404, b'{"error":{"message":"no such route"}}'


def _as_token_ids(raw: bytes) -> bytes:
    """As vLLM writes sampled tokens under `return_tokens_as_token_ids`; the scripted engine
    does not know that field."""
    try:
        body = orjson.loads(raw)
        choices = body["choices"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return raw
    for choice in choices:
        listed = (choice.get("logprobs") or {}).get("content") or []
        for entry, token in zip(listed, choice.get("token_ids") or [], strict=False):
            entry["token"] = f"token_id:{token}"
    return orjson.dumps(body)


def root(call: str = "a", rollout: str = "r1") -> dict[str, Any]:
    """The admission of a root, as it travels."""
    admission = CaptureAdmission(rollout_id=rollout, model_call_id=call, mode="text")
    return admission.to_json()

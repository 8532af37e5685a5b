"""Any OpenAI-compatible server over HTTP, a real vLLM first of all.

Owns: the connection pool, time-outs, cancellation and typed errors of the upstream.
Must not know: dialects, the store, what a reply means (`engine.reply` does).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from yarl import URL

from explorer.engine.completion import is_prompt
from explorer.engine.httpbody import DEFAULT_REPLY_LIMIT, read_reply
from explorer.engine.protocol import EngineFacts, EngineReply, EngineRequest, TokenPiece
from explorer.engine.reply import loads
from explorer.engine.replyfacts import error_message, scalar_text
from explorer.engine.vocabulary import from_transformers
from explorer.errors import (
    ConfigurationError,
    EngineMalformed,
    EngineRefusedStream,
    EngineTimeout,
    EngineUnavailable,
)

log = logging.getLogger(__name__)

# Hop-by-hop headers and the server's own stamp say nothing about the call.
# vLLM closes an idle connection after 5 s (uvicorn's default). A call sent just then would
# be reset, and cannot be sent again: nobody knows whether the engine had begun. So idle
# connections are dropped here first.
_IDLE_CONNECTION_S = 3.0
_DROPPED = frozenset(
    [
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "server",
        "date",
        "content-length",
        "content-encoding",
        "set-cookie",
    ]
)


class HttpEngine:
    """An engine behind a URL.

    Args:
        url: base address, with or without ``/v1``.
        model: name to ask for; None takes the first that the server lists.
        api_key: bearer token for the engine.
        pool: most connections at once.
        connect_timeout_s: longest wait for a connection (seconds).
        tokenizer: path or Hub id of the model's tokenizer, for the bytes of ids; without
            it, the folder that the server names as the model's root, if it is here.
    """

    kind = "http"
    # Most bytes that one reply may take.
    reply_limit = DEFAULT_REPLY_LIMIT

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        pool: int = 1024,
        connect_timeout_s: float = 30.0,
        tokenizer: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"the engine address {url!r} must look like http://host:port"
            )
        self.base = url.rstrip("/").removesuffix("/v1")
        self._chat = URL(self.base + "/v1/chat/completions")
        self._plain = URL(self.base + "/v1/completions")
        self.model = model
        self._key = api_key
        self._pool = pool
        self._connect_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        self._tokenizer = tokenizer
        self._pieces: tuple[str, tuple[TokenPiece, ...]] | None = None
        # Folder or Hub id of the tokenizer that was read.
        self.tokenizer_name: str | None = None

    async def start(self) -> None:
        """Opens the pool; the server need not be up yet."""
        if self._session is not None:
            return
        headers = {"Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._pool,
                limit_per_host=self._pool,
                keepalive_timeout=_IDLE_CONNECTION_S,
            ),
            # No cookie jar: one caller's engine cookie must never reach another.
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            auto_decompress=True,
            json_serialize=lambda value: orjson.dumps(value).decode(),
        )

    async def stop(self) -> None:
        """Closes every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The open pool."""
        if self._session is None:
            raise EngineUnavailable("the engine client is not started")
        return self._session

    def _address(self, body: Mapping[str, Any]) -> URL:
        return self._plain if is_prompt(body) else self._chat

    def _timeout(self, timeout_s: float) -> aiohttp.ClientTimeout:
        kept = self._timeouts.get(timeout_s)
        if kept is None:
            kept = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._connect_s)
            self._timeouts = {timeout_s: kept}
        return kept

    async def generate(self, request: EngineRequest) -> EngineReply:
        """One un-streamed completion.

        Raises:
            EngineUnavailable: no connection, or it broke before the reply was whole.
            EngineTimeout: no whole reply within ``timeout_s``.
            EngineMalformed: a reply over the limit; its connection is closed.
        """
        data = request.raw if request.raw is not None else orjson.dumps(request.body)
        try:
            async with self.session.post(
                self._address(request.body),
                data=data,
                headers={
                    "Content-Type": "application/json",
                    "X-Request-Id": request.request_id,
                },
                timeout=self._timeout(request.timeout_s),
                auto_decompress=False,
            ) as response:
                body, notes = await read_reply(response, self.reply_limit)
                headers = clean_headers(response.headers)
                return EngineReply(response.status, headers, body, notes)
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineUnavailable(f"the engine at {self.base} takes no connection") from error
        except TimeoutError as error:
            raise EngineTimeout(
                f"the engine at {self.base} gave no whole reply within {request.timeout_s:g} s"
            ) from error
        except aiohttp.ClientError as error:
            raise EngineUnavailable(
                f"the engine at {self.base} did not answer: {type(error).__name__}"
            ) from error

    async def stream(self, request: EngineRequest) -> AsyncIterator[bytes]:
        """Raw SSE bytes of one streamed completion.

        Raises:
            EngineUnavailable, EngineTimeout: as `generate`.
            EngineRefusedStream: a status other than 200; it has the reply.
        """
        body = dict(request.body) | {"stream": True, "stream_options": {"include_usage": True}}
        try:
            async with self.session.post(
                self._address(request.body),
                data=orjson.dumps(body),
                headers={
                    "Content-Type": "application/json",
                    "X-Request-Id": request.request_id,
                },
                timeout=self._timeout(request.timeout_s),
            ) as response:
                if response.status != 200:
                    text, notes = await read_reply(response, self.reply_limit)
                    headers = clean_headers(response.headers)
                    raise EngineRefusedStream(
                        f"the engine answered a stream with {response.status}: {text[:300]!r}",
                        EngineReply(response.status, headers, text, notes),
                    )
                async for chunk in response.content.iter_any():
                    yield chunk
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineUnavailable(f"the engine at {self.base} takes no connection") from error
        except TimeoutError as error:
            raise EngineTimeout(f"the engine at {self.base} stalled in a stream") from error
        except aiohttp.ClientError as error:
            raise EngineUnavailable(
                f"the engine at {self.base} broke a stream: {type(error).__name__}"
            ) from error

    async def _json(self, method: str, path: str, body: Any = None) -> Any | None:
        """The JSON answer of a side route, or None when it has none."""
        try:
            async with self.session.request(
                method,
                self.base + path,
                data=None if body is None else orjson.dumps(body),
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=30, sock_connect=self._connect_s),
                auto_decompress=False,
            ) as response:
                if response.status != 200:
                    return None
                return loads((await read_reply(response, self.reply_limit))[0])
        except (
            aiohttp.ClientError,
            EngineMalformed,
            TimeoutError,
            ValueError,
            RecursionError,
        ):
            return None

    async def facts(self) -> EngineFacts:
        """What the server says about itself.

        Raises:
            EngineUnavailable: it cannot be reached at all.
        """
        models = await self._json("GET", "/v1/models")
        if models is None:
            raise EngineUnavailable(
                f"nothing answers GET {self.base}/v1/models; is the engine running, and is "
                "ROLLOUT_EXPLORER_ENGINE_API_KEY right?"
            )
        listed = models.get("data") if isinstance(models, dict) else None
        cards = (
            [card for card in listed if isinstance(card, dict)]
            if isinstance(listed, list)
            else []
        )
        card = cards[0] if cards else {}
        if self.model is None:
            self.model = scalar_text(card.get("id")) or None
        chosen = next((item for item in cards if item.get("id") == self.model), card)
        version = await self._json("GET", "/version")
        is_vllm = isinstance(version, dict) and "version" in version
        release = (
            scalar_text(version["version"]) if isinstance(version, dict) and is_vllm else None
        )
        await self._read_tokenizer(chosen.get("root"))
        length = chosen.get("max_model_len")
        return EngineFacts(
            name="vllm"
            if is_vllm
            else scalar_text(card.get("owned_by")) or "openai-compatible",
            version=release or "unknown",
            model=self.model or "unknown",
            max_model_len=length if type(length) is int else None,
            tokenizer_sha256=self._pieces[0] if self._pieces else None,
            chat_template_sha256=None,
            fingerprint=None,
            certifiable=True,
            flags=await self._flags() if is_vllm else None,
        )

    async def _flags(self) -> tuple[str, ...] | None:
        """What a vLLM in development mode says of its start; others say nothing."""
        return declared_flags(await self._json("GET", "/server_info?config_format=json"))

    async def _read_tokenizer(self, root: Any) -> None:
        """Reads the tokenizer's bytes once.

        Raises:
            ConfigurationError: the tokenizer that a person named cannot be read.
        """
        if self._pieces is not None:
            return
        if self._tokenizer is not None:
            self._pieces = await asyncio.to_thread(from_transformers, self._tokenizer)
            self.tokenizer_name = self._tokenizer
        elif isinstance(root, str) and await asyncio.to_thread(_has_tokenizer, root):
            try:
                self._pieces = await asyncio.to_thread(from_transformers, root)
                self.tokenizer_name = root
            except ConfigurationError as error:
                log.warning("tokens are shown by id: %s", error.message)

    async def vocabulary(self) -> tuple[TokenPiece, ...]:
        """The bytes of every id as the tokenizer gives them.

        Empty without a tokenizer: no OpenAI-compatible route gives exact bytes.
        """
        return self._pieces[1] if self._pieces else ()

    async def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """Prompt ids by vLLM's ``/tokenize``; a prompt of ids is what it is.

        Raises:
            EngineMalformed: the server has no such route or refused.
        """
        if is_prompt(body):
            if isinstance(body["prompt"], list):
                return tuple(body["prompt"])
            fields: tuple[str, ...] = ("prompt", "add_special_tokens")
        else:
            # All that shapes the prompt: an answer to another prompt would be no count of it.
            fields = (
                "messages",
                "tools",
                "add_generation_prompt",
                "continue_final_message",
                "add_special_tokens",
                "chat_template",
                "chat_template_kwargs",
            )
        asked = {key: body[key] for key in fields if body.get(key) is not None}
        answer = await self._json("POST", "/tokenize", asked | {"model": self.model})
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(tokens, list):
            raise EngineMalformed(f"the engine cannot tokenize: {error_message(answer)}")
        return tuple(int(token) for token in tokens)


# What of a vLLM's configuration changes ids, logprobs or how replies are parsed.
_DECLARED = {
    "model_config": (
        *("logprobs_mode", "generation_config", "dtype", "quantization", "revision"),
        *("tokenizer_revision", "max_logprobs"),
    ),
    "structured_outputs_config": ("reasoning_parser", "backend"),
    "speculative_config": ("method", "num_speculative_tokens"),
}
_LONGEST_FLAG = 200


def declared_flags(info: Any) -> tuple[str, ...] | None:
    """``section.name=value`` of a `/server_info` answer; None where it says nothing."""
    config = info.get("vllm_config") if isinstance(info, dict) else None
    if not isinstance(config, dict):
        return None
    found = []
    for section, names in _DECLARED.items():
        held = config.get(section)
        if not isinstance(held, dict):
            continue
        for name in names:
            value = scalar_text(held.get(name))
            if value:
                found.append(f"{section}.{name}={value[:_LONGEST_FLAG]}")
    return tuple(found) or None


def _has_tokenizer(root: str) -> bool:
    return (Path(root) / "tokenizer.json").is_file()


def clean_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Response headers worth keeping, each once, hop-by-hop ones dropped."""
    kept: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if lower not in _DROPPED:
            kept.setdefault(lower, value)
    return tuple(kept.items())


async def wait_until_up(engine: HttpEngine, timeout_s: float) -> EngineFacts:
    """Polls until the server lists its models.

    Raises:
        EngineUnavailable: not up within `timeout_s` seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return await engine.facts()
        except EngineUnavailable:
            if loop.time() >= deadline:
                raise
            await asyncio.sleep(1.0)

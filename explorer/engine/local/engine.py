"""The local engine as the rest of the project sees it: a Hugging Face model in a child.

Owns: what the child is started with. Must not know: torch, which is only in the child.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any

import orjson

from explorer.engine.local.folder import model_folder, served_name
from explorer.engine.local.prompts import KnownSpellings
from explorer.engine.protocol import EngineFacts, EngineReply, TokenPiece
from explorer.engine.tiny.process import ChildEngine
from explorer.engine.tiny.runtime import TinyOptions
from explorer.errors import BadRequest, ConfigurationError

# The model is on this machine by now: whatever else would be asked of a network is refused.
CHILD_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


class LocalEngine(ChildEngine):
    """Samples from a causal language model through `transformers`, in float32 on the CPU.

    Args:
        name: a model folder, or the id of a Hub model that is in the local cache.
        max_batch: requests decoded together; more are queued.
        max_model_len: context in tokens; None is the model's own.
        default_max_tokens: bound for requests that name none.
    """

    kind = "local"
    child_module = "explorer.engine.local.child"
    start_timeout_s = 900.0

    def __init__(
        self,
        name: str,
        *,
        max_batch: int = 8,
        max_model_len: int | None = None,
        default_max_tokens: int = 1024,
    ) -> None:
        super().__init__()
        self.name = name
        self._options = TinyOptions(
            model=served_name(name),
            max_batch=max_batch,
            max_model_len=max_model_len,
            default_max_tokens=default_max_tokens,
        )
        self._spellings: KnownSpellings | None = None

    def child_options(self) -> TinyOptions:
        """The options with the folder found.

        Raises:
            ConfigurationError: no such model here, or the extra is not installed.
        """
        folder = model_folder(self.name)
        if importlib.util.find_spec("torch") is None:
            raise ConfigurationError(
                "`--engine local:…` needs torch: pip install 'rollout-explorer[local]'"
            )
        return dataclasses.replace(self._options, folder=folder)

    def child_environment(self) -> Mapping[str, str]:
        """Off the network and quiet; threads as torch chooses."""
        return CHILD_ENVIRONMENT

    async def facts(self) -> EngineFacts:
        """What the child found when it loaded the model.

        Raises:
            EngineUnavailable: it died, or cannot be started.
        """
        return EngineFacts(**orjson.loads(answered(await self.question("facts"))))

    async def vocabulary(self) -> tuple[TokenPiece, ...]:
        """Every id that has exact bytes. Raises EngineUnavailable."""
        return (await self.spellings()).pieces

    async def tokenize(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The prompt ids of a chat body. Raises BadRequest, EngineUnavailable."""
        reply = await self.question("tokenize", body=dict(body))
        return tuple(orjson.loads(answered(reply)))

    async def spellings(self) -> KnownSpellings:
        """The bytes of ids, asked for once. Raises EngineUnavailable."""
        if self._spellings is None:
            body = answered(await self.question("pieces"))
            self._spellings = await asyncio.to_thread(_read_pieces, body)
        return self._spellings


def answered(reply: EngineReply) -> bytes:
    """The body of a good answer. Raises BadRequest for a refusal."""
    if reply.status != 200:
        refusal = orjson.loads(reply.body)["error"]
        raise BadRequest(refusal["message"], param=refusal["param"])
    return reply.body


def _read_pieces(body: bytes) -> KnownSpellings:
    return KnownSpellings(
        tuple(
            TokenPiece(token_id, bytes.fromhex(raw), special)
            for token_id, raw, special in orjson.loads(body)
        )
    )

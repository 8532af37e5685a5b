"""What a runtime is put together from, so that another network can be served the same way.

Owns: the protocols of a network, a tokenizer and a prompt maker.
Must not know: any one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from explorer.engine.protocol import EngineFacts, TokenPiece
from explorer.engine.tiny.cache import Cache
from explorer.engine.tiny.model import Chunk
from explorer.engine.tiny.weights import Floats


class Network(Protocol[Cache]):
    """Token ids in, next-token logits out."""

    def new_cache(self) -> Cache:
        """An empty cache for one sequence."""
        ...

    def forward(self, chunks: Sequence[Chunk[Cache]]) -> Floats:
        """Read every chunk and give the logits after its last token, (chunks, vocab).

        The caches grow by the chunks.
        """
        ...


class Spellings(Protocol):
    """The exact bytes of ids."""

    @property
    def pieces(self) -> tuple[TokenPiece, ...]: ...

    def id_of(self, text: str) -> int | None: ...

    def raw(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class Vocabulary(Spellings, Protocol):
    """A tokenizer that says how it spells."""

    def encode(self, text: str) -> list[int]: ...


class Prompts(Protocol):
    """Bodies to prompt ids, as one model is given them."""

    @property
    def tokenizer(self) -> Vocabulary: ...

    def text(self, body: Mapping[str, Any]) -> str: ...

    def encode(self, text: str, body: Mapping[str, Any]) -> tuple[int, ...]: ...

    def ids(self, body: Mapping[str, Any]) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """One loaded model. Lengths are in tokens.

    Attributes:
        end_ids: what ends a reply silently.
        defaults: sampling values for fields that a body leaves out.
        always_thinks: whether a reply without any mark of thinking is a thought, which is
            what a model trained to think first means by it.
        reload: the network with the weights of another file; None where it takes no other.
            Raises ConfigurationError for a file that does not fit.
    """

    network: Network[Any]
    prompts: Prompts
    vocab_size: int
    max_positions: int
    end_ids: tuple[int, ...]
    defaults: Mapping[str, Any]
    facts: EngineFacts
    always_thinks: bool
    reload: Callable[[Path], Network[Any]] | None = None

"""Exact bytes of token ids, from whoever can give them exactly.

Owns: reading a vocabulary through `transformers`, and learning bytes from an engine's
own logprob entries.
Must not know: the store.

The order is: the engine's own vocabulary; a tokenizer named by the person, read with
`AutoTokenizer`; the bytes an engine sends beside its logprobs. The last are exact only
where the engine does not hold bytes back for a character to complete, so entries with
empty bytes, and the entry that follows them, are not learned from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from typing import Any

from explorer.engine.protocol import TokenPiece
from explorer.engine.replyfacts import MAX_ID
from explorer.engine.tiny.tokenizer import byte_alphabet
from explorer.errors import ConfigurationError

_SPACE = "\u2581"


def from_transformers(name: str) -> tuple[str, tuple[TokenPiece, ...]]:
    """The digest and every piece of a tokenizer on disk or in the local Hub cache.

    Raises:
        ConfigurationError: it cannot be loaded, or its bytes cannot be told exactly.
    """
    return pieces_of(load_tokenizer(name))


def load_tokenizer(name: str) -> Any:
    """The tokenizer as `transformers` loads it.

    Raises:
        ConfigurationError: it cannot be loaded, or its bytes cannot be told exactly.
    """
    # Imported here: transformers takes a second, and only some servers need it.
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name, use_fast=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the tokenizer {name!r} cannot be loaded: {error}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ConfigurationError(
            f"the tokenizer {name!r} has no tokenizer.json, so the bytes of its ids cannot be "
            "told exactly"
        )
    return tokenizer


def pieces_of(tokenizer: Any) -> tuple[str, tuple[TokenPiece, ...]]:
    """The digest and every piece of a loaded tokenizer."""
    backend = tokenizer.backend_tokenizer
    text = backend.to_str()
    document = json.loads(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return digest, tuple(_pieces(document, backend, set(tokenizer.all_special_ids)))


def _pieces(
    document: Mapping[str, Any], backend: Any, special: set[int]
) -> Iterable[TokenPiece]:
    added = {item["id"]: item for item in document.get("added_tokens") or ()}
    byte_level = "ByteLevel" in json.dumps(document.get("decoder"))
    alphabet = byte_alphabet()
    for token_id in range(backend.get_vocab_size()):
        item = added.get(token_id)
        if item is not None:
            marked = bool(item.get("special")) or token_id in special
            yield TokenPiece(token_id, item["content"].encode(), marked)
            continue
        symbol = backend.id_to_token(token_id)
        if symbol is None:
            continue
        if byte_level:
            if all(letter in alphabet for letter in symbol):
                raw = bytes(alphabet[letter] for letter in symbol)
                yield TokenPiece(token_id, raw, token_id in special)
        elif len(symbol) == 6 and symbol.startswith("<0x") and symbol.endswith(">"):
            yield TokenPiece(token_id, bytes([int(symbol[3:5], 16)]), token_id in special)
        else:
            yield TokenPiece(
                token_id, symbol.replace(_SPACE, " ").encode(), token_id in special
            )


def learn(body: Mapping[str, Any], known: Container[int] = ()) -> list[TokenPiece]:
    """Pieces that a vLLM-shaped reply shows exactly, ids beside bytes; `known` ones left
    out."""
    choice = body["choices"][0]
    ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
    entries = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(ids, list) or not isinstance(entries, list) or len(ids) != len(entries):
        return []
    try:
        if all(map(known.__contains__, ids)):
            return []
    except TypeError:
        pass  # something that is no id; passed over below
    learned, held = [], False
    for token_id, entry in zip(ids, entries, strict=True):
        raw = entry.get("bytes") if isinstance(entry, Mapping) else None
        if not raw or not isinstance(raw, list):
            held = True
            continue
        valid = type(token_id) is int and 0 <= token_id <= MAX_ID
        fresh = not held and valid and token_id not in known
        if fresh and all(type(byte) is int and 0 <= byte <= 255 for byte in raw):
            learned.append(TokenPiece(token_id, bytes(raw), False))
        held = False
    return learned

"""Text to token ids and back, with the exact bytes of every id.

Owns: tokenizer.json and the byte-level alphabet. Must not know: chat, requests.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from explorer.engine.protocol import TokenPiece
from explorer.errors import ConfigurationError


def byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each of the 256 bytes, reversed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    found = {chr(value): value for value in printable}
    others = (value for value in range(256) if value not in set(printable))
    found.update({chr(256 + index): value for index, value in enumerate(others)})
    return found


class ByteTokenizer:
    """A byte-level BPE whose ids all have exact bytes."""

    def __init__(self, folder: Path) -> None:
        """Load `folder`/tokenizer.json. Raises ConfigurationError when it is not byte-level."""
        path = folder / "tokenizer.json"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as problem:
            raise ConfigurationError(f"cannot read {path}: {problem}") from problem
        self._tokenizer = Tokenizer.from_str(text)
        added = {item["id"]: item for item in json.loads(text).get("added_tokens", ())}
        alphabet = byte_alphabet()
        pieces = []
        for token_id in range(self._tokenizer.get_vocab_size()):
            item = added.get(token_id)
            if item is not None:
                raw = item["content"].encode()
            else:
                symbol = self._tokenizer.id_to_token(token_id)
                if symbol is None or any(letter not in alphabet for letter in symbol):
                    raise ConfigurationError(f"{path}: token {token_id} is not byte-level")
                raw = bytes(alphabet[letter] for letter in symbol)
            pieces.append(TokenPiece(token_id, raw, bool(item and item["special"])))
        self.pieces: tuple[TokenPiece, ...] = tuple(pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of rendered text; marker tokens in it are recognised."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def id_of(self, text: str) -> int | None:
        """The id of a marker token such as `</think>`, or None."""
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def raw(self, token_id: int) -> bytes:
        """Bytes of one id; empty for an id beyond the vocabulary."""
        return self.pieces[token_id].raw if token_id < len(self.pieces) else b""

    def is_special(self, token_id: int) -> bool:
        return token_id >= len(self.pieces) or self.pieces[token_id].special

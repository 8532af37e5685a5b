"""Chat bodies to prompt ids with a model's own tokenizer and template.

Owns: what `transformers` is told about messages, and how ids are spelt.
Must not know: torch, requests in flight.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from explorer.engine.completion import given_ids, is_prompt
from explorer.engine.protocol import TokenPiece
from explorer.engine.tiny.template import joined
from explorer.engine.vocabulary import load_tokenizer, pieces_of
from explorer.errors import BadRequest, ConfigurationError

# Some tokenizers mark these as special; the parser of replies has to see them as text.
READ_AS_TEXT = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>"})


class KnownSpellings:
    """Pieces by id; an id without exact bytes has none."""

    def __init__(self, pieces: tuple[TokenPiece, ...]) -> None:
        self.pieces = pieces
        self._by_id = {piece.token_id: piece for piece in pieces}
        # Ordinary pieces may share their bytes with a marker; the marker is meant.
        ranked = sorted(pieces, key=lambda piece: not piece.special, reverse=True)
        self._ids = {piece.raw: piece.token_id for piece in ranked}

    def id_of(self, text: str) -> int | None:
        """The id of a marker token such as `</think>`, or None."""
        return self._ids.get(text.encode())

    def raw(self, token_id: int) -> bytes:
        """Bytes of one id; empty for an id that has none."""
        piece = self._by_id.get(token_id)
        return piece.raw if piece else b""

    def is_special(self, token_id: int) -> bool:
        """Whether the id is left out of texts."""
        piece = self._by_id.get(token_id)
        return piece is None or (
            piece.special and piece.raw.decode("utf-8", "replace") not in READ_AS_TEXT
        )


class LocalVocabulary(KnownSpellings):
    """A fast tokenizer; its digest is that of its one document."""

    def __init__(self, tokenizer: Any) -> None:
        self.digest, pieces = pieces_of(tokenizer)
        super().__init__(pieces)
        self._backend = tokenizer.backend_tokenizer
        # A saved tokenizer may cut or fill what it reads; a prompt must stay as it is.
        self._backend.no_truncation()
        self._backend.no_padding()

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Ids of text; marker tokens in it are recognised, the tokenizer's own beginning
        and end are added only with `add_special`."""
        return list(self._backend.encode(text, add_special_tokens=add_special).ids)


class LocalPrompts:
    """Renders and encodes chat bodies as `transformers` itself would."""

    def __init__(self, folder: Path) -> None:
        """Load tokenizer and template. Raises ConfigurationError, also without a template."""
        self._chat = load_tokenizer(str(folder))
        self.tokenizer = LocalVocabulary(self._chat)
        self.end_id: int | None = self._chat.eos_token_id
        self.longest: int = self._chat.model_max_length
        template = self._chat.chat_template
        if not template:
            raise ConfigurationError(
                f"the model in {folder} has no chat template (chat_template.jinja), so no "
                "prompt can be made of chat messages: use a chat model, or add its template"
            )
        source = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
        self.template_sha256 = hashlib.sha256(source.encode()).hexdigest()
        self._reserved = set(inspect.signature(self._chat.apply_chat_template).parameters)

    def text(self, body: Mapping[str, Any]) -> str:
        """The rendered prompt, or a plain prompt as it is. Raises BadRequest."""
        if is_prompt(body):
            return str(body["prompt"])
        # Imported here for the same reason as transformers: it is the child that renders.
        from jinja2 import TemplateError

        more = body.get("chat_template_kwargs") or {}
        if not isinstance(more, Mapping):
            raise BadRequest("`chat_template_kwargs` must be an object")
        taken = sorted(self._reserved & set(more))
        if taken:
            raise BadRequest(
                f"chat_template_kwargs must not name {', '.join(taken)}",
                param="chat_template_kwargs",
            )
        try:
            return str(
                self._chat.apply_chat_template(
                    [readable(message) for message in body["messages"]],
                    tools=body.get("tools") or None,
                    documents=body.get("documents"),
                    add_generation_prompt=bool(body.get("add_generation_prompt", True)),
                    continue_final_message=bool(body.get("continue_final_message")),
                    tokenize=False,
                    **more,
                )
            )
        except (TemplateError, TypeError, ValueError, KeyError) as problem:
            raise BadRequest(f"the chat template refused the messages: {problem}") from problem

    def encode(self, text: str, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The ids of the prompt's text. A template writes a beginning of its own; a plain
        prompt gets the tokenizer's, as in vLLM, unless ``add_special_tokens`` is false."""
        plain = is_prompt(body) and body.get("add_special_tokens") is not False
        return tuple(self.tokenizer.encode(text, add_special=plain))

    def ids(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The prompt's ids. Raises BadRequest."""
        given = given_ids(body, len(self._chat)) if is_prompt(body) else None
        return self.encode(self.text(body), body) if given is None else given


def readable(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it, which is what vLLM hands to them too.

    Content is text and never null, arguments of calls are objects, reasoning has both names.
    """
    made = dict(joined(message))
    if made.get("content") is None:
        made["content"] = ""
    thought = made.get("reasoning") or made.get("reasoning_content")
    if thought:
        made["reasoning"] = made["reasoning_content"] = thought
    calls = made.get("tool_calls")
    if isinstance(calls, list) and calls:
        made["tool_calls"] = [_with_arguments(call) for call in calls]
    else:
        made.pop("tool_calls", None)
    return made


def _with_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call  # what the model wrote is no JSON; templates may still show it as text
    return {**call, "function": {**function, "arguments": arguments}}

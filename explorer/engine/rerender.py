"""A chat request rendered again on this machine, as the engine may have rendered it.

Owns: the built-in engine's own template, and a tokenizer that a person named, read with
`transformers`; the two forms in which arguments of tool calls can be handed to a template.
Must not know: what the engine's prompt was, stores.

What comes of it is for a comparison only. It never makes ids that train.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from explorer.engine.local.prompts import LocalVocabulary, readable
from explorer.engine.tiny.template import ChatTemplate
from explorer.engine.tiny.tokenizer import ByteTokenizer
from explorer.engine.vocabulary import load_tokenizer
from explorer.errors import BadRequest, ConfigurationError

WEIGHTS = Path(__file__).with_name("tiny") / "weights"
LOCAL = "local:"
BUILT_IN = frozenset(("tiny", "scripted"))


# What a template's own expressions run into on messages that it was not written for.
_IN_A_TEMPLATE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class Arguments(StrEnum):
    """How the arguments of earlier tool calls reach the template."""

    AS_SENT = "as sent"
    OBJECT = "object"
    STRING = "string"


class Renderer(Protocol):
    """Renders and encodes chat bodies; used by one thread at a time.

    Attributes:
        name: whose template it is.
        tokenizer_sha256, template_sha256: as certificates and rollouts name them.
    """

    name: str
    tokenizer_sha256: str
    template_sha256: str

    def ids(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        """The ids of the prompt. Raises BadRequest when the messages do not fit."""
        ...

    def raw(self, token_id: int) -> bytes:
        """Bytes of one id; empty for an id that has none."""
        ...


class BuiltIn:
    """The template and tokenizer of the built-in engines."""

    name = "the built-in engine's own template"

    def __init__(self) -> None:
        self._template = ChatTemplate.read(WEIGHTS)
        self._tokenizer = ByteTokenizer(WEIGHTS)
        self.tokenizer_sha256 = _file_sha256(WEIGHTS / "tokenizer.json")
        self.template_sha256 = _file_sha256(WEIGHTS / "chat_template.jinja")

    def ids(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        try:
            text = self._template.render(body)
        except (AttributeError, LookupError) as problem:
            raise BadRequest(f"the chat template refused the messages: {problem}") from problem
        return tuple(self._tokenizer.encode(text))

    def raw(self, token_id: int) -> bytes:
        return self._tokenizer.raw(token_id)


class Named:
    """A tokenizer with its template, from a folder or the local Hub cache."""

    def __init__(self, name: str) -> None:
        """Loads it. Raises ConfigurationError, also when it has no chat template."""
        self.name = name
        self._chat = load_tokenizer(name)
        template = self._chat.chat_template
        if not template:
            raise ConfigurationError(f"the tokenizer {name!r} has no chat template")
        source = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
        self.template_sha256 = hashlib.sha256(source.encode()).hexdigest()
        self._vocabulary = LocalVocabulary(self._chat)
        self.tokenizer_sha256 = self._vocabulary.digest
        self._reserved = set(inspect.signature(self._chat.apply_chat_template).parameters)

    def ids(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        # Imported here: it comes with transformers, which takes a second.
        from jinja2 import TemplateError

        more = body.get("chat_template_kwargs") or {}
        if not isinstance(more, Mapping) or self._reserved & set(more):
            raise BadRequest("`chat_template_kwargs` cannot be handed to this template")
        try:
            text = self._chat.apply_chat_template(
                [_with_text(message) for message in body["messages"]],
                tools=body.get("tools") or None,
                documents=body.get("documents"),
                add_generation_prompt=bool(body.get("add_generation_prompt", True)),
                continue_final_message=bool(body.get("continue_final_message")),
                tokenize=False,
                **more,
            )
        except (TemplateError, *_IN_A_TEMPLATE) as problem:
            raise BadRequest(f"the chat template refused the messages: {problem}") from problem
        return tuple(self._vocabulary.encode(str(text)))

    def raw(self, token_id: int) -> bytes:
        return self._vocabulary.raw(token_id)


def find_renderer(engine_kind: str, tokenizer: str | None, engine: str) -> Renderer:
    """What renders the requests of an engine of this kind.

    Args:
        tokenizer, engine: the settings of these names.

    Raises:
        ConfigurationError: there is none, or it cannot be loaded.
    """
    if engine_kind in BUILT_IN:
        return BuiltIn()
    if tokenizer is None and engine.startswith(LOCAL):
        tokenizer = engine.removeprefix(LOCAL)
    if tokenizer is None:
        raise ConfigurationError(
            "no tokenizer with a chat template is named here: set "
            "ROLLOUT_EXPLORER_TOKENIZER to its folder or Hub id"
        )
    return Named(tokenizer)


def forms(body: Mapping[str, Any]) -> dict[Arguments, Mapping[str, Any]]:
    """The body with the arguments of its tool calls in each form; as sent without any."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_calls(message) for message in messages):
        return {Arguments.AS_SENT: body}
    return {
        form: {**body, "messages": [_with_calls(message, change) for message in messages]}
        for form, change in ((Arguments.OBJECT, _as_object), (Arguments.STRING, _as_string))
    }


def _with_text(message: Any) -> Any:
    """As `readable`, but arguments stay in the form they have."""
    if not isinstance(message, Mapping):
        raise BadRequest("a message is no object")
    made = readable(message)
    if "tool_calls" in made:
        made["tool_calls"] = message["tool_calls"]
    return made


def _calls(message: Any) -> list[Any]:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    return calls if isinstance(calls, list) else []


def _with_calls(message: Any, change: Callable[[Any], Any]) -> Any:
    calls = _calls(message)
    if not calls:
        return message
    return {**message, "tool_calls": [*_changed(calls, change)]}


def _changed(calls: Iterable[Any], change: Callable[[Any], Any]) -> Iterable[Any]:
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and "arguments" in function:
            arguments = change(function["arguments"])
            yield {**call, "function": {**function, "arguments": arguments}}
        else:
            yield call


def _as_object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments  # what the model wrote is no JSON; templates may still show it


def _as_string(arguments: Any) -> Any:
    return (
        arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    )


def _file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

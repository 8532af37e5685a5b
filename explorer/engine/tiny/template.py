"""The chat template: messages and tools to the text the model reads.

Owns: running a model's own Jinja template, sandboxed, the way transformers does.
Must not know: tokens, requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from explorer.errors import BadRequest, ConfigurationError


class ChatTemplate:
    """One compiled template; rendering is free of side effects."""

    def __init__(self, source: str) -> None:
        """Compile. Raises ConfigurationError when the source is no valid template."""
        # The settings are transformers': other ones would change white space, hence tokens.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except TemplateError as problem:
            raise ConfigurationError(f"the chat template is broken: {problem}") from problem

    @classmethod
    def read(cls, folder: Path) -> ChatTemplate:
        """Load `folder`/chat_template.jinja. Raises ConfigurationError."""
        path = folder / "chat_template.jinja"
        try:
            return cls(path.read_text(encoding="utf-8"))
        except OSError as problem:
            raise ConfigurationError(f"cannot read {path}: {problem}") from problem

    def render(self, body: Mapping[str, Any]) -> str:
        """The prompt text of a chat body. Raises BadRequest when the messages do not fit."""
        messages: Sequence[Mapping[str, Any]] = [joined(m) for m in body["messages"]]
        more = body.get("chat_template_kwargs") or {}
        if not isinstance(more, Mapping):
            raise BadRequest("`chat_template_kwargs` must be an object")
        continued = bool(body.get("continue_final_message"))
        variables = {
            "tools": body.get("tools") or None,
            "documents": body.get("documents"),
            "add_generation_prompt": bool(body.get("add_generation_prompt", True)),
            **more,
        }
        try:
            text = self._template.render(messages=messages, **variables)
        except (TemplateError, TypeError, ValueError, KeyError) as problem:
            raise BadRequest(f"the chat template refused the messages: {problem}") from problem
        return _cut_after(text, messages[-1].get("content") or "") if continued else text


def joined(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Content given as a list of text parts becomes one text; other parts are refused."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text")
        if not isinstance(text, str):
            raise BadRequest("this engine is not multimodal")
        texts.append(text)
    return {**message, "content": "".join(texts)}


def _cut_after(text: str, final: str) -> str:
    """Drop what the template wrote behind the final message, to let the model go on there."""
    place = text.rfind(final.strip())
    if place < 0:
        raise BadRequest("continue_final_message: the template changed the final message")
    return text[: place + len(final.strip())]


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)

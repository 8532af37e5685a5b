"""What a reply carries so that its echo gives back what the model wrote.

Owns: our signature of reasoning, and the two ways between a tool call's text of arguments
and the object that some dialects show instead.
Must not know: any dialect's blocks.

Harnesses drop or hide reasoning but send signatures back untouched, so the signature holds
the reasoning itself. Nobody verifies it: what a caller sends is the caller's own prompt.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

from explorer.wire.jsonbytes import encode
from explorer.wire.reading import compact

_MARK = "rx1_"
_UNPARSED = "__unparsed_arguments"
# What Claude Code makes of arguments that it could not parse.
_UNPARSED_BY_CLAUDE = "__unparsedToolInput"


def sign(reasoning: str) -> str:
    """A signature that gives `reasoning` back; never empty."""
    return _MARK + base64.b64encode(_bytes(reasoning)).decode()


def sign_as_bytes(reasoning: str) -> str:
    """The same where the field must be base64 as a whole (Google's are bytes)."""
    return base64.b64encode(_MARK.encode() + _bytes(reasoning)).decode()


def unsign(signature: Any) -> str | None:
    """The reasoning in a signature of ours, of either form; None for any other value."""
    if not isinstance(signature, str):
        return None
    if signature.startswith(_MARK):
        raw = _decoded(signature[len(_MARK) :])
    else:
        raw = _decoded(signature)
        if raw is None or not raw.startswith(_MARK.encode()):
            return None
        raw = raw[len(_MARK) :]
    try:
        return None if raw is None else raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None


def _bytes(reasoning: str) -> bytes:
    return reasoning.encode("utf-8", "surrogatepass")


def _decoded(text: str) -> bytes | None:
    # Python's Google client writes the URL-safe letters whatever it was given.
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        return None


class Arguments(dict[str, Any]):
    """A tool call's arguments as the object to show, with the text that was written.

    Equal to a plain dict of the same entries; `written` is for streams, where the text
    itself is sent.
    """

    __slots__ = ("written",)

    def __init__(self, value: Mapping[str, Any], written: str) -> None:
        super().__init__(value)
        self.written = written


def arguments_shown(arguments: Any) -> Arguments:
    """The arguments of a chat tool call, of any JSON type, as an object.

    No text at all is no arguments. A text that is no JSON object stands whole under
    ``__unparsed_arguments``.

    Raises:
        EngineMalformed: they are no text and nested too deeply to be written.
    """
    if arguments is None:
        return Arguments({}, "")
    written = arguments if isinstance(arguments, str) else encode(arguments).decode()
    if not written.strip():
        return Arguments({}, written)
    try:
        value = json.loads(written, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return Arguments(value, written)
    return Arguments({_UNPARSED: written}, written)


def arguments_sent(shown: Any, path: str) -> str:
    """The text of arguments for an object that a harness sends back.

    Raises:
        BadRequest: it is nested too deeply.
    """
    if shown is None:
        return "{}"
    if isinstance(shown, str):
        return shown
    if isinstance(shown, dict) and len(shown) == 1:
        inner = shown.get(_UNPARSED, shown.get(_UNPARSED_BY_CLAUDE))
        if isinstance(inner, dict):
            inner = inner.get("raw")
        if isinstance(inner, str):
            return inner
    return compact(shown, path)


def _refuse(literal: str) -> float:
    raise ValueError(literal)


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError(literal)
    return value

"""From the text after ``--engine`` to an engine.

Owns: the spelling of engine names.
Must not know: what is done with an engine.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from explorer.engine.protocol import Engine
from explorer.errors import ConfigurationError
from explorer.settings import Settings


def make_engine(settings: Settings) -> Engine:
    """The engine that the settings name; not started yet.

    Raises:
        ConfigurationError: the name is none of the documented forms.
    """
    name = settings.engine
    scheme, _, rest = name.partition(":")
    if name == "tiny" or (scheme == "tiny" and rest):
        from explorer.engine.tiny import TinyEngine

        return TinyEngine(Path(rest) if rest else None)
    if name.startswith(("http://", "https://")):
        from explorer.engine.http import HttpEngine

        key = settings.engine_api_key
        return HttpEngine(
            name,
            model=settings.model,
            api_key=key.get_secret_value() if key else None,
            pool=settings.max_in_flight,
            connect_timeout_s=settings.engine_connect_timeout_s,
            tokenizer=settings.tokenizer,
        )
    if scheme == "scripted" and rest:
        from explorer.engine.scripted import ScriptedEngine

        return ScriptedEngine(Path(rest))
    if scheme == "vllm" and rest:
        from explorer.engine.vllm import LocalVllm

        return LocalVllm(rest, extra=tuple(shlex.split(settings.vllm_args)))
    if scheme == "local" and rest:
        from explorer.engine.local import LocalEngine

        return LocalEngine(rest)
    raise ConfigurationError(
        f"unknown engine {name!r}: use `tiny`, a URL such as http://127.0.0.1:8000, "
        "`vllm:MODEL`, `local:PATH_OR_HUB_ID` or `scripted:FILE`"
    )

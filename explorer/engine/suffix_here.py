"""The engine's own template and tokenizer, where they are on this machine.

Owns: which folder or name that is, by kind of engine.
Must not know: what is rendered with them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from explorer.engine.protocol import Engine
from explorer.engine.tiny.parts import Prompts
from explorer.settings import Settings

LOCAL, VLLM = "local:", "vllm:"


def prompts_of(engine: Engine, settings: Settings) -> Callable[[], Prompts | None]:
    """What loads them when they are first needed: blocks, and raises ConfigurationError where
    they cannot be read. Gives None where nobody said where they are.

    A tokenizer that a person named wins; a server's own folder is used where it is here, too.
    """

    def load() -> Prompts | None:
        if engine.kind in ("tiny", "scripted"):
            from explorer.engine.tiny.runtime import PromptMaker
            from explorer.engine.tiny.weights import SHIPPED

            _, _, folder = settings.engine.partition("tiny:")
            return PromptMaker(Path(folder) if folder else SHIPPED)
        name = settings.tokenizer
        for scheme in (LOCAL, VLLM):
            if name is None and settings.engine.startswith(scheme):
                name = settings.engine.removeprefix(scheme)
        if name is None:
            name = getattr(engine, "tokenizer_name", None)
        if name is None:
            return None
        # Imported here: transformers takes a second, and few servers need it.
        from explorer.engine.local.prompts import LocalPrompts

        return LocalPrompts(Path(name))

    return load

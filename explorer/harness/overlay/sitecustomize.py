"""Start-up overlay for a client inside a sandbox: its calls go where the environment says.

Put this folder on PYTHONPATH of the sandboxed process. A harness that runs its agent in a
container hands its own base address in with each model's settings, and that address is
not one that the container can reach. With EXPLORER_LLM_BASE_URL set, every call through
litellm goes there instead, with EXPLORER_LLM_API_KEY if that is set; without it nothing
changes.

Owns: two arguments of litellm's calls.
Must not know: this project. Python runs this file in any interpreter with that path, so
it needs the standard library only, and another `sitecustomize` still runs after it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

CLIENT = "litellm"
CALLS = ("completion", "acompletion", "text_completion", "responses", "aresponses")


def redirected(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` with the address and key of the environment."""

    def settled(given: dict[str, Any]) -> dict[str, Any]:
        base = os.environ.get("EXPLORER_LLM_BASE_URL")
        key = os.environ.get("EXPLORER_LLM_API_KEY")
        if base:
            given.pop("base_url", None)
            given["api_base"] = base
            if key:
                given["api_key"] = key
        return given

    if inspect.iscoroutinefunction(call):

        @functools.wraps(call)
        async def awaited(*args: Any, **given: Any) -> Any:
            return await call(*args, **settled(given))

        return awaited

    @functools.wraps(call)
    def called(*args: Any, **given: Any) -> Any:
        return call(*args, **settled(given))

    return called


def wrap_when_loaded(loader: Any) -> None:
    """Wraps the client's calls before anybody can take them.

    The loader stays the one it was: data files of the client are found through it.
    """
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        for name in CALLS:
            call = getattr(module, name, None)
            if callable(call):
                setattr(module, name, redirected(call))

    loader.exec_module = exec_module


class _Finder(importlib.abc.MetaPathFinder):
    """Sees the client's import once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != CLIENT:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            wrap_when_loaded(spec.loader)
        return spec


def _run_the_shadowed_one() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _Finder())
    _run_the_shadowed_one()

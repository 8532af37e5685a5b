"""The page contexts as a page of the reference.

Owns: the list of every context, and how it reads as documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

from explorer.web import (
    contexts,
    contexts_account,
    contexts_compare,
    contexts_custody,
    contexts_datasets,
    contexts_delta,
    contexts_grants,
    contexts_lists,
    contexts_messages,
    contexts_notes,
    contexts_requests,
    contexts_rollout,
    contexts_run_charts,
    contexts_search,
    contexts_sql,
    contexts_tabs,
    contexts_timing,
)
from explorer.web.contexts import PAGES

# Importing a module registers its pages.
MODULES = (
    contexts_sql.__name__,
    contexts_notes.__name__,
    contexts_rollout.__name__,
    contexts_tabs.__name__,
    contexts_custody.__name__,
    contexts_delta.__name__,
    contexts_compare.__name__,
    contexts_requests.__name__,
    contexts_timing.__name__,
    contexts_messages.__name__,
    contexts_lists.__name__,
    contexts_run_charts.__name__,
    contexts_search.__name__,
    contexts_grants.__name__,
    contexts_datasets.__name__,
    contexts_account.__name__,
)


def nested(kind: type[Any]) -> Iterator[type[Any]]:
    """The dataclasses that the fields of `kind` hold, in order, without repeats."""
    for hint in get_type_hints(kind).values():
        for part in (hint, *_parts(hint)):
            if is_dataclass(part) and isinstance(part, type):
                yield part


def _parts(hint: Any) -> Iterator[Any]:
    for part in get_args(hint):
        yield part
        yield from _parts(part)


def every_page() -> list[type[Any]]:
    """The page contexts in one order: they register when their module is imported, in
    whatever order that happens."""
    place = {name: number for number, name in enumerate((contexts.__name__, *MODULES))}
    return sorted(PAGES, key=lambda page: place[page.__module__])


def every_context() -> tuple[type[Any], ...]:
    """Page contexts, then every dataclass they are made of."""
    waiting = every_page()
    found: dict[type[Any], None] = dict.fromkeys(waiting)
    while waiting:
        for kind in nested(waiting.pop(0)):
            if kind not in found:
                found[kind] = None
                waiting.append(kind)
    return tuple(found)


def render_markdown() -> str:
    """Every context with its fields; the JSON twin of a page has the same names."""
    lines: list[str] = []
    for kind in every_context():
        lines += [f"## {kind.__name__}", "", (kind.__doc__ or "").strip(), ""]
        lines += ["| field | type | meaning |", "| --- | --- | --- |"]
        for item in fields(kind):
            shown = str(item.type).replace("|", "\\|")
            lines.append(f"| `{item.name}` | `{shown}` | {item.metadata['help']} |")
        lines.append("")
    return "\n".join(lines)

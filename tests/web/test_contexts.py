"""Every context is documented, and a template sees exactly what is documented."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from jinja2 import meta, nodes

from explorer.web.assets import find
from explorer.web.context_docs import every_context, render_markdown
from explorer.web.contexts import PAGES
from explorer.web.render import AMBIENT, environment

# Set inside a template by `with`, for a fragment that is also a page of its own.
LOCAL = {"token"}


def family(name: str) -> set[str]:
    """A template with everything it extends, includes or imports with context."""
    found, waiting = set(), [name]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        source = (find("templates") / current).read_text()
        tree = environment().parse(source)
        for node in tree.find_all((nodes.Extends, nodes.Include, nodes.FromImport)):
            named = next(node.find_all(nodes.Const))
            waiting.append(str(named.value))
    return found


def used(name: str) -> set[str]:
    """Names that a template and its family take from the context."""
    names: set[str] = set()
    macros: set[str] = set()
    for part in family(name):
        tree = environment().parse((find("templates") / part).read_text())
        names |= meta.find_undeclared_variables(tree)
        macros |= {macro.name for macro in tree.find_all(nodes.Macro)}
    return names - macros


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_a_template_uses_only_documented_names(page: type[Any]) -> None:
    documented = {item.name for item in fields(page)}
    assert used(page.template) - documented - set(AMBIENT) - LOCAL == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_no_documented_field_is_left_unused(page: type[Any]) -> None:
    # Some facts are only for the twin: the page says them in another way.
    only_twin = {"frame", "started", "current", "base", "shown", "total", "branch", "first"}
    only_twin |= {"engine_ms", "span_ms", "total_turns"}
    documented = {item.name for item in fields(page)}
    assert documented - used(page.template) - only_twin == set()


@pytest.mark.parametrize("kind", every_context(), ids=lambda kind: kind.__name__)
def test_every_field_has_help(kind: type[Any]) -> None:
    assert kind.__doc__
    for item in fields(kind):
        assert item.metadata.get("help", "").endswith("."), f"{kind.__name__}.{item.name}"


def test_the_reference_lists_every_context() -> None:
    text = render_markdown()
    for kind in every_context():
        assert f"## {kind.__name__}\n" in text


def test_every_template_belongs_to_a_context() -> None:
    known = {"error_fragment.html", "inspect.html", "turns.html", "drift.html"}
    for page in PAGES:
        known |= family(page.template)
    assert {path.name for path in find("templates").iterdir()} == known

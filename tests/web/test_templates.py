"""What a strict content policy forbids must not be in a template, nor in a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from explorer.web.assets import find
from explorer.web.header import TABS
from tests.web.conftest import Site
from tests.web.parsing import read

TEMPLATES = sorted(find("templates").iterdir())
FORBIDDEN = {
    "inline style": r"\sstyle\s*=",
    "style element": r"<style",
    "inline handler": r"\son[a-z]+\s*=",
    "htmx handler": r"hx-on",
    "script value": r"""["']js:""",
    "trigger filter": r"""hx-trigger="[^"]*\[""",
    "unescaped trace text": r"\|\s*safe\b",
    "autoescape switched off": r"autoescape",
    "remote address": r"""(?:src|href)="(?:https?:)?//""",
}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
@pytest.mark.parametrize("what", FORBIDDEN)
def test_template_has_nothing_the_policy_forbids(template: Path, what: str) -> None:
    assert not re.search(FORBIDDEN[what], template.read_text(), re.IGNORECASE)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_scripts_are_files(template: Path) -> None:
    for tag in re.findall(r"<script\b[^>]*>", template.read_text()):
        assert "src=" in tag


def test_script_makes_no_code_from_text() -> None:
    script = (find("static") / "explorer.js").read_text()
    for word in (
        "eval(",
        "new Function",
        "insertAdjacentHTML",
        "document.write",
        ".outerHTML =",
    ):
        assert word not in script
    # The one fragment that is set as HTML comes escaped from the server.
    assert script.count(".innerHTML =") == 1


@pytest.mark.parametrize("tab", [name for name, _ in TABS])
def test_rendered_pages_have_no_inline_code(site: Site, tab: str) -> None:
    page = read(site.text(f"/rollouts/{{hostile}}/{tab}"))
    for element in page.elements:
        assert element.tag not in ("style", "img", "iframe", "object", "base", "form ")
        assert "style" not in element.attributes
        assert not any(name.startswith("on") for name in element.attributes)
        if element.tag == "script":
            assert element.attributes["src"].startswith("/static/")
        for name in ("href", "src", "action"):
            address = element.attributes.get(name, "/")
            assert address.startswith(("/", "#")), address

"""What a strict content policy forbids must not be in a template, nor in a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from explorer.web.assets import find
from explorer.web.header import TABS
from tests.browser.addresses import EVERY
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


SCRIPTS = sorted(find("static").glob("*.js"))
# The one fragment that is set as HTML comes escaped from the server.
FRAGMENTS_SET = {"explorer.js": 1}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_makes_no_code_from_text(script: Path) -> None:
    text = script.read_text()
    for word in (
        "eval(",
        "new Function",
        "insertAdjacentHTML",
        "document.write",
        ".outerHTML = ",
        "createContextualFragment",
        "setHTMLUnsafe",
        "srcdoc",
        "localStorage",
        "sessionStorage",
    ):
        assert word not in text
    assert text.count(".innerHTML =") == FRAGMENTS_SET.get(script.name, 0)
    assert not re.search(r"""(?:fetch|import|EventSource)\(\s*["'`](?:https?:)?//""", text)


@pytest.mark.parametrize("sheet", sorted(find("static").glob("*.css")), ids=lambda p: p.name)
def test_sheet_asks_for_nothing_elsewhere(sheet: Path) -> None:
    assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", sheet.read_text())


EVERYWHERE = tuple(path.partition("#")[0] for path in EVERY if path != "/nothing-here")


HOSTILE = tuple(f"/rollouts/{{hostile}}/{tab}" for tab, _ in TABS)


@pytest.mark.parametrize("path", [*EVERYWHERE, *HOSTILE])
def test_rendered_pages_have_no_inline_code(site: Site, path: str) -> None:
    call = site.made["forked"].calls[2].call_id
    page = read(site.text(path.replace("{call}", call)))
    for element in page.elements:
        assert element.tag not in ("style", "iframe", "object", "embed", "base", "form ")
        assert "style" not in element.attributes
        assert not any(name.startswith(("on", "hx-on")) for name in element.attributes)
        if element.tag in ("script", "img"):
            assert element.attributes["src"].startswith(("/static/", "/rollouts/"))
        for name in ("href", "src", "action", "formaction"):
            address = element.attributes.get(name, "/")
            if "data-published" in element.attributes and name == "href":
                # The one way out: to what was published, on the Hub of the settings.
                assert address.startswith("https://huggingface.co/datasets/")
                assert element.attributes["rel"] == "noreferrer"
                continue
            # Of this server; two slashes would be another one.
            assert address.startswith(("/", "#", "?")), address
            assert not address.startswith("//")

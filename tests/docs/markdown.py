"""What the tests of the docs need to know about Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """Every page for readers: the top-level ones and all of docs."""
    return sorted(ROOT.glob("*.md")) + sorted(DOCS.rglob("*.md"))


def name_of(page: Path) -> str:
    """A page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Every fenced block as (language, content)."""
    for found in _FENCE.finditer(text):
        yield found[1], found[2]


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    """The targets of links in the prose, inline code left out."""
    return _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(text)))


def headings(text: str) -> list[str]:
    """The headings in order."""
    return re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors that a repository's page view makes of the headings."""
    found: set[str] = set()
    for heading in headings(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 1
        unique = slug
        while unique in found:
            unique, number = f"{slug}-{number}", number + 1
        found.add(unique)
    return found

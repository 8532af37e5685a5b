"""What a reader finds in a page: its numbers, its tokens, its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = frozenset({"meta", "link", "input", "br", "img", "rect", "line", "path", "hr"})


@dataclass
class Element:
    """A start tag with the text inside it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Found(HTMLParser):
    """Numbers (`data-k`), tokens (children of blocks), all attributes, and all text."""

    numbers: list[Element] = field(default_factory=list)
    tokens: list[Element] = field(default_factory=list)
    elements: list[Element] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if "data-k" in element.attributes:
            self.numbers.append(element)
        if tag == "i":
            self.tokens.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        while self._open:
            if self._open.pop().tag == tag:
                break

    def handle_data(self, data: str) -> None:
        self.text += data
        for element in self._open:
            element.text += data


def read(page: str) -> Found:
    """A parsed page."""
    found = Found()
    found.feed(page)
    found.close()
    return found


def lookup(value: Any, path: str) -> Any:
    """`rows.3.n_calls` in a twin."""
    for step in path.split("."):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value

"""What a reader meets in the docs works: links, commands, diagrams, headings."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

from explorer.cli import cli
from scripts import make_docs
from tests.docs.markdown import (
    DOCS,
    ROOT,
    anchors,
    fences,
    headings,
    links,
    name_of,
    pages,
)

PAGES = pages()
EXPLANATIONS = sorted((DOCS / "explanation").glob("*.md"))
DIAGRAMS = frozenset(("flowchart", "sequenceDiagram", "stateDiagram-v2", "classDiagram"))
# What a ```sh line may begin with, beside our own command.
KNOWN = frozenset(("make", "export", "curl", "pip", "python", "vllm", "ssh", "."))
SECRET_PATHS = re.compile(r"(?<![\w.>}])/(tmp|root|work|home|farm|Users|mnt|var|opt)/\w")

every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def read(page: Path) -> str:
    """A page's text."""
    return page.read_text(encoding="utf-8")


def shell_lines() -> list[tuple[str, list[str]]]:
    """Every command line shown, with the page it stands on."""
    found = []
    for page in PAGES:
        for language, content in fences(read(page)):
            if language == "sh":
                for line in content.splitlines():
                    if line.strip():
                        found.append((name_of(page), shlex.split(line)))
    return found


LINES = shell_lines()
every_line = pytest.mark.parametrize(
    ("page", "words"), LINES, ids=[f"{page}: {' '.join(words)[:60]}" for page, words in LINES]
)


# -- links ------------------------------------------------------------------------------


@every_page
def test_relative_links_resolve(page: Path) -> None:
    for target in links(read(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_relative_to(ROOT), target
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(read(file)), target


def test_the_index_links_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in links(read(index))}
    missing = [name_of(page) for page in DOCS.rglob("*.md") if page not in linked | {index}]
    assert missing == []


@every_page
def test_no_machine_paths(page: Path) -> None:
    assert not SECRET_PATHS.search(read(page))


# -- blocks -------------------------------------------------------------------------------


@every_page
def test_every_block_is_closed_and_says_its_language(page: Path) -> None:
    text = read(page)
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(list(fences(text)))
    assert all(language for language, _ in fences(text))


@every_page
def test_diagrams_begin_with_a_kind(page: Path) -> None:
    for language, content in fences(read(page)):
        if language == "mermaid":
            words = content.split()
            assert len(words) > 5
            assert words[0] in DIAGRAMS


@every_page
def test_python_blocks_parse(page: Path) -> None:
    for language, content in fences(read(page)):
        if language == "python":
            ast.parse(content)


def test_there_are_diagrams_of_the_architecture_and_a_call() -> None:
    for name in ("architecture.md", "life-of-a-call.md", "tree.md"):
        blocks = [kind for kind, _ in fences(read(DOCS / "explanation" / name))]
        assert "mermaid" in blocks, name


# -- commands -----------------------------------------------------------------------------


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and its arguments."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        assert words[0] in command.commands, f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


@every_line
def test_command_lines_work(page: str, words: list[str]) -> None:
    first = words[0]
    if first.rpartition("/")[2] == "rollout-explorer":
        command, rest = find_command(words[1:])
        with command.make_context(command.name, list(rest)):
            return
    if "/" in first:
        assert re.fullmatch(r"\.venv(-train)?/bin/(python|pip)", first), first
        first = first.rpartition("/")[2]
    assert first in KNOWN, first
    if first == "make":
        targets = re.findall(r"^([\w-]+):", read(ROOT / "Makefile"), re.MULTILINE)
        assert set(words[1:]) <= set(targets), words
    if first == "python" and words[1].endswith(".py") and "/" in words[1]:
        assert (ROOT / words[1]).is_file(), words[1]
    if first == "python" and words[1] == "-m" and words[2].startswith("scripts."):
        assert (ROOT / (words[2].replace(".", "/") + ".py")).is_file(), words[2]


@every_line
def test_addresses_in_curl_lines_are_routes(page: str, words: list[str]) -> None:
    if words[0] != "curl":
        return
    routes = [route.path for route in make_docs.served_routes()]
    routes += [path for _, path, _ in make_docs.WIRE_ROUTES]
    patterns = [re.sub(r"\{[^}]*\}", "[^/]+", path) for path in routes]
    (address,) = [word for word in words if word.startswith(("$BASE", "$OPENAI_BASE_URL"))]
    path = address.replace("$BASE", "").replace("$OPENAI_BASE_URL", "/v1").partition("?")[0]
    assert any(re.fullmatch(pattern, path) for pattern in patterns), path


# -- explanation ----------------------------------------------------------------------------


@pytest.mark.parametrize("page", EXPLANATIONS, ids=name_of)
def test_a_decision_has_its_parts(page: Path) -> None:
    text = read(page)
    assert re.search(r"^Date: 2\d{3}-\d\d-\d\d\b", text, re.MULTILINE)
    found = headings(text)
    for wanted in ("Decision", "Alternatives", "What would change it"):
        assert wanted in found, wanted


@pytest.mark.parametrize("page", EXPLANATIONS, ids=name_of)
def test_a_decision_names_code_that_exists(page: Path) -> None:
    line = re.search(r"Code: (.*?)(?:· Benchmark|\n\n)", read(page), re.DOTALL)
    assert line
    folder = ROOT
    for name in re.findall(r"`([^`]+)`", line[1]):
        path = ROOT / name if "/" in name else folder / name
        assert path.exists(), name
        folder = path.parent

"""The text the tiny model's tokenizer and fillers are made from: what any Python brings along.

Nothing is downloaded and nothing is committed. English comes from the language reference that
`pydoc` ships and from docstrings; code comes from the standard library's own sources.
"""

from __future__ import annotations

import ast
import sysconfig
from dataclasses import dataclass
from pathlib import Path

SKIPPED_FOLDERS = {
    "test",
    "tests",
    "site-packages",
    "idlelib",
    "lib2to3",
    "__pycache__",
    "turtledemo",
    "pydoc_data",
    "encodings",
}
"""Folders with generated tables, test data or code that is not everyday Python."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Two lists of texts: English prose and Python code."""

    english: tuple[str, ...]
    code: tuple[str, ...]


def source_files(root: Path) -> list[Path]:
    """Standard library sources in a fixed order, 2 kB to 200 kB each."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not SKIPPED_FOLDERS.intersection(parts) and 2_000 < path.stat().st_size < 200_000:
            found.append(path)
    return found


def docstrings(source: str) -> list[str]:
    """Docstrings of more than 80 characters in one source text."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (
        ast.get_docstring(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, kinds)
    )
    return [text for text in texts if text and len(text) > 80]


def make_corpus(code_limit: int = 3_000_000) -> Corpus:
    """Read the corpus of this Python; `code_limit` is in characters."""
    from pydoc_data.topics import topics

    english = [topics[name] for name in sorted(topics)]
    code: list[str] = []
    total = 0
    for path in source_files(Path(sysconfig.get_paths()["stdlib"])):
        source = path.read_text(encoding="utf-8", errors="replace")
        english.extend(docstrings(source))
        if total < code_limit:
            code.append(source)
            total += len(source)
    return Corpus(tuple(english), tuple(code))

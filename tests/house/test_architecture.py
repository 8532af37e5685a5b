"""The house rules, read from the code: who imports whom, sizes, broad handlers.

The rooms and their order are those of docs/explanation/architecture.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "explorer"

# A room imports only rooms before it (and itself).
ROOMS = (
    "base",
    "custody",
    "trace",
    "wire",
    "engine",
    "store",
    "capture",
    "access",
    "export",
    "web",
    "integrations",
    "harness",
    "demo",
    "top",
)
BASE = {"__init__", "records", "errors", "settings", "hosting", "sign_in_settings", "columns"}
# The top is wiring: the command and what only it needs.
TOP = {
    "announcing",
    "demoing",
    "drifting",
    "__main__",
    "app",
    "cli",
    "server",
    "reach",
    "options",
    "datasets",
    "progress",
    "publish_commands",
    "trainer_commands",
    "weight_commands",
    "capturing",
    "publishing",
    "publishing_jobs",
    "exporting",
    "external_custody",
    "fronting",
    "importing",
    "indexing",
    "issuing",
    "logs",
    "access_commands",
    "commands",
    "policies",
    "rejudging",
    "rounds",
    "scanning",
    "retention",
    "runfile",
    "running",
    "doctor",
    "certifier",
    "vocabularies",
    "resetting",
}
# Rooms that may not even import everything before them. `custody` is a library of standard
# library and numpy that others may take by itself: the store keeps its ledger, and the worker
# and the framework's side of external custody (`integrations/nemo_gym`) are made of it.
FORBIDDEN = {
    "custody": {"base", "trace"},
    "store": {"wire", "engine", "trace"},
    "wire": {"trace", "custody"},
    "engine": {"trace", "custody"},
    "integrations": {"trace", "wire", "engine", "store", "capture", "access", "web"},
    "harness": {
        *("custody", "trace", "wire", "engine", "store", "capture", "access", "export", "web"),
    },
    "demo": {"custody", "trace", "wire", "engine", "store", "capture", "access", "web"},
}
HARD_LINES, SOFT_LINES, FUNCTION_LINES, PARAMETERS = 600, 400, 60, 7


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room of a module."""
    parts = path.relative_to(PACKAGE).parts
    if len(parts) > 1:
        return parts[0]
    name = parts[0].removesuffix(".py")
    return "base" if name in BASE else "top"


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import of our own package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "explorer":
                    yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            module = node.module or ""
            if module == "explorer":
                for name in node.names:
                    yield node.lineno, f"explorer.{name.name}"
            elif module.startswith("explorer."):
                yield node.lineno, module


def target_room(module: str) -> str:
    """The room that a dotted module lies in."""
    parts = module.split(".")
    if len(parts) < 2:
        return "base"
    name = parts[1]
    if name in ROOMS:
        return name
    if name in TOP:
        return "top"
    return "base"


def test_every_module_has_a_room() -> None:
    for path in modules():
        assert room_of(path) in ROOMS, path
        if path.parent == PACKAGE:
            assert path.stem in BASE | TOP, f"{path.name} stands in no room"


def test_imports_point_only_downwards() -> None:
    wrong = []
    for path in modules():
        room = room_of(path)
        for line, module in imports(ast.parse(path.read_text()), path):
            other = target_room(module)
            upward = ROOMS.index(other) > ROOMS.index(room)
            if upward or other in FORBIDDEN.get(room, set()):
                wrong.append(
                    f"{path.relative_to(ROOT)}:{line} {room} imports {other}: {module}"
                )
    assert wrong == []


def test_no_circle_between_modules() -> None:
    names = {}
    for path in modules():
        dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names[dotted.removesuffix(".__init__")] = path
    # An import inside a function runs later and cannot make a circle at import time.
    edges: dict[str, set[str]] = {}
    for dotted, path in names.items():
        tree = ast.parse(path.read_text())
        body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        found = set()
        for node in body:
            if isinstance(node, ast.Import):
                found |= {name.name for name in node.names if name.name in names}
                continue
            inner = {f"{node.module}.{name.name}" for name in node.names}
            found |= inner & set(names)
            # `from package import module` needs the module, not the finished package.
            if not inner <= set(names) and node.module in names:
                found.add(node.module)
        edges[dotted] = found - {dotted}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for other in edges[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def test_modules_are_small() -> None:
    for path in modules():
        lines = len(path.read_text().splitlines())
        assert lines <= HARD_LINES, f"{path} has {lines} lines"
        if lines > SOFT_LINES:
            doc = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert "Size:" in doc, f"{path} has {lines} lines and gives no reason (`Size: …`)"


def test_no_module_is_called_utils() -> None:
    assert [path for path in modules() if path.stem in ("utils", "util", "helpers")] == []


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_functions_are_short_and_take_few_parameters() -> None:
    wrong = []
    for path in modules():
        for node in functions(path):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            count = len(node.args.args) + len(node.args.kwonlyargs)
            count -= bool(node.args.args and node.args.args[0].arg in ("self", "cls"))
            doc = ast.get_docstring(node)
            lines -= len(doc.splitlines()) if doc else 0
            if lines > FUNCTION_LINES or count > PARAMETERS:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert wrong == []


# The request edge and the background worker: a broad handler there turns any bug into a
# recorded failure instead of a lost call, and a custody worker serves its reply whatever a sink
# or a source of somebody else raises.
BROAD_ALLOWED = {
    "capture/driver.py": 3,
    "custody/worker.py": 1,
    "integrations/nemo_gym/worker_front.py": 1,
    "store/writer.py": 1,
}


def test_broad_handlers_stand_only_at_the_edges() -> None:
    found: dict[str, int] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler):
                continue
            names = (
                [name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)]
                if (node.type)
                else ["BaseException"]
            )
            reraises = any(
                isinstance(inner, ast.Raise) and inner.exc is None for inner in node.body
            )
            if {"Exception", "BaseException"} & set(names) and not reraises:
                key = str(path.relative_to(PACKAGE))
                found[key] = found.get(key, 0) + 1
    assert found == BROAD_ALLOWED


def test_every_module_says_what_it_owns() -> None:
    for path in modules():
        doc = ast.get_docstring(ast.parse(path.read_text()))
        assert doc, f"{path} has no docstring"


HEAVY = {"torch", "transformers", "openenv", "trl", "vllm"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_where_they_are_used(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in tree.body:
        names = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not {name.split(".")[0] for name in names} & HEAVY, path


def test_the_project_never_reads_the_handed_material() -> None:
    for folder in ("explorer", "tests", "benchmarks", "scripts", "templates", "static"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".html", ".js") and path != Path(__file__):
                assert "shared/" + "fixtures" not in path.read_text(errors="replace"), path

"""The packages import each other in one direction only, as docs/architecture.md declares it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
DECLARED = re.search(
    r"<!-- imports -->\n```\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), flags=re.DOTALL
)
assert DECLARED
ORDER = [name for line in DECLARED[1].splitlines() for name in line.partition("  ")[0].split(", ")]
"""Packages and modules right below ``drcil``, leftmost first: each may import what stands before it."""
LINES = {
    name: number for number, line in enumerate(DECLARED[1].splitlines()) for name in line.partition("  ")[0].split(", ")
}
FILES = sorted((SOURCE / "drcil").rglob("*.py"))


def module_of(file: Path) -> tuple[list[str], bool]:
    """The dotted name, in parts, and whether it is a package."""
    parts = list(file.relative_to(SOURCE).with_suffix("").parts)
    return (parts[:-1], True) if parts[-1] == "__init__" else (parts, False)


def imports(file: Path) -> Iterator[list[str]]:
    """The modules of drcil that a file imports, at its top or later; not those that only type checkers see."""
    own, package = module_of(file)
    tree = ast.parse(file.read_text())
    unseen = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.ImportFrom):
            base = (own if package else own[:-1])[: len(own) + package - node.level] if node.level else []
            target = [*base, *(node.module or "").split(".")] if node.module else base
            # ``from .. import name``: the name may be a module.
            for name in node.names if target == ["drcil"] else ():
                yield ["drcil", name.name]
            yield target
        elif isinstance(node, ast.Import):
            yield from (name.name.split(".") for name in node.names)


def room(module: list[str]) -> str | None:
    return module[1] if module[:1] == ["drcil"] and len(module) > 1 else None


def test_every_package_has_its_place() -> None:
    there = {
        path.stem for path in (SOURCE / "drcil").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert sorted(ORDER) == sorted(there - {"__init__"})


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_go_one_way(file: Path) -> None:
    own = room(module_of(file)[0])
    if own is None:  # The package itself offers everything, lazily.
        return
    for module in imports(file):
        other = room(module)
        if other in ORDER and other != own:
            assert LINES[other] < LINES[own], f"{own} imports {'.'.join(module)}, which stands to its right"


def test_within_packages_there_is_no_cycle_of_files() -> None:
    """Files of one package import each other in one direction too."""
    modules = {".".join(module_of(file)[0]): file for file in FILES}
    graph = {
        name: {
            ".".join(target)
            for target in imports(file)
            if ".".join(target) in modules
            and ".".join(target) != name
            and modules[".".join(target)].name != "__init__.py"
        }
        for name, file in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())

"""Packages import each other in one direction only, as docs/architecture.md declares it; tests do not import tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from support.documents import ROOT

PACKAGE = ROOT / "src" / "drcil"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
DECLARED = PAGE.partition("<!-- imports -->\n```\n")[2].partition("```")[0]
LINES = {
    name: number for number, line in enumerate(DECLARED.splitlines()) for name in line.partition("  ")[0].split(", ")
}
"""The line of every package and module right below ``drcil``. Each may import from the lines above its own."""
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(file: Path) -> str:
    """The dotted name; that of a package ends in ``__init__``."""
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)


def imports(file: Path) -> Iterator[str]:
    """The modules that a file imports, at its top or later; not those that only type checkers see."""
    tree = ast.parse(file.read_text())
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    typing_only = [node for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for node in ast.walk(block)]
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        if isinstance(node, ast.ImportFrom):
            parents = module_name(file).split(".")[: -node.level] if node.level else []
            module = ".".join([*parents, *filter(None, [node.module])])
            yield module
            # ``from .. import name``: the name may be a module.
            yield from (f"{module}.{name.name}" for name in node.names)


def package_of(module: str) -> str:
    """The name right below ``drcil``; an empty one of other modules."""
    return f"{module}..".split(".")[1] if module.startswith("drcil.") else ""


def test_the_page_names_every_package() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert LINES.keys() == packages | {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}


def test_imports_go_one_way() -> None:
    for file in FILES:
        package = package_of(module_name(file))
        # The package itself offers everything, lazily.
        for module in imports(file) if package != "__init__" else ():
            other = package_of(module)
            if other in LINES and other != package:
                assert LINES[other] < LINES[package], f"{file}: {package} imports {module}, a later package"


def test_files_do_not_import_each_other_in_a_circle() -> None:
    names = {module_name(file) for file in FILES}
    graph = {module_name(file): (set(imports(file)) & names) - {module_name(file)} for file in FILES}
    # Raises CycleError, which names the modules of the cycle.
    TopologicalSorter(graph).prepare()


def test_module_names_are_unique() -> None:
    names = [file.name for file in FILES if not file.name.startswith("__")]
    assert [name for name in names if names.count(name) > 1] == []


def test_no_test_imports_another() -> None:
    """What tests share is in ``tests/support``."""
    for file in (ROOT / "tests").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) (\w+\.)*test_", file.read_text(), re.MULTILINE), file


def test_the_page_names_modules_that_exist() -> None:
    modules = [f"/{file.relative_to(PACKAGE).as_posix()}" for file in FILES]
    named = {name for name in re.findall(r"`([\w/]+\.py)`", PAGE) if "NAME" not in name}
    assert len(named) > 40
    assert [name for name in named if not any(module.endswith(f"/{name}") for module in modules)] == []

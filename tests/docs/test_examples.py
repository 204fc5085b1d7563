"""The examples in docstrings: each gives what it shows."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import drcil

HOME = Path(drcil.__file__).parent
SHOWING = [
    ".".join(("drcil", *file.relative_to(HOME).with_suffix("").parts))
    for file in sorted(HOME.rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", SHOWING)
def test_examples_give_what_they_show(module: str) -> None:
    found = doctest.testmod(import_module(module.removesuffix(".__init__")))
    assert found.attempted and not found.failed

"""The program in ``docs/drop-in.md`` learns six classes in three tasks, and its head is what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drcil import DynamicResidualHead

PAGE = Path(__file__).resolve().parents[1] / "docs" / "drop-in.md"


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    """The names that the page's program leaves behind."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_it_learns_all_classes_with_five_exemplars_each(program: dict[str, Any]) -> None:
    assert program["accuracy"] > 0.9


def test_it_is_the_head_that_remembers(program: dict[str, Any]) -> None:
    """Classes of each task are recognised among all, not only the last ones."""
    images, labels = program["test_images"], program["test_labels"]
    right = program["head"](program["body"](images)).fused.argmax(dim=1) == labels
    for task in range(3):
        assert right[labels // 2 == task].float().mean() > 0.8


def test_folded_it_is_one_linear_layer(program: dict[str, Any]) -> None:
    head, features = program["head"], program["body"](program["test_images"])
    folded = head.fold()
    assert type(folded) is nn.Linear
    assert torch.allclose(folded(features), head(features).fused, atol=1e-4)


def test_the_options_are_those_of_the_head() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == list(DynamicResidualHead(4).options())
    for name, values in rows:
        for value in re.findall(r'"(\w+)"', values):
            assert DynamicResidualHead(4, **{name: value}).options()[name] == value

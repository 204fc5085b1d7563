"""Recipes by name and by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from drcil.errors import UserError
from drcil.methods import METHODS
from drcil.recipes import load_recipe, merge


@pytest.mark.parametrize("kind", ["digits", "cifar", "imagenet"])
@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_has_a_recipe_for_every_kind_of_data(method: str, kind: str) -> None:
    spec = METHODS[method]
    spec.build.Settings.model_validate(merge(load_recipe(spec.recipe, kind), spec.presets))


def test_a_recipe_may_be_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("[common]\nweight = 1.0\n[common.first]\nepochs = 9\nlr = 0.1\n[digits.first]\nepochs = 3\n")
    assert load_recipe(path, "digits") == {"weight": 1.0, "first": {"epochs": 3, "lr": 0.1}}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "own.toml cannot be read: No such file"),
        ("[digits", "own.toml is not valid TOML"),
        ("[common]\n[cifar]", "says nothing of data of kind 'digits'; it has: cifar"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_told(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "own.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=told):
        load_recipe(path, "digits")

"""Keyed randomness: what is drawn depends on the place, and on nothing that happened before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drcil.seeding import derive_seed, generator, numpy_generator, seeded_torch, set_torch_seed

PARTS = st.one_of(st.integers(), st.text(max_size=8), st.text("/\\:str", max_size=8))
PATHS = st.lists(PARTS, min_size=1, max_size=5)


@given(PATHS, PATHS)
def test_keys_are_equal_exactly_where_paths_are(one: list[int | str], other: list[int | str]) -> None:
    assert (derive_seed(*one) == derive_seed(*other)) == (one == other)
    assert 0 <= derive_seed(*one) < 2**63


def test_numbers_and_names_are_told_apart() -> None:
    paths: list[tuple[int | str, ...]] = [("a", 1), ("a1",), ("a", "1"), (1, "a"), ("a", 1, 1), ("a/int:1",)]
    assert len({derive_seed(*path) for path in paths}) == len(paths)


def test_keys_are_the_same_in_every_process_and_version() -> None:
    """A run that is resumed tomorrow must draw the same numbers: these were computed once and written down."""
    assert derive_seed(0, "task", 1, "first") == 5397818331969700238
    assert derive_seed("a") == 552439110572495161


def test_generators_repeat() -> None:
    assert torch.equal(torch.rand(5, generator=generator("x", 1)), torch.rand(5, generator=generator("x", 1)))
    assert not torch.equal(torch.rand(5, generator=generator("x", 1)), torch.rand(5, generator=generator("x", 2)))
    assert np.array_equal(numpy_generator("x").random(5), numpy_generator("x").random(5))


def test_a_block_of_randomness_is_shut_off_on_both_sides() -> None:
    torch.manual_seed(1)
    expected = torch.rand(4)
    inside = []
    for noise in (0, 7):
        torch.manual_seed(noise)
        with seeded_torch("here", 3):
            inside.append(torch.rand(4))
    torch.manual_seed(1)
    with seeded_torch("here", 3):
        torch.rand(100)
        set_torch_seed("elsewhere")
    assert torch.equal(inside[0], inside[1])
    assert torch.equal(torch.rand(4), expected)


def test_devices_that_are_not_in_use_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a GPU's state would set it up."""
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: asked.append(device))
    with seeded_torch("here"):
        torch.rand(1)
    assert not asked

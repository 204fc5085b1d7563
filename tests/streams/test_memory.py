"""The rehearsal memory keeps what its budget allows, and herding chooses what its definition says."""

from __future__ import annotations

from decimal import Decimal, localcontext
from math import gcd

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from drcil.data.image_set import ArraySource, ImageSet
from drcil.errors import UserError
from drcil.settings import MemoryBudget
from drcil.streams.memory import Memory, herding_order

QUOTAS = {
    (2000, 10): [200, 100, 66, 50, 40, 33, 28, 25, 22, 20],
    (2000, 20): [100, 50, 33, 25, 20],
    (2000, 5): [400, 200, 133, 100, 80, 66, 57, 50, 44, 40, 36, 33, 30, 28, 26, 25, 23, 22, 21, 20],
    (1000, 10): [100, 50, 33, 25, 20, 16, 14, 12, 11, 10],
}


@pytest.mark.parametrize(("total", "step"), QUOTAS)
def test_quotas_of_the_published_protocols(total: int, step: int) -> None:
    assert [MemoryBudget(total=total).quota(seen) for seen in range(step, 101, step)] == QUOTAS[total, step]


def test_a_budget_per_class_is_never_reduced() -> None:
    assert {MemoryBudget.parse("20/class").quota(seen) for seen in range(1, 101)} == {20}
    assert MemoryBudget.parse("all").quota(100) is None
    assert MemoryBudget.parse("none").quota(1) == MemoryBudget.parse("0").quota(1) == 0


@given(
    st.one_of(
        st.builds(MemoryBudget, total=st.integers(0, 10**12 - 1)),
        st.builds(MemoryBudget, per_class=st.integers(1, 10**12 - 1)),
        st.just(MemoryBudget()),
    )
)
def test_budgets_read_back_as_written(budget: MemoryBudget) -> None:
    assert MemoryBudget.parse(str(budget)) == budget


@pytest.mark.parametrize("text", ["", "-5", "0/class", "20 per class", "2e3", "20/", "/class", "٣"])
def test_nonsense_is_refused_with_what_would_be_accepted(text: str) -> None:
    with pytest.raises(UserError, match=f"memory '{text}' is not a budget.*'20/class'"):
        MemoryBudget.parse(text)


def herd_by_definition(features: list[list[int]], m: int) -> list[int]:
    """Herding word by word, with fifty digits, so that what is equal by mathematics compares equal."""
    with localcontext() as context:
        context.prec = 50
        pool = []
        for row in features:
            norm = sum((Decimal(value) ** 2 for value in row), Decimal(0)).sqrt() + Decimal("1e-8")
            pool.append([Decimal(value) / norm for value in row])
        mean = [sum(column) / len(pool) for column in zip(*pool, strict=True)]
        total = [Decimal(0)] * len(mean)
        chosen: list[int] = []
        for k in range(1, min(m, len(pool)) + 1):
            best, nearest = -1, Decimal("inf")
            for index, x in enumerate(pool):
                if index in chosen:
                    continue
                offset = [mu - (value + sums) / k for mu, value, sums in zip(mean, x, total, strict=True)]
                distance = sum((value**2 for value in offset), Decimal(0)).sqrt()
                if distance < nearest - Decimal("1e-20"):
                    best, nearest = index, distance
            chosen.append(best)
            total = [sums + value for sums, value in zip(total, pool[best], strict=True)]
        return chosen


# Of parallel vectors only the shortest: x and 2x differ after normalisation by 1e-8, where a tie has no clear meaning.
directions = st.lists(st.integers(-3, 3), min_size=3, max_size=3).filter(lambda row: gcd(*row) <= 1)


@settings(max_examples=150, deadline=None)
@given(st.lists(directions, min_size=1, max_size=10), st.integers(0, 12))
def test_herding_is_its_definition_ties_included(features: list[list[int]], m: int) -> None:
    assert herding_order(torch.tensor(features, dtype=torch.float32), m).tolist() == herd_by_definition(features, m)


@pytest.mark.parametrize("copies", [1, 3])
def test_herding_follows_the_criterion_on_realistic_features(copies: int) -> None:
    """Rectified features of 64 dimensions; with copies, every later copy waits until the earlier one is chosen."""
    features = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)).relu().repeat(copies, 1)
    picks = herding_order(features, 60 if copies > 1 else 50).tolist()
    x = features.double().numpy()
    x = x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-8)
    for k, pick in enumerate(picks, start=1):
        left = [index for index in range(len(x)) if index not in picks[: k - 1]]
        distances = np.linalg.norm(x.mean(0) - (x[left] + x[picks[: k - 1]].sum(0)) / k, axis=1).round(12)
        assert pick == left[int(np.argmin(distances))]
    assert len(set(picks)) == len(picks)


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 20), st.integers(1, 5)), elements=st.floats(-8, 8, width=32)),
    st.integers(0, 25),
)
def test_a_smaller_memory_is_a_prefix_of_a_larger_one(features: np.ndarray, m: int) -> None:
    every = herding_order(torch.from_numpy(features), len(features)).tolist()
    assert sorted(every) == list(range(len(features)))
    assert herding_order(torch.from_numpy(features), m).tolist() == every[:m]


def test_identical_images_are_taken_in_their_order() -> None:
    assert herding_order(torch.full((37, 129), 0.1), 37).tolist() == list(range(37))


def test_features_near_zero_are_damped() -> None:
    """3e-8 / (3e-8 + 1e-8) = 0.75, so x = 1, 0.75, 0 mean 0.58: first 0.75; then 0 brings the mean nearest."""
    assert herding_order(torch.tensor([[1.0], [3e-8], [0.0]]), 3).tolist() == [1, 2, 0]


@pytest.mark.parametrize("features", [[1.0, float("nan")], [float("inf")] * 2])
def test_features_that_are_not_numbers_are_refused(features: list[float]) -> None:
    with pytest.raises(UserError, match="not finite"):
        herding_order(torch.tensor(features)[:, None], 1)


def pixels_as_features(images: ImageSet) -> Tensor:
    return images.read().flatten(1).float()


def classes_of(counts: list[int], seed: int = 0) -> ImageSet:
    """Images of classes 0, 1, … with these numbers of images each, classes mixed."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(counts)), counts))
    pixels = torch.from_numpy(random.integers(0, 256, (len(labels), 1, 2, 2), dtype=np.uint8))
    return ImageSet.of(ArraySource(pixels), np.arange(len(labels)), labels)


def by_class(memory: Memory) -> dict[int, list[int]]:
    return {label: memory.rows[memory.labels == label].tolist() for label in np.unique(memory.labels).tolist()}


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=5),
    st.one_of(st.builds(MemoryBudget, total=st.integers(0, 40)), st.builds(MemoryBudget, per_class=st.integers(1, 5))),
)
def test_a_memory_stays_within_budget_and_old_exemplars_are_prefixes(
    tasks: list[list[int]], budget: MemoryBudget
) -> None:
    counts = [count for task in tasks for count in task]
    everything = classes_of(counts)
    memory, seen = Memory(budget), 0
    for task in tasks:
        before = by_class(memory)
        new = everything.subset((everything.labels >= seen) & (everything.labels < seen + len(task)))
        seen += len(task)
        memory.update(new, seen, pixels_as_features)
        after = by_class(memory)
        quota = budget.quota(seen)
        assert quota is not None
        assert budget.total is None or len(memory.rows) <= budget.total
        assert [len(after.get(label, [])) for label in range(seen)] == [min(quota, count) for count in counts[:seen]]
        assert all(after.get(label, []) == rows[:quota] for label, rows in before.items())
        assert np.array_equal(memory.labels, np.sort(memory.labels))
        assert np.array_equal(memory.labels, everything.labels[memory.rows])


def test_new_classes_are_herded_one_by_one_from_a_single_feature_pass() -> None:
    new = classes_of([30, 20, 10])
    asked: list[ImageSet] = []

    def features(images: ImageSet) -> Tensor:
        asked.append(images)
        return pixels_as_features(images)

    memory = Memory(MemoryBudget(per_class=15))
    memory.update(new, 3, features)
    assert [sorted(images.rows) for images in asked] == [sorted(new.rows)]
    for label, rows in by_class(memory).items():
        own = new.subset(new.labels == label)
        assert rows == own.rows[herding_order(pixels_as_features(own), 15).numpy()].tolist()


@pytest.mark.parametrize(("budget", "kept"), [("all", [3, 2]), ("none", [0, 0])])
def test_no_features_are_asked_for_where_there_is_nothing_to_choose(budget: str, kept: list[int]) -> None:
    def refuse(images: ImageSet) -> Tensor:
        raise AssertionError("features were computed for nothing")

    memory = Memory(MemoryBudget.parse(budget))
    memory.update(classes_of([3, 2]), 2, refuse)
    assert memory.images is not None
    assert memory.images.counts(2).tolist() == kept


def test_a_class_cannot_be_learnt_twice() -> None:
    memory = Memory(MemoryBudget.parse("all"))
    memory.update(classes_of([2, 2]), 2, pixels_as_features)
    with pytest.raises(ValueError, match="label 0 is new"):
        memory.update(classes_of([2]), 3, pixels_as_features)


def test_exemplars_of_two_sources_live_side_by_side() -> None:
    first, second = classes_of([4], seed=1), classes_of([5], seed=2)
    memory = Memory(MemoryBudget(total=6))
    memory.update(first, 1, pixels_as_features)
    memory.update(second.relabel(second.labels + 1), 2, pixels_as_features)
    assert memory.images is not None
    kept = memory.images.read()
    for part, images in ((kept[:3], first), (kept[3:], second)):
        assert torch.equal(part, images.source.read(herding_order(pixels_as_features(images), 3).numpy()))

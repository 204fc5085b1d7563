"""SimpleCIL and RanPAC: a task is learnt in one pass, and what is learnt does not depend on when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import drcil
from drcil.data.class_folders import load_labelled
from drcil.data.datasets.digits import load_digits
from drcil.data.image_set import ArraySource, Int64
from drcil.errors import UserError
from drcil.heads.cosine import CosineHead
from drcil.learner import Learner
from drcil.methods import METHODS, Architecture
from drcil.methods.catalog import resolve_settings
from drcil.methods.ranpac import RIDGES, RidgeSums, classifier_from, held_out_images, select_ridge
from drcil.runs.plan import complete, plan_run
from drcil.settings import MemoryBudget, RunSettings
from drcil.streams.stream import make_stream, next_task
from support.engine import assert_equal, in_double, state
from support.stage_recorder import recorded

pytestmark = pytest.mark.numerical

ONE_PASS = ("simplecil", "ranpac")
DIGITS = load_digits()
EACH = 40
"""Images of a class."""


def learner_of(method: str, *tasks: str, **options: Any) -> Learner:
    """A learner with a frozen backbone that has learnt these digits, task by task, from some images of each."""
    learner = Learner(method, **{"freeze": "backbone", "device": "cpu", **options})
    for classes in tasks:
        teach(learner, classes)
    return learner


def teach(learner: Learner, classes: str) -> None:
    labels = DIGITS.train.labels
    rows = np.concatenate([np.flatnonzero(labels == int(name))[:EACH] for name in classes])
    names = [name for name in classes for _ in range(EACH)]
    budget = MemoryBudget.parse(DIGITS.spec.memory)
    source = ArraySource(DIGITS.train.source.read(rows))
    found = load_labelled(source, names)
    learner.learn(next_task(found.images, found.classes, learner.sizes, budget, DIGITS.spec))


def scores(learner: Learner) -> Tensor:
    """The scores of test images, by class in the order of names."""
    ((places, values),) = learner.rank(DIGITS.test.subset(np.arange(0, 300, 3)), best=10).values()
    by_label = torch.zeros_like(values).scatter_(1, places, values)
    return by_label[:, np.argsort(learner.classes)]


@contextmanager
def read_rows() -> Iterator[list[int]]:
    """The rows of images in memory that are read within the block."""
    rows: list[int] = []
    read = ArraySource.read

    def watched(source: ArraySource, wanted: Int64, *options: Any) -> Tensor:
        rows.extend(wanted.tolist())
        return read(source, wanted, *options)

    with mock.patch.object(ArraySource, "read", watched):
        yield rows


@pytest.mark.parametrize("method", [*ONE_PASS, pytest.param("ranpac:fixed", id="ranpac-fixed")])
class TestOrder:
    def options(self, method: str) -> tuple[str, dict[str, Any]]:
        name, _, fixed = method.partition(":")
        small = {"width": 150, **({"ridge": 0.5} if fixed else {})}
        return name, {"settings": small if name == "ranpac" else {}}

    def test_order_and_grouping_of_classes_make_no_difference(self, method: str) -> None:
        """To rounding, in the scores of images that were not learnt; λ is chosen from the same images too."""
        name, options = self.options(method)
        with in_double():
            expected = scores(learner_of(name, "0123456", **options))
            assert expected.std() > 0.01
            for tasks in (("01", "23", "456"), ("6", "5", "4", "3", "2", "1", "0"), ("3160", "254")):
                found = scores(learner_of(name, *tasks, **options))
                torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-7)

    def test_an_image_is_read_once_when_its_task_is_learnt_and_never_again(self, method: str) -> None:
        name, options = self.options(method)
        learner = Learner(name, freeze="backbone", device="cpu", **options)
        for task in make_stream("digits-b0-5")[:3]:
            with read_rows() as rows:
                learner.learn(task)
            assert sorted(rows) == sorted(task.new.rows.tolist())
            assert not len(learner.memory.rows)


@pytest.mark.parametrize("method", ONE_PASS)
class TestBackbone:
    def test_a_random_one_is_trained_on_the_first_task_and_never_again(self, method: str) -> None:
        learner = Learner(method, epochs_scale=0.02, device="cpu")
        first, second = make_stream("digits-b0-5")[:2]
        (seen,) = recorded(learner, first)
        assert seen.stage.name == "first"
        assert any(name.startswith("backbone.") for name in seen.changed())
        after = state(learner.method.net.backbone)
        assert recorded(learner, second) == []
        assert_equal(after, state(learner.method.net.backbone))

    def test_a_frozen_one_is_not_trained_at_all(self, method: str) -> None:
        learner = Learner(method, freeze="stages", device="cpu")
        assert recorded(learner, make_stream("digits-b0-5")[0]) == []

    def test_one_with_weights_is_not_either_nor_is_training_forecast(self, method: str, tmp_path: Path) -> None:
        learner_of("simplecil", "01").save(tmp_path / "model")
        learner = Learner(method, weights=tmp_path / "model", device="cpu")
        with pytest.warns(UserWarning, match=r"42 tensors fit; 1 of other parts left out \(counts.values\)"):
            assert recorded(learner, make_stream("digits-b0-5")[0]) == []
        given = drcil.load(tmp_path / "model", device="cpu").method.net.backbone
        assert_equal(state(given), state(learner.method.net.backbone))
        chosen: dict[str, Any] = {"stream": "digits-b0-5", "weights": tmp_path / "model", "engine": {"device": "cpu"}}
        assert plan_run(complete(RunSettings(method=method, **chosen))).work == [[]] * 5


def test_rows_of_simplecil_are_class_means_and_stay_bit_for_bit() -> None:
    learner = learner_of("simplecil", "20", "7")
    head = learner.method.net.head
    assert isinstance(head, CosineHead)
    before = head.rows().clone()
    for row, name in zip(before, "207", strict=True):
        images = DIGITS.train.subset(np.flatnonzero(DIGITS.train.labels == int(name))[:EACH])
        features = learner.engine.features(learner.method.net, images)
        assert torch.allclose(row[0], features.double().mean(dim=0).float(), atol=1e-6)
    teach(learner, "13")
    assert torch.equal(head.rows()[:3], before)
    assert scores(learner).abs().max() <= 1 + 1e-5, "cosines"


class TestRanpac:
    def test_sums_and_classifier_are_those_of_the_plain_formulas(self) -> None:
        """G = Σ h hᵀ, Q = Σ h yᵀ, W = (G + λ I)⁻¹ Q, image by image."""
        draws = torch.Generator().manual_seed(0)
        vectors, labels = torch.randn(50, 7, generator=draws), torch.arange(50) % 3
        sums = RidgeSums(7)
        sums.grow(2)
        known = labels < 2
        sums.add(vectors[known], labels[known])
        sums.grow(1)
        sums.add(vectors[~known], labels[~known])
        products, moments = np.zeros((7, 7)), np.zeros((7, 3))
        for vector, label in zip(vectors.double().numpy(), labels.tolist(), strict=True):
            products += np.outer(vector, vector)
            moments[:, label] += vector
        assert int(sums.count) == 50
        np.testing.assert_allclose(sums.products().numpy(), products, atol=1e-12)
        np.testing.assert_allclose(sums.moments.numpy(), moments, atol=1e-12)
        weights = classifier_from(sums, 0.3)
        assert weights is not None
        np.testing.assert_allclose(weights.numpy(), np.linalg.inv(products + 0.3 * np.eye(7)) @ moments, atol=1e-10)

    def test_old_columns_stay_bit_for_bit(self) -> None:
        learner = learner_of("ranpac", "01")
        before = [learner.method.state().tensors[f"{part}.moments"].clone() for part in ("fitted", "held")]
        teach(learner, "23")
        for part, old in zip(("fitted", "held"), before, strict=True):
            assert torch.equal(learner.method.state().tensors[f"{part}.moments"][:, :2], old)

    def test_the_chosen_ridge_has_the_least_squared_error_on_images_held_out(self) -> None:
        draws = torch.Generator().manual_seed(1)
        truth = torch.randn(30, 3, generator=draws)
        vectors = torch.randn(60, 30, generator=draws)
        labels = (vectors @ truth + 4 * torch.randn(60, 3, generator=draws)).argmax(dim=1)
        held = held_out_images(labels, 0.25)
        sums = {True: RidgeSums(30, 3), False: RidgeSums(30, 3)}
        for out, own in sums.items():
            own.add(vectors[held == out], labels[held == out])
        errors = {}
        known, targets = vectors[~held].double(), nn.functional.one_hot(labels, 3).double()
        for ridge in RIDGES:
            weights = torch.linalg.solve(known.T @ known + ridge * torch.eye(30), known.T @ targets[~held])
            errors[ridge] = float((vectors[held].double() @ weights - targets[held]).square().sum())
        best = min(errors, key=errors.__getitem__)
        assert 1e-8 < best < 1e8
        assert select_ridge(sums[False], sums[True]) == best

    def test_fewer_images_than_directions_leave_a_ridge_that_can_be_inverted(self) -> None:
        sums, none = RidgeSums(20, 2), RidgeSums(20, 2)
        sums.add(1e6 * torch.ones(4, 20), torch.tensor([0, 0, 1, 1]))
        assert classifier_from(sums, 1e-8) is None
        assert select_ridge(sums, none) == 1.0

    def test_a_share_of_every_class_is_held_out_whatever_its_label(self) -> None:
        labels = torch.tensor([3] * 10 + [5] + [7] * 2 + [4] * 10)
        held = held_out_images(labels, 0.2)
        assert [int(held[labels == label].sum()) for label in (3, 5, 7, 4)] == [2, 0, 1, 2]
        assert torch.equal(held[labels == 3], held[labels == 4])

    def test_the_projection_is_drawn_once_by_the_seed(self) -> None:
        one, other = learner_of("ranpac", "0", "12"), learner_of("ranpac", "210")
        drawn = [learner.method.state().tensors["net.head.projection"] for learner in (one, other)]
        assert torch.equal(drawn[0], drawn[1])
        assert drawn[0].std() == pytest.approx(1, abs=0.02)
        another = learner_of("ranpac", "0", seed=1).method.state().tensors["net.head.projection"]
        assert not torch.equal(drawn[0], another)

    def test_random_features_are_enough_for_digits(self) -> None:
        """Of all ten digits, with seeds 0 to 4: 94.6 ± 0.45 %; a cosine to class means 74.7 ± 3.3 %."""
        learner = Learner("ranpac", freeze="backbone", device="cpu")
        for task in make_stream("digits-b0-5"):
            learner.learn(task)
        assert learner.evaluate(task.test) > 90

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ({"ridge": -1}, "'ridge' cannot be -1"),
            ({"width": 0}, "'width' cannot be 0"),
            ({"held_share": 1}, "'held_share' cannot be 1"),
        ],
    )
    def test_settings_that_make_no_sense_are_refused(self, given: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UserError, match=f"invalid setting of 'ranpac': .*{sentence}"):
            resolve_settings(METHODS["ranpac"], "digits", given)

    def test_a_ridge_that_is_too_small_is_refused(self) -> None:
        with pytest.raises(
            UserError, match=r"a ridge of 1e-300 is too small for these features; give a larger one, or 0"
        ):
            learner_of("ranpac", "01", settings={"ridge": 1e-300})


@pytest.mark.parametrize("method", ONE_PASS)
def test_a_memory_is_refused_and_so_is_training_afterwards(method: str) -> None:
    with pytest.raises(UserError, match=f"'{method}' has a memory of 'none' by definition"):
        Learner(method, memory=20)
    with pytest.raises(UserError, match=f"'{method}' cannot be combined with 'two-stage'"):
        Learner(f"{method}+two-stage")


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("method", ONE_PASS)
def test_they_learn_cifar100(method: str, data_dir: Path) -> None:
    """Images of 8 pixels through a small random net: enough for twice what guessing gives."""
    learner = Learner(method, freeze="backbone", backbone="resnet-digits", device="cpu")
    for task in make_stream("cifar100-b0-10", data_dir=data_dir, image_size=8)[:2]:
        learner.learn(task)
        assert learner.evaluate(task.test) > 200 / task.total


def test_a_random_backbone_is_told_of() -> None:
    architecture = Architecture("resnet-digits", channels_in=1, image_size=8)
    for name, frozen, told in (
        ("simplecil", None, "the backbone is random and is trained on the first task alone"),
        ("ranpac", "backbone", "the backbone is frozen with random weights"),
        ("replay", "stages.0", "'stages.0' and what comes before it are frozen with random weights"),
        ("replay", None, None),
    ):
        spec = METHODS[name]
        method = spec.build(resolve_settings(spec, "digits", {}), replace(architecture, frozen=frozen))
        warnings = list(method.warnings())
        if told is None:
            assert warnings == []
        else:
            assert [told in warning for warning in warnings] == [True]

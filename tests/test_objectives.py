"""The loss terms against numbers worked out by hand, against plain loops in double precision, and by their laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drcil.objectives import (
    balanced_distillation,
    binary_cross_entropy,
    branch_loss,
    class_weights,
    distillation,
    fusion_loss,
    kl_distillation,
    logit_adjustment,
    margin_ranking,
    nca,
    pod_flat,
    pod_spatial,
    task_logit_adjustment,
    taskwise_distillation,
)
from drcil.seeding import generator
from drcil.stages import Term
from support import reference_losses as reference

pytestmark = pytest.mark.numerical

Rows = Literal["all", "old"]
Reduction = Literal["joint", "separate"]
seeds = st.integers(0, 10_000)
Value = TypeVar("Value")
Pair = tuple[Tensor, float]
"""A term, and the value of its formula."""


def draw(seed: int, *shape: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(*shape, generator=generator(seed, *shape), dtype=torch.float64)


def draw_labels(seed: int, size: int, classes: int) -> Tensor:
    return torch.randint(classes, (size,), generator=generator(seed, "labels"))


def pick(seed: int, *values: Value) -> Value:
    return values[seed % len(values)]


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(leaf), leaf)
    return found


def _distillation(seed: int) -> Pair:
    student, teacher, temperature = draw(seed, 5, 4), draw(seed + 1, 5, 4), pick(seed, 1.0, 2.0, 5.0)
    return distillation(student, teacher, temperature), reference.distillation(teacher, student, temperature)


def _kl_distillation(seed: int) -> Pair:
    student, teacher, temperature = draw(seed, 5, 4), draw(seed + 1, 5, 4), pick(seed, 1.0, 2.0, 5.0)
    return kl_distillation(student, teacher, temperature), reference.kl_distillation(teacher, student, temperature)


def _balanced_distillation(seed: int) -> Pair:
    student, teacher, temperature = draw(seed, 3, 5), draw(seed + 1, 3, 5), pick(seed, 0.5, 2.0, 4.0)
    weights = draw(seed, 5).exp()
    value = balanced_distillation(student, teacher, weights, temperature)
    return value, reference.distillation(teacher, student, temperature, weights.numpy())


def _taskwise_distillation(seed: int) -> Pair:
    sizes = pick(seed, [3], [2, 1, 4], [1, 2], [2, 2, 3, 4])
    form = pick(seed // 4, "binary", "softmax")
    student, teacher = draw(seed, 5, sum(sizes)), draw(seed + 1, 5, sum(sizes))
    value = taskwise_distillation(student, teacher, sizes, 3.0, form)  # type: ignore[arg-type]
    return value, reference.taskwise_distillation(teacher, student, sizes, 3.0, form)


def _binary_cross_entropy(seed: int) -> Pair:
    logits, labels = draw(seed, 6, 5), draw_labels(seed, 6, 5)
    return binary_cross_entropy(logits, labels), reference.binary_cross_entropy(logits, labels)


def _branch_loss(seed: int) -> Pair:
    rows, reduction = pick(seed, "all", "old"), pick(seed // 2, "joint", "separate")
    epsilon = pick(seed // 4, 0.0, 1e-7)
    new, old, labels = draw(seed, 8, 6), draw(seed + 1, 8, 6), draw_labels(seed, 8, 6)
    term = branch_loss(new, old, labels, 4, rows=rows, reduction=reduction, epsilon=epsilon)  # type: ignore[arg-type]
    return term.value, reference.branch_loss(new, old, labels, 4, rows, reduction, epsilon)


def _fusion_loss(seed: int) -> Pair:
    """Adjusted, weighted and focal."""
    fused, labels, adjustment = draw(seed, 6, 5), draw_labels(seed, 6, 5), draw(seed, 5)
    weights, gamma = draw(seed + 1, 5).exp(), pick(seed, 0.0, 0.5, 2.0)
    value = fusion_loss(fused, labels, adjustment, weights, gamma)
    return value, reference.cross_entropy(fused + adjustment, labels, weights.tolist(), gamma)


def _pod_spatial(seed: int) -> Pair:
    shapes = [(3, 2, 4, 5), (3, 4, 2, 2)]
    maps, old_maps = ([draw(seed + number, *shape) for shape in shapes] for number in (0, 1))
    return pod_spatial(maps, old_maps), reference.pod_spatial(maps, old_maps)


def _pod_flat(seed: int) -> Pair:
    features, old = draw(seed, 4, 6), draw(seed + 1, 4, 6)
    return pod_flat(features, old), reference.pod_flat(features, old)


def _margin_ranking(seed: int) -> Pair:
    old, new, hardest, margin = pick(seed, 1, 2, 3), pick(seed // 3, 1, 4), pick(seed // 6, 1, 3), seed % 10 / 10
    cosines, labels = draw(seed, 6, old + new).sin(), draw_labels(seed, 6, old + new)
    term = margin_ranking(cosines, labels, old, margin=margin, hardest=hardest)
    return term.value, reference.margin_ranking(cosines.numpy(), labels, old, margin, hardest)


def _nca(seed: int) -> Pair:
    form, scale, margin = pick(seed, "published", "program"), pick(seed // 2, 0.5, 3.0, 20.0), seed % 10 / 10
    cosines, labels = draw(seed, 5, 4).sin(), draw_labels(seed, 5, 4)
    factor = torch.tensor(scale, dtype=torch.float64)
    value = nca(cosines, factor, labels, margin=margin, form=form)  # type: ignore[arg-type]
    return value, reference.nca(cosines.numpy(), scale, labels, margin, form)


TERMS = [
    _distillation, _kl_distillation, _balanced_distillation, _taskwise_distillation, _binary_cross_entropy,
    _branch_loss, _fusion_loss, _pod_spatial, _pod_flat, _margin_ranking, _nca,
]  # fmt: skip


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.__name__[1:])
@given(seed=seeds)
def test_a_term_is_its_formula(term: Callable[[int], Pair], seed: int) -> None:
    value, expected = term(seed)
    assert value.item() == pytest.approx(expected, rel=1e-8, abs=1e-11)


@given(st.lists(st.integers(1, 1300), min_size=1, max_size=12), st.floats(0, 0.999))
def test_class_weights_are_their_formula(counts: list[int], beta: float) -> None:
    expected = reference.class_weights(counts, beta).tolist()
    assert class_weights(torch.tensor(counts), beta).tolist() == pytest.approx(expected, rel=1e-6)


class TestDistillation:
    def test_by_hand(self) -> None:
        """At T = 2, teacher (0, 2 ln 3) is (1/4, 3/4) and student (0, 0) is (1/2, 1/2)."""
        student, teacher = torch.zeros(1, 2), torch.tensor([[0.0, 2 * math.log(3)]])
        assert distillation(student, teacher).item() == pytest.approx(math.log(2), abs=1e-6)
        divergence = math.log(2) + 0.25 * math.log(0.25) + 0.75 * math.log(0.75)
        assert kl_distillation(student, teacher, temperature=2).item() == pytest.approx(divergence, abs=1e-6)

    @given(seeds, st.sampled_from([1.0, 2.0, 5.0]))
    def test_both_forms_pull_alike(self, seed: int, temperature: float) -> None:
        student, teacher = draw(seed, 6, 5), draw(seed + 1, 6, 5)
        by_cross_entropy = gradient(lambda s: distillation(s, teacher, temperature), student)
        by_divergence = gradient(lambda s: kl_distillation(s, teacher, temperature), student)
        torch.testing.assert_close(by_cross_entropy, by_divergence, rtol=1e-9, atol=1e-12)
        assert by_cross_entropy.abs().max() > 1e-4

    @given(seeds)
    def test_agreement_costs_nothing(self, seed: int) -> None:
        logits = draw(seed, 4, 6)
        assert kl_distillation(logits, logits).item() == pytest.approx(0, abs=1e-12)
        assert gradient(lambda s: distillation(s, logits), logits).abs().max() < 1e-12

    @given(seeds, st.floats(-20, 20))
    def test_an_adjustment_constant_within_the_block_drops_out(self, seed: int, constant: float) -> None:
        fused, teacher = draw(seed, 4, 7), draw(seed + 1, 4, 5)
        adjustment = torch.zeros(7, dtype=torch.float64)
        adjustment[:5] = constant
        plain = distillation(fused[:, :5], teacher)
        assert distillation((fused + adjustment)[:, :5], teacher).item() == pytest.approx(plain.item(), rel=1e-9)

    @pytest.mark.parametrize("loss", [distillation, kl_distillation])
    def test_the_teacher_takes_no_gradient(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        student, teacher = draw(0, 3, 4).requires_grad_(), draw(1, 3, 4).requires_grad_()
        pull, push = torch.autograd.grad(loss(student, teacher), (student, teacher), allow_unused=True)
        assert pull.abs().max() > 0
        assert push is None


class TestBranchLoss:
    def test_by_hand(self) -> None:
        """Uniform branches over 4 classes, 2 of them old: ln 4 per sample, ln 2 among the old rows."""
        logits, labels = torch.zeros(3, 4), torch.tensor([0, 2, 3])
        program = branch_loss(logits, logits, labels, 2)
        assert program.value.item() == pytest.approx(math.log(4), abs=1e-5)
        paper = branch_loss(logits, logits, labels, 2, rows="old", reduction="separate", epsilon=0)
        assert paper.value.item() == pytest.approx(math.log(4) + math.log(2) / 3, abs=1e-6)

    def test_the_logarithm_is_smoothed(self) -> None:
        """A class given no probability costs -ln 1e-7, not infinity; unsmoothed it costs its logit's distance."""
        logits, labels = torch.tensor([[0.0, 500.0]]), torch.tensor([0])
        assert branch_loss(logits, None, labels, 0).value.item() == pytest.approx(-math.log(1e-7), rel=1e-5)
        assert branch_loss(logits, None, labels, 0, epsilon=0).value.item() == pytest.approx(500)

    @pytest.mark.parametrize("rows", ["all", "old"])
    @pytest.mark.parametrize("reduction", ["joint", "separate"])
    @pytest.mark.parametrize("epsilon", [0, 1e-7])
    def test_without_old_samples_it_is_the_new_branch_alone(
        self, rows: Rows, reduction: Reduction, epsilon: float
    ) -> None:
        new, old, labels = draw(0, 5, 6), draw(1, 5, 6, scale=200), torch.tensor([4, 5, 4, 5, 5])

        def loss(new: Tensor, old: Tensor) -> Tensor:
            return branch_loss(new, old, labels, 4, rows=rows, reduction=reduction, epsilon=epsilon).value

        alone = branch_loss(new, None, labels, 4, epsilon=epsilon).value
        assert loss(new, old).item() == pytest.approx(alone.item(), rel=1e-12)
        assert gradient(lambda o: loss(new, o), old).abs().max() == 0
        assert torch.isfinite(gradient(lambda n: loss(n, old), new)).all()

    def test_new_samples_do_not_touch_the_old_branch(self) -> None:
        new, old, labels = draw(0, 4, 5), draw(1, 4, 5), torch.tensor([0, 4, 2, 3])
        pull = gradient(lambda o: branch_loss(new, o, labels, 3, rows="old").value, old)
        assert (pull[labels >= 3] == 0).all()
        assert (pull[:, 3:] == 0).all()
        assert (pull[labels < 3, :3] != 0).all()

    def test_carries_its_weight_and_its_count(self) -> None:
        new, old, labels = draw(0, 5, 6), draw(1, 5, 6), torch.tensor([0, 1, 4, 5, 2])
        joint = branch_loss(new, old, labels, 4, weight=0.2)
        assert joint.weight == 0.2
        assert joint.over is not None
        assert joint.over(labels).tolist() == [2, 2, 1, 1, 2]
        assert branch_loss(new, old, labels, 4, reduction="separate").over is None
        assert branch_loss(new, None, labels, 0).over is None

    @given(seeds, st.integers(1, 9))
    def test_the_count_joins_the_parts_of_a_batch(self, seed: int, cut: int) -> None:
        """However processes share a batch, the mean weighted by the samples counted is the loss of the whole batch."""
        new, old, labels = draw(seed, 10, 6), draw(seed + 1, 10, 6), draw_labels(seed, 10, 6)

        def share(part: slice) -> Term:
            return branch_loss(new[part], old[part], labels[part], 4)

        whole, parts = share(slice(None)), [share(slice(cut)), share(slice(cut, None))]
        assert whole.over is not None
        counts = [whole.over(labels[:cut]).sum(), whole.over(labels[cut:]).sum()]
        joined = sum(part.value * count for part, count in zip(parts, counts, strict=True)) / sum(counts)
        torch.testing.assert_close(joined, whole.value, rtol=1e-10, atol=0)


class TestLogitAdjustment:
    def test_by_hand(self) -> None:
        """Shares 1/4 and 3/4 at tro 1: their logarithms. Per task (3 classes, then 1): shares 1/2 and 1/2."""
        expected = torch.tensor([math.log(0.25), math.log(0.75)])
        torch.testing.assert_close(logit_adjustment(np.array([10, 30]), tro=1), expected)
        by_task = task_logit_adjustment(np.array([5, 2, 3, 10]), [3, 1], tro=1)
        torch.testing.assert_close(by_task, torch.full((4,), math.log(0.5)))

    @given(st.lists(st.integers(0, 1300), min_size=4, max_size=4), st.sampled_from([1.0, 1.2, 1.6]))
    def test_is_the_formula_it_says(self, samples: list[int], tro: float) -> None:
        counts = np.array(samples)
        total = max(sum(samples), 1)
        by_class = [math.log((m / total) ** tro + 1e-12) for m in samples]
        found = logit_adjustment(counts, tro)
        assert found.dtype == torch.float32
        assert found.tolist() == pytest.approx(by_class, rel=1e-5, abs=1e-6)
        first, rest = samples[0], sum(samples[1:])
        by_task = [math.log((m / total) ** tro + 1e-12) for m in (first, rest, rest, rest)]
        assert task_logit_adjustment(counts, [1, 3], tro).tolist() == pytest.approx(by_task, rel=1e-5, abs=1e-6)

    def test_tensors_and_arrays_count_alike(self) -> None:
        counts = np.array([20, 20, 500])
        assert torch.equal(logit_adjustment(counts), logit_adjustment(torch.from_numpy(counts)))

    def test_tasks_of_one_class_are_classes(self) -> None:
        counts = np.array([20, 40, 500])
        assert torch.equal(task_logit_adjustment(counts, [1, 1, 1]), logit_adjustment(counts))

    def test_every_class_needs_a_task(self) -> None:
        with pytest.raises(RuntimeError, match="split_sizes"):
            task_logit_adjustment(np.array([20, 40, 500]), [1, 1])

    def test_a_class_without_samples_is_least_but_finite(self) -> None:
        assert logit_adjustment(np.array([0, 7])).tolist() == pytest.approx([math.log(1e-12), 0], abs=1e-5)
        assert torch.isfinite(logit_adjustment(np.zeros(3, dtype=np.int64))).all()


class TestFusionLoss:
    def test_by_hand(self) -> None:
        """Equal logits, adjusted by the log shares 1/4 and 3/4: the rare class costs ln 4."""
        fused, labels = torch.zeros(1, 2), torch.tensor([0])
        assert fusion_loss(fused, labels).item() == pytest.approx(math.log(2), abs=1e-6)
        adjustment = logit_adjustment(np.array([10, 30]), tro=1)
        assert fusion_loss(fused, labels, adjustment).item() == pytest.approx(math.log(4), abs=1e-6)

    @given(seeds)
    def test_a_balanced_adjustment_is_none(self, seed: int) -> None:
        fused, labels = draw(seed, 6, 5), draw_labels(seed, 6, 5)
        balanced = logit_adjustment(np.full(5, 20))
        plain = torch.nn.functional.cross_entropy(fused, labels)
        assert torch.equal(fusion_loss(fused, labels), plain)
        torch.testing.assert_close(fusion_loss(fused, labels, balanced), plain, rtol=1e-9, atol=1e-12)


class TestPod:
    def test_spatial_by_hand(self) -> None:
        """One channel of 1×2: energy (1, 0) against (0, 1). Profiles (1, 1, 0)/√2 and (1, 0, 1)/√2 are 1 apart."""
        student, teacher = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, -3.0]]]])
        assert pod_spatial([student], [teacher]).item() == pytest.approx(1, abs=1e-6)
        assert pod_spatial([student, student], [teacher, student]).item() == pytest.approx(0.5, abs=1e-6)

    @given(seeds, st.floats(0.1, 10))
    def test_spatial_compares_shape_not_strength(self, seed: int, strength: float) -> None:
        maps = draw(seed, 2, 3, 4, 4)
        assert pod_spatial([strength * maps], [maps]).item() == pytest.approx(0, abs=1e-9)

    @pytest.mark.parametrize("scale", [3.0, 0.0])
    def test_spatial_starts_without_a_jolt(self, scale: float) -> None:
        """A student that still equals its teacher, or sees an all-zero map, gets a finite gradient."""
        maps = draw(0, 2, 3, 4, 4, scale=scale)
        assert torch.isfinite(gradient(lambda m: pod_spatial([m], [maps]), maps)).all()

    def test_flat_by_hand(self) -> None:
        """A right angle costs 1, the same direction nothing, the opposite 2."""
        features = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
        old = torch.tensor([[0.0, 5.0], [3.0, 3.0], [0.0, -1.0]])
        assert pod_flat(features, old).item() == pytest.approx((1 + 0 + 2) / 3, abs=1e-6)


def test_maps_are_compared_one_to_one() -> None:
    maps = draw(0, 2, 3, 4, 4)
    with pytest.raises(ValueError, match="shorter"):
        pod_spatial([maps, maps], [maps])

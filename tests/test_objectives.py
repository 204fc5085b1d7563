"""The loss terms against numbers worked out by hand, against plain loops in double precision, and by their laws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drcil.keys import generator
from drcil.objectives import (
    branch_loss,
    distillation,
    fusion_loss,
    kl_distillation,
    logit_adjustment,
    pod_flat,
    pod_spatial,
    task_logit_adjustment,
)
from drcil.stages import Term

Rows = Literal["all", "old"]
Reduction = Literal["joint", "separate"]
seeds = st.integers(0, 10_000)


def draw(seed: int, *shape: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(*shape, generator=generator(seed, *shape), dtype=torch.float64)


def draw_labels(seed: int, size: int, classes: int) -> Tensor:
    return torch.randint(classes, (size,), generator=generator(seed, "labels"))


def gradient(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(leaf), leaf)
    return found


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value - max(row)) for value in row]
    return [power / sum(powers) for power in powers]


class TestDistillation:
    def test_by_hand(self) -> None:
        """At T = 2, teacher (0, 2 ln 3) is (1/4, 3/4) and student (0, 0) is (1/2, 1/2)."""
        student, teacher = torch.zeros(1, 2), torch.tensor([[0.0, 2 * math.log(3)]])
        assert distillation(student, teacher).item() == pytest.approx(math.log(2), abs=1e-6)
        divergence = math.log(2) + 0.25 * math.log(0.25) + 0.75 * math.log(0.75)
        assert kl_distillation(student, teacher, temperature=2).item() == pytest.approx(divergence, abs=1e-6)

    @given(seeds, st.sampled_from([1.0, 2.0, 5.0]))
    def test_is_the_sum_it_says(self, seed: int, temperature: float) -> None:
        student, teacher = draw(seed, 5, 4), draw(seed + 1, 5, 4)
        cross, divergence = 0.0, 0.0
        for student_row, teacher_row in zip(student.tolist(), teacher.tolist(), strict=True):
            p = softmax([value / temperature for value in student_row])
            q = softmax([value / temperature for value in teacher_row])
            cross -= sum(b * math.log(a) for a, b in zip(p, q, strict=True)) / 5
            divergence += sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)) / 5
        assert distillation(student, teacher, temperature).item() == pytest.approx(cross, rel=1e-10)
        assert kl_distillation(student, teacher, temperature).item() == pytest.approx(divergence, rel=1e-10)

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


def looped_branch_loss(
    new: Tensor, old: Tensor, labels: Tensor, old_classes: int, rows: Rows, reduction: Reduction, epsilon: float
) -> float:
    new_sum, old_sum, old_samples = 0.0, 0.0, 0
    for new_row, old_row, label in zip(new.tolist(), old.tolist(), labels.tolist(), strict=True):
        new_sum -= math.log(softmax(new_row)[label] + epsilon)
        if label < old_classes:
            old_samples += 1
            old_sum -= math.log(softmax(old_row[:old_classes] if rows == "old" else old_row)[label] + epsilon)
    return (new_sum + old_sum) / (len(labels) + (old_samples if reduction == "joint" else 0))


class TestBranchLoss:
    def test_by_hand(self) -> None:
        """Uniform branches over 4 classes, 2 of them old: ln 4 per sample, ln 2 among the old rows."""
        logits, labels = torch.zeros(3, 4), torch.tensor([0, 2, 3])
        program = branch_loss(logits, logits, labels, 2)
        assert program.value.item() == pytest.approx(math.log(4), abs=1e-5)
        paper = branch_loss(logits, logits, labels, 2, rows="old", reduction="separate", epsilon=0)
        assert paper.value.item() == pytest.approx(math.log(4) + math.log(2) / 3, abs=1e-6)

    @given(seeds, st.sampled_from(["all", "old"]), st.sampled_from(["joint", "separate"]), st.sampled_from([0, 1e-7]))
    def test_is_the_sum_it_says(self, seed: int, rows: Rows, reduction: Reduction, epsilon: float) -> None:
        new, old, labels = draw(seed, 8, 6), draw(seed + 1, 8, 6), draw_labels(seed, 8, 6)
        term = branch_loss(new, old, labels, 4, rows=rows, reduction=reduction, epsilon=epsilon)
        slow = looped_branch_loss(new, old, labels, 4, rows, reduction, epsilon)
        assert term.value.item() == pytest.approx(slow, rel=1e-10)

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
        assert joint.count is not None
        assert joint.count.item() == 5 + 3
        assert branch_loss(new, old, labels, 4, reduction="separate").count is None
        assert branch_loss(new, None, labels, 0).count is None

    @given(seeds, st.integers(1, 9))
    def test_the_count_joins_the_parts_of_a_batch(self, seed: int, cut: int) -> None:
        """However a batch is spread over processes, the mean by counts is the loss of the whole."""
        new, old, labels = draw(seed, 10, 6), draw(seed + 1, 10, 6), draw_labels(seed, 10, 6)

        def share(part: slice) -> Term:
            return branch_loss(new[part], old[part], labels[part], 4)

        whole, parts = share(slice(None)), [share(slice(cut)), share(slice(cut, None))]
        counts = [part.count for part in parts if part.count is not None]
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
    def test_is_the_mean_it_says(self, seed: int) -> None:
        fused, labels, adjustment = draw(seed, 6, 5), draw_labels(seed, 6, 5), draw(seed, 5)
        slow = 0.0
        for row, label in zip((fused + adjustment).tolist(), labels.tolist(), strict=True):
            slow -= math.log(softmax(row)[label]) / 6
        assert fusion_loss(fused, labels, adjustment).item() == pytest.approx(slow, rel=1e-10)

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

    @given(seeds)
    def test_spatial_is_the_mean_it_says(self, seed: int) -> None:
        shapes = [(3, 2, 4, 5), (3, 4, 2, 2)]
        students = [draw(seed, *shape) for shape in shapes]
        teachers = [draw(seed + 1, *shape) for shape in shapes]

        def profile(sample: npt.NDArray[Any]) -> npt.NDArray[Any]:
            by_height = [sum(value**2 for value in line) for channel in sample for line in channel]
            by_width = [sum(value**2 for value in line) for channel in sample for line in channel.T]
            joined = np.array(by_height + by_width)
            return joined / math.sqrt(sum(joined**2))

        slow = 0.0
        for student, teacher in zip(students, teachers, strict=True):
            for one, other in zip(student.numpy(), teacher.numpy(), strict=True):
                slow += math.sqrt(sum((profile(one) - profile(other)) ** 2)) / (3 * 2)
        assert pod_spatial(students, teachers).item() == pytest.approx(slow, rel=1e-10)

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

    @given(seeds)
    def test_flat_is_the_mean_it_says(self, seed: int) -> None:
        features, old = draw(seed, 4, 6), draw(seed + 1, 4, 6)
        slow = 0.0
        for one, other in zip(features.numpy(), old.numpy(), strict=True):
            lengths = math.sqrt(sum(one**2)) * math.sqrt(sum(other**2))
            slow += (1 - sum(one * other) / lengths) / 4
        assert pod_flat(features, old).item() == pytest.approx(slow, rel=1e-9)


def test_maps_are_compared_one_to_one() -> None:
    maps = draw(0, 2, 3, 4, 4)
    with pytest.raises(ValueError, match="shorter"):
        pod_spatial([maps, maps], [maps])

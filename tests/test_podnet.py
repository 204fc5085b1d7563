"""PODNet: both forms of its loss against plain loops, a margin that acts, proxies that stay, and POD's factor."""

from __future__ import annotations

import copy
import math
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import drcil
from drcil.heads import CosineHead
from drcil.keys import generator
from drcil.methods.podnet import Podnet
from drcil.objectives import nca, pod_flat, pod_spatial
from drcil.stages import Batch, Stage

Form = Literal["published", "program"]
seeds = st.integers(0, 10_000)


def drawn(seed: int, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    cosines = 2 * torch.rand(5, classes, generator=generator(seed), dtype=torch.float64) - 1
    return cosines, torch.randint(classes, (5,), generator=generator(seed, "labels"))


def test_the_published_form_by_hand() -> None:
    """Two classes: [ η (a_rival - a_own + δ) ]₊, here 2 (0.1 - 0.4 + 0.5) and, past the margin, nothing."""
    cosines, labels = torch.tensor([[0.4, 0.1], [-0.5, 0.5]]), torch.tensor([0, 1])
    assert nca(cosines, torch.tensor(2.0), labels, margin=0.5, form="published").item() == pytest.approx(0.4 / 2)


@given(seeds, st.floats(0.5, 20), st.floats(0, 1))
def test_the_forms_are_the_sums_they_say(seed: int, scale: float, margin: float) -> None:
    cosines, labels = drawn(seed)
    published = program = 0.0
    for row, label in zip(cosines.tolist(), labels.tolist(), strict=True):
        rivals = [scale * value for c, value in enumerate(row) if c != label]
        own, top = scale * row[label], scale * max(row)
        published += max(0.0, math.log(sum(map(math.exp, rivals))) - (own - scale * margin)) / 5
        program += (top - own + math.log(1 + sum(math.exp(value - top) for value in rivals))) / 5
    expected: dict[Form, float] = {"published": published, "program": program}
    for form, slow in expected.items():
        value = nca(cosines, torch.tensor(scale, dtype=torch.float64), labels, margin=margin, form=form)
        assert value.item() == pytest.approx(slow, rel=1e-9, abs=1e-12)


@given(seeds)
def test_the_margin_acts_in_the_published_form_alone(seed: int) -> None:
    cosines, _ = drawn(seed)
    labels, scale = cosines.argmin(dim=1), torch.tensor(3.0, dtype=torch.float64)
    acts: dict[Form, bool] = {"published": True, "program": False}
    for form, differs in acts.items():
        none, some = (nca(cosines, scale, labels, margin=margin, form=form) for margin in (0.0, 0.6))
        assert bool(some > none) is differs


def test_the_margin_does_not_teach_the_scale_to_shrink() -> None:
    """Where all classes are equally near, the scale has nothing to learn, whatever the margin."""
    scale = torch.tensor(1.0, requires_grad=True)
    nca(torch.zeros(3, 2), scale, torch.tensor([0, 1, 0]), margin=0.6, form="published").backward()  # type: ignore[no-untyped-call]
    assert scale.grad is not None
    assert scale.grad.item() == 0


@pytest.mark.parametrize("form", ["published", "program"])
def test_a_class_without_rivals_costs_nothing_and_has_a_finite_gradient(form: Form) -> None:
    cosines = torch.tensor([[0.3], [-0.9]], requires_grad=True)
    loss = nca(cosines, torch.tensor(2.0), torch.tensor([0, 0]), margin=0.6, form=form)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert cosines.grad is not None
    assert bool((cosines.grad == 0).all())


def test_proxies_of_old_classes_stay_and_both_stages_hold_the_maps() -> None:
    stream = drcil.stream("digits-6/2")
    weights = {"spatial": 2.0, "flat": 0.5}
    learner = drcil.Learner("podnet", epochs_scale=0.05, memory="30", device="cpu", settings=weights)
    learner.learn(stream[0])
    method = learner.method
    assert isinstance(method, Podnet)
    rows = method.cosine_head.new_rows.detach().clone()
    stages: list[Stage] = []
    fit = learner.engine.fit

    def noted(stage: Stage) -> None:
        stages.append(stage)
        before = copy.deepcopy(method.cosine_head)
        fit(stage)
        assert isinstance(method.cosine_head, CosineHead)
        assert torch.equal(method.cosine_head.old_rows, rows)
        assert not torch.equal(method.cosine_head.new_rows, before.new_rows)

    learner.engine.fit = noted  # type: ignore[method-assign]
    learner.learn(stream[1])
    assert [stage.name for stage in stages] == ["later", "finetuning"]
    # ⌊30 / 6⌋ of each old class, and as many of each new one.
    assert stages[1].data.counts(8).tolist() == [5] * 8

    images, labels = torch.randn(4, 1, 8, 8, generator=generator("images")), torch.arange(4) + 3
    for stage in stages:
        net, previous = stage.net.eval(), stage.teachers["previous"].eval()
        output, taught = net(images), previous(images)
        terms = stage.objective(output, {"previous": taught}, Batch(labels, labels))
        factor = math.sqrt(8 / 2)
        assert terms["spatial"].weight == pytest.approx(factor * 2.0)
        assert terms["flat"].weight == pytest.approx(factor * 0.5)
        assert torch.equal(terms["spatial"].value, pod_spatial(output.features.stages, taught.features.stages))
        assert torch.equal(terms["flat"].value, pod_flat(output.features.pooled, taught.features.pooled))
        assert terms["spatial"].value.item() > 0


def test_the_recipe_has_ten_proxies_and_the_form_of_the_program() -> None:
    learner = drcil.Learner("podnet", epochs_scale=0.02, memory="20", device="cpu")
    learner.learn(drcil.stream("digits-b0-5")[0])
    method = learner.method
    assert isinstance(method, Podnet)
    assert method.cosine_head.new_rows.shape == (2, 10, 64)
    assert method.settings.nca == "program"
    assert method.settings.margin == 0.6

"""PODNet: both forms of its loss, the margin, proxies of old classes."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import drcil
from drcil.heads import CosineHead
from drcil.objectives import nca
from drcil.seeding import generator
from support.stage_recorder import recorded

pytestmark = pytest.mark.numerical

Form = Literal["published", "program"]
seeds = st.integers(0, 10_000)


def drawn(seed: int, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    cosines = 2 * torch.rand(5, classes, generator=generator(seed), dtype=torch.float64) - 1
    return cosines, torch.randint(classes, (5,), generator=generator(seed, "labels"))


def test_the_published_form_by_hand() -> None:
    """Two classes: [ η (a_rival - a_own + δ) ]₊, here 2 (0.1 - 0.4 + 0.5) and, past the margin, nothing."""
    cosines, labels = torch.tensor([[0.4, 0.1], [-0.5, 0.5]]), torch.tensor([0, 1])
    assert nca(cosines, torch.tensor(2.0), labels, margin=0.5, form="published").item() == pytest.approx(0.4 / 2)


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
    nca(torch.zeros(3, 2), scale, torch.tensor([0, 1, 0]), margin=0.6, form="published").backward()
    assert scale.grad is not None
    assert scale.grad.item() == 0


@pytest.mark.parametrize("form", ["published", "program"])
def test_a_class_without_rivals_costs_nothing_and_has_a_finite_gradient(form: Form) -> None:
    cosines = torch.tensor([[0.3], [-0.9]], requires_grad=True)
    loss = nca(cosines, torch.tensor(2.0), torch.tensor([0, 0]), margin=0.6, form=form)
    loss.backward()
    assert loss.item() == 0
    assert cosines.grad is not None
    assert bool((cosines.grad == 0).all())


def test_proxies_of_old_classes_stay_the_same() -> None:
    first, second = drcil.stream("digits-6/2")[:2]
    learner = drcil.Learner("podnet", epochs_scale=0.05, memory="30", device="cpu")
    learner.learn(first)
    head = learner.method.net.head
    assert isinstance(head, CosineHead)
    stages = recorded(learner, second)
    assert [seen.stage.name for seen in stages] == ["later", "finetuning"]
    # ⌊30 / 6⌋ of each old class, and as many of each new one.
    assert stages[1].stage.data.counts(8).tolist() == [5] * 8
    for seen in stages:
        assert torch.equal(seen.after["head.old_rows"], head.new_rows)
        assert "head.new_rows" in seen.changed()

"""The losses and stages of the three pipelines with a residual head, against the plain formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from drcil.nets.net import Output
from support import reference_losses as reference
from support.two_tasks import (
    ALL,
    BOTH,
    GIVEN,
    LABELS,
    NEW,
    OLD,
    OLD_BACKBONE,
    beside_old_backbone,
    check_first,
    check_stage,
    check_terms,
    two_tasks,
)  # fmt: skip

pytestmark = pytest.mark.numerical

ADJUSTED = {"alpha": 0.3, "remedies": ["la"], "adjust_by": "class", "tro": 2.0}
"""For the pipelines with a residual head: logits adjusted by the images of each class."""
TEXT = {"branch": "conv", "fusing": "mean", "branch_rows": "old", "branch_reduction": "separate", "branch_epsilon": 0.0}
both_forms = pytest.mark.parametrize("form", [{}, TEXT], ids=["program", "text"])
"""The residual classifier and its branch loss as the recipes have them, and as the paper's equations do."""


def adjusted(logits: Tensor) -> Tensor:
    return logits + torch.from_numpy(reference.adjustment(BOTH, 2.0))


def branch_terms(output: Output, form: dict[str, Any]) -> float:
    """The old branch classifies old samples: among all classes with one mean for both branches, or by the paper's sums
    among old classes."""
    assert output.logits.new is not None and output.logits.old is not None
    torch.testing.assert_close(output.logits.fused, (output.logits.new + output.logits.old) / (2 if form else 1))
    old = [label < OLD for label in LABELS.tolist()]
    epsilon, columns, samples = (0.0, OLD, len(LABELS)) if form else (1e-7, ALL, len(LABELS) + sum(old))
    own = reference.negative_log_likelihoods(output.logits.new, LABELS, epsilon)
    past = reference.negative_log_likelihoods(output.logits.old[old][:, :columns], LABELS[old], epsilon)
    return (sum(own) + sum(past)) / samples


@both_forms
def test_mdtdrc_adds_distillation_to_the_losses_of_the_residual_classifier(form: dict[str, Any]) -> None:
    scene = two_tasks("mdtdrc", temperature=3.0, distillation=0.7, **form, **ADJUSTED)
    check_first(scene)
    check_stage(scene, "transfer", BOTH)
    output = scene.output("transfer")
    check_terms(
        scene.stage("transfer"),
        fusion=(0.7, reference.cross_entropy(adjusted(output.logits.fused), LABELS)),
        branch=(0.3, branch_terms(output, form)),
        distillation=(0.7, reference.distillation(scene.taught.logits.fused, output.logits.fused[:, :OLD], 3)),
    )


@both_forms
def test_mecdrc_expands_with_the_residual_classifier_and_compresses_plainly(form: dict[str, Any]) -> None:
    scene = two_tasks("mecdrc", temperature=3.0, distillation=0.6, auxiliary=0.4, **form, **ADJUSTED)
    check_first(scene)
    check_stage(scene, "expansion", BOTH, beside_old_backbone, OLD_BACKBONE)
    check_stage(scene, "compression", BOTH)
    output = scene.output("expansion")
    check_terms(
        scene.stage("expansion"),
        fusion=(0.7, reference.cross_entropy(adjusted(output.logits.fused), LABELS)),
        branch=(0.3, branch_terms(output, form)),
        auxiliary=(0.4, reference.cross_entropy(output.logits.extras["auxiliary"], LABELS)),
        distillation=(0.6, reference.distillation(scene.taught.logits.fused, output.logits.fused[:, :OLD], 3)),
    )
    check_terms(
        scene.stage("compression"),
        compression=(1, reference.distillation(output.logits.fused, scene.logits("compression"), 3)),
    )


@both_forms
def test_mafdrc_adapts_to_new_classes_and_fuses_two_teachers(form: dict[str, Any]) -> None:
    own = {"old_distillation": 2.0, "new_distillation": 0.5, "temperature": 3.0, "pod": 0.7}
    own |= {} if form.get("branch") == "conv" else {"untrained_past": False}
    scene = two_tasks("mafdrc", **own, **form, **ADJUSTED)
    check_first(scene)
    check_stage(scene, "adaptation", [0] * OLD + [GIVEN] * NEW)
    check_stage(scene, "fusion", BOTH)
    expert, output = scene.logits("adaptation"), scene.output("fusion")
    new = OLD + torch.arange(12) % NEW
    check_terms(scene.stage("adaptation"), new, adaptation=(1, reference.cross_entropy(expert[:, OLD:], new - OLD)))
    student, taught = adjusted(output.logits.fused), scene.taught
    check_terms(
        scene.stage("fusion"),
        fusion=(0.7, reference.cross_entropy(student, LABELS)),
        branch=(0.3, branch_terms(output, form)),
        old=(2, reference.distillation(taught.logits.fused, student[:, :OLD], 3)),
        new=(0.5, reference.distillation(expert[:, OLD:], student[:, OLD:], 3)),
        pod=(
            0.7 * math.sqrt(ALL / NEW),
            reference.pod_spatial(output.features.stages, taught.features.stages),
        ),
    )

"""The losses and stages of the three pipelines with a residual head, against the plain formulas of ``by_hand``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import by_hand
from drcil.nets.output import Output
from scene import (
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

ADJUSTED = {"alpha": 0.3, "remedies": ["la"], "adjust_by": "class", "tro": 2.0}
"""For the pipelines with a residual head: logits adjusted by the images of each class."""


def adjusted(logits: Tensor) -> Tensor:
    return logits + torch.from_numpy(by_hand.adjustment(BOTH, 2.0))


def branch_terms(output: Output) -> float:
    """The paper's branch loss: the old branch classifies old samples among old classes."""
    assert output.logits.new is not None and output.logits.old is not None
    old = [label < OLD for label in LABELS.tolist()]
    own = by_hand.surprises(output.logits.new, LABELS)
    past = by_hand.surprises(output.logits.old[old][:, :OLD], LABELS[old])
    return (sum(own) + sum(past)) / len(LABELS)


def test_mdtdrc_adds_distillation_to_the_losses_of_the_residual_classifier() -> None:
    scene = two_tasks("mdtdrc", temperature=3.0, distillation=0.7, conv_lr=0.2, **ADJUSTED)
    check_first(scene, rates=(1.0, 0.2))
    check_stage(scene, "transfer", BOTH, rates=(1.0, 0.2))
    output = scene.output("transfer")
    check_terms(
        scene.stage("transfer"),
        fusion=(0.7, by_hand.cross_entropy(adjusted(output.logits.fused), LABELS)),
        branch=(0.3, branch_terms(output)),
        distillation=(0.7, by_hand.distillation(scene.taught.logits.fused, output.logits.fused[:, :OLD], 3)),
    )


def test_mecdrc_expands_with_the_residual_classifier_and_compresses_plainly() -> None:
    scene = two_tasks("mecdrc", temperature=3.0, distillation=0.6, auxiliary=0.4, conv_lr=0.2, **ADJUSTED)
    check_first(scene)
    check_stage(scene, "expansion", BOTH, beside_old_backbone, OLD_BACKBONE, (1.0, 0.2))
    check_stage(scene, "compression", BOTH)
    output = scene.output("expansion")
    check_terms(
        scene.stage("expansion"),
        fusion=(0.7, by_hand.cross_entropy(adjusted(output.logits.fused), LABELS)),
        branch=(0.3, branch_terms(output)),
        auxiliary=(0.4, by_hand.cross_entropy(output.logits.extras["auxiliary"], LABELS)),
        distillation=(0.6, by_hand.distillation(scene.taught.logits.fused, output.logits.fused[:, :OLD], 3)),
    )
    check_terms(
        scene.stage("compression"),
        compression=(1, by_hand.distillation(output.logits.fused, scene.logits("compression"), 3)),
    )


def test_mafdrc_adapts_to_new_classes_and_fuses_two_teachers() -> None:
    own = {"adaptation_columns": "new", "old_distillation": 2.0, "new_distillation": 0.5, "temperature": 3.0}
    form = {"distillation_form": "cross-entropy", "adjust_distillation": True, "pod": 0.7, "conv_lr": 0.2}
    scene = two_tasks("mafdrc", **own, **form, **ADJUSTED)
    check_first(scene, rates=(1.0, 0.2))
    check_stage(scene, "adaptation", [0] * OLD + [GIVEN] * NEW, rates=(1.0, 0.2))
    check_stage(scene, "fusion", BOTH, rates=(1.0, 0.2))
    expert, output = scene.logits("adaptation"), scene.output("fusion")
    new = OLD + torch.arange(12) % NEW
    check_terms(scene.stage("adaptation"), new, adaptation=(1, by_hand.cross_entropy(expert[:, OLD:], new - OLD)))
    student, taught = adjusted(output.logits.fused), scene.taught
    check_terms(
        scene.stage("fusion"),
        fusion=(0.7, by_hand.cross_entropy(student, LABELS)),
        branch=(0.3, branch_terms(output)),
        old=(2, by_hand.distillation(taught.logits.fused, student[:, :OLD], 3)),
        new=(0.5, by_hand.distillation(expert[:, OLD:], student[:, OLD:], 3)),
        pod=(
            0.7 * math.sqrt(ALL / NEW),
            by_hand.pod_spatial(output.features.stages, taught.features.stages),
        ),
    )

"""The losses and stages of every compared method in its second task, against the plain formulas."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drcil.heads import CosineHead
from drcil.nets.net import Net, Output
from support import reference_losses as reference
from support.two_tasks import (
    ALL,
    BALANCED,
    BOTH,
    EVERYTHING,
    GIVEN,
    KEPT,
    LABELS,
    NEW,
    OLD,
    OLD_BACKBONE,
    answer,
    beside_old_backbone,
    check_first,
    check_plain,
    check_stage,
    check_terms,
    two_tasks,
)  # fmt: skip

pytestmark = pytest.mark.numerical


@pytest.mark.parametrize("method", ["replay", "finetune", "joint"])
def test_fine_tuning_is_cross_entropy_on_the_images_there_are(method: str) -> None:
    kept = {"replay": KEPT, "finetune": 0, "joint": GIVEN}[method]
    scene = two_tasks(method)
    check_first(scene)
    check_stage(scene, "later", [kept] * OLD + [GIVEN] * NEW)
    check_plain(scene, "later")


@pytest.mark.parametrize(
    ("method", "settings", "weights"),
    [
        ("icarl", {"distillation": 0.7}, (1, 0.7)),
        ("wa", {}, (NEW / ALL, OLD / ALL)),
        ("wa", {"weighting": "sum", "distillation": 0.7}, (1, 0.7)),
    ],
)
def test_icarl_and_wa_learn_and_keep(method: str, settings: dict[str, Any], weights: tuple[float, float]) -> None:
    scene = two_tasks(method, temperature=3.0, **settings)
    check_first(scene)
    check_stage(scene, "later", BOTH)
    logits, taught = scene.logits("later"), scene.taught.logits.fused
    check_terms(
        scene.stage("later"),
        classification=(weights[0], reference.cross_entropy(logits, LABELS)),
        distillation=(weights[1], reference.distillation(taught, logits[:, :OLD], 3)),
    )


def test_bic_learns_and_keeps_by_shares_then_corrects_on_what_was_held_back() -> None:
    scene = two_tasks("bic", temperature=3.0, held_share=0.5)
    check_first(scene, lambda name: "pairs" not in name)
    check_stage(scene, "later", [KEPT - 3] * OLD + [GIVEN - 3] * NEW, lambda name: "pairs" not in name)
    check_stage(scene, "bias", [3] * ALL, lambda name: name == "head.pairs.1", frozen=EVERYTHING)
    logits, taught = scene.logits("later"), scene.taught.logits.fused
    check_terms(
        scene.stage("later"),
        classification=(NEW / ALL, reference.cross_entropy(logits, LABELS)),
        distillation=(OLD / ALL, reference.distillation(taught, logits[:, :OLD], 3)),
    )
    check_plain(scene, "bias")


@pytest.mark.parametrize("form", ["binary", "softmax"])
def test_eeil_distils_task_by_task_in_both_stages(form: str) -> None:
    scene = two_tasks("eeil", temperature=3.0, distillation=0.7, distillation_form=form)
    check_first(scene)
    check_stage(scene, "later", BOTH)
    check_stage(scene, "finetuning", BALANCED)
    net = scene.learner.method.net
    expert = copy.deepcopy(net)
    expert.load_state_dict(scene.stages["later"].after)
    logits = answer(net).logits.fused

    def kept(teacher: Tensor, *tasks: slice) -> float:
        if form == "binary":
            return float(
                np.mean([reference.binary_distillation(teacher[:, task], logits[:, task], 3) for task in tasks])
            )
        return sum(reference.distillation(teacher[:, task], logits[:, task], 3) for task in tasks)

    old, new = slice(OLD), slice(OLD, ALL)
    for name, value in (
        ("later", kept(scene.taught.logits.fused, old)),
        ("finetuning", kept(answer(expert).logits.fused, old, new)),
    ):
        check_terms(
            scene.stage(name),
            classification=(1, reference.cross_entropy(logits, LABELS)),
            distillation=(0.7, value),
        )


def cosines_of(net: Net, scale: float) -> tuple[Output, reference.Array]:
    """What the net says and its cosines by hand; its scale is made unlike that of any recipe first."""
    assert isinstance(net.head, CosineHead)
    with torch.no_grad():
        net.head.scale.fill_(scale)
    output = answer(net)
    return output, reference.class_cosines(output.features.pooled, net.head.rows())


def test_lucir_ranks_raw_cosines_and_keeps_the_directions_of_features() -> None:
    scene = two_tasks("lucir", steadiness=2.0, margin=0.3, hardest=1, ranking=0.4, balancing=True)
    check_first(scene, lambda name: name != "head.old_rows")
    check_stage(scene, "later", BOTH, lambda name: name != "head.old_rows")
    check_stage(scene, "finetuning", BALANCED, lambda name: name.startswith("head."), frozen=EVERYTHING)
    output, cosines = cosines_of(scene.learner.method.net, 3.0)
    classification = reference.cross_entropy(torch.from_numpy(3 * cosines), LABELS)
    check_terms(
        scene.stage("later"),
        classification=(1, classification),
        steadiness=(
            2 * math.sqrt(OLD / NEW),
            reference.pod_flat(output.features.pooled, scene.taught.features.pooled),
        ),
        ranking=(0.4, reference.margin_ranking(cosines, LABELS, OLD, margin=0.3, hardest=1)),
    )
    check_terms(scene.stage("finetuning"), classification=(1, classification))


@pytest.mark.parametrize("form", ["published", "program"])
def test_podnet_holds_maps_near_the_previous_model_in_both_stages(form: str) -> None:
    margin = {"margin": 0.2} if form == "published" else {}
    scene = two_tasks("podnet", proxies=3, nca=form, spatial=2.0, flat=0.3, **margin)
    check_stage(scene, "first", [GIVEN] * OLD, lambda name: name != "head.old_rows")
    check_stage(scene, "later", BOTH, lambda name: name != "head.old_rows")
    check_stage(scene, "finetuning", BALANCED, lambda name: name != "head.old_rows")
    output, cosines = cosines_of(scene.learner.method.net, 3.0)
    assert scene.learner.method.net.describe()["head"]["options"] == {"proxies": 3}
    features, before, factor = output.features, scene.taught.features, math.sqrt(ALL / NEW)
    classification = (1, reference.nca(cosines, 3.0, LABELS, 0.2, form))
    labels, (_, old_cosines) = LABELS % OLD, cosines_of(scene.previous, 2.0)
    first = scene.stage("first")
    first.net.load_state_dict(scene.previous.state_dict())
    check_terms(first, labels, classification=(1, reference.nca(old_cosines, 2.0, labels, 0.2, form)))
    for name in ("later", "finetuning"):
        check_terms(
            scene.stage(name),
            classification=classification,
            spatial=(2 * factor, reference.pod_spatial(features.stages, before.stages)),
            flat=(0.3 * factor, reference.pod_flat(features.pooled, before.pooled)),
        )


def test_der_classifies_by_all_backbones_and_by_the_newest_which_knows_old_from_new() -> None:
    scene = two_tasks("der", auxiliary=0.3)
    check_first(scene)
    check_stage(scene, "expansion", BOTH, beside_old_backbone, frozen=OLD_BACKBONE)
    logits = scene.output("expansion").logits
    targets = torch.tensor([0 if label < OLD else label - OLD + 1 for label in LABELS.tolist()])
    check_terms(
        scene.stage("expansion"),
        classification=(1, reference.cross_entropy(logits.fused, LABELS)),
        auxiliary=(0.3, reference.cross_entropy(logits.extras["auxiliary"], targets)),
    )


def test_foster_boosts_with_weighted_logits_and_compresses_weighted_answers() -> None:
    own = {"temperature": 3.0, "distillation": 0.7, "auxiliary": 0.3, "boosting_betas": [0.7], "compression_beta": 0.6}
    scene = two_tasks("foster", **own)
    check_first(scene)
    check_stage(scene, "boosting", BOTH, beside_old_backbone, frozen=OLD_BACKBONE)
    check_stage(scene, "compression", BOTH)
    boosted, student = scene.output("boosting").logits, scene.logits("compression")
    weighted = boosted.fused / torch.from_numpy(reference.class_weights(BOTH, 0.7))
    check_terms(
        scene.stage("boosting"),
        classification=(1, reference.cross_entropy(weighted, LABELS)),
        auxiliary=(0.3, reference.cross_entropy(boosted.extras["auxiliary"], LABELS)),
        distillation=(0.7, reference.distillation(scene.taught.logits.fused, boosted.fused[:, :OLD], 3)),
    )
    weights = reference.class_weights(BOTH, 0.6)
    check_terms(scene.stage("compression"), compression=(1, reference.distillation(boosted.fused, student, 3, weights)))

"""Laws of all registered backbones: features, descriptions, folding of batch normalisation."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drcil.nets.backbone import BACKBONES, backbone_for, build_backbone, fold_convolutions
from drcil.nets.resnet import ResNet
from drcil.seeding import generator, seeded_torch
from support.nets import with_statistics

pytestmark = pytest.mark.numerical

RESNET_VARIANTS: list[dict[str, Any]] = [
    {"shortcut": shortcut, "last_relu": last_relu}
    for shortcut in ("padded", "projected")
    for last_relu in (True, False)
]
EVERY_BACKBONE = [
    (name, options)
    for name in sorted(BACKBONES)
    for options in (RESNET_VARIANTS if name.startswith("resnet") else [{}])
]
every_backbone = pytest.mark.parametrize(("name", "options"), EVERY_BACKBONE)


def image_size(name: str) -> int:
    return {"resnet18": 48, "resnet-digits": 8, "convit-digits": 8}.get(name, 32)


def images_for(name: str, channels: int) -> Tensor:
    size = image_size(name)
    return torch.rand(2, channels, size, size, generator=generator("test", "images", name))


@every_backbone
def test_features_are_stage_maps_and_the_average_of_the_last_map(name: str, options: dict[str, Any]) -> None:
    with seeded_torch("test", name):
        backbone = backbone_for(name, 1, image_size(name), **options).eval()
    features = backbone(images_for(name, 1))
    assert bool(features.stages) is backbone.stage_maps
    assert features.last.shape[1] == backbone.channels
    assert min(features.last.shape[2:]) >= 2
    torch.testing.assert_close(features.pooled, features.last.mean(dim=(2, 3)))
    assert torch.equal(backbone.tokens(images_for(name, 1)), features.last.flatten(2).transpose(1, 2))
    if isinstance(backbone, ResNet):
        *earlier, last = features.stages
        assert last is features.last
        assert all(bool((stage >= 0).all()) for stage in earlier)
        assert bool((last < 0).any()) is not options["last_relu"], "only the last map may lose its ReLU"


@every_backbone
def test_a_backbone_is_rebuilt_from_its_description(name: str, options: dict[str, Any]) -> None:
    with seeded_torch("test", name):
        backbone = backbone_for(name, 2, image_size(name), **options).eval()
    again = build_backbone(**json.loads(json.dumps(backbone.describe()))).eval()
    again.load_state_dict(backbone.state_dict(), strict=True)
    assert again.describe() == backbone.describe()
    assert torch.equal(again(images_for(name, 2)).last, backbone(images_for(name, 2)).last)


@every_backbone
def test_folding_changes_no_feature(name: str, options: dict[str, Any]) -> None:
    with seeded_torch("test", name):
        backbone = backbone_for(name, 3, image_size(name), **options).double()
    with_statistics(backbone, name).eval()
    before = copy.deepcopy(backbone.state_dict())
    folded = fold_convolutions(backbone)
    images = images_for(name, 3).double()
    expected, features = backbone(images), folded(images)
    for stage, original in zip(features.stages, expected.stages, strict=True):
        torch.testing.assert_close(stage, original)
    torch.testing.assert_close(features.pooled, expected.pooled)
    assert all(torch.equal(tensor, before[key]) for key, tensor in backbone.state_dict().items())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert folded.normalised_convolutions() == []


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_every_backbone_has_a_docstring(name: str) -> None:
    """``drcil list backbones`` prints it."""
    assert (BACKBONES[name].__doc__ or "").strip()

"""Backbones: the published sizes, the stated maps, the stated initialisation."""

from __future__ import annotations

import json
import math
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from drcil.errors import UserError
from drcil.keys import randomness
from drcil.nets.build import BACKBONES, backbone_for, build_backbone
from drcil.nets.resnet import Block, PaddedShortcut, ResNet, Shortcut

PARAMETERS = {
    "resnet20": 269_072,
    "resnet32": 463_504,
    "resnet44": 657_936,
    "resnet56": 852_368,
    "resnet18": 11_176_512,
    "resnet-digits": 464 + 4_672 + 13_952 + 55_552,
}
STAGES = {"resnet18": ((64, 16), (128, 8), (256, 4), (512, 2)), "resnet-digits": ((16, 8), (32, 4), (64, 2))}
CIFAR_STAGES = ((16, 32), (32, 16), (64, 8))


def image_size(name: str) -> int:
    return {"resnet18": 64, "resnet-digits": 8, "convit-digits": 8}.get(name, 32)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name: str) -> None:
    assert count(build_backbone(name, 3)) == PARAMETERS[name]


def test_resnet32_counts_stage_by_stage() -> None:
    backbone = build_backbone("resnet32", 3)
    assert isinstance(backbone, ResNet)
    assert count(backbone.stem) == 464
    assert [count(stage) for stage in backbone.stages] == [23_360, 88_192, 351_488]


@pytest.mark.parametrize("name", sorted(BACKBONES))
@pytest.mark.parametrize("channels_in", [1, 3])
def test_every_backbone_gives_its_stage_maps_and_their_pooled_end(name: str, channels_in: int) -> None:
    size = image_size(name)
    backbone = backbone_for(name, channels_in, size).eval()
    with torch.no_grad():
        features = backbone(torch.rand(2, channels_in, size, size))
    if name in PARAMETERS:
        stages = STAGES.get(name, CIFAR_STAGES)
        assert [tuple(stage.shape) for stage in features.stages] == [(2, width, side, side) for width, side in stages]
    assert bool(features.stages) is backbone.stage_maps
    if backbone.stage_maps:
        assert features.last is features.stages[-1]
    assert features.last.shape[1] == backbone.channels
    assert min(features.last.shape[2:]) >= 2
    torch.testing.assert_close(features.pooled, features.last.flatten(2).mean(dim=2))
    assert all(bool((stage >= 0).all()) for stage in features.stages), "every stage ends in a ReLU"


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_a_description_survives_json_and_builds_the_same_architecture(name: str) -> None:
    backbone = backbone_for(name, 2, image_size(name))
    again = build_backbone(**json.loads(json.dumps(backbone.describe())))
    again.load_state_dict(backbone.state_dict(), strict=True)
    assert (BACKBONES[name].__doc__ or "").strip(), "`drcil list` prints the factory's docstring"


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize("shortcut", ["padded", "projected"])
def test_variants_are_described_and_only_the_last_map_may_lose_its_relu(
    name: str, shortcut: str, last_relu: bool
) -> None:
    with randomness("test", name):
        backbone = build_backbone(name, 1, shortcut=shortcut, last_relu=last_relu)
    again = build_backbone(**json.loads(json.dumps(backbone.describe())))
    again.load_state_dict(backbone.state_dict(), strict=True)
    images = torch.rand(4, 1, image_size(name), image_size(name))
    with torch.no_grad():
        *earlier, last = backbone(images).stages
        assert torch.equal(again(images).last, last)
    assert all(bool((stage >= 0).all()) for stage in earlier)
    assert bool((last < 0).any()) is not last_relu


def test_projections_add_what_they_weigh() -> None:
    """1×1 convolutions 16 → 32 and 32 → 64, each with a normalisation: 512 + 64 and 2048 + 128."""
    backbone = build_backbone("resnet32", 3, shortcut="projected")
    assert count(backbone) == 466_256 == PARAMETERS["resnet32"] + 512 + 64 + 2048 + 128
    padded = build_backbone("resnet18", 3, shortcut="padded")
    assert count(padded) == PARAMETERS["resnet18"] - 172_032 - 1_792


def test_a_model_saved_before_there_were_variants_is_of_the_usual_one() -> None:
    usual = {"resnet32": ("padded", True), "resnet18": ("projected", True)}
    for name, (shortcut, last_relu) in usual.items():
        described = build_backbone(**{"name": name, "channels_in": 3}).describe()
        assert (described["shortcut"], described["last_relu"]) == (shortcut, last_relu)


def test_a_misspelt_shortcut_is_told() -> None:
    with pytest.raises(UserError, match="unknown shortcut 'project'; did you mean 'projected'"):
        build_backbone("resnet20", 3, shortcut="project")


def test_a_misspelt_backbone_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean 'resnet32'"):
        build_backbone("resnet-32", 3)


def test_convolutions_start_normal_with_he_fan_out() -> None:
    with randomness("test", "initialisation"):
        backbone = build_backbone("resnet32", 3)
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 4000:
            expected = math.sqrt(2 / (9 * module.out_channels))
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05)
            assert abs(module.weight.mean().item()) < 0.06 * expected
        if isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
            assert bool((module.bias == 0).all())


def test_padded_shortcut_keeps_every_second_position_and_pads_zeros_behind() -> None:
    images = torch.rand(2, 3, 8, 8)
    carried = PaddedShortcut(3, 2)(images)
    torch.testing.assert_close(carried[:, :3], functional.avg_pool2d(images, 1, stride=2), rtol=0, atol=0)
    assert carried.shape == (2, 6, 4, 4)
    assert bool((carried[:, 3:] == 0).all())


@pytest.mark.parametrize("shortcut", get_args(Shortcut))
@pytest.mark.parametrize("ends_in_relu", [True, False])
@pytest.mark.parametrize(("channels", "stride"), [(4, 1), (8, 2)])
def test_block_gradients_agree_with_finite_differences(
    channels: int, stride: int, shortcut: Shortcut, ends_in_relu: bool
) -> None:
    """The in-place additions and ReLUs must not disturb what the backward pass needs."""
    with randomness("test", "block", channels):
        block = Block(4, channels, stride, shortcut).double()
        block.ends_in_relu = ends_in_relu
        images = torch.randn(2, 4, 4, 4, dtype=torch.float64, requires_grad=True)

    def smooth(tensor: Tensor) -> Tensor:
        out: Tensor = block(tensor)
        return out

    assert torch.autograd.gradcheck(smooth, (images,), eps=1e-7, atol=1e-4)


def test_normalised_convolutions_names_every_convolution_once() -> None:
    for name in PARAMETERS:
        backbone = build_backbone(name, 3)
        pairs = backbone.normalised_convolutions()
        convolutions = [path for path, module in backbone.named_modules() if isinstance(module, nn.Conv2d)]
        assert sorted(conv for conv, _ in pairs) == sorted(convolutions)
        for conv, norm in pairs:
            width = backbone.get_submodule(conv).out_channels
            assert backbone.get_submodule(norm).num_features == width

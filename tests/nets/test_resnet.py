"""ResNets: published sizes, stage maps, initialisation, gradients."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from drcil.errors import UserError
from drcil.nets.backbone import build_backbone
from drcil.nets.resnet import Block, PaddedShortcut, ResNet, Shortcut
from drcil.seeding import seeded_torch

pytestmark = pytest.mark.numerical

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


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts(name: str) -> None:
    assert count(build_backbone(name, 3)) == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_stage_maps_of_the_default_variant(name: str) -> None:
    stages = STAGES.get(name, CIFAR_STAGES)
    side = {"resnet18": 64}.get(name, stages[0][1])
    features = build_backbone(name, 3)(torch.rand(2, 3, side, side))
    assert [tuple(stage.shape) for stage in features.stages] == [(2, width, side, side) for width, side in stages]
    assert all(bool((stage >= 0).all()) for stage in features.stages), "every stage ends in a ReLU"


def test_resnet32_counts_stage_by_stage() -> None:
    backbone = build_backbone("resnet32", 3)
    assert isinstance(backbone, ResNet)
    assert count(backbone.stem) == 464
    assert [count(stage) for stage in backbone.stages] == [23_360, 88_192, 351_488]


def test_parameters_of_projected_shortcuts() -> None:
    """1×1 convolutions 16 → 32 and 32 → 64, each with a normalisation: 512 + 64 and 2048 + 128."""
    backbone = build_backbone("resnet32", 3, shortcut="projected")
    assert count(backbone) == 466_256 == PARAMETERS["resnet32"] + 512 + 64 + 2048 + 128
    padded = build_backbone("resnet18", 3, shortcut="padded")
    assert count(padded) == PARAMETERS["resnet18"] - 172_032 - 1_792


def test_a_misspelt_shortcut_is_refused() -> None:
    with pytest.raises(UserError, match="unknown shortcut 'project'; did you mean 'projected'"):
        build_backbone("resnet20", 3, shortcut="project")


def test_a_misspelt_backbone_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean 'resnet32'"):
        build_backbone("resnet-32", 3)


def test_convolutions_start_normal_with_he_fan_out() -> None:
    with seeded_torch("test", "initialisation"):
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
    with seeded_torch("test", "block", channels):
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

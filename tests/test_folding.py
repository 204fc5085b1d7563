"""Folding and nets: fewer operations, the same answers; descriptions that rebuild what they describe."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drcil.heads.base import HEADS, Head, Logits
from drcil.keys import generator, randomness
from drcil.nets.build import BACKBONES, backbone_for, build_backbone, build_head, build_net
from drcil.nets.folding import fold_convolutions
from drcil.nets.net import FoldedNet, Net

HEAD_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("norm", {}),
    *(
        (name, {"branch": branch, "fusion": fusion})
        for name in ("rc", "drc")
        for branch in ("conv", "bn")
        for fusion in ("mean", "sum")
    ),
]


def used(module: nn.Module, *key: int | str) -> nn.Module:
    """The module as after training: every normalisation has statistics and an affine map of its own."""
    source = generator("test", *key)

    def draw(like: Tensor, low: float, high: float) -> Tensor:
        return torch.empty_like(like, device="cpu").uniform_(low, high, generator=source)

    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.running_mean is not None
                assert layer.running_var is not None
                layer.running_mean.copy_(draw(layer.running_mean, -0.5, 0.5))
                layer.running_var.copy_(draw(layer.running_var, 0.5, 2))
                if layer.affine:
                    layer.weight.copy_(draw(layer.weight, 0.5, 1.5))
                    layer.bias.copy_(draw(layer.bias, -0.5, 0.5))
    return module


def image_size(name: str) -> int:
    return {"resnet18": 48, "resnet-digits": 8, "convit-digits": 8}.get(name, 32)


def images_for(name: str) -> Tensor:
    size = image_size(name)
    return torch.rand(4, 3, size, size, generator=generator("test", "images", name))


def assert_same(given: Tensor, expected: Tensor) -> None:
    assert (given - expected).abs().max() <= 2e-5 * expected.abs().max()


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in sorted(BACKBONES)),
    ("resnet-digits", {"shortcut": "projected", "last_relu": False}),
    ("resnet18", {"last_relu": False}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_folding_changes_no_feature(name: str, options: dict[str, Any]) -> None:
    with randomness("test", name):
        backbone = backbone_for(name, 3, image_size(name), **options)
    used(backbone, name).eval()
    before = copy.deepcopy(backbone.state_dict())
    folded = fold_convolutions(backbone)
    images = images_for(name)
    with torch.no_grad():
        expected, given = backbone(images), folded(images)
    for stage, original in zip(given.stages, expected.stages, strict=True):
        assert_same(stage, original)
    assert_same(given.pooled, expected.pooled)
    for key, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, before[key]), f"folding touched the original's {key}"


@pytest.mark.parametrize("name", ["resnet32", "resnet18"])
def test_nothing_is_left_to_fold(name: str) -> None:
    folded = fold_convolutions(build_backbone(name, 3))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert folded.normalised_convolutions() == []
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    again = fold_convolutions(folded)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), folded.parameters(), strict=True))


def grown_net(head_name: str, options: dict[str, Any], tasks: tuple[int, ...] = (3, 2, 2, 2)) -> Net:
    with randomness("test", head_name, str(options)):
        net = Net(build_backbone("resnet-digits", 3), build_head(head_name, 64, **options))
        for new_classes in tasks:
            net.head.grow(new_classes)
            with torch.no_grad():
                for parameter in net.head.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
    used(net, head_name)
    return net


@pytest.mark.parametrize(("head", "options"), HEAD_OPTIONS)
def test_a_folded_net_gives_the_same_predictions(head: str, options: dict[str, Any]) -> None:
    net = grown_net(head, options).eval()
    folded = net.fold()
    images = torch.rand(64, 3, 8, 8, generator=generator("test", "many"))
    with torch.no_grad():
        expected, given = net(images), folded(images)
    assert isinstance(folded.classifier, nn.Linear)
    assert_same(given.logits.fused, expected.logits.fused)
    assert_same(given.features.pooled, expected.features.pooled)
    assert torch.equal(given.logits.fused.argmax(dim=1), expected.logits.fused.argmax(dim=1))


@pytest.mark.parametrize("name", sorted(HEADS))
def test_a_net_hands_its_head_what_it_reads(name: str) -> None:
    """For the statistics of a normalisation all positions are needed; to other heads the average is enough."""
    net = grown_net(name, {})
    handed: list[Tensor] = []
    net.head.register_forward_pre_hook(lambda head, given: handed.append(given[0]))
    features = net(torch.rand(2, 3, 8, 8)).features
    assert handed == [features.last if name in ("norm", "rc", "drc") else features.pooled]


def test_folding_a_net_in_training_leaves_it_in_training_and_untouched() -> None:
    net = grown_net("drc", {"branch": "bn"}).train()
    before = copy.deepcopy(net.state_dict())
    folded = net.fold()
    folded(torch.rand(2, 3, 8, 8))
    assert net.training
    assert not folded.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())
    assert all(parameter.requires_grad for parameter in net.parameters())


class Stubborn(Head):
    """A head that has no simpler form."""

    def grow(self, new_classes: int) -> None:
        self.tasks.append(new_classes)

    def forward(self, features: Tensor) -> Logits:
        return Logits(features[:, : self.classes], extras={"raw": features})

    def fold(self) -> nn.Module:
        return copy.deepcopy(self)

    def options(self) -> dict[str, Any]:
        return {}


def test_a_head_that_cannot_be_simplified_keeps_all_its_logits() -> None:
    head = Stubborn(64)
    head.grow(5)
    folded = FoldedNet(build_backbone("resnet-digits", 1), head.fold()).eval()
    output = folded(torch.rand(2, 1, 8, 8))
    assert torch.equal(output.logits.extras["raw"], output.features.pooled)
    with pytest.raises(LookupError, match="Stubborn"):
        head.describe()


@pytest.mark.parametrize(("head", "options"), HEAD_OPTIONS)
def test_a_net_is_rebuilt_from_its_description_and_its_state(head: str, options: dict[str, Any]) -> None:
    net = grown_net(head, options).eval()
    description = json.loads(json.dumps(net.describe()))
    assert description["head"]["tasks"] == [3, 2, 2, 2]
    again = build_net(description).eval()
    again.load_state_dict(net.state_dict(), strict=True)
    images = torch.rand(3, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(again(images).logits.fused, net(images).logits.fused)
    assert again.describe() == net.describe()


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("linear", {}, 470_004),
        ("norm", {}, 470_004 + 128),
        ("drc", {"branch": "bn"}, 470_260),
        ("drc", {"branch": "conv"}, 470_004 + 8_192),
        ("rc", {"branch": "bn"}, 470_004 + 10 * 128),
    ],
)
def test_stored_sizes_at_100_classes_in_ten_tasks(name: str, options: dict[str, Any], parameters: int) -> None:
    net = Net(build_backbone("resnet32", 3), build_head(name, 64, **options))
    for _ in range(10):
        net.head.grow(10)
    assert net.size() == parameters


def test_every_head_is_described_by_the_name_it_is_registered_under() -> None:
    for name in ("linear", "norm", "rc", "drc"):
        assert build_head(name, 4).describe()["name"] == name
        assert (HEADS[name].__doc__ or "").strip()


def test_heads_need_torch_alone() -> None:
    """The drop-in promise: importing the head pulls in none of the program around it."""
    script = (
        "import sys, torch; torches = set(sys.modules)\n"
        "from drcil.heads import DynamicResidualHead\n"
        "roots = {name.split('.')[0] for name in set(sys.modules) - torches}\n"
        "print(sorted(roots - set(sys.stdlib_module_names)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['drcil']"

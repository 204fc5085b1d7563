"""Nets: what a head is handed, folding, descriptions, sizes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drcil.heads.head import HEADS, Logits, grow_all
from drcil.nets.backbone import build_backbone, build_head
from drcil.nets.net import FoldedNet, Net
from drcil.seeding import generator, seeded_torch
from support.heads import EVERY_HEAD, NAMES, trained_head
from support.nets import with_statistics

pytestmark = pytest.mark.numerical

every_head = pytest.mark.parametrize(("name", "options"), EVERY_HEAD, ids=NAMES)


def trained_net(name: str, options: dict[str, Any]) -> Net:
    """A double-precision net after three tasks."""
    with seeded_torch("test", name):
        backbone = with_statistics(build_backbone("resnet-digits", 3).double(), name)
        return Net(backbone, trained_head(name, backbone.channels, [3, 2, 2], **options)).eval()


def images() -> Tensor:
    return torch.rand(8, 3, 8, 8, generator=generator("test", "images"), dtype=torch.float64)


@every_head
def test_a_folded_net_gives_the_same_output_and_leaves_the_net_unchanged(name: str, options: dict[str, Any]) -> None:
    net = trained_net(name, options)
    expected = net(images())
    net.train()
    before = copy.deepcopy(net.state_dict())
    folded = net.fold()
    output = folded(images())
    torch.testing.assert_close(output.logits.fused, expected.logits.fused)
    torch.testing.assert_close(output.features.pooled, expected.features.pooled)
    assert net.training and not folded.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())


@every_head
def test_a_net_is_rebuilt_from_its_description_and_its_state(name: str, options: dict[str, Any]) -> None:
    net = trained_net(name, options)
    again = Net.build(**json.loads(json.dumps(net.describe()))).double().eval()
    again.load_state_dict(net.state_dict(), strict=True)
    assert torch.equal(again(images()).logits.fused, net(images()).logits.fused)
    assert again.describe() == net.describe()


@pytest.mark.parametrize("name", sorted(HEADS))
def test_a_net_hands_its_head_what_it_reads(name: str) -> None:
    """The statistics of a normalisation need all positions; other heads read the average."""
    net = trained_net(name, {})
    handed: list[Tensor] = []
    net.head.register_forward_pre_hook(lambda head, arguments: handed.append(arguments[0]))
    features = net(images()).features
    assert handed == [features.last if name in ("norm", "rc", "drc") else features.pooled]


class AsIs(nn.Module):
    """A folded head that answers with logits and by-products."""

    def forward(self, features: Tensor) -> Logits:
        return Logits(features[:, :5], extras={"raw": features})


def test_a_folded_head_may_return_all_its_logits() -> None:
    output = FoldedNet(build_backbone("resnet-digits", 1), AsIs()).eval()(torch.rand(2, 1, 8, 8))
    assert torch.equal(output.logits.extras["raw"], output.features.pooled)


@pytest.mark.parametrize(
    ("name", "options", "backbone", "size"),
    [
        ("linear", {}, {}, 470_004),
        ("norm", {}, {}, 470_004 + 128),
        ("drc", {"branch": "bn"}, {}, 470_260),
        ("drc", {"branch": "conv"}, {}, 470_004 + 8_192),
        ("rc", {"branch": "bn"}, {}, 470_004 + 10 * 128),
        ("cosine", {"proxies": 1}, {"shortcut": "projected", "last_relu": False}, 472_657),
        ("cosine", {"proxies": 10}, {"shortcut": "projected", "last_relu": False}, 530_257),
    ],
)
def test_published_sizes_with_resnet32_at_100_classes_in_ten_tasks(
    name: str, options: dict[str, Any], backbone: dict[str, Any], size: int
) -> None:
    net = Net(build_backbone("resnet32", 3, **backbone), build_head(name, 64, **options))
    grow_all(net, [10] * 10)
    assert net.size() == size

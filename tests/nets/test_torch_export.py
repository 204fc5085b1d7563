"""What a net answers goes through ``torch.export``: every backbone with every head, grown and folded."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.utils._pytree import tree_leaves

from drcil.heads import LinearHead, Logits
from drcil.heads.per_task import PerTaskHead
from drcil.nets.backbone import BACKBONES, HEADS, backbone_for, build_backbone, build_head
from drcil.nets.expanded import ExpandedNet
from drcil.nets.net import Net
from drcil.nets.task_attention import TaskNet
from drcil.seeding import generator, seeded_torch
from support.token_backbone import Tokens

pytestmark = pytest.mark.numerical

SIZES = {"resnet18": 64, "resnet-digits": 8, "convit-digits": 8}
FAST = (("resnet-digits", "drc"), ("resnet32", "linear"), ("convit-digits", "linear"))
PAIRS = [
    pytest.param(
        backbone,
        head,
        marks=() if (backbone, head) in FAST else pytest.mark.slow,
    )
    for backbone in sorted(BACKBONES)
    for head in sorted(HEADS)
]


def check_exported(net: nn.Module, size: int) -> None:
    """For batches of other sizes too, an exported net gives what the net gives, in the same types."""
    examples = torch.rand(2, 3, size, size)
    program = export(net, (examples,), dynamic_shapes=({0: Dim("batch")},)).module()
    images = torch.rand(5, 3, size, size, generator=generator("test", "export"))
    with torch.no_grad():
        given, expected = program(images), net(images)
    assert type(given) is type(expected)
    assert given.logits.extras.keys() == expected.logits.extras.keys()
    for one, other in zip(tree_leaves(given), tree_leaves(expected), strict=True):
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("backbone", "head"), PAIRS)
def test_a_grown_net_and_its_folded_form_are_exported(backbone: str, head: str) -> None:
    with seeded_torch("test", backbone, head):
        eyes = backbone_for(backbone, 3, SIZES.get(backbone, 16))
        net = Net(eyes, build_head(head, eyes.channels))
        net.head.grow(2)
        net.head.grow(3)
    net.eval()
    for form in (net, net.fold()):
        check_exported(form, SIZES.get(backbone, 16))


def test_a_net_on_tokens_is_exported() -> None:
    with seeded_torch("test"):
        net = Net(Tokens(3), build_head("drc", 64, branch="bn"))
        net.head.grow(2)
        net.head.grow(3)
    check_exported(net.eval(), 8)


def test_a_net_of_several_backbones_is_exported() -> None:
    with seeded_torch("test"):
        head = LinearHead(128)
        head.grow(5)
        known = nn.Linear(64, 3)
        net = ExpandedNet([build_backbone("resnet-digits", 3) for _ in range(2)], head, 5, known).eval()
    assert net(torch.rand(2, 3, 8, 8)).logits.extras.keys() == {"auxiliary", "previous"}
    check_exported(net, 8)


@pytest.mark.slow
def test_a_net_with_a_token_for_every_task_is_exported() -> None:
    with seeded_torch("test"):
        net = TaskNet(Tokens(3), PerTaskHead(64))
        net.grow(2)
        net.grow(3)
        net.diverge(4)
    for form in (net.eval(), net.fold()):
        check_exported(form, 8)


def test_by_products_are_plain_data() -> None:
    assert type(Logits(torch.zeros(1, 2)).extras) is dict

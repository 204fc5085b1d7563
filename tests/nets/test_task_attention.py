"""Task attention: the batched block against a slow loop, what each task reads, sizes, folding and saving."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drcil.errors import UserError
from drcil.heads.per_task import PerTaskHead
from drcil.nets.backbone import backbone_for
from drcil.nets.parts import build_part, describe_part, load_part
from drcil.nets.task_attention import TaskAttention, TaskNet
from drcil.seeding import seeded_torch
from drcil.train.optimizers import exempt_parameters

pytestmark = pytest.mark.numerical


def make_net(tasks: list[int]) -> TaskNet:
    with seeded_torch("test"):
        backbone = backbone_for("convit-digits", 1, 8)
        net = TaskNet(backbone, PerTaskHead(backbone.channels))
        for classes in tasks:
            net.grow(classes)
    return net.eval()


def images(count: int = 5) -> Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def embedding(block: TaskAttention, token: Tensor, patches: Tensor) -> Tensor:
    """What one token finds in the patches of one image, (C): a key at a time, a head at a time."""
    channels = len(token)
    width = channels // block.heads
    normed = [block.before_attention(one) for one in (token, *patches)]
    keys, values = [block.key(one) for one in normed], [block.value(one) for one in normed]
    query = block.query(normed[0])
    found = torch.zeros(channels, dtype=token.dtype)
    for head in range(block.heads):
        part = slice(head * width, (head + 1) * width)
        powers = [math.exp(float(query[part] @ key[part]) / math.sqrt(width)) for key in keys]
        for power, value in zip(powers, values, strict=True):
            found[part] += power / sum(powers) * value[part]
    token = token + block.out(found)
    inner = block.perceptron.widen(block.before_perceptron(token))
    gelu = torch.tensor([float(x) * (1 + math.erf(float(x) / math.sqrt(2))) / 2 for x in inner], dtype=token.dtype)
    narrowed: Tensor = block.perceptron.narrow(gelu)
    return token + narrowed


@settings(max_examples=8)
@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 2, 3]), st.integers(0, 1000))
@torch.no_grad()
def test_all_tokens_at_once_find_what_each_finds_alone(tasks: int, patches: int, heads: int, seed: int) -> None:
    torch.manual_seed(seed)
    block = TaskAttention(6, heads).double().eval()
    for parameter in block.parameters():
        parameter.normal_()
    tokens, seen = torch.randn(tasks, 6).double(), torch.randn(2, patches, 6).double()
    together = block(tokens, seen)
    for image in range(2):
        for task in range(tasks):
            torch.testing.assert_close(together[image, task], embedding(block, tokens[task], seen[image]))
    alone = [block(tokens[task : task + 1], seen) for task in range(tasks)]
    torch.testing.assert_close(together, torch.cat(alone, dim=1))


def test_paths_are_dropped_for_an_image_and_a_task() -> None:
    torch.manual_seed(0)
    block = TaskAttention(6, 2).train()
    embeddings = block(torch.zeros(2, 6), torch.randn(2000, 3, 6))
    # Without what attention finds, a token of zeros stays one.
    dropped = (embeddings == 0).all(dim=2)
    assert dropped.double().mean() == pytest.approx(0.1, abs=0.02)
    assert dropped.all(dim=1).double().mean() == pytest.approx(0.01, abs=0.008)


@torch.no_grad()
def test_every_classifier_reads_the_embedding_of_its_task_alone() -> None:
    net = make_net([2, 3, 1])
    before = net(images())
    assert before.logits.fused.shape == (5, 6)
    assert before.features.pooled.shape == (5, 3 * 48), "the embeddings of all tasks, which herding reads"
    net.decoder.tokens[1].add_(1)
    changed = (net(images()).logits.fused != before.logits.fused).any(dim=0)
    assert changed.tolist() == [False, False, True, True, True, False]


@torch.no_grad()
def test_positions_of_a_map_are_tokens_row_by_row() -> None:
    backbone = backbone_for("resnet-digits", 1, 8).eval()
    last, tokens = backbone(images()).last, backbone.tokens(images())
    assert tokens.shape == (5, last.shape[2] * last.shape[3], last.shape[1])
    assert torch.equal(tokens[:, 1], last[:, :, 0, 1])


@torch.no_grad()
def test_growing_keeps_what_was_known() -> None:
    net = make_net([2, 3])
    before = net(images()).logits.fused
    net.grow(4)
    torch.testing.assert_close(net(images()).logits.fused[:, :5], before)


@pytest.mark.parametrize(("tasks", "size"), [(5, 10_727_824), (10, 10_733_584), (20, 10_745_104)])
def test_size_at_a_hundred_classes_of_cifar(tasks: int, size: int) -> None:
    with torch.device("meta"):
        backbone = backbone_for("convit", 3, 32)
        net = TaskNet(backbone, PerTaskHead(backbone.channels))
        for _ in range(tasks):
            net.grow(100 // tasks)
        net.diverge(100 // tasks + 1)
    assert net.size() == size


def test_size_at_a_hundred_classes_of_imagenet() -> None:
    with torch.device("meta"):
        backbone = backbone_for("convit", 3, 224)
        net = TaskNet(backbone, PerTaskHead(backbone.channels))
        for _ in range(10):
            net.grow(10)
    assert net.size() == 11_060_752


@torch.no_grad()
def test_folding_changes_no_answer_and_drops_what_is_for_training() -> None:
    net = make_net([2, 3])
    net.diverge(4)
    output, folded = net.eval()(images()), net.fold()(images())
    assert output.logits.extras["divergence"].shape == (5, 4)
    assert not folded.logits.extras
    torch.testing.assert_close(folded.logits.fused, output.logits.fused)
    torch.testing.assert_close(folded.features.pooled, output.features.pooled)
    assert not any(parameter.requires_grad for parameter in net.fold().parameters())


@torch.no_grad()
def test_a_net_is_built_again_from_its_description() -> None:
    net = make_net([2, 3])
    again = load_part(json.loads(json.dumps(describe_part(net))), net.state_dict())
    assert isinstance(again, TaskNet)
    assert torch.equal(again(images()).logits.fused, net(images()).logits.fused)


def test_a_description_with_anything_else_is_refused() -> None:
    description = describe_part(make_net([2, 3]))
    with pytest.raises(TypeError, match="tokens"):
        build_part({**description, "tokens": 3})
    narrow = {**description, "head": {**description["head"], "channels": 32}}
    with pytest.raises(UserError, match="the head is for 32 channels, but the backbone gives 48"):
        build_part(narrow)


def test_weight_decay_leaves_out_positions_and_tokens() -> None:
    net = make_net([2, 2])
    names = {parameter: name for name, parameter in net.named_parameters()}
    exempt = {names[parameter] for parameter in exempt_parameters(net)}
    assert exempt == {"backbone.positions", "decoder.tokens.0", "decoder.tokens.1"}

"""ConViT: the published sizes, attention against the formula as it is written, heads that begin as a convolution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from drcil.errors import UserError
from drcil.nets.backbone import backbone_for, build_backbone, family_of
from drcil.nets.convit import ConViT, DropPath, GatedAttention
from drcil.seeding import generator, seeded_torch

pytestmark = pytest.mark.numerical


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def convit(name: str, channels_in: int, size: int) -> ConViT:
    with seeded_torch("test", "convit", name, size):
        backbone = backbone_for(name, channels_in, size)
    assert isinstance(backbone, ConViT)
    return backbone


@pytest.mark.parametrize(
    ("size", "side", "patches", "positions"), [(32, 8, 18_816, 24_576), (224, 14, 295_296, 75_264)]
)
def test_published_sizes(size: int, side: int, patches: int, positions: int) -> None:
    backbone = convit("convit", 3, size)
    assert backbone.side == side
    assert (count(backbone.patches), backbone.positions.numel()) == (patches, positions)
    assert [count(block) for block in backbone.blocks] == [1_773_372] * 5
    assert count(backbone) == patches + positions + 8_866_860
    if size == 32:
        assert count(backbone) == 8_910_252


@pytest.mark.parametrize(("name", "size", "parameters"), [("convit-small", 16, 564_300), ("convit-digits", 8, 57_688)])
def test_sizes_of_the_small_ones(name: str, size: int, parameters: int) -> None:
    assert count(convit(name, 3, size)) == parameters


def scrambled_attention(channels: int = 24, heads: int = 12, side: int = 3) -> GatedAttention:
    """Attention as after training: nothing is at its initial value."""
    with seeded_torch("test", "attention"):
        attention = GatedAttention(channels, heads, side).double()
        with torch.no_grad():
            for parameter in attention.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
    return attention


def by_the_formula(attention: GatedAttention, tokens: Tensor, side: int) -> Tensor:
    """Both attentions of each pair of patches, mixed and normalised again, head by head."""
    width = tokens.shape[2] // attention.heads
    query, key = (tokens @ attention.content.weight.T).split(tokens.shape[2], dim=2)
    value = tokens @ attention.value.weight.T
    places = [(index % side, index // side) for index in range(side**2)]
    relative = torch.tensor(
        [[(xj - xi, yj - yi, (xj - xi) ** 2 + (yj - yi) ** 2) for xj, yj in places] for xi, yi in places]
    ).double()
    answers = []
    for head in range(attention.heads):
        own = slice(head * width, (head + 1) * width)
        content = (query[..., own] @ key[..., own].transpose(1, 2) / math.sqrt(width)).softmax(dim=2)
        position = (relative @ attention.position.weight[head] + attention.position.bias[head]).softmax(dim=1)
        gate = attention.gate[head].sigmoid()
        mixture = (1 - gate) * content + gate * position
        answers.append(mixture / mixture.sum(dim=2, keepdim=True) @ value[..., own])
    return torch.cat(answers, dim=2) @ attention.out.weight.T + attention.out.bias


@pytest.mark.parametrize("training", [True, False])
def test_attention_is_the_normalised_mixture_of_content_and_position(training: bool) -> None:
    attention = scrambled_attention().train(training)
    tokens = torch.randn(5, 9, 24, dtype=torch.float64, generator=generator("test", "tokens"))
    given, expected = attention(tokens), by_the_formula(attention, tokens, side=3)
    torch.testing.assert_close(given, expected)
    parameters = list(attention.parameters())
    own, slow = (torch.autograd.grad(one.square().sum(), parameters) for one in (given, expected))
    for one, other in zip(own, slow, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("heads", "window"), [(12, 3), (9, 3)])
def test_at_first_each_head_of_a_window_looks_at_its_own_neighbour(heads: int, window: int) -> None:
    """The most attended patch is the one at the head's offset: a head for each, from (-1, -1) to (1, 1)."""
    side = 5
    with seeded_torch("test", "local"):
        attention = GatedAttention(2 * heads, heads, side)
    assert torch.equal(attention.value.weight, torch.eye(2 * heads))
    assert torch.equal(attention.gate, torch.ones(heads))
    positional = attention.positional_attention().reshape(heads, side, side, side, side)
    inner = range(1, side - 1)
    offsets = []
    for head in range(window**2):
        across, down = head // window - 1, head % window - 1
        offsets.append((across, down))
        for y in inner:
            for x in inner:
                assert divmod(int(positional[head, y, x].argmax()), side) == (y + down, x + across)
                neighbour = positional[head, y, x, y + down, x + across]
                beside = positional[head, y, x, y + down, x + across + (1 if x + across < side - 1 else -1)]
                torch.testing.assert_close(neighbour / beside, torch.tensor(math.e), msg="locality strength 1")
    assert sorted(offsets) == [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)]
    free = attention.position.weight[window**2 :]
    assert bool((free.abs() < 0.1).all()), "the heads that are left over prefer no place"


def test_a_window_of_four_heads_looks_at_corners() -> None:
    """Offsets of half a patch: two patches along each axis share the most attention."""
    with seeded_torch("test", "corners"):
        positional = GatedAttention(8, 4, 4).positional_attention().reshape(4, 4, 4, 4, 4)
    for head, (across, down) in enumerate([(-1, -1), (-1, 1), (1, -1), (1, 1)]):
        seen = positional[head, 1, 1]
        corner = seen[[1, 1, 1 + down, 1 + down], [1, 1 + across, 1, 1 + across]]
        torch.testing.assert_close(corner, seen.max().expand(4))


def test_paths_are_dropped_image_by_image_in_training_alone() -> None:
    path = torch.ones(4000, 3, 2)
    drop = DropPath(0.25)
    with seeded_torch("test", "paths"):
        dropped = drop(path)
        again = drop(path)
    with seeded_torch("test", "paths"):
        assert torch.equal(drop(path), dropped), "drawn from the global generator, which the engine keys"
    assert not torch.equal(again, dropped)
    each = dropped.flatten(1)
    assert bool((each == each[:, :1]).all())
    assert each.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert each.mean().item() == pytest.approx(1, abs=0.05)
    assert drop.eval()(path) is path


def test_deeper_blocks_drop_more_paths() -> None:
    rates = [drop.rate for drop in convit("convit", 3, 32).modules() if isinstance(drop, DropPath)]
    assert rates == pytest.approx([0, 0.02, 0.04, 0.06, 0.08])


def test_tokens_are_the_positions_of_the_map_row_by_row() -> None:
    backbone = convit("convit-digits", 1, 8).eval()
    images = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        tokens, features = backbone.tokens(images), backbone(images)
    assert features.stages == ()
    assert not backbone.stage_maps
    assert features.last.shape == (3, 48, 4, 4)
    assert torch.equal(features.last[:, :, 2, 1], tokens[:, 9])
    torch.testing.assert_close(features.pooled, features.last.mean(dim=(2, 3)))


def test_a_size_that_patches_do_not_divide_is_told() -> None:
    with pytest.raises(UserError, match=r"'convit' cuts images into patches of 16 .* images of 100: give a multiple"):
        backbone_for("convit", 3, 100)
    with pytest.raises(UserError, match="'convit' is made for images of one size, but no 'image_size' is given"):
        build_backbone("convit", 3)


def test_families_are_known_by_name() -> None:
    assert family_of("convit-digits") == "transformer"
    assert family_of("resnet32") == "convolutional"

"""RandAugment: every operation at every magnitude against Pillow, the draws, and the pipeline as a whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from drcil.data.augment import build_augment
from drcil.data.augment.policies import RandAugment, value_at
from drcil.data.dataset import CIFAR_SPEC, DIGITS_SPEC
from support.augmentation import applied, difference, pictures, reference, with_pillow

pytestmark = pytest.mark.numerical

FILL = (129, 124, 112)
"""CIFAR-100's mean colour."""
WARPS = ["shearX", "shearY", "translateX", "translateY", "rotate"]
ENHANCED = ["color", "contrast", "brightness", "sharpness"]
RAND = RandAugment(CIFAR_SPEC.mean)
NAMES = RAND.operations.names


def ours(images: Tensor, operation: str, values: Tensor) -> Tensor:
    return applied(RAND.operations, images, torch.full((len(images),), NAMES.index(operation)), values)


def values_of(operation: str, magnitudes: list[float]) -> Tensor:
    """Each magnitude both ways."""
    strengths = torch.tensor(magnitudes, dtype=torch.float64).repeat(2)
    return value_at(operation, strengths, torch.tensor([1, -1]).repeat_interleave(len(magnitudes)))


@pytest.mark.parametrize("size", [16, 31, 32])
@pytest.mark.parametrize("operation", NAMES)
def test_operation_equals_pillow(operation: str, size: int) -> None:
    images = pictures(size)
    values = values_of(operation, [0, 1, 2.5, 4, 5.7, 7, 8.3, 9, 9.6, 10])
    batch, every = images.repeat(len(values), 1, 1, 1), values.repeat_interleave(len(images))
    result, expected = ours(batch, operation, every), reference(batch, operation, every, FILL, bicubic=True)
    assert difference(result, expected) <= (1 if operation in [*WARPS, "autocontrast"] else 0)
    if operation in WARPS:
        assert (result != expected).double().mean() < 0.005, "Pillow's but for rounding"


def test_magnitudes_are_timms() -> None:
    def at(operation: str, *magnitudes: float) -> list[float]:
        return value_at(operation, torch.tensor(magnitudes, dtype=torch.float64), torch.ones(1)).tolist()

    assert at("posterize", 0, 2.4, 2.5, 5, 7.5, 9, 10) == [4, 4, 3, 2, 1, 1, 0]
    assert at("solarize", 0, 1, 5, 9, 10) == [256, 231, 128, 26, 0]
    assert at("solarizeAdd", 0, 1, 5, 9, 10) == [0, 11, 55, 99, 110]
    assert at("rotate", 9) == pytest.approx([27])
    assert at("shearX", 9) == at("shearY", 9) == pytest.approx([0.27])
    assert at("translateX", 10) == at("translateY", 10) == pytest.approx([0.45])
    for name in ENHANCED:
        assert at(name, 0, 10) == pytest.approx([1, 1.9])
        assert value_at(name, torch.tensor([9.0]), torch.tensor([-1])).tolist() == pytest.approx([0.19])


@pytest.mark.parametrize("operation", WARPS)
def test_what_is_not_covered_takes_the_mean_colour(operation: str) -> None:
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    moved = ours(white, operation, values_of(operation, [10])[:1])
    assert {tuple(pixel) for pixel in moved[0].flatten(1).T.tolist()} == {FILL, (255, 255, 255)}


def test_a_warp_through_nothing_changes_nothing() -> None:
    images = pictures(32)
    for operation in WARPS:
        assert torch.equal(ours(images, operation, torch.zeros(len(images), dtype=torch.float64)), images)


def test_draws_are_uniform_over_operations_half_of_them_happen_and_magnitudes_are_normal() -> None:
    count = 60_000
    operations, values = RAND.draw(count, torch.Generator().manual_seed(0))
    assert operations.shape == values.shape == (count, 2)
    for turn in range(2):
        often = torch.bincount(operations[:, turn] + 1, minlength=16).double() / count
        assert often[0] == pytest.approx(0.5, abs=0.01)
        assert often[1:].tolist() == pytest.approx([1 / 30] * 15, abs=0.004)
    first, second = (operations >= 0).unbind(1)
    assert (first & second).double().mean() == pytest.approx(0.25, abs=0.01), "turns are independent"
    turned = values[operations == NAMES.index("rotate")]
    assert (turned > 0).double().mean() == pytest.approx(0.5, abs=0.05)
    strengths = turned.abs() / 3
    assert strengths.median() == pytest.approx(9, abs=0.05)
    assert strengths.max() == 10
    assert (strengths == 10).double().mean() == pytest.approx(0.0228, abs=0.01), "what is beyond is cut off"
    assert strengths.quantile(0.1587) == pytest.approx(8.5, abs=0.05)


def test_randaugment_equals_pillow_image_by_image_with_the_same_draws() -> None:
    count = 120
    images = pictures(32).repeat(count // 6, 1, 1, 1)
    result = build_augment("randaugment", CIFAR_SPEC, in_memory=True)(images, torch.Generator().manual_seed(7))

    draw = torch.Generator().manual_seed(7)
    top, left = torch.randint(9, (2, count), generator=draw).tolist()
    mirrored = (torch.rand(count, generator=draw) < 0.5).tolist()
    operations, values = RAND.draw(count, draw)
    close = []
    for i, image in enumerate(images):
        picture = ImageOps.expand(Image.fromarray(image.permute(1, 2, 0).numpy()), 4)
        picture = picture.crop((left[i], top[i], left[i] + 32, top[i] + 32))
        picture = ImageOps.mirror(picture) if mirrored[i] else picture
        for number, value in zip(operations[i].tolist(), values[i].tolist(), strict=True):
            picture = picture if number < 0 else with_pillow(picture, NAMES[number], value, FILL, bicubic=True)
        expected = np.array(picture).transpose(2, 0, 1).astype(int)
        close.append((np.abs(expected - result[i].numpy()) <= 1).mean())
    # One level of a warp may cross a threshold of the operation after it.
    assert min(close) > 0.95
    assert np.mean(close) > 0.999


def test_images_without_a_policy_are_only_moved() -> None:
    ink = torch.zeros(64, 1, 10, 10, dtype=torch.uint8)
    ink[:, :, 4:7, 4:5] = 200
    result = build_augment("randaugment", DIGITS_SPEC, in_memory=True)(ink, torch.Generator().manual_seed(0))
    assert ((result == 200).flatten(1).sum(1) == 3).all()

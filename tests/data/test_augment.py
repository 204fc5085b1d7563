"""Crops, flips, holes, the draws of AutoAugment, and the named pipelines as a whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from drcil.data.augment import AUGMENTS, Augment, build_augment, normalise
from drcil.data.augment.pipelines import (
    RandomShift,
    Step,
    cutout,
    draw_boxes,
    flip,
    pad_crop,
    padded_resized_crop,
    random_cutout,
    random_flip,
    resized_crop,
)
from drcil.data.augment.policies import CIFAR10, IMAGENET, OPERATIONS, AutoAugment, SubPolicy
from drcil.data.dataset import CIFAR_SPEC, DIGITS_SPEC, PHOTO_SPEC, DataSpec
from drcil.errors import UserError

pytestmark = pytest.mark.numerical

SPECS = {"digits": DIGITS_SPEC, "cifar": CIFAR_SPEC, "imagenet": PHOTO_SPEC}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def step(one: Step) -> Augment:
    """A step by itself."""
    return Augment((one,), crops_files=False)


def noise(count: int, channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    return torch.randint(256, (count, channels, height, width), dtype=torch.uint8, generator=seeded(count))


def within_five_sigma(counts: Tensor, chances: Tensor, total: int) -> bool:
    sigma = (total * chances * (1 - chances)).sqrt().clamp(min=1e-9)
    return bool(((counts - total * chances).abs() <= 5 * sigma).all())


# Framing


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4), st.sampled_from([1, 3]), st.integers(4, 9), st.integers(4, 9), st.data())
def test_pad_crop_cuts_the_padded_image(
    padding: int, channels: int, height: int, width: int, data: st.DataObject
) -> None:
    images = noise(3, channels, height, width)
    places = st.lists(st.integers(0, 2 * padding), min_size=3, max_size=3)
    top, left = data.draw(places), data.draw(places)
    cropped = pad_crop(images, padding, torch.tensor(top), torch.tensor(left))
    for image, result, y, x in zip(images.numpy(), cropped.numpy(), top, left, strict=True):
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        np.testing.assert_array_equal(result, padded[:, y : y + height, x : x + width])


def test_crops_take_every_place_equally_often() -> None:
    middle = torch.zeros(9000, 1, 5, 5, dtype=torch.uint8)
    middle[:, :, 2, 2] = 1
    counts = step(RandomShift(1))(middle, seeded()).sum(0)[0].double()
    assert counts.sum() == 9000
    assert within_five_sigma(counts[1:4, 1:4], torch.full((3, 3), 1 / 9), 9000)


def test_flip_mirrors_the_chosen_and_chooses_half() -> None:
    images = noise(4)
    flipped = flip(images, torch.tensor([True, False, False, True]))
    assert torch.equal(flipped[[0, 3]], images[[0, 3]].flip(3))
    assert torch.equal(flipped[[1, 2]], images[[1, 2]])
    marked = torch.tensor([0, 1], dtype=torch.uint8).expand(4000, 1, 1, 2)
    mirrored = step(random_flip)(marked, seeded())[:, 0, 0, 0].sum()
    assert within_five_sigma(mirrored.double(), torch.tensor(0.5), 4000)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 31), st.integers(0, 31))
def test_the_hole_is_sixteen_by_sixteen_clipped_at_the_border(y: int, x: int) -> None:
    image = torch.full((1, 3, 32, 32), 9, dtype=torch.uint8)
    expected = image.clone()
    expected[:, :, max(0, y - 8) : y + 8, max(0, x - 8) : x + 8] = 0
    assert torch.equal(cutout(image, 16, torch.tensor([y]), torch.tensor([x])), expected)


def test_hole_centres_are_uniform_over_the_image() -> None:
    white = torch.full((6000, 1, 32, 32), 1, dtype=torch.uint8)
    holes = 6000 - step(random_cutout)(white, seeded()).sum(0)[0].double()
    centres = torch.arange(32)
    covered = (centres[:, None] >= centres - 8) & (centres[:, None] < centres + 8)
    chance = covered.double().mean(1)
    assert within_five_sigma(holes, chance[:, None] * chance, 6000)
    small = step(random_cutout)(torch.ones(2000, 1, 16, 16, dtype=torch.uint8), seeded())
    assert (small == 0).flatten(1).sum(1).max() == 64


def test_boxes_follow_scale_and_ratio() -> None:
    top, left, height, width = draw_boxes(4000, 64, 48, seeded()).unbind(1)
    assert bool(((top >= 0) & (left >= 0) & (top + height <= 64) & (left + width <= 48)).all())
    share, ratio = height * width / (64 * 48), width / height
    assert 0.07 < share.min() < 0.1
    assert share.max() > 0.9
    assert 0.7 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.42


def test_a_box_that_never_fits_falls_back_to_the_middle() -> None:
    assert draw_boxes(1, 100, 10, seeded(), scale=(1.0, 1.0)).tolist() == [[43, 0, 13, 10]]
    assert draw_boxes(1, 10, 100, seeded(), scale=(1.0, 1.0)).tolist() == [[0, 43, 10, 13]]


def test_resized_crop_is_pillows_bilinear_resize_of_the_cut() -> None:
    images = noise(40, 3, 24, 20)
    boxes = draw_boxes(40, 24, 20, seeded())
    boxes[0] = torch.tensor([0, 0, 24, 20])
    resized = resized_crop(images, boxes)
    assert torch.equal(resized[0], images[0])
    for image, result, (top, left, height, width) in zip(images, resized, boxes.tolist(), strict=True):
        cut = Image.fromarray(image.permute(1, 2, 0).numpy()).crop((left, top, left + width, top + height))
        expected = np.asarray(cut.resize((20, 24), Image.Resampling.BILINEAR)).transpose(2, 0, 1).astype(int)
        assert np.abs(expected - result.numpy()).max() <= 1


@pytest.mark.parametrize("side", [16, 32])
def test_padded_resized_crop_is_pillows_resize_of_a_cut_from_the_padded_image(side: int) -> None:
    """A box may be larger than the result: Pillow then averages over what it shrinks."""
    padding, count = side // 8, 60
    images, whole = noise(count, 3, side, side), side + 2 * padding
    boxes = draw_boxes(count, whole, whole, seeded())
    boxes[0] = torch.tensor([0, 0, whole, whole])
    boxes[1] = torch.tensor([padding, padding, side, side])
    resized = padded_resized_crop(images, padding, boxes)
    assert (boxes[:, 2:] > side).any() and (boxes[:, 2:] < side).any()
    assert torch.equal(resized[1], images[1]), "the centre crop, which is the test view, is the image"
    for image, result, (top, left, height, width) in zip(images, resized, boxes.tolist(), strict=True):
        padded = Image.new("RGB", (whole, whole))
        padded.paste(Image.fromarray(image.permute(1, 2, 0).numpy()), (padding, padding))
        cut = padded.crop((left, top, left + width, top + height)).resize((side, side), Image.Resampling.BILINEAR)
        expected = np.asarray(cut).transpose(2, 0, 1).astype(int)
        assert np.abs(expected - result.numpy()).max() <= 1


# The draws of a policy


@pytest.mark.parametrize("policy", [CIFAR10, IMAGENET], ids=["cifar10", "imagenet"])
def test_operations_are_drawn_with_their_probabilities(policy: tuple[SubPolicy, ...]) -> None:
    total = 50_000
    operations, _ = AutoAugment(policy).draw(total, seeded())
    for turn in range(2):
        chances = torch.zeros(len(OPERATIONS), dtype=torch.float64)
        for sub_policy in policy:
            name, probability = sub_policy[3 * turn], sub_policy[3 * turn + 1]
            chances[OPERATIONS.index(name)] += probability / 25  # type: ignore[operator]
        counts = torch.bincount(operations[:, turn] + 1, minlength=len(OPERATIONS) + 1)[1:]
        assert within_five_sigma(counts.double(), chances, total)


def test_sub_policies_and_signs_are_uniform_and_independent() -> None:
    policy: tuple[SubPolicy, ...] = tuple(("rotate", 1.0, index, "shearX", 1.0, index) for index in range(1, 10))
    _, values = AutoAugment(policy).draw(18_000, seeded())
    picked = (values.abs()[:, 0] / 30 * 9).round()
    assert torch.equal(picked, (values.abs()[:, 1] / 0.3 * 9).round())
    kind = (picked - 1) * 4 + (values[:, 0] > 0) * 2 + (values[:, 1] > 0)
    counts = torch.bincount(kind.long(), minlength=36).double()
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert chi_square < 35 + 5 * 70**0.5


def test_the_tables_are_complete() -> None:
    assert len(CIFAR10) == len(IMAGENET) == 25
    assert [IMAGENET.index(repeated) + 1 for repeated in IMAGENET[20:]] == [5, 2, 14, 15, 3]
    assert round(sum(row[1] + row[4] for row in CIFAR10), 6) == 26.5
    assert round(sum(row[1] + row[4] for row in IMAGENET), 6) == 31.0


# Pipelines


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("name", AUGMENTS)
def test_a_result_is_a_function_of_images_and_generator(name: str, kind: str, in_memory: bool) -> None:
    augment = build_augment(name, SPECS[kind], in_memory)
    images = noise(1, 1 if kind == "digits" else 3, 16, 16).repeat(32, 1, 1, 1)
    before = images.clone()
    one, again, other = augment(images, seeded(3)), augment(images, seeded(3)), augment(images, seeded(4))
    assert torch.equal(images, before)
    assert one.shape == images.shape
    assert one.dtype == torch.uint8
    assert torch.equal(one, again)
    if name == "none":
        assert torch.equal(one, images)
    else:
        assert not torch.equal(one, other)
        assert len(torch.unique(one, dim=0)) > 1


def test_digits_are_only_moved() -> None:
    ink = torch.zeros(64, 1, 10, 10, dtype=torch.uint8)
    ink[:, :, 4:7, 4:5] = 200
    for name in ("crop", "basic", "auto"):
        result = build_augment(name, SPECS["digits"], in_memory=True)(ink, seeded())
        assert ((result == 200).flatten(1).sum(1) == 3).all()
        assert set(result.flatten().tolist()) == {0, 200}


def test_files_are_cropped_by_their_source_only_where_the_kind_asks_for_it() -> None:
    assert build_augment("crop", SPECS["imagenet"], in_memory=False).crops_files
    assert not build_augment("none", SPECS["imagenet"], in_memory=False).crops_files
    assert not build_augment("crop", SPECS["imagenet"], in_memory=True).crops_files
    assert not build_augment("auto", SPECS["cifar"], in_memory=True).crops_files
    images = noise(64, 3, 8, 8)
    result = build_augment("crop", SPECS["imagenet"], in_memory=False)(images, seeded())
    unmoved = (result == images).flatten(1).all(1) | (result == images.flip(3)).flatten(1).all(1)
    assert unmoved.all()


def test_resized_sees_parts_of_the_padded_image_and_mirrors() -> None:
    """Boxes of 8 to 100 % of the padded area; with the padding the image may have a black edge."""
    halves = torch.zeros(400, 3, 32, 32, dtype=torch.uint8)
    halves[:, :, :, :16], halves[:, :, :, 16:] = 100, 200
    result = build_augment("resized", SPECS["cifar"], in_memory=True)(halves, seeded())
    assert 0.4 < (result[:, 0, 0, 0] == 0).double().mean() < 0.8
    left, right = result[:, 0, 16, 4].int(), result[:, 0, 16, 27].int()
    both = (left.minimum(right) > 90) & (left != right)
    assert 0.4 < (left < right)[both].double().mean() < 0.6
    assert build_augment("resized", SPECS["imagenet"], in_memory=False).crops_files


def test_brightness_separates_basic_from_crop() -> None:
    grey = torch.full((500, 3, 16, 16), 100, dtype=torch.uint8)
    middle = build_augment("basic", SPECS["cifar"], in_memory=True)(grey, seeded())[:, 0, 8, 8]
    assert 75 <= middle.min() <= 77
    assert 122 <= middle.max() <= 124
    assert (build_augment("crop", SPECS["cifar"], in_memory=True)(grey, seeded())[:, 0, 8, 8] == 100).all()


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown augmentation 'autoo'; did you mean 'auto'"):
        build_augment("autoo", SPECS["cifar"], in_memory=True)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_normalise_scales_each_channel_and_keeps_the_layout(memory_format: torch.memory_format) -> None:
    mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
    images = noise(5, 3, 8, 6).contiguous(memory_format=memory_format)
    result = normalise(images, mean, std)
    expected = (images.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(result.double(), expected, atol=2e-6, rtol=0)
    assert result.dtype == torch.float32
    assert result.is_contiguous(memory_format=memory_format)


def test_augmented_images_can_be_trained_on() -> None:
    images = build_augment("auto", SPECS["cifar"], in_memory=True)(noise(4), seeded())
    weight = torch.ones(2, 3, 3, 3, requires_grad=True)
    torch.nn.functional.conv2d(normalise(images, (0.5,) * 3, (0.25,) * 3), weight).sum().backward()
    assert weight.grad is not None


def test_normalisation_begun_without_gradients_serves_training() -> None:
    """Its constants are kept from batch to batch; those of the first must do for all."""
    images, mean, std = noise(4), (0.41, 0.42, 0.43), (0.21, 0.22, 0.23)
    with torch.inference_mode():
        first = normalise(images, mean, std).clone()
    weight = torch.ones(2, 3, 3, 3, requires_grad=True)
    again = normalise(images, mean, std)
    torch.nn.functional.conv2d(again, weight).sum().backward()
    assert torch.equal(first, again) and not torch.equal(normalise(images, std, mean), again)


def test_an_augmentation_from_anywhere_is_built_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AUGMENTS, "_entries", dict(AUGMENTS))

    @AUGMENTS.register("negative")
    def negative(spec: DataSpec, in_memory: bool) -> Augment:
        return AUGMENTS["none"](spec, in_memory).then(lambda images, generator: 255 - images)

    images = noise(3)
    assert torch.equal(build_augment("negative", SPECS["cifar"], in_memory=True)(images, seeded()), 255 - images)

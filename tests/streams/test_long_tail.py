"""Long-tailed streams: the published counts, orders and images; the same profile for any other data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from drcil.data.dataset import Dataset, DataSpec
from drcil.data.datasets.imagenet import draw_order
from drcil.data.image_set import ArraySource, ImageSet
from drcil.errors import UserError
from drcil.streams.memory import Memory
from drcil.streams.protocols import LongTail, StreamSettings, class_order, long_tailed_spec, parse_stream, stream_name
from drcil.streams.stream import Stream, make_stream
from support.long_tail import SIZES

SPEC = DataSpec(kind="toys", backbone="none", memory="60", mean=(0.5,), std=(0.5,), augment="none")
# fmt: off
CIFAR = [
    500, 477, 455, 434, 415, 396, 378, 361, 344, 328, 314, 299, 286, 273, 260, 248, 237, 226, 216, 206, 197, 188, 179,
    171, 163, 156, 149, 142, 135, 129, 123, 118, 112, 107, 102, 98, 93, 89, 85, 81, 77, 74, 70, 67, 64, 61, 58, 56, 53,
    51, 48, 46, 44, 42, 40, 38, 36, 35, 33, 32, 30, 29, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 15, 14, 13,
    13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5,
]
# fmt: on
Scenario = Literal["ordered", "shuffled"]


def images(counts: list[int]) -> ImageSet:
    """One-pixel images, this many of class 0, 1, …, in mixed order. They take no memory."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    source = ArraySource(torch.zeros((len(labels), 1, 1, 1), dtype=torch.uint8))
    return ImageSet.of(source, np.arange(len(labels)), labels)


def toy(counts: list[int], name: str = "toy") -> Dataset:
    names = tuple(sorted(draw_order()) if name == "imagenet100" else map("class{}".format, range(len(counts))))
    return Dataset(name, names, images(counts), images([2] * len(counts)), SPEC)


def per_class(stream: Stream) -> list[int]:
    """Training images of each class, in the order in which they come."""
    return cast(list[int], stream.counts().tolist())


@pytest.mark.parametrize(("dataset", "scenario", "steps"), SIZES)
def test_tasks_have_the_published_sizes(dataset: str, scenario: Scenario, steps: int) -> None:
    each = {"cifar100": 500, "imagenet100": 1300}[dataset]
    stream = make_stream(f"{dataset}-lt-{scenario}-b50-{steps}", toy([each] * 100, dataset))
    assert [len(task.new) for task in stream] == SIZES[dataset, scenario, steps]
    assert sum(per_class(stream)) == {"cifar100": 10847, "imagenet100": 28281}[dataset]
    assert len(stream[-1].test) == len(stream.dataset.test), "test images are all there"


def test_counts_of_cifar100_belong_to_the_class_and_of_imagenet100_to_the_position() -> None:
    cifar, imagenet = toy([500] * 100, "cifar100"), toy([1300] * 100, "imagenet100")
    assert per_class(make_stream("cifar100-lt-ordered-b50-5", cifar)) == CIFAR
    shuffled = make_stream("cifar100-lt-shuffled-b50-5", cifar)
    assert shuffled.order == class_order(100, 1993)
    assert per_class(shuffled) == [CIFAR[label] for label in class_order(100, 1993)]
    first, last = [1300, 1240, 1184, 1130, 1079], [15, 14, 14, 13, 13]
    ordered = per_class(make_stream("imagenet100-lt-ordered-b50-5", imagenet))
    assert (ordered[:5], ordered[-5:]) == (first, last)
    mixed = [387, 23, 1184, 100, 39, 17, 617, 43, 105, 15, 110, 18, 34, 710, 938, 322]
    assert per_class(make_stream("imagenet100-lt-shuffled-b50-5", imagenet))[:16] == mixed
    assert per_class(make_stream("imagenet100-lt-shuffled-b50-5", imagenet, order_seed=7))[:16] == mixed


@pytest.mark.parametrize("scenario", ["ordered", "shuffled"])
def test_classes_of_imagenet100_are_numbered_as_they_were_drawn(scenario: str) -> None:
    stream = make_stream(f"imagenet100-lt-{scenario}-b50-5", toy([1300] * 100, "imagenet100"))
    assert stream.classes == tuple(draw_order()[number] for number in class_order(100, 1993))


def test_the_images_of_cifar100_are_those_of_a_shuffle_with_seed_0() -> None:
    """Seeded once, classes in turn."""
    dataset = toy([500] * 100, "cifar100")
    draws, expected = np.random.RandomState(0), []
    for label, count in enumerate(CIFAR):
        places = np.flatnonzero(dataset.train.labels == label)
        draws.shuffle(places)
        expected.extend(places[:count].tolist())
    stream = make_stream("cifar100-lt-shuffled-b50-5", dataset)
    assert sorted(row for task in stream for row in task.new.rows.tolist()) == sorted(expected)


@pytest.mark.parametrize(("scenario", "steps"), [("ordered", 5), ("ordered", 10), ("shuffled", 5), ("shuffled", 10)])
def test_a_tenth_of_cifar100_for_validation_leaves_9754_images(scenario: str, steps: int) -> None:
    """Of a class with five a tenth is none: the first image of its task is held out in its place."""
    name, dataset = f"cifar100-lt-{scenario}-b50-{steps}", toy([500] * 100, "cifar100")
    stream, whole = make_stream(name, dataset, validation=0.1), make_stream(name, dataset)
    assert sum(per_class(stream)) == 9754
    for task, full in zip(stream, whole, strict=True):
        counts = full.new.counts(task.total)[task.old :]
        assert len(full.new) - len(task.new) == sum(max(1, round(count * 0.1)) for count in counts.tolist())
    lost = np.array(per_class(whole)) - per_class(stream)
    assert sorted(set(lost[np.array(per_class(whole)) == 5].tolist())) == [0]


@pytest.mark.data
@pytest.mark.parametrize("scenario", ["ordered", "shuffled"])
def test_the_real_cifar100(scenario: Scenario, data_dir: Path) -> None:
    stream = make_stream(f"cifar100-lt-{scenario}-b50-10", data_dir=data_dir)
    assert [len(task.new) for task in stream] == SIZES["cifar100", scenario, 10]
    assert len(stream[-1].test) == 10_000
    assert stream[0].spec.std == (0.2009, 0.1984, 0.2023)
    assert str(stream.budget) == "20/class"


@pytest.mark.parametrize("scenario", ["ordered", "shuffled"])
def test_a_folder_that_stands_in_for_imagenet100(scenario: Scenario, tmp_path: Path) -> None:
    """Three files of each class; the tail takes them in the order of their names."""
    for split, count in (("train", 3), ("val", 1)):
        for name in draw_order():
            directory = tmp_path / "imagenet" / split / name
            directory.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (8, 8)).save(directory / f"{number}.png")
    stream = make_stream(f"imagenet100-lt4-{scenario}-b50-5", data_dir=tmp_path, image_size=8)
    expected = LongTail(scenario, 4.0).profile(3, 100)
    assert sorted(per_class(stream), reverse=True) == expected.tolist() == [3] + [2] * 28 + [1] * 71
    assert stream.classes[:3] == tuple(draw_order()[number] for number in class_order(100, 1993)[:3])
    for task in stream:
        for label in range(task.old, task.total):
            rows = task.new.rows[task.new.labels == label]
            assert rows.tolist() == list(range(rows[0], rows[0] + len(rows))) and rows[0] % 3 == 0


any_counts = st.lists(st.integers(1, 200), min_size=1, max_size=12)


@given(any_counts, st.sampled_from(["ordered", "shuffled"]), st.floats(1, 1e6), st.integers(0, 2**32 - 1))
def test_any_dataset_has_the_same_profile(available: list[int], scenario: Scenario, ratio: float, seed: int) -> None:
    """From the size of the largest class; what has less keeps it all, and no class is without an image."""
    tail, dataset = LongTail(scenario, round(ratio, 3)), toy(available)
    stream = make_stream(f"toy-{tail}-1/1", dataset, order_seed=seed)
    classes, largest = len(available), max(available)
    profile = [max(1, int(largest * (1 / tail.ratio) ** (place / max(1, classes - 1)))) for place in range(classes)]
    by_class = dict(zip(stream.order, per_class(stream), strict=True))
    by_size = sorted(range(classes), key=lambda label: -available[label])
    assert [by_class[label] for label in by_size] == [
        min(count, available[label]) for count, label in zip(profile, by_size, strict=True)
    ]
    assert stream.order == (tuple(by_size) if scenario == "ordered" else class_order(classes, seed))
    assert max(by_class.values()) == largest


def test_a_tail_that_is_steeper_by_nature_is_left_as_it_is() -> None:
    stream = make_stream("toy-lt4-ordered-1/1", toy([3, 100, 40, 1, 9]))
    assert (stream.order, per_class(stream)) == ((1, 2, 4, 0, 3), [100, 40, 9, 3, 1])


@given(any_counts, st.floats(0.01, 0.99))
def test_no_share_for_validation_empties_a_class(available: list[int], share: float) -> None:
    for name in ("toy", "cifar100"):
        dataset = toy(available, name)
        whole = make_stream(f"{name}-lt50-shuffled-1/1", dataset)
        assume(any(round(count * share) and count > 1 for count in per_class(whole)))
        assert min(per_class(make_stream(whole.name, dataset, validation=share))) >= 1


def test_the_memory_is_twenty_of_each_class_or_all_it_has() -> None:
    stream = make_stream("cifar100-lt-ordered-b50-5", toy([500] * 100, "cifar100"))
    memory = Memory(stream.budget)
    for task in stream:
        memory.update(task.new, task.total, lambda new: torch.ones(len(new), 1))
    assert memory.images is not None
    assert memory.images.counts(100).tolist() == [min(20, count) for count in CIFAR]


def test_an_order_that_is_given_is_the_order_of_an_ordered_tail() -> None:
    stream = make_stream("toy-lt8-ordered-1/1", toy([8, 8, 8, 8]), order=[2, 0, 3, 1])
    assert (stream.order, per_class(stream)) == ((2, 0, 3, 1), [8, 4, 2, 1])


names = st.text("ab-/:lt05", min_size=1).map(lambda text: f"folder:{text}")
tails = st.builds(
    LongTail, st.sampled_from(["ordered", "shuffled"]), st.integers(1000, 10**8).map(lambda ratio: ratio / 1000)
)


@given(st.builds(StreamSettings, names, st.integers(0, 2000), steps=st.integers(1, 2000), tail=tails))
def test_names_and_settings_round_trip(chosen: StreamSettings) -> None:
    assert parse_stream(stream_name(chosen)) == chosen


def test_a_name_says_the_tail() -> None:
    assert parse_stream("cifar100-lt-shuffled-b50-5") == StreamSettings("cifar100", 50, 5, tail=LongTail("shuffled"))
    assert parse_stream("digits-lt50-ordered-4/2").tail == LongTail("ordered", 50.0)
    assert stream_name(parse_stream("cifar100-lt100-shuffled-b0-5")) == "cifar100-lt-shuffled-b0-5"
    assert parse_stream("folder:/a-lt-b-lt2.5-ordered-b0-4").dataset == "folder:/a-lt-b"
    assert parse_stream("folder:/a-lt-b-b0-4").dataset == "folder:/a-lt-b"
    assert parse_stream("folder:/a-lt-ordered/-b0-4") == StreamSettings("folder:/a-lt-ordered/", 0, 4)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("digits-lt0.5-ordered-b0-5", "must be a number from 1 to 999999999, such as 50 in 'lt50-ordered', not '0.5'"),
        ("digits-lt0-shuffled-b0-5", "must be a number from 1 to"),
        ("digits-lt1.2.3-shuffled-b0-5", "must be a number from 1 to"),
        ("digits-ltx-shuffled-b0-5", "must be a number from 1 to"),
        ("folder:x-lt0-shuffled-b0-5", "must be a number from 1 to"),
        ("digits-lt-sorted-b0-5", "'digits-lt-ordered' or '-shuffled', not 'sorted'"),
        ("digits-lt50-b0-5", "'digits-lt50-ordered' or '-shuffled'$"),
    ],
)
def test_a_tail_that_cannot_be_is_told(name: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        make_stream(name)


def test_a_class_without_images_has_no_place_in_a_tail() -> None:
    with pytest.raises(UserError, match="class 'class1' has no training image left to keep"):
        make_stream("toy-lt-shuffled-1/1", toy([5, 0, 5]))


def test_images_are_those_of_the_published_setting_where_there_is_one() -> None:
    digits = make_stream("digits-lt-shuffled-b0-5").dataset.spec
    assert (digits.augment, digits.mean) == ("basic", (0.3052,)), "digits stay as they are"
    photographs = long_tailed_spec(replace(SPEC, kind="imagenet"))
    assert photographs == replace(SPEC, kind="imagenet", augment="resized")

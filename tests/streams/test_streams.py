"""Streams: names mean what they say, class orders are the published ones, tasks partition a dataset."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drcil.data.dataset import Dataset, DataSpec
from drcil.data.image_set import ArraySource, ImageSet
from drcil.errors import UserError
from drcil.streams.protocols import StreamSettings, class_order, parse_stream, standard_streams, stream_name
from drcil.streams.stream import Stream, make_stream

SPEC = DataSpec(kind="toys", backbone="none", memory="60", mean=(0.5,), std=(0.5,), augment="none")
PUBLISHED = replace(SPEC, large_base_memory="20/class")


def images(counts: list[int], seed: int) -> ImageSet:
    """One-pixel images, this many of class 0, 1, …, in mixed order."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    source = ArraySource(torch.zeros((len(labels), 1, 1, 1), dtype=torch.uint8))
    return ImageSet.of(source, np.arange(len(labels)), labels)


def toy(classes: int, train: int = 4, test: int = 2) -> Dataset:
    names = tuple(f"class{label}" for label in range(classes))
    return Dataset("toy", names, images([train] * classes, 0), images([test] * classes, 1), SPEC)


@pytest.mark.parametrize(("classes", "checksum"), [(100, 0xDAC54AF2), (1000, 0x1F175D69)])
def test_seed_1993_gives_the_published_class_orders(classes: int, checksum: int) -> None:
    assert crc32(",".join(map(str, class_order(classes, 1993))).encode()) == checksum


def test_the_orders_of_the_seeds_that_follow() -> None:
    assert class_order(100, 1994)[:10] == (72, 6, 33, 96, 60, 94, 29, 40, 45, 66)
    assert class_order(100, 1995)[:10] == (91, 18, 57, 73, 66, 71, 68, 61, 44, 54)


@pytest.mark.parametrize(
    ("name", "classes", "sizes"),
    [
        ("cifar100-b0-5", 100, (20,) * 5),
        ("cifar100-b0-20", 100, (5,) * 20),
        ("cifar100-b50-5", 100, (50, *(10,) * 5)),
        ("cifar100-b50-25", 100, (50, *(2,) * 25)),
        ("imagenet1000-b0-10", 1000, (100,) * 10),
        ("digits-b0-5", 10, (2,) * 5),
        ("digits-b0-4", 10, (3, 3, 3, 1)),
        ("digits-b0-1", 10, (10,)),
        ("digits-b4-2", 10, (4, 3, 3)),
        ("cifar100-40/20", 100, (40, 20, 20, 20)),
        ("cifar100-50/30", 100, (50, 30, 20)),
        ("cifar100-100/7", 100, (100,)),
    ],
)
def test_names_cut_datasets_into_tasks(name: str, classes: int, sizes: tuple[int, ...]) -> None:
    assert parse_stream(name).sizes(classes) == sizes


def test_every_number_of_tasks_that_equal_steps_allow_is_accepted_and_no_other() -> None:
    """10 classes in steps of 1, 2, 3, 4, 5..9 and 10 make 10, 5, 4, 3, 2 and 1 tasks."""
    for tasks in range(1, 13):
        if tasks in {1, 2, 3, 4, 5, 10}:
            assert len(parse_stream(f"digits-b0-{tasks}").sizes(10)) == tasks
        else:
            with pytest.raises(UserError, match=rf"into {tasks} steps .* these work: 1, 2, 3, 4, 5, 10"):
                parse_stream(f"digits-b0-{tasks}").sizes(10)


@pytest.mark.parametrize("name", ["digits-b50-5", "digits-b10-5", "digits-11/1"])
def test_a_base_needs_a_dataset_that_is_larger(name: str) -> None:
    with pytest.raises(UserError, match=f"'{name}' starts with .* the dataset has only 10"):
        make_stream(name, toy(10))


names = st.text(min_size=1).map(lambda text: f"folder:{text}")
counts = st.integers(1, 2000)
any_settings = st.one_of(
    st.builds(StreamSettings, names, st.integers(0, 2000), steps=counts),
    st.builds(StreamSettings, names, counts, step_size=counts),
)


@given(any_settings)
def test_names_and_settings_round_trip(chosen: StreamSettings) -> None:
    assert parse_stream(stream_name(chosen)) == chosen


def test_a_folder_may_have_dashes_slashes_and_even_a_stream_in_its_name() -> None:
    assert parse_stream("folder:/my-data/x-b0-5/y-50/10-b0-4") == StreamSettings("folder:/my-data/x-b0-5/y-50/10", 0, 4)
    assert parse_stream("folder:a-b-3/2") == StreamSettings("folder:a-b", 3, step_size=2)


@pytest.mark.parametrize(
    "name", ["cifar100", "", "-b0-5", "cifar100-b0", "cifar100-b0-0", "cifar100-0/5", "cifar100-B0-5"]
)
def test_a_name_that_is_no_stream_is_answered_with_the_forms(name: str) -> None:
    with pytest.raises(UserError, match="is not of the form DATASET-b0-TASKS"):
        parse_stream(name)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    classes = draw(st.integers(1, 12))
    train = draw(st.lists(st.integers(2, 6), min_size=classes, max_size=classes))
    test = draw(st.lists(st.integers(1, 3), min_size=classes, max_size=classes))
    dataset = Dataset("toy", tuple(map("class{}".format, range(classes))), images(train, 0), images(test, 1), SPEC)
    base, step = draw(st.integers(1, classes)), draw(st.integers(1, classes))
    share = draw(st.sampled_from([0.0, 0.5]))
    return make_stream(f"toy-{base}/{step}", dataset, order_seed=draw(st.integers(0, 2**32 - 1)), validation=share)


@settings(deadline=None)
@given(streams())
def test_tasks_partition_the_dataset(stream: Stream) -> None:
    dataset, seen, rows = stream.dataset, 0, []
    for number, task in enumerate(stream, start=1):
        assert (task.number, task.old, task.total) == (number, seen, seen + len(task.classes))
        assert task.sizes == stream.sizes[:number]
        assert task.classes == tuple(dataset.classes[label] for label in stream.order[task.old : task.total])
        seen = task.total
        parts = [task.new, *([task.validation] if task.validation else [])]
        for part in parts:
            rows.extend(part.rows.tolist())
            assert set(part.labels.tolist()) == set(range(task.old, task.total))
            assert np.array_equal(np.array(stream.order)[part.labels], dataset.train.labels[part.rows])
        assert np.array_equal(np.array(stream.order)[task.test.labels], dataset.test.labels[task.test.rows])
        assert set(task.test.labels.tolist()) == set(range(task.total))
        assert len(task.memory) == 0
    assert seen == len(dataset.classes)
    assert sorted(rows) == list(range(len(dataset.train)))


@settings(deadline=None)
@given(streams())
def test_the_test_images_of_a_task_come_first_in_the_next(stream: Stream) -> None:
    tests = [task.test for task in stream]
    for earlier, later in pairwise(tests):
        assert len(earlier) < len(later)
        assert np.array_equal(earlier.rows, later.rows[: len(earlier)])
    assert len(tests[-1]) == len(stream.dataset.test)


def test_tasks_are_counted_from_one_and_indexed_from_zero() -> None:
    stream = make_stream("toy-b0-5", toy(10))
    assert [task.number for task in stream] == [1, 2, 3, 4, 5] == [stream[index].number for index in range(len(stream))]
    assert stream[-1].number == 5
    with pytest.raises(IndexError):
        stream[5]
    with pytest.raises(UserError, match="the task of stream 'toy-b0-5' must be a whole number from 1 to 5, not 0"):
        stream.task(0)


def test_an_order_may_be_given_by_numbers_or_names() -> None:
    dataset = toy(4)
    assert make_stream("toy-b0-2", dataset).order == class_order(4, 1993)
    assert make_stream("toy-b0-2", dataset, order=[3, 1, 0, 2]).classes == ("class3", "class1", "class0", "class2")
    assert make_stream("toy-b0-2", dataset, order=["class3", "class1", 0, "class2"]).order == (3, 1, 0, 2)


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        ([0, 1, 2], "it has class 3 0 times"),
        ([0, 1, 2, 3, 3], "it has class 3 2 times"),
        ([0, 1, 2, 3, 4], "0 to 3, .* it has class 4 1 times"),
        (["class0", "class1", "class2", "clas3"], "unknown class 'clas3'; did you mean 'class3'"),
    ],
)
def test_an_order_must_have_every_class_once(order: list[int | str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make_stream("toy-b0-2", toy(4), order=order)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_order_seeds_beyond_the_generator_are_refused(seed: int) -> None:
    with pytest.raises(UserError, match=f"the order seed must be a whole number from 0 to 4294967295, not {seed}"):
        class_order(10, seed)


@pytest.mark.parametrize(
    ("name", "spec", "given", "budget"),
    [
        ("toy-b0-10", PUBLISHED, None, "60"),
        ("toy-b50-5", PUBLISHED, None, "20/class"),
        ("toy-50/10", PUBLISHED, None, "20/class"),
        ("toy-10/10", PUBLISHED, None, "60"),
        ("toy-b50-5", PUBLISHED, "2000", "2000"),
        ("toy-b50-5", SPEC, None, "60"),
        ("toy-50/10", SPEC, None, "60"),
    ],
)
def test_the_protocol_chooses_the_memory_unless_the_user_does(
    name: str, spec: DataSpec, given: str | None, budget: str
) -> None:
    stream = make_stream(name, replace(toy(100), spec=spec), memory=given)
    assert str(stream.budget) == budget
    assert stream[0].budget == stream.budget


def test_validation_is_a_share_of_every_class_rounded_half_to_even() -> None:
    counts = [5, 10, 15, 25, 35]
    dataset = Dataset("toy", tuple("abcde"), images(counts, 0), images([1] * 5, 1), SPEC)
    stream = make_stream("toy-b0-5", dataset, validation=0.3, order=[0, 1, 2, 3, 4])
    held = [len(task.validation) for task in stream if task.validation is not None]
    assert held == [2, 3, 4, 8, 10]  # of 1.5, 3, 4.5, 7.5, 10.5
    assert [len(task.new) for task in stream] == [count - out for count, out in zip(counts, held, strict=True)]


def test_validation_images_depend_on_the_order_seed_and_not_on_the_order() -> None:
    def held(**options: Any) -> set[int]:
        tasks = make_stream("toy-b0-2", toy(4, train=20), validation=0.5, **options)
        return {row for task in tasks if task.validation is not None for row in task.validation.rows.tolist()}

    assert held() == held(order=[0, 1, 2, 3]) == held(order=[3, 2, 1, 0])
    assert held() != held(order_seed=7)


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.floats(0.01, 0.99))
def test_small_classes_give_few_validation_images_or_none_and_keep_one_to_learn_from(
    counts: list[int], share: float
) -> None:
    assume(any(round(count * share) and count > 1 for count in counts))
    names = tuple(f"class{label}" for label in range(len(counts)))
    dataset = Dataset("toy", names, images(counts, 0), images([1] * len(counts), 1), SPEC)
    for label, task in enumerate(make_stream("toy-1/1", dataset, validation=share, order=range(len(counts)))):
        held = 0 if task.validation is None else len(task.validation)
        assert held == min(round(counts[label] * share), counts[label] - 1)
        assert held + len(task.new) == counts[label] and len(task.new) > 0
        assert (task.validation is None) == (held == 0)


@pytest.mark.parametrize(
    ("share", "complaint"),
    [
        (0.1, "share of 0.1 is less than one image of every class, and the largest has 4 training images"),
        (1.0, "validation must be a number at least 0 and below 1, not 1.0"),
        (-0.1, "validation must be a number at least 0 and below 1, not -0.1"),
    ],
)
def test_a_share_by_which_nothing_is_held_out_is_refused(share: float, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make_stream("toy-b0-2", toy(4), validation=share)


def test_the_standard_streams_are_those_of_the_published_tables() -> None:
    listed = {stream.name: stream for stream in standard_streams()}
    assert len(listed) == 29
    for name, stream in listed.items():
        assert len(parse_stream(name).sizes(stream.classes)) == stream.tasks
        assert ("-b50-" in name or "-lt-" in name) == (stream.memory == "20/class")
    assert listed["cifar100-b50-25"][1:] == (100, 26, "20/class", "50 classes, then 25x2")
    assert listed["cifar100-lt-ordered-b50-10"][1:] == (100, 11, "20/class", "long tail; 50, then 10x5")
    assert listed["imagenet1000-b0-10"][1:] == (1000, 10, "20000", "10 tasks of 100 classes")


def listed_and_loaded(name: str, data_dir: Path | None) -> tuple[tuple[int, int, str], Stream]:
    (listed,) = [listed for listed in standard_streams() if listed.name == name]
    return (listed.classes, listed.tasks, listed.memory), make_stream(name, data_dir=data_dir)


def test_digits_are_listed_as_they_load() -> None:
    listed, stream = listed_and_loaded("digits-b0-5", None)
    assert (len(stream.classes), len(stream), str(stream.budget)) == listed
    assert sum(len(task.new) for task in stream) == len(stream.dataset.train)


@pytest.mark.data
@pytest.mark.parametrize("name", ["cifar100-b0-10", "cifar100-b50-10"])
def test_cifar100_is_listed_as_it_loads(name: str, data_dir: Path) -> None:
    listed, stream = listed_and_loaded(name, data_dir)
    assert (len(stream.classes), len(stream), str(stream.budget)) == listed
    assert all(len(task.new) == 500 * len(task.classes) and len(task.test) == 100 * task.total for task in stream)

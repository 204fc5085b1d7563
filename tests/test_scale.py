"""The model of a large run: its arithmetic holds, and the page shows what it says."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from benchmarks.scale import (
    CLASSES,
    RATES,
    TEST,
    TRAIN,
    Rates,
    TaskWork,
    Work,
    all_reduce_seconds,
    constants,
    cost,
    gather_seconds,
    gpu_bytes,
    herding_seconds,
    imagenet_tasks,
    pass_seconds,
    process_bytes,
    step_seconds,
    tables,
)
from benchmarks.scale_constants import CONSTANTS, _files, _net

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
FREE = replace(RATES, inner=inf, outer=inf, latency=0.0, launch=0.0)
"""Neither links nor kernels take time."""
WORK = Work(epochs=2, images=64 * 1000, batch=128, teachers=2)
TASK = TaskWork((WORK,), new=64 * 1000, classes=100, quota=20, test=64 * 50)


@pytest.mark.parametrize("rates", [FREE, replace(FREE, decode=1.0), replace(FREE, gpu=1e9)], ids=["", "decode", "gpu"])
def test_without_links_and_launches_it_is_as_many_times_as_fast(rates: Rates) -> None:
    alone = cost([TASK], 1, rates)
    for gpus in (2, 8, 64):
        many = cost([TASK], gpus, rates)
        for part in ("training", "features", "evaluation"):
            assert getattr(many, part) == pytest.approx(getattr(alone, part) / gpus)


def test_herding_and_the_start_are_the_same_on_any_number_of_gpus() -> None:
    costs = [cost([TASK], gpus) for gpus in (1, 8, 64)]
    assert len({(own.herding, own.start) for own in costs}) == 1
    assert herding_seconds(200, 20) == 2 * herding_seconds(100, 20)


def test_a_step_is_never_shorter_than_any_of_its_parts() -> None:
    for gpus in (1, 8, 64, 512):
        step = step_seconds(WORK, gpus)
        assert step >= RATES.launch + all_reduce_seconds(4 * RATES.parameters, gpus)
        assert step >= 128 / gpus * RATES.decode / RATES.cores
    slow = replace(RATES, decode=10.0)
    assert step_seconds(WORK, 8, slow) == pytest.approx(16 * 10.0 / slow.cores), "decoding goes on beside the rest"


def test_a_ring_moves_less_than_twice_the_gradients_on_each_link() -> None:
    assert all_reduce_seconds(1e9, 1) == 0
    assert all_reduce_seconds(1e9, 2, replace(RATES, latency=0.0)) == pytest.approx(1e9 / RATES.inner)
    for gpus in (2, 8, 64, 4096):
        assert all_reduce_seconds(1e9, gpus) < 2e9 / RATES.inner + 2e9 / RATES.outer + 12 * RATES.latency + 1e-9
    assert gather_seconds(1000, 1) == 0 and gather_seconds(1000, 16) > 5 * gather_seconds(1000, 8)
    assert pass_seconds(1000, 64) == pytest.approx(pass_seconds(16, 1))


def test_the_stages_are_those_of_the_method() -> None:
    tasks = imagenet_tasks()
    assert sum(task.new for task in tasks) == TRAIN and tasks[-1].test == TEST
    assert [task.quota * (number + 1) * CLASSES // 10 for number, task in enumerate(tasks)] == pytest.approx(
        [20_000] * 10, rel=0.02
    )
    first, *later = tasks
    assert [(own.epochs, own.teachers) for own in first.stages] == [(200, 0)]
    for before, task in zip(tasks, later, strict=False):
        adaptation, fusion = task.stages
        assert (adaptation.epochs, fusion.epochs, fusion.teachers) == (70, 130, 2)
        assert adaptation.images == task.new
        assert fusion.images == task.new + before.quota * (CLASSES // 10) * tasks.index(task)


def test_memory_is_shared_out_where_it_can_be() -> None:
    assert gpu_bytes(128, 8)["activations"] * 8 == gpu_bytes(128, 1)["activations"]
    assert gpu_bytes(128, 8)["nets"] == gpu_bytes(128, 1)["nets"] == 5 * 4 * RATES.parameters
    assert process_bytes(128_117)["listing"] < 100 * 2**20
    assert process_bytes(2000)["features"] == 2 * process_bytes(1000)["features"]


def test_what_can_be_counted_is_what_the_model_has() -> None:
    assert {name for name, own in CONSTANTS.items() if own.origin == "counted"} == set(_net())
    for name, value in _net().items():
        assert CONSTANTS[name].value == pytest.approx(value, rel=0.01), name
    assert _files(2, 100)["listing"] == pytest.approx(CONSTANTS["listing"].value, rel=0.1)


def test_the_page_shows_what_the_model_says() -> None:
    page = PAGE.read_text()
    for table in (constants(), *tables().split("\n\n")):
        assert table in page, "docs/scale.md: put in what 'python -m benchmarks.scale' prints"

"""Schedules, against rates worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from drcil.stages import Schedule

CURVES = ("cosine", "linear", "steps", "constant")


def test_cosine_by_hand() -> None:
    schedule = Schedule(epochs=200, lr=0.1)
    for epoch in range(200):
        assert schedule.rate(epoch) == pytest.approx(0.05 * (1 + math.cos(math.pi * epoch / 200)), rel=1e-12)
    assert schedule.rate(0) == 0.1
    assert schedule.rate(50) == pytest.approx(0.0853553390593)
    assert schedule.rate(100) == pytest.approx(0.05)


def test_cosine_ends_where_it_is_told_to() -> None:
    schedule = Schedule(epochs=1000, lr=0.1, lr_end=0.02)
    assert schedule.rate(500) == pytest.approx(0.06)
    assert schedule.rate(999) == pytest.approx(0.02, abs=1e-6)


def test_steps_by_hand() -> None:
    schedule = Schedule(epochs=200, lr=0.1, curve="steps", milestones=(60, 120, 170))
    rates = {0: 0.1, 59: 0.1, 60: 0.01, 119: 0.01, 120: 0.001, 169: 0.001, 170: 0.0001, 199: 0.0001}
    assert {epoch: schedule.rate(epoch) for epoch in rates} == pytest.approx(rates)


def test_warm_up_by_hand() -> None:
    schedule = Schedule(epochs=25, lr=0.5, warmup=5, warmup_lr=0.1)
    rates = [0.1, 0.18, 0.26, 0.34, 0.42, 0.5]
    assert [schedule.rate(epoch) for epoch in range(6)] == pytest.approx(rates)
    assert schedule.rate(15) == pytest.approx(0.25)
    assert Schedule(epochs=9, lr=0.3, curve="constant").rate(8) == 0.3


def test_a_line_by_hand() -> None:
    schedule = Schedule(epochs=10, lr=0.1, curve="linear", lr_end=0.02)
    assert [schedule.rate(epoch) for epoch in (0, 5, 9)] == pytest.approx([0.1, 0.06, 0.028])


def test_one_cycle_by_hand() -> None:
    """Up to the rate and down again, step by step: the middle of each counts, so that none has a rate of zero."""
    schedule = Schedule(epochs=5, lr=0.8, curve="linear", changes="step", warmup=1)
    rates = [[schedule.rate(epoch, step, 2) for step in range(2)] for epoch in range(5)]
    assert rates == [pytest.approx(two) for two in ([0.2, 0.6], [0.75, 0.65], [0.55, 0.45], [0.35, 0.25], [0.15, 0.05])]
    # One that changes by epoch does not ask for the step.
    by_epoch = Schedule(epochs=5, lr=0.8)
    assert by_epoch.rate(3, 1, 2) == by_epoch.rate(3)


def test_steps_of_a_rate_come_at_their_epochs_also_if_it_changes_with_every_step() -> None:
    schedule = Schedule(epochs=4, lr=1.0, curve="steps", milestones=(2,), changes="step")
    assert [schedule.rate(epoch, step, 3) for epoch in range(4) for step in range(3)] == [1.0] * 6 + [0.1] * 6


def test_a_warm_up_may_be_a_share_of_all_epochs_however_many_there_are() -> None:
    schedule = Schedule(epochs=200, lr=0.1, curve="linear", changes="step", warmup_share=0.2)
    for scale in (1, 0.1, 1e-6):
        scaled = schedule.scaled(scale)
        rates = [scaled.rate(epoch, step, 10) for epoch in range(scaled.epochs) for step in range(10)]
        assert rates.index(max(rates)) == pytest.approx(0.2 * len(rates), abs=1)
        assert max(rates) > 0.08
    by_epoch = Schedule(epochs=10, lr=0.1, curve="constant", warmup_share=0.2)
    assert [by_epoch.rate(epoch) for epoch in range(4)] == pytest.approx([0, 0.05, 0.1, 0.1])


def test_looking_ahead_needs_a_momentum() -> None:
    with pytest.raises(ValidationError, match="nesterov"):
        Schedule(epochs=1, lr=0.1, momentum=0, nesterov=True)


def test_scaling_moves_milestones_and_warm_up_along() -> None:
    schedule = Schedule(epochs=200, lr=0.1, curve="steps", milestones=(60, 120, 170), warmup=10)
    quarter = schedule.scaled(0.25)
    assert (quarter.epochs, quarter.milestones, quarter.warmup) == (50, (15, 30, 42), 2)
    assert schedule.scaled(1) is schedule
    least = schedule.scaled(1e-6)
    assert (least.epochs, least.milestones, least.warmup) == (1, (1, 1, 1), 0)
    assert least.rate(0) == 0.1


@pytest.mark.parametrize(
    ("scale", "epochs", "warmup"),
    [(0.5, 250, 2), (0.3, 150, 2), (0.1, 50, 1), (0.08, 40, 1), (0.004, 2, 1), (0.001, 1, 0)],
)
def test_a_warm_up_keeps_an_epoch_however_short_the_stage(scale: float, epochs: int, warmup: int) -> None:
    scaled = Schedule(epochs=500, lr=1.25e-4, warmup=5, warmup_lr=1e-6).scaled(scale)
    assert (scaled.epochs, scaled.warmup) == (epochs, warmup)
    assert Schedule(epochs=500, lr=0.1).scaled(scale).warmup == 0


def test_a_warm_up_that_is_cut_to_one_epoch_rises_within_it() -> None:
    """By epochs it would be one at the rate to begin with: nothing would be learnt, and the rate would leap."""
    scaled = Schedule(epochs=50, lr=0.8, warmup=5, curve="constant").scaled(0.1)
    assert [scaled.rate(0, step, 4) for step in range(4)] == pytest.approx([0.1, 0.3, 0.5, 0.7])
    assert [scaled.rate(epoch) for epoch in range(1, 5)] == [0.8] * 4
    # A rise over two epochs or more is as the schedule has it.
    assert Schedule(epochs=50, lr=0.8, warmup=5).scaled(0.4).changes == "epoch"


@given(st.integers(1, 300), st.floats(0.001, 3), st.sampled_from(CURVES), st.integers(0, 9))
def test_rates_stay_between_nothing_and_the_full_rate(epochs: int, scale: float, curve: Any, warmup: int) -> None:
    schedule = Schedule(
        epochs=epochs, lr=0.1, curve=curve, milestones=(epochs // 2 + 1,), warmup=min(warmup, epochs - 1)
    )
    scaled = schedule.scaled(scale)
    rates = [scaled.rate(epoch, step, 10) for epoch in range(scaled.epochs) for step in range(10)]
    assert all(0 <= rate <= 0.1 for rate in rates)
    after = rates[10 * scaled.warmup :]
    assert after == sorted(after, reverse=True)
    if curve != "steps":
        # One that changes with every step has fallen by half a step, of at least ten.
        assert after[0] == pytest.approx(0.1, rel=1e-9 if scaled.changes == "epoch" else 0.06)


def test_a_stage_that_is_shorter_than_its_warm_up_reaches_its_rate() -> None:
    assert Schedule(epochs=1, lr=0.1, warmup=5, warmup_lr=1e-6).rate(0) == 0.1
    assert [Schedule(epochs=3, lr=0.1, warmup=5).rate(epoch) for epoch in range(3)] == [0.0, 0.05, 0.1]


def test_augmentation_grows_from_no_image_to_all() -> None:
    assert [Schedule(epochs=2, lr=0.1).augmented(epoch) for epoch in range(2)] == [1.0, 1.0]
    growing = Schedule(epochs=8, lr=0.1, augment_growth=0.5)
    assert [growing.augmented(epoch) for epoch in range(8)] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]
    assert [growing.scaled(0.5).augmented(epoch) for epoch in range(4)] == [0.0, 0.5, 1.0, 1.0]
    assert Schedule(epochs=4, lr=0.1, augment_growth=1).augmented(3) == 0.75

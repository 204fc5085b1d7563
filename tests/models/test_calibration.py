"""Temperatures and calibration errors against plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drcil.models.calibration import calibrate, calibration_error, fit_temperature

pytestmark = pytest.mark.numerical


def drawn(seed: int, temperature: float, count: int = 4000, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, and labels that are as probable as softmax(scores / temperature) says."""
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    labels = (scores / temperature).softmax(dim=1).multinomial(1, generator=generator)[:, 0]
    return scores, labels


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_temperature_that_labels_were_drawn_with_is_found(temperature: float, seed: int) -> None:
    scores, labels = drawn(seed, temperature)
    fit = calibrate(scores, labels)
    assert fit.temperature == pytest.approx(temperature, rel=0.1)
    assert fit.error_after < 3
    assert temperature == 1 or fit.error_before > 2 * fit.error_after


@given(st.integers(0, 100), st.integers(1, 60))
def test_no_image_has_a_say_in_the_probabilities_by_which_it_is_judged(seed: int, count: int) -> None:
    scores, labels = drawn(seed, 2.0, count=count)
    likely = calibrate(scores, labels).probabilities
    group = torch.arange(count) % 5 == seed % 5
    other = calibrate(scores, torch.where(group, (labels + 1) % 5, labels)).probabilities
    assert torch.equal(likely[group], other[group])
    assert torch.equal(likely.argmax(dim=1), scores.argmax(dim=1))
    assert likely.sum(dim=1).tolist() == pytest.approx([1] * count)


@given(st.integers(0, 100), st.floats(0.01, 1000))
def test_scores_of_another_scale_have_a_temperature_of_that_scale(seed: int, scale: float) -> None:
    scores, labels = drawn(seed, 2.0, count=60)
    assert fit_temperature(scores * scale, labels) == pytest.approx(scale * fit_temperature(scores, labels), rel=1e-6)


def test_it_is_the_least_of_the_doubtful_likelihood() -> None:
    scores, labels = drawn(3, 2.0, count=40)
    doubt = 1 / 42

    def loss(temperature: float) -> float:
        total = 0.0
        for row, label in zip((scores / temperature).tolist(), labels.tolist(), strict=True):
            norm = math.log(sum(math.exp(value) for value in row))
            target = [1 - doubt if one == label else doubt / 4 for one in range(5)]
            total -= sum(share * (value - norm) for share, value in zip(target, row, strict=True))
        return total

    best = fit_temperature(scores, labels)
    assert loss(best) < min(loss(best * 0.99), loss(best * 1.01))


@pytest.mark.parametrize("count", [1, 5, 100])
def test_a_few_images_that_are_all_right_do_not_make_it_certain(count: int) -> None:
    labels = torch.arange(count) % 3
    scores = 10.0 * torch.nn.functional.one_hot(labels, 3)
    likely = (scores / fit_temperature(scores, labels)).softmax(dim=1).max(dim=1).values
    assert likely.tolist() == pytest.approx([(count + 1) / (count + 2)] * count, rel=1e-6)


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        (torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)),
        (torch.ones(4, 1), torch.zeros(4, dtype=torch.int64)),
    ],
)
def test_where_nothing_can_be_learnt_scores_stay_as_they_are(scores: torch.Tensor, labels: torch.Tensor) -> None:
    assert fit_temperature(scores, labels) == 1.0


def test_scores_that_mislead_end_as_good_as_guesses() -> None:
    labels = torch.arange(30) % 3
    scores = -5.0 * torch.nn.functional.one_hot(labels, 3)
    likely = (scores / fit_temperature(scores, labels)).softmax(dim=1)
    assert torch.allclose(likely, torch.full_like(likely, 1 / 3), atol=1e-3)


@given(st.integers(0, 1000), st.integers(1, 40), st.integers(2, 20))
def test_the_calibration_error_is_the_slow_formula(seed: int, count: int, bins: int) -> None:
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.ones(4), count)
    labels = generator.integers(0, 4, count)
    total = 0.0
    for interval in range(bins):
        inside = [row for row in range(count) if interval / bins < probabilities[row].max() <= (interval + 1) / bins]
        if inside:
            sure = sum(probabilities[row].max() for row in inside) / len(inside)
            right = sum(probabilities[row].argmax() == labels[row] for row in inside) / len(inside)
            total += len(inside) / count * abs(sure - right)
    found = calibration_error(torch.from_numpy(probabilities), torch.from_numpy(labels), bins)
    assert found == pytest.approx(100 * total, abs=1e-6)


@given(st.integers(0, 100))
def test_a_model_that_knows_nothing_still_ranks_by_its_scores(seed: int) -> None:
    scores, labels = drawn(seed, 1e9, count=60)
    likely = (scores.float() / fit_temperature(scores, labels)).softmax(dim=1)
    first, second = scores.topk(2, dim=1).values.unbind(1)
    apart = first - second > 1e-3 * scores.abs().mean()
    assert torch.equal(likely.argmax(dim=1)[apart], scores.argmax(dim=1)[apart])

"""Metrics on numbers small enough to work out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drcil.errors import UserError
from drcil.metrics import METRICS, History, TaskPrediction, backward_transfer, forgetting, measure, require_figure

PUBLISHED = [93.4, 83.0, 80.9, 76.72, 74.18, 71.3, 69.17, 65.45, 63.49, 62.04]


def predictions(labels: list[int], best: list[int], seen: int) -> TaskPrediction:
    """Each image's best class is given; the others follow in ascending order."""
    top = [[first, *(label for label in range(seen) if label != first)][:10] for first in best]
    return TaskPrediction(np.array(labels), np.array(top))


def measured(records: list[TaskPrediction], sizes: list[int]) -> dict[str, Any]:
    return measure(History(records, sizes))


@pytest.fixture
def three_tasks() -> dict[str, Any]:
    """Tasks of 3, 1 and 2 classes with two test images per class."""
    return measured(
        [
            predictions([0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 1], seen=3),  # 5/6
            predictions([0, 0, 1, 1, 2, 2, 3, 3], [0, 3, 1, 3, 2, 2, 3, 3], seen=4),  # 4/6 | 2/2
            predictions(
                [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], [0, 5, 1, 4, 2, 4, 3, 5, 4, 4, 5, 0], seen=6
            ),  # 3/6 | 1/2 | 3/4
        ],
        sizes=[3, 1, 2],
    )


def test_the_curve_counts_every_test_image_the_same(three_tasks: dict[str, Any]) -> None:
    assert three_tasks["curve"] == pytest.approx([500 / 6, 75, 700 / 12], abs=1e-12)
    assert three_tasks["last"] == pytest.approx(700 / 12, abs=1e-12)
    assert three_tasks["avg"] == pytest.approx((500 / 6 + 75 + 700 / 12) / 3, abs=1e-12)


def test_the_matrix_has_the_accuracy_on_each_task_among_all_classes_seen(three_tasks: dict[str, Any]) -> None:
    assert [len(row) for row in three_tasks["matrix"]] == [1, 2, 3]
    assert three_tasks["matrix"][0] == pytest.approx([500 / 6])
    assert three_tasks["matrix"][1] == pytest.approx([400 / 6, 100])
    assert three_tasks["matrix"][2] == pytest.approx([50, 50, 75])


def test_confusion_is_where_the_images_of_each_task_were_put_at_the_end(three_tasks: dict[str, Any]) -> None:
    assert three_tasks["confusion"] == [[50.0, 0.0, 50.0], [0.0, 50.0, 50.0], [25.0, 0.0, 75.0]]


def test_the_mean_over_tasks_ignores_how_many_classes_a_task_has(three_tasks: dict[str, Any]) -> None:
    expected = [500 / 6, (400 / 6 + 100) / 2, 175 / 3]
    assert three_tasks["task_curve"] == pytest.approx(expected)
    assert three_tasks["task_avg"] == pytest.approx(sum(expected) / 3)


def test_forgetting_and_backward_transfer(three_tasks: dict[str, Any]) -> None:
    assert three_tasks["forgetting"] == pytest.approx(((500 / 6 - 50) + (100 - 50)) / 2)
    assert three_tasks["backward_transfer"] == pytest.approx(-((500 / 6 - 50) + (100 - 50)) / 2)


def answered(accuracies: list[float]) -> TaskPrediction:
    """Tasks of two classes, of which the first has ten test images, so many percent of them answered rightly."""
    labels = np.repeat(np.arange(len(accuracies)) * 2, 10)
    wrong = np.concatenate([np.arange(10) >= accuracy / 10 for accuracy in accuracies])
    return predictions(labels.tolist(), (labels + wrong).tolist(), seen=2 * len(accuracies))


def test_forgetting_is_measured_from_the_best_and_transfer_from_the_first() -> None:
    matrix = [[60.0], [80.0, 50.0], [70.0, 90.0, 40.0]]
    history = History([answered(row) for row in matrix], [2, 2, 2])
    assert history.matrix == matrix
    assert forgetting(history) == pytest.approx((10 + 0) / 2)
    assert backward_transfer(history) == pytest.approx((10 + 40) / 2)


def test_a_single_task_forgets_nothing_that_could_be_measured() -> None:
    metrics = measured([predictions([0, 1], [0, 0], seen=2)], sizes=[2, 2])
    assert metrics["forgetting"] is None
    assert metrics["backward_transfer"] is None
    assert metrics["avg"] == metrics["last"] == 50.0


def test_top_five_looks_at_five_and_is_complete_with_five_classes(three_tasks: dict[str, Any]) -> None:
    assert three_tasks["top5"][:2] == [100.0, 100.0]
    # Six classes: only class 5 can be ranked sixth; of its two images one is answered rightly, one ranks it last.
    assert three_tasks["top5"][2] == pytest.approx(1100 / 12, abs=1e-12)
    assert three_tasks["top5_avg"] == pytest.approx((200 + 1100 / 12) / 3, abs=1e-12)


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_top_five_of_fewer_than_five_classes_is_complete(classes: int) -> None:
    assert measured([predictions([0] * 3, [classes - 1] * 3, seen=classes)], sizes=[classes])["top5"] == [100.0]


def test_the_published_curve_averages_to_the_published_number() -> None:
    """100 test images per class. 76.72 can only be 3069 of 4000 images, 76.725 %: a half that is rounded to even."""
    records = []
    for task, accuracy in enumerate(PUBLISHED, start=1):
        labels = np.repeat(np.arange(10 * task), 100)
        right = np.arange(len(labels)) < round(accuracy * len(labels) / 100)
        best = np.where(right, labels, (labels + 1) % (10 * task))
        others = (best[:, None] + np.arange(5)) % (10 * task)
        records.append(TaskPrediction(labels, others))
    metrics = measured(records, sizes=[10] * 10)
    assert [float(accuracy) for accuracy in np.around(metrics["curve"], 2)] == PUBLISHED
    assert f"{metrics['avg']:.2f}" == "73.97"


def test_the_average_is_taken_over_exact_numbers() -> None:
    metrics = measured([predictions([0] * 3, [0, 0, 1], 2), predictions([0, 0, 2], [0, 0, 1], 3)], sizes=[2, 1])
    assert metrics["avg"] == pytest.approx(200 / 3, abs=1e-12)


@given(st.data())
def test_laws_of_all_runs(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    records = []
    for task in range(1, len(sizes) + 1):
        seen = sum(sizes[:task])
        labels = [*range(seen), *data.draw(st.lists(st.integers(0, seen - 1), max_size=5))]
        best = data.draw(st.lists(st.integers(0, seen - 1), min_size=len(labels), max_size=len(labels)))
        records.append(predictions(labels, best, seen))
    metrics = measured(records, sizes)
    for rank1, rank5, row in zip(metrics["curve"], metrics["top5"], metrics["matrix"], strict=True):
        assert 0 <= rank1 <= rank5 <= 100
        assert min(row) - 0.005 <= rank1 <= max(row) + 0.005
    if len(sizes) > 1:
        assert metrics["forgetting"] is not None
        assert metrics["backward_transfer"] is not None
        assert metrics["forgetting"] >= max(0.0, -metrics["backward_transfer"]) - 1e-9
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(UserError, match="task 2 has no test images"):
        measured([predictions([0], [0], 1), predictions([0], [0], 2)], sizes=[1, 1])
    with pytest.raises(ValueError, match="not among the 2 classes"):
        measured([predictions([2], [0], 3)], sizes=[2, 1])
    with pytest.raises(ValueError, match="5 are needed"):
        measured([TaskPrediction(np.array([0]), np.array([[0, 1, 2]]))], sizes=[10])
    with pytest.raises(ValueError, match="0 records"):
        measured([], sizes=[10])


def test_an_outside_metric_is_measured_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS))
    METRICS.register("worst")(lambda history: [np.min(row) for row in history.matrix])
    METRICS.register("images")(lambda history: np.array([len(record.labels) for record in history.records]))
    figures = measured([predictions([0, 1], [0, 0], 2), predictions([0, 1, 2], [0, 1, 1], 3)], [2, 1])
    assert figures["worst"] == [50.0, 0.0] and figures["images"] == [2, 3] and figures["last"] == 200 / 3
    assert json.loads(json.dumps(figures)) == figures


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (lambda history: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda history: float("nan"), "it returned nan; a metric returns a finite number, None, or a list of these"),
        (lambda history: [1.0, "much"], "it returned 'much'; a metric returns"),
    ],
)
def test_an_outside_metric_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, metric: Callable[[History], Any], told: str
) -> None:
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS))
    METRICS.register("odd")(metric)
    with pytest.raises(UserError, match=f"metric 'odd' cannot be computed: {told}"):
        measured([predictions([0], [0], 1)], [1])


def test_the_mean_over_classes_ignores_how_often_a_class_is_tested() -> None:
    record = predictions([0, 0, 0, 0, 1], [0, 0, 0, 0, 0], seen=2)
    figures = measured([record], [2])
    assert (figures["curve"], figures["class_curve"], figures["class_avg"]) == ([80.0], [50.0], 50.0)


def test_shots_are_counted_in_training_images() -> None:
    """101 are many, 100 and 20 are medium, 19 are few."""
    record = predictions([0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 1, 0, 2, 2, 0, 0], seen=4)
    figures = measure(History([record], [4], [101, 100, 20, 19]))
    assert (figures["many_shot"], figures["medium_shot"], figures["few_shot"]) == (100.0, 75.0, 0.0)
    without = measure(History([record], [4], [20, 100, 20, 20]))
    assert (without["many_shot"], without["medium_shot"], without["few_shot"]) == (None, 62.5, None)
    assert measured([record], [4])["few_shot"] is None, "of nobody the number of images is known"
    with pytest.raises(ValueError, match="the images of 3 classes do not fit 4 classes"):
        History([record], [4], [1, 2, 3])


def test_methods_are_compared_by_metrics_that_are_one_number() -> None:
    assert [require_figure(name) for name in ("avg", "task_avg", "few_shot", "forgetting")][-1] == "forgetting"
    with pytest.raises(UserError, match="metric 'matrix' returns a list, not one number"):
        require_figure("matrix")
    with pytest.raises(UserError, match="unknown metric 'task_average'; did you mean 'task_avg'"):
        require_figure("task_average")

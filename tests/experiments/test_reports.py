"""What is shown of a run: planned work, time left, progress, tables and plots."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from drcil.experiments.plots import plot_curve, readout_lines
from drcil.experiments.writers import entries_table, summary_table, task_line, task_table, title
from drcil.runs.result import RunResult
from drcil.settings import RunSettings
from drcil.train.events import EpochDone, StageDone, StageStarted, StepDone
from drcil.train.progress import Bar, Forecast, Lines, duration, showing
from support.reports import result, task_summary

REPLAY = RunSettings(method="replay", stream="digits-b0-5")


def icarl() -> RunResult:
    return result(readouts=("nme", "classifier"), per_task=[task_summary(1), task_summary(2, 4.25)])


def replay(**figures: Any) -> RunResult:
    return result(REPLAY, per_task=[task_summary(1), task_summary(2, 4.25)], **figures)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def text(shown: Any) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@given(
    work=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4),
    pace=st.floats(0.1, 100),
    skipped=st.integers(0, 2),
)
def test_at_a_steady_pace_the_time_left_is_exact(work: list[list[int]], pace: float, skipped: int) -> None:
    """Every stage is of 10 images and as many epochs as planned; the first few were finished by an earlier process."""
    clock = Clock()
    forecast = Forecast([[10 * epochs for epochs in task] for task in work], clock)
    stages = [(number, epochs) for number, task in enumerate(work, start=1) for epochs in task]
    skipped = min(skipped, len(work[0]) - 1)
    left = sum(10 * epochs for _, epochs in stages[skipped:])
    for position, (task, epochs) in enumerate(stages):
        if position < skipped:
            clock.now += 1000
            forecast(StageDone(task, "stage", 1000, restored=True))
            assert forecast.seconds_left() is None
            continue
        forecast(StageStarted(task, "stage", epochs, 0, 10))
        for epoch in range(epochs):
            clock.now += 10 / pace
            forecast(StepDone(task, "stage", epoch, 10, None))
            left -= 10
            assert forecast.seconds_left() == pytest.approx(left / pace, rel=1e-6, abs=1e-6)
            assert forecast.images_per_second() == pytest.approx(pace, rel=1e-6)
            forecast(EpochDone(task, "stage", epoch, 0.1, {}, 1.0, None, "test"))
        forecast(StageDone(task, "stage", 1.0, restored=False))
    assert forecast.seconds_left() == pytest.approx(0)


def test_epochs_before_a_snapshot_count_neither_as_work_nor_as_time() -> None:
    clock = Clock()
    forecast = Forecast([[1000]], clock)
    forecast(StageStarted(1, "first", epochs=10, first_epoch=8, images=100))
    clock.now = 5
    forecast(StepDone(1, "first", 8, 100, None))
    assert forecast.seconds_left() == pytest.approx(5)


def test_there_is_no_forecast_while_an_unplanned_task_is_ahead() -> None:
    clock = Clock()
    forecast = Forecast([[100], [], [100]], clock)
    for task, left in ((1, None), (2, None), (3, 0)):
        forecast(StageStarted(task, "stage", epochs=1, first_epoch=0, images=100))
        clock.now += 5
        forecast(StepDone(task, "stage", 0, 100, None))
        assert forecast.seconds_left() == left
    assert forecast.tasks == 3


def events(accuracy: float | None = None) -> list[Any]:
    losses = {"classification": 0.5, "distillation": 0.25, "total": 0.75}
    return [
        StageStarted(2, "later", 2, 0, 100),
        StepDone(2, "later", 0, 100, losses),
        EpochDone(2, "later", 0, 0.1, losses, 1.0, accuracy, "validation"),
        StageDone(2, "later", 3.21, restored=False),
        StageDone(2, "later", 0.1, restored=True),
    ]


def test_plain_progress_is_a_line_per_stage() -> None:
    console = Console(file=io.StringIO(), width=60)
    lines = Lines(console, Forecast([[100], [200]]))
    for event in events(accuracy=87.654):
        lines(event)
    assert isinstance(console.file, io.StringIO)
    measured, trained, restored = console.file.getvalue().splitlines()
    assert measured == "task 2/2 later: validation accuracy 87.65 % after epoch 1"
    assert trained.startswith("task 2/2 later: 2 epochs in 3.2 s, classification 0.500 distillation 0.250 total 0.750")
    assert restored == "task 2/2 later: restored from an earlier process"


def test_the_bar_fits_eighty_columns() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    bar = Bar(console, Forecast([[100], [200]]))
    for event in events()[:3]:
        bar(event)
    shown = "".join(text(part) for part in bar.progress.get_renderables())
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    for part in ("task 2/2 later", "epoch 1/2", "images/s", "left", "classification 0.500", "distillation 0.250"):
        assert part in shown
    assert bar.progress.tasks[0].percentage == 50


@pytest.mark.parametrize(("terminal", "kind"), [(True, Bar), (False, Lines)])
def test_the_display_suits_the_console(terminal: bool, kind: type) -> None:
    with showing(Console(file=io.StringIO(), force_terminal=terminal), [[100]]) as listener:
        assert isinstance(listener, kind)


def test_durations() -> None:
    assert [duration(seconds) for seconds in (7, 59.6, 250, 7384)] == ["0:07", "1:00", "4:10", "2:03:04"]


def test_task_rows_printed_one_by_one_line_up() -> None:
    whole = text(task_table(icarl())).splitlines()
    pieces = [text(task_table(icarl(), [1])), text(task_table(icarl(), [2], header=False))]
    assert "".join(pieces).splitlines() == whole
    assert whole[0].split() == ["task", "classes", "nme", "avg", "classifier", "seconds"]
    assert whole[2].split() == ["2", "5", "70.00", "80.00", "69.00", "4.2"]


def test_a_single_readout_is_simply_the_accuracy() -> None:
    assert text(task_table(replay())).splitlines()[0].split() == ["task", "classes", "accuracy", "avg", "seconds"]
    assert task_line(replay(), 2) == "task 2 done: 5 classes, accuracy 70.00, avg 80.00, 4.2 s"
    assert task_line(icarl(), 1) == "task 1 done: 2 classes, nme 90.00, classifier 90.00, avg 90.00, 3.0 s"
    assert title(replay()) == "replay on digits-b0-5, seed 0, order seed 1993, memory 30, resnet-digits"


def test_accuracy_on_held_out_images_has_a_column() -> None:
    """None: the classes are so small that nothing is held out."""
    validated = result(REPLAY, readouts=("classifier",), per_task=[task_summary(1), task_summary(2)])
    for task, accuracy in zip(validated.figure("per_task"), (None, 66.25), strict=True):
        task["validation"] = accuracy
    header, *rows = (line.split() for line in text(task_table(validated)).splitlines())
    assert header == ["task", "classes", "accuracy", "avg", "validation", "seconds"]
    assert [row[4] for row in rows] == ["–", "66.25"]
    assert ", validation –, avg" in task_line(validated, 1) and ", validation 66.25, avg" in task_line(validated, 2)


def test_the_summary_has_a_row_per_readout() -> None:
    rows = [line.split() for line in text(summary_table(icarl())).splitlines()]
    assert ["nme", "80.00", "70.00", "12.50", "7.2"] in rows
    assert ["classifier", "79.50", "69.00", "12.50", "7.2"] in rows
    assert "–" in text(summary_table(replay(forgetting=None))), "one task has no forgetting"


def test_entries_are_shown_as_they_are_written() -> None:
    entries = [{"name": "a[b]", "stages": ["first", "later"], "fetched": True, "paper": "long"}]
    shown = text(entries_table(entries, {"paper"}))
    assert all(part in shown for part in ("a[b]", "first, later", "yes")) and "long" not in shown


def test_the_plot_of_a_run_has_a_line_for_each_readout(tmp_path: Path) -> None:
    nme, classifier = readout_lines(icarl()).values()
    assert (nme.label, nme.x, nme.y, nme.is_primary) == ("icarl, nme  (avg 80.00 %)", [2, 5], [90.0, 70.0], True)
    assert (classifier.label, classifier.is_primary) == ("icarl, classifier  (avg 79.50 %)", False)
    (single,) = readout_lines(replay()).values()
    assert single.label == "replay  (avg 80.00 %)"
    plot_curve(icarl(), tmp_path / "curve.png")
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]
    with Image.open(tmp_path / "curve.png") as image:
        assert image.size == (1350, 660) and round(image.info["dpi"][0]) == 150
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or ()}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours


def test_a_long_tailed_stream_is_shown_by_the_mean_over_tasks_with_accuracy_beside_it(tmp_path: Path) -> None:
    shots: dict[str, Any] = {"many_shot": 99.0, "medium_shot": None, "few_shot": 1.5}
    settings = RunSettings(method="maf", stream="digits-lt-shuffled-b0-5")
    tailed = result(settings, metric="task_avg", task_curve=[90.0, 40.0], task_avg=65.0, **shots)
    table = [line.split() for line in text(task_table(tailed)).splitlines()]
    assert table[0] == ["task", "classes", "task", "mean", "task", "avg", "accuracy", "seconds"]
    assert table[2] == ["2", "5", "40.00", "65.00", "70.00", "3.0"]
    assert task_line(tailed, 2) == "task 2 done: 5 classes, task mean 40.00, accuracy 70.00, task avg 65.00, 3.0 s"
    header, _, row = [line.split() for line in text(summary_table(tailed)).splitlines() if line.strip()]
    assert header == ["task", "avg", "Avg", "Last", "many", "medium", "few", "forgetting", "seconds"]
    assert row == ["65.00", "80.00", "70.00", "99.00", "–", "1.50", "12.50", "7.2"]
    (line,) = readout_lines(tailed).values()
    assert line.y == [90.0, 40.0] and line.label.endswith("(task avg 65.00 %)")
    plot_curve(tailed, tmp_path / "curve.png")

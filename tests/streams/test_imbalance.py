"""How uneven the images of each task are: counts that memory and streams really have, as numbers and as a plot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from drcil.cli import main
from drcil.experiments.plots import plot_imbalance
from drcil.streams.memory import Memory
from drcil.streams.stream import TaskImages, make_stream, task_images


@pytest.mark.parametrize("memory", ["30", "7/class", "all", "none"])
@pytest.mark.parametrize("name", ["digits-b0-5", "digits-lt-shuffled-b4-3", "digits-lt20-ordered-3/2"])
def test_the_counts_are_those_of_the_tasks_and_of_the_memory(name: str, memory: str) -> None:
    stream = make_stream(name, memory=memory)
    kept = Memory(stream.budget)
    for task, told in zip(stream, task_images(stream), strict=True):
        assert told.new.tolist() == task.new.counts(task.total)[task.old :].tolist()
        before = kept.images.counts(task.old).tolist() if kept.images is not None and task.old else [0] * task.old
        assert told.memory.tolist() == before
        kept.update(task.new, task.total, lambda images: torch.ones(len(images), 1))


def test_the_ratio_is_of_the_largest_to_the_smallest_class_that_has_images() -> None:
    assert TaskImages(2, np.array([20, 0, 5]), np.array([100, 50])).ratio == 20


def test_the_ratio_of_a_conventional_stream_grows_with_the_task() -> None:
    """Here 144 of a new class stand against 30 // 8 of an old one at the last task."""
    ratios = [task.ratio for task in task_images(make_stream("digits-b0-5"))]
    assert ratios == sorted(ratios) and ratios[0] < 1.1 < 40 < ratios[-1]


def test_the_view_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "imbalance", "digits-lt-ordered-b0-5", "--out", str(tmp_path / "plot.png")]) == 0
    shown = capsys.readouterr().out
    assert "digits-lt-ordered-b0-5, memory 20/class" in shown and "ratio" in shown
    with Image.open(tmp_path / "plot.png") as image:
        assert image.width > 500
    assert main(["data", "imbalance", "digits-lt-ordered-b0-5", "--memory", "none", "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)
    stream = make_stream("digits-lt-ordered-b0-5")
    assert [count for task in tasks for count in task["new"]] == stream.counts().tolist()
    assert tasks[-1] == {"task": 5, "memory": [0] * 8, "new": stream.counts()[-2:].tolist(), "ratio": 2.0}


def test_the_plot_has_room_for_every_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shuffled stream a later task may bring the largest class."""
    drawn: list[Figure] = []
    monkeypatch.setattr("drcil.experiments.plots.write_figure", lambda figure, path: drawn.append(figure))
    tasks = task_images(make_stream("digits-lt-shuffled-b4-3"))
    plot_imbalance(tasks, "digits", tmp_path / "plot.png")
    largest = max(task.new.max() for task in tasks)
    assert largest > tasks[0].new.max()
    for panel in drawn[0].axes[: len(tasks)]:
        assert panel.get_ylim()[1] > largest and panel.get_yscale() == "log"


def test_data_check_shows_the_counts_of_a_tail(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "digits-lt-ordered"]) == 0
    *_, summary, counts = capsys.readouterr().out.splitlines()
    stream = make_stream("digits-lt-ordered-b0-5")
    assert summary == f"lt-ordered: {sum(stream.counts())} training images, 1 to {max(stream.counts())} per class"
    assert counts.split(": ")[1] == " ".join(map(str, stream.counts().tolist()))


@pytest.mark.parametrize("name", ["digits-lt0.2-ordered-b0-5", "digits-lt-random-b0-5", "digits-b0-7"])
def test_what_cannot_be_is_told_in_a_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "imbalance", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1

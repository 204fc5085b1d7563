"""A model is measured on what it has learnt, and only on a stream that is the one it learnt."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import drcil
from drcil import Learner
from drcil.cli import main
from drcil.runs.evaluation import evaluate
from drcil.runs.execution import create_run
from drcil.runs.plan import complete
from drcil.settings import RunSettings
from drcil.streams.stream import make_stream

pytestmark = pytest.mark.numerical

SCALE = 0.05


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of five tasks."""
    stream = make_stream("digits-b0-5")
    learner = Learner("icarl", epochs_scale=SCALE, device="cpu")
    learner.learn(stream.task(1))
    learner.learn(stream.task(2))
    path = tmp_path_factory.mktemp("models") / "m"
    learner.save(path)
    return path


@pytest.mark.parametrize("readout", [None, "classifier"])
def test_figures_are_counts_of_test_images(model: Path, readout: str | None) -> None:
    found = evaluate(model, "digits-b0-5", readout=readout, device="cpu")
    stream = make_stream("digits-b0-5")
    test = stream.task(2).test
    pixels, names = test.read(), [stream.classes[label] for label in test.labels]
    answers = [one.label for one in drcil.load(model, device="cpu").predict(pixels, readout=readout)]
    right = np.array([answer == name for answer, name in zip(answers, names, strict=True)])
    assert (found.correct, found.total) == (right.sum(), len(test))
    assert found.accuracy == pytest.approx(100 * right.mean())
    assert found.per_task == pytest.approx([100 * right[test.labels < 2].mean(), 100 * right[test.labels >= 2].mean()])
    assert found.top5 == 100
    assert found.readout == (readout or "nme")


def test_a_run_is_measured_as_its_own_result_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last finished task, on the class order of the run."""
    settings = complete(RunSettings(method="replay", stream="digits-b0-5", order_seed=3, tasks=2, epochs_scale=SCALE))
    result = create_run(settings, tmp_path / "r").train().to_json()
    assert main(["evaluate", str(tmp_path / "r"), "digits-b0-5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["accuracy", "correct", "total", "top5", "per_task", "readout", "model", "stream"]
    assert found["accuracy"] == result["last"]
    assert found["per_task"] == result["matrix"][-1]
    assert (found["model"], found["stream"]) == (str(tmp_path / "r"), "digits-b0-5")


def test_people_get_a_table(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluate(model, "digits-b0-5", device="cpu")
    assert main(["evaluate", str(model), "digits-b0-5"]) == 0
    table = capsys.readouterr().out
    assert f"{found.correct} of {found.total}" in table
    assert f"{found.accuracy:.2f}" in table and f"{found.per_task[1]:.2f}" in table


def test_images_are_brought_to_the_size_of_the_model(tmp_path: Path) -> None:
    small = make_stream("digits-b0-5", image_size=4)
    learner = Learner("finetune", epochs_scale=SCALE, device="cpu")
    learner.learn(small.task(1))
    learner.save(tmp_path / "m")
    found = evaluate(tmp_path / "m", "digits-b0-5", device="cpu")
    assert found.accuracy == pytest.approx(learner.evaluate(small.task(1).test))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["digits-b0-2"], "the model learnt tasks of 2, 2 classes, but stream 'digits-b0-2' has tasks of 5, 5"),
        (["digits-b0-5", "--order-seed", "2"], "in another order than stream 'digits-b0-5' with order seed 2 has them"),
        (["digits-b0-5", "--readout", "nmee"], "unknown readout 'nmee'; did you mean 'nme'?"),
        (["digit-b0-5"], "did you mean 'digits'?"),
        (["digits-b0-5", "--device", "abacus"], "abacus"),
        (["cifar100-b0-10", "--data", "nowhere"], "nowhere"),
    ],
    ids=" ".join,
)
def test_what_does_not_fit_is_told_in_one_line(
    model: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(model), *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert told in output.err


def test_other_classes_are_told_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learner = Learner("finetune", epochs_scale=SCALE, device="cpu")
    learner.learn(np.zeros((6, 8, 8), dtype=np.uint8), ["cat", "dog"] * 3)
    learner.save(tmp_path / "m")
    assert main(["evaluate", str(tmp_path / "m"), "digits-b0-5"]) == 2
    assert "the model has the class 'cat', which is not in stream 'digits-b0-5'" in capsys.readouterr().err


def test_grey_images_are_not_for_a_model_of_coloured_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learner = Learner("finetune", epochs_scale=SCALE, device="cpu")
    learner.learn(np.zeros((6, 8, 8, 3), dtype=np.uint8), list(make_stream("digits-b0-5").task(1).classes) * 3)
    learner.save(tmp_path / "m")
    assert main(["evaluate", str(tmp_path / "m"), "digits-b0-5"]) == 2
    assert "takes images of 3 channels, but stream 'digits-b0-5' has 1" in capsys.readouterr().err


def test_what_is_no_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path), "digits-b0-5"]) == 2
    assert "is neither a model nor a run" in capsys.readouterr().err
    create_run(complete(RunSettings(method="replay", stream="digits-b0-5")), tmp_path / "r")
    assert main(["evaluate", str(tmp_path / "r"), "digits-b0-5"]) == 2
    assert "has no model yet: its first task is not finished" in capsys.readouterr().err

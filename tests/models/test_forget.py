"""Classes that a model forgets: nothing of them stays, the others' scores stay what they are, and learning goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import drcil
from drcil.cli import main
from drcil.errors import UserError
from drcil.methods import METHODS
from drcil.models.store import VERSIONS, current_version
from drcil.models.usage import Change, Kind, Usage
from drcil.streams.memory import first_of_each_class
from drcil.streams.stream import make_stream

STREAM = make_stream("digits-b0-5")
TEST = STREAM[2].test.subset(np.arange(0, len(STREAM[2].test), 4))
PICTURES = STREAM[0].new.source.read
COMBINED = ("wa+two-stage", "podnet+two-stage", "mafdrc+two-stage", "maf+norm", "mec+rc")
FAST = ("mafdrc", "mafrc", "bic", "podnet", "der", "dytox", "ranpac", "simplecil", "icarl", "wa+two-stage")
"""Every kind of head and part."""
OF_A_TASK = (".auxiliary.", ".tokens.1", ".pairs.1", ".classifiers.1.")
"""What is of no use without the classes of the second task, and is wiped with them."""


def slow_but(fast: Collection[str], methods: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in methods]


def teach(learner: drcil.Learner, number: int, count: int = 6) -> None:
    """The classes of a task of the stream, as a user's own images."""
    images = first_of_each_class(STREAM[number].new, count)
    names = [STREAM[number].classes[label - STREAM[number].old] for label in images.labels.tolist()]
    learner.learn(PICTURES(images.rows), names)


def taught(method: str, tasks: int = 2, **options: Any) -> drcil.Learner:
    learner = drcil.Learner(method, epochs_scale=0.01, device="cpu", **options)
    for number in range(tasks):
        teach(learner, number)
    return learner


def scores(learner: drcil.Learner) -> dict[str, Tensor]:
    """What every readout gives every class."""
    return {name: learner.predictor().scores(TEST, name) for name in learner.predictor().readouts}


def names_of(*numbers: int) -> list[str]:
    return [name for number in numbers for name in STREAM[number].classes]


def rows(tensor: Tensor) -> list[bytes]:
    """Every row by its bytes; of sums of features by class, every column."""
    return [row.contiguous().numpy().tobytes() for row in (tensor.T if tensor.dtype == torch.float64 else tensor)]


def check_forgotten(learner: drcil.Learner, before: dict[str, Tensor], was: dict[str, Tensor], kept: list[int]) -> None:
    """The scores of other classes come from the same numbers, bit for bit.

    A product of matrices may be rounded in another way where one of them has fewer rows.
    """
    for name, after in scores(learner).items():
        torch.testing.assert_close(after, was[name][:, kept], rtol=1e-4, atol=1e-5)
    for name, tensor in learner.method.state().tensors.items():
        if tensor.shape != before[name].shape:
            assert set(rows(tensor)) <= set(rows(before[name])), name
        elif not any(own in name for own in OF_A_TASK):
            assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("method", slow_but(FAST, (*METHODS, *COMBINED)))
def test_the_scores_of_all_other_classes_stay(method: str, tmp_path: Path) -> None:
    learner = taught(method)
    before = {name: tensor.clone() for name, tensor in learner.method.state().tensors.items()}
    was, (stays, goes) = scores(learner), names_of(0)
    learner.forget(goes)
    assert learner.sizes == (1, 2) and learner.classes == (stays, *names_of(1))
    check_forgotten(learner, before, was, [0, 2, 3])
    learner.forget(names_of(1))
    assert learner.sizes == (1, 0) and learner.classes == (stays,) and not learner.memory.labels.any()
    check_forgotten(learner, before, was, [0])
    learner.save(tmp_path / "model")
    again = drcil.load(tmp_path / "model", device="cpu")
    assert again.sizes == (1, 0)
    assert all(torch.equal(found, scores(again)[name]) for name, found in scores(learner).items())


@pytest.mark.parametrize(
    "method",
    slow_but(
        ("mafrc", "eeil", "ranpac", "dytox"),
        (
            "mafrc",
            "eeil",
            "ranpac",
            "dytox",
            "bic",
            "podnet",
            "der",
            "mecdrc",
            "simplecil",
            "lucir+two-stage",
        ),
    ),
)
def test_learning_goes_on_after_a_task_was_forgotten(method: str, tmp_path: Path) -> None:
    learner = taught(method)
    learner.forget(names_of(0))
    assert learner.sizes == (0, 2)
    learner.save(tmp_path / "model")
    learner = drcil.load(tmp_path / "model", device="cpu")
    teach(learner, 2)
    assert learner.sizes == (0, 2, 2) and learner.classes == (*names_of(1), *names_of(2))
    assert all(found.shape[1] == 4 and found.isfinite().all() for found in scores(learner).values())
    # What was forgotten can be learnt again, as something new.
    teach(learner, 0)
    assert list(learner.sizes) == [0, 2, 2, 2] and learner.classes[4:] == tuple(names_of(0))
    assert all(found.shape[1] == 6 and found.isfinite().all() for found in scores(learner).values())


def test_what_is_kept_of_a_class_is_gone() -> None:
    learner = drcil.Learner("icarl", epochs_scale=0.01, memory="5/class", device="cpu")
    for task in STREAM[:2]:
        images = first_of_each_class(task.new, 20)
        names = [task.classes[label - task.old] for label in images.labels.tolist()]
        learner.learn(PICTURES(images.rows), names, validation=0.2)
    gone = names_of(0)[0]
    learner.forget([gone])
    model = learner.model
    assert model.memory.images is not None and model.memory.images.counts(3).tolist() == [5] * 3
    assert len(model.memory.images.source) == 15, "the pixels of others alone"
    assert model.held.images is not None and model.held.images.counts(3).tolist() == [4] * 3
    usage = model.usage
    assert usage is not None and usage.images == (16,) * 3 and usage.held == (4,) * 3 and len(usage.accuracy) == 3
    assert usage.calibration is not None and usage.calibration.images == 12
    assert usage.changes[-1].what == "forget" and usage.changes[-1].classes == (gone,)


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        ([], "no class to forget was named; the model knows "),
        (["cat"], "unknown class 'cat'"),
        (names_of(0), "a model must keep at least one class"),
        ([names_of(0)[0], 3.5], "cannot be 3.5"),
    ],
)
def test_what_cannot_be_forgotten_is_told_and_changes_nothing(classes: list[str], told: str) -> None:
    learner = taught("replay", 1)
    before = scores(learner)["classifier"]
    with pytest.raises(UserError, match=told):
        learner.forget(classes)
    assert torch.equal(scores(learner)["classifier"], before) and learner.sizes == (2,)


def test_a_part_that_cannot_forget_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = taught("icarl", 1)
    monkeypatch.delattr("drcil.methods.nearest_mean.NearestMean.forget")
    with pytest.raises(UserError, match="a part of the kind NearestMean cannot forget classes"):
        learner.forget(names_of(0)[0])
    assert learner.sizes == (2,) and scores(learner)["nme"].shape[1] == 2


def test_a_model_on_disk_forgets_and_its_older_versions_until_they_are_purged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    for number, task in enumerate(STREAM[:2]):
        for label, name in enumerate(task.classes, start=task.old):
            (tmp_path / str(number) / name).mkdir(parents=True)
            rows = task.new.rows[task.new.labels == label][:4]
            for place, pixels in enumerate(PICTURES(rows)[:, 0].numpy()):
                Image.fromarray(pixels).save(tmp_path / str(number) / name / f"{place}.png")
    model, quick = tmp_path / "model", ["--device", "cpu", "--threads", "1", "--workers", "0", "--quiet"]
    options = ["--method", "replay", "--backbone", "resnet-digits", "--image-size", "8", "--epochs-scale", "0.01"]
    assert main(["learn", str(model), str(tmp_path / "0"), *options, *quick]) == 0
    assert main(["learn", str(model), str(tmp_path / "1"), *quick]) == 0
    secret, *others = names_of(0, 1)
    other = Path(shutil.copytree(model, tmp_path / "other"))
    damaged = Path(shutil.copytree(model, tmp_path / "damaged"))
    capsys.readouterr()
    assert main(["forget", str(model), secret]) == 0
    assert "knows 3 classes" in (told := capsys.readouterr().out) and "older versions still have" in told
    assert set(drcil.load(model, device="cpu").classes) == set(others)
    kept = {file.name for file in (current_version(model) / "exemplars").iterdir()}
    assert len(kept) == 12
    assert main(["undo", str(model)]) == 0 and secret in drcil.load(model, device="cpu").classes
    shutil.copytree(current_version(other), other / VERSIONS / ".0003.424242.tmp")
    assert main(["rename", str(other), secret, "Geheimnis"]) == 0
    assert main(["forget", str(other), "Geheimnis", "--purge"]) == 0
    assert "older versions are gone" in capsys.readouterr().out
    assert [place.name for place in (other / VERSIONS).iterdir()] == ["0004"]
    assert {file.name for file in other.rglob("*.png")} == kept
    assert not [file for file in other.rglob("*") if file.is_file() and b"Geheimnis" in file.read_bytes()]
    # A version that drcil cannot recognise as its own is not removed, and not said to be gone.
    (damaged / VERSIONS / "0001" / "state.json").unlink()
    assert main(["forget", str(damaged), secret, "--purge"]) == 2
    streams = capsys.readouterr()
    assert "older versions are gone" not in streams.out and "0001 is not a version that drcil can read" in streams.err
    assert main(["undo", str(other)]) == 2 and main(["forget", str(other)]) == 2
    assert "name the classes to forget" in capsys.readouterr().err
    state = json.loads((current_version(other) / "state.json").read_text())
    assert sorted(state["tasks"]) == [1, 2] and secret not in state["classes"]
    assert main(["learn", str(other), str(tmp_path / "0"), "--known", "skip", *quick]) == 0
    assert drcil.load(other, device="cpu").classes[-1] == secret


def test_a_purged_history_has_the_names_of_known_classes_alone() -> None:
    def told(*changes: tuple[Kind, str]) -> list[str]:
        made = [Change.now(what, names.split()) for what, names in changes]
        usage = Usage(images=(), held=(), accuracy=(), calibration=None, changes=tuple(made))
        return [" ".join(change.classes) for change in usage.hide_forgotten(("pear", "fig")).changes]

    assert told(("learn", "pear fig"), ("refresh", "fig")) == ["pear fig", "fig"]
    gone = "(forgotten)"
    assert told(("learn", "pear kiwi"), ("refresh", "kiwi"), ("forget", "kiwi")) == [f"pear {gone}", gone, gone]
    # A class that took another name is the same class, known or forgotten.
    assert told(("learn", "plum fig"), ("rename", "plum pear")) == ["plum fig", "plum pear"]
    assert told(("learn", "kiwi fig"), ("rename", "kiwi lime"), ("forget", "lime"), ("learn", "pear")) == [
        f"{gone} fig",
        f"{gone} {gone}",
        gone,
        "pear",
    ]
    # The name of a class that was renamed may be given to another, which is forgotten later.
    assert told(
        ("learn", "plum fig"), ("rename", "plum pear"), ("learn", "plum"), ("rename", "plum lime"), ("forget", "lime")
    ) == ["plum fig", "plum pear", gone, f"{gone} {gone}", gone]


def test_a_task_of_a_stream_does_not_follow_what_was_forgotten() -> None:
    learner = drcil.Learner("replay", epochs_scale=0.01, device="cpu")
    for task in STREAM[:2]:
        learner.learn(replace(task, new=first_of_each_class(task.new, 4)))
    learner.forget(names_of(0)[0])
    with pytest.raises(UserError, match="earlier tasks have 2, 2 classes, but the learner has learnt tasks of 1, 2"):
        learner.learn(STREAM[2])


def test_a_learner_goes_back_one_step() -> None:
    learner = drcil.Learner("replay", epochs_scale=0.01, device="cpu")
    assert repr(learner) == "<Learner replay: nothing learnt yet>"
    teach(learner, 0)
    teach(learner, 1)
    before, state = scores(learner)["classifier"], repr(learner)
    assert state == "<Learner replay: 4 classes in 2 tasks, memory 20/class, images of 1 x 8 x 8>"
    rows = learner.memory.rows.tolist()
    changes: tuple[Callable[[], object], ...] = (
        lambda: learner.forget(names_of(0)),
        lambda: learner.rename(names_of(0)[0], "zero"),
        lambda: learner.refresh(PICTURES(STREAM[0].new.rows[-8:]), [names_of(0)[1]] * 8),
        lambda: teach(learner, 2),
    )
    for change in changes:
        change()
        with pytest.raises(UserError, match="unknown class 'none'"):
            learner.forget("none")  # What fails is no step.
        learner.undo()
        assert learner.classes == tuple(names_of(0, 1)) and repr(learner) == state
        assert torch.equal(scores(learner)["classifier"], before) and learner.memory.rows.tolist() == rows
        with pytest.raises(UserError, match="there is nothing to undo"):
            learner.undo()
    first = taught("replay", 1)
    first.undo()
    assert first.classes == () and repr(first) == "<Learner replay: nothing learnt yet>"
    teach(first, 0)
    assert repr(first.predictor()).startswith("<Predictor: 2 classes, images of 1 x 8 x 8, readout classifier, not cal")


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    learner = taught("replay", 1)
    assert capsys.readouterr() == ("", "")
    images = first_of_each_class(STREAM[1].new, 4)
    learner.learn(PICTURES(images.rows), [names_of(1)[label - 2] for label in images.labels], progress=True)
    told = capsys.readouterr()
    assert told.out == "" and "task 2/2 later: 1 epoch in" in told.err
    learner.refresh(PICTURES(STREAM[0].new.rows[-8:]), [names_of(0)[1]] * 8, progress=True)
    assert "task 2/2 refresh: 1 epoch in" in capsys.readouterr().err
    learner.forget(names_of(0))
    assert capsys.readouterr().err == ""


def test_one_picture_needs_no_list() -> None:
    from PIL import Image

    learner, pixels = taught("replay", 1), PICTURES(TEST.rows[:1])[0, 0].numpy()
    (answer,) = learner.predict(Image.fromarray(pixels))
    assert answer == learner.predict(pixels[None])[0]

"""``drcil learn``: a model grows by folders, is whole at every moment, and goes on where it was stopped."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

import drcil
from drcil.cli import main
from drcil.models.store import LOCK, VERSIONS, current_version
from drcil.train.events import Event, Listener, StepDone
from support.processes import killed_before
from support.updates import OPTIONS, QUICK, SMALL, STREAM, folder


def stop(*given: object, **named: object) -> None:
    """In the place of something that is interrupted."""
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two lessons, whose folders are gone."""
    place = tmp_path_factory.mktemp("taught")
    first, second = folder(place / "first", 0), folder(place / "second", 1)
    assert main(["learn", str(place / "model"), str(first), *OPTIONS, *QUICK, *SMALL, "--quiet"]) == 0
    shutil.rmtree(first)
    assert main(["learn", str(place / "model"), str(second), *SMALL, "--quiet"]) == 0
    shutil.rmtree(second)
    return place / "model"


@pytest.fixture
def model(taught: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(taught, tmp_path / "model"))


def test_each_folder_is_a_task_and_the_originals_are_not_needed(model: Path) -> None:
    learner = drcil.load(model, device="cpu")
    assert learner.classes == (*sorted(STREAM[0].classes), *sorted(STREAM[1].classes)) and learner.sizes == (2, 2)
    usage = learner.model.usage
    assert usage is not None and usage.images == (22,) * 4 and usage.held == (2,) * 4 and len(usage.changes) == 2
    assert len(learner.memory.labels) == 20, "its images are in the model"
    assert (current_version(model) / "README.md").read_text().startswith("---\nlibrary_name: drcil\n")


def test_it_tells_what_it_knows(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = folder(tmp_path / "more", 2)
    assert main(["learn", str(model), str(more), *SMALL]) == 0
    said = capsys.readouterr().out
    assert "knows 6 classes, 2 of them new" in said and "held-out images" in said and "calibration error" in said
    assert not (model / "learning").exists()
    assert main(["predict", str(model), str(more), "--device", "cpu"]) == 0


@pytest.mark.parametrize("known", ["refuse", "skip"])
def test_classes_that_it_knows_are_refused_or_left_out(
    known: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed, before = folder(tmp_path / "mixed", 1, 2), current_version(model)
    code = main(["learn", str(model), str(mixed), "--known", known, *SMALL, "--json", "--quiet"])
    out, err = capsys.readouterr()
    if known == "refuse":
        assert code == 2 and "already; --known skip leaves known classes out" in err
        assert current_version(model) == before
    else:
        assert code == 0 and json.loads(out)["new"] == sorted(STREAM[2].classes)


def test_nothing_new_is_said_and_changes_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = current_version(model)
    assert main(["learn", str(model), str(folder(tmp_path / "again", 0)), "--known", "skip", *SMALL]) == 0
    assert "nothing new to learn" in capsys.readouterr().out and current_version(model) == before


def learn(model: Path, images: Path, *options: str) -> None:
    assert main(["learn", str(model), str(images), *SMALL, "--quiet", *options]) == 0


@pytest.mark.slow
def test_killed_at_any_moment_it_is_the_old_model_and_goes_on(model: Path, tmp_path: Path) -> None:
    """Before every fifth of its steps on the disk, each time further on."""
    more, whole = folder(tmp_path / "more", 2), Path(shutil.copytree(model, tmp_path / "whole"))
    before = drcil.load(model, device="cpu").classes
    learn(whole, more)
    for step in itertools.count(1, 5):
        killed = killed_before(step, learn, model, more)
        now = drcil.load(model, device="cpu")
        assert now.classes in (before, (*before, *sorted(STREAM[2].classes)))
        if now.classes != before:
            break
        assert killed
    assert step > 10, step
    learn(model, more, "--known", "skip")
    states = [drcil.load(place, device="cpu").method.state().tensors for place in (whole, model)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not list((model / "learning").glob("*"))


def test_interrupted_it_says_how_to_go_on_and_starts_afresh_with_other_images(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = folder(tmp_path / "more", 2)
    with monkeypatch.context() as patch:
        patch.setattr("drcil.updates.add_version", stop)
        assert main(["learn", str(model), str(more), *SMALL, "--quiet"]) == 130
    assert "the same command resumes" in capsys.readouterr().err
    (begun,) = (model / "learning").iterdir()
    next((more / STREAM[2].classes[0]).iterdir()).unlink()
    with monkeypatch.context() as patch:
        patch.setattr("drcil.updates.add_version", stop)
        assert main(["learn", str(model), str(more), *SMALL, "--quiet"]) == 130
    assert [place.name for place in (model / "learning").iterdir()] != [begun.name]
    assert main(["learn", str(model), str(more), *SMALL, "--quiet"]) == 0
    assert len(drcil.load(model, device="cpu").classes) == 6


def test_interrupted_when_all_is_learnt_it_says_that_nothing_is_left_to_do(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = folder(tmp_path / "more", 2)
    monkeypatch.setattr("drcil.updates.LearnResult", stop)
    assert main(["learn", str(model), str(more), *SMALL, "--quiet"]) == 130
    assert "had learnt all of it; nothing is left to do" in capsys.readouterr().err
    assert len(drcil.load(model, device="cpu").classes) == 6


@pytest.mark.parametrize("begun", [True, False])
def test_interrupted_before_the_first_snapshot_it_says_that_it_begins_anew(
    begun: bool, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more, place = folder(tmp_path / "more", 2), model if begun else tmp_path / "new"
    monkeypatch.setattr("drcil.train.progress.showing", stop)
    assert main(["learn", str(place), str(more), *([] if begun else OPTIONS), *SMALL]) == 130
    assert "stopped before anything was kept; the same command begins anew" in capsys.readouterr().err
    assert place.exists() == begun and not (place / "learning").exists()


def test_a_place_where_nothing_was_learnt_goes_before_another_process_may_enter_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, held = tmp_path / "new", []
    unlink = Path.unlink

    def look(path: Path, missing_ok: bool = False) -> None:
        if path == place / LOCK:
            # This process never refuses itself: another one is asked.
            program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
            held.append(
                subprocess.run([sys.executable, "-c", program, str(path)], stderr=subprocess.DEVNULL).returncode
            )
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    (tmp_path / "empty").mkdir()
    assert main(["learn", str(place), str(tmp_path / "empty"), *SMALL]) == 2
    assert held == [1] and not place.exists()


def test_what_was_stopped_goes_on_under_the_same_options_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(*options: str) -> tuple[list[str], int]:
        """The steps that learning takes until it is stopped before it is written, and where these are kept."""
        steps: list[Event] = []

        def listening(*given: object) -> AbstractContextManager[Listener]:
            return nullcontext(lambda event: steps.append(event) if isinstance(event, StepDone) else None)

        with monkeypatch.context() as patch:
            patch.setattr("drcil.train.progress.showing", listening)
            patch.setattr("drcil.updates.add_version", stop)
            assert main(["learn", str(tmp_path / "model"), str(first), *OPTIONS, *QUICK, *options, *SMALL]) == 130
        return [place.name for place in (tmp_path / "model" / "learning").iterdir()], len(steps)

    first = folder(tmp_path / "first", 0)
    kept, steps = begun()
    assert len(kept) == 1 and steps
    assert begun() == (kept, 0), "all of it was learnt before"
    for options in (["--augment", "none"], ["--seed", "1"], ["--set", "first.momentum=0.8"]):
        other, again = begun(*options)
        assert len(other) == 1 and other != kept and again == steps, options


def test_a_file_that_is_no_image_is_named_and_left_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = folder(tmp_path / "more", 2)
    (more / STREAM[2].classes[0] / "broken.jpg").write_bytes(b"no picture")
    assert main(["learn", str(model), str(more), *SMALL, "--quiet"]) == 0
    assert "broken.jpg cannot be read as an image and was left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--method", "icarl"], "--method is only for a new model"),
        (["--image-size", "16"], "--image-size is only for a new model"),
        (["--set", "first.epochs=3"], "--set is only for a new model"),
        (["--epochs-scale", "0.5"], "--epochs-scale is only for a new model"),
        (["--known", "forget"], "unknown --known 'forget'"),
    ],
)
def test_what_a_model_has_from_its_beginning_stays(
    arguments: list[str], told: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learn", str(model), str(folder(tmp_path / "more", 2)), *arguments, *SMALL]) == 2
    assert told in capsys.readouterr().err


def test_what_is_no_model_is_left_alone(taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more, place = folder(tmp_path / "more", 2), tmp_path / "place"
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    assert main(["learn", str(place), str(more), *SMALL]) == 2
    assert "is not a model that can be taught: it contains 'thesis.txt'" in capsys.readouterr().err
    assert main(["learn", str(tmp_path / "new"), str(tmp_path / "nowhere"), *SMALL]) == 2
    assert "there is no folder and no CSV file" in capsys.readouterr().err
    assert main(["learn", str(tmp_path / "new"), str(more), "--method", "icrl", *SMALL]) == 2
    assert "unknown method 'icrl'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert [file.name for file in place.iterdir()] == ["thesis.txt"]
    assert len(list((taught / VERSIONS).iterdir())) == 2


def test_a_class_takes_another_name_and_the_change_can_be_undone(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, before = sorted(STREAM[0].classes)[0], drcil.load(model, device="cpu")
    assert main(["rename", str(model), first, "zéro"]) == 0
    renamed = drcil.load(model, device="cpu")
    assert renamed.classes[0] == "zéro" and renamed.classes[1:] == before.classes[1:]
    assert renamed.model.usage is not None and renamed.model.usage.changes[-1].classes == (first, "zéro")
    state, other = renamed.method.state().tensors, before.method.state().tensors
    assert all(torch.equal(state[name], other[name]) for name in state)
    places = [place / "exemplars" for place in sorted((model / VERSIONS).iterdir())]
    files = [{file.name for file in place.iterdir()} for place in places]
    assert files[-1] == files[-2] and all(os.path.samefile(places[-1] / one, places[-2] / one) for one in files[-1])
    assert renamed.memory.labels.tolist() == before.memory.labels.tolist()
    assert main(["undo", str(model)]) == 0 and main(["undo", str(model)]) == 0
    assert drcil.load(model, device="cpu").classes == before.classes[:2]
    assert main(["undo", str(model)]) == 2
    assert "no earlier version of it is kept" in capsys.readouterr().err


def test_another_name_needs_none_of_the_images(model: Path) -> None:
    for picture in (current_version(model) / "exemplars").iterdir():
        picture.unlink()
    assert main(["rename", str(model), sorted(STREAM[0].classes)[0], "zéro"]) == 0
    assert drcil.load(model, device="cpu").classes[0] == "zéro"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["rename", "MODEL", "cat", "dog"], "unknown class 'cat'"),
        (["rename", "MODEL", "2", "4"], "there is a class '4' already"),
        (["rename", "nowhere", "2", "4"], "is not a model that can be changed: there is no such directory"),
        (["undo", "."], "it was not made by 'drcil learn'"),
        (["info", "nowhere"], "is not a model: there is no such directory"),
    ],
)
def test_changes_that_cannot_be_made_are_told(
    arguments: list[str], told: str, taught: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(taught) if word == "MODEL" else word for word in arguments]) == 2
    assert told in capsys.readouterr().err
    assert len(list((taught / VERSIONS).iterdir())) == 2


def test_a_model_tells_of_itself(taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "gallery.html"
    assert main(["info", str(taught), "--gallery", str(page)]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("replay, 4 classes in 2 tasks", "resnet-digits", "calibrated on 8", "learn "))
    assert f"written to {page}: the images it remembers" in said
    text = page.read_text()
    assert text.count("<img ") == 20 and text.count("<h2>") == 4 and "http" not in text
    assert main(["info", str(taught), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["exemplars"] for row in told["classes"]] == [5] * 4 and told["tasks"] == [2, 2]
    assert len(told["changes"]) == 2 and told["calibration"]["images"] == 8
    rejected = [row["rejected"] for row in told["thresholds"]]
    assert [row["threshold"] for row in told["thresholds"]] == [0.5, 0.6, 0.7, 0.8, 0.9] and rejected == sorted(
        rejected
    )
    assert "accuracy of the rest" in said and f"{100 * rejected[-1]:.1f} %" in said


def test_a_gallery_of_a_model_without_memory_says_that_it_is_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = drcil.Learner("finetune", epochs_scale=0.01, device="cpu")
    learner.learn(STREAM[0])
    learner.save(tmp_path / "model")
    page = tmp_path / "gallery.html"
    assert main(["info", str(tmp_path / "model"), "--gallery", str(page)]) == 0
    assert f"written to {page}: no images: the model remembers none" in capsys.readouterr().out
    assert page.exists()


def test_what_a_threshold_rejects_of_known_images_is_said(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = drcil.load(taught, device="cpu").model.calibration
    assert known is not None
    assert main(["predict", str(taught), str(folder(tmp_path / "more", 0, count=2)), "--threshold", "0.6"]) == 0
    told = capsys.readouterr().err
    assert f"of 8 held-out images of known classes, {100 * known.rejected(0.6):.1f} % are below it" in told
    assert main(["predict", str(taught), str(tmp_path / "more"), "--threshold", "0.655"]) == 0
    told = capsys.readouterr().err
    assert "threshold 0.655: " in told and f"{100 * known.rejected(0.66):.1f} % are below 0.66, the hundredth" in told
    assert main(["predict", str(taught), str(tmp_path / "more")]) == 0
    assert "held-out" not in capsys.readouterr().err


def test_a_run_goes_on_as_a_model_that_carries_its_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--epochs-scale", "0.01", "--device", "cpu", "--threads", "1", "--quiet"]
    run, model, more = tmp_path / "run", tmp_path / "model", folder(tmp_path / "more", 1)
    assert main(["run", "replay", "digits-b0-5", "--tasks", "1", "--memory", "20", "--out", str(run), *quick]) == 0
    before = drcil.load(run, device="cpu")
    learn = ["learn", str(model), str(more), "--from", str(run), *SMALL, "--quiet"]
    assert main(["learn", str(run), str(more), *SMALL]) == 2
    assert f"'drcil learn NEW FOLDER --from {run}' makes a model of it" in capsys.readouterr().err
    assert main([*learn, "--method", "icarl"]) == 2
    assert "--method is only for a new model" in capsys.readouterr().err
    assert main(learn) == 0
    assert main(learn) == 2
    assert "--from is only for a new model" in capsys.readouterr().err
    shutil.rmtree(run)
    learner = drcil.load(model, device="cpu")
    assert learner.classes == (*before.classes, *sorted(STREAM[1].classes)) and learner.sizes == (2, 2)
    # Its exemplars are in the model, none is a reference to the dataset.
    state = json.loads((current_version(model) / "state.json").read_text())
    assert sorted(part["kind"] for part in state["memory"]["source"]["parts"]) == ["embedded", "kept"]
    old = learner.memory.images
    assert old is not None and old.counts(4).tolist() == [5] * 4
    usage = learner.model.usage
    assert usage is not None and usage.images == (0, 0, 22, 22) and usage.held == (0, 0, 2, 2)
    assert main(["learn", str(model), str(folder(tmp_path / "again", 0)), "--known", "refresh", *SMALL, "--quiet"]) == 0


def test_what_lies_in_a_class_and_is_no_image_by_its_name_is_told(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = folder(tmp_path / "more", 2)
    inside = more / sorted(STREAM[2].classes)[0]
    for number in range(3):
        (inside / f"IMG_{number}.HEIC").touch()
    assert main(["learn", str(model), str(more), *SMALL, "--quiet"]) == 0
    assert f"IMG_0.HEIC and 2 more were left out of {inside}" in capsys.readouterr().err


def test_a_model_among_its_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = folder(tmp_path / "images", 0)
    assert main(["learn", str(images / "model"), str(images), *OPTIONS, *QUICK, *SMALL]) == 2
    assert "would lie within" in capsys.readouterr().err and not (images / "model").exists()
    assert main(["learn", str(tmp_path / "a" / "b" / "model"), str(tmp_path / "nowhere"), *SMALL]) == 2
    assert not (tmp_path / "a").exists()


def test_a_first_lesson_that_was_stopped_is_no_model_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drcil.updates.add_version", stop)
    images, model = folder(tmp_path / "images", 0), str(tmp_path / "model")
    assert main(["learn", model, str(images), *OPTIONS, *QUICK, *SMALL, "--quiet"]) == 130
    capsys.readouterr()
    for verb in (["info", model], ["predict", model, str(images)]):
        assert main(verb) == 2
        assert "its first 'drcil learn' was interrupted; the same command resumes it" in capsys.readouterr().err


def test_names_are_lines_and_what_is_forgotten_is_forgotten_once(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = drcil.load(model, device="cpu").classes[:2]
    assert main(["rename", str(model), first, "a\nb"]) == 2
    assert "the new name is one line without control characters" in capsys.readouterr().err
    assert main(["rename", str(model), first, " cafe\u0301 "]) == 0
    assert main(["forget", str(model), second, second]) == 0
    learner = drcil.load(model, device="cpu")
    assert learner.classes[0] == "caf\u00e9" and second not in learner.classes
    assert learner.model.usage is not None and learner.model.usage.changes[-1].classes == (second,)

"""The learner: what a Python user holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from drcil import Learner, UserError
from drcil.data.image_set import ArraySource, ImageSet
from drcil.runs.execution import create_run
from drcil.runs.plan import complete
from drcil.settings import RunSettings
from drcil.streams.stream import Task, make_stream
from drcil.train.events import Event, StageDone, StepDone

pytestmark = pytest.mark.numerical

STREAM = make_stream("digits-b0-5")
SHORT: dict[str, Any] = {
    "epochs_scale": 0.04,
    "device": "cpu",
    "settings": {"first.batch_size": 64, "later.batch_size": 64},
}


def make_learner(method: str = "icarl", **options: Any) -> Learner:
    return Learner(method, **{**SHORT, **options})


def arrays(images: ImageSet) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Pictures as a user has them: (N, H, W)."""
    return images.read()[:, 0].numpy()


def names(task: Task) -> list[str]:
    return [STREAM.classes[label] for label in task.new.labels]


def assert_same_state(one: Learner, other: Learner) -> None:
    first, second = one.method.state(), other.method.state()
    assert first.description == second.description
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor, second.tensors[name]), name
    assert np.array_equal(one.memory.labels, other.memory.labels)
    assert (one.sizes, one.classes) == (other.sizes, other.classes)


@pytest.fixture(scope="module")
def taught() -> Learner:
    """A learner of two tasks."""
    learner = make_learner(epochs_scale=0.2)
    learner.learn(STREAM[0])
    learner.learn(STREAM[1])
    return learner


def test_it_learns_task_after_task(taught: Learner) -> None:
    assert taught.classes == ("4", "2", "7", "6")
    assert taught.sizes == (2, 2)
    # Seeds 0 to 4: 97.9 ± 1.5, by the classifier 88.7 ± 6.6; 50 is to know the newest task alone.
    assert taught.evaluate(STREAM[1].test) > 85
    assert list(taught.readouts()) == ["nme", "classifier"]
    assert taught.evaluate(STREAM[1].test, readout="classifier") > 60


def test_predictions_are_named_and_agree_with_the_evaluation(taught: Learner) -> None:
    test = STREAM[1].test
    predictions = taught.predict(arrays(test), top=2)
    truth = [STREAM.classes[label] for label in test.labels]
    right = [prediction.label == name for prediction, name in zip(predictions, truth, strict=True)]
    assert 100 * np.mean(right) == pytest.approx(taught.evaluate(test))
    assert taught.evaluate(arrays(test), truth) == pytest.approx(taught.evaluate(test))
    for prediction in predictions:
        assert len(set(prediction.classes)) == 2
        assert prediction.probabilities[0] >= prediction.probabilities[1]
    assert len(taught.predict(arrays(test), top=99)[0].classes) == 4


def test_one_picture_and_one_path_are_enough(taught: Learner, tmp_path: Path) -> None:
    pixels = arrays(STREAM[1].test)[:1]
    Image.fromarray(pixels[0]).save(tmp_path / "digit.png")
    expected = taught.predict(pixels)
    assert taught.predict([Image.fromarray(pixels[0])]) == expected
    assert taught.predict(tmp_path / "digit.png") == expected
    assert taught.predict(str(tmp_path / "digit.png")) == expected


@pytest.mark.parametrize("form", ["array", "pictures", "tensor"])
def test_own_images_in_any_form_become_tasks(form: str) -> None:
    learner = make_learner(epochs_scale=0.1, memory="12")
    for task in (STREAM[0], STREAM[1]):
        pixels = arrays(task.new)
        images: Any = {
            "array": pixels,
            "pictures": [Image.fromarray(picture) for picture in pixels],
            "tensor": torch.from_numpy(pixels)[:, None],
        }[form]
        learner.learn(images, names(task))
    assert set(learner.classes[:2]) == {"4", "2"}
    assert set(learner.classes[2:]) == {"7", "6"}
    test = STREAM[1].test
    # Seeds 0 to 4: 94.2 ± 2.1; 50 is to know the newest task alone.
    assert learner.evaluate(arrays(test), [STREAM.classes[label] for label in test.labels]) > 80
    kept = learner.memory.images
    assert kept is not None
    assert len(kept) == len(kept.source) == 12, "nothing is kept but the exemplars"
    assert isinstance(kept.source, ArraySource)


def test_a_stream_that_was_loaded_again_makes_no_difference() -> None:
    one, other = make_learner(), make_learner()
    for number in (0, 1):
        one.learn(STREAM[number])
        other.learn(make_stream("digits-b0-5")[number])
    assert_same_state(one, other)
    assert np.array_equal(one.memory.rows, other.memory.rows)


class Stop(Exception):
    """Raised out of the middle of a task."""


@pytest.mark.parametrize("kind", [StepDone, StageDone])
def test_an_interrupted_task_leaves_the_learner_as_it_was(kind: type) -> None:
    armed = False

    def listener(event: Event) -> None:
        if armed and isinstance(event, kind):
            raise Stop

    learner, calm = make_learner(listener=listener), make_learner()
    for each in (learner, calm):
        each.learn(STREAM[0])
    armed = True
    with pytest.raises(Stop):
        learner.learn(STREAM[1])
    assert_same_state(learner, calm)
    armed = False
    for each in (learner, calm):
        each.learn(STREAM[1])
    assert_same_state(learner, calm)


def test_what_cannot_be_learnt_is_refused_and_changes_nothing(taught: Learner) -> None:
    with pytest.raises(UserError, match="the next task to learn is number 3, not 2"):
        taught.learn(STREAM[1])
    with pytest.raises(UserError, match="class '6' has already been learnt; a task brings classes that are new"):
        taught.learn(arrays(STREAM[1].new), names(STREAM[1]))
    with pytest.raises(UserError, match=r"stream whose earlier tasks have 4, 2 classes, .* learnt tasks of 2, 2"):
        taught.learn(make_stream("digits-4/2")[2])
    with pytest.raises(UserError, match=r"images of 1 x 4 x 4 .*, but the learner was made for 1 x 8 x 8"):
        taught.learn(make_stream("digits-b0-5", image_size=4)[2])
    with pytest.raises(UserError, match="every image needs one class name, but 3 images came with 2 names"):
        taught.learn(arrays(STREAM[2].new)[:3], ["a", "b"])
    with pytest.raises(UserError, match="images need class names"):
        taught.learn(arrays(STREAM[2].new))
    assert taught.sizes == (2, 2)
    assert taught.evaluate(STREAM[1].test) > 85


def test_what_cannot_be_answered_is_refused(taught: Learner) -> None:
    with pytest.raises(UserError, match="unknown readout 'boosted'; known: classifier, nme"):
        taught.evaluate(STREAM[1].test, readout="boosted")
    with pytest.raises(UserError, match="class '9' has not been learnt; known: 4, 2, 7, 6"):
        taught.evaluate(arrays(STREAM[1].test)[:1], ["9"])
    with pytest.raises(UserError, match="at least one image"):
        taught.evaluate(STREAM[1].test.subset([]))
    with pytest.raises(UserError, match="top must be a whole number from 1 to 2147483647, not 0"):
        taught.predict(arrays(STREAM[1].test), top=0)
    questions: tuple[Callable[[Learner], object], ...] = (
        lambda new: new.predict("x.png"),
        lambda new: new.evaluate(STREAM[0].test),
        lambda new: new.save("x"),
    )
    for ask in questions:
        with pytest.raises(UserError, match=r"there is nothing to .* yet: the learner has not learnt a task"):
            ask(make_learner())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "icrl"}, "unknown method 'icrl'; did you mean 'icarl'"),
        ({"epochs_scale": 0}, "epochs_scale must be a number above 0 and at most 1000, not 0.0"),
        ({"epochs_scale": -1.5}, "epochs_scale must be a number above 0 and at most 1000, not -1.5"),
        ({"epochs_scale": float("nan")}, "epochs_scale must be a number above 0 and at most 1000, not nan"),
        ({"epochs_scale": float("inf")}, "epochs_scale must be a number above 0 and at most 1000, not inf"),
        ({"memory": "lots"}, "memory cannot be 'lots': give a total"),
        ({"method": "finetune", "memory": "5"}, "a memory of 'none' by definition, so a memory of '5' is not possible"),
        ({"method": "joint", "memory": "none"}, "a memory of 'all' by definition"),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda, mps, not 'tpu'"),
        ({"workers": -1}, "workers must be a whole number from 0 to 256, not -1"),
        ({"colour": "red"}, "'colour' is not known"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_learner(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"backbone": "resnet9000"}, "unknown backbone 'resnet9000'"),
        ({"augment": "psychedelic"}, "unknown augmentation 'psychedelic'"),
        ({"settings": {"later.epochs": 0}}, "'later.epochs' cannot be 0"),
        ({"memory": "none"}, "'icarl' needs an exemplar of every class, but a memory of 'none' has none for each of 2"),
        ({"memory": "1"}, "but a memory of '1' has none for each of 2 classes; give a memory of at least 2"),
    ],
)
def test_what_depends_on_data_is_checked_before_training(options: dict[str, Any], sentence: str) -> None:
    events: list[Event] = []
    learner = make_learner(listener=events.append, **options)
    with pytest.raises(UserError, match=sentence):
        learner.learn(STREAM[0])
    assert not events


def test_a_run_knows_from_the_start_that_its_memory_will_not_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="memory of '9' has none for each of 10 classes; give a memory of at least 10"):
        create_run(complete(RunSettings(method="icarl", stream="digits-b0-5", memory="9")), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs_scale": 0.0}, "epochs_scale must be a number above 0 and at most 1000, not 0.0"),
        ({"epochs_scale": float("inf")}, "epochs_scale must be a number .*, not inf"),
        ({"seed": -1}, "seed must be a whole number from 0 to .*, not -1"),
        ({"tasks": 0}, "tasks must be a whole number from 1 to .*, not 0"),
        ({"engine": {"workers": -1}}, "workers must be a whole number from 0 to 256, not -1"),
        ({"workers": -1}, "workers must be a whole number from 0 to 256, not -1"),
        ({"colour": "red"}, "'colour' is not known"),
    ],
)
def test_options_of_a_run_are_checked_too(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        complete(RunSettings.parse({"method": "icarl", "stream": "digits-b0-5", **options}))


def test_images_that_cannot_be_named_settle_nothing() -> None:
    """What is refused says nothing about the data to come: neither its shape nor its recipe."""
    learner = make_learner("replay")
    with pytest.raises(UserError, match="3 images came with 1 names"):
        learner.learn(np.zeros((3, 32, 32, 3), np.uint8), ["a"])
    learner.learn(STREAM[0])
    assert str(learner.model.shape) == "1 x 8 x 8"


def test_images_of_another_shape_are_refused_by_those_who_look(taught: Learner) -> None:
    small = make_stream("digits-b0-5", image_size=4)[1].test
    for look in (lambda: taught.predict(small.source), lambda: taught.evaluate(small), lambda: taught.rank(small)):
        with pytest.raises(UserError, match=r"the images are of 1 x 4 x 4 .*, but the model takes 1 x 8 x 8"):
            look()

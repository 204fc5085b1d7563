"""What a model that learnt a user's own images knows of itself: held-out images, accuracy, calibration, history."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import drcil
from drcil import Learner, UserError
from drcil.data.image_set import ImageSet
from drcil.models.calibration import calibrate
from drcil.streams.stream import make_stream

pytestmark = pytest.mark.numerical

STREAM = make_stream("digits-b0-5")


def own(task: int) -> tuple[np.ndarray, list[str]]:
    """A task's images as a user has them: an array, and a name for each."""
    images: ImageSet = STREAM[task].new
    names = [STREAM[task].classes[label - STREAM[task].old] for label in images.labels.tolist()]
    return images.read()[:, 0].numpy(), names


@pytest.fixture(scope="module")
def taught() -> Learner:
    learner = Learner("replay", epochs_scale=0.15, device="cpu")
    learner.learn(*own(0), validation=0.2)
    learner.learn(*own(1), validation=0.1)
    return learner


def test_a_share_of_every_class_is_held_out_and_not_learnt(taught: Learner) -> None:
    model = taught.model
    assert model.usage is not None and model.held.images is not None
    whole = [own(task)[1].count(name) for task in (0, 1) for name in STREAM[task].classes]
    expected = [round(count * share) for count, share in zip(whole, (0.2, 0.2, 0.1, 0.1), strict=True)]
    assert list(model.usage.held) == expected == model.held.images.counts(4).tolist()
    assert list(model.usage.images) == [count - held for count, held in zip(whole, expected, strict=True)]


def test_copies_are_taken_once_so_that_none_is_both_learnt_and_held_out(taught: Learner) -> None:
    pixels, names = own(2)
    twice = np.concatenate([pixels, pixels[::-1]]), [*names, *names[::-1]]
    with pytest.warns(UserWarning, match=f"copies of other images .* are left out: {len(names)}$"):
        task = taught.user_task(*twice, 0.3)
    assert task.validation is not None and len(task.new) + len(task.validation) == len(names)
    alone = taught.user_task(pixels, names, 0.3)
    assert task.new.rows.tolist() == alone.new.rows.tolist(), "as if there were no copies"
    # The same image as one of two classes is a contradiction that is the user's to solve.
    assert len(taught.user_task(pixels[[0, 0]], ["a", "b"]).new) == 2


def test_accuracy_by_class_and_calibration_are_those_of_the_held_out_images(taught: Learner) -> None:
    usage, held = taught.model.usage, taught.model.held.images
    assert usage is not None and usage.calibration is not None and held is not None
    right = taught.rank(held, 1)["classifier"].classes[:, 0].numpy() == held.labels
    assert list(usage.accuracy) == pytest.approx([100 * right[held.labels == label].mean() for label in range(4)])
    assert np.mean(right) * 100 == pytest.approx(taught.evaluate(held))
    pixels = held.read()[:, 0].numpy()
    scores = taught.predictor().scores(held)
    expected = (scores / usage.calibration.temperature).softmax(dim=1)
    assert torch.allclose(torch.from_numpy(taught.predictor().probabilities(pixels)), expected, atol=1e-5)
    # What is said of a threshold comes from temperatures that were fitted to other images.
    best = calibrate(scores, torch.from_numpy(held.labels)).probabilities.max(dim=1).values.numpy()
    for threshold in (0.0, 0.3, 0.6, 0.9, 1.0):
        assert usage.calibration.rejected(threshold) == pytest.approx(np.mean(best < threshold), abs=1e-6)
        rest = right[best >= threshold]
        assert usage.calibration.accuracy(threshold) == (pytest.approx(100 * rest.mean()) if len(rest) else None)


def test_what_was_learnt_is_remembered(taught: Learner) -> None:
    assert taught.model.usage is not None
    assert [(one.what, one.classes) for one in taught.model.usage.changes] == [
        ("learn", STREAM[task].classes) for task in (0, 1)
    ]


def test_all_of_it_is_saved_with_the_model(taught: Learner, tmp_path: Path) -> None:
    taught.save(tmp_path / "model")
    again = drcil.load(tmp_path / "model", device="cpu")
    assert again.model.usage == taught.model.usage
    assert again.predict(own(0)[0][:5], top=3) == taught.predict(own(0)[0][:5], top=3)
    again.learn(*own(2), validation=0.1)
    usage = again.model.usage
    assert usage is not None and len(usage.changes) == 3 and min(usage.held) > 0
    assert all(accuracy is not None for accuracy in usage.accuracy), "old classes are measured again"


def test_a_few_images_are_all_learnt_and_nothing_is_calibrated() -> None:
    pixels, names = own(0)
    some = [place for name in set(names) for place in [i for i, one in enumerate(names) if one == name][:19]]
    learner = Learner("replay", epochs_scale=0.02, device="cpu")
    learner.learn(pixels[some], [names[place] for place in some], validation=0.5)
    usage = learner.model.usage
    assert usage is not None and usage.calibration is None and usage.images == (19, 19)
    assert (usage.held, usage.accuracy, learner.model.temperature) == ((0, 0), (None, None), 1.0)


def test_what_fails_while_it_is_measured_leaves_the_learner_as_it_was(
    taught: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught.save(tmp_path / "model")
    learner = drcil.load(tmp_path / "model", device="cpu")
    before = learner.model.usage, learner.sizes, learner.classes
    answer = learner.predict(own(0)[0][:5])

    def fail(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("drcil.learner.update_usage", fail)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(*own(2), validation=0.1)
    assert (learner.model.usage, learner.sizes, learner.classes) == before
    assert learner.predict(own(0)[0][:5]) == answer


def test_a_task_of_a_stream_takes_no_share_for_validation() -> None:
    with pytest.raises(UserError, match="has images for validation of its own"):
        Learner("replay").learn(STREAM[0], validation=0.1)
    with pytest.raises(UserError, match="validation must be a number"):
        Learner("replay").learn(*own(0), validation=1.0)

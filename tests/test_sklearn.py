"""The estimator of scikit-learn: its own checks, and that it is the learner behind it."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

import drcil
from drcil.sklearn import IncrementalClassifier

pytestmark = pytest.mark.numerical

Array = npt.NDArray[Any]
DIGITS = load_digits()
BRIEF: dict[str, Any] = {"method": "replay", "epochs_scale": 0.05, "augment": "none"}
CHECKED = IncrementalClassifier(**BRIEF, image_shape="pad")
"""What the checks are about: they train on tables of any width."""


def digits(*labels: int, each: int = 40) -> tuple[Array, Array]:
    """Some images of these digits, as rows."""
    chosen = np.concatenate([np.flatnonzero(DIGITS.target == label)[:each] for label in labels])
    return DIGITS.data[chosen], DIGITS.target[chosen]


@pytest.fixture(scope="module")
def classifier() -> IncrementalClassifier:
    """It has learnt 7 and 3, and then 5 and 1."""
    learning = IncrementalClassifier(**BRIEF).partial_fit(*digits(7, 3))
    return learning.partial_fit(*digits(5, 1))


@pytest.mark.slow
@parametrize_with_checks([CHECKED])  # type: ignore[untyped-decorator]
def test_all_checks_of_scikit_learn(estimator: IncrementalClassifier, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "name",
    [
        "check_no_attributes_set_in_init",
        "check_fit_score_takes_y",
        "check_estimators_unfitted",
        "check_dict_unchanged",
        "check_estimators_pickle",
        "check_estimators_nan_inf",
        "check_classifiers_classes",
        "check_estimators_partial_fit_n_features",
        "check_methods_subset_invariance",
        "check_fit_idempotent",
    ],
)
def test_some_checks_of_scikit_learn(name: str) -> None:
    getattr(estimator_checks, name)(type(CHECKED).__name__, clone(CHECKED))


class TestLearning:
    def test_every_partial_fit_is_a_task(self, classifier: IncrementalClassifier) -> None:
        assert classifier.learner_.sizes == (2, 2)
        assert classifier.classes_.tolist() == [1, 3, 5, 7]
        assert classifier.n_features_in_ == 64

    def test_columns_are_the_sorted_classes(self, classifier: IncrementalClassifier) -> None:
        rows, labels = digits(1, 3, 5, 7, each=20)
        likely = classifier.predict_proba(rows)
        assert likely.shape == (80, 4) and np.allclose(likely.sum(axis=1), 1)
        assert (classifier.predict(rows) == classifier.classes_[likely.argmax(axis=1)]).all()
        assert classifier.score(rows, labels) > 0.6, "chance is 0.25; seeds 0 to 4: 0.93 ± 0.1"

    def test_it_is_the_learner(self, classifier: IncrementalClassifier) -> None:
        learner = drcil.Learner(**BRIEF)
        for labels in ((7, 3), (5, 1)):
            rows, targets = digits(*labels)
            learner.learn(np.rint(rows * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8), targets)
        rows, _ = digits(1, 3, 5, 7)
        pixels = np.rint(rows * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
        expected = [int(found.label) for found in learner.predict(pixels)]
        assert classifier.predict(rows).tolist() == expected

    def test_images_and_rows_are_the_same(self, classifier: IncrementalClassifier) -> None:
        rows, _ = digits(1, 7, each=5)
        expected = classifier.predict_proba(rows)
        for shape in ((10, 8, 8), (10, 8, 8, 1)):
            learnt = clone(classifier).fit(rows.reshape(shape), np.arange(10) // 5)
            assert learnt.image_shape_ == shape[1:] and learnt.n_features_in_ == 64
        assert (classifier.predict_proba(rows.reshape(10, 8, 8)) == expected).all()

    def test_more_of_known_classes_is_a_refreshment(self, classifier: IncrementalClassifier) -> None:
        rows, labels = digits(1, 7, 8, each=60)
        more = pickle.loads(pickle.dumps(classifier)).partial_fit(rows, labels)
        assert more.classes_.tolist() == [1, 3, 5, 7, 8] and more.learner_.sizes == (2, 2, 1)
        assert [change.what for change in more.learner_.model.usage.changes] == ["learn"] * 3 + ["refresh"]
        everything = digits(1, 3, 5, 7, 8)
        assert more.score(*everything) > 0.6, "chance is 0.2; seeds 0 to 4: 0.98 ± 0.01"

    def test_images_that_are_kept_already_change_nothing(self) -> None:
        kept = IncrementalClassifier(**BRIEF, memory="all").fit(*digits(0, 2, each=10))
        before = kept.predict_proba(DIGITS.data[:50])
        assert (kept.partial_fit(*digits(0, 2, each=10)).predict_proba(DIGITS.data[:50]) == before).all()

    def test_methods_that_cannot_refresh_say_so(self) -> None:
        plain = IncrementalClassifier("finetune", epochs_scale=0.01).fit(*digits(0, 2, each=10))
        with pytest.raises(drcil.UserError, match="finetune"):
            plain.partial_fit(*digits(0, 1, each=10))
        assert plain.classes_.tolist() == [0, 2]

    def test_fit_begins_again(self, classifier: IncrementalClassifier) -> None:
        again = clone(classifier).fit(*digits(0, 2)).fit(*digits(8, 9))
        assert again.classes_.tolist() == [8, 9] and again.learner_.sizes == (2,)

    def test_classes_may_have_names(self) -> None:
        rows, labels = digits(0, 2)
        named = IncrementalClassifier(**BRIEF).fit(rows, np.where(labels == 0, "zero", "two"))
        assert named.classes_.tolist() == ["two", "zero"]
        assert set(named.predict(rows)) <= {"two", "zero"}

    def test_unpickled_it_learns_on_as_before(self, classifier: IncrementalClassifier) -> None:
        copies = [pickle.loads(pickle.dumps(classifier)) for _ in range(2)]
        for copy in copies:
            copy.partial_fit(*digits(0, 2))
        rows, _ = digits(*range(10), each=4)
        one, other = (copy.predict_proba(rows) for copy in copies)
        assert (one == other).all() and one.shape == (40, 6)
        assert classifier.learner_.sizes == (2, 2)


class TestAmongOthers:
    def test_settings_are_searched_through_a_pipeline(self) -> None:
        steps = make_pipeline(FunctionTransformer(lambda rows: rows / 16), IncrementalClassifier(**BRIEF))
        name = "incrementalclassifier__epochs_scale"
        search = GridSearchCV(steps, {name: [0.01, 0.05]}, cv=2).fit(*digits(0, 1, each=15))
        assert search.best_params_[name] in (0.01, 0.05) and search.best_score_ > 0.5

    def test_images_are_cross_validated(self) -> None:
        rows, labels = digits(0, 1, each=30)
        found = cross_val_score(IncrementalClassifier(**BRIEF), rows.reshape(-1, 8, 8), labels, cv=2)
        assert found.mean() > 0.5, "chance; seeds 0 to 4: 0.96 ± 0.05"


class TestPixels:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (np.array([[0, 17, 255, 3]], dtype=np.uint8), [0, 17, 255, 3]),
            (np.array([[0.0, 0.2, 0.6, 0.4]]), [0, 51, 153, 102]),
            (np.array([[False, True, True, False]]), [0, 255, 255, 0]),
            (np.array([[-1.0, 0.0, 1.0, 4.0]]), [0, 51, 102, 255]),
            (np.array([[5, 5, 5, 5]]), [0, 0, 0, 0]),
        ],
    )
    def test_black_and_white_follow_from_the_first_images(self, values: Array, expected: list[int]) -> None:
        classifier = IncrementalClassifier()
        classifier.pixel_range_ = classifier._range(values)
        assert classifier._pixels(values, (2, 2)).tolist() == [np.array(expected).reshape(2, 2).tolist()]

    def test_a_range_that_is_given_holds_and_values_beyond_are_cut_off(self) -> None:
        classifier = IncrementalClassifier(pixel_range=(0, 10))
        classifier.pixel_range_ = classifier._range(np.array([[0.0, 1.0]]))
        assert classifier._pixels(np.array([[-3.0, 2.0, 10.0, 99.0]]), (2, 2)).flatten().tolist() == [0, 51, 255, 255]


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "width", "sentence"),
        [
            ({}, 10, "rows of 10 values are no square images; give image_shape"),
            ({"image_shape": (2, 4)}, 10, r"image_shape=\(2, 4\) does not fit rows of 10 values"),
            ({"pixel_range": (1, 1)}, 16, "must have black below white"),
            ({"method": "replai"}, 16, "unknown method 'replai'; did you mean 'replay'"),
            ({"engine": {"devise": "cpu"}}, 16, "'devise' is not known"),
        ],
    )
    def test_what_does_not_fit(self, options: dict[str, Any], width: int, sentence: str) -> None:
        classifier = IncrementalClassifier(**{**BRIEF, **options})
        with pytest.raises((ValueError, drcil.UserError), match=sentence):
            classifier.fit(np.zeros((4, width)), [0, 0, 1, 1])

    def test_what_does_not_follow(self, classifier: IncrementalClassifier) -> None:
        rows, _ = digits(0, each=4)
        with pytest.raises(TypeError, match=r"label 'a' .* does not go with those known"):
            classifier.partial_fit(rows, ["a", "b", "a", "b"])
        with pytest.raises(ValueError, match="label '2' is not among the classes that were given"):
            classifier.partial_fit(rows, [2, 2, 0, 0], classes=[0, 1])
        with pytest.raises(ValueError, match=r"of shape \(4, 16\), but those learnt were of \(8, 8\)"):
            classifier.predict(rows.reshape(-1, 4, 16))
        assert classifier.classes_.tolist() == [1, 3, 5, 7]

    def test_a_fit_that_fails_changes_nothing(self, classifier: IncrementalClassifier) -> None:
        rows, labels = digits(7, 3, each=4)
        before, likely = dict(vars(classifier)), classifier.predict_proba(rows)
        classifier.method = "no such method"
        try:
            with pytest.raises(drcil.UserError, match="unknown method"):
                classifier.fit(rows[:, :36] * 10, labels)
        finally:
            classifier.method = before["method"]
        assert vars(classifier) == before
        np.testing.assert_array_equal(classifier.predict_proba(rows), likely)

    def test_nothing_is_predicted_before_it_has_learnt(self) -> None:
        with pytest.raises(NotFittedError):
            IncrementalClassifier().predict(digits(0)[0])

    def test_without_scikit_learn_it_says_how_to_install_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sklearn.base", None)
        monkeypatch.delitem(sys.modules, "drcil.sklearn")
        with pytest.raises(ImportError, match=r"pip install 'drcil\[sklearn\]'"):
            __import__("drcil.sklearn")


def test_names_may_come_as_objects_time_and_again() -> None:
    """As the columns of a table do."""
    classifier = IncrementalClassifier(**BRIEF)
    for numbers in ((0, 1), (2, 3), (1, 2)):
        rows, labels = digits(*numbers)
        classifier.partial_fit(rows, np.array([f"digit {label}" for label in labels], dtype=object))
    assert classifier.classes_.tolist() == [f"digit {number}" for number in range(4)]
    assert set(classifier.predict(digits(0, 3)[0])) <= set(classifier.classes_)

"""What a Python user gives by mistake: every public function answers nonsense with one sentence, and the right kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import drcil
from drcil import DynamicResidualHead, Learner, ResidualHead, UserError
from drcil.data.user_images import wrap_dataset
from drcil.experiments.tables import Report
from drcil.process import configure
from drcil.settings import EngineSettings, LearnerOptions, ModelSettings
from drcil.streams.stream import make_stream

STREAM = make_stream("digits-b0-5")
PIXELS = np.zeros((3, 8, 8), dtype=np.uint8)
PIXELS[1:] = 255


class Odd:
    """An object that nothing is made for."""


ODD: list[Any] = [
    None, True, -1, 0, 10**30, 1.5, -0.5, float("nan"), float("inf"), 1j, "", " ", "a", "no\nsuch", "x" * 5000, "\0",
    "\udcff", b"a", [], [1], [None], {}, {"a": 1}, set(), (), object(), Odd(), Odd, len, range(3), np.float32(1.5),
    np.zeros(0), np.zeros((2, 2)), np.array(["a"], dtype=object), np.datetime64("2000"), torch.zeros(2), torch.ones(()),
    Path("x" * 300), iter([1]),
]  # fmt: skip
"""One of every kind, and the edges of those that might be meant."""
odd = st.one_of(
    st.sampled_from(ODD),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=5),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@pytest.fixture(scope="module")
def taught() -> Learner:
    """A learner of one task."""
    learner = Learner("icarl", epochs_scale=0.01, device="cpu")
    learner.learn(STREAM[0])
    return learner


def answered(call: Callable[[], Any]) -> None:
    """It works, or it is refused in one sentence."""
    try:
        call()
    except UserError as error:
        said = str(error)
        assert said and "\n" not in said and len(said) < 3000, said


def refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as raised:
        call()
    assert "\n" not in str(raised.value)


LABELS: list[tuple[Any, str]] = [
    ("abc", "class names cannot be read from 'abc'"),
    (b"abc", "class names cannot be read from b'abc'"),
    ({"a": 1, "b": 2, "c": 3}, "cannot be read from a dict"),
    ({1, 2, 3}, "cannot be read from a set"),
    (iter("abc"), "cannot be read from a str_"),
    (7, "cannot be read from 7"),
    (np.array(7), "cannot be read from a"),
    (["a", "", "b"], "the class name of image 1 must not be empty"),
    (["a", " ", "b"], "the class name of image 1 must not be empty"),
    (["a", None, "b"], "the class name of image 1 cannot be None"),
    ([1, float("nan"), 2], "the class name of image 1 cannot be nan"),
    ([1.0, 2.0, 3.0], "the class name of image 0 cannot be 1.0"),
    (np.array([1.0, 2.0, 3.0]), "the class name of image 0 cannot be 1.0"),
    ([True, False, True], "the class name of image 0 cannot be True"),
    (["a", ["b"], "c"], "the class name of image 1 cannot be a list"),
    (np.zeros((3, 1), dtype=int), "the class name of image 0 cannot be a list"),
    (torch.zeros(3, 1, dtype=torch.long), "the class name of image 0 cannot be a list"),
    (["a", b"b", "c"], "the class name of image 1 cannot be b'b'"),
    (np.array(["a", object(), None], dtype=object), "the class name of image 1 cannot be an object"),
    (["a", "\udcff", "c"], "the class name of image 1 '.udcff' cannot be encoded"),
    (["a", "b"], "3 images came with 2 names"),
    (["a"] * 4, "3 images came with 4 names"),
    ([], "3 images came with 0 names"),
]


@pytest.mark.parametrize(("labels", "sentence"), LABELS, ids=[sentence[:40] for _, sentence in LABELS])
def test_labels_that_are_no_class_names_are_refused(labels: Any, sentence: str, taught: Learner) -> None:
    refused(lambda: Learner("icarl").learn(PIXELS, labels), sentence)
    refused(lambda: taught.evaluate(PIXELS, labels), sentence)


@pytest.mark.parametrize(
    "labels",
    [
        ["4", "2", "4"],
        ("4", "2", "4"),
        [4, 2, 4],
        np.array([4, 2, 4]),
        np.array(["4", "2", "4"]),
        np.array([4, "2", np.int64(4)], dtype=object),
        torch.tensor([4, 2, 4]),
        [torch.tensor(4), np.int32(2), "4"],
    ],
    ids=["strings", "tuple", "numbers", "array", "array of strings", "objects", "tensor", "mixture"],
)
def test_strings_and_whole_numbers_are_class_names_in_any_list(labels: Any, taught: Learner) -> None:
    assert taught.evaluate(PIXELS, labels) == taught.evaluate(PIXELS, ["4", "2", "4"])


def test_labels_beside_a_task_are_an_error(taught: Learner) -> None:
    refused(lambda: Learner("icarl").learn(STREAM[0], ["a"]), "a task of a stream has labels of its own")
    refused(lambda: taught.evaluate(STREAM[0].test, ["a"]), "has labels of its own")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Learner(None), "'method' is missing"),  # type: ignore[arg-type]
        (lambda: Learner("icarl", seed=-1), "seed must be a whole number from 0 to 9223372036854775807, not -1"),
        (lambda: Learner("icarl", seed=1.5), "seed must be a whole number .*, not 1.5"),  # type: ignore[arg-type]
        (lambda: Learner("icarl", seed="a"), "seed must be a whole number .*, not 'a'"),  # type: ignore[arg-type]
        (lambda: Learner("icarl", seed=True), "seed must be a whole number .*, not True"),
        (lambda: Learner("icarl", seed=2**63), "seed must be a whole number"),
        (lambda: Learner("icarl", epochs_scale="a"), "epochs_scale must be a number"),  # type: ignore[arg-type]
        (lambda: Learner("icarl", settings=[1]), "settings must be a table, not a list"),  # type: ignore[arg-type]
        (lambda: Learner("icarl", backbone=""), "backbone cannot be '': it is empty"),
        (lambda: Learner("icarl", augment=""), "augment cannot be '': it is empty"),
        (lambda: Learner("icarl", memory=-5), "memory cannot be -5: give a total"),
        (lambda: Learner("icarl", memory=1.5), "memory cannot be 1.5: give a total"),  # type: ignore[arg-type]
        (lambda: Learner("icarl", listener=5), "listener must be a function, not 5"),  # type: ignore[arg-type]
        (lambda: Learner("icarl", journal=5), "journal must be a SnapshotStore, not 5"),  # type: ignore[arg-type]
        (
            lambda: Learner("icarl", workers="many"),  # type: ignore[arg-type]
            "workers must be a whole number from 0 to 256, not 'many'",
        ),
        (lambda: Learner("icarl", eval_every=0), "eval_every must be a whole number from 1 to 1000000, not 0"),
        (lambda: make_stream(None), "the stream must be a string, not None"),  # type: ignore[arg-type]
        (lambda: make_stream("digits-b0-5", 5), "dataset must be a Dataset, not 5"),  # type: ignore[arg-type]
        (lambda: make_stream("digits-b0-5", memory=""), "memory '' is not a budget"),
        (lambda: make_stream("digits-b0-5", image_size=3), "image size must be a whole number from 4 to 4096, not 3"),
        (lambda: make_stream("digits-b0-5", order_seed=2**32), "the order seed must be"),
        (lambda: make_stream("digits-b0-5", order=[0.5] * 10), "a class in the order cannot be 0.5"),  # type: ignore
        (lambda: make_stream("digits-b0-5", order="0123456789"), "must be a list of class numbers"),
        (lambda: make_stream("digits-b0-" + "9" * 5000), "is not of the form"),
        (lambda: make_stream("digits-b0-5").task("a"), "must be a whole number from 1 to 5"),  # type: ignore[arg-type]
        (lambda: configure(0), "threads must be a whole number from 1 to"),
        (lambda: configure(100_000), "threads must be a whole number from 1 to"),
        (lambda: drcil.use_plugins(None), "the name of a plugin must be a string"),  # type: ignore[arg-type]
        (lambda: drcil.use_plugins(""), "the name of a plugin must not be empty"),
        (lambda: drcil.use_plugins("x" * 300 + ".py"), "there is no such file"),
        (lambda: wrap_dataset([(PIXELS[0], float("nan"))]), "the label of image 0 cannot be nan"),
        (lambda: wrap_dataset([(PIXELS[0], 0.5)]), "the label of image 0 cannot be 0.5"),
        (lambda: wrap_dataset([(PIXELS[0], 0)], size=100_000), "size must be a whole number from 4 to 4096"),
    ],
)
def test_wrong_arguments_are_told_at_once(call: Callable[[], Any], sentence: str) -> None:
    refused(call, sentence)


@pytest.mark.parametrize("top", [0, 1.5, "a", None, True])
def test_a_number_of_classes_to_predict_is_a_whole_number_above_zero(top: Any, taught: Learner) -> None:
    refused(lambda: taught.predict(PIXELS, top=top), "top must be a whole number from 1")


def test_the_keywords_of_a_learner_and_of_the_estimator_are_the_settings() -> None:
    model, engine = set(ModelSettings.model_fields), set(EngineSettings.model_fields)
    assert set(LearnerOptions.__annotations__) == model - {"method"} | engine
    pytest.importorskip("sklearn")
    from drcil.sklearn import IncrementalClassifier

    assert model - {"method", "seed"} <= set(inspect.signature(IncrementalClassifier).parameters)


def test_a_memory_may_be_a_number() -> None:
    learner = Learner("icarl", memory=5, epochs_scale=0.01, device="cpu")
    learner.learn(STREAM[0])
    assert str(learner.memory.budget) == "5" and len(learner.memory.rows) == 4


@pytest.mark.parametrize("head", [DynamicResidualHead, ResidualHead])
class TestHeads:
    @pytest.mark.parametrize("channels", [0, -1, 2**40])
    def test_a_width_out_of_bounds_is_a_value_error(self, head: type[ResidualHead], channels: int) -> None:
        with pytest.raises(ValueError, match="channels must be a whole number from 1 to"):
            head(channels)

    @pytest.mark.parametrize("channels", ["a", None, 1.5, [4], True])
    def test_a_width_that_is_no_whole_number_is_a_type_error(self, head: type[ResidualHead], channels: Any) -> None:
        with pytest.raises(TypeError, match="channels must be a whole number from 1 to"):
            head(channels)

    @pytest.mark.parametrize("option", ["branch", "fusion", "new_branch", "conv_init"])
    def test_options_are_names(self, head: type[ResidualHead], option: str) -> None:
        with pytest.raises(ValueError, match=r"unknown .* 'x'; known: "):
            head(4, **{option: "x"})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be one of"):
            head(4, **{option: ["x"]})  # type: ignore[arg-type]

    @pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3, 3), (2, 3, 5), (4,), (1, 2, 3, 4, 5), ()])
    @pytest.mark.parametrize("branch", ["bn", "conv"])
    def test_features_of_another_shape_are_a_value_error(
        self, head: type[ResidualHead], shape: tuple[int, ...], branch: Any
    ) -> None:
        made = head(4, branch)
        made.grow(2)
        with pytest.raises(ValueError, match=r"the features have 5 channels, but the head is for 4|a head reads maps"):
            made(torch.zeros(shape))

    @pytest.mark.parametrize("features", [None, "a", [1.0], np.zeros((2, 4)), torch.zeros(2, 4, dtype=torch.long)])
    def test_features_of_another_kind_are_a_type_error(self, head: type[ResidualHead], features: Any) -> None:
        made = head(4)
        made.grow(2)
        with pytest.raises(TypeError, match="features must be"):
            made(features)


CALLS: dict[str, Callable[[Any, Learner], Any]] = {
    "Learner": lambda value, taught: Learner(value),
    "Learner.backbone": lambda value, taught: Learner("icarl", backbone=value),
    "Learner.memory": lambda value, taught: Learner("icarl", memory=value),
    "Learner.augment": lambda value, taught: Learner("icarl", augment=value),
    "Learner.seed": lambda value, taught: Learner("icarl", seed=value),
    "Learner.epochs_scale": lambda value, taught: Learner("icarl", epochs_scale=value),
    "Learner.settings": lambda value, taught: Learner("icarl", settings=value),
    "Learner.listener": lambda value, taught: Learner("icarl", listener=value),
    "Learner.journal": lambda value, taught: Learner("icarl", journal=value),
    "Learner.device": lambda value, taught: Learner("icarl", device=value),
    "Learner.precision": lambda value, taught: Learner("icarl", precision=value),
    "Learner.workers": lambda value, taught: Learner("icarl", workers=value),
    "Learner.cache": lambda value, taught: Learner("icarl", cache=value),
    "learn": lambda value, taught: taught.learn(value),
    "learn.images": lambda value, taught: taught.learn(value, ["4", "2", "4"]),
    "learn.labels": lambda value, taught: taught.learn(PIXELS, value if isinstance(value, str | bytes) else "4"),
    "predict": lambda value, taught: taught.predict(value),
    "predict.top": lambda value, taught: taught.predict(PIXELS, top=value),
    "predict.readout": lambda value, taught: taught.predict(PIXELS, readout=value),
    "evaluate": lambda value, taught: taught.evaluate(value),
    "evaluate.images": lambda value, taught: taught.evaluate(value, ["4", "2", "4"]),
    "evaluate.labels": lambda value, taught: taught.evaluate(PIXELS, value),
    "rank": lambda value, taught: taught.rank(value),
    "rank.best": lambda value, taught: taught.rank(STREAM[0].test, value),
    "Predictor": lambda value, taught: drcil.Predictor(value, value, value, value),
    "load_predictor.device": lambda value, taught: drcil.load_predictor("nothing", device=value),
    "export": lambda value, taught: drcil.export(value, "model.onnx"),
    "export.file": lambda value, taught: drcil.export("nothing", value),
    "export.format": lambda value, taught: drcil.export("nothing", "model", format=value),
    "export.quantize": lambda value, taught: drcil.export("nothing", "model.onnx", quantize=value),
    "logger": lambda value, taught: drcil.logger(value, "logs"),
    "logger.directory": lambda value, taught: drcil.logger("csv", value),
    "stream": lambda value, taught: drcil.stream(value),
    "stream.dataset": lambda value, taught: drcil.stream("digits-b0-5", value),
    "stream.data_dir": lambda value, taught: drcil.stream("cifar100-b0-10", data_dir=value),
    "stream.image_size": lambda value, taught: drcil.stream("digits-b0-5", image_size=value),
    "stream.order_seed": lambda value, taught: drcil.stream("digits-b0-5", order_seed=value),
    "stream.order": lambda value, taught: drcil.stream("digits-b0-5", order=value),
    "stream.memory": lambda value, taught: drcil.stream("digits-b0-5", memory=value),
    "stream.validation": lambda value, taught: drcil.stream("digits-b0-5", validation=value),
    "DynamicResidualHead": lambda value, taught: DynamicResidualHead(value),
    "DynamicResidualHead.branch": lambda value, taught: DynamicResidualHead(4, branch=value),
    "ResidualHead.fusion": lambda value, taught: ResidualHead(4, fusion=value),
    "ResidualHead.new_branch": lambda value, taught: ResidualHead(4, new_branch=value),
    "ResidualHead.conv_init": lambda value, taught: ResidualHead(4, conv_init=value),
    "ResidualHead.grow": lambda value, taught: ResidualHead(4).grow(value),
    "run": lambda value, taught: drcil.run(value),
    "run.stream": lambda value, taught: drcil.run("replay", value),
    "run.tasks": lambda value, taught: drcil.run("no such method", tasks=value),
    "resume": lambda value, taught: drcil.resume(value),
    "compare": lambda value, taught: drcil.compare(value),
    "compare.streams": lambda value, taught: drcil.compare("replay", value),
    "compare.seeds": lambda value, taught: drcil.compare("no such method", seeds=value),
    "read": lambda value, taught: drcil.read(value),
    "write_report": lambda value, taught: drcil.write_report(Report("", ""), value),
    "wrap": lambda value, taught: wrap_dataset(value),
    "wrap.label": lambda value, taught: wrap_dataset([(PIXELS[0], value)]),
    "wrap.image": lambda value, taught: wrap_dataset([(value, 0)]),
    "wrap.classes": lambda value, taught: wrap_dataset([(PIXELS[0], 0)], classes=value),
    "wrap.size": lambda value, taught: wrap_dataset([(PIXELS[0], 0)], size=value),
    "wrap.channels": lambda value, taught: wrap_dataset([(PIXELS[0], 0)], channels=value),
}
"""Every public function and constructor with a value in the place of one argument."""
_EFFECTS = (
    "configure",
    "use_plugins",
    "load",
    "load_predictor",
    "load_exported",
    "Prediction",
    "Exported",
    "UserError",
)
"""What changes the process, reads a file, or only holds what it is given."""


def test_every_public_name_is_tried() -> None:
    tried = {name.partition(".")[0] for name in CALLS}
    assert set(drcil.__all__) <= tried | set(_EFFECTS)


@pytest.mark.parametrize("name", CALLS)
def test_one_of_every_kind_is_answered_in_a_sentence(
    name: str, taught: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ODD:
        answered(lambda value=value: CALLS[name](value, taught))  # type: ignore[misc]
    assert taught.classes == ("4", "2") and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=odd)
def test_whatever_is_given_is_answered_in_a_sentence(name: str, value: Any, taught: Learner) -> None:
    answered(lambda: CALLS[name](value, taught))

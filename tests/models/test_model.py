"""Models on disk: what is saved is what comes back, and what cannot be read is said in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import drcil
from drcil import Learner, UserError
from drcil.files import read_json, read_tensors
from drcil.runs.execution import create_run
from drcil.runs.plan import complete
from drcil.settings import EngineSettings, RunSettings
from drcil.streams.stream import make_stream
from support.model_edits import edit_state, edit_tensors

STREAM = make_stream("digits-b0-5")
PIXELS = [task.new.read()[:, 0].numpy() for task in STREAM]
NAMES = [[STREAM.classes[label] for label in task.new.labels] for task in STREAM]

PHOTOGRAPHS: dict[str, Any] = {"backbone": "resnet-digits", "memory": "8", "workers": 0, "epochs_scale": 0.005}
"""What pictures on disk, which take the recipes of photographs, are learnt with here."""
Teach = Callable[[Learner, int], None]


def make_learner(method: str = "icarl", **options: Any) -> Learner:
    settings = {"first.batch_size": 64, "later.batch_size": 64}
    return Learner(method, **{"epochs_scale": 0.03, "device": "cpu", "settings": settings, **options})


def teach_stream(learner: Learner, number: int) -> None:
    learner.learn(STREAM[number])


def teach_arrays(learner: Learner, number: int) -> None:
    learner.learn(PIXELS[number], NAMES[number])


@pytest.fixture
def teach_files(tmp_path: Path) -> Teach:
    """Pictures on disk, twelve of each class."""
    paths: list[list[Path]] = [[], [], []]
    for number, (pictures, names) in enumerate(zip(PIXELS[:3], NAMES[:3], strict=True)):
        for index, (picture, name) in enumerate(zip(pictures, names, strict=True)):
            if names[:index].count(name) < 12:
                paths[number].append(tmp_path / f"{number}-{name}-{index}.png")
                Image.fromarray(picture).resize((40, 40)).save(paths[number][-1])

    def teach(learner: Learner, number: int) -> None:
        learner.learn(paths[number], [path.name.split("-")[1] for path in paths[number]])

    return teach


def assert_same(one: Learner, other: Learner) -> None:
    first, second = one.method.state(), other.method.state()
    assert first.description == second.description
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor, second.tensors[name]), name
    for mine, others in ((one.memory.labels, other.memory.labels), (one.memory.rows, other.memory.rows)):
        assert np.array_equal(mine, others)
    kept, came = one.memory.images, other.memory.images
    assert kept is not None and came is not None
    assert torch.equal(kept.read(), came.read())
    assert (one.sizes, one.classes) == (other.sizes, other.classes)
    assert (one.model.shape, one.model.data) == (other.model.shape, other.model.data)
    assert one.predict(PIXELS[0], top=2) == other.predict(PIXELS[0], top=2)


@pytest.mark.parametrize("teach", [teach_stream, teach_arrays])
@pytest.mark.parametrize("method", ["icarl", "replay"])
def test_learning_on_after_loading_is_learning_on(method: str, teach: Teach, tmp_path: Path) -> None:
    """Bit for bit: weights, exemplars and answers, right after loading and a task later."""
    learner = make_learner(method, memory="15")
    teach(learner, 0)
    teach(learner, 1)
    learner.save(tmp_path / "model")
    loaded = drcil.load(tmp_path / "model", device="cpu")
    assert_same(learner, loaded)
    for each in (learner, loaded):
        teach(each, 2)
    assert_same(learner, loaded)
    loaded.save(tmp_path / "model")
    assert_same(learner, drcil.load(tmp_path / "model", device="cpu"))


def test_pictures_on_disk_are_referred_to_and_found_again(teach_files: Teach, tmp_path: Path) -> None:
    learner = make_learner(**PHOTOGRAPHS)
    for number in (0, 1):
        teach_files(learner, number)
    learner.save(tmp_path / "model")
    loaded = drcil.load(tmp_path / "model", device="cpu", workers=0)
    assert "pixels" not in read_tensors(tmp_path / "model" / "memory.safetensors")[0]
    assert_same(learner, loaded)
    for each in (learner, loaded):
        teach_files(each, 2)
    assert_same(learner, loaded)


def test_a_memory_of_both_kinds_keeps_each_in_its_way(teach_files: Teach, tmp_path: Path) -> None:
    learner = make_learner(**PHOTOGRAPHS)
    teach_files(learner, 0)
    learner.learn(PIXELS[1][::10], NAMES[1][::10])
    learner.save(tmp_path / "model")
    tensors, _ = read_tensors(tmp_path / "model" / "memory.safetensors")
    assert len(tensors["rows"]) == 8
    assert len(tensors["pixels"]) == 4
    assert_same(learner, drcil.load(tmp_path / "model", device="cpu", workers=0))
    assert len(learner.memory.images.sources) == 2  # type: ignore[union-attr]


def test_arrays_are_kept_as_pixels_and_datasets_by_name(tmp_path: Path) -> None:
    for teach, name in ((teach_stream, "stream"), (teach_arrays, "arrays")):
        learner = make_learner(memory="6")
        teach(learner, 0)
        learner.save(tmp_path / name)
    tensors, _ = read_tensors(tmp_path / "stream" / "memory.safetensors")
    assert tensors.keys() == {"rows", "labels", "digests"}
    source = read_json(tmp_path / "stream" / "state.json")["memory"]["source"]
    assert source == {"kind": "dataset", "name": "digits", "split": "train", "size": 8, "md5": None}
    tensors, _ = read_tensors(tmp_path / "arrays" / "memory.safetensors")
    assert tensors["pixels"].shape == (6, 1, 8, 8)
    assert read_json(tmp_path / "arrays" / "state.json")["memory"]["source"] == {"kind": "embedded"}


def test_the_description_tells_a_reader_what_the_model_is(tmp_path: Path) -> None:
    learner = make_learner(seed=5)
    teach_stream(learner, 0)
    teach_stream(learner, 1)
    learner.save(tmp_path / "model")
    state = json.loads((tmp_path / "model" / "state.json").read_text())
    assert state["format"] == 1
    assert state["method"] == "icarl"
    assert state["classes"] == ["4", "2", "7", "6"]
    assert state["tasks"] == [2, 2]
    assert state["images"] == {"channels": 1, "size": 8, "in_memory": True}
    assert state["readouts"] == ["nme", "classifier"]
    assert state["architecture"] == {
        "backbone": "resnet-digits",
        "channels_in": 1,
        "image_size": 8,
        "weights": None,
        "frozen": None,
    }
    assert (state["data"]["mean"], state["data"]["std"]) == ([0.3052], [0.376])
    assert state["seed"] == 5


def test_a_model_predicts_where_its_data_is_not_but_cannot_learn_on(teach_files: Teach, tmp_path: Path) -> None:
    learner = make_learner(**PHOTOGRAPHS)
    teach_files(learner, 0)
    learner.save(tmp_path / "model")
    expected = learner.predict(PIXELS[0][:5])
    for picture in tmp_path.glob("0-*.png"):
        picture.unlink()
    loaded = drcil.load(tmp_path / "model", device="cpu", workers=0)
    assert loaded.predict(PIXELS[0][:5]) == expected
    with pytest.raises(UserError, match=r"exemplars of .*model cannot be used: cannot read .*0-.*png: No such file"):
        teach_files(loaded, 1)


def test_a_task_of_a_run_is_a_model(tmp_path: Path) -> None:
    settings = complete(
        RunSettings(
            method="replay", stream="digits-b0-5", tasks=2, epochs_scale=0.03, engine=EngineSettings(device="cpu")
        )
    )
    run = create_run(settings, tmp_path / "run")
    run.train()
    learner = make_learner("replay", settings={})
    for number in (0, 1):
        teach_stream(learner, number)
    loaded = drcil.load(tmp_path / "run" / "tasks" / "02", device="cpu")
    assert_same(learner, loaded)
    for each in (learner, loaded):
        teach_stream(each, 2)
    assert_same(learner, loaded)


def test_loading_does_not_touch_the_global_generator(tmp_path: Path) -> None:
    learner = make_learner()
    teach_stream(learner, 0)
    learner.save(tmp_path / "model")
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    drcil.load(tmp_path / "model", device="cpu")
    assert torch.equal(torch.rand(2), expected)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    learner = make_learner()
    teach_stream(learner, 0)
    path = tmp_path_factory.mktemp("models") / "model"
    learner.save(path)
    return path


def _change(**entries: Any) -> Callable[[Path], None]:
    return lambda model: edit_state(model, lambda state: state.update(entries))


def _without(name: str) -> Callable[[Path], None]:
    return lambda model: edit_state(model, lambda state: state.pop(name))


def _misshape(model: Path) -> None:
    name = "net.head.classifier.weight"
    edit_tensors(model, "method.safetensors", lambda tensors: tensors.update({name: torch.zeros(3, 64)}))


def _lose_a_tensor(model: Path) -> None:
    edit_tensors(model, "method.safetensors", lambda tensors: tensors.pop("net.head.classifier.bias"))


def _tear(model: Path) -> None:
    (model / "state.json").write_text('{"format": 4,')


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_change(format=2), r"has model format 2; this version of drcil reads format 1"),
        (_change(method="icrl"), r"unknown method 'icrl'; did you mean 'icarl'"),
        (_change(settings={"first": 3}), r"state.json does not describe a model: 'first'"),
        (_change(tasks="two"), r"state.json does not describe a model: 'tasks' cannot be 'two'"),
        (_without("classes"), r"state.json does not describe a model: 'classes' is missing"),
        (
            lambda model: edit_state(model, lambda state: state["architecture"].update(image_size=16)),
            r"state.json does not describe a model: 'architecture' is not for 8 pixels, as 'images' have them",
        ),
        (lambda model: shutil.rmtree(model), r"is not a model: there is no such directory"),
        (lambda model: (model / "method.safetensors").unlink(), r"cannot read .*method.safetensors"),
        (_tear, r"state.json is not valid JSON"),
        (
            _misshape,
            r"does not fit .* state.json describes: 'head.classifier.weight' has shape \(3, 64\) instead of \(2, 64\)",
        ),
        (_lose_a_tensor, r"does not fit the model that state.json describes: 'head.classifier.bias' is missing"),
        (
            lambda model: edit_state(model, lambda state: state["parts"].update(net={"part": "gear"})),
            r"does not fit .*: unknown part 'gear'",
        ),
    ],
)
def test_what_is_not_a_model_is_said_in_one_sentence(
    spoil: Callable[[Path], None], sentence: str, saved: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(saved, model)
    spoil(model)
    with pytest.raises(UserError, match=sentence) as caught:
        drcil.load(model, device="cpu")
    assert "\n" not in str(caught.value)


def test_only_models_are_replaced(saved: Path, tmp_path: Path) -> None:
    learner = drcil.load(saved, device="cpu")
    diary = tmp_path / "diary"
    diary.mkdir()
    (diary / "monday.txt").write_text("dear diary")
    with pytest.raises(UserError, match=r"diary exists and is not a model: it contains 'monday.txt'"):
        learner.save(diary)
    assert (diary / "monday.txt").read_text() == "dear diary"
    with pytest.raises(UserError, match=r"monday\.txt exists and is not a model"):
        learner.save(diary / "monday.txt")
    with pytest.raises(UserError, match=r"cannot write .*: Not a directory"):
        learner.save(diary / "monday.txt" / "model")
    for _ in range(2):
        learner.save(tmp_path / "model")
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == sorted(file.name for file in saved.iterdir())

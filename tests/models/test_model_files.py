"""Models as files: whatever is done to one, it is refused in a sentence, or it is the model that it says it is."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import drcil
from drcil import Learner, UserError
from drcil.cli import main
from drcil.files import read_json, read_tensors
from drcil.models.model_format import STATE
from drcil.streams.stream import make_stream
from support.allocations import Allocations
from support.model_edits import edit_state, edit_tensors

STREAM = make_stream("digits-b0-5")
PIXELS = STREAM[0].new.read(slice(None, 4))
WEIGHTS, MEMORY, DIGESTS = "method.safetensors", "memory.safetensors", "digests.safetensors"
NONSENSE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    3_000_000_000,
    "",
    "x",
    "__class__",
    "1",
    [],
    {},
    [1, 2, 3],
    {"kind": "x"},
    [[[[]]]],
)
"""What takes the place of every entry in turn."""
Where = tuple[str | int, ...]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model with each kind of part and of exemplars: a dataset's, and a copy of arrays."""
    directory = tmp_path_factory.mktemp("models")
    learner = Learner("icarl", epochs_scale=0.02, memory="8", device="cpu", seed=3)
    learner.learn(STREAM[0])
    learner.learn(STREAM[1].new.read(slice(None, None, 20)), ["b"] * 5 + ["a"] * 10)
    learner.save(directory / "model")
    return directory / "model"


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "model")


def entries(value: Any, where: Where = ()) -> Iterator[Where]:
    """The place of every entry, however deep."""
    if where:
        yield where
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from entries(inner, (*where, name))


def at(state: Any, where: Where) -> Any:
    for name in where:
        state = state[name]
    return state


def outcome(model: Path) -> str | None:
    """Load a model, let it predict and recall its exemplars: the sentence of a refusal, or None where all went well."""
    try:
        learner = drcil.load(model, device="cpu")
        answers = learner.predict(PIXELS, top=len(learner.classes))
        assert all(
            np.isfinite(answer.probabilities).all() and set(answer.classes) == {*learner.classes} for answer in answers
        )
        assert learner.memory.images is None or (learner.memory.images.read().ndim == 4)
        learner.model.digests.pairs()
        sentence = None
    except UserError as error:
        sentence = str(error)
        assert sentence and "\n" not in sentence and len(sentence) < 1000, sentence
    return sentence


def mutations(state: Any) -> list[tuple[Where, Any]]:
    """Every entry with everything to put in its place; the last is to leave it out."""
    return [(where, value) for where in entries(state) for value in (*NONSENSE, ...)]


def mutate(model: Path, where: Where, value: Any) -> None:
    def change(state: Any) -> None:
        if value is ...:
            del at(state, where[:-1])[where[-1]]
        else:
            at(state, where[:-1])[where[-1]] = copy.deepcopy(value)

    edit_state(model, change)


def check_mutations(model: Path, chosen: list[tuple[Where, Any]]) -> None:
    """Each alone, by one who can compute digests. Settings of training and names of classes are the model's affair."""
    content = (model / STATE).read_bytes()
    for where, value in chosen:
        mutate(model, where, value)
        if where[0] not in ("format", "checksum"):
            sentence = outcome(model)
            free = {"settings", "classes", "data", "augment", "seed", "memory", "images", "usage", "task_record"}
            before = at(json.loads(content), where)
            same = before is None if value is ... else before == value
            # A model without digests of images is a model; it only cannot tell which images it has learnt from.
            is_free = where[0] in free or (where == ("files", DIGESTS) and value is ...)
            assert sentence or same or is_free, f"{where} = {value!r} was accepted"
        (model / STATE).write_bytes(content)


def test_nonsense_in_the_description_is_refused(model: Path) -> None:
    """A sample: every twenty-third mutation."""
    check_mutations(model, mutations(read_json(model / STATE))[::23])


@pytest.mark.slow
def test_all_nonsense_in_the_description_is_refused(model: Path) -> None:
    check_mutations(model, mutations(read_json(model / STATE)))


TENSOR_CHANGES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "gone": lambda tensor: None,
    "longer": lambda tensor: torch.cat([tensor.reshape(-1), tensor.reshape(-1)[:1]]),
    "empty": lambda tensor: tensor.reshape(-1)[:0],
    "scalar": lambda tensor: torch.zeros((), dtype=tensor.dtype) if tensor.ndim else None,
    "deeper": lambda tensor: tensor[None],
    "fractional": lambda tensor: tensor.double() + 0.5,
    "short integers": lambda tensor: tensor.to(torch.int16),
    "logical": lambda tensor: tensor.bool(),
    "complex": lambda tensor: tensor.to(torch.complex64),
    "not a number": lambda tensor: torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else None,
    "infinite": lambda tensor: torch.full_like(tensor, -torch.inf) if tensor.is_floating_point() else None,
}


def check_tensors(model: Path, file: str, every: int) -> None:
    content, state = (model / file).read_bytes(), (model / STATE).read_bytes()
    names = sorted(read_tensors(model / file)[0])
    for name, change in [(name, change) for name in names for change in TENSOR_CHANGES][::every]:

        def spoil(tensors: dict[str, Tensor], name: str = name, change: str = change) -> None:
            changed = TENSOR_CHANGES[change](tensors.pop(name))
            tensors |= {} if changed is None else {name: changed}

        edit_tensors(model, file, spoil)
        assert outcome(model), f"{name} in {file} was accepted, though {change}"
        (model / file).write_bytes(content)
        (model / STATE).write_bytes(state)


@pytest.mark.parametrize(("file", "every"), [(MEMORY, 5), (WEIGHTS, 61), (DIGESTS, 1)])
def test_tensors_of_the_wrong_kind_are_refused(file: str, every: int, model: Path) -> None:
    check_tensors(model, file, every)


@pytest.mark.slow
@pytest.mark.parametrize("file", [MEMORY, WEIGHTS])
def test_all_tensors_of_the_wrong_kind_are_refused(file: str, model: Path) -> None:
    check_tensors(model, file, 1)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"rows": torch.tensor([0] * 7 + [-1])}, "refers to images -1 to 0"),
        ({"rows": torch.tensor([0] * 7 + [10**12])}, "refers to images 0 to 1000000000000"),
        ({"labels": torch.tensor([0] * 7 + [4])}, "labels are from 0 to 4, but there are 4 classes"),
        ({"labels": torch.tensor([-1] * 8)}, "labels are from -1 to -1"),
        ({"labels": torch.tensor([3, 0, 0, 0, 0, 0, 0, 0])}, "sorted by label"),
        ({"labels": torch.tensor([0, 1])}, "'labels' is torch.int64 of shape .2,. instead of torch.int64 of shape .8,"),
        ({"more": torch.tensor([0])}, "'more' is not expected"),
        ({"digests": torch.zeros(8, 16, dtype=torch.uint8)}, "image .* of digits .*is not the image"),
    ],
)
def test_exemplars_that_cannot_be_are_refused(tensors: dict[str, Tensor], sentence: str, model: Path) -> None:
    edit_tensors(model, MEMORY, lambda kept: kept.update(tensors))
    with pytest.raises(UserError, match=f"exemplars of .* cannot be used: .*{sentence}"):
        print(drcil.load(model).memory.images)


@pytest.mark.parametrize("file", [STATE, WEIGHTS, MEMORY, DIGESTS])
def test_no_changed_byte_goes_unnoticed(file: str, model: Path) -> None:
    """Eight places in each file, of which the last bytes and the middle of a number are some."""
    content = (model / file).read_bytes()
    for place in np.linspace(0, len(content) - 1, 8).astype(int):
        changed = bytearray(content)
        changed[place] ^= 1
        (model / file).write_bytes(changed)
        sentence = outcome(model)
        # White space between the entries of a JSON means nothing.
        assert sentence or (file == STATE and json.loads(changed) == json.loads(content)), f"byte {place} of {file}"
    (model / file).write_bytes(content[:-1])
    assert outcome(model) or file == STATE  # The last byte of a JSON ends its line.


def test_a_predictor_is_as_careful(model: Path) -> None:
    content = bytearray((model / WEIGHTS).read_bytes())
    content[-100] ^= 16
    (model / WEIGHTS).write_bytes(content)
    with pytest.raises(UserError, match=r"method.safetensors is damaged: its checksum is not"):
        drcil.load_predictor(model, device="cpu")
    assert main(["evaluate", str(model), "digits-b0-5"]) == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"3", b"null", b"[" * 100_000, b'{"format": "3"}', b"\xff"])
def test_a_description_of_something_else_is_refused(content: bytes, model: Path) -> None:
    (model / STATE).write_bytes(content)
    sentence = outcome(model)
    assert sentence and str(model) in sentence


@pytest.mark.parametrize("file", [STATE, WEIGHTS, MEMORY])
@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "link to itself", "link to nothing"])
def test_only_files_are_read(kind: str, file: str, model: Path) -> None:
    (model / file).unlink()
    if kind == "directory":
        (model / file).mkdir()
    elif kind == "pipe":
        os.mkfifo(model / file)
    else:
        targets = {"device": "/dev/zero", "link to itself": file, "link to nothing": "nowhere"}
        (model / file).symlink_to(targets[kind])
    assert outcome(model)


NO_PATHS: tuple[Any, ...] = (None, 5, 1.5, b"model", [], {}, "", "a\0b", "x" * 300, "x/" * 3000, Path("y" * 5000))


@pytest.mark.parametrize("path", NO_PATHS, ids=lambda path: repr(path)[:20])
def test_what_is_no_path_is_said(path: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    learner = drcil.load(trained, device="cpu")
    for use in (drcil.load, drcil.load_predictor, learner.save):
        with pytest.raises(UserError) as caught:
            use(path)
        assert "\n" not in str(caught.value)
    if isinstance(path, str) and "\0" not in path:
        assert main(["evaluate", path, "digits-b0-5"]) == 2
    assert os.listdir(tmp_path) == []


def test_sizes_beyond_the_weights_are_refused_before_memory_is_taken(model: Path) -> None:
    """A million classes of 64 channels would take 256 MB, a shape of means 4 TB: neither is ever allocated."""
    for where, value in (
        (("parts", "net", "head", "tasks"), [2**20]),
        (("parts", "net", "head", "channels"), 2**20),
        (("parts", "means", "shape"), [2**20, 2**20]),
        (("images", "size"), 2**40),
        (("tasks",), [2**40]),
    ):
        content = (model / STATE).read_bytes()
        mutate(model, where, value)
        with Allocations() as tensors:
            assert outcome(model), where
        assert tensors.largest < 2**20, where
        (model / STATE).write_bytes(content)


def test_every_kind_of_part_comes_back(tmp_path: Path) -> None:
    """Also where it holds values whose sum is beyond all numbers of its type."""
    learner = Learner("icarl", epochs_scale=0.02, memory="8", device="cpu")
    learner.learn(STREAM[0])
    with torch.no_grad():
        learner.method.net.head.classifier.bias.fill_(3e38)
    learner.save(tmp_path / "model")
    assert drcil.load(tmp_path / "model", device="cpu").predict(PIXELS) == learner.predict(PIXELS)


@pytest.mark.parametrize("names", [("\ud800", "b"), ("a", "\udfff b"), ("a", "a"), ("", "b")])
def test_class_names_that_cannot_be_written_are_refused_before_learning(names: tuple[str, str]) -> None:
    learner = Learner("icarl", device="cpu")
    with pytest.raises(UserError, match=r"cannot be encoded|two classes are called 'a'|must not be empty"):
        learner.learn(replace(STREAM[0], classes=names))
    assert learner.classes == ()


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    places = [tmp_path / f"{number}.png" for number in range(12)]
    for number, place in enumerate(places):
        Image.fromarray(np.full((12, 12), 20 * number, dtype=np.uint8)).save(place)
    return places


def learner_of_pictures(pictures: list[Path], tmp_path: Path) -> Path:
    learner = Learner("replay", backbone="resnet-digits", memory="4", workers=0, epochs_scale=0.005, device="cpu")
    learner.learn(pictures[:6], ["a", "b"] * 3)
    learner.save(tmp_path / "model")
    return tmp_path / "model"


def test_exemplars_whose_files_were_replaced_are_noticed(pictures: list[Path], tmp_path: Path) -> None:
    model = learner_of_pictures(pictures, tmp_path)
    kept = drcil.load(model, device="cpu", workers=0).memory.images
    assert kept is not None
    place = kept.name(0)
    whole = Path(place).read_bytes()
    Image.fromarray(np.full((12, 12), 7, dtype=np.uint8)).save(place)
    loaded = drcil.load(model, device="cpu", workers=0)
    assert loaded.predict(pictures[6:8])
    with pytest.raises(UserError, match=f"{place} is not the image that the model remembers: its content has changed"):
        loaded.learn(pictures[6:], ["c", "d"] * 3)
    assert loaded.classes == ("a", "b")
    os.remove(place)
    with pytest.raises(UserError, match=f"cannot read {place}: No such file"):
        loaded.learn(pictures[6:], ["c", "d"] * 3)
    Path(place).write_bytes(whole)
    loaded.learn(pictures[6:], ["c", "d"] * 3)
    assert list(loaded.classes) == ["a", "b", "c", "d"]


def test_an_exemplar_is_hashed_once(pictures: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second save reads only what the second task brought."""
    from drcil.data.file_source import FileSource

    asked: list[str] = []
    digest = FileSource.digest

    def recorded_digest(source: FileSource, row: int) -> bytes:
        asked.append(source.name(row))
        return digest(source, row)

    monkeypatch.setattr(FileSource, "digest", recorded_digest)
    loaded = drcil.load(learner_of_pictures(pictures, tmp_path), device="cpu", workers=0)
    asked.clear()
    loaded.learn(pictures[6:], ["c", "d"] * 3)
    loaded.save(tmp_path / "model")
    loaded.save(tmp_path / "model")
    assert loaded.memory.images is not None
    kept = {loaded.memory.images.name(position) for position in range(len(loaded.memory.images))}
    assert len(asked) == len(set(asked))
    assert kept <= set(asked)

"""Datasets of Hugging Face's library: what is found in them, that runs on them are runs, and what cannot be used."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("datasets")

import datasets
import huggingface_hub.constants

from drcil.cli import main
from drcil.data.dataset import check_dataset, find_source, load_dataset
from drcil.data.datasets.digits import load_digits
from drcil.data.datasets.huggingface import parse_hub_reference
from drcil.data.fingerprint import dataset_fingerprint, describe_difference
from drcil.data.image_set import CropDraw
from drcil.data.source_refs import DatasetRef
from drcil.errors import UserError
from drcil.learner import Learner, load_learner
from drcil.streams.stream import make_stream
from drcil.train.events import StepDone
from support.runs import Watch, assert_same, make_run, outcome

NAMES = ["one", "two", "three", "four"]
COUNTS = {"train": 10, "test": 4}
TINY = {
    "tasks": 2,
    "image_size": 8,
    "backbone": "resnet-digits",
    "memory": "8",
    "epochs_scale": 0.005,
    "settings": {"first.batch_size": 8, "later.batch_size": 8},
}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The library keeps what it makes in a directory of the tests, and knows that there is no network."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        yield cache


def pictures(split: str) -> tuple[list[Image.Image], list[int]]:
    """Digits from 1 to 4, class by class."""
    images = load_digits().train if split == "train" else load_digits().test
    chosen = [np.flatnonzero(images.labels == label + 1)[: COUNTS[split]] for label in range(4)]
    pixels = images.source.read(images.rows[np.concatenate(chosen)])
    return [Image.fromarray(one[0].numpy()) for one in pixels], np.repeat(range(4), COUNTS[split]).tolist()


def table(split: str, labels: Any = None, feature: Any = None) -> Any:
    images, numbers = pictures(split)
    features = datasets.Features({"image": datasets.Image(), "label": feature or datasets.ClassLabel(names=NAMES)})
    return datasets.Dataset.from_dict({"image": images, "label": labels or numbers}, features=features)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``save_to_disk`` of both splits."""
    place = tmp_path_factory.mktemp("saved") / "digits"
    datasets.DatasetDict({split: table(split) for split in COUNTS}).save_to_disk(str(place))
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pictures as files, one directory per class."""
    place = tmp_path_factory.mktemp("folder") / "digits"
    for split in COUNTS:
        for number, (picture, label) in enumerate(zip(*pictures(split), strict=True)):
            file = place / split / NAMES[label] / f"{number:02}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            picture.save(file)
    return place


def keep(place: Path, **columns: Any) -> str:
    """A dataset of these columns, saved to disk; its name."""
    features = {name: feature for name, (feature, _) in columns.items()}
    values = {name: value for name, (_, value) in columns.items()}
    datasets.Dataset.from_dict(values, features=datasets.Features(features)).save_to_disk(str(place))
    return f"hf:{place}"


class TestWhatIsFound:
    def test_splits_classes_and_images(self, saved: Path) -> None:
        dataset = load_dataset(f"hf:{saved}", image_size=8)
        assert dataset.classes == tuple(NAMES) and dataset.spec.photographs
        assert dataset.train.counts(4).tolist() == [10] * 4 and dataset.test.counts(4).tolist() == [4] * 4
        expected = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures("train")[0]]))
        seen = dataset.train.read()
        assert seen.shape == (40, 3, 8, 8) and (seen == expected[:, None]).all()

    def test_a_folder_of_the_library_has_what_a_folder_has(self, folder: Path) -> None:
        here, there = load_dataset(f"hf:{folder}", image_size=8), load_dataset(f"folder:{folder}", image_size=8)
        assert here.classes == there.classes
        rows = np.arange(40)
        for draw in (None, CropDraw(3, rows)):
            assert torch.equal(here.train.source.read(rows, draw), there.train.source.read(rows, draw))
        assert here.train.labels.tolist() == there.train.labels.tolist()

    def test_without_a_split_to_test_with_a_share_is_set_aside_for_ever(self, tmp_path: Path) -> None:
        table("train").save_to_disk(str(tmp_path / "one"))
        first, again = (load_dataset(f"hf:{tmp_path / 'one'}") for _ in range(2))
        assert len(first.train) + len(first.test) == 40 and (first.test.counts(4) >= 1).all()
        assert not set(first.train.rows) & set(first.test.rows)
        assert first.test.rows.tolist() == again.test.rows.tolist()

    def test_a_test_split_without_labels_is_passed_over(self, tmp_path: Path) -> None:
        splits = {"train": table("train"), "test": table("test", [-1] * 16), "validation": table("test")}
        datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "d"))
        assert load_dataset(f"hf:{tmp_path / 'd'}").test.counts(4).tolist() == [4] * 4

    @pytest.mark.parametrize(
        ("values", "feature", "classes"),
        [
            (["b", "a", "b", "c"], datasets.Value("string"), ("a", "b", "c")),
            ([10, 9, 10, 2], datasets.Value("int64"), ("2", "9", "10")),
            ([3, 0, 3, 1], datasets.ClassLabel(names=["z", "y", "x", "w"]), ("z", "y", "w")),
        ],
    )
    def test_labels_of_every_kind(
        self, values: list[Any], feature: Any, classes: tuple[str, ...], tmp_path: Path
    ) -> None:
        table("train", values * 10, feature).save_to_disk(str(tmp_path / "d"))
        assert load_dataset(f"hf:{tmp_path / 'd'}").classes == classes

    def test_columns_and_splits_can_be_named(self, tmp_path: Path) -> None:
        images, labels = pictures("train")
        kind = datasets.ClassLabel(names=NAMES)
        whole = datasets.Dataset.from_dict(
            {"img": images, "mask": images, "fine": labels, "coarse": [label // 2 for label in labels]},
            features=datasets.Features(
                {"img": datasets.Image(), "mask": datasets.Image(), "fine": kind, "coarse": kind}
            ),
        )
        datasets.DatasetDict({"a": whole, "b": whole.select(range(0, 40, 5))}).save_to_disk(str(tmp_path / "d"))
        name = f"hf:{tmp_path / 'd'},image=img,label=coarse,train=a,test=b"
        dataset = make_stream(f"{name}-b0-2").dataset
        assert dataset.classes == ("one", "two") and len(dataset.test) == 8 and dataset.name == name

    def test_options_are_told_from_the_name(self) -> None:
        assert parse_hub_reference("a/b,label=x,config=c") == ("a/b", {"label": "x", "config": "c"})
        assert parse_hub_reference("/odd,place/d") == ("/odd,place/d", {})

    def test_images_are_found_again_by_their_description(self, saved: Path) -> None:
        source = load_dataset(f"hf:{saved}", image_size=8).test.source
        rows = np.arange(16)
        again = find_source(DatasetRef.model_validate_json(source.ref.model_dump_json()))
        assert torch.equal(again.read(rows), source.read(rows)) and again.digest(3) == source.digest(3)

    def test_a_stream_may_be_long_tailed(self, saved: Path) -> None:
        counts = make_stream(f"hf:{saved}-lt5-ordered-b0-2").counts().tolist()
        assert counts == [10, 5, 3, 2]


@pytest.fixture(scope="module")
def whole(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    directory = tmp_path_factory.mktemp("runs") / "whole"
    make_run(directory, "icarl", stream=f"hf:{saved}-b0-2", **TINY).train()
    return directory


class TestRuns:
    def test_a_resumed_run_is_the_same(self, saved: Path, whole: Path, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run", "icarl", stream=f"hf:{saved}-b0-2", **TINY)
        Watch().session(run.directory, (StepDone, 2, 2))
        run.train()
        assert_same(outcome(whole), outcome(tmp_path / "run"))

    def test_its_model_predicts_and_finds_its_exemplars(self, whole: Path) -> None:
        learner = load_learner(whole)
        assert set(learner.classes) == set(NAMES) and len(learner.memory.images or ()) == 8
        (best,) = learner.predict(pictures("test")[0][0])
        assert best.label in NAMES

    def test_a_model_that_carries_its_exemplars_needs_no_dataset(self, saved: Path, tmp_path: Path) -> None:
        shutil.copytree(saved, tmp_path / "gone")
        stream = make_stream(f"hf:{tmp_path / 'gone'}-b0-2", image_size=8)
        learner = Learner("replay", backbone="resnet-digits", memory="8", epochs_scale=0.001)
        learner.learn(stream[0])
        learner.save(tmp_path / "model", exemplars="images")
        shutil.rmtree(tmp_path / "gone")
        remembered = load_learner(tmp_path / "model").memory.images
        assert remembered is not None and learner.memory.images is not None
        expected = learner.memory.images
        seen = remembered.read().flatten(1)
        again = make_stream(f"hf:{saved}-b0-2", image_size=8)[0].new.source.read(expected.rows).flatten(1)
        assert torch.equal(seen, again) and remembered.labels.tolist() == expected.labels.tolist()

    def test_images_cannot_change_halfway(self, saved: Path, tmp_path: Path) -> None:
        place = tmp_path / "mine"
        shutil.copytree(saved, place)
        run = make_run(tmp_path / "run", "finetune", stream=f"hf:{place}-b0-2", **{**TINY, "memory": None})
        Watch().session(run.directory, (StepDone, 1, 2))
        shutil.rmtree(place)
        splits = {"train": table("train"), "test": table("test")}
        images, labels = pictures("train")
        images[12] = Image.new("L", (8, 8), 77)
        splits["train"] = datasets.Dataset.from_dict(
            {"image": images, "label": labels}, features=splits["test"].features
        )
        datasets.DatasetDict(splits).save_to_disk(str(place))
        with pytest.raises(UserError, match="the training images of class 'two' have changed; start a new run"):
            run.train()

    def test_what_the_identity_sees_does_not_depend_on_the_place(self, saved: Path, tmp_path: Path) -> None:
        shutil.copytree(saved, tmp_path / "copy")
        one, other = (dataset_fingerprint(load_dataset(f"hf:{place}")) for place in (saved, tmp_path / "copy"))
        assert describe_difference(one, other) is None

    def test_the_library_is_quiet(self, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        shutil.copytree(folder, tmp_path / "fresh")  # Which the library has not seen yet, and has to prepare.
        assert main(["data", "check", f"hf:{tmp_path / 'fresh'}"]) == 0
        printed = capfd.readouterr()
        assert printed.err == ""
        assert printed.out.splitlines()[1] == "train: 40 images, 10 per class, 224x224 RGB"
        assert not datasets.utils.are_progress_bars_disabled()


def test_a_dataset_is_fetched_into_the_cache_of_the_library(
    folder: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "fetch", f"hf:{folder}"]) == 0
    place = Path(capsys.readouterr().out.strip())
    assert own_cache in place.parents and any(place.glob("*.arrow"))


class TestRefusals:
    @pytest.mark.parametrize(
        ("columns", "options", "sentence"),
        [
            (("text", "label"), "", "has no column of images; its columns are text, label"),
            (("image", "text"), "", "has no column of labels; its columns are image, text; name it with ,label=COLUMN"),
            (
                ("image", "label", "fine"),
                "",
                "several columns of labels: label, fine; name one, such as hf:…,label=",
            ),
            (("image", "mask", "label"), "", "has several columns of images: image, mask; name one"),
            (("image", "label"), ",image=label", "column 'label' of .* has no images; columns with images: image"),
            (("image", "label"), ",label=kind", "^hf:.*,label=kind has no column 'kind'; columns with labels: label"),
            (("image", "label"), ",lable=kind", "unknown option of a dataset 'lable'; did you mean 'label'"),
            (("image", "label"), ",train=a", "has no split 'a', but train"),
            (("image", "label"), ",test=", "must give 'test' once, as test=NAME"),
        ],
    )
    def test_columns_and_options(self, columns: tuple[str, ...], options: str, sentence: str, tmp_path: Path) -> None:
        images, numbers = pictures("test")
        kinds = {
            "image": (datasets.Image(), images),
            "mask": (datasets.Image(), images),
            "label": (datasets.ClassLabel(names=NAMES), numbers),
            "fine": (datasets.ClassLabel(names=NAMES), numbers),
            "text": (datasets.Value("string"), ["word"] * 16),
        }
        name = keep(tmp_path / "d", **{column: kinds[column] for column in columns})
        with pytest.raises(UserError, match=sentence):
            load_dataset(name + options)

    def test_a_row_without_a_label_or_without_an_image(self, tmp_path: Path) -> None:
        images, numbers = pictures("test")
        kind = datasets.ClassLabel(names=NAMES)
        name = keep(tmp_path / "a", image=(datasets.Image(), images), label=(kind, [*numbers[:-1], None]))
        with pytest.raises(UserError, match=r"split 'train' of .* cannot be used: row 15 has no label in 'label'"):
            load_dataset(name)
        name = keep(tmp_path / "b", image=(datasets.Image(), [*images[:-1], None]), label=(kind, numbers))
        assert check_dataset(name).problems == (f"row 15 of {name}, train: there is none",)
        source = load_dataset(name).train.source
        with pytest.raises(UserError, match=r"row 15 of .* cannot be read as an image \(there is none\)"):
            source.read(np.array([15]))

    def test_splits_of_different_classes(self, tmp_path: Path) -> None:
        splits = {"train": table("train"), "test": table("test").select(range(12))}
        datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "d"))
        with pytest.raises(UserError, match=r"classes in .*, train that are missing in .*, test: four"):
            load_dataset(f"hf:{tmp_path / 'd'}")

    @pytest.mark.parametrize(
        ("make", "sentence"),
        [
            (lambda place: None, "is not a directory; give the name of a dataset of the Hugging Face hub, or"),
            (lambda place: place.write_text("x"), "is not a directory"),
            (lambda place: place.mkdir(), "is not a dataset that can be loaded"),
            (
                lambda place: (place.mkdir(), (place / "state.json").write_text("{}")),
                "not a dataset that can be loaded",
            ),
            (lambda place: (place.mkdir(), (place / "words.txt").write_text("a b")), "has no column of images"),
        ],
    )
    def test_a_path_without_a_dataset(self, make: Callable[[Path], Any], sentence: str, tmp_path: Path) -> None:
        make(tmp_path / "d")
        with pytest.raises(UserError, match=sentence) as caught:
            load_dataset(f"hf:{tmp_path / 'd'}")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["food101", "no/such-dataset"])
    def test_without_a_network(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["run", "finetune", f"hf:{name}-b0-10"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "is not in this machine's cache, and the Hugging Face hub cannot be reached" in line

    @pytest.mark.parametrize("why", ["it is gated", "it does not exist"])
    def test_what_the_hub_refuses(self, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise datasets.exceptions.DatasetNotFoundError(why)

        monkeypatch.setattr(datasets, "load_dataset", refuse)
        with pytest.raises(UserError, match=f"hf:a/b cannot be downloaded from the Hugging Face hub: {why}"):
            load_dataset("hf:a/b")

    def test_without_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"which is not installed; pip install 'drcil\[hf\]' does it"):
            load_dataset("hf:food101")

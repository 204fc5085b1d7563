"""Whether a dataset still is what it was: what counts, what does not, and what is said of a difference."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drcil.data import fingerprint
from drcil.data.dataset import PHOTO_SPEC, Dataset
from drcil.data.datasets.digits import load_digits
from drcil.data.datasets.folder import load_folder
from drcil.data.fingerprint import DatasetFingerprint, dataset_fingerprint, describe_difference
from drcil.data.image_set import ArraySource, ImageSet
from drcil.data.user_images import wrap_dataset
from drcil.errors import UserError


def draw(path: Path, colour: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (colour, 9, 9)).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for split, images in (("train", 4), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            for number in range(images):
                draw(root / split / name / f"{number}.bmp", 50 * label + number)
    return root


def seen(root: Path) -> DatasetFingerprint:
    return dataset_fingerprint(load_folder(root, image_size=8))


@pytest.fixture(params=["contents", "times"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small data are compared by contents, large data by sizes and times."""
    if request.param == "times":
        monkeypatch.setattr(fingerprint, "CONTENT_LIMIT", 1)
    return str(request.param)


def _remove_class(root: Path) -> None:
    for split in ("train", "test"):
        shutil.rmtree(root / split / "dog")


def _add_classes(root: Path) -> None:
    for split in ("train", "test"):
        for name in ("ant", "bee"):
            draw(root / split / name / "0.bmp", 3)


def _replace(root: Path) -> None:
    draw(root / "test" / "dog" / "1.bmp", 200)
    os.utime(root / "test" / "dog" / "1.bmp", (1, 1))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "class removed": (_remove_class, "class 'dog' is gone"),
    "class added": (_add_classes, "class 'ant' is new, and 1 more are"),
    "image removed": (lambda root: (root / "train/cat/1.bmp").unlink(), "class 'cat' has 3 training images, not 4"),
    "image added": (lambda root: draw(root / "test/dog/x.bmp", 3), "class 'dog' has 3 test images, not 2"),
    "image renamed": (
        lambda root: (root / "train/cat/1.bmp").rename(root / "train/cat/x.bmp"),
        "the training images of class 'cat' have changed",
    ),
    "image replaced by one of equal size": (_replace, "the test images of class 'dog' have changed"),
    "unreadable file added, which moves rows": (
        lambda root: (root / "train/cat/00.png").write_bytes(b"no image"),
        "the training images of class 'cat' have changed",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_files_is_told(pets: Path, by: str, change: str) -> None:
    before = seen(pets)
    make, sentence = CHANGES[change]
    make(pets)
    now = seen(pets)
    assert describe_difference(before, now) == sentence


def test_a_copy_elsewhere_is_the_same_data(pets: Path, by: str, tmp_path: Path) -> None:
    before = seen(pets)
    copy = shutil.copytree(pets, tmp_path / "copy", copy_function=shutil.copyfile)
    for file in copy.rglob("*.bmp"):
        os.utime(file, (9, 9))
    now = seen(copy)
    assert describe_difference(before, now) is None
    assert before.digest() == now.digest()


def test_a_touched_class_of_small_data_is_the_same(pets: Path) -> None:
    before = seen(pets)
    os.utime(pets / "train/cat/0.bmp", (1, 1))
    assert describe_difference(before, seen(pets)) is None


def test_it_is_kept_as_json(pets: Path, by: str) -> None:
    kept = json.dumps(seen(pets).model_dump(mode="json"))
    assert describe_difference(DatasetFingerprint.model_validate(json.loads(kept)), seen(pets)) is None
    cut = json.loads(kept)
    cut["train"]["digests"].pop()
    assert describe_difference(DatasetFingerprint.model_validate(cut), seen(pets)) == "its record is damaged"


def in_memory(pixels: torch.Tensor, labels: list[int]) -> Dataset:
    images = ImageSet.of(ArraySource(pixels), np.arange(len(labels)), np.array(labels))
    return Dataset("own", ("a", "b"), images, images, PHOTO_SPEC)


def test_pixels_in_memory_count() -> None:
    pixels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    before = dataset_fingerprint(in_memory(pixels, [0, 0, 1, 1]))
    assert describe_difference(before, dataset_fingerprint(in_memory(pixels.clone(), [0, 0, 1, 1]))) is None
    pixels[3, 0, 7, 7] = 1
    changed = dataset_fingerprint(in_memory(pixels, [0, 0, 1, 1]))
    assert describe_difference(before, changed) == "the training images of class 'b' have changed"
    relabelled = dataset_fingerprint(in_memory(torch.zeros_like(pixels), [0, 1, 0, 1]))
    assert describe_difference(before, relabelled) == "the training images of class 'a' and 1 more classes have changed"


def test_other_sizes_and_datasets_are_told() -> None:
    digits = dataset_fingerprint(load_digits())
    assert (
        describe_difference(digits, dataset_fingerprint(load_digits(image_size=4)))
        == "the images are 1 x 4 x 4, not 1 x 8 x 8"
    )
    zeros = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    assert (
        describe_difference(digits, dataset_fingerprint(in_memory(zeros, [0, 0, 1, 1])))
        == "the dataset is 'own', not 'digits'"
    )


def test_wrapped_datasets_are_sampled() -> None:
    def wrapped(colour: int) -> DatasetFingerprint:
        images = wrap_dataset([(Image.new("RGB", (80, 80), (colour, 0, 0)), label % 2) for label in range(600)], size=8)
        return dataset_fingerprint(Dataset("own", ("a", "b"), images, images, PHOTO_SPEC))

    assert describe_difference(wrapped(1), wrapped(1)) is None
    assert describe_difference(wrapped(1), wrapped(2)) is not None


def test_a_file_that_is_gone_is_named(pets: Path, by: str) -> None:
    dataset = load_folder(pets, image_size=8)
    (pets / "train/cat/0.bmp").unlink()
    with pytest.raises(UserError, match=r"cannot read .*0\.bmp: No such file"):
        dataset_fingerprint(dataset)


def test_a_time_far_in_the_future_is_a_time_too(pets: Path, by: str) -> None:
    os.utime(pets / "train/cat/0.bmp", (13569465600, 13569465600))
    assert describe_difference(seen(pets), seen(pets)) is None


@pytest.mark.data
def test_verified_checksums_stand_for_pixels(data_dir: Path) -> None:
    from drcil.data.dataset import load_dataset

    cifar = dataset_fingerprint(load_dataset("cifar100", data_dir))
    assert describe_difference(cifar, dataset_fingerprint(load_dataset("cifar100", data_dir))) is None
    assert len(set(cifar.train.digests)) == 100

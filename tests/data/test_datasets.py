"""The datasets that are known by name, and what their loaders promise."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drcil.data.dataset import DATASETS, Dataset, check_dataset, data_kind, find_source, load_dataset, register_dataset
from drcil.data.datasets import cifar100
from drcil.data.datasets.imagenet import draw_order
from drcil.data.decoding import shrink
from drcil.data.source_refs import EmbeddedRef
from drcil.errors import UserError
from drcil.settings import data_directory
from drcil.streams.protocols import standard_streams


def test_every_file_of_the_package_registers_its_datasets() -> None:
    assert set(DATASETS) == {"cifar100", "digits", "folder", "hf", "imagenet100", "imagenet100-first", "imagenet1000"}
    assert [entry.form for entry in DATASETS.values() if entry.argument] == ["folder:PATH", "hf:NAME"]


def test_the_kind_of_a_dataset_is_known_without_loading_it() -> None:
    assert data_kind("digits") == "digits" and data_kind("cifar100") == "cifar"
    assert data_kind("imagenet1000") == data_kind("folder:nowhere") == "imagenet"
    assert load_dataset("digits").spec == DATASETS["digits"].spec


def test_a_misspelt_dataset_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown dataset 'cifar10'; did you mean 'cifar100'"):
        load_dataset("cifar10")


@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [
        ("digits", 0, "the image size must be a whole number from 4 to 4096, not 0"),
        ("folder:", None, "'folder:' is incomplete; give it as folder:PATH"),
        ("folder", None, "'folder' is incomplete; give it as folder:PATH"),
        ("digits:8", None, "'digits' takes no argument"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(name: str, size: int | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_dataset(name, image_size=size)


def test_an_entry_from_anywhere_is_loaded_by_name_with_its_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load_dataset("digits")

    def load_every(step: str, root: Path | None, image_size: int | None) -> Dataset:
        """Each so-manieth digit."""
        return replace(digits, name=f"every:{step}", train=digits.train.subset(np.arange(0, 1442, int(step))))

    monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS))
    register_dataset("every", spec=digits.spec, classes=10, protocols=("b0-2",), argument="STEP")(load_every)
    assert len(load_dataset("every:7").train) == 206
    assert data_kind("every:7") == "digits"
    assert "every:STEP-b0-2" in {stream.name for stream in standard_streams()}


def test_embedded_images_cannot_be_found_again() -> None:
    with pytest.raises(ValueError, match="keep a copy of its images"):
        find_source(EmbeddedRef())


def test_the_data_directory_is_given_or_named_by_the_environment_or_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRCIL_DATA", "/somewhere")
    assert data_directory(Path("here")) == Path("here")
    assert data_directory() == Path("/somewhere")
    monkeypatch.delenv("DRCIL_DATA")
    assert data_directory() == Path("data")


class TestDigits:
    def test_are_the_1797_published_ones(self) -> None:
        digits = load_dataset("digits")
        assert (len(digits.train), len(digits.test)) == (1442, 355)
        published = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
        assert (digits.train.counts(10) + digits.test.counts(10)).tolist() == published
        assert digits.classes == tuple("0123456789")

    def test_scale_sixteen_to_white(self) -> None:
        pixels = load_dataset("digits").train.source.read(np.arange(3, dtype=np.int64))
        assert pixels.shape == (3, 1, 8, 8) and pixels.dtype == torch.uint8
        # The first row of the first image of the file is 0 0 5 13 9 1 0 0.
        assert pixels[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]

    def test_every_class_is_split_four_to_one(self) -> None:
        digits = load_dataset("digits")
        share = digits.test.counts(10) / (digits.train.counts(10) + digits.test.counts(10))
        assert (abs(share - 0.2) < 0.006).all()

    def test_constants_are_those_of_the_training_images(self) -> None:
        digits = load_dataset("digits")
        pixels = digits.train.read().double() / 255
        assert digits.spec.mean == pytest.approx((pixels.mean().item(),), abs=5e-5)
        assert digits.spec.std == pytest.approx((pixels.std(correction=0).item(),), abs=5e-5)

    def test_are_found_again_by_their_description(self) -> None:
        source = load_dataset("digits", image_size=4).test.source
        again = find_source(source.ref)
        rows = np.arange(len(source), dtype=np.int64)
        assert torch.equal(again.read(rows), source.read(rows)) and again.size == 4

    def test_check_counts_them(self) -> None:
        report = check_dataset("digits")
        assert report.facts[1] == "train: 1442 images, 140 to 147 per class, 8x8 grey"
        assert report.problems == ()

    def test_are_not_enlarged(self) -> None:
        with pytest.raises(UserError, match="image size 9 is not possible for the images of digits, which are 8x8"):
            load_dataset("digits", image_size=9)


@given(st.integers(1, 13), st.integers(1, 13), st.integers(0, 2**32 - 1), st.data())
def test_shrinking_is_the_exact_area_mean(height: int, width: int, seed: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, min(height, width)))
    pixels = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (1, 1, height, width), dtype=np.uint8))

    def share(out: int, inner: int, length: int) -> Fraction:
        left, right = Fraction(out * length, size), Fraction((out + 1) * length, size)
        return max(Fraction(0), min(right, Fraction(inner + 1)) - max(left, Fraction(inner)))

    for y in range(size):
        for x in range(size):
            total = sum(
                share(y, j, height) * share(x, i, width) * int(pixels[0, 0, j, i])
                for j in range(height)
                for i in range(width)
            )
            mean = total * size * size / (height * width)
            assert int(shrink(pixels, size)[0, 0, y, x]) == int(mean + Fraction(1, 2))


def fake_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Three small files of CIFAR's form, whose checksums the loader is told to expect."""
    names = {"fine_label_names": [f"class {i}" for i in range(100)]}
    contents: dict[str, bytes] = {"meta": pickle.dumps(names, protocol=2)}
    for split, count in (("train", 6), ("test", 3)):
        data = np.random.default_rng(count).integers(0, 256, (count, 3072), dtype=np.uint8)
        stored = pickle.dumps({"data": data, "fine_labels": list(range(count))}, protocol=3)
        contents[split] = stored.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        monkeypatch.setitem(cifar100.CHECKSUMS, name, hashlib.md5(content).hexdigest())
    return contents


class TestCifarFiles:
    def test_folder_and_archive_give_the_same(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        contents = fake_cifar(tmp_path / "a", monkeypatch)
        (tmp_path / "b").mkdir()
        archive = tmp_path / "b" / "cifar-100-python.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for name, content in contents.items():
                member = tarfile.TarInfo(f"cifar-100-python/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        monkeypatch.setattr(cifar100, "HOME", replace(cifar100.HOME, md5=hashlib.md5(archive.read_bytes()).hexdigest()))
        one, other = (load_dataset("cifar100", tmp_path / place) for place in "ab")
        assert torch.equal(one.train.read(), other.train.read())
        assert one.test.labels.tolist() == [0, 1, 2] and one.classes[99] == "class 99"

    def test_missing_files_are_named_with_the_command_that_gets_them(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"cifar-100-python/train .*'drcil data fetch cifar100'"):
            load_dataset("cifar100", tmp_path)

    def test_one_missing_file_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_cifar(tmp_path, monkeypatch)
        (tmp_path / "cifar-100-python" / "meta").unlink()
        with pytest.raises(UserError, match="cifar-100-python/meta"):
            load_dataset("cifar100", tmp_path)

    def test_a_changed_byte_is_noticed_before_unpickling(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        contents = fake_cifar(tmp_path, monkeypatch)
        (tmp_path / "cifar-100-python" / "test").write_bytes(contents["test"][:-1] + b"!")
        monkeypatch.setattr(cifar100, "unpickle", lambda data: pytest.fail("unpickled before the checksum matched"))
        with pytest.raises(UserError, match="cifar-100-python/test is not the original CIFAR-100 file"):
            load_dataset("cifar100", tmp_path)

    def test_a_damaged_archive_is_one_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"not an archive")
        with pytest.raises(
            UserError, match=r"cifar-100-python\.tar\.gz is not the original archive \(md5 .*'drcil data fetch'"
        ):
            load_dataset("cifar100", tmp_path)

    @pytest.mark.parametrize("value", [Path("x"), Fraction(1), print, np.float64(1)])
    def test_the_unpickler_refuses_other_types(self, value: object) -> None:
        with pytest.raises(pickle.UnpicklingError, match="has no place in a CIFAR file"):
            cifar100.unpickle(pickle.dumps(value, protocol=2))


@pytest.mark.data
def test_cifar100_is_the_original(data_dir: Path) -> None:
    cifar = load_dataset("cifar100", data_dir)
    assert (cifar.train.counts(100) == 500).all() and (cifar.test.counts(100) == 100).all()
    assert cifar.train.labels[:5].tolist() == [19, 29, 0, 11, 1]
    assert cifar.test.labels[:5].tolist() == [49, 33, 72, 51, 71]
    assert cifar.classes[:3] == ("apple", "aquarium_fish", "baby") and cifar.classes[99] == "worm"
    pixels = cifar.train.read(slice(None, None, 50)).double() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(cifar.spec.mean, abs=0.01)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(cifar.spec.std, abs=0.01)


class TestImageNet:
    def test_the_drawn_hundred_are_the_seed_1993_draw(self) -> None:
        drawn = draw_order()
        assert len(set(drawn)) == 100
        assert (drawn[0], drawn[99], min(drawn), max(drawn)) == ("n01729322", "n01689811", "n01514668", "n15075141")
        # Alphabetical ids in the seed-1993 presentation order begin with this class.
        first = np.random.RandomState(1993).permutation(100)[0]
        assert sorted(drawn)[first] == "n03710193"

    def test_missing_directories_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"ImageNet not found: .*imagenet/train is not a directory"):
            load_dataset("imagenet100", tmp_path)
        for split in ("train", "val"):
            (tmp_path / "imagenet" / split / "n01729322").mkdir(parents=True)
        with pytest.raises(UserError, match="and 99 are missing, such as n01514668"):
            load_dataset("imagenet100", tmp_path)
        with pytest.raises(UserError, match=r"imagenet1000 needs 1000 class directories in .*, there are 1"):
            load_dataset("imagenet1000", tmp_path)
        with pytest.raises(UserError, match="imagenet100-first needs ImageNet's first 100"):
            load_dataset("imagenet100-first", tmp_path)

"""Files that are not what their names say, wherever images are read: a right answer or one sentence, at once."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from drcil.cli import main
from drcil.data.dataset import check_dataset, load_dataset, skipped_files
from drcil.data.datasets.folder import load_folder
from drcil.data.decoding import damage
from drcil.data.file_source import FileSource
from drcil.data.user_images import load_images
from drcil.errors import UserError
from drcil.runs.execution import Run, create_run
from drcil.runs.plan import complete
from drcil.settings import EngineSettings, RunSettings
from drcil.train.events import Event, StepDone

ROW = np.zeros(1, dtype=np.int64)


def draw(path: Path, colour: int = 0, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (colour, 99, 9)).save(path, **options)
    return path


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes of six images."""
    for name in ("cat", "dog"):
        for number in range(6):
            draw(tmp_path / "pets" / name / f"{number}.png", number)
    return tmp_path / "pets"


def _bind(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # A socket's whole path may have a hundred letters only.
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**41)


def _postscript(path: Path) -> None:
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n")


def _bomb(path: Path) -> None:
    """A few bytes that claim to be 10^10 pixels."""
    path.write_bytes(b"P6 100000 100000 255\n")


Replacement = tuple[Callable[[Path], object], str]
"""Makes something that is no image at a path; what its error says."""
IN_PLACE: dict[str, Replacement] = {
    "named pipe": (os.mkfifo, "named pipe"),
    "socket": (_bind, "No such device|socket"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "a device"),
    "link to itself": (lambda path: path.symlink_to(path.name), "Too many levels"),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "No such file"),
    "empty": (lambda path: path.touch(), "not an image|truncated|not the original|not a checkpoint|damaged"),
    "2 TB": (_sparse, "2199023255552 bytes|too large"),
}
PICTURES: dict[str, Replacement] = {
    **IN_PLACE,
    "program": (_postscript, "not an image"),
    "bomb": (_bomb, "decompression bomb"),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_what_is_no_image_file_is_left_out_and_named(pets: Path, kind: str) -> None:
    make, why = PICTURES[kind]
    make(pets / "cat" / "x.png")
    dataset = load_folder(pets, image_size=8)
    assert skipped_files(dataset) == (str(pets / "cat" / "x.png"),)
    assert len(dataset.train) + len(dataset.test) == 12
    (problem,) = check_dataset(f"folder:{pets}").problems
    assert re.search(rf"x\.png: .*({why})", problem)


@pytest.mark.parametrize("kind", PICTURES)
def test_no_such_file_is_predicted(tmp_path: Path, kind: str) -> None:
    make, _ = PICTURES[kind]
    make(tmp_path / "x.png")
    for given in (tmp_path / "x.png", str(tmp_path / "x.png"), [tmp_path / "x.png"], tmp_path):
        with pytest.raises(UserError, match=r"x\.png"):
            load_images(given).read(ROW)


@pytest.mark.parametrize("kind", ["gone", "directory", *PICTURES])
def test_a_file_that_changes_after_it_was_listed_is_named_when_it_is_read(pets: Path, kind: str) -> None:
    source = load_folder(pets, image_size=8).train.source
    (pets / "cat" / "0.png").unlink()
    changes: dict[str, Replacement] = {
        "gone": (lambda path: None, ""),
        "directory": (Path.mkdir, "a directory"),
        **PICTURES,
    }
    make, why = changes[kind]
    make(pets / "cat" / "0.png")
    with pytest.raises(UserError, match=rf"cat/0\.png cannot be read as an image \(.*({why})"):
        source.read(ROW)


@pytest.mark.slow
def test_a_run_stops_at_a_vanished_file_with_a_sentence_and_goes_on_when_it_is_back(
    pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(name: str) -> Run:
        settings = complete(
            RunSettings(
                method="replay",
                stream=f"folder:{pets}-1/1",
                image_size=8,
                backbone="resnet-digits",
                epochs_scale=0.02,
                memory="4",
                settings={"first.batch_size": 4, "later.batch_size": 4},
                engine=EngineSettings(device="cpu", snapshot_seconds=0),
            )
        )
        return create_run(settings, tmp_path / name)

    def learnt(run: Run) -> list[bytes]:
        return [file.read_bytes() for file in sorted(run.directory.glob("tasks/*/*.safetensors"))]

    def vanish(event: Event) -> None:
        if isinstance(event, StepDone) and event.task == 2:
            for name in ("cat", "dog"):
                if (pets / name).exists():
                    shutil.move(pets / name, tmp_path / name)

    whole, run = started("whole"), started("run")
    whole.train()
    with pytest.raises(UserError, match=r"\.png cannot be read as an image \(No such file or directory\)"):
        run.train(listener=vanish)
    for name in ("cat", "dog"):
        shutil.move(tmp_path / name, pets / name)
    assert main(["resume", str(run.directory), "--quiet"]) == 0
    capsys.readouterr()
    assert learnt(run) == learnt(whole)


GREYS = np.array([[0, 51], [102, 255]])


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        (np.float32(GREYS / 255), "F"),
        (np.float32(GREYS), "F"),
        (np.uint16(GREYS * 257), "I;16"),
        (np.uint16(GREYS * 257).astype(">u2"), "I;16B"),
        (np.int32(GREYS * 257), "I"),
        (np.int32(GREYS), "I"),
        (np.uint8(GREYS), "L"),
    ],
)
def test_deep_grey_values_are_read_in_their_range(tmp_path: Path, values: np.ndarray, mode: str) -> None:
    Image.fromarray(values).save(tmp_path / "x.tif")
    with Image.open(tmp_path / "x.tif") as stored:
        assert stored.mode == mode
    assert load_images(tmp_path / "x.tif", 2, 1).read(ROW)[0, 0].tolist() == GREYS.tolist()


COLOURS: dict[str, tuple[str, object, list[int]]] = {
    "LA.tif": ("LA", (100, 127), [178, 178, 178]),
    "1.png": ("1", 1, [255, 255, 255]),
    "CMYK.tif": ("CMYK", (255, 0, 0, 0), [0, 255, 255]),
    "RGBA.png": ("RGBA", (10, 20, 30, 0), [255, 255, 255]),
    "RGBA.webp": ("RGBA", (10, 20, 30, 0), [255, 255, 255]),
    "I;16.png": ("I;16", 65535, [255, 255, 255]),
    "F.pfm": ("F", 1.0, [255, 255, 255]),
    "LAB.tif": ("LAB", (255, 128, 128), [255, 255, 255]),
}


@pytest.mark.parametrize("name", COLOURS)
def test_every_mode_has_its_colour(tmp_path: Path, name: str) -> None:
    mode, colour, expected = COLOURS[name]
    place = tmp_path / name.replace(";", "")
    Image.new(mode, (2, 2), colour).save(place)  # type: ignore[arg-type]
    assert damage(place, thorough=True) is None
    assert load_images(place, 2, 3).read(ROW)[0, :, 0, 0].tolist() == pytest.approx(expected, abs=1)
    assert load_images(place, 2, 1).read(ROW).shape == (1, 1, 2, 2)


def test_a_palette_with_transparency_is_laid_on_white(tmp_path: Path) -> None:
    picture = Image.new("P", (2, 2), 1)
    picture.putpalette([0, 0, 0, 200, 0, 0])
    picture.convert("PA").save(tmp_path / "pa.tif")
    picture.save(tmp_path / "p.png", transparency=1)
    assert load_images(tmp_path / "pa.tif", 2, 3).read(ROW)[0, :, 0, 0].tolist() == [200, 0, 0]
    assert load_images(tmp_path / "p.png", 2, 3).read(ROW)[0, :, 0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("suffix", ["gif", "webp", "tif", "png"])
def test_of_several_frames_the_first_is_seen(tmp_path: Path, suffix: str) -> None:
    first, second = Image.new("RGB", (8, 8), (250, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 250))
    options = {"lossless": True} if suffix == "webp" else {}
    first.save(tmp_path / f"x.{suffix}", save_all=True, append_images=[second], **options)  # type: ignore[arg-type]
    assert load_images(tmp_path / f"x.{suffix}", 8, 3).read(ROW)[0, :, 0, 0].tolist() == [250, 0, 0]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.array([[0, np.nan]], np.float32), "range from nan to nan"),
        (np.array([[0, np.inf]], np.float32), "range from 0 to inf, and not within 0 to 1 or 0 to 255"),
        (np.array([[-1, 1]], np.float32), "range from -1 to 1"),
        (np.array([[0, 4000]], np.float32), "range from 0 to 4000"),
        (np.array([[-5, 9]], np.int32), "range from -5 to 9, and not within 0 to 255 or 0 to 65535"),
        (np.array([[0, 70000]], np.int32), "range from 0 to 70000"),
    ],
)
def test_values_of_no_known_range_are_refused(tmp_path: Path, values: np.ndarray, why: str) -> None:
    Image.fromarray(values).save(tmp_path / "x.tif")
    assert why in str(damage(tmp_path / "x.tif"))
    with pytest.raises(UserError, match=why):
        load_images(tmp_path / "x.tif", 8).read(ROW)
    with pytest.raises(UserError, match=f"image 0 of those given cannot be read: .*{why}"):
        load_images([Image.fromarray(values)])


LAYOUTS: dict[str, tuple[list[str], str]] = {
    "splits without classes": (["train/1.png", "test/1.png"], "are splits, not classes: test, train; expected PATH/C"),
    "capital splits": (["Train/a/1.png", "Val/a/1.png"], "are splits, not classes: Train, Val"),
    "one split": (["train/1.png", "train/2.png"], "are splits, not classes: train"),
    "empty classes": (["a/.keep", "b/.keep"], "class 'a' has no readable image in"),
    "nested classes": (["a/x/1.png", "a/y/1.png"], "class 'a' has no readable image in .*, only directories: x, y"),
    "class only in test": (["train/a/1.png", "test/a/1.png", "test/b/1.png"], "missing in .*train: b"),
    "hidden images": (["a/.1.png", "a/.2.png"], "class 'a' has no readable image"),
    "two forms of one name": (["caf\u00e9/1.png", "cafe\u0301/1.png"], "two class directories 'caf\u00e9'"),
    "a name that is not text": (["a\udcff/1.png"], r"class directory b'a\\xff' in .* is not UTF-8"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_that_cannot_be_meant_are_told(tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    files, sentence = LAYOUTS[layout]
    for name in files:
        draw(tmp_path / name, format="PNG")
    with pytest.raises(UserError, match=sentence):
        load_folder(tmp_path)
    assert main(["data", "check", f"folder:{tmp_path}"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("classes", [["train", "bus"], ["Polish", "polish"], ["x" * 255, "y"]])
def test_unusual_class_names_are_names(tmp_path: Path, classes: list[str]) -> None:
    for name in classes:
        draw(tmp_path / name / "1.png"), draw(tmp_path / name / "2.png")
    assert load_folder(tmp_path).classes == tuple(sorted(classes))


def test_a_class_that_leads_back_to_its_parent_has_no_images(pets: Path) -> None:
    (pets / "self").symlink_to(pets)
    with pytest.raises(UserError, match=r"class 'self' has no readable image in .*, only directories: cat, dog, self"):
        load_folder(pets)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read_is_named(pets: Path) -> None:
    (pets / "cat").chmod(0)
    with pytest.raises(UserError, match=r"cannot read .*cat: Permission denied"):
        load_folder(pets)
    (pets / "cat").chmod(0o700)


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000, "\0", "~nobody-of-this-name/x", " ", "\n"])
def test_names_that_no_directory_has_are_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["data", "check", f"folder:{name}"], ["data", "check", "cifar100", "--data", name]):
        assert main(command) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(UserError):
        load_images(name)


def test_images_whose_names_are_no_text_are_kept_as_pixels(tmp_path: Path) -> None:
    source = load_images(draw(tmp_path / "a\udcff.png", 7), 8)
    assert isinstance(source, FileSource) and source.is_embedded
    assert source.read(ROW)[0, :, 0, 0].tolist() == [7, 99, 9]


@pytest.mark.parametrize("kind", ["directory", *IN_PLACE])
@pytest.mark.parametrize("file", ["cifar-100-python/train", "cifar-100-python.tar.gz"])
def test_cifar_files_are_files(tmp_path: Path, kind: str, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    places: dict[str, Replacement] = {"directory": (Path.mkdir, "a directory|not found"), **IN_PLACE}
    make, why = places[kind]
    make(tmp_path / file)
    with pytest.raises(UserError, match=f"{why}|not found"):
        load_dataset("cifar100", tmp_path)

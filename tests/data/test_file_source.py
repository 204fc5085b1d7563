"""Images on disk: which files belong to a dataset, and what is shown of each."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from drcil.data.dataset import check_dataset, find_source, load_dataset, skipped_files
from drcil.data.datasets.folder import load_folder
from drcil.data.datasets.imagenet import draw_order
from drcil.data.decoding import centre_view, damage, flatten, random_box, random_view, short_side
from drcil.data.file_source import FileList, FileSource
from drcil.data.image_set import CropDraw
from drcil.data.source_refs import FilesRef
from drcil.errors import UserError


def picture(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    """Smooth colours, so that resampling and JPEG change little."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def save(path: Path, seed: int = 0, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed).save(path, **options)
    return path


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Two classes of twelve images, one level deep."""
    for number in range(12):
        save(tmp_path / "cat" / f"{number}.jpg", number)
        save(tmp_path / "dog" / f"{number}.PNG", number)
    return tmp_path


class TestLayouts:
    def test_one_level_is_split_by_file_name(self, flat: Path) -> None:
        dataset = load_dataset(f"folder:{flat}", image_size=16)
        assert dataset.classes == ("cat", "dog")
        assert len(dataset.train) + len(dataset.test) == 24
        assert not set(dataset.train.rows) & set(dataset.test.rows)
        assert (dataset.test.counts(2) >= 1).all() and (dataset.train.counts(2) >= 1).all()

    def test_a_file_stays_on_its_side_when_others_come(self, flat: Path) -> None:
        def tested() -> set[str]:
            test = load_folder(flat).test
            assert isinstance(test.source, FileSource)
            return {test.source.files.path(row) for row in test.rows.tolist()}

        before = tested()
        for number in range(100, 140):
            save(flat / "cat" / f"{number}.jpg", number)
        after = tested()
        assert before <= after and 3 <= len(after - before) <= 14

    def test_two_levels(self, tmp_path: Path) -> None:
        for split, count in (("train", 3), ("val", 2)):
            for number in range(count):
                save(tmp_path / split / "a" / f"{number}.png")
                save(tmp_path / split / "b" / f"{number}.webp")
        (tmp_path / "test").mkdir()  # Without class directories, as ImageNet's.
        dataset = load_folder(tmp_path, image_size=8)
        assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1] and dataset.test.labels.tolist() == [0, 0, 1, 1]
        assert dataset.train.read().shape == (6, 3, 8, 8)

    def test_hidden_and_other_files_are_no_images(self, flat: Path) -> None:
        (flat / ".git").mkdir()
        (flat / "cat" / "._0.jpg").write_bytes(b"resource fork")
        (flat / "cat" / "notes.txt").write_text("soft")
        assert len(load_folder(flat).train.source) == 24

    @pytest.mark.parametrize(
        ("files", "sentence"),
        [
            ([], "has no class directories"),
            (["a/1.png"], "class 'a' has a single image"),
            (["a/1.png", "a/2.png", "b/readme.md"], "class 'b' has no readable image in"),
            (["train/a/1.png"], "neither test/CLASS nor val/CLASS"),
            (["train/a/1.png", "val/a/1.png", "val/b/1.png"], "classes in .*val that are missing in .*train: b"),
            (["train/a/1.png", "train/b/1.png", "test/a/1.png"], "classes in .*train that are missing in .*test: b"),
        ],
    )
    def test_what_cannot_be_used_is_one_sentence(self, tmp_path: Path, files: list[str], sentence: str) -> None:
        for name in files:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(0).save(path) if path.suffix == ".png" else path.write_text("")
        with pytest.raises(UserError, match=sentence):
            load_folder(tmp_path)

    def test_a_missing_path_is_one_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="nowhere is not a directory"):
            load_dataset(f"folder:{tmp_path / 'nowhere'}")
        with pytest.raises(UserError, match="xx is not a directory"):
            load_dataset(f"folder:{'x' * 5000}")

    def test_what_the_system_refuses_to_list_is_one_sentence(self, tmp_path: Path) -> None:
        save(tmp_path / "a" / "1.jpg")
        (tmp_path / "loop").symlink_to("loop")
        with pytest.raises(UserError, match=r"cannot read .*loop: Too many levels of symbolic links"):
            load_folder(tmp_path)


class TestUnreadable:
    def test_one_among_many_is_left_out_and_named(self, flat: Path) -> None:
        truncate(flat / "cat" / "3.jpg")
        (flat / "dog" / "5.PNG").write_bytes(b"")
        dataset = load_folder(flat)
        bad = {str(flat / "cat" / "3.jpg"), str(flat / "dog" / "5.PNG")}
        assert set(skipped_files(dataset)) == bad
        assert len(dataset.train) + len(dataset.test) == 22
        report = check_dataset(f"folder:{flat}")
        assert {problem.split(": ")[0] for problem in report.problems} == bad

    def test_the_last_of_a_class_is_fatal(self, tmp_path: Path) -> None:
        save(tmp_path / "a" / "1.jpg"), save(tmp_path / "a" / "2.jpg")
        truncate(save(tmp_path / "b" / "only.jpg"))
        with pytest.raises(UserError, match=r"class 'b' has no readable image in .*; unreadable: only\.jpg"):
            load_folder(tmp_path)

    @pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "gif", "tif", "webp"])
    def test_truncation_is_seen_in_every_format(self, tmp_path: Path, suffix: str) -> None:
        path = save(tmp_path / f"x.{suffix}")
        assert damage(path) is None and damage(path, thorough=True) is None
        truncate(path)
        assert damage(path) is not None and damage(path, thorough=True) is not None

    def test_a_jpeg_with_something_after_its_end_is_sound(self, tmp_path: Path) -> None:
        path = save(tmp_path / "x.jpg")
        path.write_bytes(path.read_bytes() + b"\0\0appended by a camera")
        assert damage(path) is None

    def test_damage_after_loading_names_the_file(self, flat: Path) -> None:
        train = load_folder(flat).train
        for path in (flat / "cat").iterdir():
            truncate(path)
        with pytest.raises(UserError, match=r"cat/\d+\.jpg cannot be read as an image .*'drcil data check'"):
            train.read()


class TestViews:
    @given(st.integers(20, 300), st.integers(20, 300), st.integers(65, 120))
    def test_the_test_view_is_resize_then_centre_crop(self, width: int, height: int, size: int) -> None:
        image, short = picture(width, width, height), short_side(size)
        scale = short / min(width, height)
        whole = image.resize((int(width * scale + 1e-9), int(height * scale + 1e-9)), Image.Resampling.BILINEAR)
        left, top = round((whole.width - size) / 2), round((whole.height - size) / 2)
        expected = np.asarray(whole.crop((left, top, left + size, top + size))).astype(int)
        assert abs(np.asarray(centre_view(image, size, short)).astype(int) - expected).max() <= 2

    def test_the_short_side_is_256_for_224(self) -> None:
        assert (short_side(224), short_side(112), short_side(32)) == (256, 128, 32)

    def test_a_small_picture_of_the_right_size_is_unchanged(self) -> None:
        image = picture(1, 32, 32)
        assert centre_view(image, 32, short_side(32)).tobytes() == image.tobytes()

    @given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 2**31))
    def test_random_boxes_lie_inside(self, width: int, height: int, seed: int) -> None:
        box = random_box(width, height, Random(seed))
        assert box.left >= 0 and box.top >= 0 and box.width >= 1 and box.height >= 1
        assert box.left + box.width <= width and box.top + box.height <= height

    def test_random_boxes_have_the_areas_and_ratios_asked_for(self) -> None:
        random = Random(0)
        boxes = np.array([random_box(400, 400, random) for _ in range(4000)], dtype=float)
        areas, ratios = boxes[:, 2] * boxes[:, 3] / 400**2, boxes[:, 2] / boxes[:, 3]
        assert 0.079 < areas.min() < 0.085 and areas.max() > 0.95
        # Up to three quarters of a square every ratio fits, so that areas are uniform there.
        assert abs(areas[areas < 0.75].mean() - (0.08 + 0.75) / 2) < 0.01
        assert 0.73 < ratios.min() < 0.77 and 1.31 < ratios.max() < 1.36 and abs(np.log(ratios).mean()) < 0.01

    def test_a_long_picture_falls_back_to_its_centre(self) -> None:
        assert random_box(1000, 10, Random(0)) == (493, 0, 13, 10)

    def test_the_training_view_is_a_crop_of_the_original(self) -> None:
        image = picture(2, 90, 70)
        box = random_box(90, 70, Random(5))
        edges = (box.left, box.top, box.left + box.width, box.top + box.height)
        expected = image.crop(edges).resize((32, 32), Image.Resampling.BILINEAR)
        shown = random_view(image, 32, Random(5)).astype(int)
        assert np.abs(shown - np.asarray(expected)).max() <= 1

    @pytest.mark.parametrize("key", [None, 3])
    def test_decoding_large_jpegs_smaller_is_not_noticed(self, tmp_path: Path, key: int | None) -> None:
        path = tmp_path / "large.jpg"
        picture(4, 1600, 1200).save(path, quality=95)

        def view(image: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
            if key is None:
                return np.asarray(centre_view(image, 96, short_side(96))).astype(np.int64)
            return np.asarray(random_view(image, 96, Random(key))).astype(np.int64)

        with Image.open(path) as lazy, Image.open(path) as loaded:
            loaded.load()
            difference = abs(view(lazy) - view(loaded.copy()))
            assert lazy.size[0] < 1600
        assert difference.mean() < 1 and difference.max() < 12

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_cameras_held_sideways_are_turned(self, tmp_path: Path, orientation: int) -> None:
        # Red on the left half, blue on the right; each tag says how the stored picture must be turned to look so.
        upright = Image.new("RGB", (64, 32), "blue")
        upright.paste("red", (0, 0, 32, 32))
        t = Image.Transpose
        stored_by = {2: t.FLIP_LEFT_RIGHT, 3: t.ROTATE_180, 4: t.FLIP_TOP_BOTTOM, 5: t.TRANSPOSE}
        stored_by |= {6: t.ROTATE_90, 7: t.TRANSVERSE, 8: t.ROTATE_270}
        stored = upright.transpose(stored_by[orientation]) if orientation > 1 else upright
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored.save(tmp_path / "x.png", exif=exif)
        image = FileSource(FileList.of_paths([tmp_path / "x.png"]), 16).read(np.zeros(1, dtype=np.int64))[0]
        assert image[:, 8, 1].tolist() == [255, 0, 0] and image[:, 8, -2].tolist() == [0, 0, 255]

    @pytest.mark.parametrize("tag", ["upright", (6, 6), b"\x06", 99])
    def test_an_orientation_that_is_none_leaves_the_picture_as_it_is(self, tag: object) -> None:
        picture = Image.new("RGB", (64, 32), "blue")
        picture.getexif()[0x0112] = tag
        assert random_view(picture, 16, Random(0))[8, 8].tolist() == [0, 0, 255]
        assert centre_view(picture, 16, 16).getpixel((8, 8)) == (0, 0, 255)

    def test_every_kind_of_picture_becomes_rgb(self) -> None:
        assert flatten(Image.new("L", (1, 1), 7)).getpixel((0, 0)) == (7, 7, 7)
        assert flatten(Image.new("1", (1, 1), 1)).getpixel((0, 0)) == (255, 255, 255)
        assert flatten(Image.new("I;16", (1, 1), 65535)).getpixel((0, 0)) == (255, 255, 255)
        assert flatten(Image.new("I;16", (1, 1), 257 * 100)).getpixel((0, 0)) == (100, 100, 100)
        assert flatten(Image.new("CMYK", (1, 1), (0, 255, 255, 0))).getpixel((0, 0)) == (255, 0, 0)
        assert flatten(Image.new("RGBA", (1, 1), (9, 9, 9, 0))).getpixel((0, 0)) == (255, 255, 255)
        palette = Image.new("RGB", (4, 4), (10, 200, 30)).convert("P", palette=Image.Palette.ADAPTIVE)
        assert flatten(palette).getpixel((0, 0)) == (10, 200, 30)
        palette.info["transparency"] = palette.getpixel((0, 0))
        assert flatten(palette).getpixel((0, 0)) == (255, 255, 255)
        assert flatten(Image.new("LA", (1, 1), (50, 255)), "L").getpixel((0, 0)) == 50


class TestFileSource:
    def test_what_is_shown_depends_on_row_key_and_position_alone(self, flat: Path) -> None:
        source = load_folder(flat, image_size=24).train.source
        rows = np.array([5, 1, 20, 8], dtype=np.int64)
        draw = CropDraw(7, np.array([40, 2, 3, 11]))
        together = source.read(rows, draw)
        picked = [np.array([place]) for place in range(4)]
        alone = [pickle.loads(pickle.dumps(source)).read(rows[one], draw.subset(one)) for one in picked]
        assert torch.equal(together, torch.cat(alone))
        for other in (CropDraw(8, draw.positions), CropDraw(7, draw.positions + 50)):
            same = (together == source.read(rows, other)).flatten(1).all(dim=1)
            assert not same.any()
        assert torch.equal(source.read(rows), source.read(rows[::-1].copy()).flip(0))

    def test_is_found_again_by_its_reference(self, flat: Path) -> None:
        source = load_folder(flat, image_size=24).test.source
        ref = FilesRef.model_validate_json(source.ref.model_dump_json())
        rows = np.arange(24, dtype=np.int64)
        assert torch.equal(find_source(ref).read(rows, CropDraw(1, rows)), source.read(rows, CropDraw(1, rows)))
        save(flat / "cat" / "new.jpg")
        with pytest.raises(UserError, match="images were added, removed or renamed"):
            find_source(ref)

    def test_a_list_of_paths_is_found_again(self, flat: Path) -> None:
        paths = [flat / "dog" / "3.PNG", flat / "cat" / "1.jpg", flat / "cat" / "0.jpg", flat / "dog" / "0.PNG"]
        source = FileSource(FileList.of_paths(paths), 8, channels=1)
        assert [source.name(row) for row in range(4)] == [str(path) for path in paths]
        again = find_source(FilesRef.model_validate_json(source.ref.model_dump_json()))
        assert again.ref == source.ref
        assert torch.equal(again.read(np.arange(4)), source.read(np.arange(4)))

    def test_names_of_any_bytes_survive(self, tmp_path: Path) -> None:
        name = os.fsdecode(b"\xff\xe9 \xc3\xa9.jpg")
        try:
            save(tmp_path / "a" / name, format="JPEG")
        except OSError:
            pytest.skip("this file system wants UTF-8")
        files = FileList.scan(tmp_path, ["a"])
        assert files.name(0) == name and len(files.digest) == 32

    def test_as_many_files_as_imagenet_cost_megabytes(self) -> None:
        files = FileList.of(
            "/data/imagenet/train",
            ((f"n{wnid:08}", [f"n{wnid:08}_{number}.JPEG" for number in range(1300)]) for wnid in range(1000)),
        )
        assert len(files) == 1_300_000
        assert files.path(1_299_999) == "/data/imagenet/train/n00000999/n00000999_1299.JPEG"
        assert len(pickle.dumps(FileSource(files, 224))) < 35e6


@pytest.mark.parametrize("name", ["imagenet100", "imagenet1000", "imagenet100-first"])
def test_imagenet_from_class_directories(tmp_path: Path, name: str) -> None:
    first = ["n01440764", *(f"n0150{number:04}" for number in range(98)), "n01855672"]
    classes = {
        "imagenet100": sorted(draw_order()),
        "imagenet100-first": first,
        "imagenet1000": [f"n{number:08}" for number in range(1000)],
    }[name]
    image = save(tmp_path / "x.JPEG")
    for split in ("train", "val"):
        for wnid in [*classes, "n99999999"] if name != "imagenet1000" else classes:
            place = tmp_path / "imagenet" / split / wnid
            place.mkdir(parents=True)
            os.link(image, place / "x.JPEG")
    dataset = load_dataset(name, tmp_path)
    assert list(dataset.classes) == classes and dataset.train.labels.tolist() == list(range(len(classes)))
    assert dataset.spec.memory == ("20000" if name == "imagenet1000" else "2000")
    assert dataset.test.read(slice(None, 1)).shape == (1, 3, 224, 224)


def mode_of(path: str) -> str:
    with Image.open(path) as picture:
        return picture.mode


@pytest.mark.data
def test_real_photographs(data_dir: Path) -> None:
    dataset = load_dataset(f"folder:{data_dir / 'imagenet-tiny'}", image_size=64)
    assert len(dataset.classes) == 40 and skipped_files(dataset) == ()
    assert (dataset.train.counts(40) == 60).all() and (dataset.test.counts(40) == 20).all()
    source = dataset.train.source
    assert isinstance(source, FileSource)
    grey = next(row for row in range(len(source)) if mode_of(source.name(row)) == "L")
    image = source.read(np.array([grey]))[0]
    assert image.shape == (3, 64, 64) and torch.equal(image[0], image[2]) and image.float().std() > 1

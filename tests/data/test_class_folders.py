"""Images with class names: folders and CSV files, and what is wrong with them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from drcil import Learner
from drcil.data.class_folders import load_labelled_files
from drcil.data.user_images import class_names
from drcil.errors import UserError
from drcil.files import open_regular


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in (("cat", 2), ("dog", 1)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / "pets" / name / f"{number}.png")
    return tmp_path / "pets"


def table(folder: Path, text: str) -> Path:
    (folder / "list.csv").write_text(text, encoding="utf-8", newline="")
    return folder / "list.csv"


def named(place: Path) -> list[tuple[str, str]]:
    found = load_labelled_files(place, 16)
    return [
        (Path(found.images.source.name(row)).name, found.classes[label])
        for row, label in zip(found.images.rows.tolist(), found.images.labels.tolist(), strict=True)
    ]


def test_a_folder_has_a_directory_per_class(folder: Path) -> None:
    assert named(folder) == [("0.png", "cat"), ("1.png", "cat"), ("0.png", "dog")]
    assert load_labelled_files(folder, 16, channels=1).images.shape.channels == 1


@pytest.mark.parametrize(
    "text",
    [
        "file,label\ndog/0.png,hound\ncat/1.png,cat\n",
        "\ufeffLabel,id,Path\r\nhound,7,dog/0.png\r\n\r\ncat,8,cat/1.png",
        'file,note,label\ndog/0.png,"two\nlines",hound\ncat/1.png,a\u2028b\fc,cat\n',
    ],
)
def test_a_table_has_a_row_per_image(folder: Path, text: str) -> None:
    assert named(table(folder, text)) == [("0.png", "hound"), ("1.png", "cat")]


@pytest.mark.parametrize("form", ["folder", "table"])
def test_what_cannot_be_read_is_left_out_and_named(form: str, folder: Path) -> None:
    (folder / "cat" / "broken.jpg").write_bytes(b"no picture")
    rows = "file,label\ncat/0.png,cat\ncat/broken.jpg,cat\n"
    found = load_labelled_files(folder if form == "folder" else table(folder, rows), 16)
    assert [Path(path).name for path in found.skipped] == ["broken.jpg"]
    assert "broken.jpg" not in [Path(found.images.source.name(row)).name for row in found.images.rows.tolist()]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "needs a header with one column 'file' and one column 'label'; it has none"),
        ("a,b\n1,2\n", "it has 'a', 'b'"),
        ("file,path,label\n1,2,3\n", "needs a header with one column 'file'"),
        ("file,label\n", "has no row below its header"),
        ("file,label\ncat/0.png\n", "line 2: expected file, label, but it is 'cat/0.png'"),
        ("file,label\ncat/0.png,cat\ncat/1.png,\n", "line 3: expected file, label"),
        ("file,label\ncat/0.png,cat\n\ncat/9.png,cat\n", r"line 4: there is no image file .*9\.png"),
        ('file,note,label\ncat/0.png,"a\nb",cat\ncat/1.png,\n', "line 4: expected file, note, label"),
        ('file,label\ncat/0.png,"' + "cat\n" * 50_000, "it cannot be read as CSV: field larger than"),
        ("file,label\nlist.csv,cat\n", "class 'cat' of .* has no readable image"),
    ],
)
def test_a_table_that_cannot_be_used_is_told(folder: Path, text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        load_labelled_files(table(folder, text), 16)


def test_a_table_that_is_no_text_is_told(folder: Path) -> None:
    (folder / "list.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not a CSV file in UTF-8"):
        load_labelled_files(folder / "list.csv", 16)


def test_a_folder_that_cannot_be_used_is_told(folder: Path, tmp_path: Path) -> None:
    for place, told in (
        (tmp_path / "nowhere", "there is no folder and no CSV file"),
        (folder / "cat", "has no class directories"),
    ):
        with pytest.raises(UserError, match=told):
            load_labelled_files(place, 16)
    (tmp_path / "splits" / "train" / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match="are splits, not classes: train"):
        load_labelled_files(tmp_path / "splits", 16)


def test_what_was_not_looked_at_is_told(folder: Path) -> None:
    assert load_labelled_files(folder, 16).ignored == ()
    (folder / "cat" / "more").mkdir()
    (folder / "cat" / "photo.HEIC").touch()
    (folder / "cat" / ".hidden").touch()
    Image.new("RGB", (20, 20)).save(folder / "loose.png")
    (folder / "notes.txt").touch()
    assert load_labelled_files(folder, 16).ignored == (
        (str(folder), 1, "loose.png"),
        (str(folder / "cat"), 2, "more"),
    )


def test_a_name_is_the_same_in_every_form_of_unicode(folder: Path) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    (folder / "dog").rename(folder / decomposed)
    assert set(load_labelled_files(folder, 16).classes) == {"cat", composed}
    assert load_labelled_files(table(folder, f"file,label\ncat/0.png,{decomposed}\n"), 16).classes == (composed,)
    assert class_names([decomposed, 7]) == [composed, "7"]


def test_a_name_is_one_line(folder: Path) -> None:
    with pytest.raises(UserError, match=r"line 3: a label is one line without control characters, not 'a\\nb'"):
        load_labelled_files(table(folder, 'file,label\ncat/0.png,"a\nb"\n'), 16)
    (folder / "dog").rename(folder / "d\tog")
    with pytest.raises(UserError, match=r"the name of a class directory in .* is one line"):
        load_labelled_files(folder, 16)


def test_every_directory_is_listed_and_every_file_opened_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    files = sorted(str(path) for path in folder.glob("*/*.png"))
    scandir = os.scandir

    def count_listing(path: Any) -> Any:
        listed[str(path)] += 1
        return scandir(path)

    def count_opening(path: Any, *limit: Any) -> Any:
        opened[str(path)] += 1
        return open_regular(path, *limit)

    monkeypatch.setattr(os, "scandir", count_listing)
    monkeypatch.setattr("drcil.data.decoding.open_regular", count_opening)
    Learner("replay", backbone="resnet20", image_size=16, device="cpu").user_task(folder)
    assert sorted(opened.elements()) == files
    assert sorted(listed.elements()) == sorted({str(folder), *(str(Path(file).parent) for file in files)})
    opened.clear()
    listed.clear()
    Learner("replay", backbone="resnet20", device="cpu").user_task(folder)
    assert sorted(opened.elements()) == sorted([files[0], *files]), "the first once more, for its size"
    assert max(listed.values()) == 1

"""Lists of files: names in order, sizes and times."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from drcil.data.file_source import FileList
from drcil.data.fingerprint import file_statuses
from drcil.errors import UserError

CLASSES = ["cat", "dog", "owl"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in CLASSES:
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.jpg").touch()
    return tmp_path


def paths(files: FileList) -> list[str]:
    return [files.path(row) for row in range(len(files))]


def test_a_list_has_the_images_of_each_directory_by_name(tree: Path) -> None:
    for name in ("notes.txt", ".hidden.jpg", "ä.PNG", "0.jpeg"):
        (tree / "dog" / name).touch()
    (tree / "dog" / "x.jpg").mkdir()
    files = FileList.scan(tree, ["owl", "dog"])
    names = ["0.jpg", "1.jpg", "2.jpg", "0.jpeg", "0.jpg", "1.jpg", "2.jpg", "ä.PNG"]
    assert paths(files) == [str(tree / "owl" / name) for name in names[:3]] + [str(tree / "dog" / n) for n in names[3:]]
    assert files.counts().tolist() == [3, 5]
    assert files.encoded(np.array([7, 0])) == ["ä.PNG".encode(), b"0.jpg"]
    assert files.directory_of(np.array([7, 0, 3])).tolist() == [1, 0, 1]


def test_a_digest_tells_lists_of_names_apart_but_not_roots(tree: Path) -> None:
    groups = [("cat", ["0.jpg", "1.jpg"]), ("dog", ["0.jpg"])]
    digest = FileList.of("/a", groups).digest
    assert digest == FileList.of("/b", groups).digest == "dc1f9a831c71cf118232b94e3ee780f7"
    for other in (
        [("cat", ["0.jpg"]), ("dog", ["1.jpg", "0.jpg"])],
        [("cat", ["0.jpg", "1.jp"]), ("dog", ["g0.jpg"])],
        [("cat", ["0.jpg", "1.jpg"]), ("owl", ["0.jpg"])],
    ):
        assert FileList.of("/a", other).digest != digest


def test_a_directory_that_is_missing_is_named(tree: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*ant: No such file"):
        FileList.scan(tree, ["cat", "ant"])


def test_sizes_and_times_are_those_of_each_file(tree: Path) -> None:
    for row, path in enumerate(paths(FileList.scan(tree, CLASSES))):
        Path(path).write_bytes(b"x" * row)
        os.utime(path, ns=(0, 10**9 * row + 5000))
    rows = np.array([7, 0, 3, 8, 3])
    for files in (FileList.scan(tree, CLASSES), FileList.of_paths(paths(FileList.scan(tree, CLASSES)))):
        sizes, times = file_statuses(files, rows)
        assert sizes.tolist() == rows.tolist()
        assert times.tolist() == [10**6 * row + 5 for row in rows.tolist()]
    (tree / "owl" / "2.jpg").unlink()
    with pytest.raises(UserError, match=r"owl.2\.jpg"):
        file_statuses(files, rows)

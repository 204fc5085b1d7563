"""Listings of very many files: an index is a shortcut, and nothing else."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drcil.data.datasets.folder import load_folder
from drcil.data.sources import listing
from drcil.data.sources.filelist import FileList
from drcil.data.sources.files import FileSource
from drcil.data.sources.listing import listed
from drcil.data.sources.statuses import statuses
from drcil.errors import UserError

CLASSES = ["cat", "dog", "owl"]
REST = 0.03
"""Seconds that stand for the two: a few ticks of the clock of this file system."""

Change = Callable[[Path], None]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in CLASSES:
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.jpg").touch()
    return tmp_path


def kept(root: Path, classes: list[str] = CLASSES) -> FileList:
    """Listed when all is at rest, with an index for however few files."""
    time.sleep(1.2 * REST)
    return listed(root, classes, large=0, settled=REST)


def indices(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.listing"))


def paths(files: FileList) -> list[str]:
    return [files.path(row) for row in range(len(files))]


def count_scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that are read from now on."""
    seen: list[str] = []
    scan = listing.image_names

    def counted(directory: Path) -> list[str]:
        seen.append(directory.name)
        return scan(directory)

    monkeypatch.setattr(listing, "image_names", counted)
    return seen


def test_directories_that_did_not_change_are_not_read_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, scans = kept(tree), count_scans(monkeypatch)
    again = kept(tree)
    assert not scans and again.digest == first.digest == FileList.scan(tree, CLASSES).digest
    (tree / "dog" / "new.png").touch()
    assert str(tree / "dog" / "new.png") in paths(kept(tree))
    assert scans == ["dog"]
    # Other classes of the same root share the index; what it knew of the first stays.
    (tree / "ant").mkdir()
    (tree / "ant" / "0.jpg").touch()
    assert len(kept(tree, ["ant", "owl"])) == 4
    assert scans == ["dog", "ant"]
    assert len(kept(tree, ["owl", "ant", "cat", "dog"])) == 11 and scans == ["dog", "ant"]


def _write_in_place(root: Path) -> None:
    (root / "cat" / "0.jpg").write_bytes(b"other")


def _swap(root: Path) -> None:
    """Of two directories that themselves stay what they are."""
    (root / "cat").rename(root / "x")
    (root / "dog").rename(root / "cat")
    (root / "x").rename(root / "dog")


def _set_back(root: Path) -> None:
    """As programs that copy trees do."""
    before = os.stat(root / "cat")
    (root / "cat" / "0.jpg").unlink()
    os.utime(root / "cat", ns=(before.st_atime_ns, before.st_mtime_ns))


def _link_elsewhere(root: Path) -> None:
    (root / "owl").rename(root / "elsewhere")
    (root / "owl").symlink_to(root / "dog")


CHANGES: dict[str, Change] = {
    "add": lambda root: (root / "cat" / "9.png").touch(),
    "add what is no image": lambda root: (root / "cat" / "9.txt").touch(),
    "remove": lambda root: (root / "dog" / "1.jpg").unlink(),
    "rename": lambda root: (root / "owl" / "1.jpg").rename(root / "owl" / "5.jpg") and None,
    "move": lambda root: (root / "owl" / "1.jpg").rename(root / "cat" / "5.jpg") and None,
    "a directory like a file": lambda root: (root / "owl" / "x.jpg").mkdir(),
    "write in place": _write_in_place,
    "swap": _swap,
    "set back": _set_back,
    "link": _link_elsewhere,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_names_is_seen(tree: Path, change: Change) -> None:
    (tree / "dog" / "only-here.jpg").touch()
    before = paths(kept(tree))
    change(tree)
    assert paths(listed(tree, CLASSES, large=0)) == paths(FileList.scan(tree, CLASSES))
    assert paths(kept(tree)) == paths(FileList.scan(tree, CLASSES))
    unseen = change in (_write_in_place, CHANGES["add what is no image"], CHANGES["a directory like a file"])
    assert (paths(kept(tree)) == before) == unseen


actions = st.tuples(
    st.sampled_from(["add", "remove", "rename", "clear", "wait"]), st.sampled_from(CLASSES), st.integers(0, 4)
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.lists(actions, max_size=4), st.booleans()), max_size=4))
def test_the_list_is_the_same_with_and_without_an_index(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[tuple[str, str, int]], bool]]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for name in CLASSES:
        (root / name).mkdir()
    for changes, wait in steps:
        for action, name, number in changes:
            path = root / name / f"{number}.jpg"
            if action == "add":
                path.touch()
            elif action == "remove":
                path.unlink(missing_ok=True)
            elif action == "rename" and path.exists():
                path.rename(path.with_suffix(".png"))
            elif action == "clear":
                shutil.rmtree(path.parent)
                path.parent.mkdir()
            elif action == "wait":
                time.sleep(0.005)
        found = kept(root) if wait else listed(root, CLASSES, large=0, settled=REST)
        plain = FileList.scan(root, CLASSES)
        assert (paths(found), found.digest) == (paths(plain), plain.digest)
        assert found.counts().tolist() == plain.counts().tolist()


def test_a_directory_that_changed_a_moment_ago_is_not_believed(tree: Path, cache: Path) -> None:
    for name in CLASSES:
        (tree / name / "late.jpg").touch()
    listed(tree, CLASSES, large=0)
    assert not indices(cache)
    kept(tree)
    (tree / "dog" / "later.jpg").touch()
    listed(tree, CLASSES, large=0, settled=REST)
    assert len(listing._read(indices(cache)[0], tree)) == 3, "the others are still known"


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text", "version", "directory", "other root"])
def test_an_index_that_is_not_sound_is_made_anew(
    tree: Path, cache: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tree)
    (index,) = indices(cache)
    content = index.read_bytes()
    if damage == "directory":
        index.unlink()
        index.mkdir()
    elif damage == "other root":
        (tree / "deep").mkdir()
        for name in CLASSES:
            shutil.copytree(tree / name, tree / "deep" / name)
        kept(tree / "deep")
        (other,) = set(indices(cache)) - {index}
        shutil.copy(other, index)
    else:
        index.write_bytes(
            {
                "cut": content[:-5],
                "flip": content[:-1] + bytes([content[-1] ^ 1]),
                "empty": b"",
                "text": b"nothing of the kind\n",
                "version": content.replace(b'"format": 1', b'"format": 2'),
            }[damage]
        )
    scans = count_scans(monkeypatch)
    assert paths(kept(tree)) == paths(FileList.scan(tree, CLASSES))
    assert sorted(scans) == CLASSES
    scans.clear()
    assert paths(kept(tree)) == paths(FileList.scan(tree, CLASSES))
    assert (not scans) == (damage != "directory"), "what stands in the way is left there"


def test_a_cache_that_cannot_be_written_to_is_done_without(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tree / "file"))
    assert len(kept(tree)) == 9
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "nowhere")
    assert len(kept(tree)) == 9 and not (Path.cwd() / "relative").exists()


def test_few_files_leave_no_index(tree: Path, cache: Path) -> None:
    time.sleep(1.2 * REST)
    listed(tree, CLASSES, settled=REST)
    listed(tree, CLASSES, large=9, settled=REST)
    assert not list(cache.iterdir())
    listed(tree, CLASSES, large=8, settled=REST)
    assert len(indices(cache)) == 1


def test_the_cache_stays_small(tree: Path, cache: Path) -> None:
    for number in range(10):
        (tree / f"root{number}" / "a").mkdir(parents=True)
        (tree / f"root{number}" / "a" / "0.jpg").touch()
    for number in range(10):
        kept(tree / f"root{number}", ["a"])
    assert len(indices(cache)) == 8


def test_what_was_refused_is_refused_with_an_index(tree: Path) -> None:
    kept(tree)
    shutil.rmtree(tree / "owl")
    with pytest.raises(UserError, match="owl"):
        kept(tree)


def test_sizes_and_times_are_those_of_each_file(tree: Path) -> None:
    for row, path in enumerate(paths(FileList.scan(tree, CLASSES))):
        Path(path).write_bytes(b"x" * row)
        os.utime(path, ns=(0, 10**9 * row + 5000))
    rows = np.array([7, 0, 3, 8, 3])
    for files in (FileList.scan(tree, CLASSES), FileList.of_paths(paths(FileList.scan(tree, CLASSES)))):
        sizes, times = statuses(files, rows)
        assert sizes.tolist() == rows.tolist()
        assert times.tolist() == [10**6 * row + 5 for row in rows.tolist()]
    (tree / "owl" / "2.jpg").unlink()
    with pytest.raises(UserError, match=r"owl.2\.jpg"):
        statuses(files, rows)


@pytest.mark.slow
def test_a_large_folder_is_listed_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the datasets' own door, at the size from which there is an index."""
    for split, classes, each in (("train", 8, 12_501), ("test", 8, 1)):
        for number in range(classes):
            directory = tmp_path / split / f"class{number}"
            directory.mkdir(parents=True)
            for file in range(each):
                (directory / f"{file}.pgm").write_bytes(b"P5 1 1 255\n\0" if split == "test" else b"")
    time.sleep(2.1)
    first = load_folder(tmp_path)
    (index,) = indices(cache)
    assert stat.S_ISREG(index.stat().st_mode) and index.stat().st_size < 15 * 100_008
    scans = count_scans(monkeypatch)
    again = load_folder(tmp_path)
    assert isinstance(first.train.source, FileSource) and isinstance(again.train.source, FileSource)
    assert len(scans) == 8, "the test images are few"
    assert again.train.source.files.digest == first.train.source.files.digest
    assert len(again.train) == 100_008

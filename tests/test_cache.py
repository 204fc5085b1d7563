"""The cache of decoded pictures: nothing looks different through it, and its budget is kept."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from drcil.data.sources.cache import CachedPictures, PictureCache, require_forked, through
from drcil.data.sources.decode import Picture
from drcil.data.sources.filelist import FileList
from drcil.data.sources.files import FileSource
from drcil.data.sources.imageset import ArraySource, ChainSource, Draw, ImageSet
from drcil.data.sources.reader import Reader, cut
from drcil.errors import UserError
from drcil.runs.settings import make_settings
from drcil.train import EngineSettings
from small_engine import make_engine

SIZE = 16
SHAPES = [(20, 30), (16, 16), (40, 18), (63, 90), (64, 80), (200, 150), (25, 25), (31, 17)]
"""Width and height; of a short side of 64 on, some views are decoded at a smaller scale."""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """JPEGs, every other one turned by its EXIF entry, and a transparent PNG."""
    random = np.random.default_rng(0)
    paths = []
    for index, (width, height) in enumerate(SHAPES):
        picture = Image.fromarray(random.integers(0, 256, (height // 2, width // 2, 3), dtype=np.uint8))
        exif = Image.Exif()
        exif[274] = 6 if index % 2 else 1
        paths.append(tmp_path / f"{index}.jpg")
        picture.resize((width, height)).save(paths[-1], exif=exif)
    paths.append(tmp_path / "clear.png")
    Image.fromarray(random.integers(0, 256, (22, 19, 4), dtype=np.uint8)).save(paths[-1])
    return paths


def source_of(files: list[Path], channels: int = 3) -> FileSource:
    return FileSource(FileList.of_paths(files), SIZE, channels=channels)


def kept_rows(cached: CachedPictures) -> list[int]:
    return np.flatnonzero(cached.table[:, 0]).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_the_same_bit_for_bit(files: list[Path], channels: int) -> None:
    plain = source_of(files, channels)
    cached = CachedPictures(plain, PictureCache(1 << 20))
    rows = np.arange(len(files))
    for draw in (None, Draw(1, rows), Draw(2, rows), None, Draw(1, rows + 5)):
        assert torch.equal(cached.read(rows, draw), plain.read(rows, draw))
    assert kept_rows(cached) == [0, 1, 2, 3, 6, 7, 8], "those that are never decoded smaller"


def test_pictures_are_decoded_once(files: list[Path]) -> None:
    plain = source_of(files)
    cached = CachedPictures(plain, PictureCache(1 << 20))
    rows = np.array([0, 8])
    first = cached.read(rows, Draw(5, rows))
    for file in (files[0], files[8]):
        file.unlink()
    assert torch.equal(cached.read(rows, Draw(5, rows)), first)
    with pytest.raises(UserError, match="cannot be read"):
        plain.read(rows, Draw(5, rows))


@pytest.mark.parametrize("budget", [1, 2000, 6000, 12_000])
def test_the_budget_is_kept_and_what_does_not_fit_is_read_from_disk(files: list[Path], budget: int) -> None:
    plain, cache = source_of(files), PictureCache(budget)
    cached = CachedPictures(plain, cache)
    rows = np.arange(len(files))
    for key in (1, 2):
        draw = Draw(key, rows)
        assert torch.equal(cached.read(rows, draw), plain.read(rows, draw))
    kept = [3 * int(np.prod(cached.table[row, 1:])) for row in kept_rows(cached)]
    assert sum(kept) == cache.used <= budget
    assert (len(kept) > 0) == (budget >= 1800)


def test_a_cleared_cache_begins_anew(files: list[Path]) -> None:
    plain, other, cache = source_of(files[:3]), source_of(files[6:]), PictureCache(6000)
    CachedPictures(plain, cache).read(np.arange(3))
    full = CachedPictures(other, cache)
    assert torch.equal(full.read(np.arange(3)), other.read(np.arange(3))) and len(kept_rows(full)) < 3
    cache.clear()
    assert cache.used == 0
    fresh = CachedPictures(other, cache)
    draw = Draw(4, np.arange(3))
    assert torch.equal(fresh.read(np.arange(3), draw), other.read(np.arange(3), draw)) and len(kept_rows(fresh)) == 3


def test_workers_share_it_and_leave_it_to_those_that_come_after(files: list[Path]) -> None:
    array = ArraySource(torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8))
    plain, cache = source_of(files), PictureCache(1 << 20)
    chain = ChainSource([array, plain])
    rows = np.arange(len(chain))
    pieces = cut(rows[::-1].copy(), 2)

    def read(workers: int, source: ChainSource | None = None) -> list[Tensor]:
        images = ImageSet(source or through(cache, chain), rows, np.zeros_like(rows))
        return list(Reader(images, workers).read(pieces, 9))

    expected = read(0, chain)
    for workers in (2, 0, 2):
        assert all(torch.equal(one, other) for one, other in zip(read(workers), expected, strict=True))
        kept = CachedPictures(plain, cache)
        assert kept_rows(kept) == [0, 1, 2, 3, 6, 7, 8]
    assert cache.used == sum(3 * int(np.prod(kept.table[row, 1:])) for row in kept_rows(kept))


@pytest.fixture
def spawning() -> Iterator[None]:
    """Another default than fork, as systems other than Linux and later versions of Python have it."""
    usual = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(usual, force=True)


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux")
def test_workers_share_it_whatever_the_default_start_method(files: list[Path], spawning: None) -> None:
    plain, cache = source_of(files), PictureCache(1 << 20)
    rows = np.arange(len(plain))
    require_forked(2)
    reader = Reader(ImageSet(through(cache, plain), rows, np.zeros_like(rows)), 2)
    (first, second) = reader.read(cut(rows, 5), 9)
    assert torch.equal(torch.cat([first, second]), plain.read(rows, Draw(9, rows)))
    assert kept_rows(CachedPictures(plain, cache)) == [0, 1, 2, 3, 6, 7, 8]


def test_pictures_are_opened_once_a_view_also_those_too_large_to_keep(files: list[Path]) -> None:
    opened: list[int] = []

    class Counting(FileSource):
        def quick_picture(self, row: int) -> AbstractContextManager[Picture]:
            opened.append(row)
            return super().quick_picture(row)

    cached = CachedPictures(Counting(FileList.of_paths(files), SIZE), PictureCache(1 << 20))
    rows = np.array([0, 5])
    for draw in (None, Draw(1, rows)):
        cached.read(rows, draw)
    assert opened == [0, 5, 5]


def test_an_engine_reads_through_its_cache_and_empties_it_for_a_task(files: list[Path]) -> None:
    engine = make_engine(cache="1MB", workers=0)
    images = ImageSet(source_of(files), np.arange(9), np.zeros(9, dtype=np.int64))
    (read,) = engine.inference.reader(images).read([np.arange(9)], 3)
    assert torch.equal(read, images.source.read(images.rows, Draw(3, np.arange(9))))
    cache = engine.inference.reader(images).images.source.cache  # type: ignore[attr-defined]
    assert cache.used > 0
    with engine.task(1):
        assert cache.used == 0


def test_sizes_are_read_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EngineSettings.model_validate({"cache": "2GB"}).cache == 2 * 10**9
    assert EngineSettings.model_validate({"cache": "1.5MiB"}).model_dump(mode="json")["cache"] == 3 * 2**19
    with pytest.raises(UserError, match=r"cannot allocate a cache of 2\d+ bytes .*; use a smaller one"):
        PictureCache(2 * 10**24)
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    require_forked(0)
    with pytest.raises(UserError, match="--cache cannot be shared with worker processes"):
        require_forked(2)


def test_runs_with_compiled_nets_are_other_runs_and_those_with_a_cache_are_not() -> None:
    settings = make_settings(method="icarl", stream="digits-b0-5", engine={"cache": "2GB", "compile": True})
    plain = make_settings(method="icarl", stream="digits-b0-5", engine={"cache": "1MB"})
    assert plain.choices() == make_settings(method="icarl", stream="digits-b0-5").choices(), "a cache changes nothing"
    assert settings.choices() != plain.choices(), "compiled nets round in their own way"
    with pytest.raises(UserError, match=r"engine\.cache"):
        make_settings(method="icarl", stream="digits-b0-5", engine={"cache": "lots"})

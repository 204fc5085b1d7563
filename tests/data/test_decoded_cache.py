"""The cache of decoded pictures: nothing looks different through it, and its budget is kept."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from drcil.data.decoding import Picture
from drcil.data.file_source import FileList, FileSource
from drcil.data.image_set import ArraySource, CropDraw, ImageSet
from drcil.data.loader import BatchReader, PictureCache, require_forked, split_batches
from drcil.errors import UserError
from drcil.runs.plan import complete
from drcil.settings import RunSettings
from drcil.train import EngineSettings
from support.engine import make_engine

SIZE = 16
SHAPES = [(20, 30), (16, 16), (40, 18), (63, 90), (64, 80), (200, 150), (25, 25), (31, 17), (19, 22)]
"""Width and height; from a short side of 64 on, some views are decoded at a smaller scale."""
CACHED = [0, 1, 2, 3, 6, 7, 8]
"""The pictures that are never decoded at a smaller scale."""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """JPEGs, every other one turned by its EXIF entry, and a transparent PNG."""
    random = np.random.default_rng(0)
    paths = []
    for index, (width, height) in enumerate(SHAPES[:-1]):
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


def cached_reader(source: FileSource, cache: PictureCache) -> Callable[..., Tensor]:
    """Reads rows of a source through a cache."""
    cache.add_table(source)
    return lambda rows, crops=None: source.read(rows, crops, cache)


@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_the_same_bit_for_bit(files: list[Path], channels: int) -> None:
    plain, cache = source_of(files, channels), PictureCache(1 << 20)
    read = cached_reader(plain, cache)
    rows = np.arange(len(files))
    for crops in (None, CropDraw(1, rows), CropDraw(2, rows), None, CropDraw(1, rows + 5)):
        assert torch.equal(read(rows, crops), plain.read(rows, crops))
    assert cache.rows(plain).tolist() == CACHED


def test_pictures_are_decoded_once(files: list[Path]) -> None:
    plain = source_of(files)
    read = cached_reader(plain, PictureCache(1 << 20))
    rows = np.array([0, 8])
    first = read(rows, CropDraw(5, rows))
    for file in (files[0], files[8]):
        file.unlink()
    assert torch.equal(read(rows, CropDraw(5, rows)), first)
    with pytest.raises(UserError, match="cannot be read"):
        plain.read(rows, CropDraw(5, rows))


@pytest.mark.parametrize("budget", [1, 2000, 6000, 12_000])
def test_the_budget_is_kept_and_what_does_not_fit_is_read_from_disk(files: list[Path], budget: int) -> None:
    plain, cache = source_of(files), PictureCache(budget)
    read = cached_reader(plain, cache)
    rows = np.arange(len(files))
    for key in (1, 2):
        crops = CropDraw(key, rows)
        assert torch.equal(read(rows, crops), plain.read(rows, crops))
    assert sum(3 * int(np.prod(SHAPES[row])) for row in cache.rows(plain)) == cache.used <= budget
    assert (len(cache.rows(plain)) > 0) == (budget >= 1800)


def test_a_cleared_cache_is_filled_again(files: list[Path]) -> None:
    plain, other, cache = source_of(files[:3]), source_of(files[6:]), PictureCache(6000)
    cached_reader(plain, cache)(np.arange(3))
    full = cached_reader(other, cache)
    assert torch.equal(full(np.arange(3)), other.read(np.arange(3))) and len(cache.rows(other)) < 3
    cache.clear()
    assert cache.used == 0
    fresh, crops = cached_reader(other, cache), CropDraw(4, np.arange(3))
    assert torch.equal(fresh(np.arange(3), crops), other.read(np.arange(3), crops)) and len(cache.rows(other)) == 3


def test_workers_share_it_and_leave_it_to_later_ones(files: list[Path]) -> None:
    array = ArraySource(torch.zeros(2, 3, SIZE, SIZE, dtype=torch.uint8))
    plain, cache = source_of(files), PictureCache(1 << 20)
    images = ImageSet.unlabelled(array).join(ImageSet.unlabelled(plain))
    pieces = split_batches(np.arange(len(images))[::-1].copy(), 2)
    expected = list(BatchReader(images, 0).read(pieces, 9))
    for workers in (2, 0, 2):
        read = BatchReader(images, workers, cache=cache).read(pieces, 9)
        assert all(torch.equal(one, other) for one, other in zip(read, expected, strict=True))
        assert cache.rows(plain).tolist() == CACHED
    assert cache.used == sum(3 * int(np.prod(SHAPES[row])) for row in CACHED)


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
    reader = BatchReader(ImageSet.unlabelled(plain), 2, cache=cache)
    (first, second) = reader.read(split_batches(rows, 5), 9)
    assert torch.equal(torch.cat([first, second]), plain.read(rows, CropDraw(9, rows)))
    assert cache.rows(plain).tolist() == CACHED


def test_pictures_are_opened_once_a_view_also_those_too_large_to_keep(files: list[Path]) -> None:
    opened: list[int] = []

    class Counting(FileSource):
        def quick_picture(self, row: int) -> AbstractContextManager[Picture]:
            opened.append(row)
            return super().quick_picture(row)

    read = cached_reader(Counting(FileList.of_paths(files), SIZE), PictureCache(1 << 20))
    rows = np.array([0, 5])
    for crops in (None, CropDraw(1, rows)):
        read(rows, crops)
    assert opened == [0, 5, 5]


def test_an_engine_reads_through_its_cache_and_empties_it_for_a_task(files: list[Path]) -> None:
    engine = make_engine(cache="1MB", workers=0)
    images, cache = ImageSet.unlabelled(source_of(files)), engine.inference.cache
    (read,) = engine.inference.reader(images).read([np.arange(9)], 3)
    assert torch.equal(read, images.read(crops=CropDraw(3, np.arange(9))))
    assert cache is not None and cache.used > 0
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
    compiled = EngineSettings.model_validate({"cache": "2GB", "compile": True})
    settings = complete(RunSettings(method="icarl", stream="digits-b0-5", engine=compiled))
    cached = EngineSettings.model_validate({"cache": "1MB"})
    plain = complete(RunSettings(method="icarl", stream="digits-b0-5", engine=cached))
    assert plain.identity() == complete(RunSettings(method="icarl", stream="digits-b0-5")).identity(), (
        "a cache changes nothing"
    )
    assert settings.identity() != plain.identity(), "compiled nets round in their own way"
    with pytest.raises(UserError, match="cache cannot be 'lots'"):
        RunSettings.parse({"method": "icarl", "stream": "digits-b0-5", "cache": "lots"})

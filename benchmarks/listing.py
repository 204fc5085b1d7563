"""Benchmarks of a folder of very many files: what it takes to list it from the index of an earlier listing.

Making the 1.3 million files of ImageNet takes longer than all other rows together. A tenth of them is made, and the
targets are a tenth of 10 s and 100 MiB: an index is read and checked in proportion to its size.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from drcil.data.sources.filelist import FileList, directory_names
from drcil.data.sources.listing import SETTLED, listed
from drcil.errors import UserError

from .footprint import printed
from .rows import Measurement, benchmark
from .scene import Scene
from .timing import seconds_of

DIRECTORIES, EACH = 100, 1300
_PEAK, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET = "5"
"""Written to the former, the latter's peak begins anew."""


class Listing(NamedTuple):
    """Seconds of a listing without and with an index, and the MiB by which memory grew at most with it."""

    scanned: float
    indexed: float
    memory: float
    files: int


def make_tree(root: Path, directories: int = DIRECTORIES, each: int = EACH) -> None:
    """Empty files that are called like ImageNet's."""
    for number in range(directories):
        directory = root / f"n{number:08d}"
        directory.mkdir(parents=True)
        for file in range(each):
            os.close(os.open(directory / f"n{number:08d}_{file}.JPEG", os.O_CREAT | os.O_WRONLY))


@cache
def measured_listing(directories: int = DIRECTORIES, each: int = EACH) -> Listing:
    """Each in a process of its own, which has listed nothing before."""
    if not _PEAK.exists():
        raise UserError(f"peak memory is measured by {_PEAK}, which this system does not have")
    with TemporaryDirectory() as place:
        root, own = Path(place, "data"), {"XDG_CACHE_HOME": str(Path(place, "cache"))}
        make_tree(root, directories, each)
        time.sleep(1.1 * SETTLED)
        code = f"from benchmarks.listing import report; report({str(root)!r})"
        scanned, indexed = (json.loads(printed(code, **own)) for _ in range(2))
        if not list(Path(place, "cache").rglob("*.listing")) or scanned["digest"] != indexed["digest"]:
            raise UserError("the second listing did not come from the index of the first")
    return Listing(scanned["seconds"], indexed["seconds"], indexed["memory"], indexed["files"])


def report(root: str) -> None:
    """In a process of its own: list a folder, and print what it took as JSON."""
    found: list[FileList] = []
    _PEAK.write_text(_RESET)
    before = _kib("VmRSS")
    seconds = seconds_of(lambda: found.append(listed(root, directory_names(Path(root)))))
    memory = (_kib("VmHWM") - before) / 1024
    (files,) = found
    print(json.dumps({"seconds": seconds, "memory": memory, "files": len(files), "digest": files.digest}))


def _kib(name: str) -> int:
    return int(next(line.split()[1] for line in _STATUS.read_text().splitlines() if line.startswith(name)))


@benchmark("listing-seconds", "130,000 files listed from an index", target=1.0, better="lower", unit="s")
def listing_seconds(scene: Scene) -> Measurement:
    found = measured_listing()
    return Measurement(found.indexed, f"{found.files} files; {found.scanned:.2f} s without an index")


@benchmark(
    "listing-memory", "the most memory that listing 130,000 files takes", target=10.0, better="lower", unit="MiB"
)
def listing_memory(scene: Scene) -> Measurement:
    found = measured_listing()
    return Measurement(found.memory, f"{1024 * found.memory / found.files * 1024:.0f} bytes per file, at the peak")

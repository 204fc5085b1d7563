"""Runs wherever they are: in their directories, in those of comparisons and suites, or as stored evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, legible
from ..reading import checksum, is_file, read_json
from ..runs.begin import RUNS
from ..runs.evidence import Evidence, evidence_of, read_evidence
from ..runs.run import Run
from ..runs.settings import CONFIG
from .answer import SUITE
from .comparison import COMPARISON


@dataclass(frozen=True)
class Records:
    """What was found."""

    found: tuple[Evidence, ...]
    passed_over: tuple[str, ...]
    """Why some runs are not among it, a sentence each."""


def find_records(places: Sequence[Path]) -> Records:
    """The runs of these places, each once. What is wrong with one of many is told; with the only one it is an error."""
    found: list[Evidence] = []
    problems: list[UserError] = []
    seen: set[Path] = set()
    keys: set[str] = set()
    for place in places:
        here = list(_below(place.expanduser()))
        if not here:
            raise UserError(f"no runs found in '{place}'; give runs, directories of runs, of suites, or of evidence")
        for path in here:
            if path.resolve() not in seen:
                seen.add(path.resolve())
                try:
                    one = read_evidence(path) if is_file(path) else evidence_of(Run.read(path))
                except UserError as error:
                    problems.append(error)
                    continue
                # A run and its evidence are one run; a clock tells runs apart that were made twice.
                key = checksum([one.settings.choices(), one.result["seconds"]])
                if key not in keys:
                    keys.add(key)
                    found.append(one)
    if not found:
        raise problems[0]
    return Records(tuple(found), tuple(str(problem) for problem in problems))


def _below(place: Path) -> Iterator[Path]:
    """Run directories and files of evidence at a place."""
    if is_file(place):
        yield place
        return
    if not place.is_dir():
        raise UserError(f"there is nothing at '{place}'")
    if is_file(place / CONFIG):
        yield place
        return
    yield from _listed(place)
    for pattern in (f"*/{CONFIG}", f"{RUNS}/*/{CONFIG}"):
        yield from (config.parent for config in sorted(place.glob(pattern)))
    yield from (file for file in sorted(place.glob("*.json")) if _is_evidence(file))


def _listed(place: Path) -> Iterator[Path]:
    """The runs that a comparison or a suite names: seen from where it was run, or from here."""
    for folder in (COMPARISON, SUITE):
        if is_file(place / folder.file):
            for name in dict.fromkeys(_directories(read_json(place / folder.file))):
                places = [place.absolute().parents[1] / name, Path(name)]
                # One that is nowhere is told of, where it is read.
                yield next((path for path in places if is_file(path / CONFIG)), places[0])


def _directories(answer: Any) -> Iterator[str]:
    """What an answer of any shape names as directories of runs."""
    if isinstance(answer, list):
        for one in answer:
            yield from _directories(one)
    elif isinstance(answer, dict):
        for name, value in answer.items():
            if name == "directory" and isinstance(value, str):
                yield value
            elif name == "runs" and isinstance(value, list):
                yield from (one for one in value if isinstance(one, str))
                yield from _directories(value)
            else:
                yield from _directories(value)


def _is_evidence(file: Path) -> bool:
    with suppress(UserError):
        found = read_json(file)
        return isinstance(found, dict) and "evidence" in found
    # One that cannot be read is told of, where it is read.
    return legible(file.name) not in (COMPARISON.file, SUITE.file)

"""Whatever becomes of the files that drcil reads: a right answer or a sentence, and nothing is lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from support.faults import VERBS, Case, a_third_of_cases, all_cases, expected_answers, make_all, violation

FAST = 40
"""Cases of the fast suite."""


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("things")
    make_all(place)
    return place


@pytest.fixture(scope="module")
def expected(things: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    return expected_answers(things, tmp_path_factory.mktemp("expected"))


def broken_laws(
    cases: list[Case], things: Path, expected: dict[tuple[str, str], Any], scratch: Path
) -> dict[Case, str]:
    found = {case: violation(case, things, scratch, expected) for case in cases}
    return {case: reason for case, reason in found.items() if reason is not None}


def test_a_sample_of_all_faults(things: Path, expected: dict[tuple[str, str], Any], tmp_path: Path) -> None:
    cases = [case for case in all_cases(things) if case.verb not in ("compare", "run") and case.thing != "stopped"]
    sample = random.Random(0).sample(cases, FAST)
    assert not broken_laws(sample, things, expected, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("thing", VERBS)
def test_faults_in_every_file(thing: str, things: Path, expected: dict[tuple[str, str], Any], tmp_path: Path) -> None:
    """A third of them. ``make fuzz`` tries others for as long as one likes."""
    cases = a_third_of_cases(things, thing)
    assert cases
    assert not broken_laws(cases, things, expected, tmp_path)

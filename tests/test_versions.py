"""Versions of a model: a change is seen whole or not at all, and can be undone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import drcil
from drcil.disk import write_bytes
from drcil.errors import UserError
from drcil.models.directory import write_model
from drcil.models.versions import CURRENT, VERSIONS, add_version, changing, current_version, is_versioned, undo


def saying(word: str) -> Callable[[Path], None]:
    return lambda place: write_bytes(place / "word", word.encode())


def word(path: Path) -> str:
    return (current_version(path) / "word").read_text()


def names(path: Path) -> list[str]:
    return sorted(place.name for place in (path / VERSIONS).iterdir())


def test_the_newest_is_current_and_the_oldest_go(tmp_path: Path) -> None:
    assert not is_versioned(tmp_path)
    for number in range(1, 8):
        add_version(tmp_path, saying(str(number)), kept=3)
        assert is_versioned(tmp_path) and word(tmp_path) == str(number)
    assert names(tmp_path) == ["0005", "0006", "0007"]


def test_undoing_goes_back_as_far_as_versions_are_kept(tmp_path: Path) -> None:
    for one in ("a", "b", "c"):
        add_version(tmp_path, saying(one), kept=2)
    assert undo(tmp_path) == tmp_path / VERSIONS / "0002" and word(tmp_path) == "b"
    assert names(tmp_path) == ["0002"]
    with pytest.raises(UserError, match="cannot be undone: no earlier version of it is kept"):
        undo(tmp_path)
    add_version(tmp_path, saying("d"))
    assert word(tmp_path) == "d"


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    add_version(tmp_path, saying("old"))

    def fail(place: Path) -> None:
        saying("new")(place)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_version(tmp_path, fail)
    assert word(tmp_path) == "old" and names(tmp_path) == ["0001"]


def test_a_version_that_was_written_but_not_taken_into_use_is_passed_over(tmp_path: Path) -> None:
    """As after a kill between the two; the next change takes a number above it."""
    add_version(tmp_path, saying("old"))
    saying("lost")(tmp_path / VERSIONS / "0002")
    assert word(tmp_path) == "old"
    assert add_version(tmp_path, saying("new")).name == "0003"
    assert word(tmp_path) == "new"


@pytest.mark.parametrize(
    ("content", "told"), [("{", "is not valid JSON"), ('{"version": "0009"}', "is damaged"), ("[]", "is damaged")]
)
def test_a_damaged_line_is_told(content: str, told: str, tmp_path: Path) -> None:
    add_version(tmp_path, saying("x"))
    (tmp_path / CURRENT).write_text(content)
    with pytest.raises(UserError, match=told):
        current_version(tmp_path)


def test_a_version_that_is_gone_is_told(tmp_path: Path) -> None:
    place = add_version(tmp_path, saying("x"))
    place.rename(tmp_path / "taken")
    with pytest.raises(UserError, match=r"names version 0001, but .* does not have it"):
        current_version(tmp_path)


@pytest.mark.slow
def test_one_process_changes_it_at_a_time(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\nfrom drcil.models.versions import changing\n"
        "with changing(pathlib.Path(sys.argv[1])): print('in')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model")]
    with changing(tmp_path / "model"):
        refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode and "another process is changing" in refused.stderr
    assert subprocess.run(command, capture_output=True, text=True).stdout == "in\n"


def test_the_current_version_is_the_model(tmp_path: Path) -> None:
    learner = drcil.Learner("replay", epochs_scale=0.001, device="cpu")
    learner.learn(drcil.stream("digits-b0-5")[0])
    add_version(tmp_path / "model", lambda place: write_model(learner.model, place))
    assert drcil.load(tmp_path / "model", device="cpu").classes == learner.classes
    assert drcil.load_predictor(tmp_path / "model", device="cpu").classes == learner.classes

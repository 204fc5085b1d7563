"""Versions of a model: a change is seen whole or not at all, and can be undone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import drcil
from drcil.disk import write_bytes, write_sealed
from drcil.errors import UserError
from drcil.models.directory import write_model
from drcil.models.state import ModelState, parse_state
from drcil.models.versions import (
    CURRENT,
    LOCK,
    VERSIONS,
    add_version,
    changing,
    current_version,
    earlier_version,
    is_versioned,
    read_current,
    undo,
)
from drcil.reading import read_bytes


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


def test_a_version_that_was_never_in_use_is_not_gone_back_to(tmp_path: Path) -> None:
    """As after a kill between writing it and taking it into use, or between undoing it and removing it."""
    for one in ("old", "undone", "undone too"):
        add_version(tmp_path, saying(one))
    write_sealed(tmp_path / CURRENT, {"version": "0001"})
    assert word(tmp_path) == "old"
    with changing(tmp_path):
        assert names(tmp_path) == ["0001"]
        assert add_version(tmp_path, saying("new")).name == "0002"
    with changing(tmp_path):
        undo(tmp_path)
    assert word(tmp_path) == "old" and names(tmp_path) == ["0001"]


def test_a_first_version_that_was_never_in_use_is_begun_anew(tmp_path: Path) -> None:
    saying("lost")(tmp_path / VERSIONS / "0001")
    with changing(tmp_path):
        add_version(tmp_path, saying("first"))
    assert word(tmp_path) == "first" and names(tmp_path) == ["0001"]
    add_version(tmp_path, saying("second"))
    (tmp_path / CURRENT).unlink()
    with pytest.raises(UserError, match=r"no current\.json that says which is in use; restore it"), changing(tmp_path):
        pass
    assert names(tmp_path) == ["0001", "0002"], "a line that was lost costs no version"


def test_what_a_killed_writer_left_goes_with_the_next_change(tmp_path: Path) -> None:
    add_version(tmp_path, saying("old"))
    left = tmp_path / VERSIONS / ".0002.424242.tmp"
    saying("half")(left)
    write_bytes(tmp_path / f".{CURRENT}.424242.tmp", b"{")
    with changing(tmp_path):
        assert names(tmp_path) == ["0001"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [LOCK, CURRENT, VERSIONS]


def killed_before(step: int, path: Path, change: Callable[[Path], object]) -> bool:
    """Let another process make the change, and kill it before a step: a rename, a removal, a new directory."""
    child = os.fork()
    if not child:
        steps = 0

        def count(event: str, given: tuple[object, ...]) -> None:
            nonlocal steps
            if event in ("os.rename", "os.rmdir", "os.remove", "os.mkdir"):
                steps += 1
                if steps == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        with changing(path):
            sys.addaudithook(count)
            change(path)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def add_new(path: Path) -> None:
    add_version(path, saying("new"), kept=2)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("change", [undo, add_new])
def test_killed_at_any_step_only_versions_that_were_in_use_are_gone_back_to(
    change: Callable[[Path], object], tmp_path: Path
) -> None:
    back = {"new": ["latest", "middle", "oldest"], "latest": ["middle", "oldest"], "middle": ["oldest"]}
    for step in range(1, 30):
        path = tmp_path / str(step)
        for one in ("oldest", "middle", "latest"):
            add_version(path, saying(one))
        killed = killed_before(step, path, change)
        now = word(path)
        assert now in (("latest", "middle") if change is undo else ("latest", "new"))
        with changing(path):
            add_version(path, saying("later"))
        seen = []
        while earlier_version(path):
            with changing(path):
                undo(path)
            seen.append(word(path))
        whole = [now, *back[now]]
        assert seen == whole[: len(seen)] and len(seen) >= 2, "the oldest may be gone"
        assert names(path) == [current_version(path).name]
        if not killed:
            assert step > 5
            return
    pytest.fail("the change never came to its end")


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


def test_who_reads_a_version_that_goes_reads_the_one_that_is_current_then(tmp_path: Path) -> None:
    for one in ("a", "b"):
        add_version(tmp_path, saying(one))
    seen = []

    def read(place: Path) -> str:
        seen.append(place.name)
        if len(seen) == 1:
            undo(tmp_path)
        elif len(seen) == 2:
            # Another version under the number of one that was undone.
            add_version(tmp_path, saying("c"), kept=1)
        return read_bytes(place / "word").decode()

    assert read_current(tmp_path, read) == "c" and seen == ["0002", "0001", "0002"]


def test_reading_ends_though_changes_do_not(tmp_path: Path) -> None:
    add_version(tmp_path, saying("a"))
    seen = []

    def read(place: Path) -> bytes:
        seen.append(place.name)
        add_version(tmp_path, saying("later"), kept=1)
        return read_bytes(place / "word")

    with pytest.raises(UserError, match=r"cannot read .*word"):
        read_current(tmp_path, read)
    assert seen == ["0001", "0002", "0003", "0004", "0005"]
    with pytest.raises(UserError, match="missing"):
        read_current(tmp_path, lambda place: seen.append("once") or read_bytes(place / "missing"))
    assert seen[5:] == ["once"], "where nothing has changed, it is not tried again"


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


def test_a_model_that_is_undone_while_it_is_read_is_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = drcil.Learner("replay", epochs_scale=0.001, device="cpu")
    learner.learn(drcil.stream("digits-b0-5")[0])
    before = learner.classes
    add_version(tmp_path, lambda place: write_model(learner.model, place))
    learner.rename(before[0], "new")
    add_version(tmp_path, lambda place: write_model(learner.model, place))

    def swap(directory: Path) -> ModelState:
        state = parse_state(directory)
        if directory.name == "0002":
            undo(tmp_path)
        return state

    monkeypatch.setattr("drcil.models.directory.parse_state", swap)
    assert drcil.load_predictor(tmp_path, device="cpu").classes == before

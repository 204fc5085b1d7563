"""Versions of a model: a change is seen whole or not at all, and can be undone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import drcil
from drcil.errors import UserError
from drcil.files import read_bytes, write_bytes, write_checksummed_json
from drcil.models.model_directory import read_model, write_model
from drcil.models.model_format import LEARNING, MEMORY, STATE, WEIGHTS, ModelState, read_state
from drcil.models.store import (
    CURRENT,
    LOCK,
    VERSIONS,
    add_version,
    current_version,
    earlier_version,
    is_versioned,
    lock_store,
    read_current,
    undo,
)
from drcil.updates import rename, write_version
from drcil.updates import undo as undo_change
from support.processes import killed_before


def saying(word: str) -> Callable[[Path], None]:
    def write(place: Path) -> None:
        write_bytes(place / "word", word.encode())
        write_bytes(place / STATE, b"")

    return write


def word(path: Path) -> str:
    return (current_version(path) / "word").read_text()


def go_back(path: Path) -> str:
    return undo(path, lambda place: read_bytes(place / "word").decode())


def names(path: Path) -> list[str]:
    return sorted(place.name for place in (path / VERSIONS).iterdir())


def test_the_newest_is_current_and_the_oldest_go(tmp_path: Path) -> None:
    assert not is_versioned(tmp_path)
    for number in range(1, 8):
        add_version(tmp_path, saying(str(number)), limit=3)
        assert is_versioned(tmp_path) and word(tmp_path) == str(number)
    assert names(tmp_path) == ["0005", "0006", "0007"]


def test_undoing_goes_back_as_far_as_versions_are_kept(tmp_path: Path) -> None:
    for one in ("a", "b", "c"):
        add_version(tmp_path, saying(one), limit=2)
    assert go_back(tmp_path) == "b" and word(tmp_path) == "b"
    assert names(tmp_path) == ["0002"]
    with pytest.raises(UserError, match="cannot be undone: no earlier version of it is kept"):
        go_back(tmp_path)
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
    write_checksummed_json(tmp_path / CURRENT, {"version": "0001"})
    assert word(tmp_path) == "old"
    with lock_store(tmp_path):
        assert names(tmp_path) == ["0001"]
        assert add_version(tmp_path, saying("new")).name == "0002"
    with lock_store(tmp_path):
        go_back(tmp_path)
    assert word(tmp_path) == "old" and names(tmp_path) == ["0001"]


def test_a_lost_pointer_to_the_only_version_costs_nothing(tmp_path: Path) -> None:
    """Without snapshots of a first lesson, nothing else has what the version learnt."""
    add_version(tmp_path, saying("only"))
    (tmp_path / CURRENT).unlink()
    with lock_store(tmp_path):
        assert word(tmp_path) == "only" and names(tmp_path) == ["0001"]


def test_a_first_version_that_was_never_in_use_is_begun_anew(tmp_path: Path) -> None:
    """As after a kill between writing it and taking it into use; the snapshots of the lesson are still there."""
    saying("lost")(tmp_path / VERSIONS / "0001")
    (tmp_path / LEARNING / "digest").mkdir(parents=True)
    write_bytes(tmp_path / LEARNING / "digest" / "finished.safetensors", b"")
    with lock_store(tmp_path):
        add_version(tmp_path, saying("first"))
    assert word(tmp_path) == "first" and names(tmp_path) == ["0001"]
    add_version(tmp_path, saying("second"))
    (tmp_path / CURRENT).unlink()
    with (
        pytest.raises(UserError, match=r"no current\.json that says which is in use; restore it"),
        lock_store(tmp_path),
    ):
        pass
    assert names(tmp_path) == ["0001", "0002"], "a line that was lost costs no version"


def test_what_a_killed_writer_left_goes_with_the_next_change(tmp_path: Path) -> None:
    add_version(tmp_path, saying("old"))
    left = tmp_path / VERSIONS / ".0002.424242.tmp"
    saying("half")(left)
    write_bytes(tmp_path / f".{CURRENT}.424242.tmp", b"{")
    with lock_store(tmp_path):
        assert names(tmp_path) == ["0001"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [LOCK, CURRENT, VERSIONS]


def undo_last(path: Path) -> None:
    with lock_store(path):
        go_back(path)


def add_new(path: Path) -> None:
    with lock_store(path):
        add_version(path, saying("new"), limit=2)


@pytest.mark.parametrize("change", [undo_last, add_new])
def test_killed_at_any_step_only_versions_that_were_in_use_are_gone_back_to(
    change: Callable[[Path], object], tmp_path: Path
) -> None:
    back = {"new": ["latest", "middle", "oldest"], "latest": ["middle", "oldest"], "middle": ["oldest"]}
    for step in range(1, 30):
        path = tmp_path / str(step)
        for one in ("oldest", "middle", "latest"):
            add_version(path, saying(one))
        killed = killed_before(step, change, path)
        now = word(path)
        assert now in (("latest", "middle") if change is undo_last else ("latest", "new"))
        with lock_store(path):
            add_version(path, saying("later"))
        seen = []
        while earlier_version(path):
            with lock_store(path):
                go_back(path)
            seen.append(word(path))
        whole = [now, *back[now]]
        assert seen == whole[: len(seen)] and len(seen) >= 2, "the oldest may be gone"
        assert names(path) == [current_version(path).name]
        if not killed:
            assert step > 5
            return
    pytest.fail("the change never came to its end")


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two versions, which carry their exemplars as pictures."""
    place = tmp_path_factory.mktemp("renamed")
    rows = np.random.default_rng(0).integers(0, 256, (8, 8, 8), dtype=np.uint8)
    for number, pixels in enumerate(rows):
        (place / "images" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / "images" / str(number % 2) / f"{number}.png")
    learner = drcil.Learner("replay", backbone="resnet-digits", image_size=8, epochs_scale=0.001, device="cpu")
    learner.learn(place / "images")
    add_version(place / "model", lambda directory: write_version(learner, directory))
    rename(place / "model", "0", "zero")
    return place / "model"


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
@pytest.mark.parametrize("pattern", [STATE, WEIGHTS, MEMORY, "exemplars/*.png"])
def test_the_current_version_stays_if_the_other_one_is_damaged(
    damage: str, pattern: str, renamed: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(renamed, tmp_path / "model"))
    file = next((model / VERSIONS / "0001").glob(pattern))
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(content[:-20] if damage == "cut" else content[:-20] + content[-20:][::-1])
    pointer = (model / CURRENT).read_bytes()
    with pytest.raises(UserError):
        undo_change(model)
    assert (model / CURRENT).read_bytes() == pointer
    assert read_model(model).classes == ("zero", "1")
    file.write_bytes(content)
    assert undo_change(model) == ("0", "1") and names(model) == ["0001"]


@pytest.mark.slow
def test_killed_at_any_step_undo_leaves_a_readable_model(renamed: Path, tmp_path: Path) -> None:
    for step in range(1, 40):
        model = Path(shutil.copytree(renamed, tmp_path / str(step)))
        killed = killed_before(step, undo_change, model)
        assert read_model(model).classes in ((("zero", "1"), ("0", "1")) if killed else (("0", "1"),))
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
            go_back(tmp_path)
        elif len(seen) == 2:
            # Another version under the number of one that was undone.
            add_version(tmp_path, saying("c"), limit=1)
        return read_bytes(place / "word").decode()

    assert read_current(tmp_path, read) == "c" and seen == ["0002", "0001", "0002"]


def test_reading_ends_though_changes_do_not(tmp_path: Path) -> None:
    add_version(tmp_path, saying("a"))
    seen = []

    def read(place: Path) -> bytes:
        seen.append(place.name)
        add_version(tmp_path, saying("later"), limit=1)
        return read_bytes(place / "word")

    with pytest.raises(UserError, match=r"cannot read .*word"):
        read_current(tmp_path, read)
    assert seen == ["0001", "0002", "0003", "0004", "0005"]

    def read_missing(place: Path) -> bytes:
        seen.append("once")
        return read_bytes(place / "missing")

    with pytest.raises(UserError, match="missing"):
        read_current(tmp_path, read_missing)
    assert seen[5:] == ["once"], "where nothing has changed, it is not tried again"


@pytest.mark.slow
def test_one_process_changes_it_at_a_time(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\nfrom drcil.models.store import lock_store\n"
        "with lock_store(pathlib.Path(sys.argv[1])): print('in')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model")]
    with lock_store(tmp_path / "model"):
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
        state = read_state(directory)
        if directory.name == "0002":
            undo(tmp_path, read_state)
        return state

    monkeypatch.setattr("drcil.models.model_directory.read_state", swap)
    assert drcil.load_predictor(tmp_path, device="cpu").classes == before

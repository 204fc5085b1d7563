"""Files appear whole or not at all, and what cannot be written is said in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from drcil import disk
from drcil.errors import UserError
from drcil.reading import read_json


class Halt(BaseException):
    """Something like a kill that can be caught."""


def halt(*_: object) -> None:
    raise Halt


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interrupted_write_leaves_what_was_there(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write_json(tmp_path / "file.json", {"old": 1})
    monkeypatch.setattr(os, moment, halt)
    with pytest.raises(Halt):
        disk.write_json(tmp_path / "file.json", {"new": 2})
    assert read_json(tmp_path / "file.json") == {"old": 1}
    assert os.listdir(tmp_path) == ["file.json"]


def test_a_place_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (
        lambda: disk.write_bytes(tmp_path / "file" / "deep" / "x", b""),
        lambda: disk.write_directory(tmp_path / "file" / "deep", lambda directory: None),
        lambda: disk.append_line(tmp_path / "file" / "log", "line"),
    ):
        with pytest.raises(UserError, match=r"^cannot write .*: Not a directory; earlier files are intact$"):
            write()
    with (
        pytest.raises(UserError, match="Not a directory"),
        disk.locked(tmp_path / "file" / ".lock", "in use"),
    ):
        pass


def test_tensors_come_back_bit_for_bit_with_their_note(tmp_path: Path) -> None:
    conv = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    tensors = {"conv": conv, "view": conv[1:], "count": torch.tensor(7), "none": torch.empty(0, 3), "half": conv.half()}
    disk.write_tensors(tmp_path / "t.safetensors", tensors, {"epoch": 3})
    back, note = disk.read_tensors(tmp_path / "t.safetensors")
    assert note == {"epoch": 3}
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"a": ')
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(UserError, match=r"torn.json is not valid JSON"):
        read_json(tmp_path / "torn.json")
    with pytest.raises(UserError, match=r"cannot read .*absent.json: No such file"):
        read_json(tmp_path / "absent.json")
    for name in ("torn.safetensors", "absent.safetensors"):
        with pytest.raises(UserError, match=f"cannot read .*{name}"):
            disk.read_tensors(tmp_path / name)


def test_a_directory_appears_at_once_and_replaces_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(text: str) -> None:
        def write(directory: Path) -> None:
            assert not (tmp_path / "made").exists() or (tmp_path / "made" / "a").read_text() == "first"
            (directory / "a").write_text(text)

        disk.write_directory(tmp_path / "made", write)

    fill("first")
    fill("second")
    assert (tmp_path / "made" / "a").read_text() == "second"
    assert os.listdir(tmp_path) == ["made"]


def test_a_directory_that_cannot_be_filled_leaves_the_former(tmp_path: Path) -> None:
    def fill(directory: Path) -> None:
        (directory / "a").write_text("first")

    disk.write_directory(tmp_path / "made", fill)

    def fail(directory: Path) -> None:
        (directory / "a").write_text("second")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write .*made: No space left on device"):
        disk.write_directory(tmp_path / "made", fail)
    assert (tmp_path / "made" / "a").read_text() == "first"
    assert os.listdir(tmp_path) == ["made"]


def test_a_log_line_that_was_cut_short_spoils_only_itself(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    disk.append_line(log, "one")
    disk.append_line(log, "two")
    with open(log, "a") as file:
        file.write("thr")
    disk.append_line(log, "four")
    assert log.read_text().splitlines() == ["one", "two", "thr", "four"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "made"

    def fill(text: str) -> None:
        def write(directory: Path) -> None:
            (directory / "a").write_text(text)

        disk.write_directory(place, write)

    fill("first")
    rename = os.replace

    def die_second(source: Path, target: Path) -> None:
        if target == place:
            raise Halt
        rename(source, target)

    def fail(directory: Path) -> None:
        raise OSError(28, "No space left on device")

    for reads in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", die_second)
            with pytest.raises(Halt):
                fill("second")
        assert not place.exists()
        if reads:
            disk.put_back(place)
        else:
            with pytest.raises(UserError, match="No space left on device"):
                disk.write_directory(place, fail)
        assert (place / "a").read_text() == "first"
        assert os.listdir(tmp_path) == ["made"]


@pytest.mark.parametrize("again", [False, True])
def test_a_lock_on_a_file_that_was_removed_meanwhile_is_none(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who held it removed it after it was opened here; the next would lock a new file, and both would pass."""
    fcntl = pytest.importorskip("fcntl")
    lockf, lock = fcntl.lockf, tmp_path / ".lock"

    def late(file: object, how: int) -> None:
        lock.unlink()
        if again:
            lock.touch()
        lockf(file, how)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", late)
        with pytest.raises(UserError, match="in use"), disk.locked(lock, "in use"):
            pass
    with disk.locked(lock, "in use"):
        pass

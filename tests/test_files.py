"""Only regular files of bounded size are read; files and directories appear complete or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from drcil import files
from drcil.errors import UserError
from drcil.files import FileChecksum, read_bytes, read_checksummed_json, read_json, read_tensors, read_toml

READERS: list[Callable[[Path], object]] = [
    read_bytes,
    read_json,
    read_toml,
    read_tensors,
    FileChecksum.of_file,
    lambda path: files.read_torch_file(path, 2**20),
]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkdir, "it is a directory"),
        (os.mkfifo, "it is a named pipe"),
        (lambda path: os.symlink("/dev/zero", path), "it is a device"),
        (lambda path: os.symlink(path, path), "Too many levels of symbolic links"),
        (lambda path: os.symlink("nowhere", path), "No such file"),
        (lambda path: None, "No such file"),
    ],
)
@pytest.mark.parametrize("read", READERS)
def test_only_regular_files_are_read(
    read: Callable[[Path], object], make: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    make(tmp_path / "file")
    with pytest.raises(UserError, match=f"^cannot read .*/file: {reason}"):
        read(tmp_path / "file")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
@pytest.mark.parametrize("read", READERS[:-1])
def test_names_that_the_system_refuses(read: Callable[[Path], object], name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^cannot read "):
        read(tmp_path / name)


def test_a_torch_file_whose_name_has_a_null_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        files.read_torch_file(tmp_path / "a\0b", 2**20)


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="it has 1099511627776 bytes, more than the 268435456 that are accepted"):
        read_json(tmp_path / "large")
    with pytest.raises(UserError, match="large is damaged: it has 1099511627776 bytes, but 3 were written"):
        files.verify_checksum(tmp_path / "large", FileChecksum.of(b"abc"))


@pytest.mark.parametrize(
    ("read", "text", "reason"),
    [
        (read_json, "[" * 100_000, "nested too deeply"),
        (read_json, '{"a":' * 100_000, "nested too deeply"),
        (read_toml, "a = " + "[" * 100_000, "nested too deeply"),
        (read_json, '{"a": ', "is not valid JSON"),
        (read_toml, "a = ", "is not valid TOML"),
        *((read_json, f'{{"a": {number}}}', f"{number} is not a finite number")
          for number in ("NaN", "Infinity", "-Infinity", "1e999")),
        *((read_toml, f"a = {number}", f"{number} is not a finite number")
          for number in ("nan", "inf", "-inf", "1e999")),
        (read_checksummed_json, "[]", "is damaged: it is not a table of entries"),
        (read_tensors, "\x10\0\0\0\0\0\0\0{", "cannot read"),
    ],
)  # fmt: skip
def test_content_that_is_refused(read: Callable[[Path], object], text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(UserError, match=reason):
        read(tmp_path / "file")


def test_a_checksummed_file_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    value = {"b": [1, 2.5, None], "a": {"ü": "x"}}
    files.write_checksummed_json(path, value)
    assert read_checksummed_json(path) == value
    content = path.read_bytes()
    for position in range(len(content)):
        for bit in (1, 4, 16, 64):
            path.write_bytes(content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :])
            with suppress(UserError):
                assert read_checksummed_json(path) == value, "only white space may change"


def test_a_changed_file_does_not_match_its_checksum(tmp_path: Path) -> None:
    path, content = tmp_path / "file", bytes(range(256)) * 20
    path.write_bytes(content)
    recorded = FileChecksum.of(content)
    assert FileChecksum.of_file(path) == recorded
    files.verify_checksum(path, recorded)
    for changed in (content[:-1], content + b"\0", b""):
        path.write_bytes(changed)
        with pytest.raises(UserError, match=f"file is damaged: it has {len(changed)} bytes, but {len(content)} were"):
            files.verify_checksum(path, recorded)
    path.write_bytes(content[::-1])
    with pytest.raises(UserError, match="file is damaged: its checksum is not"):
        files.verify_checksum(path, recorded)


def test_tensors_are_read_bit_for_bit_with_their_note(tmp_path: Path) -> None:
    conv = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    tensors = {"conv": conv, "view": conv[1:], "count": torch.tensor(7), "none": torch.empty(0, 3), "half": conv.half()}
    recorded = files.write_tensors(tmp_path / "t.safetensors", tensors, {"epoch": 3})
    loaded, note = read_tensors(tmp_path / "t.safetensors", recorded)
    assert note == {"epoch": 3}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


class Halt(BaseException):
    """Stands for a kill."""


def halt(*_: object, **__: object) -> None:
    raise Halt


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_previous_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_json(tmp_path / "file.json", {"old": 1})
    monkeypatch.setattr(os, step, halt)
    with pytest.raises(Halt):
        files.write_json(tmp_path / "file.json", {"new": 2})
    assert read_json(tmp_path / "file.json") == {"old": 1}
    assert os.listdir(tmp_path) == ["file.json"]


def test_two_threads_that_write_the_same_file_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second thread writes completely while the first is about to rename its file."""
    path, replace = tmp_path / "file", os.replace
    second = threading.Thread(target=files.write_bytes, args=(path, b"second"))

    def replace_late(source: str, target: str, **where: int) -> None:
        if threading.current_thread() is not second:
            second.start()
            second.join()
        replace(source, target, **where)

    monkeypatch.setattr(os, "replace", replace_late)
    files.write_bytes(path, b"first")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def write_directory(path: Path, text: str) -> None:
    with files.atomic_directory(path) as directory:
        (directory / "a").write_text(text)


def fill_disk(path: Path) -> None:
    with files.atomic_directory(path) as directory:
        (directory / "a").write_text("third")
        raise OSError(28, "No space left on device")


def lock(path: Path) -> None:
    with files.file_lock(path, "in use"):
        pass


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_bytes(path / "deep" / "x", b""),
        lambda path: write_directory(path / "deep", ""),
        lambda path: files.append_line(path / "log", "line"),
        lambda path: lock(path / ".lock"),
    ],
)
def test_nothing_can_be_written_below_a_file(write: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cannot write .*: Not a directory; earlier files are intact$"):
        write(tmp_path / "file")


def test_a_directory_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "made"
    write_directory(path, "first")
    with files.atomic_directory(path) as directory:
        (directory / "a").write_text("second")
        assert (path / "a").read_text() == "first"
    assert (path / "a").read_text() == "second"
    with pytest.raises(UserError, match=r"cannot write .*made: No space left on device"):
        fill_disk(path)
    assert (path / "a").read_text() == "second"
    assert os.listdir(tmp_path) == ["made"]


@pytest.mark.parametrize("reads", [True, False])
def test_a_kill_between_the_two_renames_loses_nothing(
    reads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "made", os.replace

    def die_at_second(source: str, target: str, **where: int) -> None:
        if target == path.name:
            raise Halt
        rename(source, target, **where)

    write_directory(path, "first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", die_at_second)
        with pytest.raises(Halt):
            write_directory(path, "second")
    assert not path.exists()
    if reads:
        files.restore_replaced(path)
    else:
        with pytest.raises(UserError, match="No space left on device"):
            fill_disk(path)
    assert (path / "a").read_text() == "first"
    assert os.listdir(tmp_path) == ["made"]


def test_removing_a_link_to_a_directory_leaves_the_directory(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / "link").symlink_to("precious")
    files.remove(tmp_path / "link")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["precious", "file"]


def test_a_log_line_that_was_cut_short_does_not_affect_the_next(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    files.append_line(log, "one")
    files.append_line(log, "two")
    with open(log, "a") as file:
        file.write("thr")
    files.append_line(log, "four")
    assert log.read_text().splitlines() == ["one", "two", "thr", "four"]


@pytest.mark.parametrize("created_again", [False, True])
def test_a_lock_on_a_file_that_was_removed_meanwhile_is_refused(
    created_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder removed the file after it was opened here; a third process would lock a new file."""
    fcntl = pytest.importorskip("fcntl")
    lockf, path = fcntl.lockf, tmp_path / ".lock"

    def lock_late(file: object, how: int) -> None:
        path.unlink()
        if created_again:
            path.touch()
        lockf(file, how)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", lock_late)
        with pytest.raises(UserError, match="in use"):
            lock(path)
    lock(path)


def test_files_are_read_and_written_without_torch() -> None:
    program = "import sys, drcil.files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

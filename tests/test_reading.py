"""Files that are read may be anything; only regular ones of a bounded size with finite numbers are taken."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from drcil.disk import read_tensors, remove_directory, write_sealed
from drcil.errors import UserError
from drcil.reading import file_size, is_file, read_bytes, read_json, read_sealed, read_toml


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
@pytest.mark.parametrize("read", [read_bytes, read_json, read_toml, read_tensors])
def test_only_regular_files_are_read(read: object, make: object, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    make(path)  # type: ignore[operator]
    with pytest.raises(UserError, match=f"^cannot read .*/file: {reason}"):
        read(path)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_names_that_the_system_refuses_are_told(name: str, tmp_path: Path) -> None:
    assert not is_file(tmp_path / name)
    with pytest.raises(UserError, match=r"^cannot read "):
        read_bytes(tmp_path / name)


def test_a_file_above_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with open(path, "wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="it has 1099511627776 bytes, more than the 268435456 that are accepted"):
        read_json(path)
    assert file_size(path) == 2**40


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_json_that_is_nested_too_deeply(text: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(UserError, match="nested too deeply"):
        read_json(tmp_path / "file.json")


def test_toml_that_is_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(UserError, match="nested too deeply"):
        read_toml(tmp_path / "file.toml")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(number: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(f'{{"a": {number}}}')
    with pytest.raises(UserError, match=f"{number} is no finite number"):
        read_json(tmp_path / "file")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
def test_numbers_in_toml_are_finite(number: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(f"a = {number}")
    with pytest.raises(UserError, match=f"{number} is no finite number"):
        read_toml(tmp_path / "file")


def test_removing_a_link_to_a_directory_leaves_the_directory(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / "link").symlink_to("precious")
    remove_directory(tmp_path / "link")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["precious", "file"]


def test_a_sealed_file_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "sealed.json"
    value = {"b": [1, 2.5, None], "a": {"ü": "x"}}
    write_sealed(path, value)
    assert read_sealed(path) == value
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (1, 4, 16, 64):
            path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            with suppress(UserError):
                assert read_sealed(path) == value, "only what does not change the meaning is let pass"
    path.write_text("[]")
    with pytest.raises(UserError, match=r"sealed.json is damaged: it holds no table"):
        read_sealed(path)

"""The ten commands of docs/own-images.md, taken from the page: they do what it shows, one after the other."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from drcil.data.dataset import load_dataset
from support.documents import ROOT
from support.http_client import HOST
from support.timm_weights import published

PAGE = ROOT / "docs" / "own-images.md"
MONTHS = {"march": ("crab", "dolphin", "flamingo", "llama"), "april": ("panda", "rooster"), "may": ("crab",)}
"""The folders that the page speaks of, and their classes."""
INBOX = {"c.jpg": "crab", "f.jpg": "flamingo", "l.jpg": "llama", "new.jpg": "panda"}
ANSWERS = {*MONTHS["march"], *MONTHS["april"]}
EXTRAS = ("timm", "onnx", "onnxscript", "onnxruntime", "fastapi", "uvicorn", "python_multipart")


class Shown(NamedTuple):
    """A command of the page, and what it prints there."""

    command: str
    output: str


def shown() -> list[Shown]:
    section = PAGE.read_text(encoding="utf-8").partition("## Ten commands")[2].partition("\n## ")[0]
    return [Shown(*found) for found in re.findall(r"^```\n\$ ([^\n]+)\n(.*?)^```$", section, re.M | re.S)]


def words(text: str) -> list[str]:
    """What does not depend on the machine and the hour."""
    return re.findall(r"[^\W\d_]+", text)


def arrange(source: Path, place: Path) -> None:
    """Copy images of a directory per class into the folders that the page speaks of."""
    for month, classes in MONTHS.items():
        # Those of May are other images of a known class.
        rows = slice(30, 50) if month == "may" else slice(30)
        for name in classes:
            (place / month / name).mkdir(parents=True)
            for file in sorted((source / name).iterdir())[rows]:
                shutil.copy(file, place / month / name)
    (place / "inbox").mkdir()
    for copy, name in INBOX.items():
        shutil.copy(max((source / name).iterdir()), place / "inbox" / copy)


def write_digits(source: Path) -> None:
    """Digits under the names of the page: enough for some of each to be held out."""
    digits = load_dataset("digits").train
    for label, name in enumerate((*MONTHS["march"], *MONTHS["april"])):
        (source / name).mkdir(parents=True)
        images = digits.source.read(digits.rows[digits.labels == label][:51])[:, 0].numpy()
        for number, pixels in enumerate(images):
            Image.fromarray(pixels).resize((64, 64)).save(source / name / f"{number:02}.jpg", quality=95)


def carried_out(place: Path) -> list[str]:
    """What each command prints in this directory; only weights and port are others than on the page."""
    for needed in EXTRAS:
        if find_spec(needed) is None:
            pytest.skip(f"needs {needed}: pip install 'drcil[timm,export,serve]'")
    weights = published("mobilenetv2_100", place.parent)
    with socket.create_server((HOST, 0)) as free:
        port = str(free.getsockname()[1])
    printed: list[str] = []
    server: subprocess.Popen[str] | None = None
    try:
        for command, _ in shown():
            given = shlex.split(
                command.replace("--pretrained", f"--weights '{weights}'").replace(":8000/", f":{port}/")
            )
            program = [sys.executable, "-m", "drcil.cli"] if given[0] == "drcil" else given[:1]
            if given[1] == "serve":
                whole = [*program, *given[1:], "--port", port]
                server = subprocess.Popen(whole, cwd=place, stdout=subprocess.PIPE, text=True)
                assert server.stdout is not None
                printed.append(server.stdout.readline())
                continue
            if given[0] == "curl" and shutil.which("curl") is None:
                pytest.skip("needs curl for the last command; all others were carried out")
            done = subprocess.run([*program, *given[1:]], cwd=place, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            printed.append(done.stdout)
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            assert server.communicate()[0] == "ended\n" and server.returncode == 0
    return printed


def known(printed: Sequence[str]) -> list[str]:
    """The classes that the answers of the second command, and of the last, name first."""
    labels = re.findall(r"^\S+: (\w+) ", printed[1], re.MULTILINE)
    return [*labels[:3], re.findall(r'"label":"(\w+)"', printed[-1])[0]]


@pytest.mark.slow
def test_they_work_on_any_images(tmp_path: Path) -> None:
    write_digits(tmp_path / "source")
    arrange(tmp_path / "source", tmp_path)
    printed = carried_out(tmp_path)
    assert len(printed) == 10
    assert known(printed) == list(INBOX.values())
    assert (tmp_path / "animals.onnx").stat().st_size > 1e6 and "<img " in (tmp_path / "animals.html").read_text()


@pytest.mark.data
def test_on_photographs_they_print_what_the_page_shows(tmp_path: Path, data_dir: Path) -> None:
    if not (data_dir / "photos").is_dir():
        pytest.skip(f"needs photographs: there is no {data_dir / 'photos'}")
    arrange(data_dir / "photos", tmp_path)
    printed = carried_out(tmp_path)
    assert known(printed) == list(INBOX.values())
    for (command, output), found in zip(shown(), printed, strict=True):
        # Of an answer the best class was compared; the runner-up, of a percent or two, is not the same everywhere.
        less = ANSWERS if any(verb in command for verb in ("predict ", "/predict")) else set()
        assert [word for word in words(found.replace(f"{tmp_path}/", "")) if word not in less] == [
            word for word in words(output) if word not in less
        ], command

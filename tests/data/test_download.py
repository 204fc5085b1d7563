"""Downloading, against a server on this machine that can be told to misbehave."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from drcil.data.dataset import DATASETS, DIGITS_SPEC, Archive, DatasetEntry
from drcil.data.datasets import digits
from drcil.data.download import download, fetch
from drcil.errors import UserError

CONTENT = {
    "things/train": np.random.default_rng(0).bytes(300_000),
    "things/test": b"few",
}


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def packed() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in {**CONTENT, "../escape": b"bad", "things/other": b"not asked for"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


ARCHIVE = packed()


class Server(ThreadingHTTPServer):
    """Offers the archive, and counts the requests for it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = 0
        self.breaks_after: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/things.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests += 1
        if self.path != "/things.tar.gz":
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(ARCHIVE)))
        self.end_headers()
        self.wfile.write(ARCHIVE[: self.server.breaks_after])

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def home(server: Server, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """The archive as the home of a dataset called ``things``."""
    home = Archive(server.url, md5(ARCHIVE), {name: md5(content) for name, content in CONTENT.items()})
    things = DatasetEntry("things", digits.load_digits, DIGITS_SPEC, download=home)
    monkeypatch.setattr(DATASETS, "_entries", {**DATASETS, "things": things})
    return home


def test_a_dataset_arrives_whole_and_alone(server: Server, home: Archive, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    folder = fetch("things", tmp_path / "data", progress=lambda done, total: seen.append((done, total)))
    assert folder == tmp_path / "data" / "things"
    files = {str(path.relative_to(tmp_path / "data")): path.read_bytes() for path in folder.rglob("*")}
    assert files == CONTENT
    assert list((tmp_path / "data").iterdir()) == [folder] and list(tmp_path.iterdir()) == [tmp_path / "data"]
    assert seen[-1] == (len(ARCHIVE), len(ARCHIVE))


def test_what_is_there_is_not_fetched_again_and_what_is_damaged_is(
    server: Server, home: Archive, tmp_path: Path
) -> None:
    folder = fetch("things", tmp_path)
    fetch("things", tmp_path)
    assert server.requests == 1
    (folder / "test").write_bytes(b"bad")
    fetch("things", tmp_path)
    assert server.requests == 2 and (folder / "test").read_bytes() == CONTENT["things/test"]


def test_an_archive_put_there_by_hand_is_used_and_kept(server: Server, home: Archive, tmp_path: Path) -> None:
    (tmp_path / "things.tar.gz").write_bytes(ARCHIVE)
    assert (fetch("things", tmp_path) / "test").read_bytes() == b"few"
    assert server.requests == 0 and (tmp_path / "things.tar.gz").exists()


def test_a_broken_download_is_reported_and_starts_again(server: Server, home: Archive, tmp_path: Path) -> None:
    server.breaks_after = 100_000
    with pytest.raises(UserError, match=f"broke after 100000 of {len(ARCHIVE)} bytes; try again"):
        fetch("things", tmp_path)
    assert list(tmp_path.iterdir()) == []
    server.breaks_after = None
    fetch("things", tmp_path)
    assert server.requests == 2
    assert (tmp_path / "things" / "train").read_bytes() == CONTENT["things/train"]


def test_a_wrong_checksum_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"is not the expected one .md5 {md5(ARCHIVE)}, expected 0000"):
        download(server.url, tmp_path / "x.tar.gz", "0000")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_connection_is_one_sentence(server: Server, home: Archive, tmp_path: Path) -> None:
    with Server() as closed:
        url = closed.url
    with pytest.raises(UserError, match=r"cannot be reached \(.*\); is this machine online\?"):
        fetch("things", tmp_path, url=url)


def test_a_missing_page_and_a_wrong_address_are_one_sentence(server: Server, home: Archive, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the server answered 404"):
        fetch("things", tmp_path, url=server.url + "x")
    with pytest.raises(UserError, match="must begin with http"):
        fetch("things", tmp_path, url="file:///etc/hostname")


def test_a_disk_that_refuses_is_one_sentence(server: Server, home: Archive, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="file cannot be used: File exists"):
        fetch("things", tmp_path / "file")
    (tmp_path / "things.tar.gz.part").mkdir()
    with pytest.raises(UserError, match="part cannot be used: Is a directory"):
        fetch("things", tmp_path)


def test_a_full_disk_is_one_sentence(server: Server, home: Archive, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(UserError, match=f"{tmp_path} cannot be used: File too large"):
            fetch("things", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("place", ["things.tar.gz.part", "things/train.part"])
def test_what_is_in_the_way_is_neither_followed_nor_waited_for(
    server: Server, home: Archive, tmp_path: Path, place: str
) -> None:
    outside, data = tmp_path / "outside", tmp_path / "data"
    outside.write_text("precious")
    (data / place).parent.mkdir(parents=True)
    (data / place).symlink_to(outside)
    with pytest.raises(UserError, match="part cannot be used: Too many levels of symbolic links"):
        fetch("things", data)
    assert outside.read_text() == "precious"
    (data / place).unlink()
    os.mkfifo(data / place)
    with pytest.raises(UserError, match="part cannot be used"):
        fetch("things", data)


def test_a_dataset_without_an_archive_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"imagenet100 cannot be fetched: .*imagenet/train/WNID"):
        fetch("imagenet100", tmp_path)
    with pytest.raises(UserError, match="digits cannot be fetched: it ships with drcil"):
        fetch("digits", tmp_path)
    with pytest.raises(UserError, match="did you mean 'cifar100'"):
        fetch("cifar", tmp_path)

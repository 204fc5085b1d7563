"""The server: what it answers, and what it refuses. With a real one on the loopback."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

import drcil
from drcil.cli import main
from drcil.data.sources.filelist import FileList
from drcil.data.sources.files import FileSource
from drcil.serving import decoder
from test_teaching import OPTIONS, QUICK, SMALL, STREAM, folder

for needed in ("fastapi", "uvicorn", "python_multipart"):
    pytest.importorskip(needed, reason="needs the extra: pip install 'drcil[serve]'")

from starlette.datastructures import Headers, UploadFile  # noqa: E402

from drcil.serving.assets import assets  # noqa: E402
from drcil.serving.desk import Desk  # noqa: E402
from drcil.serving.lessons import Status  # noqa: E402
from drcil.serving.limits import Limits, Refusal  # noqa: E402
from drcil.serving.rules import Rules  # noqa: E402
from http_client import HOST, Client, multipart, serving  # noqa: E402

TOKEN = "a-long-enough-token"
NEW = sorted(STREAM[1].classes)[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two classes and images of four."""
    place = tmp_path_factory.mktemp("served")
    folder(place / "old", 0)
    folder(place / "new", 1)
    assert main(["learn", str(place / "model"), str(place / "old"), *OPTIONS, *QUICK, *SMALL, "--quiet"]) == 0
    return place


@pytest.fixture(scope="module")
def served(place: Path) -> Iterator[tuple[Client, Desk]]:
    with serving(place / "model", teach=True) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: tuple[Client, Desk]) -> Client:
    return served[0]


@pytest.fixture(scope="module")
def strict(place: Path) -> Iterator[Client]:
    """A server of small bounds, that wants a token."""
    limits = Limits(
        waiting=1, upload_seconds=1.0, file_bytes=50_000, predict_bytes=200_000, predict_images=3, pixels=10**12
    )
    with serving(place / "model", limits, TOKEN) as (client, _):
        yield client


def image(place: Path, name: str | None = None, number: int = 0) -> bytes:
    classes = sorted((place / "old").iterdir()) if name is None else [place / "new" / name]
    return sorted(classes[0].iterdir())[number].read_bytes()


def bomb(side: int) -> bytes:
    """A PNG of few bytes and very many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    rows = zlib.compress(bytes(10**6))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg(tail: bytes = b"", comment: bytes = b"") -> bytes:
    encoded = io.BytesIO()
    Image.new("RGB", (40, 30), "teal").save(encoded, "JPEG", comment=comment)
    return encoded.getvalue() + tail


def kept(content: bytes) -> bytes:
    """What a decoder makes of an image that is to be learnt from."""
    order = {"purpose": "keep", "size": 64, "channels": 3, "pixels": 10**6, "bytes": len(content)}
    answers = io.BytesIO()
    decoder._serve(io.BytesIO(json.dumps(order).encode() + b"\n" + content), answers)
    told, _, found = answers.getvalue().partition(b"\n")
    assert "error" not in json.loads(told)
    return found


def archive() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("run.sh", "echo")
    return packed.getvalue()


def test_it_answers_what_the_predictor_does(place: Path, client: Client) -> None:
    files = sorted((place / "old").rglob("*.png"))[::10]
    reply = client.post("/predict?top=2", [file.read_bytes() for file in files], names=[file.name for file in files])
    assert reply.status == 200
    expected = drcil.load_predictor(place / "model", device="cpu").predict(files, top=2)
    for answer, wanted, file in zip(reply.json["images"], expected, files, strict=True):
        assert answer["file"] == file.name and answer["label"] == wanted.label and answer["nearest"] == []
        assert [one["class"] for one in answer["classes"]] == list(wanted.classes)
        np.testing.assert_allclose([one["probability"] for one in answer["classes"]], wanted.probabilities, atol=1e-5)
    unsure = client.post("/predict?threshold=1", [files[0].read_bytes()]).json["images"][0]
    assert unsure["label"] is None and unsure["classes"]


def test_it_tells_of_itself(client: Client) -> None:
    health, classes = client.get("/health").json, client.get("/classes").json
    assert health["status"] == "ok" and health["classes"] == 2 and health["teaches"] and not health["token"]
    assert [one["class"] for one in classes["classes"]] == sorted(STREAM[0].classes)
    assert all(one["images"] == 22 for one in classes["classes"]) and classes["version"] == health["version"]


def test_an_image_that_is_remembered_looks_most_like_itself(place: Path, client: Client) -> None:
    memory = drcil.load(place / "model", device="cpu").memory.images
    assert memory is not None
    for row in range(0, len(memory), 3):
        file = Path(memory.source.name(int(memory.rows[row])))
        answer = client.post("/predict?nearest=3", [file.read_bytes()]).json["images"][0]
        shown = [client.get(address) for address in answer["nearest"]]
        assert len(shown) == 3 and {one.headers["content-type"] for one in shown} == {"image/png"}
        if answer["label"] == client.get("/classes").json["classes"][memory.labels[row]]["class"]:
            first = np.asarray(Image.open(io.BytesIO(shown[0].body)).convert("RGB"))
            np.testing.assert_array_equal(first, np.asarray(Image.open(file).convert("RGB")))
    assert client.get("/exemplars/0001/0/0").status == 404
    own = answer["nearest"][0].rpartition("/")[0]
    for no_such in (f"{own}/99", f"{own}/-1", f"{own}/-99", f"{own.rpartition('/')[0]}/-1/0"):
        assert client.get(no_such).status == 404


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', "not an image"),
        (b"\x00\x01 not an image at all", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "not an image"),
        (archive(), "not an image"),
        (jpeg()[:300], "Truncated"),
        (bomb(20_000), "it has 20000 x 20000 pixels; at most 50 million"),
    ],
    ids=["empty", "svg", "noise", "postscript", "zip", "truncated", "bomb"],
)
def test_what_is_no_image_is_refused_with_a_sentence(content: bytes, why: str, place: Path, client: Client) -> None:
    reply = client.post("/predict", [content])
    assert reply.status == 400 and "the image cannot be read: " in reply.error and why in reply.error
    mixed = client.post("/predict", [content, image(place)], names=["bad", "good"])
    bad, good = mixed.json["images"]
    assert mixed.status == 200 and why in bad["error"] and bad["label"] is None and good["error"] is None


@pytest.mark.parametrize("besides", [archive(), b"<script>alert(1)</script>", b"%PDF-1.7"], ids=["zip", "page", "pdf"])
def test_a_file_that_is_something_besides_an_image_is_its_pixels_alone(besides: bytes) -> None:
    after, inside = jpeg(besides), jpeg(comment=besides)
    assert besides in after and besides in inside
    plain = kept(jpeg())
    assert kept(after) == kept(inside) == plain and besides not in plain


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_decoder_does_not_know_the_token(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRCIL_TOKEN", TOKEN)
    others = set(_decoders())

    async def known() -> list[bytes]:
        async with Desk(place / "model", Rules(), None, "cpu", threads=1).open():
            return [Path(f"/proc/{own}/environ").read_bytes() for own in set(_decoders()) - others]

    found = asyncio.run(known())
    assert found and all(b"PATH=" in one and TOKEN.encode() not in one for one in found)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_decoder_that_runs_out_of_memory_or_dies_takes_nothing_with_it(place: Path, strict: Client) -> None:
    own = {"Authorization": f"Bearer {TOKEN}"}
    # This server has no bound on pixels worth the name: the decoder meets that of its memory.
    assert strict.post("/predict", [bomb(30_000)], headers=own).status == 400
    for process in _decoders():
        os.kill(process, signal.SIGKILL)
    until = time.monotonic() + 30
    while strict.post("/predict", [image(place)], headers=own).status != 200:
        assert time.monotonic() < until
    assert _decoders()


def _decoders() -> list[int]:
    """The processes of this one that decode."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"drcil.serving.decoder" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_what_is_kept_is_upright_and_says_nothing_of_where_it_was_taken(tmp_path: Path) -> None:
    pixels = np.zeros((300, 400, 3), dtype=np.uint8)
    pixels[:, :100] = (250, 30, 30)
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation], tags[ExifTags.Base.Make] = 6, "a camera of someone"
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", exif=tags, comment="at home")
    content, order = (tmp_path / "photo.jpg").read_bytes(), {"size": 64, "channels": 3, "pixels": 10**6}
    answers = io.BytesIO()
    orders = [{**order, "purpose": purpose, "bytes": len(content)} for purpose in ("view", "keep")]
    decoder._serve(io.BytesIO(b"".join(json.dumps(one).encode() + b"\n" + content for one in orders)), answers)
    answers.seek(0)
    assert json.loads(answers.readline()) == {"suffix": "", "bytes": 64 * 64 * 3}
    view = np.frombuffer(answers.read(64 * 64 * 3), dtype=np.uint8).reshape(64, 64, 3)
    np.testing.assert_array_equal(view, FileSource(FileList.of_paths([tmp_path / "photo.jpg"]), 64).view(0, None))
    told = json.loads(answers.readline())
    kept = answers.read(told["bytes"])
    with Image.open(io.BytesIO(kept)) as picture:
        assert picture.format == "JPEG" and picture.size == (128, 171) and not picture.getexif()
        # What was on the left is at the top now.
        red, black = picture.getpixel((64, 10)), picture.getpixel((64, 160))
    assert red[0] > 200 and max(black) < 30 and b"camera" not in kept and b"at home" not in kept


def test_uploads_have_bounds(place: Path, strict: Client) -> None:
    own, good = {"Authorization": f"Bearer {TOKEN}"}, image(place)
    assert strict.post("/predict", [good] * 3, headers=own).status == 200
    many = strict.post("/predict", [good] * 4, headers=own)
    assert many.status == 400 and many.error == "4 images were sent; a request takes 1 to 3"
    large = strict.post("/predict", [bytes(60_000)], headers=own)
    assert large.status == 400 and large.error == "the image cannot be read: it is larger than 0.05 MB"
    body = multipart([bytes(300_000)])[1]
    assert strict.ask("POST", "/predict", body, own).status == 413
    kind, body = multipart([bytes(300_000)])
    unannounced = strict.ask("POST", "/predict", iter([body[:150_000], body[150_000:]]), {"Content-Type": kind, **own})
    assert unannounced.status == 413 and unannounced.error == "a request of at most 0.2 MB is accepted here"


def test_a_full_server_says_when_to_come_back_and_a_slow_client_is_not_waited_for(place: Path, strict: Client) -> None:
    own = {"Authorization": f"Bearer {TOKEN}"}
    kind, body = multipart([image(place)])
    head = [f"POST /predict HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"]
    with socket.create_connection((HOST, strict.port), 30) as slow:
        slow.sendall("".join([*head, f"Authorization: Bearer {TOKEN}\r\n\r\n"]).encode() + body[:50])
        until = time.monotonic() + 30
        while (reply := strict.post("/predict", [image(place)], headers=own)).status == 200:
            assert time.monotonic() < until
        assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1 and "busy" in reply.error
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")
    assert strict.post("/predict", [image(place)], headers=own).status == 200


def test_requests_that_are_too_large_together_have_to_wait(place: Path) -> None:
    kind, body = multipart([image(place)])
    with serving(place / "model", Limits(waiting_bytes=len(body) + 100)) as (client, _):
        assert client.post("/predict", [image(place)]).status == 200
        assert client.post("/predict", [image(place)] * 2).status == 503
        unannounced = client.ask("POST", "/predict", iter([body]), {"Content-Type": kind})
        assert unannounced.status == 503, "it may be as large as any"


def test_what_is_sent_as_text_is_told_to_be_needed_as_a_file(client: Client) -> None:
    body, kind = b"images=hello", {"Content-Type": "application/x-www-form-urlencoded"}
    reply = client.ask("POST", "/predict", body, kind)
    assert reply.status == 400 and "a file is needed, sent as multipart/form-data" in reply.error


def test_names_and_pages_of_others_are_refused(place: Path, client: Client) -> None:
    good, own = [image(place)], f"{HOST}:{client.port}"
    assert client.get("/health", Host="evil.example").status == 421
    assert client.get("/health", Host=f"localhost:{client.port}").status == 200
    assert client.get("/health", Host="[::1]:8000").status == 200
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        for path in ("/predict", "/learn", "/corrections"):
            reply = client.post(path, good, "plum", headers)
            assert reply.status == 403 and "other sites" in reply.error
        assert client.ask("DELETE", "/corrections", headers=headers).status == 403
    assert client.post("/predict", good, headers={"Origin": f"http://{own}", "Host": own}).status == 200
    proxy = {"Host": "fruit.example", "Origin": "https://fruit.example"}
    assert client.post("/predict", good, headers=proxy).status == 421
    assert Rules(names=frozenset(["Fruit.example"])).refusal("POST", "/predict", Headers(proxy)) is None


def test_a_token_is_wanted_for_all_that_concerns_images(place: Path, strict: Client) -> None:
    for path in ("/", "/docs", "/health", "/openapi.json", "/page/main.js"):
        assert strict.get(path).status == 200
    for path in ("/classes", "/metrics", "/corrections", "/corrections.zip", "/exemplars/x/0/0", "/nothing"):
        for given in ("", "Bearer", "Bearer no", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
            reply = strict.get(path, Authorization=given)
            assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer"
    assert strict.post("/predict", [image(place)]).status == 401
    assert strict.get("/classes", Authorization=f"bearer {TOKEN}").status == 200
    assert strict.post("/learn", [image(place)], "plum", {"Authorization": f"Bearer {TOKEN}"}).status == 404


def test_corrections_are_collected_under_names_of_the_servers_own(place: Path, client: Client, tmp_path: Path) -> None:
    nasty = "../../tmp/evil, \"quoted\" 'name'"
    reply = client.post("/corrections", [image(place), b"no"], f"  {nasty} ", names=["../../../etc/passwd", "x"])
    assert reply.status == 200 and reply.json["label"] == nasty and reply.json["images"] == 1
    assert reply.json["skipped"] == [{"file": "x", "error": "not an image"}]
    assert client.post("/corrections", [image(place)], sorted(STREAM[0].classes)[0]).status == 200
    for bad in ("", "  ", "x" * 101, "two\nlines", "nul\0", "bidi\u202e"):
        refused = client.post("/corrections", [image(place)], bad)
        assert refused.status == 400 and ("printable" in refused.error or "label" in refused.error)
    listed = client.get("/corrections").json["corrections"]
    assert [(one["label"], one["known"]) for one in listed] == [(nasty, False), (sorted(STREAM[0].classes)[0], True)]
    with zipfile.ZipFile(io.BytesIO(client.get("/corrections.zip").body)) as file:
        assert all(name == "labels.csv" or name[:8].isdigit() for name in file.namelist())
        file.extractall(tmp_path)
    with open(tmp_path / "labels.csv", encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["label"] for row in rows] == [one["label"] for one in listed]
    shown = np.asarray(Image.open(tmp_path / rows[0]["file"]).convert("L"))
    np.testing.assert_array_equal(shown, np.asarray(Image.open(io.BytesIO(image(place))).convert("L")))
    assert client.ask("DELETE", "/corrections").status == 204 and not client.get("/corrections").json["corrections"]


def test_the_bound_on_corrected_images_holds_for_requests_at_the_same_time(place: Path) -> None:
    def sent(*contents: bytes) -> list[UploadFile]:
        return [UploadFile(io.BytesIO(content)) for content in contents]

    async def ask() -> tuple[list[object], int]:
        desk, good = Desk(place / "model", Rules(), Limits(collected=3), "cpu", threads=1), image(place)
        async with desk.open():
            given = [sent(b"no", b"no"), sent(good, good), sent(good, good)]
            first = await asyncio.gather(desk.corrected(given[0], "plum"), return_exceptions=True)
            pairs = await asyncio.gather(*(desk.corrected(two, "plum") for two in given[1:]), return_exceptions=True)
            await desk.corrected(sent(good), "plum")
            return [*first, *pairs], len(desk.collection.corrected)

    (none, pair, late), count = asyncio.run(ask())
    assert isinstance(none, Refusal) and none.status_code == 400
    assert isinstance(pair, list) and isinstance(late, Refusal) and late.status_code == 409 and count == 3


def test_a_lesson_is_refused_before_its_images_arrive_while_another_is_under_way(served: tuple[Client, Desk]) -> None:
    client, desk = served
    desk.lessons.status = Status(state="learning")
    try:
        with socket.create_connection((HOST, client.port), 30) as asking:
            kind = "multipart/form-data; boundary=x"
            head = f"POST /learn HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\nContent-Length: 1000\r\n\r\n"
            asking.sendall(head.encode())
            assert asking.recv(1000).startswith(b"HTTP/1.1 409")
    finally:
        desk.lessons.status = Status()


def test_lessons_that_cannot_be_given_are_refused(place: Path, client: Client) -> None:
    assert client.post("/learn", [b"no"], "plum").status == 400
    assert "images" in client.post("/learn", [], "plum").error
    assert "label" in client.post("/learn", [image(place)]).error
    assert client.post("/learn/corrections").status == 400
    assert client.get("/learn").json["state"] == "idle"


def test_without_teaching_there_is_nothing_to_teach_with(place: Path) -> None:
    with serving(place / "model", collect=False) as (client, _):
        assert client.post("/learn", [image(place)], "plum").status in (404, 405)
        assert client.post("/corrections", [image(place)], "plum").status in (404, 405)
        assert "/learn" not in client.get("/openapi.json").json["paths"]
        health = client.get("/health").json
        assert not health["teaches"] and not health["collects"]


def test_the_page_needs_nothing_from_elsewhere(client: Client) -> None:
    for path, (kind, content) in assets().items():
        reply = client.get(path)
        assert reply.status == 200 and reply.body == content and reply.headers["content-type"].startswith(kind)
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text and "https:" not in text and " style=" not in text and "onclick" not in text
    assert client.get("/page/../app.py").status == 404 and client.get("/page/%2e%2e/app.py").status == 404


def test_metrics_count_what_was_done(place: Path, client: Client) -> None:
    def value(name: str) -> float:
        lines = client.get("/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    asked = 'drcil_requests_total{endpoint="/predict",status="200"}'
    before = value(asked)
    assert client.post("/predict", [image(place)]).status == 200
    assert value(asked) == before + 1 and value("drcil_classes") == 2 and value("process_resident_memory_bytes") > 0
    assert value('drcil_request_seconds_bucket{endpoint="/predict",le="+Inf"}') >= before + 1


def test_a_model_that_was_taught_elsewhere_is_followed(place: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(place / "model", tmp_path / "model"))
    with serving(model) as (client, _):
        old = sorted(STREAM[0].classes)[0]
        assert main(["rename", str(model), old, "zéro"]) == 0
        until = time.monotonic() + 60
        while client.get("/classes").json["classes"][0]["class"] != "zéro":
            assert time.monotonic() < until
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "nowhere is not a model: there is no such directory"),
        (["nowhere", "--teach"], "is not a model that can be changed: there is no such directory"),
        (["MODEL", "--host", "no.such.host.invalid"], "--host 'no.such.host.invalid' is no address or name"),
        (["MODEL", "--host", "203.0.113.7"], "cannot listen on 203.0.113.7"),
        (["MODEL", "--port", "TAKEN"], "in use; give another --port"),
        (["MODEL", "--port", "70000"], "--port must be"),
        (["MODEL", "--host", "0.0.0.0", "--teach"], "--teach on --host 0.0.0.0 needs a --token"),
        (["MODEL", "--token", "short"], "--token takes at least 8"),
    ],
)
def test_what_cannot_be_served_is_told_in_a_sentence(
    arguments: list[str], told: str, place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server((HOST, 0)) as taken:
        words = {"MODEL": str(place / "model"), "TAKEN": str(taken.getsockname()[1])}
        given = [words.get(word, word) for word in arguments]
        assert main(["serve", *given, *([] if "--port" in given else ["--port", "0"])]) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1


def test_without_the_extra_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["drcil.cli.serve"], "_NEEDED", ("no_such_package",))
    assert main(["serve", "model"]) == 2
    assert "needs no_such_package, which is not installed; install it with pip install 'drcil[serve]'" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_it_learns_while_it_answers_and_the_new_model_replaces_the_old_at_once(place: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(place / "model", tmp_path / "model"))
    images = [file.read_bytes() for file in sorted((place / "new" / NEW).iterdir())]
    folder(place / "more", 0, count=40)
    for file in (place / "more").glob("*/[01]*.png"):
        file.unlink()
    with serving(model, teach=True) as (client, desk):
        assert client.post("/learn", [*images, b"no"], NEW).json["images"] == len(images)
        assert client.post("/learn", images, "other").status == 409
        seen = set()
        until = time.monotonic() + 300
        while client.get("/learn").json["state"] in ("learning", "loading"):
            reply = client.post("/predict", images[:1]).json
            seen.add((reply["version"], len(reply["images"][0]["classes"])))
            assert time.monotonic() < until
        assert client.get("/learn").json["state"] == "learnt" and seen <= {("0001", 2), ("0002", 3)}
        assert ("0001", 2) in seen and NEW in [one["class"] for one in client.get("/classes").json["classes"]]
        with socket.create_connection((HOST, client.port), 60) as watching:
            watching.sendall(f"GET /learn/events HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            told = b""
            while b"\n\n" not in told.partition(b"\r\n\r\n")[2]:
                told += watching.recv(1000)
        assert b'"state":"learnt"' in told
        # Killed, the model stays as it is, and the images are kept for the next lesson.
        known = sorted(STREAM[0].classes)[0]
        more = [file.read_bytes() for file in sorted((place / "more" / known).iterdir())]
        assert client.post("/corrections", more, known).status == 200
        assert client.post("/learn/corrections").status == 202
        while desk.lessons._process is None:
            time.sleep(0.01)
        os.kill(desk.lessons._process.pid, signal.SIGKILL)
        assert _ended(client) == "failed" and client.get("/health").json["version"] == "0002"
        assert [one["images"] for one in client.get("/corrections").json["corrections"]] == [len(more)]
        assert client.post("/learn/corrections").status == 202 and _ended(client) == "learnt"
        assert not client.get("/corrections").json["corrections"]
        counts = {one["class"]: one["images"] for one in client.get("/classes").json["classes"]}
        assert counts[known] > 22 and len(counts) == 3
        # What it remembers already is no lesson; and one can be given up.
        memory = drcil.load(model, device="cpu").memory.images
        assert memory is not None
        again = Path(memory.source.name(int(memory.rows[0]))).read_bytes()
        assert client.post("/learn", [again], known).status == 202 and _ended(client) == "failed"
        assert "before" in client.get("/learn").json["why"]
        assert client.post("/learn", images, "plum").status == 202
        while desk.lessons._process is None:
            time.sleep(0.01)
        assert client.ask("DELETE", "/learn").status == 204 and client.get("/learn").json["state"] == "stopped"
    assert len(drcil.load(model, device="cpu").classes) == 3


_WRITES_LATE = """
import sys, time
from pathlib import Path

if getattr(sys.modules["__main__"].__spec__, "name", None) == "drcil.serving.pupil":
    import drcil.teaching.learn as lesson

    add = lesson.add_version

    def late(*given):
        Path(__file__).with_name("learnt").touch()
        time.sleep(2)
        return add(*given)

    lesson.add_version = late
"""


@pytest.mark.slow
def test_a_lesson_that_is_given_up_too_late_is_told_to_be_learnt(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that learns is held in its last moment, in which all is learnt and nothing written yet."""
    (tmp_path / "late.py").write_text(_WRITES_LATE)
    monkeypatch.setattr("drcil.plugins._named", {str(tmp_path / "late.py"): None})
    model = Path(shutil.copytree(place / "model", tmp_path / "model"))
    images = [file.read_bytes() for file in sorted((place / "new" / NEW).iterdir())]
    with serving(model, teach=True) as (client, _):
        assert client.ask("DELETE", "/learn").status == 204, "there is nothing to give up"
        assert client.post("/learn", images, NEW).status == 202
        until = time.monotonic() + 300
        while not (tmp_path / "learnt").exists():
            assert client.get("/learn").json["state"] == "learning" and time.monotonic() < until
            time.sleep(0.05)
        reply = client.ask("DELETE", "/learn")
        assert reply.status == 409 and "was learnt before it could be given up" in reply.error
        assert client.get("/learn").json["state"] == "learnt" and client.get("/health").json["version"] == "0002"


def _ended(client: Client) -> str:
    """How the lesson ends."""
    until = time.monotonic() + 300
    while client.get("/learn").json["state"] in ("learning", "loading"):
        assert time.monotonic() < until
        time.sleep(0.05)
    return str(client.get("/learn").json["state"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(number: signal.Signals, place: Path) -> None:
    command = [sys.executable, "-m", "drcil.cli", "serve", str(place / "model"), "--port", "0", "--device", "cpu"]
    server = subprocess.Popen([*command, "--teach"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    assert "2 classes, at http://127.0.0.1:" in line
    client = Client(int(line.partition(f"{HOST}:")[2].partition("/")[0]))
    with socket.create_connection((HOST, client.port), 60) as watching:
        watching.sendall(f"GET /learn/events HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert watching.recv(100)
        server.send_signal(number)
        out, err = server.communicate(timeout=60)
    assert server.returncode == 0 and out == "ended\n" and err == ""


@pytest.mark.slow
def test_a_lesson_that_cannot_be_loaded_is_told_and_another_can_be_given(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*given: object) -> None:
        raise RuntimeError("out of memory")

    model = Path(shutil.copytree(place / "model", tmp_path / "model"))
    images = [file.read_bytes() for file in sorted((place / "new" / NEW).iterdir())]
    with serving(model, teach=True) as (client, desk):
        monkeypatch.setattr(desk.current, "renew", fail)
        assert client.post("/learn", images, NEW).status == 202
        assert _ended(client) == "failed"
        assert client.get("/learn").json["why"] == "it was learnt, but cannot be loaded: out of memory"
        monkeypatch.undo()
        assert client.post("/learn", images[:1], "another").status == 202
        assert client.ask("DELETE", "/learn").status == 204

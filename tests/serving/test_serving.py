"""The server: responses and refusals, with a real server on the loopback interface."""

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
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

import drcil
from drcil.cli import main
from drcil.data.file_source import FileList, FileSource
from drcil.serving import decoder
from support.updates import OPTIONS, QUICK, SMALL, STREAM, folder

for needed in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
    pytest.importorskip(needed, reason="needs the extra: pip install 'drcil[serve]'")

from fastapi import UploadFile  # noqa: E402
from starlette.datastructures import Headers  # noqa: E402

from drcil.serving.access import (  # noqa: E402
    AccessPolicy,
    Limits,
    Refusal,
)
from drcil.serving.api import assets  # noqa: E402
from drcil.serving.learn_jobs import JobStatus  # noqa: E402
from drcil.serving.service import CurrentModel, ServerState, UploadResult  # noqa: E402
from support.http_client import HOST, UNHURRIED, Client, multipart, serving  # noqa: E402

TOKEN = "a-long-enough-token"
NEW = sorted(STREAM[1].classes)[0]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two classes and images of four."""
    path = tmp_path_factory.mktemp("served")
    folder(path / "old", 0)
    folder(path / "new", 1)
    assert main(["learn", str(path / "model"), str(path / "old"), *OPTIONS, *QUICK, *SMALL, "--quiet"]) == 0
    return path


@pytest.fixture(scope="module")
def served(directory: Path) -> Iterator[tuple[Client, ServerState]]:
    with serving(directory / "model", teach=True) as server:
        yield server


@pytest.fixture(scope="module")
def client(served: tuple[Client, ServerState]) -> Client:
    return served[0]


@pytest.fixture(scope="module")
def strict_server(directory: Path) -> Iterator[tuple[Client, ServerState]]:
    """A server with small limits and a token."""
    sizes: dict[str, Any] = {"file_bytes": 50_000, "predict_bytes": 200_000, "predict_images": 3, "pixels": 10**12}
    with serving(directory / "model", Limits(waiting=1, **sizes, **UNHURRIED), TOKEN) as server:
        yield server


@pytest.fixture(scope="module")
def strict(strict_server: tuple[Client, ServerState]) -> Client:
    return strict_server[0]


def image(directory: Path, name: str | None = None, number: int = 0) -> bytes:
    classes = sorted((directory / "old").iterdir()) if name is None else [directory / "new" / name]
    return sorted(classes[0].iterdir())[number].read_bytes()


def bomb(side: int) -> bytes:
    """A small PNG file with very many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")

    header = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    rows = zlib.compress(bytes(10**6))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def jpeg(tail: bytes = b"", comment: bytes = b"") -> bytes:
    encoded = io.BytesIO()
    Image.new("RGB", (40, 30), "teal").save(encoded, "JPEG", comment=comment)
    return encoded.getvalue() + tail


def stored(content: bytes) -> bytes:
    """What a decoder stores of an image to learn from."""
    job = {"purpose": "store", "size": 64, "channels": 3, "pixels": 10**6, "bytes": len(content)}
    results = io.BytesIO()
    decoder.decode_jobs(io.BytesIO(json.dumps(job).encode() + b"\n" + content), results)
    result, _, content = results.getvalue().partition(b"\n")
    assert "error" not in json.loads(result)
    return content


def archive() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("run.sh", "echo")
    return packed.getvalue()


def test_predictions_equal_those_of_the_predictor(directory: Path, client: Client) -> None:
    files = sorted((directory / "old").rglob("*.png"))[::10]
    reply = client.post("/predict?top=2", [file.read_bytes() for file in files], names=[file.name for file in files])
    assert reply.status == 200
    expected = drcil.load_predictor(directory / "model", device="cpu").predict(files, top=2)
    for answer, wanted, file in zip(reply.json["images"], expected, files, strict=True):
        assert answer["file"] == file.name and answer["label"] == wanted.label and answer["nearest"] == []
        assert [one["class"] for one in answer["classes"]] == list(wanted.classes)
        np.testing.assert_allclose([one["probability"] for one in answer["classes"]], wanted.probabilities, atol=1e-5)
    unsure = client.post("/predict?threshold=1", [files[0].read_bytes()]).json["images"][0]
    assert unsure["label"] is None and unsure["classes"]


def test_health_and_classes_describe_the_model(client: Client) -> None:
    health, classes = client.get("/health").json, client.get("/classes").json
    assert health["status"] == "ok" and health["classes"] == 2 and health["teaches"] and not health["token"]
    assert [one["class"] for one in classes["classes"]] == sorted(STREAM[0].classes)
    assert all(one["images"] == 22 for one in classes["classes"]) and classes["version"] == health["version"]


def test_an_exemplar_is_its_own_nearest_exemplar(directory: Path, client: Client) -> None:
    memory = drcil.load(directory / "model", device="cpu").memory.images
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
    ("content", "reason"),
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
def test_files_that_are_not_images_are_refused(content: bytes, reason: str, directory: Path, client: Client) -> None:
    reply = client.post("/predict", [content])
    assert reply.status == 400 and "the image cannot be read: " in reply.error and reason in reply.error
    mixed = client.post("/predict", [content, image(directory)], names=["bad", "good"])
    bad, good = mixed.json["images"]
    assert mixed.status == 200 and reason in bad["error"] and bad["label"] is None and good["error"] is None


@pytest.mark.parametrize("besides", [archive(), b"<script>alert(1)</script>", b"%PDF-1.7"], ids=["zip", "page", "pdf"])
def test_only_the_pixels_of_a_file_are_stored(besides: bytes) -> None:
    after, inside = jpeg(besides), jpeg(comment=besides)
    assert besides in after and besides in inside
    plain = stored(jpeg())
    assert stored(after) == stored(inside) == plain and besides not in plain


_WITHOUT_TORCH = """
import io, json, sys
from drcil.serving import decoder

content = sys.stdin.buffer.read()
for purpose in ("view", "store"):
    job = {"purpose": purpose, "size": 16, "channels": 3, "pixels": 10**6, "bytes": len(content)}
    results = io.BytesIO()
    decoder.decode_jobs(io.BytesIO(json.dumps(job).encode() + b"\\n" + content), results)
    assert "error" not in json.loads(results.getvalue().partition(b"\\n")[0])
assert "torch" not in sys.modules
"""


def test_decoder_processes_do_not_import_torch() -> None:
    subprocess.run([sys.executable, "-c", _WITHOUT_TORCH], input=jpeg(), check=True)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads environments in /proc")
def test_decoder_processes_do_not_have_the_token(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRCIL_TOKEN", TOKEN)

    async def read_image() -> bytes:
        return image(directory)

    async def read_environments() -> list[bytes]:
        state = ServerState(directory / "model", AccessPolicy(), Limits(**UNHURRIED), "cpu", threads=1)
        async with state.run():
            # Every decoder has started when it has decoded an image; before, its environment may be empty.
            shape, count = state.current.model.shape, state.decoders.count
            await asyncio.gather(*(state.decoders.view(read_image, shape) for _ in range(count)))
            return [Path(f"/proc/{process}/environ").read_bytes() for process in state.decoders.process_ids()]

    environments = asyncio.run(read_environments())
    assert environments and all(b"PATH=" in text and TOKEN.encode() not in text for text in environments)


def test_a_decoder_that_crashes_is_replaced(directory: Path, strict_server: tuple[Client, ServerState]) -> None:
    own, (client, state) = {"Authorization": f"Bearer {TOKEN}"}, strict_server
    # This server has hardly any limit on pixels, so the decoder reaches its memory limit.
    assert client.post("/predict", [bomb(30_000)], headers=own).status == 400
    killed = state.decoders.process_ids()
    for process in killed:
        os.kill(process, signal.SIGKILL)
    # They take turns: each fails at most once, for the request that finds it dead.
    count = state.decoders.count
    statuses = [client.post("/predict", [image(directory)], headers=own).status for _ in range(2 * count)]
    assert statuses[count:] == [200] * count
    assert len(state.decoders.process_ids()) == count and not set(state.decoders.process_ids()) & set(killed)


def test_stored_images_are_upright_and_have_no_metadata(tmp_path: Path) -> None:
    pixels = np.zeros((300, 400, 3), dtype=np.uint8)
    pixels[:, :100] = (250, 30, 30)
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation], tags[ExifTags.Base.Make] = 6, "a camera of someone"
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", exif=tags, comment="at home")
    content, order = (tmp_path / "photo.jpg").read_bytes(), {"size": 64, "channels": 3, "pixels": 10**6}
    answers = io.BytesIO()
    orders = [{**order, "purpose": purpose, "bytes": len(content)} for purpose in ("view", "store")]
    decoder.decode_jobs(io.BytesIO(b"".join(json.dumps(one).encode() + b"\n" + content for one in orders)), answers)
    answers.seek(0)
    assert json.loads(answers.readline()) == {"suffix": "", "bytes": 64 * 64 * 3}
    view = np.frombuffer(answers.read(64 * 64 * 3), dtype=np.uint8).reshape(64, 64, 3)
    np.testing.assert_array_equal(view, FileSource(FileList.of_paths([tmp_path / "photo.jpg"]), 64).view(0, None))
    told = json.loads(answers.readline())
    kept = answers.read(told["bytes"])
    with Image.open(io.BytesIO(kept)) as picture:
        assert picture.format == "JPEG" and picture.size == (128, 171) and not picture.getexif()
        # What was on the left is at the top now.
        pixels = np.asarray(picture)
    assert pixels[10, 64, 0] > 200 and pixels[160, 64].max() < 30 and b"camera" not in kept and b"at home" not in kept


def test_number_and_size_of_uploads_are_limited(directory: Path, strict: Client) -> None:
    own, good = {"Authorization": f"Bearer {TOKEN}"}, image(directory)
    assert strict.post("/predict", [good] * 3, headers=own).status == 200
    many = strict.post("/predict", [good] * 4, headers=own)
    assert many.status == 400 and many.error == "4 images were sent; a request takes 1 to 3"
    large = strict.post("/predict", [bytes(60_000)], headers=own)
    assert large.status == 400 and large.error == "the image cannot be read: it is larger than 0.05 MB"
    body = multipart([bytes(300_000)])[1]
    assert strict.ask("POST", "/predict", body, own).status == 413
    kind, body = multipart([bytes(300_000)])
    unannounced = strict.ask("POST", "/predict", iter([body[:150_000], body[150_000:]]), {"Content-Type": kind, **own})
    assert unannounced.status == 413 and unannounced.error == "the request is larger than 0.2 MB"


def slow_request(directory: Path) -> tuple[bytes, bytes]:
    """The first bytes of a request, and the rest."""
    kind, body = multipart([image(directory)])
    head = f"POST /predict HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode() + body[:50], body[50:]


def test_a_busy_server_answers_503_with_retry_after(directory: Path, strict: Client) -> None:
    own, (first, others) = {"Authorization": f"Bearer {TOKEN}"}, slow_request(directory)
    with socket.create_connection((HOST, strict.port)) as slow:
        slow.sendall(first)
        while (reply := strict.post("/predict", [image(directory)], headers=own)).status == 200:
            pass  # The first bytes of the other request have not been read yet.
        assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1 and "busy" in reply.error
        slow.sendall(others)
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")
    while (reply := strict.post("/predict", [image(directory)], headers=own)).status == 503:
        pass  # It is answered, and about to be done.
    assert reply.status == 200


def test_a_slow_upload_is_refused(directory: Path) -> None:
    """With a limit of 0 s, so that the test need not wait."""
    first, _ = slow_request(directory)
    with serving(directory / "model", Limits(waiting=1, upload_seconds=0.0)) as (client, _):
        for _ in range(2):
            with socket.create_connection((HOST, client.port)) as slow:
                slow.sendall(first)
                assert slow.recv(1000).startswith(b"HTTP/1.1 408"), "the previous request is no longer counted"


def test_the_total_size_of_waiting_requests_is_limited(directory: Path) -> None:
    kind, body = multipart([image(directory)])
    with serving(directory / "model", Limits(waiting_bytes=len(body) + 100)) as (client, _):
        assert client.post("/predict", [image(directory)]).status == 200
        assert client.post("/predict", [image(directory)] * 2).status == 503
        unannounced = client.ask("POST", "/predict", iter([body]), {"Content-Type": kind})
        assert unannounced.status == 503, "its size is unknown"


def test_text_instead_of_a_file_is_refused(client: Client) -> None:
    body, kind = b"images=hello", {"Content-Type": "application/x-www-form-urlencoded"}
    reply = client.ask("POST", "/predict", body, kind)
    assert reply.status == 400 and "a file is needed, sent as multipart/form-data" in reply.error


def test_other_hosts_and_origins_are_refused(directory: Path, client: Client) -> None:
    good, own = [image(directory)], f"{HOST}:{client.port}"
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
    AccessPolicy(names=frozenset(["Fruit.example"])).check("POST", "/predict", Headers(proxy))


def test_everything_about_images_needs_the_token(directory: Path, strict: Client) -> None:
    for path in ("/", "/docs", "/health", "/openapi.json", "/page/main.js"):
        assert strict.get(path).status == 200
    for path in ("/classes", "/metrics", "/corrections", "/corrections.zip", "/exemplars/x/0/0", "/nothing"):
        for given in ("", "Bearer", "Bearer no", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
            reply = strict.get(path, Authorization=given)
            assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer"
    assert strict.post("/predict", [image(directory)]).status == 401
    assert strict.get("/classes", Authorization=f"bearer {TOKEN}").status == 200
    assert strict.post("/learn", [image(directory)], "plum", {"Authorization": f"Bearer {TOKEN}"}).status == 404


def test_corrections_are_stored_under_names_of_the_server(directory: Path, client: Client, tmp_path: Path) -> None:
    nasty = "../../tmp/evil, \"quoted\" 'name'"
    reply = client.post("/corrections", [image(directory), b"no"], f"  {nasty} ", names=["../../../etc/passwd", "x"])
    assert reply.status == 200 and reply.json["label"] == nasty and reply.json["images"] == 1
    assert reply.json["skipped"] == [{"file": "x", "error": "not an image"}]
    assert client.post("/corrections", [image(directory)], sorted(STREAM[0].classes)[0]).status == 200
    for bad in ("", "  ", "x" * 101, "two\nlines", "nul\0", "bidi\u202e"):
        refused = client.post("/corrections", [image(directory)], bad)
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
    np.testing.assert_array_equal(shown, np.asarray(Image.open(io.BytesIO(image(directory))).convert("L")))
    assert client.ask("DELETE", "/corrections").status == 204 and not client.get("/corrections").json["corrections"]


def test_the_limit_of_corrections_holds_for_simultaneous_requests(directory: Path) -> None:
    def sent(*contents: bytes) -> list[UploadFile]:
        return [UploadFile(io.BytesIO(content)) for content in contents]

    async def ask() -> tuple[list[object], int]:
        state, good = (
            ServerState(directory / "model", AccessPolicy(), Limits(collected=3), "cpu", threads=1),
            image(directory),
        )
        async with state.run():
            given = [sent(b"no", b"no"), sent(good, good), sent(good, good)]
            first = await asyncio.gather(state.collect(given[0], "plum"), return_exceptions=True)
            pairs = await asyncio.gather(*(state.collect(two, "plum") for two in given[1:]), return_exceptions=True)
            await state.collect(sent(good), "plum")
            return [*first, *pairs], len(state.collection.corrections)

    (none, pair, late), count = asyncio.run(ask())
    assert isinstance(none, Refusal) and none.status_code == 400
    assert isinstance(pair, UploadResult) and isinstance(late, Refusal) and late.status_code == 409 and count == 3


def test_learning_is_refused_before_images_are_received_while_another_job_runs(
    served: tuple[Client, ServerState],
) -> None:
    client, state = served
    state.learn_job.status = JobStatus(state="learning")
    try:
        with socket.create_connection((HOST, client.port)) as asking:
            kind = "multipart/form-data; boundary=x"
            head = f"POST /learn HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\nContent-Length: 1000\r\n\r\n"
            asking.sendall(head.encode())
            assert asking.recv(1000).startswith(b"HTTP/1.1 409")
    finally:
        state.learn_job.status = JobStatus()


def test_invalid_learning_jobs_are_refused(directory: Path, client: Client) -> None:
    assert client.post("/learn", [b"no"], "plum").status == 400
    assert "images" in client.post("/learn", [], "plum").error
    assert "label" in client.post("/learn", [image(directory)]).error
    assert client.post("/learn/corrections").status == 400
    assert client.get("/learn").json["state"] == "idle"


def test_without_teach_and_collect_there_are_no_such_endpoints(directory: Path) -> None:
    with serving(directory / "model", collect=False) as (client, _):
        assert client.post("/learn", [image(directory)], "plum").status in (404, 405)
        assert client.post("/corrections", [image(directory)], "plum").status in (404, 405)
        assert "/learn" not in client.get("/openapi.json").json["paths"]
        health = client.get("/health").json
        assert not health["teaches"] and not health["collects"]


def test_the_page_loads_nothing_from_other_hosts(client: Client) -> None:
    for path, (kind, content) in assets().items():
        reply = client.get(path)
        assert reply.status == 200 and reply.body == content and reply.headers["content-type"].startswith(kind)
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text and "https:" not in text and " style=" not in text and "onclick" not in text
    assert client.get("/page/../app.py").status == 404 and client.get("/page/%2e%2e/app.py").status == 404


def test_metrics_count_requests(directory: Path, client: Client) -> None:
    def value(name: str) -> float:
        lines = client.get("/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    asked = 'drcil_requests_total{endpoint="/predict",status="200"}'
    before = value(asked)
    assert client.post("/predict", [image(directory)]).status == 200
    assert value(asked) == before + 1 and value("drcil_classes") == 2 and value("process_resident_memory_bytes") > 0
    assert value('drcil_request_seconds_bucket{endpoint="/predict",le="+Inf"}') >= before + 1


def test_a_model_changed_by_another_process_is_reloaded(directory: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(directory / "model", tmp_path / "model"))
    with serving(model) as (client, _):
        old = sorted(STREAM[0].classes)[0]
        assert main(["rename", str(model), old, "zéro"]) == 0
        while client.get("/classes").json["classes"][0]["class"] != "zéro":
            time.sleep(0.1)


def test_the_version_is_read_outside_the_event_loop(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def version_key(directory: Path) -> str:
        threads.append(threading.get_ident())
        return directory.name

    monkeypatch.setattr("drcil.serving.service.version_key", version_key)
    current = CurrentModel(directory / "model", "cpu")
    threads.clear()
    asyncio.run(current.reload())
    assert threads and threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a model: there is no such directory"),
        (["nowhere", "--teach"], "is not a model that can be changed: there is no such directory"),
        (["MODEL", "--host", "no.such.host.invalid"], "--host 'no.such.host.invalid' is no address or name"),
        (["MODEL", "--host", "203.0.113.7"], "cannot listen on 203.0.113.7"),
        (["MODEL", "--port", "TAKEN"], "in use; give another --port"),
        (["MODEL", "--port", "70000"], "'--port': Input should be"),
        (["MODEL", "--host", "0.0.0.0", "--teach"], "--teach on --host 0.0.0.0 needs a --token"),
        (["MODEL", "--token", "short"], "--token takes at least 8"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(
    arguments: list[str], message: str, directory: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server((HOST, 0)) as taken:
        words = {"MODEL": str(directory / "model"), "TAKEN": str(taken.getsockname()[1])}
        given = [words.get(word, word) for word in arguments]
        assert main(["serve", *given, *([] if "--port" in given else ["--port", "0"])]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["drcil.cli.serve"], "_NEEDED", ("no_such_package",))
    assert main(["serve", "model"]) == 2
    assert "needs no_such_package, which is not installed; install it with pip install 'drcil[serve]'" in (
        capsys.readouterr().err
    )


def test_learn_reports_progress_as_json(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Path(shutil.copytree(directory / "model", tmp_path / "model"))
    handler = signal.getsignal(signal.SIGTERM)
    learn = ["learn", str(model), str(directory / "new"), "--known", "skip", "--progress", "json", *SMALL]
    assert main(learn) == 0 and signal.getsignal(signal.SIGTERM) is handler
    *steps, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shares = [step["progress"] for step in steps]
    assert len(shares) > 1 and shares == sorted(shares) and shares[-1] == 1.0
    assert last == {"event": "learnt", "new": sorted(STREAM[1].classes), "refreshed": []}
    assert main(learn) == 0
    assert json.loads(capsys.readouterr().out) == {"event": "learnt", "new": [], "refreshed": []}


@pytest.mark.slow
def test_the_old_model_predicts_until_the_new_one_replaces_it(directory: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(directory / "model", tmp_path / "model"))
    images = [file.read_bytes() for file in sorted((directory / "new" / NEW).iterdir())]
    folder(directory / "more", 0, count=40)
    for file in (directory / "more").glob("*/[01]*.png"):
        file.unlink()
    with serving(model, teach=True) as (client, state):
        assert client.post("/learn", [*images, b"no"], NEW).json["images"] == len(images)
        assert client.post("/learn", images, "other").status == 409
        seen = set()
        while client.get("/learn").json["state"] in ("learning", "loading"):
            reply = client.post("/predict", images[:1]).json
            seen.add((reply["version"], len(reply["images"][0]["classes"])))
        assert client.get("/learn").json["state"] == "learnt" and seen <= {("0001", 2), ("0002", 3)}
        assert ("0001", 2) in seen and NEW in [one["class"] for one in client.get("/classes").json["classes"]]
        with socket.create_connection((HOST, client.port)) as watching:
            watching.sendall(f"GET /learn/events HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            told = b""
            while b"\n\n" not in told.partition(b"\r\n\r\n")[2]:
                told += watching.recv(1000)
        assert b'"state":"learnt"' in told
        # If the process is killed, the model does not change, and the corrections are kept.
        known = sorted(STREAM[0].classes)[0]
        more = [file.read_bytes() for file in sorted((directory / "more" / known).iterdir())]
        assert client.post("/corrections", more, known).status == 200
        assert client.post("/learn/corrections").status == 202
        while state.learn_job._process is None:
            time.sleep(0.01)
        os.kill(state.learn_job._process.pid, signal.SIGKILL)
        assert _outcome(client) == "failed" and client.get("/health").json["version"] == "0002"
        assert [one["images"] for one in client.get("/corrections").json["corrections"]] == [len(more)]
        assert client.post("/learn/corrections").status == 202 and _outcome(client) == "learnt"
        assert not client.get("/corrections").json["corrections"]
        counts = {one["class"]: one["images"] for one in client.get("/classes").json["classes"]}
        assert counts[known] > 22 and len(counts) == 3
        # Images that the model has learnt before fail; a job can be stopped.
        memory = drcil.load(model, device="cpu").memory.images
        assert memory is not None
        again = Path(memory.source.name(int(memory.rows[0]))).read_bytes()
        assert client.post("/learn", [again], known).status == 202 and _outcome(client) == "failed"
        assert "before" in client.get("/learn").json["error"]
        assert client.post("/learn", images, "plum").status == 202
        while state.learn_job._process is None:
            time.sleep(0.01)
        assert client.ask("DELETE", "/learn").status == 204 and client.get("/learn").json["state"] == "stopped"
    assert len(drcil.load(model, device="cpu").classes) == 3


_WRITES_LATE = """
import sys, time
from pathlib import Path

if getattr(sys.modules["__main__"].__spec__, "name", None) == "drcil.cli.child":
    import drcil.updates as lesson

    add = lesson.add_version

    def late(*given):
        Path(__file__).with_name("learnt").touch()
        while not Path(__file__).with_name("stopped").exists():
            time.sleep(0.01)
        return add(*given)

    lesson.add_version = late
"""


@pytest.mark.slow
def test_a_job_stopped_too_late_counts_as_learnt(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learning process is held when everything is learnt and nothing is written yet."""
    (tmp_path / "late.py").write_text(_WRITES_LATE)
    monkeypatch.setattr("drcil.registry._named", {str(tmp_path / "late.py"): None})
    model = Path(shutil.copytree(directory / "model", tmp_path / "model"))
    images = [file.read_bytes() for file in sorted((directory / "new" / NEW).iterdir())]
    with serving(model, teach=True) as (client, state):
        assert client.ask("DELETE", "/learn").status == 204, "there is no job to stop"
        assert client.post("/learn", images, NEW).status == 202
        while not (tmp_path / "learnt").exists():
            assert client.get("/learn").json["state"] == "learning"
            time.sleep(0.05)
        with ThreadPoolExecutor(1) as other:
            asked = other.submit(client.ask, "DELETE", "/learn")
            while not state.learn_job._is_stopped:
                time.sleep(0.01)
            (tmp_path / "stopped").touch()
            reply = asked.result()
        assert reply.status == 409 and "finished before it could be stopped" in reply.error
        assert client.get("/learn").json["state"] == "learnt" and client.get("/health").json["version"] == "0002"


def _outcome(client: Client) -> str:
    """Wait for the end of the learning job; returns its state."""
    while client.get("/learn").json["state"] in ("learning", "loading"):
        time.sleep(0.05)
    return str(client.get("/learn").json["state"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_server_cleanly(number: signal.Signals, directory: Path) -> None:
    command = [sys.executable, "-m", "drcil.cli", "serve", str(directory / "model"), "--port", "0", "--device", "cpu"]
    server = subprocess.Popen([*command, "--teach"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    assert "2 classes, at http://127.0.0.1:" in line
    client = Client(int(line.partition(f"{HOST}:")[2].partition("/")[0]))
    with socket.create_connection((HOST, client.port)) as watching:
        watching.sendall(f"GET /learn/events HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert watching.recv(100)
        server.send_signal(number)
        out, err = server.communicate()
    assert server.returncode == 0 and out == "ended\n" and err == ""


@pytest.mark.slow
def test_a_new_model_that_cannot_be_loaded_is_reported_and_another_job_can_start(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*given: object) -> None:
        raise RuntimeError("out of memory")

    model = Path(shutil.copytree(directory / "model", tmp_path / "model"))
    images = [file.read_bytes() for file in sorted((directory / "new" / NEW).iterdir())]
    with serving(model, teach=True) as (client, state):
        monkeypatch.setattr(state.learn_job, "reload", fail)
        assert client.post("/learn", images, NEW).status == 202
        assert _outcome(client) == "failed"
        assert client.get("/learn").json["error"] == "the new model cannot be loaded: out of memory"
        monkeypatch.undo()
        assert client.post("/learn", images[:1], "another").status == 202
        assert client.ask("DELETE", "/learn").status == 204

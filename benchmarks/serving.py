"""Benchmark of the server under load: eight clients at the same time."""

from __future__ import annotations

import http.client
import io
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from drcil.errors import UserError
from drcil.learner import Learner
from drcil.streams.stream import make_stream

from . import Measurement, benchmark
from .workload import Workload, photographs

_HOST = "127.0.0.1"
_CLIENTS, _SECONDS = 8, 10.0
_BOUNDARY = "boundary-of-the-benchmark"


@benchmark(
    "serving-growth",
    "growth of the server's memory under the load of eight clients, from a third of ten seconds to their end",
    target=20.0,
    better="lower",
    unit="MB",
)
def serving_growth(workload: Workload) -> Measurement:
    with TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        _save_model(model)
        command = ["-m", "drcil.cli", "serve", str(model), "--port", "0", "--device", "cpu", "--threads", "1"]
        server = subprocess.Popen([sys.executable, "-P", *command], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = re.search(r":(\d+)/", server.stdout.readline())
            if port is None:
                raise UserError("the server did not start")
            return _measure(int(port[1]))
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()


def _measure(port: int) -> Measurement:
    images = [_encode(photographs(1, 8, 8)[0], "PNG"), _encode(photographs(1, 1200, 1600)[0], "JPEG")]
    for image in images * 4:
        _predict(port, image)
    end, seconds, errors = time.monotonic() + _SECONDS, list[float](), list[str]()

    def send_requests(image: bytes) -> None:
        try:
            while time.monotonic() < end:
                start = time.perf_counter()
                _predict(port, image)
                seconds.append(time.perf_counter() - start)
        except (UserError, OSError) as error:
            errors.append(str(error))

    threads = [threading.Thread(target=send_requests, args=(images[index % 2],)) for index in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(_SECONDS / 3)
    early = _memory(port)
    for thread in threads:
        thread.join()
    if errors:
        raise UserError(f"a request failed: {errors[0]}")
    late = _memory(port)
    median, slow = 1000 * np.percentile(seconds, [50, 99])
    memory = f"memory {early / 1e6:.0f} MB, then {late / 1e6:.0f} MB"
    detail = f"{len(seconds)} requests, median {median:.0f} ms, 99 % below {slow:.0f} ms, {memory}"
    return Measurement((late - early) / 1e6, detail)


def _save_model(path: Path) -> None:
    """A small model of two digits."""
    learner = Learner("replay", epochs_scale=0.01, memory="20/class", device="cpu")
    learner.learn(make_stream("digits-b0-5")[0])
    learner.save(path)


def _encode(pixels: np.ndarray, format: str) -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, format)
    return encoded.getvalue()


def _predict(port: int, image: bytes) -> None:
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="image"\r\n\r\n'
    body = head.encode() + image + f"\r\n--{_BOUNDARY}--\r\n".encode()
    _request(port, "POST", "/predict?nearest=5", body)


def _memory(port: int) -> float:
    """Bytes of the server according to its metrics."""
    metrics = _request(port, "GET", "/metrics").decode()
    value = re.search(r"^process_resident_memory_bytes (\S+)$", metrics, re.MULTILINE)
    if value is None:
        raise UserError("this system does not report the memory of a process")
    return float(value[1])


def _request(port: int, method: str, path: str, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection(_HOST, port)
    try:
        connection.request(method, path, body, {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"})
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise UserError(f"{path} answered with status {response.status}: {content.decode(errors='replace')}")
    return content

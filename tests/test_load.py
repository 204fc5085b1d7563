"""The server under load: eight clients at a time, no error, and memory that does not grow."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drcil.cli import main
from test_teaching import OPTIONS, QUICK, SMALL, folder

for needed in ("fastapi", "uvicorn", "python_multipart"):
    pytest.importorskip(needed, reason="needs the extra: pip install 'drcil[serve]'")

from http_client import HOST, Client  # noqa: E402

CLIENTS = 8
SECONDS = float(os.environ.get("DRCIL_LOAD_SECONDS", "10"))
GROWTH = 20e6
"""Bytes that the memory of the server may differ by, between a third of the time and its end."""


def photograph() -> bytes:
    """A JPEG of two megapixels."""
    noise = np.random.default_rng(0).integers(0, 256, (75, 100, 3), dtype=np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(noise).resize((1600, 1200)).save(encoded, "JPEG", quality=85)
    return encoded.getvalue()


@pytest.mark.slow
def test_eight_clients_are_answered_without_an_error_and_memory_is_flat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path / "images", 0)
    model = str(tmp_path / "model")
    assert main(["learn", model, str(tmp_path / "images"), *OPTIONS, *QUICK, *SMALL, "--quiet"]) == 0
    command = [sys.executable, "-m", "drcil.cli", "serve", model, "--port", "0", "--device", "cpu", "--threads", "1"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        client = Client(int(server.stdout.readline().partition(f"{HOST}:")[2].partition("/")[0]))
        images = [next((tmp_path / "images").rglob("*.png")).read_bytes(), photograph()]
        for image in images * 4:
            assert client.post("/predict?nearest=5", [image]).status == 200
        until, took, statuses = time.monotonic() + SECONDS, list[float](), list[int]()

        def ask(number: int) -> None:
            while time.monotonic() < until:
                begun = time.perf_counter()
                statuses.append(client.post("/predict?nearest=5", [images[number % 2]]).status)
                took.append(time.perf_counter() - begun)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS / 3)
        early = memory(client)
        for thread in threads:
            thread.join()
        late = memory(client)
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
    p50, p99 = np.percentile(took, [50, 99]) * 1000
    with capsys.disabled():
        print(
            f"\n{CLIENTS} clients, {SECONDS:g} s: {len(took)} requests, p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
            f"memory {early / 1e6:.0f} MB, then {late / 1e6:.0f} MB"
        )
    assert set(statuses) == {200} and len(took) >= CLIENTS
    assert late - early < GROWTH


def memory(client: Client) -> float:
    """Bytes of the server, as it says itself."""
    found = re.search(r"^process_resident_memory_bytes (\S+)$", client.get("/metrics").body.decode(), re.MULTILINE)
    if found is None:
        pytest.skip("the system does not say how much memory a process has")
    return float(found[1])

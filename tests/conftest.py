"""What all tests share: one thread each, steady property tests, and the way to real data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# So that what is asserted there is shown when it fails.
pytest.register_assert_rewrite("browsing", "scene", "small_engine")
settings.register_profile("drcil", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("drcil")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["PYTHONWARNINGS"] = ",".join(config.getini("filterwarnings"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory of real datasets, which ``DRCIL_DATA`` names."""
    directory = os.environ.get("DRCIL_DATA")
    if directory is None or not Path(directory).is_dir():
        pytest.skip(f"needs real data: set DRCIL_DATA to its directory (it is {directory})")
    return Path(directory)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    from browsing import CHROMIUM

    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()

"""What all tests share: one thread each, steady property tests, and the way to real data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("drcil", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("drcil")

BESIDE_REPOSITORY = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory of real datasets: ``DRCIL_DATA``, or ``../shared/data`` beside the repository."""
    directory = Path(os.environ.get("DRCIL_DATA", BESIDE_REPOSITORY))
    if not directory.is_dir():
        pytest.skip(f"needs real data: {directory} is no directory (set DRCIL_DATA)")
    return directory

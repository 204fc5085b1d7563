"""What all tests share: one environment, one thread each, steady property tests, and the way to real data."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from drcil.errors import UserError
from drcil.process import require_bf16

_KNOBS = ("DRCIL_DATA", "DRCIL_LOAD_SECONDS", "DRCIL_SCREENSHOTS")
"""Variables that are meant for tests: real data, how long the server is under load, where screenshots go."""
_REMOVED = {
    "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "LINES", "TERMINAL_WIDTH",
    "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS", "LANG", "LANGUAGE", "RANK", "LOCAL_RANK", "WORLD_SIZE",
    "CUBLAS_WORKSPACE_CONFIG",
}  # fmt: skip
_REMOVED_PREFIXES = ("DRCIL_", "SLURM_", "MASTER_", "TORCHELASTIC_", "RAY_", "HF_", "WANDB_", "LC_")

_DEPRECATIONS = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")


def fixed_environment(variables: Mapping[str, str], cache: str) -> dict[str, str]:
    """A copy in which everything that changes what drcil prints, where it computes and what it reads has one value."""
    kept = {
        name: value
        for name, value in variables.items()
        if name in _KNOBS or (name not in _REMOVED and not name.startswith(_REMOVED_PREFIXES))
    }
    return {
        **kept,
        "COLUMNS": "100",
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": "",
        "XDG_CACHE_HOME": cache,
    }


def _fix_environment() -> str | None:
    """Apply it to this process and all that it starts. Returns the cache directory if this call created it."""
    # Workers of xdist share the directory of the process that started them.
    made = None if "PYTEST_XDIST_WORKER" in os.environ else tempfile.mkdtemp(prefix="drcil-tests-cache-")
    variables = fixed_environment(os.environ, made or os.environ["XDG_CACHE_HOME"])
    os.environ.clear()
    os.environ.update(variables)
    return made


# Background jobs and nohup start with signals ignored, and so would all processes that tests start and stop.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Not in a fixture: test modules import drcil when they are collected.
_CACHE = _fix_environment()
torch.set_num_threads(1)
# Before torch computes: CPUs whose AMX does not work are told to do without, as for users of bf16.
with suppress(UserError):
    require_bf16()
# So that what is asserted there is shown when it fails.
pytest.register_assert_rewrite("support")
settings.register_profile("drcil", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("drcil")


def pytest_configure(config: pytest.Config) -> None:
    # Processes that tests start warn their users as they should, but use nothing that is announced to go away.
    os.environ["PYTHONWARNINGS"] = ",".join(f"error::{category}" for category in _DEPRECATIONS)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _CACHE is not None:
        shutil.rmtree(_CACHE, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In slow tests and tests on real data, warnings of other libraries are shown but are no failures."""
    expected = [line for line in config.getini("filterwarnings") if line.startswith("ignore:")]
    shown = pytest.mark.filterwarnings("default::UserWarning", "default::RuntimeWarning", *expected)
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("data"):
            item.add_marker(shown)


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
    from support.browser import CHROMIUM

    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()

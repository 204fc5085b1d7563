"""The environment of the tests: the same whatever the shell, terminal or cluster that starts them."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from conftest import fixed_environment

HOSTILE = {
    "COLUMNS": "60",
    "LINES": "7",
    "FORCE_COLOR": "1",
    "NO_COLOR": "1",
    "TERM": "xterm-256color",
    "LANG": "de_DE.UTF-8",
    "LC_NUMERIC": "de_DE.UTF-8",
    "DRCIL_PLUGINS": "missing",
    "DRCIL_TOKEN": "secret",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "elsewhere",
    "RAY_ADDRESS": "elsewhere:6379",
    "HF_HOME": "/elsewhere",
    "CUDA_VISIBLE_DEVICES": "0",
    "XDG_CACHE_HOME": "/home/someone/.cache",
}
KNOBS = {"DRCIL_DATA": "/data", "DRCIL_LOAD_SECONDS": "3", "DRCIL_SCREENSHOTS": "/pictures"}
FIXED = {"COLUMNS": "100", "TERM": "dumb", "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}


def test_it_does_not_depend_on_the_shell() -> None:
    plain = {"PATH": "/bin", "HOME": "/home/someone"}
    expected = {**plain, **FIXED, "XDG_CACHE_HOME": "/cache"}
    assert fixed_environment(plain, "/cache") == expected
    assert fixed_environment({**plain, **HOSTILE, **KNOBS}, "/cache") == {**expected, **KNOBS}


def test_tests_and_the_processes_they_start_have_it() -> None:
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name, value in FIXED.items():
        assert os.environ[name] == value and f'"{name}": "{value}"' in child
    assert not torch.cuda.is_available()
    assert os.environ["XDG_CACHE_HOME"] != os.path.expanduser("~/.cache")
    assert not {name for name in HOSTILE if name not in FIXED and name in os.environ} - {"XDG_CACHE_HOME"}

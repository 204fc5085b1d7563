"""Benchmarks of start-up: help and import."""

from __future__ import annotations

import subprocess
import sys

from . import Measurement, alternate, benchmark, seconds_of
from .workload import Workload

_ROUNDS = 7


def _spent(*arguments: str) -> float:
    command = [sys.executable, "-P", *arguments]
    return seconds_of(lambda: subprocess.run(command, check=True, capture_output=True))


@benchmark("help-seconds", "`drcil --help`, from start to end", target=0.5, better="lower", unit="s")
def help_seconds(workload: Workload) -> Measurement:
    (seconds,) = alternate(_ROUNDS, lambda: _spent("-m", "drcil.cli", "--help"))
    return Measurement(seconds, f"best of {_ROUNDS}")


@benchmark("import-seconds", "`import drcil`, above an empty interpreter", target=0.1, better="lower", unit="s")
def import_seconds(workload: Workload) -> Measurement:
    ours, empty = alternate(_ROUNDS, lambda: _spent("-c", "import drcil"), lambda: _spent("-c", "pass"))
    return Measurement(ours - empty, f"{ours:.3f} against {empty:.3f} s, best of {_ROUNDS}")

"""Seconds per image that were measured before on this machine, kept in a small file of the user's cache."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from ..disk import write_sealed
from ..errors import UserError
from ..reading import read_sealed

FORMAT = 1
_Paces = dict[str, dict[str, dict[int, float]]]
_Runs = dict[str, dict[str, float]]
_LONGEST = 10**6
"""Bytes of the description of a processor, at most."""


def cache_directory() -> Path:
    """Where programs keep what can be made again: by the convention of the system."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~")) / ".cache"
    return home / "drcil"


def machine() -> dict[str, Any]:
    """What speed depends on and does not change while a program runs."""
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "name": platform.node(),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "devices": devices,
        "torch": version("torch"),
        "drcil": version("drcil"),
    }


class Paces:
    """Seconds per image by conditions (device, precision, threads), kind and size; and what runs took by these.

    A file that is damaged, or of another machine or version, counts as none. One that cannot be written is no error:
    what was measured is then known to this process alone.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._machine = {"format": FORMAT, **machine()}
        digest = hashlib.blake2b(json.dumps(self._machine).encode(), digest_size=6).hexdigest()
        self.path = (directory or cache_directory()) / f"pace-{digest}.json"
        self._paces, self._runs = self._read()

    def known(self, conditions: str, kind: str) -> Mapping[int, float]:
        """Seconds per image by size."""
        return self._paces.get(conditions, {}).get(kind, {})

    def learn(self, conditions: str, kind: str, size: int, seconds: float) -> None:
        """Seconds per image of this size, from now on."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{seconds} s per image were measured")
        self._paces.setdefault(conditions, {}).setdefault(kind, {})[size] = seconds

    def runs(self, conditions: str) -> Mapping[str, float]:
        """The seconds of runs, by their commands, as far as they were found out with the recipes of today."""
        return self._runs.get(_of_today(conditions), {})

    def keep_runs(self, conditions: str, seconds: Mapping[str, float]) -> None:
        self._runs.setdefault(_of_today(conditions), {}).update(seconds)
        self.save()

    def save(self) -> None:
        """What another process has found out meanwhile stays."""
        paces, runs = self._read()
        for conditions, kinds in self._paces.items():
            for kind, sizes in kinds.items():
                paces.setdefault(conditions, {}).setdefault(kind, {}).update(sizes)
        for conditions, commands in self._runs.items():
            runs.setdefault(conditions, {}).update(commands)
        self._paces, self._runs = paces, runs
        with suppress(UserError):
            write_sealed(self.path, {"machine": self._machine, "paces": self._paces, "runs": self._runs})

    def _read(self) -> tuple[_Paces, _Runs]:
        with suppress(UserError, KeyError, TypeError, ValueError, AttributeError):
            found = read_sealed(self.path)
            if found["machine"] == self._machine:
                paces = {
                    conditions: {kind: _sizes(own) for kind, own in kinds.items()}
                    for conditions, kinds in found["paces"].items()
                }
                runs = {
                    conditions: {command: _seconds(own) for command, own in commands.items()}
                    for conditions, commands in found["runs"].items()
                }
                return paces, runs
        return {}, {}


def _sizes(found: Mapping[str, Any]) -> dict[int, float]:
    return {int(size): _seconds(seconds) for size, seconds in found.items()}


def _seconds(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not (math.isfinite(found) and found >= 0):
        raise ValueError(f"{found} is no number of seconds")
    return float(found)


def _of_today(conditions: str) -> str:
    """The conditions, and a digest of all recipes: other epochs take other times."""
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(files("drcil.recipes").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            digest.update(file.read_bytes())
    return f"{conditions}, recipes {digest.hexdigest()}"


def _processor() -> str:
    with suppress(OSError, StopIteration):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read(_LONGEST).splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()

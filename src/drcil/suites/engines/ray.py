"""Runs as tasks of a Ray cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UserError
from ...limits import JOBS
from ...plugins import VARIABLE, named_plugins
from . import ENGINES, Request

if TYPE_CHECKING:
    from ..attempts import Attempts
    from ..cluster import Node

_OURS = ("DRCIL_", "PYTHONPATH")
"""How the names of variables begin that go to the nodes."""
_GLANCE = 10.0
"""Seconds between two looks at the nodes."""


@ENGINES.register("ray")
class Ray:
    """A Ray task for each run: on whichever node has room, a process like that of a local run."""

    def __init__(self, request: Request) -> None:
        if find_spec("ray") is None:
            raise UserError("--engine ray needs Ray, which is not installed; install it with pip install 'drcil[ray]'")
        gpus = request.gpus
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise UserError(f"--gpus-per-run takes a part of one GPU, such as 0.5, or whole ones, not {gpus:g}")
        if gpus == 0 and request.device == "cuda":
            raise UserError("--device cuda needs --gpus-per-run above 0")
        self._request, self._cpus, self._gpus = request, request.cpus or 1.0, gpus or 0.0
        self._fits, self._looked = True, 0.0

    @property
    def threads(self) -> int:
        """As many as CPUs are set aside."""
        return max(1, int(self._cpus))

    def open(self, places: Sequence[Path]) -> int:
        """As many at a time as the cluster can hold."""
        from ..cluster import nodes, reach, require_fit

        reach(self._request.address)
        there = nodes()
        if self._request.gpus is None and self._request.device != "cpu":
            self._gpus = 1.0 if any(node.gpus >= 1 for node in there) else 0.0
        able = [node for node in there if node.holds(self._cpus, self._gpus)]
        if not able:
            largest = "; ".join(f"{node.name} has {_amount(node.cpus, node.gpus)}" for node in _largest(there))
            raise UserError(f"no node of the Ray cluster has {_amount(self._cpus, self._gpus)} for a run: {largest}")
        require_fit(able, places)
        return self._request.jobs or min(int(JOBS.most), sum(node.holds(self._cpus, self._gpus) for node in able))

    def start(self, directory: Path, log: Path) -> Attempts:
        import ray

        from ..attempts import Attempts
        from ..node import Errand, carry_out

        # Not every version of Ray hides GPUs that are not set aside.
        hidden = {} if self._gpus else {"CUDA_VISIBLE_DEVICES": ""}
        errand = Errand(str(directory.absolute()), str(log.absolute()), os.getcwd(), {**_environment(), **hidden})
        # Ray's own retries have no bound when memory runs out.
        task = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, max_retries=0, scheduling_strategy="SPREAD")(
            carry_out
        )
        return Attempts(lambda: task.remote(errand), self._has_room, directory, log)

    def close(self) -> None:
        from ..cluster import leave

        leave()

    def _has_room(self) -> bool:
        """Whether a node is left that could hold a run, by what was last seen."""
        from ..cluster import nodes

        if time.monotonic() > self._looked + _GLANCE:
            self._fits = any(node.holds(self._cpus, self._gpus) for node in nodes())
            self._looked = time.monotonic()
        return self._fits


def _environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name.startswith(_OURS)}
    return {**own, VARIABLE: os.pathsep.join(named_plugins())}


def _largest(there: Sequence[Node]) -> list[Node]:
    """The node with most CPUs, and that with most GPUs if it is another."""
    by_cpus = max(there, key=lambda node: (node.cpus, node.gpus))
    by_gpus = max(there, key=lambda node: (node.gpus, node.cpus))
    return [by_cpus] if by_gpus == by_cpus else [by_cpus, by_gpus]


def _amount(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU{'' if cpus == 1 else 's'} and {gpus:g} GPU{'' if gpus == 1 else 's'}"

"""Whether this process is one of several that share a run, by what its launcher put into the environment.

Three launchers are known: drcil's own (``--devices``), ``torchrun`` and Slurm's ``srun``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UserError

VARIABLE = "DRCIL_MEMBER"
"""What drcil's own launcher says: RANK/SIZE@PORT."""


@dataclass(frozen=True)
class Member:
    """One of several processes."""

    rank: int
    size: int
    local: int
    """Its number on its machine: which of its GPUs is its own."""
    address: str
    port: int
    """Where the processes meet."""
    launcher: str
    restarts: int = 0
    """How often the launcher has started all processes again after one was lost."""


def find_member(variables: Mapping[str, str] = os.environ) -> Member | None:
    """What this process is; None: it works alone."""
    for find in (_by_drcil, _by_torchrun, _by_slurm):
        try:
            member = find(variables)
        except (KeyError, ValueError) as error:
            what = "is missing" if isinstance(error, KeyError) else "is wrong"
            raise UserError(f"the launcher of this process says how to meet the others, but {error} {what}") from None
        if member is not None and member.size > 1:
            return member
    return None


def _by_drcil(variables: Mapping[str, str]) -> Member | None:
    if VARIABLE not in variables:
        return None
    place, _, port = variables[VARIABLE].partition("@")
    rank, _, size = place.partition("/")
    return Member(int(rank), int(size), int(rank), "127.0.0.1", int(port), "drcil")


def _by_torchrun(variables: Mapping[str, str]) -> Member | None:
    if "TORCHELASTIC_RUN_ID" not in variables:
        return None
    return Member(
        int(variables["RANK"]),
        int(variables["WORLD_SIZE"]),
        int(variables["LOCAL_RANK"]),
        variables["MASTER_ADDR"],
        int(variables["MASTER_PORT"]),
        "torchrun",
        int(variables.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def _by_slurm(variables: Mapping[str, str]) -> Member | None:
    # A batch script has the variables of its job, too; only what srun starts belongs to a step.
    if "SLURM_STEP_ID" not in variables or "SLURM_STEP_NUM_TASKS" not in variables:
        return None
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

    rank, size = int(variables["SLURM_PROCID"]), int(variables["SLURM_STEP_NUM_TASKS"])
    nodes = variables.get("SLURM_STEP_NODELIST", "127.0.0.1")
    address = variables.get("MASTER_ADDR") or SLURMEnvironment.resolve_root_node_address(nodes)
    # The same for all processes of a step, and another for other steps on the same machines.
    number = 100 * int(variables.get("SLURM_JOB_ID", "0")) + int(variables["SLURM_STEP_ID"])
    port = int(variables.get("MASTER_PORT") or 15_000 + number % 20_000)
    return Member(
        rank, size, int(variables["SLURM_LOCALID"]), address, port, "srun", int(variables.get("SLURM_RESTART_COUNT", 0))
    )

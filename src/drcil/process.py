"""Process-wide setup: threads, deterministic kernels, memory; this process among several of a run."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import logging
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from .errors import FaultError, UserError, check_int
from .settings import THREADS

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Options of glibc's ``mallopt``."""
_KEPT_BLOCKS = (1 << 30, 32 << 20)
"""Up to how many bytes blocks are to be kept when they are freed; older versions of glibc refuse the first."""

_PATIENCE = 2.0
"""Seconds between SIGTERM and a hard exit."""

_ISA, _ISA_WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
"""The environment variable that limits the instructions of oneDNN, and its value for bf16 without AMX."""
_PROBE_SECONDS = 60.0
"""How long a product of two small matrices may take."""


def configure(threads: int | None = None, deterministic: bool = True) -> None:
    """Set this process up for training, as the command line does: faster on CPUs, repeatable on CUDA.

    ``threads``: those of one operation on the CPU (None: unchanged). ``deterministic``: CUDA uses deterministic
    kernels, so that a resumed run repeats its steps exactly. Freed memory is kept for the next step. All of it applies
    to the whole process, so only the command line calls this function by itself.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(check_int("threads", threads, THREADS))
    if torch.cuda.is_available():
        if deterministic:
            make_repeatable()
    else:
        keep_freed_memory()


def make_repeatable() -> None:
    """Make CUDA select kernels deterministically, not by timing or free memory, so that a resumed run repeats them.

    Where there is no such kernel, torch warns and takes another.
    """
    import torch

    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # With mere warnings the fused kernels of attention add up their gradients in any order.
    for enable in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp"):
        getattr(torch.backends.cuda, enable)(False)


def keep_freed_memory() -> None:
    """Let this process reuse freed memory, if its C library has such options.

    Otherwise the maps of every step are given back to the system and fetched again page by page.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    # Without this option the others would be harmful: setting any of them disables glibc's adaptation to large blocks.
    if mallopt is not None and any(mallopt(_MMAP_THRESHOLD, size) for size in _KEPT_BLOCKS):
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 1 << 26)


@functools.cache
def require_bf16() -> None:
    """Make sure that the CPU can compute in bf16; call it before torch computes in this process.

    Some machines announce AMX, but its first instruction ends the process. oneDNN, which computes in bf16, is then told
    to do without. It reads that once, at its first operation. If it is too late, or does not help, bf16 is refused.
    """
    if not announces_amx() or works_in_child(multiply_in_bf16):
        return
    before = os.environ.get(_ISA)
    os.environ[_ISA] = _ISA_WITHOUT_AMX
    if works_in_child(multiply_in_bf16):
        return
    if before is None:
        del os.environ[_ISA]
    else:
        os.environ[_ISA] = before
    raise UserError(
        f"--precision bf16-mixed cannot be used here, since the AMX instructions that this CPU announces do not work; "
        f"use --precision 32, or set {_ISA}={_ISA_WITHOUT_AMX} before the program starts"
    )


def announces_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU reports matrix instructions; False if the system has no such file."""
    try:
        lines = cpuinfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    return any("amx_tile" in line.split() for line in lines if line.startswith("flags"))


def multiply_in_bf16() -> None:
    """A product that is large enough for matrix instructions."""
    import torch

    matrix = torch.ones(64, 64, dtype=torch.bfloat16)
    torch.mm(matrix, matrix)


def works_in_child(compute: Callable[[], None]) -> bool:
    """Whether a forked child of this process survives a computation.

    The child has this process's libraries as they are, with all that they have decided already.
    """
    with warnings.catch_warnings():
        # Python warns that threads are not forked along. The child needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            # Not at the top: the module does not exist on Windows, which cannot fork.
            import resource

            import torch

            # A crash is an expected result: no traceback, and no core dump.
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            torch.set_num_threads(1)
            compute()
            os._exit(0)
        finally:
            os._exit(1)
    deadline = time.monotonic() + _PROBE_SECONDS
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.001)
    return ended[1] == 0


@contextmanager
def silenced(*programs: str) -> Iterator[None]:
    """Silence messages of libraries within the block: the result is reported in one sentence."""
    before = {name: logging.getLogger(name).level for name in programs}
    for name in before:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def end_with_parent() -> None:
    """Wait for the end of standard input, then terminate this process; if that takes long, exit immediately."""
    # Not through sys.stdin: its lock, held by a waiting thread, would keep the interpreter from closing.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    # Nothing is lost: files on disk are complete, and nothing waits for the rest.
    os._exit(1)


LAUNCHER = "DRCIL_LAUNCHER"
"""Environment variable with the name of the program that started the processes of a run; unset by ``torchrun``."""


@dataclass(frozen=True)
class ProcessInfo:
    """One of several processes of a run, as its launcher describes it."""

    rank: int
    size: int
    local_rank: int
    """Its number on its machine; also that of its GPU."""
    address: str
    port: int
    """Where the processes connect."""
    launcher: str
    restarts: int = 0
    """How often the launcher has restarted all processes after one was lost."""

    def variables(self) -> dict[str, str]:
        """The environment variables that ``torch.distributed`` reads."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def find_process_info(variables: Mapping[str, str] = os.environ) -> ProcessInfo | None:
    """This process, if it is one of several; they were started by ``--devices``, ``torchrun`` or ``srun``."""
    try:
        if "RANK" in variables and "WORLD_SIZE" in variables:
            info = _read_torch_variables(variables)
        elif "SLURM_STEP_ID" in variables and "SLURM_STEP_NUM_TASKS" in variables:
            # Variables of a step: a batch script has those of its job, but is a single process.
            info = _read_slurm_variables(variables)
        else:
            return None
    except (KeyError, ValueError) as error:
        what = "is missing" if isinstance(error, KeyError) else "is wrong"
        raise UserError(f"the launcher's environment variables do not describe this process: {error} {what}") from None
    return info if info.size > 1 else None


def _read_torch_variables(variables: Mapping[str, str]) -> ProcessInfo:
    return ProcessInfo(
        int(variables["RANK"]),
        int(variables["WORLD_SIZE"]),
        int(variables["LOCAL_RANK"]),
        variables["MASTER_ADDR"],
        int(variables["MASTER_PORT"]),
        variables.get(LAUNCHER, "torchrun"),
        int(variables.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def _read_slurm_variables(variables: Mapping[str, str]) -> ProcessInfo:
    nodes = variables.get("SLURM_STEP_NODELIST", "127.0.0.1")
    # The first of a list such as 'node[07-09,11],other'.
    first_node = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", nodes).split(",")[0]
    # The same in all processes of a step, and another in other steps on the same machines.
    number = 100 * int(variables.get("SLURM_JOB_ID", "0")) + int(variables["SLURM_STEP_ID"])
    return ProcessInfo(
        int(variables["SLURM_PROCID"]),
        int(variables["SLURM_STEP_NUM_TASKS"]),
        int(variables["SLURM_LOCALID"]),
        variables.get("MASTER_ADDR") or first_node,
        int(variables.get("MASTER_PORT") or 15_000 + number % 20_000),
        "srun",
        int(variables.get("SLURM_RESTART_COUNT", "0")),
    )


COMMAND: ContextVar[Callable[[], int]] = ContextVar("command")
"""Runs the current command and returns its exit code; the processes of ``--devices`` call it. It can be pickled."""


class ProcessesEnded(Exception):
    """The processes that this one started have ended with this exit code, and have printed why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class LostProcessError(FaultError):
    """Another process of the run has ended, or does not answer."""


_claim: Callable[[object, bool], bool] | None = None


def report_through(claim: Callable[[object, bool], bool]) -> None:
    """Let ``claim_error_report`` ask this function: other processes of the run may report the same error."""
    global _claim
    _claim = claim


def claim_error_report(error: object, is_interrupt: bool) -> bool:
    """Whether this process prints why the command ends. Only one process of a run does."""
    return _claim is None or _claim(error, is_interrupt)

"""Backends that execute jobs: child processes on this machine, and what a cluster node runs.

Imports nothing heavy: a run has its own process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from .. import __version__
from ..errors import UserError
from ..files import open_log
from ..registry import VARIABLE, Registry, named_plugins
from ..settings import ExperimentSettings


@dataclass(frozen=True)
class BackendRequest:
    """Options of a backend; None: not set."""

    jobs: int | None = None
    """Concurrent runs."""
    cpus: float | None = None
    """CPUs per run."""
    gpus: float | None = None
    """GPUs per run."""
    address: str | None = None
    device: str | None = None
    """Device that the runs train on."""


class JobProcess(Protocol):
    """A job that executes one run, such as a child process. Its failure does not affect other jobs."""

    def running(self) -> bool: ...

    def failure(self) -> str | None:
        """Wait for the end; returns the reason of a failure in one sentence, or None."""

    def ask_to_stop(self) -> None: ...

    def close(self) -> None:
        """Wait for the end; kill the job if it does not stop."""


class Backend(Protocol):
    """Starts jobs. The constructor is fast and rejects options that the backend does not have."""

    @property
    def threads(self) -> int | None:
        """Default number of CPU threads of a run; None: all."""

    def open(self, directories: Sequence[Path]) -> int:
        """Prepare for jobs that write below these directories, which may not exist; returns how many run at a time."""

    def start(self, directory: Path, log: Path) -> JobProcess:
        """Start a job that resumes the run in a directory; its output is appended to the log."""

    def close(self) -> None:
        """Release all resources; no job is left running."""


BACKENDS: Registry[Callable[[BackendRequest], Backend]] = Registry(
    "engine", "drcil.experiments.backends", "drcil.experiments.ray_backend"
)


def make_backend(settings: ExperimentSettings, device: str | None) -> Backend:
    """The backend that executes runs on this device."""
    per_run = settings.cpus_per_run, settings.gpus_per_run
    return BACKENDS[settings.backend](BackendRequest(settings.jobs, *per_run, settings.ray_address, device))


_STOP_SECONDS = 30.0
"""Time in which a child has to stop before it is killed."""
_FAILED = 1
"""Exit code of a command that failed; its last output is an error message or a traceback."""
_PREFIX, _WARNING_PREFIX = "drcil: ", "drcil: warning: "
"""Prefixes of the messages and warnings of a command."""


class ChildProcess:
    """A ``drcil`` command in a child process, which ends when this process ends; its output goes to a log."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        working_directory: Path | None = None,
    ) -> None:
        """``environment`` is added to that of this process; ``working_directory``: if not the current one."""
        self.log = log
        variables = {VARIABLE: os.pathsep.join(named_plugins())} if environment is None else environment
        try:
            with open_log(log, root=log.parent.parent) as file:
                # Output of earlier processes stays in the log, but is not searched for the messages of this one.
                self._begin = file.seek(0, os.SEEK_END)
                # In a new session: Ctrl-C reaches only the parent, which then stops its children once.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "drcil.cli.child", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **variables},
                    cwd=working_directory,
                )
        except OSError as error:
            raise UserError(f"cannot write {log}: {error.strerror or error}") from error

    def running(self) -> bool:
        return self._process.poll() is None

    def failure(self) -> str | None:
        """Wait for the end; returns the reason of a failure in one sentence, or None."""
        code = self._process.wait()
        if code == 0:
            return None
        if code < 0:
            name = signal.Signals(-code).name
            return f"ended by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
        lines = self.log.read_bytes()[self._begin :].decode(errors="replace").splitlines()
        messages = [line for line in lines if line.startswith(_PREFIX) and not line.startswith(_WARNING_PREFIX)]
        crashed = code == _FAILED and messages[-1:] != lines[-1:]
        if crashed or not messages:
            return f"exit code {code}; see {self.log}"
        return messages[-1].removeprefix(_PREFIX).strip()

    def killed(self) -> bool:
        """Whether it was ended by SIGKILL."""
        return self._process.wait() == -signal.SIGKILL

    def ask_to_stop(self) -> None:
        self._process.terminate()

    def close(self) -> None:
        """Wait for the end; a child that does not stop is killed."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()


@BACKENDS.register("local")
class Local:
    """A child process for each run; concurrent runs share the cores."""

    def __init__(self, request: BackendRequest) -> None:
        cluster_options = {
            "--ray-address": request.address,
            "--cpus-per-run": request.cpus,
            "--gpus-per-run": request.gpus,
        }
        for option, value in cluster_options.items():
            if value is not None:
                raise UserError(f"{option} is for --engine ray; without it there are --jobs and --threads")
        self._jobs = request.jobs or 1

    @property
    def threads(self) -> int | None:
        return None if self._jobs == 1 else max(1, (os.cpu_count() or 1) // self._jobs)

    def open(self, directories: Sequence[Path]) -> int:
        return self._jobs

    def start(self, directory: Path, log: Path) -> ChildProcess:
        return ChildProcess(["resume", str(directory)], log)

    def close(self) -> None:
        """There is nothing to release."""


class FinishedJob:
    """A job that was executed at once."""

    def __init__(self, failure: str | None) -> None:
        self._failure = failure

    def running(self) -> bool:
        return False

    def failure(self) -> str | None:
        return self._failure

    def ask_to_stop(self) -> None:
        """The job has ended."""

    def close(self) -> None:
        """The job has ended."""


@BACKENDS.register("inline")
class Inline:
    """Runs in this process, one after the other: for methods that a child process cannot import."""

    threads = None

    def __init__(self, request: BackendRequest) -> None:
        if (request.jobs or 1) > 1:
            raise UserError("the backend 'inline' executes one run at a time; leave out jobs")

    def open(self, directories: Sequence[Path]) -> int:
        return 1

    def start(self, directory: Path, log: Path) -> FinishedJob:
        # Imported here: a cluster node, which imports this module, needs no torch.
        from ..runs.execution import Run
        from .pages import write_run_report

        try:
            run = Run.open(directory)
            run.train()
            write_run_report(run)
        except Exception as error:
            with open_log(log, root=log.parent.parent) as file:
                file.write(traceback.format_exc().encode())
            return FinishedJob(str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
        return FinishedJob(None)

    def close(self) -> None:
        """There is nothing to release."""


_POLL_SECONDS = 0.2
"""Time between two checks of the process. A wait without a timeout could not be cancelled."""
_SHARED_DISK_SECONDS = 10.0
"""Time in which a file written by another machine must appear on a shared disk."""


@dataclass(frozen=True)
class RayJob:
    """A run to execute, and the environment of its process."""

    directory: str
    log: str
    working_directory: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class ExitStatus:
    """How the process of a run ended."""

    failure: str | None
    killed: bool
    """Whether it was killed, so that another attempt may succeed."""


def run_job(job: RayJob) -> ExitStatus:
    """Resume a run in a child process, which is stopped when this process is interrupted or ends."""
    child = ChildProcess(["resume", job.directory], Path(job.log), job.environment, Path(job.working_directory))
    try:
        while child.running():
            time.sleep(_POLL_SECONDS)
        return ExitStatus(child.failure(), child.killed())
    finally:
        child.ask_to_stop()
        child.close()


def versions() -> str:
    """The versions of drcil and torch. Other versions may give other results."""
    try:
        return f"drcil {__version__} with torch {version('torch').partition('+')[0]}"
    except PackageNotFoundError:
        return f"drcil {__version__} without torch"


def check_node(marks: Mapping[str, str], directory: str, expected: str) -> str | None:
    """Why this node cannot execute runs, as the end of a sentence about the node; None if it can.

    ``marks``: files that were just written to directories that this node must see, with their content.
    """
    if versions() != expected:
        return f"has {versions()}, not {expected} as here"
    if not os.path.isdir(directory):
        return f"does not see {directory}, where this command was given"
    deadline = time.monotonic() + _SHARED_DISK_SECONDS
    for file, content in marks.items():
        while not _reads(file, content):
            if time.monotonic() > deadline:
                return f"does not see {os.path.dirname(file)}; --out takes a directory on a disk that all nodes share"
            time.sleep(_POLL_SECONDS)
        try:
            tempfile.TemporaryFile(dir=os.path.dirname(file)).close()
        except OSError as error:
            return f"cannot write in {os.path.dirname(file)}: {error.strerror or error}"
    return None


def _reads(file: str, content: str) -> bool:
    try:
        return Path(file).read_text() == content
    except (OSError, UnicodeError):
        return False

"""Commands in processes of their own: one that breaks takes no other with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..errors import UserError
from ..plugins import VARIABLE, named_plugins
from ..reading import open_to_write

_PATIENCE = 30.0
"""Seconds that a child has to stop before it is killed."""
_FAILED = 1
"""The exit code of a command that broke; what it printed last is a sentence for people, or a trace."""
_VOICE, _WARNING = "drcil: ", "drcil: warning: "
"""How a command's own words to people begin."""


class Child:
    """A ``drcil`` command in a process that ends with this one at the latest; what it prints goes to a log."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        place: Path | None = None,
    ) -> None:
        """``environment`` is added to that of this process; ``place``: where relative paths begin, if not here."""
        self.log = log
        own = {VARIABLE: os.pathsep.join(named_plugins())} if environment is None else environment
        try:
            if log.parent.is_symlink():
                raise UserError(f"{log.parent} is a link; a comparison is written in its own directory only")
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "ab", opener=open_to_write) as file:
                # What earlier processes said stays, and is not taken for what this one says.
                self._begin = file.seek(0, os.SEEK_END)
                # A session of its own: the interrupt key is for the parent, which then stops its children once.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "drcil.cli.child", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **own},
                    cwd=place,
                )
        except OSError as error:
            raise UserError(f"cannot write {log}: {error.strerror or error}") from error

    def running(self) -> bool:
        return self._process.poll() is None

    def failure(self) -> str | None:
        """Why it did not do what it was told to, in a sentence; None if it did."""
        code = self._process.wait()
        if code == 0:
            return None
        if code < 0:
            name = signal.Signals(-code).name
            return f"ended by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
        said = self.log.read_bytes()[self._begin :].decode(errors="replace").splitlines()
        complaints = [line for line in said if line.startswith(_VOICE) and not line.startswith(_WARNING)]
        broken = code == _FAILED and complaints[-1:] != said[-1:]
        if broken or not complaints:
            return f"exit code {code}; see {self.log}"
        return complaints[-1].removeprefix(_VOICE).strip()

    def killed(self) -> bool:
        """Whether it was ended from outside, with no time for anything."""
        return self._process.wait() == -signal.SIGKILL

    def ask_to_stop(self) -> None:
        self._process.terminate()

    def close(self) -> None:
        """Wait for the end; a child that does not come to one is killed."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            self._process.stdin.close()

"""A run on a cluster, which is tried again when its node or its worker is lost: it goes on from its last snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..disk import append_line
from ..errors import UserError
from ..runs.owner import owned
from .cluster import reason

if TYPE_CHECKING:
    from ray import ObjectRef

    from .node import Ending

_RETRIES = 3
_LOSSES = {
    "NodeDiedError": "its node is gone",
    "WorkerCrashedError": "its worker was killed",
    "OutOfMemoryError": "its node ran out of memory",
}
"""What Ray takes many lines to say."""
_SETTLING = 3.0
"""Seconds before another attempt: a process that has lost its parent is gone after two."""
_HELD = 120.0
"""Seconds that a process on a lost node may still hold the run."""
_STOPPING = 40.0
"""Seconds in which a worker has to stop its process, before it is killed together with it."""
_GLANCE = 0.2


class Attempts:
    """Someone who carries out a run. What ``submit`` hands to Ray ends with an ``Ending``, unless it gets lost."""

    def __init__(
        self, submit: Callable[[], ObjectRef[Ending]], has_room: Callable[[], bool], directory: Path, log: Path
    ) -> None:
        """``has_room`` says whether any node is left that could take it."""
        self._submit, self._has_room, self._directory, self._log = submit, has_room, directory, log
        self._task, self._retries = submit(), 0
        self._lost = 0.0
        """When it was, if another attempt is due."""
        self._over = False
        self._failure: str | None = None

    def running(self) -> bool:
        import ray

        if self._over:
            return False
        if self._lost:
            self._try_again()
        elif ray.wait([self._task], timeout=0)[0]:
            self._take()
        elif not self._has_room():
            self._end("no node is left that has what a run takes")
            ray.cancel(self._task)
        return not self._over

    def failure(self) -> str | None:
        while self.running():
            time.sleep(_GLANCE)
        return self._failure

    def ask_to_stop(self) -> None:
        import ray

        if not self._over and not self._lost:
            ray.cancel(self._task)

    def close(self) -> None:
        """Wait for the end; a worker that does not come to one is killed, and its process with it."""
        import ray

        if self._over:
            return
        self._over = True
        if not self._lost and not ray.wait([self._task], timeout=_STOPPING)[0]:
            ray.cancel(self._task, force=True)
            ray.wait([self._task], timeout=_SETTLING)
        late = time.monotonic() + _SETTLING
        while not self._free() and time.monotonic() < late:
            time.sleep(_GLANCE)

    def _take(self) -> None:
        """What came of the attempt."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            ending = ray.get(self._task)
        except RayTaskError as error:
            self._end(reason(error))
        except RayError as error:
            self._lose(_LOSSES.get(type(error).__name__) or reason(error))
        else:
            if ending.killed:
                self._lose(str(ending.failure))
            else:
                self._end(ending.failure)

    def _lose(self, why: str) -> None:
        if self._retries == _RETRIES:
            self._end(f"lost {self._retries + 1} times, at last: {why}")
            return
        self._lost = time.monotonic()
        with suppress(UserError):
            append_line(self._log, f"lost: {why}; it goes on from its last snapshot")

    def _try_again(self) -> None:
        """Once nobody holds the run any more."""
        since = time.monotonic() - self._lost
        if since < _SETTLING:
            return
        if self._free():
            self._retries, self._lost = self._retries + 1, 0.0
            self._task = self._submit()
        elif since > _HELD:
            self._end(f"lost, and {self._directory} is still in use; stop the process that uses it")

    def _free(self) -> bool:
        try:
            with owned(self._directory):
                return True
        except UserError:
            return False

    def _end(self, failure: str | None) -> None:
        self._over, self._failure = True, failure

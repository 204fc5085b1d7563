"""Verbs that train in several processes: started here, or by ``torchrun`` or ``srun``."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from ..launch.member import find_member

if TYPE_CHECKING:
    from ..runs.plan import Plan
    from ..runs.run import Run
    from ..runs.settings import RunSettings
    from ..team import Team
    from ..train import EngineSettings

_STOPPED = 130
ARGUMENTS: ContextVar[Sequence[str]] = ContextVar("arguments", default=())
"""The words of the command that is being carried out."""


class EndedTogether(Exception):
    """The processes that were started have ended with this exit code, and have said what there was to say."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def in_team(engine: EngineSettings) -> Iterator[Team]:
    """Within the block this process works with the others of its run, if there are any.

    Where several are asked for and nobody has started them, they are started, and this process ends with them.
    """
    from ..team import ALONE

    member = find_member()
    if member is None and engine.devices != 1:
        from ..launch.supervisor import supervise, wanted_processes

        size = wanted_processes(engine.devices, engine.device)
        if size > 1:
            raise EndedTogether(supervise(ARGUMENTS.get(), size))
    if member is None:
        yield ALONE
        return
    from ..launch.meeting import meeting

    with meeting(member, engine.timeout, engine.device) as team:
        yield team


def threads_of(given: int | None, team: Team) -> int | None:
    """Threads of each process: as asked for; or those of one machine share its cores."""
    if given is not None or team.alone:
        return given
    here = team.everyone(platform.node()).count(platform.node())
    return max(1, (os.cpu_count() or 1) // here)


def begun_together(settings: RunSettings, out: Path | None, plan: Plan, team: Team) -> Run:
    """The run that the first process begins; or went on with, where its launcher has started all of them again."""
    from ..runs.begin import begin_run
    from ..runs.run import Run
    from .output import warn

    member = find_member()
    if team.alone or member is None:
        return begin_run(settings, out, plan, warn)
    run = None
    if team.leads:
        # Of several machines some do not count a restart; a directory that was named says which run is meant.
        again = member.restarts or (out is not None and member.launcher == "torchrun")
        run = _begun_before(settings, out) if again else None
        run = run or begin_run(settings, out, plan, warn)
    directory = team.leaders(run.directory.absolute() if run else Path())
    require_seen(directory, team)
    return run or Run.open(directory)


def require_seen(directory: Path, team: Team) -> None:
    """All machines see the run's directory."""
    from ..errors import UserError

    for host, seen in team.everyone((platform.node(), directory.is_dir())):
        if not seen:
            raise UserError(f"{directory} cannot be seen on {host}; put runs where all machines see them, with --out")


def _begun_before(settings: RunSettings, out: Path | None) -> Run | None:
    """The newest run of these settings that is not finished: that of the processes of before."""
    from ..errors import UserError
    from ..runs.begin import RUNS
    from ..runs.run import Run
    from ..suites.reuse import is_finished

    places = (
        [out] if out is not None else sorted(RUNS.glob(f"{settings.name}*"), key=lambda place: place.stat().st_mtime)
    )
    for place in reversed(places):
        try:
            run = Run.open(place)
        except UserError:
            continue
        if run.settings.choices() == settings.choices() and (out is not None or not is_finished(run)):
            return run
    return None


def is_heard(what: str | Exception, code: int) -> bool:
    """Whether this process tells the user why it ends. Of several that work together one does."""
    # Not imported where nothing was: a command that works alone has no need of it.
    launch = sys.modules.get("drcil.launch.meeting")
    meeting = launch.current_meeting() if launch is not None else None
    if launch is None or meeting is None:
        return True
    if code == _STOPPED:
        # All were stopped alike.
        return bool(meeting.member.rank == 0)
    heard: bool = launch.speaks(isinstance(what, launch.LostError))
    if heard:
        launch.raise_voice()
    return heard

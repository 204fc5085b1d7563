"""A run that is killed again and again, for real; as a program: ``python killing.py DIRECTORY``.

The process imports everything once and forks a child for every session of the run. Children die by SIGKILL at the
places of ``KILLS``, the last one finishes the run. What every child did is printed, a line each. With a number of
kills, of events that the run tells and a seed behind the directory, children are killed from outside, at random.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from drcil.runs.execution import Run
from drcil.runs.result import task_directories
from drcil.train.events import Event, StageDone, StepDone, TaskDone

Session = Callable[[Run], None]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_step(task: int, step: int) -> Session:
    """Within a stage; snapshots of earlier steps are on disk."""
    seen = 0

    def listener(event: Event) -> None:
        nonlocal seen
        if isinstance(event, StepDone) and event.task == task:
            seen += 1
            if seen == step:
                die()

    return lambda run: _go(run, listener=listener)


def after_stage(task: int) -> Session:
    def listener(event: Event) -> None:
        if isinstance(event, StageDone) and event.task == task:
            die()

    return lambda run: _go(run, listener=listener)


def after_task(task: int) -> Session:
    def listener(event: Event) -> None:
        if isinstance(event, TaskDone) and event.task == task:
            die()

    return lambda run: _go(run, listener=listener)


def before_rename(name: str) -> Session:
    """When a file of this name is complete, but not yet in its place."""

    def session(run: Run) -> None:
        rename = os.replace

        def replace(source: Any, target: Any, **where: Any) -> None:
            if Path(target).name == name:
                die()
            rename(source, target, **where)

        os.replace = replace  # type: ignore[assignment]
        _go(run)

    return session


def half_written(count: int) -> Session:
    """In the middle of writing a file, the ``count``-th of this session."""

    def session(run: Run) -> None:
        sync, seen = os.fsync, 0

        def fsync(handle: int) -> None:
            nonlocal seen
            seen += 1
            if seen == count:
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
                die()
            sync(handle)

        os.fsync = fsync  # type: ignore[assignment]
        _go(run)

    return session


KILLS: dict[str, Session] = {
    "within the first stage": at_step(task=1, step=5),
    "while a snapshot is written": half_written(count=1),
    "before a snapshot is in its place": before_rename("partial.safetensors"),
    "between tasks": after_task(1),
    "within a later stage": at_step(task=2, step=2),
    "between stages": after_stage(task=2),
    "while a finished task is put in its place": before_rename("02"),
    "before the result is in its place": before_rename("result.json"),
}
"""In the order in which one run meets them."""


def _go(run: Run, **options: Any) -> None:
    run.train(**options)


def _session(directory: Path, act: Session) -> str:
    child = os.fork()
    if child == 0:
        act(Run.open(directory))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return "killed" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else f"status {status}"


def gets_on(event: Event) -> bool:
    """Whether an event tells of something that a later session need not do again."""
    return isinstance(event, (StepDone, TaskDone)) or (isinstance(event, StageDone) and not event.restored)


def ends_task(event: Event) -> bool:
    return isinstance(event, TaskDone)


def kill_at_random(directory: Path, kills: int, events: int, seed: int) -> None:
    """Kill a session of a run in every part of the events that it tells of, and the last after the end of a task."""
    draw, done = random.Random(seed), 0
    for part in range(kills - 1):
        target = draw.randrange(part * events // (kills - 1), (part + 1) * events // (kills - 1))
        done += _kill_from_outside(directory, gets_on, target - done)
    _kill_from_outside(directory, ends_task, 1)


def _kill_from_outside(directory: Path, counts: Callable[[Event], bool], events: int) -> int:
    """Kill a session after so many events that count, unless it is over before; how many there were.

    It does not wait for the kill, so that it may be killed while it does anything.
    """
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        _go(Run.open(directory), listener=lambda event: os.write(tells, b"." * counts(event)))
        os._exit(0)
    os.close(tells)
    with open(told, "rb", buffering=0) as pipe:
        seen = 0
        while seen < events and (new := pipe.read(events - seen)):
            seen += len(new)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        while new := pipe.read(1 << 16):
            seen += len(new)
    end = "killed" if os.WIFSIGNALED(status) else f"status {status}"
    print(f"{end}, {len(task_directories(directory))} finished", flush=True)
    return seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    if sys.argv[2:]:
        kill_at_random(place, *map(int, sys.argv[2:5]))
        print(f"to the end: {_session(place, _go)}", flush=True)
        sys.exit()
    for kind, kill in KILLS.items():
        print(f"{kind}: {_session(place, kill)}", flush=True)
    print(f"to the end: {_session(place, _go)}", flush=True)

"""Two names for one training: what was learnt under the one is read as a run of the other.

Such methods differ only in the readout that comes first. The tasks of a finished run are then the tasks of its twin,
but for the names and the figures that follow the primary readout.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..disk import write_directory, write_json
from ..learner import Learner
from ..methods import METHODS
from ..streams import Stream
from .model import STATE, fill, parse_state, read_state
from .plan import start_learner
from .reuse import equal_runs
from .run import Run, primary_figures
from .settings import RunSettings


def training_of(method: str) -> str:
    """The name that stands for all names of the same training."""
    return METHODS[method].trained_as or method


def find_twin(settings: RunSettings, parent: Path) -> Run | None:
    """A run right below a directory that trains the same under another name; of several the one that got furthest."""
    own = settings.method
    names = [name for name in METHODS if name != own and training_of(name) == training_of(own)]
    found = [run for name in names for run in equal_runs(settings.model_copy(update={"method": name}), parent)]
    return max((run for run in found if run.finished_tasks()), key=lambda run: len(run.finished_tasks()), default=None)


def adopt(run: Run, twin: Run, stream: Stream) -> int:
    """Make the twin's finished tasks those of a new run, as far as it is to go; how many they are."""
    learner = start_learner(run.settings, stream)
    tasks = twin.finished_tasks()[: run.settings.tasks]
    for number, task in enumerate(tasks, start=1):
        fill(learner, task, parse_state(task))
        _adopt_task(run, task, learner, stream, number)
    run.write_result(learner, stream)
    run.log("Adopted", tasks=len(tasks), source=str(twin.directory), method=twin.settings.method)
    return len(tasks)


def _adopt_task(run: Run, task: Path, learner: Learner, stream: Stream, number: int) -> None:
    former = read_state(task)
    state = {
        **former,
        "method": run.settings.method,
        "settings": learner.method.settings.model_dump(mode="json"),
        "readouts": list(learner.readouts()),
        "run": run.settings.choices(),
        "task": {**former["task"], **primary_figures(learner, stream, number)},
    }

    def fill_task(directory: Path) -> None:
        for file in sorted(task.glob("*.safetensors")):
            _link(file, directory / file.name)
        write_json(directory / STATE, state)

    write_directory(run.directory / "tasks" / task.name, fill_task)


def _link(file: Path, place: Path) -> None:
    """The same file at another place. Runs replace files and never write into them, so that sharing one is safe."""
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)

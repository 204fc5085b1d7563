"""Two names for one training: what was learnt under the one is read as a run of the other.

Such methods differ only in the readout that comes first. The tasks of a finished run are then the tasks of its twin,
but for the names and the figures that follow the primary readout.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..disk import write_directory, write_json
from ..errors import UserError
from ..learner import Learner
from ..methods import METHODS
from ..models.model import STATE, fill, fill_memory, parse_state, read_state
from ..runs.match import DATA_DIGEST, data_digest, require_match
from ..runs.plan import start_learner
from ..runs.run import Run, primary_figures
from ..runs.settings import RunSettings
from ..streams.stream import Stream
from .reuse import equal_runs


def training_of(method: str) -> str:
    """The name that stands for all names of the same training."""
    return METHODS[method].trained_as or method


def find_twin(settings: RunSettings, parent: Path, stream: Stream) -> Run | None:
    """A run right below a directory that trains the same under another name; of several the one that got furthest."""
    own = settings.method
    names = [name for name in METHODS if name != own and training_of(name) == training_of(own)]
    twins = [settings.model_copy(update={"method": name}) for name in names]
    found = [run for twin in twins for run in equal_runs(twin, parent, lambda: stream)]
    return max((run for run in found if run.finished_tasks()), key=lambda run: len(run.finished_tasks()), default=None)


def adopt(run: Run, twin: Run, stream: Stream) -> int:
    """Make the twin's finished tasks those of a new run, as far as it is to go and they fit; how many they are."""
    learner = start_learner(run.settings, stream)
    digest = data_digest(stream.dataset)
    adopted = 0
    with run.alone():
        for number, task in enumerate(twin.finished_tasks()[: run.settings.tasks], start=1):
            if not _fits(task, learner, stream, run.settings.order_seed):
                break
            _adopt_task(run, task, learner, stream, digest, number)
            adopted = number
        if adopted:
            run.write_result(learner, stream)
            run.log("Adopted", tasks=adopted, source=str(twin.directory), method=twin.settings.method)
    return adopted


def _fits(task: Path, learner: Learner, stream: Stream, order_seed: int) -> bool:
    """Put a finished task into the learner; whether it can be read and belongs to the stream, its memory too."""
    try:
        state = parse_state(task)
        fill(learner, task, state)
        require_match(learner, stream, order_seed)
        fill_memory(learner.memory, task, state, at_hand=stream.dataset.train.source)
    except UserError:
        return False
    return True


def _adopt_task(run: Run, task: Path, learner: Learner, stream: Stream, digest: str, number: int) -> None:
    former = read_state(task)
    state = {
        **former,
        "method": run.settings.method,
        "settings": learner.method.settings.model_dump(mode="json"),
        "readouts": list(learner.readouts()),
        "run": run.settings.choices(),
        DATA_DIGEST: digest,
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

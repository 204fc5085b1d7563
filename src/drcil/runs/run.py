"""A run: one method on one stream with one seed, in one directory; killed anywhere, it can be resumed.

The directory is the run's only state. Whatever is in it was written whole, so going on means: restore the last
finished task, and learn the next one again; the engine's journal then skips what was done of it.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from ..disk import (
    leftovers,
    remove,
    write_directory,
    write_sealed,
)
from ..errors import UserError
from ..learner import Learner
from ..metrics import measure
from ..models.directory import read_beside, read_model, write_model
from ..models.state import TASKS, read_state
from ..plugins import require_plugins
from ..reading import checksum, is_file, read_sealed, read_toml
from ..streams.stream import Stream
from ..team import Team
from ..train import Journal, Listener
from ..train.events import Event, TaskDone, silence
from ..train.loggers import Logging
from .beginning import Beginning, require_as_begun, require_unchanged
from .environment import environment
from .events import log_entry, log_event, records_of
from .match import require_match
from .owner import owned
from .plan import Plan, fresh_model, plan_run
from .record import (
    PREDICTIONS,
    FinishedTask,
    TaskFigures,
    TaskRecord,
    finished_tasks,
    history,
    task_directories,
)
from .result import MADE_FROM, figures_so_far, is_sound, make_result
from .settings import CONFIG, FORMAT, RunSettings, checked

RESULT, SNAPSHOT = "result.json", "snapshot"


class Run:
    """A run's directory. ``begin_run`` makes one, ``open`` finds one, ``go`` learns what is left to learn."""

    def __init__(self, directory: Path, settings: RunSettings) -> None:
        self.directory, self.settings = directory, settings

    @classmethod
    def open(cls, directory: Path) -> Run:
        """The run in a directory; the plugins that it needs must be there."""
        run = cls.read(directory)
        require_plugins(run.settings.plugins, directory)
        return run

    @classmethod
    def read(cls, directory: Path) -> Run:
        """The same without its plugins: enough to read its settings and its result."""
        path = directory / CONFIG
        if not is_file(path):
            why = f"it has no {CONFIG}" if os.path.exists(directory) else "there is no such directory"
            raise UserError(f"{directory} is not a run: {why}")
        values = read_toml(path)
        if values.get("format") != FORMAT:
            found = values.get("format")
            raise UserError(f"{directory} has run format {found}; this version of drcil reads format {FORMAT}")
        return cls(directory, checked(values))

    def finished_tasks(self) -> list[Path]:
        """The directories of the tasks that are finished, in order; each is a model."""
        return task_directories(self.directory)

    def checked_tasks(self) -> list[FinishedTask]:
        """The finished tasks, if they are this run's, in order and as its settings say."""
        tasks = finished_tasks(self.directory)
        if tasks:
            require_unchanged(self.directory, CONFIG, tasks[-1].record.run, self.settings.choices())
        return tasks

    def go(
        self,
        plan: Plan | None = None,
        listener: Listener = silence,
        told: Callable[[str], None] = warnings.warn,
    ) -> dict[str, Any]:
        """Learn all tasks that are not finished; the result. None: the plan is made now.

        Of a run that is finished nothing is written, so that its disk may be read-only. ``told`` hears of loggers that
        failed.
        """
        plan, team = plan or plan_run(self.settings), Team.current()
        kept = team.leaders(self._kept_result())
        if kept is not None and len(kept["tasks"]) >= len(plan.work):
            return kept
        if not team.leads:
            # Until the first has the directory to itself.
            team.wait()
            return self._go(plan, team, silence)
        logging = Logging(self.settings.loggers, self.directory, lambda: records_of(self.directory), told)
        with self.alone(), closing(logging):
            team.wait()

            def tell(event: Event) -> None:
                # Loggers first: what they take for the past is what the event log has.
                logging(event)
                log_event(self.directory, event)
                listener(event)

            return self._go(plan, team, tell)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block no other process works here; what killed ones left half written is cleared away."""
        with owned(self.directory):
            for place in (self.directory / TASKS, self.directory / SNAPSHOT):
                if place.is_symlink():
                    raise UserError(f"{place} is a link; a run is written in its own directory only")
                if place.exists() and not place.is_dir():
                    raise UserError(f"{place} is not a directory; remove it")
            for place in (self.directory, self.directory / TASKS):
                for left in leftovers(place):
                    remove(left)
            yield

    def _go(self, plan: Plan, team: Team, tell: Listener) -> dict[str, Any]:
        """Of several processes all learn and measure, and the first logs and writes."""
        stream = plan.stream
        begun = require_as_begun(self.directory, self.settings, stream)
        digest = begun.data.digest()
        learner = self._learner(stream, begun, tell, team.leads)
        # What others write from now on has not been read by some and not by others.
        team.wait()
        if team.leads:
            if learner.sizes:
                # What is damaged of earlier tasks is told before another is learnt.
                self._catch_up(_task_done(self.write_result()))
            log_entry(self.directory, "Started", process=os.getpid(), work=plan.work)
        for number in range(len(learner.sizes) + 1, len(plan.work) + 1):
            started = time.monotonic()
            learner.learn(stream.task(number))
            self._close(learner, stream, digest, number, started, team.leads)
            if team.leads:
                tell(_task_done(self.write_result()))
        return team.leaders(self.write_result() if team.leads else {})

    def _catch_up(self, last: TaskDone) -> None:
        """Enter a task in the event log whose process was killed after it had finished it, and before it said so."""
        known = (record.task for record in records_of(self.directory) if isinstance(record, TaskDone))
        if last.task not in known:
            log_event(self.directory, last)

    def _learner(self, stream: Stream, begun: Beginning, listener: Listener, writes: bool) -> Learner:
        """The learner as the last finished task left it."""
        own = self.settings
        place = self.directory / SNAPSHOT if writes else None
        journal = Journal(place, own.engine.snapshot_seconds, begun.model_dump(mode="json"))
        done = self.checked_tasks()
        if done:
            model = read_model(done[-1].directory, at_hand=stream.dataset.train.source)
            require_match(model, stream, own.order_seed)
        else:
            model = fresh_model(own, stream)
        return Learner.of(model, own.engine, listener, journal)

    def _close(self, learner: Learner, stream: Stream, digest: str, number: int, started: float, writes: bool) -> None:
        """Measure a learnt task and keep all of it, at once; ``writes``: whether it is this process that does."""
        learning = time.monotonic() - started
        task = stream.task(number)
        tensors = {"labels": torch.from_numpy(task.test.labels)}
        for name, ranking in learner.rank(task.test).items():
            tensors |= {f"{name}.classes": ranking.classes, f"{name}.scores": ranking.scores}
        readouts = _figures_by_readout(learner, stream, number)
        if not writes:
            return
        before = self.checked_tasks()
        record = TaskRecord(
            run=self.settings.choices(),
            data_digest=digest,
            previous=before[-1].checksum if before else None,
            stream_tasks=len(stream),
            versions=environment()["versions"],
            task=TaskFigures(
                number=number,
                classes=list(task.classes),
                new_images=len(task.new),
                class_images=task.new.counts(task.total)[task.old :].tolist(),
                memory_images=len(learner.memory.rows),
                readouts=readouts,
                seconds=round(time.monotonic() - started, 3),
                learning_seconds=round(learning, 3),
            ),
        )

        def fill_task(directory: Path) -> None:
            write_model(learner.model, directory, record.model_dump(mode="json"), {PREDICTIONS: tensors})

        write_directory(self.directory / TASKS / f"{number:02d}", fill_task)
        learner.engine.journal.clear()

    def write_result(self) -> dict[str, Any]:
        """Put the figures of the finished tasks in their place; the same as an object."""
        tasks = self.checked_tasks()
        result = self._measured(tasks)
        write_sealed(self.directory / RESULT, {**result, MADE_FROM: self._made_from(tasks[-1].checksum)})
        return result

    def has_result(self) -> bool:
        """Whether a task is finished."""
        return bool(self.finished_tasks())

    def result(self) -> dict[str, Any]:
        """The figures as of the last finished task: from ``result.json``, or where that is not up to date, measured."""
        if not self.has_result():
            raise UserError(f"{self.directory} has no result yet: its first task is not finished")
        return self._kept_result() or self._measured(self.checked_tasks())

    def _kept_result(self) -> dict[str, Any] | None:
        """What ``result.json`` says, if it is of the tasks that are finished."""
        done = self.finished_tasks()
        if done:
            with suppress(UserError):
                kept = read_sealed(self.directory / RESULT)
                made_from = kept.pop(MADE_FROM, None)
                if made_from == self._made_from(checksum(read_state(done[-1]))) and is_sound(kept):
                    return kept
        return None

    def _made_from(self, last_task: str) -> str:
        """What a result depends on: the finished tasks, each of which names the one before, and what is asked of it."""
        return checksum([last_task, self.settings.choices(), self.settings.tasks, self.settings.readout])

    def _measured(self, tasks: Sequence[FinishedTask]) -> dict[str, Any]:
        """The result, from the models' states and the predictions on disk."""
        predictions = [read_beside(task.directory, task.model, PREDICTIONS) for task in tasks]
        metrics = {name: measure(history(tasks, predictions, name)) for name in tasks[-1].model.readouts}
        return make_result(self.settings, tasks, metrics)


def _task_done(result: dict[str, Any]) -> TaskDone:
    """The event that the last task of a result is done."""
    return TaskDone(
        task=len(result["tasks"]),
        classes=len(result["classes"]),
        seconds=result["per_task"][-1]["seconds"],
        figures=figures_so_far(result),
    )


def _figures_by_readout(learner: Learner, stream: Stream, number: int) -> dict[str, dict[str, float | None]]:
    """What is kept of each readout besides predictions: the size of its net, and its accuracy on held-out images."""
    figures: dict[str, dict[str, float | None]] = {
        name: {"parameters": learner.method.parameters(name)} for name in learner.readouts()
    }
    if stream.held_out():
        images = stream.held_out(number)
        for name, kept in figures.items():
            kept["validation"] = round(learner.evaluate(images, readout=name), 2) if images else None
    return figures

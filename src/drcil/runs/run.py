"""A run: one method on one stream with one seed, in one directory; killed anywhere, it can be resumed.

The directory is the run's only state. Whatever is in it was written whole, so going on means: restore the last
finished task, and learn the next one again; the engine's journal then skips what was done of it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..disk import (
    append_line,
    leftovers,
    locked,
    read_tensors,
    remove_directory,
    write_directory,
    write_json,
    write_tensors,
)
from ..errors import UserError
from ..learner import Learner
from ..metrics import History, TaskPrediction, measure
from ..models.directory import read_model, write_model
from ..models.model import Model
from ..models.state import parse_state, read_state
from ..plugins import require_plugins
from ..reading import is_file, read_json, read_toml
from ..streams.stream import Stream
from ..train import Journal, Listener
from ..train.events import EpochDone, Event, StageDone, StageStarted, silence
from ..train.listeners import listening
from .environment import environment
from .match import DATA_DIGEST, data_digest, require_match
from .plan import Plan, fresh_model, plan_run
from .result import make_result
from .settings import FORMAT, RunSettings, checked

CONFIG, RESULT, EVENTS, PREDICTIONS = "config.toml", "result.json", "events.jsonl", "predictions.safetensors"


class TaskReport(NamedTuple):
    """What is known right after a task: its number, the metrics of every readout so far, its seconds."""

    number: int
    metrics: dict[str, dict[str, Any]]
    seconds: float


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
        found = [task for task in (self.directory / "tasks").glob("*") if re.fullmatch("[0-9]{2,}", task.name)]
        done = {int(task.name): task for task in found}
        missing = sorted(set(range(1, len(done) + 1)) - done.keys())
        if missing:
            raise UserError(f"{self.directory} is incomplete: task {missing[0]} is missing, but later ones are there")
        return [done[number] for number in sorted(done)]

    def go(
        self,
        plan: Plan | None = None,
        listener: Listener = silence,
        after_task: Callable[[TaskReport], None] = lambda report: None,
    ) -> dict[str, Any]:
        """Learn all tasks that are not finished; the result. None: the plan is made now."""
        with self.alone(), listening(self.settings.listeners, self.directory, listener) as everyone:
            return self._go(plan or plan_run(self.settings), everyone, after_task)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block no other process works here; what killed ones left half written is cleared away."""
        refusal = f"{self.directory} is in use by another process; wait for it or stop it"
        with locked(self.directory / ".lock", refusal):
            for file in leftovers(self.directory):
                file.unlink()
            for task in leftovers(self.directory / "tasks"):
                remove_directory(task)
            yield

    def _go(self, plan: Plan, listener: Listener, after_task: Callable[[TaskReport], None]) -> dict[str, Any]:
        def tell(event: Event) -> None:
            if isinstance(event, StageStarted | EpochDone | StageDone):
                self.log(type(event).__name__, **event.__dict__)
            listener(event)

        stream = plan.stream
        digest = data_digest(stream.dataset)
        learner = self._learner(stream, digest, tell)
        self.log("Started", process=os.getpid(), work=plan.work)
        for number in range(len(learner.sizes) + 1, len(plan.work) + 1):
            started = time.monotonic()
            learner.learn(stream.task(number))
            self._close(learner, stream, digest, number, time.monotonic() - started)
            report = self.report(stream)
            self.log("TaskDone", task=number, seconds=report.seconds)
            after_task(report)
        return self.write_result(learner, stream)

    def _learner(self, stream: Stream, digest: str, listener: Listener) -> Learner:
        """The learner as the last finished task left it."""
        own = self.settings
        model = fresh_model(own, stream)
        resolved = model.method.settings.model_dump(mode="json")
        choices = {**own.choices(), "resolved": resolved, DATA_DIGEST: digest}
        journal = Journal(self.directory / "snapshot", own.engine.snapshot_seconds, choices)
        done = self.finished_tasks()
        if done:
            self._require_unchanged(done[-1], model)
            model = read_model(done[-1], at_hand=stream.dataset.train.source)
            require_match(model, stream, own.order_seed)
            if read_state(done[-1]).get(DATA_DIGEST, digest) != digest:
                raise UserError(
                    f"{self.directory} cannot be resumed: the images of '{stream.name}' are not the ones that task "
                    f"{len(done)} was learnt from; start a new run, or restore them"
                )
        return Learner.of(model, own.engine, listener, journal)

    def _require_unchanged(self, task: Path, fresh: Model) -> None:
        """A run is a function of its settings: they cannot change halfway, neither in the file nor in a recipe."""
        state = parse_state(task)
        kept = {**read_state(task).get("run", {}), "memory": state.memory.budget}
        chosen = {**self.settings.choices(), "memory": str(fresh.memory.budget)}
        resolved = fresh.method.settings.model_dump(mode="json")
        for where, before, now in ((CONFIG, kept, chosen), ("the recipe", state.settings, resolved)):
            changed = _first_difference(before, now)
            if changed is not None:
                raise UserError(
                    f"{self.directory} cannot be resumed: '{changed}' in {where} is not what it was when task "
                    f"{len(state.tasks)} was learnt; start a new run, or restore the file"
                )

    def _close(self, learner: Learner, stream: Stream, digest: str, number: int, learning: float) -> None:
        """Measure a learnt task and keep all of it, at once."""
        started = time.monotonic()
        task = stream.task(number)
        tensors = {"labels": torch.from_numpy(task.test.labels)}
        for name, ranking in learner.rank(task.test).items():
            tensors |= {f"{name}.classes": ranking.classes, f"{name}.scores": ranking.scores}
        extra = {
            "run": self.settings.choices(),
            DATA_DIGEST: digest,
            "task": {
                "number": number,
                "classes": list(task.classes),
                "new_images": len(task.new),
                "memory_images": len(learner.memory.rows),
                "readouts": _figures_by_readout(learner, stream, number),
                "seconds": round(learning + time.monotonic() - started, 3),
                "learning_seconds": round(learning, 3),
            },
        }

        def fill_task(directory: Path) -> None:
            write_model(learner.model, directory, extra)
            write_tensors(directory / PREDICTIONS, tensors)

        write_directory(self.directory / "tasks" / f"{number:02d}", fill_task)
        learner.engine.journal.clear()
        self.write_result(learner, stream)

    def report(self, stream: Stream) -> TaskReport:
        """The metrics of the finished tasks, from the predictions on disk."""
        done = self.finished_tasks()
        state = read_state(done[-1])
        predictions = [read_tensors(task / PREDICTIONS)[0] for task in done]
        metrics = {}
        for name in state["readouts"]:
            records = [TaskPrediction(one["labels"].numpy(), one[f"{name}.classes"].numpy()) for one in predictions]
            metrics[name] = measure(History(records, stream.sizes))
        return TaskReport(len(done), metrics, state["task"]["seconds"])

    def write_result(self, learner: Learner, stream: Stream) -> dict[str, Any]:
        """Put the figures of the finished tasks in their place; the same as an object."""
        states = [read_state(task) for task in self.finished_tasks()]
        metrics = self.report(stream).metrics
        result = make_result(self.settings, stream, metrics, states, learner.model, environment()["versions"])
        write_json(self.directory / RESULT, result)
        return result

    def has_result(self) -> bool:
        """Whether a task is finished and measured: a kill may come between the two."""
        return (self.directory / RESULT).is_file()

    def result(self) -> dict[str, Any]:
        """The figures as of the last finished task."""
        if not self.has_result():
            raise UserError(f"{self.directory} has no result yet: its first task is not finished")
        result = read_json(self.directory / RESULT)
        if not isinstance(result, dict):
            raise UserError(f"{self.directory / RESULT} is not a result: it holds a {type(result).__name__}")
        return result

    def log(self, event: str, **entries: Any) -> None:
        """Add a line to the run's event log."""
        append_line(self.directory / EVENTS, json.dumps({"time": round(time.time(), 3), "event": event, **entries}))


def _first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The name of the first entry that differs, inside a group of entries by its own name; None where all agree."""
    for name in {**before, **now}:
        one, other = before.get(name), now.get(name)
        if one != other:
            if isinstance(one, Mapping) and isinstance(other, Mapping):
                return _first_difference(one, other)
            return name
    return None


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

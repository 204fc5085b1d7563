"""A run: one method on one stream with one seed, in one directory; killed anywhere, it can be resumed.

The directory is the run's only state. Whatever is in it was written whole, so going on means: restore the last
finished task, and learn the next one again; the engine's journal then skips what was done of it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..data.dataset import Dataset
from ..disk import read_json, read_tensors, write_directory, write_json, write_tensors
from ..errors import UserError
from ..learner import ImageShape, Learner
from ..metrics import Metrics, TaskPrediction, measure
from ..streams import Stream, make_stream
from ..train import Journal, Listener
from ..train.events import EpochDone, Event, StageDone, StageStarted, silence
from .model import fill, fill_memory, read_state, write_model
from .result import make_result
from .settings import FORMAT, RunSettings, checked, write_settings

CONFIG, RESULT, EVENTS, PREDICTIONS = "config.toml", "result.json", "events.jsonl", "predictions.safetensors"


class TaskReport(NamedTuple):
    """What is known right after a task: its number, the metrics of every readout so far, its seconds."""

    number: int
    metrics: dict[str, Metrics]
    seconds: float


class Run:
    """A run's directory. ``create`` makes one, ``open`` finds one, ``go`` learns what is left to learn."""

    def __init__(self, directory: Path, settings: RunSettings) -> None:
        self.directory, self.settings = directory, settings

    @classmethod
    def create(cls, settings: RunSettings, directory: Path | None = None) -> Run:
        """A new run; nothing that is already there is touched."""
        if directory is None:
            directory = _unused(Path("runs") / settings.name)
        elif (directory / CONFIG).exists():
            raise UserError(f"{directory} already holds a run; go on with 'drcil resume {directory}' or choose another --out")
        elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UserError(f"{directory} exists and is not an empty directory; choose another --out")
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run directory {directory}: {error.strerror}") from error
        write_settings(settings, directory / CONFIG)
        write_json(directory / "environment.json", environment())
        return cls(directory, settings)

    @classmethod
    def open(cls, directory: Path) -> Run:
        path = directory / CONFIG
        if not path.is_file():
            raise UserError(f"{directory} is not a run: it has no {CONFIG}")
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}") from error
        if values.get("format") != FORMAT:
            raise UserError(f"{directory} has run format {values.get('format')}; this version of drcil reads format {FORMAT}")
        return cls(directory, checked(values))

    def stream(self, dataset: Dataset | None = None) -> Stream:
        own = self.settings
        return make_stream(
            own.stream,
            dataset,
            data_dir=Path(own.data) if own.data else None,
            image_size=own.image_size,
            order_seed=own.order_seed,
            memory=own.memory,
            validation=own.validation,
        )

    def finished_tasks(self) -> list[Path]:
        return sorted((self.directory / "tasks").glob("[0-9][0-9]*"))

    def go(
        self,
        stream: Stream | None = None,
        listener: Listener = silence,
        after_task: Callable[[TaskReport], None] = lambda report: None,
    ) -> dict[str, Any]:
        """Learn all tasks that are not finished; the result."""
        with self._locked(), self._event_log() as log:
            stream = stream or self.stream()

            def tell(event: Event) -> None:
                if isinstance(event, StageStarted | EpochDone | StageDone):
                    log({"event": type(event).__name__, **event.__dict__})
                listener(event)

            learner = self._learner(stream, tell)
            total = min(self.settings.tasks or len(stream), len(stream))
            for number in range(len(learner.sizes) + 1, total + 1):
                started = time.monotonic()
                learner.learn(stream.task(number))
                self._close(learner, stream, number, time.monotonic() - started)
                report = self.report(stream)
                log({"event": "TaskDone", "task": number, "seconds": report.seconds})
                after_task(report)
            return self._write_result(learner, stream)

    def _learner(self, stream: Stream, listener: Listener) -> Learner:
        """The learner as the last finished task left it."""
        own = self.settings
        learner = Learner(
            own.method,
            backbone=own.backbone,
            augment=own.augment,
            seed=own.seed,
            epochs_scale=own.epochs_scale,
            settings=own.settings,
            listener=listener,
            journal=Journal(self.directory / "snapshot", own.engine.snapshot_seconds),
            **own.engine.model_dump(),
        )
        learner.start(stream.dataset.spec, ImageShape.of(stream.dataset.train.source), stream.budget)
        done = self.finished_tasks()
        if done:
            fill(learner, done[-1], read_state(done[-1]))
            fill_memory(learner, done[-1], stream.dataset.train.source)
        return learner

    def _close(self, learner: Learner, stream: Stream, number: int, learning: float) -> None:
        """Measure a learnt task and keep all of it, at once."""
        started = time.monotonic()
        test = stream.task(number).test
        tensors = {"labels": torch.from_numpy(test.labels)}
        for name, ranking in learner.rank(test).items():
            tensors |= {f"{name}.classes": ranking.classes, f"{name}.scores": ranking.scores}
        task = stream.task(number)
        extra = {
            "task": {
                "number": number,
                "classes": list(task.classes),
                "new_images": len(task.new),
                "memory_images": len(learner.memory.rows),
                "parameters": learner.method.parameters(),
                "seconds": round(learning + time.monotonic() - started, 3),
                "learning_seconds": round(learning, 3),
            }
        }

        def fill_task(directory: Path) -> None:
            write_model(learner, directory, extra)
            write_tensors(directory / PREDICTIONS, tensors)

        (self.directory / "tasks").mkdir(exist_ok=True)
        write_directory(self.directory / "tasks" / f"{number:02d}", fill_task)
        learner.engine.journal.clear()
        self._write_result(learner, stream)

    def report(self, stream: Stream) -> TaskReport:
        """The metrics of the finished tasks, from the predictions on disk."""
        done = self.finished_tasks()
        state = read_state(done[-1])
        predictions = [read_tensors(task / PREDICTIONS)[0] for task in done]
        metrics = {
            name: measure(
                [TaskPrediction(one["labels"].numpy(), one[f"{name}.classes"].numpy()) for one in predictions],
                stream.sizes,
            )
            for name in state["readouts"]
        }
        return TaskReport(len(done), metrics, state["task"]["seconds"])

    def _write_result(self, learner: Learner, stream: Stream) -> dict[str, Any]:
        states = [read_state(task) for task in self.finished_tasks()]
        result = make_result(
            self.settings, stream, self.report(stream).metrics, states, learner.method, versions=environment()["versions"]
        )
        write_json(self.directory / RESULT, result)
        return result

    def result(self) -> dict[str, Any]:
        """The figures as of the last finished task."""
        if not (self.directory / RESULT).is_file():
            raise UserError(f"{self.directory} has no result yet: its first task is not finished")
        result: dict[str, Any] = read_json(self.directory / RESULT)
        return result

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process per run directory; the lock goes with the process, however it ends."""
        import fcntl

        with open(self.directory / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.directory} is in use by another process; wait for it or stop it") from None
            yield

    @contextmanager
    def _event_log(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        with open(self.directory / EVENTS, "a", encoding="utf-8") as file:

            def log(entry: dict[str, Any]) -> None:
                file.write(json.dumps({"time": round(time.time(), 3), **entry}) + "\n")
                file.flush()

            log({"event": "Started", "process": os.getpid()})
            yield log


def environment() -> dict[str, Any]:
    """Machine and versions, for whoever compares two results."""
    packages = ("drcil", "torch", "numpy", "pillow", "lightning-fabric")
    return {
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "command": sys.argv,
    }


def _unused(path: Path) -> Path:
    """The path, or with the first number behind it that is not taken."""
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate

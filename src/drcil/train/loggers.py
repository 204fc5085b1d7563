"""Loggers that write epochs and results for other programs: csv, tensorboard, wandb.

They read what earlier processes of a run did from its event log, which every run writes.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ..errors import UserError, check_path, check_string
from ..files import append_line, make_directory, read_bytes, read_toml, remove, write_bytes
from ..registry import Registry
from .events import EpochDone, Event, Record, TaskDone


class Logger(Protocol):
    def __call__(self, records: Sequence[Record]) -> None:
        """Write records.

        The first call has all records of the run so far, every epoch once and in order, those of earlier processes too.
        So a logger starts its files again, and a resumed run ends with the same files as an uninterrupted one.
        """


LOGGERS: Registry[Callable[[Path], Logger]] = Registry("logger", "drcil.train.loggers")
"""Each makes a logger for the run in a directory. A method ``close`` is called when the run stops; ``needs`` names a
package that the logger imports, and the extra that installs it."""


def known_loggers(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; a UserError if a logger is unknown, or its package is not installed."""
    for name in (once := dict.fromkeys(names)):
        package = getattr(LOGGERS[name], "needs", None)
        if package is not None and not _installed(package):
            raise UserError(
                f"the logger '{name}' needs {package}, which is not installed; install it with "
                f"pip install 'drcil[{package}]'"
            )
    return tuple(once)


def _installed(package: str) -> bool:
    """Whether a package is installed; a directory of its name in the current directory is none."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


class Logging:
    """A listener that passes records to loggers.

    A logger that fails is reported once; training and the other loggers continue.
    """

    def __init__(
        self,
        names: Iterable[str],
        directory: Path,
        history: Callable[[], Sequence[Record]] = lambda: (),
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        """``history``: reads the records before the first event; called at that event."""
        self._loggers: dict[str, Logger | None] = dict.fromkeys(known_loggers(names))
        self._directory, self._history, self._warn = directory, history, warn

    def __call__(self, event: Event) -> None:
        if isinstance(event, Record):
            for name in list(self._loggers):
                with self._guarded(name):
                    self._pass_on(name, event)

    def close(self) -> None:
        for name, logger in list(self._loggers.items()):
            if logger is not None and hasattr(logger, "close"):
                with self._guarded(name):
                    logger.close()

    def _pass_on(self, name: str, record: Record) -> None:
        logger = self._loggers[name]
        if logger is not None:
            logger([record])
            return
        make_directory(self._directory)
        logger = self._loggers[name] = LOGGERS[name](self._directory)
        logger([*self._history(), record])

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            del self._loggers[name]
            why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            self._warn(f"the logger '{name}' failed and logs no more of this run: {' '.join(why.split())}")


def make_logger(name: str, directory: str | Path) -> Logging:
    """A listener for a learner that writes in a directory: ``csv``, ``tensorboard``, ``wandb`` or a plugin's."""
    names = known_loggers([check_string("the name of a logger", name)])
    return Logging(names, check_path("directory", directory))


def scalars(record: Record) -> dict[str, float]:
    """Values by name, such as ``fusion/loss_total`` of an epoch and ``tasks/classifier/last`` of a task."""
    if isinstance(record, EpochDone):
        numbers = {f"loss_{term}": loss for term, loss in record.losses.items()}
        numbers |= {"rate": record.lr, "seconds": record.seconds}
        if record.accuracy is not None:
            numbers["accuracy"] = record.accuracy
        return {f"{record.stage}/{name}": value for name, value in numbers.items()}
    figures = {
        f"tasks/{readout}/{name}": value
        for readout, figures_of_readout in record.figures.items()
        for name, value in figures_of_readout.items()
        if value is not None
    }
    return {**figures, "tasks/seconds": record.seconds}


EPOCHS, TASKS = "epochs.csv", "tasks.csv"


@LOGGERS.register("csv")
class Tables:
    """Two tables: epochs.csv with a row for every epoch, tasks.csv with one for every task and readout."""

    def __init__(self, directory: Path) -> None:
        self._epochs = _Table(directory / EPOCHS, "task", "stage", "epoch", "rate", "seconds", "accuracy")
        self._tasks = _Table(directory / TASKS, "task", "readout", "classes", "seconds")

    def __call__(self, records: Sequence[Record]) -> None:
        self._epochs.add([_epoch(record) for record in records if isinstance(record, EpochDone)])
        self._tasks.add([row for record in records if isinstance(record, TaskDone) for row in _results(record)])


def _epoch(done: EpochDone) -> dict[str, Any]:
    """Epochs count from 1, as they are shown while a run trains."""
    return {
        **{f"loss_{term}": loss for term, loss in done.losses.items()},
        "task": done.task,
        "stage": done.stage,
        "epoch": done.epoch + 1,
        "rate": done.lr,
        "seconds": round(done.seconds, 3),
        "accuracy": done.accuracy,
    }


def _results(done: TaskDone) -> list[dict[str, Any]]:
    columns = {"task": done.task, "classes": done.classes, "seconds": done.seconds}
    return [{**figures, **columns, "readout": readout} for readout, figures in done.figures.items()]


class _Table:
    """A file of rows. Stages have different losses: where a row has a new one, the table gets another column."""

    def __init__(self, path: Path, *columns: str) -> None:
        self._path, self._columns = path, list(columns)
        self._rows: list[Mapping[str, Any]] = []
        self._written = False

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows += rows
        more = list(dict.fromkeys(name for row in rows for name in row if name not in self._columns))
        if more or not self._written:
            self._columns += more
            text = _text([self._columns, *map(self._values, self._rows)])
            write_bytes(self._path, f"{text}\n".encode())
            self._written = True
        elif rows:
            append_line(self._path, _text(map(self._values, rows)))

    def _values(self, row: Mapping[str, Any]) -> list[Any]:
        return [row.get(column) for column in self._columns]


def _text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines, the last one not ended."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().removesuffix("\n")


_SUFFIX = ".drcil"
"""End of the names of event files that this logger has written, and may remove."""


@LOGGERS.register("tensorboard")
class EventFiles:
    """Event files in tensorboard/. Epochs count through all tasks; results are plotted over the number of classes."""

    needs = "tensorboard"

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = directory / "tensorboard"
        make_directory(folder, root=directory)
        self._directory = directory
        self._former = [file for file in folder.glob("events.out.tfevents.*") if file.name.endswith(_SUFFIX)]
        # A running TensorBoard then drops what it has read from the former files.
        self._writer = SummaryWriter(str(folder), purge_step=0, filename_suffix=_SUFFIX)
        self._epochs = 0

    def __call__(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, EpochDone):
                self._epochs += 1
            step = self._epochs if isinstance(record, EpochDone) else record.classes
            for name, value in scalars(record).items():
                self._writer.add_scalar(name, value, step, walltime=record.time)
        self._writer.flush()
        while self._former:
            remove(self._former.pop(), root=self._directory)

    def close(self) -> None:
        self._writer.close()


_PROJECT = "drcil"
_NAME = 64
"""Bytes of the file with the id of a run at Weights & Biases."""


@LOGGERS.register("wandb")
class WandbRun:
    """A run of Weights & Biases, online or offline as configured there; files in wandb/."""

    needs = "wandb"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._folder = directory / "wandb"
        make_directory(self._folder, root=directory)
        self._run: Any = None
        self._epochs, self._step, self._first = 0, 0, 0

    def __call__(self, records: Sequence[Record]) -> None:
        if self._run is None:
            self._begin(resumed=len(records) > 1)
        for record in records:
            numbers = scalars(record)
            if isinstance(record, EpochDone):
                self._epochs += 1
                numbers["epoch"] = self._epochs
            else:
                numbers["classes"] = record.classes
            # Steps that Weights & Biases has from an earlier process are the same; it takes none twice.
            if self._step >= self._first:
                self._run.log(numbers, step=self._step)
            self._step += 1

    def _begin(self, resumed: bool) -> None:
        wandb: Any = import_module("wandb")
        # Without a login it must not ask for one during training.
        settings = wandb.Settings(silent=True, console="off", login_timeout=1)
        self._run = wandb.init(
            id=self._id(resumed),
            resume="allow",
            dir=str(self._directory),
            name=self._directory.resolve().name,
            project=None if "WANDB_PROJECT" in os.environ else _PROJECT,
            config=read_toml(config) if os.path.isfile(config := self._directory / "config.toml") else None,
            settings=settings,
        )
        if self._run.disabled:
            raise UserError("Weights & Biases is disabled; log in with 'wandb login', or set WANDB_MODE=offline")
        self._run.define_metric("*", step_metric="epoch")
        self._run.define_metric("tasks/*", step_metric="classes")
        self._first = self._run.step

    def _id(self, resumed: bool) -> str:
        """The id of the run at Weights & Biases: a new one, or that of earlier processes."""
        file = self._folder / "drcil-run.txt"
        if resumed and os.path.isfile(file):
            return read_bytes(file, _NAME).decode(errors="replace").strip()
        name = secrets.token_hex(4)
        write_bytes(file, f"{name}\n".encode(), root=self._directory)
        return name

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

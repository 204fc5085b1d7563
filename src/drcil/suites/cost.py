"""What runs cost on this machine: their rehearsed work, times the seconds that an image takes here.

Training, choosing exemplars and testing are counted. Starting processes, writing files and steps on features that are
kept are not: they are little beside these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from ..data.augment import Augment
from ..data.datasets.dataset import Dataset
from ..data.datasets.outline import outlined
from ..errors import UserError
from ..inference.device import find_device, require_precision
from ..learner import Learner
from ..methods.rehearsal import rehearse
from ..models.model import Model
from ..runs.plan import fresh_model, load_stream
from ..runs.settings import RunSettings
from ..stages import Stage
from ..streams.protocols import parse_stream
from ..train.kept import has_constant_features
from ..train.optimizers import is_idle
from ..train.pace import Kind, as_it_is, decoding_pace, kind_of, look_kind, look_pace, step_pace, view_pace
from .paces import Paces


class Costs:
    """The seconds of runs. What is not known yet of this machine is measured when it is first asked for."""

    def __init__(self, paces: Paces, told: Callable[[str], None] = lambda words: None) -> None:
        """``told`` hears what is being measured."""
        self._paces, self._told = paces, told
        self._threads = torch.get_num_threads()
        self._known: dict[str, tuple[float, ...] | None] = {}

    def of(self, run: RunSettings, dataset: Dataset | None = None) -> tuple[float, ...] | None:
        """The seconds of each task; None where they cannot be foretold. ``dataset``: if it is at hand."""
        key = self._key(run)
        if key not in self._known:
            self._known[key] = self._found(run, dataset)
        return self._known[key]

    def conditions(self, run: RunSettings) -> str:
        """Under which a run is carried out."""
        return conditions(run.engine.device, run.engine.precision, run.threads or self._threads)

    def _key(self, run: RunSettings) -> str:
        """Runs that differ in their seeds only take the same time."""
        chosen = {name: value for name, value in run.choices().items() if name not in ("seed", "order_seed")}
        return json.dumps([chosen, run.tasks, run.data, self.conditions(run), run.engine.workers], sort_keys=True)

    def _found(self, run: RunSettings, dataset: Dataset | None) -> tuple[float, ...] | None:
        dataset = dataset or outlined(parse_stream(run.stream).dataset, run.image_size)
        if dataset is None:
            return None
        try:
            stream = load_stream(run, dataset)
            model = fresh_model(run, stream)
            with threads(run.threads or self._threads):
                bill = Bill(run, model, self._paces, self.conditions(run), self._told)
                tasks = stream[: run.tasks]
                rehearse(model.method, tasks, model.memory.budget, bill)
        except (UserError, RuntimeError, MemoryError):
            return None
        return tuple(bill.tasks) if bill.ended == len(tasks) else None


class Bill:
    """Adds up the seconds of each task of a run while it is rehearsed."""

    def __init__(
        self, run: RunSettings, model: Model, paces: Paces, conditions: str, told: Callable[[str], None]
    ) -> None:
        self.tasks: list[float] = []
        self.ended = 0
        """Tasks that could be rehearsed to their end."""
        self._model, self._paces, self._conditions, self._told = model, paces, conditions, told
        self._channels, self._pixels = model.shape.channels, model.shape.size
        self._engine = Learner.of(model, run.engine).engine
        self._augmentation = self._engine.augmentation
        self._workers = run.engine.workers

    def begins(self) -> None:
        self.tasks.append(0.0)

    def ends(self) -> None:
        self.ended += 1

    def trains(self, stage: Stage, images: int) -> None:
        if is_idle(stage):
            return
        self._engine.augmentation = self._augmentation
        augmented = self._engine.augments(stage)
        if not augmented and not stage.reads_maps and has_constant_features(stage):
            # Each image goes through the backbone once, and the head learns from what is kept.
            self.looks(stage.net, images)
            return
        # What is augmented must not count as constant while steps are timed without it.
        self._engine.augmentation = Augment((as_it_is,), crops_files=False)
        kind = kind_of(stage, self._channels, self._pixels)
        pace = self._pace(kind, lambda: step_pace(self._engine, stage)) + (self._view_pace() if augmented else 0.0)
        self.tasks[-1] += images * stage.schedule.epochs * self._with_reading(pace)

    def looks(self, net: nn.Module, images: int) -> None:
        kind = look_kind(net, self._channels, self._pixels)
        inference = self._engine.inference
        pace = self._pace(kind, lambda: look_pace(inference, net, self._channels, self._pixels))
        self.tasks[-1] += images * self._with_reading(pace)

    def _view_pace(self) -> float:
        name = f"{self._model.augmentation} of {self._model.data.kind}"
        kind = Kind(f"augments by {name}, {self._channels}x{self._pixels}x{self._pixels}", 1)
        device = self._engine.device
        return self._pace(kind, lambda: view_pace(self._augmentation, device, self._channels, self._pixels))

    def _with_reading(self, pace: float) -> float:
        """Files are decoded by other processes meanwhile; where nets run on the CPU too, all share its cores."""
        if self._model.shape.in_memory:
            return pace
        reading = self._pace(Kind(f"decodes to {self._pixels} pixels", 1), lambda: decoding_pace(self._pixels))
        if self._engine.device.type == "cpu":
            return pace + reading / (os.cpu_count() or 1)
        return max(pace, reading / max(1, self._workers))

    def _pace(self, kind: Kind, measure: Callable[[], float]) -> float:
        """Seconds per image: as was measured; between and beyond sizes that were, by a straight line."""
        known = self._paces.known(self._conditions, kind.name)
        if is_new_size(kind.size, known):
            self._told(kind.name)
            self._paces.learn(self._conditions, kind.name, kind.size, measure())
            self._paces.save()
            known = self._paces.known(self._conditions, kind.name)
        return on_the_line(kind.size, known)


def is_new_size(size: int, known: Mapping[int, float]) -> bool:
    """Whether a size has to be measured: below all that is known, twice the largest, or the second of all."""
    if not known or size < min(known):
        return True
    return size not in known and (len(known) < 2 or size >= 2 * max(known))


def on_the_line(size: int, known: Mapping[int, float]) -> float:
    """The value at a size, on the line through its two neighbours that are known."""
    sizes = sorted(known)
    if size in known or len(sizes) == 1:
        return known[size] if size in known else known[sizes[0]]
    if size < sizes[-1]:
        return float(np.interp(size, sizes, [known[one] for one in sizes]))
    last, before = sizes[-1], sizes[-2]
    slope = max(0.0, (known[last] - known[before]) / (last - before))
    return known[last] + slope * (size - last)


def together(seconds: Sequence[float], jobs: int) -> float:
    """The seconds of runs, so many at a time: no less than the longest of them takes by itself."""
    return max(max(seconds, default=0.0), sum(seconds) / jobs)


def conditions(device: str, precision: str, threads: int) -> str:
    """In words: where and how nets are computed, if they can be.

    >>> conditions("cpu", "32", 2)
    'cpu, precision 32, 2 threads'
    """
    require_precision(precision, find_device(device))
    return f"{find_device(device).type}, precision {precision}, {threads} thread{'' if threads == 1 else 's'}"


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Within the block torch uses so many."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)

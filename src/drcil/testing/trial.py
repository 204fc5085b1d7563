"""A method on trial: three short tasks learnt undisturbed, and once more with interruptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from ..methods import METHODS
from ..methods.resolve import setting_keys
from ..nets.freezing import frozen_backbones, frozen_modules, frozen_parameters
from ..nets.output import Output
from ..runs.begin import begin_run
from ..runs.run import Run
from ..runs.settings import make_settings
from ..stages import Batch, Losses, Stage
from ..train import TrainingEngine
from ..train.events import EpochDone, Event, StageDone, StepDone, TaskDone

TASKS = 3
STOPS: tuple[tuple[type, int, int], ...] = (
    (StepDone, 1, 5),
    (EpochDone, 1, 1),
    (TaskDone, 1, 1),
    (StepDone, 2, 2),
    (StageDone, 2, 1),
    (StepDone, 3, 1),
    (EpochDone, 3, 1),
)
"""Kind of event, task, how often: one run is stopped at all of them, one after the other."""


class Stop(Exception):
    """Raised out of the middle of a run."""


@dataclass
class Watch:
    """Counts the steps of a run and what it restored, and stops it at the n-th event of a kind within a task."""

    steps: int = 0
    restored: int = 0
    stop_at: tuple[type, int, int] | None = None

    def __call__(self, event: Event) -> None:
        self.steps += isinstance(event, StepDone)
        self.restored += isinstance(event, StageDone) and event.restored
        if self.stop_at is None:
            return
        kind, where, left = self.stop_at
        if isinstance(event, kind) and event.task == where:
            self.stop_at = (kind, where, left - 1)
            if left == 1:
                raise Stop


class Trial:
    """Runs of one method, made when a law first asks for them."""

    def __init__(self, method: str, directory: Path, **options: Any) -> None:
        """``options`` are those of a run, such as ``backbone`` or ``stream``."""
        self.method, self.directory = method, directory
        sizes = [key for key in setting_keys(METHODS[method].build.Settings) if key.endswith(".batch_size")]
        defaults = {"stream": "digits-b0-5", "tasks": TASKS, "epochs_scale": 0.03, "memory": self.budget}
        small = {**dict.fromkeys(sizes, 64), **options.pop("settings", {})}
        self._options = {**defaults, **options, "method": method, "settings": small}
        self.changed: list[str] = []
        """Which stage changed what it does not train."""
        self.undisturbed, self.interrupted = Watch(), Watch()

    @property
    def budget(self) -> str | None:
        """The memory, where the method does not demand one."""
        return None if METHODS[self.method].build.memory else "20"

    @cached_property
    def whole(self) -> Run:
        """Undisturbed, with every stage watched."""
        run = self._run("whole", snapshot_seconds=1000)
        fit = TrainingEngine.fit
        with mock.patch.object(TrainingEngine, "fit", lambda engine, stage: self._watch(engine, stage, fit)):
            run.go(listener=self.undisturbed)
        return run

    @cached_property
    def stopped(self) -> Run:
        """Stopped within stages, between them and between tasks, and resumed each time."""
        directory = self._run("stopped", snapshot_seconds=0).directory
        for stop in (*STOPS, None):
            self.interrupted.stop_at = stop
            try:
                Run.open(directory).go(listener=self.interrupted)
            except Stop:
                continue
        return Run.open(directory)

    def _run(self, name: str, **engine: Any) -> Run:
        settings = make_settings(**self._options, engine={"device": "cpu", **engine})
        return begin_run(settings, self.directory / name)

    def _watch(self, engine: TrainingEngine, stage: Stage, fit: Callable[[TrainingEngine, Stage], None]) -> None:
        """Fit a stage, and note what it changed without saying so."""
        names = {id(tensor): name for name, tensor in tensors_of(stage.net).items()}
        if stage.groups is None:
            trained = {id(parameter) for parameter in stage.net.parameters() if parameter.requires_grad}
        else:
            trained = {id(parameter) for group in stage.groups for parameter in group.parameters}
        kept = [tensor for part in stage.frozen for tensor in part.buffers()]
        kept += [parameter for parameter in stage.net.parameters() if id(parameter) not in trained]
        for backbone in frozen_backbones(stage.net):
            kept += [
                *frozen_parameters(backbone),
                *(own for part in frozen_modules(backbone) for own in part.buffers()),
            ]
        kept += [tensor for teacher in stage.teachers.values() for tensor in tensors_of(teacher).values()]
        before = [tensor.detach().clone() for tensor in kept]

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            frozen = [part for backbone in frozen_backbones(stage.net) for part in frozen_modules(backbone)]
            if any(module.training for part in (*stage.frozen, *frozen) for module in part.modules()):
                self.changed.append(f"stage '{stage.name}' left a frozen module in training mode")
            return stage.objective(output, teachers, batch)

        fit(engine, replace(stage, objective=objective))
        if not trained <= names.keys():
            self.changed.append(f"stage '{stage.name}' trains parameters that are not its net's")
        for tensor, was in zip(kept, before, strict=True):
            if not torch.equal(tensor, was):
                self.changed.append(f"stage '{stage.name}' changed {names.get(id(tensor), 'a teacher')}")


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}

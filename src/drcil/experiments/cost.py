"""Estimates the training time of runs on this machine.

On a CPU, CPU time is measured instead of elapsed time, so that other processes do not affect the estimates.

Training, selecting exemplars and testing are counted. Starting processes, writing files and steps on cached features
are not, because they take little time.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor, nn

from ..data.augment import Augment, Draws
from ..data.dataset import Dataset, placeholder_dataset
from ..data.decoding import open_image, random_view
from ..data.image_set import ImageSet, PlaceholderSource
from ..data.loader import CHUNK_BYTES
from ..errors import UserError
from ..files import read_checksummed_json, write_checksummed_json
from ..inference import Inference, find_device, require_precision
from ..learner import Learner
from ..methods.dry_run import dry_run
from ..models.model import Model
from ..nets.expanded import members_of
from ..nets.net import Net
from ..nets.task_attention import TaskNet
from ..runs.execution import Run
from ..runs.plan import fresh_model, load_stream
from ..seeding import generator, numpy_generator
from ..settings import RunSettings
from ..stages import Stage
from ..streams.protocols import parse_stream
from ..train.engine import TrainingEngine
from ..train.events import Event, StepDone
from ..train.feature_cache import has_constant_features
from ..train.optimizers import groups_of, trains_nothing
from ..train.progress import rough
from .jobs import Job, Jobs
from .published import PaperRun, trained_once

FORMAT = 1
_Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
_Paces = dict[str, dict[str, dict[int, _Seconds]]]
_LONGEST = 10**6
"""Largest number of bytes read from the description of a processor."""


def cache_directory() -> Path:
    """The user's cache directory, by the convention of the system."""
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache_home) if os.path.isabs(cache_home) else Path(os.path.expanduser("~")) / ".cache"
    return home / "drcil"


def machine() -> dict[str, Any]:
    """The machine and library versions that speed depends on."""
    devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "name": platform.node(),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "devices": devices,
        "torch": version("torch"),
        "drcil": version("drcil"),
    }


class _SpeedFile(BaseModel):
    machine: dict[str, Any]
    paces: _Paces


class SpeedCache:
    """Seconds per image by conditions (device, precision, threads), kind of work and size, in a file.

    A file that is damaged, or of another machine or version, is ignored. If the file cannot be written, measurements
    last as long as the process.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._machine = {"format": FORMAT, **machine()}
        digest = hashlib.blake2b(json.dumps(self._machine).encode(), digest_size=6).hexdigest()
        self.path = (directory or cache_directory()) / f"pace-{digest}.json"
        self._paces = self._read()

    def measured(self, conditions: str, kind: str) -> Mapping[int, float]:
        """Seconds per image by size."""
        return self._paces.get(conditions, {}).get(kind, {})

    def learn(self, conditions: str, kind: str, size: int, seconds: float) -> None:
        """Record the seconds per image of this size."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"{seconds} s per image were measured")
        self._paces.setdefault(conditions, {}).setdefault(kind, {})[size] = seconds

    def save(self) -> None:
        """Write the file, together with new measurements of other processes."""
        paces = self._read()
        for conditions, kinds in self._paces.items():
            for kind, sizes in kinds.items():
                paces.setdefault(conditions, {}).setdefault(kind, {}).update(sizes)
        self._paces = paces
        with suppress(UserError):
            write_checksummed_json(self.path, {"machine": self._machine, "paces": self._paces})

    def _read(self) -> _Paces:
        with suppress(UserError, ValidationError):
            stored = _SpeedFile.model_validate(read_checksummed_json(self.path))
            if stored.machine == self._machine:
                return stored.paces
        return {}


def _processor() -> str:
    with suppress(OSError, StopIteration):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read(_LONGEST).splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


_FEW, _IMAGES = 4, 4096
"""Images of the first timed step, and of a stage at most."""
_STEP, _ENOUGH = 0.5, 0.5
"""Longest timed step in seconds (larger batches are cut), and shortest measurement."""
_TRIES = 3
_PIXELS = 2**20
"""Pixels of a batch above which the time per image is constant."""
_PHOTOGRAPH = (500, 375)
"""Pixels of a typical ImageNet photograph."""


class Kind(NamedTuple):
    """What the time per image depends on: stages or nets of the same kind and size are equally fast."""

    name: str
    size: int
    """Number of backbones and of task-wise passes of an image; time grows linearly with it."""


class _Enough(Exception):
    """Ends training when enough steps are timed."""


def kind_of(stage: Stage, channels: int, pixels: int) -> Kind:
    """The kind of a stage that trains on images of this shape."""
    nets = [stage.net, *stage.teachers.values()]
    trained = {id(parameter) for group in groups_of(stage) for parameter in group.parameters}
    newest = members_of(stage.net)[-1] if isinstance(stage.net, Net) else stage.net
    learns = any(id(parameter) in trained for parameter in newest.parameters())
    parts = [
        "trains" if learns else "trains the head of",
        " beside ".join(_outline(net) for net in nets),
        f"{channels}x{pixels}x{pixels}",
        f"{stage.schedule.optimizer} in batches of {_enough_images(stage, pixels)}",
        *(["reading maps"] if stage.reads_maps else []),
        *sorted({type(hook).__name__ for hook in stage.hooks}),
    ]
    return Kind(", ".join(parts), sum(_size(net) for net in nets))


def look_kind(net: nn.Module, channels: int, pixels: int) -> Kind:
    """The kind of an inference pass. A head takes little time beside its backbone, unless it runs once per task."""
    architecture = _backbone(net) if isinstance(net, Net) and not isinstance(net, TaskNet) else _outline(net)
    return Kind(f"looks through {architecture}, {channels}x{pixels}x{pixels}", _size(net))


def step_pace(engine: TrainingEngine, stage: Stage) -> float:
    """Seconds per image of the steps of a stage, without augmentation. The net is not changed.

    Where a batch takes long a part of it is timed: what a step takes besides its images is little then.
    """
    images = _blank(stage.data)
    before = {name: tensor.clone() for name, tensor in stage.net.state_dict().items()}
    most, pace = _enough_images(stage, images.shape.size), 0.0
    batch = min(_FEW, most)
    try:
        for _ in range(_TRIES):
            pace = _timed(engine, stage, images, batch)
            larger = min(most, int(_STEP / max(pace, 1e-9)))
            if larger <= batch or (larger < most and larger < 1.5 * batch):
                break
            batch = larger
    finally:
        stage.net.load_state_dict(before)
    return pace


def look_pace(inference: Inference, net: nn.Module, channels: int, pixels: int) -> float:
    """Seconds per image of inference."""
    frozen, source = inference.frozen(net), PlaceholderSource(_IMAGES, channels, pixels)

    def look(count: int) -> None:
        rows = np.arange(count, dtype=np.int64)
        inference.outputs(frozen, ImageSet.of(source, rows, rows), lambda output: (output.features.pooled,))

    return _repeated(look, _FEW, min(inference.batch, _IMAGES), inference.device)


def view_pace(augmentation: Augment, device: torch.device, channels: int, pixels: int) -> float:
    """Seconds per image of augmentation, in batches as large as in training."""
    if not augmentation.steps:
        return 0.0
    source = PlaceholderSource(_IMAGES, channels, pixels)

    def augment(count: int) -> None:
        views = source.read(np.arange(count, dtype=np.int64)).to(device)
        augmentation(views, generator("pace"))

    chunk = max(_FEW, CHUNK_BYTES // (channels * pixels**2))
    return _repeated(augment, min(chunk, _IMAGES), chunk, device)


def decoding_pace(pixels: int) -> float:
    """Seconds to decode a photograph and crop it to this size in one process."""
    drawn = numpy_generator("pace").integers(256, size=(25, 33, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(drawn).resize(_PHOTOGRAPH, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)

    def decode(count: int) -> None:
        for key in range(count):
            with open_image(file.getvalue()) as picture:
                random_view(picture, pixels, Random(key))

    return _repeated(decode, _FEW, _IMAGES, torch.device("cpu"))


def _outline(net: nn.Module) -> str:
    """The architecture of a net, independent of its weights and its number of backbones."""
    if not isinstance(net, Net):
        return f"{type(net).__name__} of {sum(parameter.numel() for parameter in net.parameters())} parameters"
    return f"{type(net).__name__} {_backbone(net)} {type(net.head).__name__}"


def _backbone(net: Net) -> str:
    return json.dumps(members_of(net)[-1].describe(), sort_keys=True)


def _size(net: nn.Module) -> int:
    backbones = len(members_of(net)) if isinstance(net, Net) else 1
    return backbones + (len(net.head.tasks) if isinstance(net, TaskNet) else 0)


def _batch(stage: Stage) -> int:
    """Batch size of a stage. Smaller stages are rounded down to a power of two, so that tasks share measurements."""
    most, images = stage.schedule.batch_size, max(2, len(stage.data))
    return most if images >= most else 1 << (images.bit_length() - 1)


def _enough_images(stage: Stage, pixels: int) -> int:
    """Images of a timed step: for large images, only as many as the time per image depends on."""
    return min(_batch(stage), max(_FEW, _PIXELS // pixels**2))


def _blank(images: ImageSet) -> ImageSet:
    """Blank images with the labels of a sample of these images; no file is read."""
    sample = images.subset(np.unique(np.linspace(0, len(images) - 1, min(_IMAGES, len(images))).astype(np.int64)))
    source = PlaceholderSource(max(map(len, images.sources)), images.shape.channels, images.shape.size)
    return ImageSet.of(source, sample.rows, sample.labels)


def _timed(engine: TrainingEngine, stage: Stage, images: ImageSet, batch: int) -> float:
    """Seconds per image of steps with this batch size; the first step is a warm-up and does not count."""
    began, trained, steps, last = 0.0, 0, 0, 0.0

    def watch(event: Event) -> None:
        nonlocal began, trained, steps, last
        if isinstance(event, StepDone):
            last = _now(engine.device)
            if steps == 0:
                began = last
            else:
                trained += event.images
            steps += 1
            if steps > 2 and last - began >= _ENOUGH:
                raise _Enough

    # The learning rate is close to 0, so that any number of steps leaves the net almost unchanged.
    rates = {"lr": 1e-12, "lr_end": 0.0, "warmup": 0, "curve": "constant"}
    schedule = stage.schedule.model_copy(update={"batch_size": batch, "epochs": 10**6, **rates})
    listener, engine.listener = engine.listener, watch
    try:
        engine.fit(replace(stage, data=images, schedule=schedule))
    except _Enough:
        pass
    finally:
        engine.listener = listener
    return (last - began) / max(1, trained)


def _repeated(function: Callable[[int], None], count: int, most: int, device: torch.device) -> float:
    """Seconds per image of a function of a batch; the batch grows up to ``most`` while the function is fast."""
    function(count)
    for _ in range(_TRIES):
        began = _now(device)
        function(count)
        pace = (_now(device) - began) / count
        larger = min(most, max(count, int(_ENOUGH / max(pace, 1e-9))))
        if larger < 1.5 * count:
            break
        count = larger
    return pace


def as_it_is(images: Tensor, draws: Draws) -> Tensor:
    """A step of augmentation that changes nothing."""
    return images


def _now(device: torch.device) -> float:
    """A clock in seconds that waits for pending work of the device."""
    if device.type == "cpu":
        # Time of this thread, which takes part in all multi-threaded work.
        return time.thread_time()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


class CostEstimator:
    """Estimates the seconds of runs. Missing speeds of this machine are measured when they are needed."""

    def __init__(self, paces: SpeedCache, report: Callable[[str], None] = lambda message: None) -> None:
        """``report`` is called with the name of what is being measured."""
        self._paces, self._report = paces, report
        self._threads = torch.get_num_threads()
        self._estimates: dict[str, tuple[float, ...] | None] = {}

    def of(self, run: RunSettings, dataset: Dataset | None = None) -> tuple[float, ...] | None:
        """The seconds of each task; None if they cannot be estimated. ``dataset``: if it is loaded."""
        key = self._key(run)
        if key not in self._estimates:
            self._estimates[key] = self._estimate(run, dataset)
        return self._estimates[key]

    def conditions(self, run: RunSettings) -> str:
        """Device, precision and threads of a run."""
        return conditions(run.engine.device, run.engine.precision, run.threads or self._threads)

    def _key(self, run: RunSettings) -> str:
        """A key without seeds, which do not affect the time."""
        identity = {name: value for name, value in run.identity().items() if name not in ("seed", "order_seed")}
        return json.dumps([identity, run.tasks, run.data, self.conditions(run), run.engine.workers], sort_keys=True)

    def _estimate(self, run: RunSettings, dataset: Dataset | None) -> tuple[float, ...] | None:
        dataset = dataset or placeholder_dataset(parse_stream(run.stream).dataset, run.image_size)
        if dataset is None:
            return None
        try:
            stream = load_stream(run, dataset)
            model = fresh_model(run, stream)
            with threads(run.threads or self._threads):
                costs = TaskCosts(run, model, self._paces, self.conditions(run), self._report)
                tasks = stream[: run.tasks]
                dry_run(model.method, tasks, model.memory.budget, costs)
        except (UserError, RuntimeError, MemoryError):
            return None
        return tuple(costs.tasks) if costs.ended == len(tasks) else None


class TaskCosts:
    """Adds up the seconds of each task of a run in a dry run."""

    def __init__(
        self, run: RunSettings, model: Model, paces: SpeedCache, conditions: str, report: Callable[[str], None]
    ) -> None:
        self.tasks: list[float] = []
        self.ended = 0
        """Tasks that the dry run has completed."""
        self._model, self._paces, self._conditions, self._report = model, paces, conditions, report
        self._channels, self._pixels = model.shape.channels, model.shape.size
        self._engine = Learner.from_model(model, run.engine).engine
        self._augmentation = self._engine.augmentation
        self._workers = run.engine.workers

    def begins(self) -> None:
        self.tasks.append(0.0)

    def ends(self) -> None:
        self.ended += 1

    def trains(self, stage: Stage, images: int) -> None:
        if trains_nothing(stage):
            return
        self._engine.augmentation = self._augmentation
        augmented = self._engine.augments(stage)
        if not augmented and not stage.reads_maps and has_constant_features(stage):
            # Each image passes the backbone once, and the head is trained on cached features.
            self.looks(stage.net, images)
            return
        # Augmented features must not be cached while steps are timed without augmentation.
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
        """Other processes decode files at the same time; on a CPU they share its cores with the nets."""
        if self._model.shape.in_memory:
            return pace
        reading = self._pace(Kind(f"decodes to {self._pixels} pixels", 1), lambda: decoding_pace(self._pixels))
        if self._engine.device.type == "cpu":
            return pace + reading / (os.cpu_count() or 1)
        return max(pace, reading / max(1, self._workers))

    def _pace(self, kind: Kind, measure: Callable[[], float]) -> float:
        """Seconds per image: measured, or interpolated linearly between measured sizes."""
        measured = self._paces.measured(self._conditions, kind.name)
        if is_new_size(kind.size, measured):
            self._report(kind.name)
            self._paces.learn(self._conditions, kind.name, kind.size, measure())
            self._paces.save()
            measured = self._paces.measured(self._conditions, kind.name)
        return interpolate(kind.size, measured)


def is_new_size(size: int, measured: Mapping[int, float]) -> bool:
    """Whether a size must be measured: it is the smallest, at least twice the largest, or the second one."""
    if not measured or size < min(measured):
        return True
    return size not in measured and (len(measured) < 2 or size >= 2 * max(measured))


def interpolate(size: int, measured: Mapping[int, float]) -> float:
    """The value at a size, by linear interpolation or extrapolation."""
    sizes = sorted(measured)
    if size in measured or len(sizes) == 1:
        return measured[size] if size in measured else measured[sizes[0]]
    if size < sizes[-1]:
        return float(np.interp(size, sizes, [measured[measured_size] for measured_size in sizes]))
    last, before = sizes[-1], sizes[-2]
    slope = max(0.0, (measured[last] - measured[before]) / (last - before))
    return measured[last] + slope * (size - last)


def conditions(device: str, precision: str, threads: int) -> str:
    """In words: where and how nets are computed, if they can be.

    >>> conditions("cpu", "32", 2)
    'cpu, precision 32, 2 threads'
    """
    require_precision(precision, find_device(device))
    return f"{find_device(device).type}, precision {precision}, {threads} thread{'' if threads == 1 else 's'}"


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Within the block, torch uses this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class PaperCosts:
    """Estimated seconds of runs of the paper, each trained once; None: a run cannot be estimated."""

    conditions: str
    seconds: Mapping[PaperRun, float | None]

    @classmethod
    def estimate(
        cls, runs: Iterable[PaperRun], estimator: CostEstimator, engine: Mapping[str, Any], threads: int | None
    ) -> PaperCosts:
        """Estimate all runs with these settings of the engine."""
        seconds: dict[PaperRun, float | None] = {}
        for run in trained_once(runs):
            tasks = estimator.of(run.run_settings(engine=dict(engine), threads=threads))
            seconds[run] = None if tasks is None else sum(tasks)
        return cls(conditions(engine["device"], engine["precision"], threads or torch.get_num_threads()), seconds)

    def total(self, runs: Iterable[PaperRun]) -> float | None:
        """Seconds of these runs, one at a time and each once; None where one cannot be estimated."""
        costs = [self.seconds[run] for run in trained_once(runs)]
        return None if None in costs else sum(seconds for seconds in costs if seconds is not None)


@dataclass(frozen=True)
class Estimate:
    """The seconds that each run of a suite still takes, in its order; None: cannot be estimated."""

    seconds: tuple[float | None, ...]
    possible: tuple[bool, ...]
    """Whether the data of each run exists."""
    parallel: int
    conditions: tuple[str, ...]

    @classmethod
    def of(cls, jobs: Jobs, costs: CostEstimator, parallel: int) -> Estimate:
        return cls(
            seconds=tuple(_seconds_left(job, jobs, costs) for job in jobs.all),
            possible=tuple(jobs.is_possible(job) for job in jobs.all),
            parallel=parallel,
            conditions=tuple(dict.fromkeys(costs.conditions(job.settings) for job in jobs.all)),
        )

    def whole(self, possible: bool = True) -> float:
        """The seconds of all runs whose data exists; or of all others."""
        pairs = zip(self.seconds, self.possible, strict=True)
        costs = [seconds for seconds, is_possible in pairs if is_possible is possible and seconds is not None]
        # At least the time of the longest run.
        return max(max(costs, default=0.0), sum(costs) / self.parallel)

    def sentences(self) -> list[str]:
        seconds, missing = self.whole(), self.whole(possible=False)
        at_a_time = "one run" if self.parallel == 1 else f"{self.parallel} runs"
        where = f"{at_a_time} at a time on this machine ({'; '.join(self.conditions)}), if it is idle"
        lines = [f"estimate: about {rough(seconds)}, {where}"] if seconds else []
        if missing:
            rest = "" if seconds else f", {where}"
            lines.append(f"runs whose data was not found would take about {rough(missing)}{rest}")
        unknown = sum(seconds is None for seconds in self.seconds)
        lines += [f"{unknown} of the runs cannot be estimated and are not counted"] if unknown else []
        return lines


def _seconds_left(job: Job, jobs: Jobs, costs: CostEstimator) -> float | None:
    """Finished tasks take no time."""
    if job.result is not None:
        return 0.0
    tasks = costs.of(job.settings, jobs.datasets.get(job.settings))
    done = len(Run(job.directory, job.settings).finished_tasks()) if job.exists else 0
    return None if tasks is None else sum(tasks[done:])

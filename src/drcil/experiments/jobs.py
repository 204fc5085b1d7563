"""Jobs of an experiment: finished, resumable or new; datasets loaded once."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.dataset import Dataset, find_dataset, load_dataset
from ..data.fingerprint import DatasetFingerprint, dataset_fingerprint, describe_difference
from ..errors import UserError, printable
from ..files import file_name
from ..methods import METHODS
from ..methods.catalog import named_method, resolve_settings
from ..registry import changed_plugin
from ..runs.evidence import RunRecord, record_of
from ..runs.execution import RUNS, Run, read_initial_state, unused, with_new_settings
from ..runs.plan import canonical_settings
from ..runs.result import RunResult
from ..settings import CONFIG, RunSettings
from ..streams.protocols import parse_stream

NOT_FOUND = "data not found"
_LONG = 100
"""Characters of details in the name of a directory."""


def run_key(settings: RunSettings) -> str:
    """Equal for settings of the same run: data directory, device and threads do not count, nor does a setting that has
    the value that it would have anyway.
    """
    canonical = canonical_settings(settings)
    return json.dumps({**canonical.identity(), "tasks": canonical.tasks}, sort_keys=True)


class Datasets:
    """Loads the datasets of runs once; one that cannot be loaded is an error for its runs only."""

    def __init__(self, warn: Callable[[Dataset], None] = lambda dataset: None) -> None:
        """``warn`` is called with each dataset that is loaded."""
        self._warn = warn
        self._loaded: dict[tuple[Any, ...], Dataset | UserError] = {}
        self._fingerprints: dict[tuple[Any, ...], DatasetFingerprint] = {}

    def load(self, run: RunSettings) -> Dataset:
        """The dataset of a run; or the error."""
        loaded = self._load(run)
        if isinstance(loaded, UserError):
            raise loaded
        return loaded

    def get(self, run: RunSettings) -> Dataset | None:
        """The same; None if it cannot be loaded."""
        loaded = self._load(run)
        return None if isinstance(loaded, UserError) else loaded

    def missing(self, run: RunSettings) -> str | None:
        """Why the dataset of a run cannot be loaded; None if it can."""
        loaded = self._load(run)
        return str(loaded) if isinstance(loaded, UserError) else None

    def fingerprint(self, run: RunSettings) -> DatasetFingerprint | None:
        """The fingerprint of the dataset of a run; None if it cannot be loaded."""
        key, dataset = _dataset_key(run), self.get(run)
        if dataset is not None and key not in self._fingerprints:
            self._fingerprints[key] = dataset_fingerprint(dataset)
        return self._fingerprints.get(key)

    def _load(self, run: RunSettings) -> Dataset | UserError:
        key = _dataset_key(run)
        if key not in self._loaded:
            name, directory, size = key
            try:
                dataset = load_dataset(name, Path(directory) if directory else None, size)
                self._warn(dataset)
                self._loaded[key] = dataset
            except UserError as error:
                self._loaded[key] = error
        return self._loaded[key]


def _dataset_key(run: RunSettings) -> tuple[str, str | None, int | None]:
    return parse_stream(run.stream).dataset, run.data, run.image_size


class KnownRuns:
    """The runs below a directory, which may be resumed, and finished ones of other directories.

    Runs that cannot be read are ignored.
    """

    def __init__(self, parent: Path, directories: Iterable[Path] = ()) -> None:
        """``directories``: runs, directories of runs, and directories of experiments."""
        self._runs: dict[str, list[Run]] = {}
        for config in sorted(parent.glob(f"*/{CONFIG}")):
            self._add(config.parent, only_finished=False)
        for directory in directories:
            for pattern in (CONFIG, f"*/{CONFIG}", f"{RUNS}/*/{CONFIG}"):
                for config in sorted(directory.glob(pattern)):
                    self._add(config.parent, only_finished=True)

    def _add(self, directory: Path, only_finished: bool) -> None:
        with suppress(UserError):
            run = Run.read(directory)
            if run.is_finished or not only_finished:
                self._runs.setdefault(run_key(run.settings), []).append(run)

    def find(self, settings: RunSettings, datasets: Datasets) -> Run | None:
        """The run of these settings that is furthest, if recipe, plugins and images are still the same."""
        valid = []
        for run in self._runs.get(run_key(settings), []):
            with suppress(UserError):
                if _is_valid(run, datasets.fingerprint(settings)):
                    valid.append(run)
        return max(valid, key=lambda run: (run.is_finished, len(run.finished_tasks())), default=None)


def _is_valid(run: Run, data: DatasetFingerprint | None) -> bool:
    """Whether the finished tasks are what the present settings, plugins and images would give."""
    run.tasks()
    initial = read_initial_state(run.directory)
    if with_new_settings(initial.resolved, run.settings.method) != current_method_settings(run.settings):
        return False
    if changed_plugin(initial.plugins or {}) is not None:
        return False
    return data is None or describe_difference(initial.data, data) is None


def current_method_settings(run: RunSettings) -> dict[str, Any]:
    """The settings of the method as they would be now, from its recipe and those of the run; or an error."""
    spec, data = METHODS[run.method], find_dataset(parse_stream(run.stream).dataset)[0].spec
    backbone = spec.backbone(data, run.backbone)
    scale, stages = run.epochs_scale, run.stage_options
    settings = resolve_settings(spec, data.kind, run.settings, scale, run.stream, backbone, run.schedule, stages)
    return settings.model_dump(mode="json")


@dataclass(frozen=True)
class RunRequest:
    """A run that a cell or a line needs."""

    label: str
    """The method as the user named it, perhaps with a readout."""
    settings: RunSettings
    details: tuple[str, ...] = ()
    """What tells it from other runs of the method: its stream, a setting, the class order."""

    @functools.cached_property
    def key(self) -> str:
        """Equal for requests of the same run."""
        return run_key(self.settings)

    @property
    def directory_name(self) -> str:
        """The name of the run, with the details other than its stream."""
        settings = self.settings
        details = "-".join(detail for detail in self.details if detail != settings.stream)
        if not details:
            return settings.name
        text = re.sub(r"[^A-Za-z0-9._=+-]+", "_", details)[:_LONG]
        return file_name(f"{settings.method}-{settings.directory_stem}-{text}-seed{settings.seed}", "a run")


@dataclass
class Job:
    """A run of an experiment, finished or not."""

    settings: RunSettings
    directory: Path
    exists: bool
    """Whether the directory has this run already."""
    readouts: dict[str, str | None]
    """The readouts that are requested of it, by label."""
    details: tuple[str, ...] = ()
    finished: RunRecord | None = None
    failure: str | None = None

    @property
    def name(self) -> str:
        return ", ".join([" and ".join(self.readouts), *self.details, f"seed {self.settings.seed}"])

    @property
    def result(self) -> RunResult | None:
        return None if self.finished is None else self.finished.result

    def record(self, settings: RunSettings) -> RunRecord:
        """The run for a request of these settings."""
        if self.finished is None:
            return RunRecord(settings, None, self.failure, printable(str(self.directory)))
        return self.finished.led_by(settings)


@dataclass(frozen=True)
class Jobs:
    """The jobs of an experiment, and the datasets that they learn from."""

    by_key: Mapping[str, Job]
    datasets: Datasets
    inspected: tuple[RunSettings, ...] = ()
    """Runs whose images are counted; nothing is trained."""

    @property
    def all(self) -> list[Job]:
        return list(self.by_key.values())

    def records(self, requests: Sequence[RunRequest]) -> tuple[RunRecord, ...]:
        """The runs of these requests; those without data are left out."""
        pairs = ((self.by_key[request.key], request.settings) for request in requests)
        return tuple(job.record(settings) for job, settings in pairs if self.is_possible(job))

    def is_possible(self, job: Job) -> bool:
        """Whether a job is finished, or its data is there."""
        return job.result is not None or self.datasets.missing(job.settings) is None

    def possible(self) -> list[Job]:
        return [job for job in self.all if self.is_possible(job)]

    def state(self, job: Job) -> str:
        if job.result is not None:
            return "finished"
        if not self.is_possible(job):
            return NOT_FOUND
        return "to be resumed" if job.exists else "to be started"

    def missing(self) -> list[str]:
        """Why some datasets cannot be loaded, a sentence each."""
        unfinished = [job.settings for job in self.all if job.result is None]
        reasons = (self.datasets.missing(run) for run in (*unfinished, *self.inspected))
        return list(dict.fromkeys(reason for reason in reasons if reason is not None))

    def check_data(self) -> None:
        """An error if the data of all runs is missing."""
        possible = self.possible() or any(self.datasets.missing(run) is None for run in self.inspected)
        missing = self.missing()
        if missing and not possible:
            raise UserError(missing[0])


def plan_jobs(
    requests: Iterable[RunRequest],
    parent: Path,
    known_runs: KnownRuns,
    datasets: Datasets,
    inspected: tuple[RunSettings, ...] = (),
) -> Jobs:
    """A job for each run. Requests that differ in their readouts share one."""
    jobs: dict[str, Job] = {}
    taken: set[Path] = set()
    for request in requests:
        settings = request.settings
        if request.key in jobs:
            jobs[request.key].readouts[request.label] = settings.readout
            continue
        run = known_runs.find(settings, datasets)
        if run is None:
            directory = unused(parent / request.directory_name, taken)
            taken.add(directory)
        else:
            directory = run.directory
        job = Job(settings, directory, run is not None, {request.label: settings.readout}, request.details)
        if run is not None and run.is_finished:
            job.finished = record_of(run)
        jobs[request.key] = job
    return Jobs(jobs, datasets, inspected)


def require_once(names: Sequence[str]) -> None:
    """An error if a name occurs twice."""
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"'{name}' is given {names.count(name)} times; name each method and stream once")


def may_choose_memory(method: str) -> bool:
    """Whether the memory of a method can be set: a lower bound has none and an upper bound has all images."""
    return named_method(method)[0].build.memory is None

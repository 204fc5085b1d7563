"""``RunRecord``: a run as reports need it, from a run directory or an evidence file.

Run directories are large. Evidence files fit into a repository, and reports are made from either.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import UserError, printable
from ..files import CHECKSUM, checksum, read_checksummed_json, read_json, write_bytes
from ..settings import CONFIG, RunSettings, describe_validation_error, expand_user
from .execution import ENVIRONMENT, RUNS, Run
from .plan import command_of
from .result import RunResult
from .run_files import last_task_time

REPORT = "report.json"
"""The report of an experiment, which names run directories."""
_ENVIRONMENT = ("versions", "commit", "platform", "processor", "devices", "threads")
_LOCAL_SETTINGS = {"data", "loggers"}
"""Settings that mean something only on the machine of the run."""
_LINE_DEPTH = 3
"""Tables within tables that are written line by line."""


@dataclass(frozen=True)
class RunRecord:
    """A run among others: its settings, and its result or why there is none."""

    settings: RunSettings
    """The readout that they name leads."""
    result: RunResult | None = None
    failure: str | None = None
    directory: str = ""
    """Or the evidence file."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The content of ``environment.json``."""
    finished: float | None = None
    """When the last finished task was finished, in seconds since 1970."""

    @property
    def command(self) -> str:
        """The command that makes such a run."""
        return command_of(self.settings)

    @property
    def commit(self) -> str:
        """The commit of drcil that the run was started with, abbreviated; empty if it is not known."""
        return str(self.environment.get("commit") or "")[:10]

    @property
    def day(self) -> str:
        """The day on which the last finished task was finished, in UTC; empty if it is not known."""
        return "" if self.finished is None else datetime.fromtimestamp(self.finished, UTC).strftime("%Y-%m-%d")

    @property
    def key(self) -> tuple[str, str]:
        """Tells a record from others: its directory, and the readout whose figures it has."""
        return self.directory, "" if self.result is None else self.result.readout

    def figure(self, name: str) -> Any:
        """A metric of the leading readout; None without a result, or where it was not measured."""
        return None if self.result is None else self.result.figure(name)

    def led_by(self, settings: RunSettings) -> RunRecord:
        """The same run as these settings name it, led by their readout."""
        result = None if self.result is None else self.result.led_by(settings.readout)
        return replace(self, settings=settings, result=result)


class _Evidence(BaseModel):
    model_config = ConfigDict(extra="forbid")

    evidence: Literal[1]
    settings: RunSettings
    command: str
    finished: float | None
    environment: dict[str, Any]
    result: RunResult


def read_record(path: Path) -> RunRecord:
    """The record of a run directory or an evidence file."""
    return _read_evidence(path) if os.path.isfile(path) else record_of(Run.read(path))


def record_of(run: Run) -> RunRecord:
    """The record of a run, finished or not; an error if no task is finished. Environment and time may be missing."""
    environment: Any = None
    with suppress(UserError):
        environment = read_json(run.directory / ENVIRONMENT)
    return RunRecord(
        run.settings,
        run.result(),
        directory=printable(str(run.directory)),
        environment=environment if isinstance(environment, dict) else {},
        finished=last_task_time(run.directory),
    )


def _read_evidence(path: Path) -> RunRecord:
    try:
        stored = _Evidence.model_validate(read_checksummed_json(path))
    except ValidationError as error:
        raise UserError(f"{path} is not the evidence of a run: {describe_validation_error(error)}") from None
    return RunRecord(
        stored.settings,
        stored.result,
        directory=printable(str(path)),
        environment=stored.environment,
        finished=stored.finished,
    )


def write_evidence(record: RunRecord, directory: Path) -> Path:
    """Write the evidence file of a finished run; one of the same settings is replaced."""
    if record.result is None or not record.result.complete:
        raise UserError(f"{record.directory} is not finished, so there is no evidence to store")
    settings = record.settings
    result = record.result.model_dump(mode="json", exclude={"classes", "versions"})
    result["readouts"] = _rounded(result["readouts"])
    for task in result["per_task"]:
        del task["classes"], task["class_images"]
    values = {
        "evidence": 1,
        "settings": settings.model_dump(mode="json", exclude_none=True, exclude=_LOCAL_SETTINGS),
        "command": record.command,
        "finished": record.finished,
        "environment": {name: record.environment.get(name) for name in _ENVIRONMENT},
        "result": result,
    }
    identity = checksum({**settings.identity(), "tasks": settings.tasks})
    path = directory / f"{settings.name}-{identity[:8]}.json"
    write_bytes(path, (_lines({**values, CHECKSUM: checksum(values)}) + "\n").encode())
    return path


def _rounded(value: Any) -> Any:
    """With as many decimals as reports could show."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value


def _lines(value: Any, depth: int = 0) -> str:
    """JSON with a line for each entry of the outer tables, so that a changed entry is a changed line."""
    if not isinstance(value, dict) or depth == _LINE_DEPTH or not value:
        return json.dumps(value, allow_nan=False)
    indent = " " * (depth + 1)
    inner = ",\n".join(f"{indent}{json.dumps(name)}: {_lines(entry, depth + 1)}" for name, entry in value.items())
    return f"{{\n{inner}\n{' ' * depth}}}"


def find_records(paths: Sequence[Path]) -> tuple[list[RunRecord], list[str]]:
    """The runs at these paths, each once; and why some runs are left out. If there are no others, that is an error.

    A path is a run, an evidence file, a directory of either, or the directory of an experiment.
    """
    records: dict[str, RunRecord] = {}
    errors: dict[Path, UserError] = {}
    visited: set[Path] = set()
    for root in paths:
        inside = list(_run_paths(expand_user(root)))
        if not inside:
            raise UserError(f"no runs found in '{root}'; give runs, directories of runs, of suites, or of evidence")
        for path in inside:
            if path.resolve() in visited:
                continue
            visited.add(path.resolve())
            try:
                record = read_record(path)
            except UserError as error:
                errors[path] = error
                continue
            assert record.result is not None
            # A run and its evidence are one run; runs that were made twice differ in their time.
            records.setdefault(checksum([record.settings.identity(), record.result.seconds]), record)
    if not records:
        raise next(iter(errors.values()))
    return list(records.values()), [str(error) for error in errors.values()]


def _run_paths(path: Path) -> Iterator[Path]:
    """Run directories and evidence files at a path."""
    if os.path.isfile(path) or os.path.isfile(path / CONFIG):
        yield path
        return
    if not path.is_dir():
        raise UserError(f"there is nothing at '{path}'")
    if os.path.isfile(path / REPORT):
        yield from _reported_runs(path)
    for pattern in (f"*/{CONFIG}", f"{RUNS}/*/{CONFIG}"):
        yield from (config.parent for config in sorted(path.glob(pattern)))
    yield from (file for file in sorted(path.glob("*.json")) if _may_be_evidence(file))


def _reported_runs(directory: Path) -> Iterator[Path]:
    """The runs that a report names: relative to where the experiment was run, or to the working directory."""
    report = read_json(directory / REPORT)
    names = [
        name
        for table in _list_entry(report, "tables")
        for cell in _list_entry(table, "cells")
        for name in _list_entry(cell, "runs")
        if isinstance(name, str)
    ]
    for name in dict.fromkeys(names):
        paths = [directory.absolute().parents[1] / name, Path(name)]
        # A missing run is reported where it is read.
        yield next((path for path in paths if os.path.isfile(path / CONFIG)), paths[0])


def _list_entry(value: Any, name: str) -> list[Any]:
    entries = value.get(name) if isinstance(value, dict) else None
    return entries if isinstance(entries, list) else []


def _may_be_evidence(file: Path) -> bool:
    with suppress(UserError):
        values = read_json(file)
        return isinstance(values, dict) and "evidence" in values
    # A damaged file is reported where it is read.
    return file.name != REPORT

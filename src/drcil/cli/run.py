"""drcil run, resume, show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UserError
from ..files import read_toml
from ..process import find_process_info
from ..registry import use_plugins
from ..settings import CONFIG, FORMAT, EngineSettings, RunSettings
from . import options
from .console import console, flush_output, print_json
from .options import Json, Metric, Plugin, Quiet, RunPath, argument, takes, usable

METHOD, STREAM = "mafdrc", "digits-b0-5"
"""Defaults of METHOD and STREAM."""


@takes(RunSettings, leave_out=("method", "stream"))
def run(
    values: dict[str, Any],
    method: Annotated[str | None, argument("method", METHOD)] = None,
    stream: Annotated[str | None, argument("stream", STREAM)] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Start from the settings of another run, its config.toml; other options override them.",
            rich_help_panel="Experiment",
            callback=usable,
        ),
    ] = None,
    out: Annotated[Path | None, options.out("The run directory.", "runs/NAME")] = None,
    plugin: Plugin = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn a stream with a method, in a new run directory."""
    info = find_process_info()
    if out is None and info is not None and info.launcher != "drcil":
        raise UserError(f"--out is required under {info.launcher}: all processes use one run directory")
    from ..runs.plan import complete
    from ..train.launch import process_group
    from .training import begin_run, make_plan, train

    stored = {} if config is None else read_config(config)
    if method is not None:
        stored.pop("readout", None)
    named = {name: value for name, value in (("method", method), ("stream", stream)) if value is not None}
    engine = {name: values.pop(name) for name in [*values] if name in EngineSettings.model_fields}
    requested = {"method": METHOD, "stream": STREAM, **stored, **named, **values}
    requested["settings"] = {**stored.get("settings", {}), **values.get("settings", {})}
    requested["engine"] = {**stored.get("engine", {}), **engine}
    settings = complete(RunSettings.parse(requested, flags=True))
    with process_group(settings.engine):
        plan = make_plan(settings)
        train(begin_run(settings, out, plan), plan, json=json, quiet=quiet)


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a ``config.toml``, or in that of a run directory; the run's plugins are loaded."""
    stored = read_toml(path / CONFIG if path.is_dir() else path)
    if stored.get("format") != FORMAT:
        raise UserError(f"{path} is not the {CONFIG} of a run that this version of drcil reads (format {FORMAT})")
    use_plugins(*RunSettings.parse(stored).plugins)
    return stored


@takes(RunSettings, only=("devices", "timeout"))
def resume(
    values: dict[str, Any], directory: RunPath, plugin: Plugin = None, json: Json = False, quiet: Quiet = False
) -> None:
    """Continue an interrupted run. The result is the same as without the interruption."""
    from ..runs.execution import Run
    from ..train.launch import process_group
    from .training import make_plan, print_result, require_visible, train

    run = Run.open(directory)
    if run.is_finished and not os.access(directory, os.W_OK):
        # A finished run is not written, so it may be read-only.
        print_result(run.result(), run, console(stderr=json), json=json, quiet=quiet)
        return
    engine = EngineSettings.parse({**run.settings.engine.model_dump(), **values}, flags=True)
    run.settings = run.settings.model_copy(update={"engine": engine})
    with process_group(run.settings.engine):
        require_visible(directory.absolute())
        train(run, make_plan(run.settings), json=json, quiet=quiet)


def show(
    directory: RunPath,
    readout: Annotated[str | None, typer.Option(help="Readout to show first.", show_default="the run's")] = None,
    metric: Metric = None,
    plugin: Plugin = None,
    json: Json = False,
) -> None:
    """Show the figures of a run, finished or not."""
    from ..experiments.writers import summary_table, task_table, title
    from ..metrics import require_figure
    from ..runs.execution import Run

    run = Run.read(directory)
    result = run.result() if readout is None else run.result().led_by(readout)
    if metric is not None:
        result = result.model_copy(update={"metric": require_figure(metric)})
    if json:
        print_json(result.to_json())
    else:
        screen = console()
        screen.print(title(result), markup=False, soft_wrap=True)
        screen.print(task_table(result))
        screen.print(summary_table(result))
        if not result.complete:
            plugins = "".join(f" --plugin {name}" for name in run.settings.plugins)
            hint = f"not finished; continue with 'drcil resume {directory}{plugins}'"
            screen.print(hint, markup=False, soft_wrap=True)
    flush_output()

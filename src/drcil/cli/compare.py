"""``drcil compare``: several methods on one stream, over several seeds, in one table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import Interrupted, UserError
from . import options
from .output import console, print_json
from .run import method_settings, run_arguments

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from ..runs.settings import RunSettings


def compare(
    methods: Annotated[list[str], typer.Argument(metavar="METHOD...", help="See 'drcil list methods'.")],
    stream: options.Stream,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each method: seeds 0, 1, …", rich_help_panel=options.WHAT)
    ] = 1,
    order_seed: options.OrderSeed = None,
    memory: options.Memory = None,
    backbone: options.Backbone = None,
    data: options.Data = None,
    tasks: options.Tasks = None,
    image_size: options.ImageSize = None,
    epochs_scale: options.EpochsScale = None,
    profile: options.Profile = None,
    augment: options.Augment = None,
    validation: options.Validation = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting that all methods have.", rich_help_panel=options.WHAT
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.", rich_help_panel=options.WHERE)] = 1,
    device: options.Device = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    workers: options.Workers = None,
    cache: options.Cache = None,
    compile: options.Compile = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A directory for the tables, with the runs below it.",
            show_default="comparisons/NAME, and runs",
            rich_help_panel=options.SHOWN,
        ),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare methods on a stream. Runs that are finished are read, those that were stopped go on."""
    from ..report.comparison import Outcome, comparison_table, summarise
    from ..runs.run import RUNS
    from ..suites.compare import carry_out, plan_entries, start_process
    from ..suites.folder import CURVES, LOGS, TABLE, find_place, open_folder, write_folder
    from ..suites.reuse import present_settings

    require_once(methods)
    chosen = [
        options.chosen_settings(
            method=method,
            stream=stream,
            seed=seed,
            order_seed=order_seed,
            memory=memory if may_choose_memory(method) else None,
            backbone=backbone,
            data=data,
            tasks=tasks,
            image_size=image_size,
            epochs_scale=epochs_scale,
            profile=profile,
            augment=augment,
            validation=validation,
            settings=method_settings(None, None, settings or []),
            device=device,
            precision=precision,
            threads=threads,
            workers=workers,
            cache=cache,
            compile=compile,
        )
        # The first seed of all methods, then the second: half a comparison is one too.
        for seed in range(seeds)
        for method in methods
    ]
    for one in chosen:
        # What is wrong with one of them is said before there is a directory.
        present_settings(one)
    question = {**chosen[0].choices(), "memory": memory, "tasks": tasks, "methods": methods, "seeds": seeds}
    del question["method"], question["seed"]
    place = out or find_place(Path("comparisons") / chosen[0].matter, question)
    screen = console(stderr=json)
    with open_folder(place, question):
        entries = plan_entries([share_cores(one, jobs) for one in chosen], (out or Path()) / RUNS)
        try:
            with showing(screen, quiet) as display:
                for entry in entries:
                    if entry.result is not None:
                        display.say(f"{entry.name}: finished before, in {entry.directory}")
                carry_out(entries, jobs, lambda entry: start_process(entry, run_arguments, place / LOGS), display)
        except KeyboardInterrupt:
            raise Interrupted("stopped; the same command goes on from here") from None
        summaries = summarise(
            [
                Outcome(entry.settings.method, entry.settings.seed, str(entry.directory), entry.result, entry.failure)
                for entry in entries
            ]
        )
        answer = write_folder(place, question, summaries)
    if json:
        print_json(answer)
    if not (json and quiet):
        screen.print(comparison_table(summaries))
        for summary in summaries:
            if summary.note:
                screen.print(f"{summary.method}: {summary.note}", markup=False, soft_wrap=True)
        curves = f", curves: {place / CURVES}" if (place / CURVES).exists() else ""
        screen.print(f"table: {place / TABLE}{curves}", markup=False, soft_wrap=True)
    if any(entry.failure is not None for entry in entries):
        raise typer.Exit(1)


def require_once(methods: Sequence[str]) -> None:
    """No name is given twice."""
    for method in methods:
        if methods.count(method) > 1:
            raise UserError(f"'{method}' is given {methods.count(method)} times; name each method once")


def may_choose_memory(method: str) -> bool:
    """A lower bound has no memory and an upper bound has all images, whatever the others get."""
    from ..methods import METHODS

    return METHODS[method].build.memory is None


def share_cores(settings: RunSettings, jobs: int) -> RunSettings:
    """Runs at the same time share the cores, unless it is said how many each may use."""
    if jobs == 1 or settings.engine.threads is not None:
        return settings
    threads = max(1, (os.cpu_count() or 1) // jobs)
    return settings.model_copy(update={"engine": settings.engine.model_copy(update={"threads": threads})})


class Board:
    """Lines for what is done; on a terminal a live line for each run under way, elsewhere a line for each task."""

    def __init__(self, screen: Console, live: Live | None, quiet: bool) -> None:
        self._screen, self._live, self._quiet = screen, live, quiet

    def say(self, line: str) -> None:
        if not self._quiet:
            self._screen.print(line, markup=False, soft_wrap=True)

    def step(self, line: str) -> None:
        if self._live is None:
            self.say(line)

    def show(self, lines: Sequence[str]) -> None:
        from rich.text import Text

        if self._live is not None:
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))


@contextmanager
def showing(screen: Console, quiet: bool) -> Iterator[Board]:
    from rich.live import Live

    if quiet or not screen.is_terminal:
        yield Board(screen, None, quiet)
        return
    with Live(console=screen, transient=True) as live:
        yield Board(screen, live, quiet)

"""``drcil compare``: several methods on one stream, over several seeds, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .chosen import chosen_settings, method_settings
from .output import console, print_json


def compare(
    methods: Annotated[list[str], typer.Argument(metavar="METHOD...", help="See 'drcil list methods'.")],
    stream: options.Stream,
    seeds: options.Seeds = None,
    order_seed: options.OrderSeed = None,
    memory: options.Memory = None,
    backbone: options.Backbone = None,
    weights: options.WeightsFile = None,
    pretrained: options.Pretrained = False,
    freeze: options.Freeze = None,
    data: options.Data = None,
    tasks: options.Tasks = None,
    image_size: options.ImageSize = None,
    epochs_scale: options.EpochsScale = None,
    schedule: options.Schedule = None,
    profile: options.Profile = None,
    augment: options.Augment = None,
    validation: options.Validation = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting that all methods share; repeatable.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
    jobs: options.Jobs = None,
    engine: options.Engine = "local",
    ray_address: options.RayAddress = None,
    cpus_per_run: options.CpusPerRun = None,
    gpus_per_run: options.GpusPerRun = None,
    device: options.Device = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    workers: options.Workers = None,
    cache: options.Cache = None,
    compile: options.Compile = False,
    devices: options.Devices = None,
    accumulate: options.Accumulate = None,
    sync_batchnorm: options.SyncBatchnorm = None,
    timeout: options.Timeout = None,
    out: Annotated[
        Path | None, options.out("Directory for the tables and the runs.", "comparisons/NAME, and runs")
    ] = None,
    metric: options.Metric = None,
    log: options.Log = None,
    plugin: options.Plugin = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare methods on a stream. Finished runs are reused; interrupted runs resume."""
    from ..metrics import require_figure
    from ..report.comparison import comparison_table, summarise
    from ..report.figures import Shown
    from ..runs.begin import RUNS
    from ..runs.plan import load_stream, require_part, require_tasks
    from ..runs.result import leading_metric
    from ..suites.comparison import COMPARISON, CURVES, PAGE, TABLE, write_comparison
    from ..suites.datasets import Datasets
    from ..suites.engines import ENGINES, Request
    from ..suites.entries import Wanted, may_choose_memory, plan_entries, require_once, share_cores
    from ..suites.folder import LOGS
    from ..suites.reuse import KnownRuns, present_settings
    from .many import finish_runs, opened
    from .training import warn_of_skipped

    require_once(methods)
    workshop = ENGINES[engine](Request(jobs, cpus_per_run, gpus_per_run, ray_address, device))
    shown = Shown.on(stream, require_figure(metric or leading_metric(stream)))
    first = [
        chosen_settings(
            method=method,
            stream=stream,
            seed=0,
            order_seed=order_seed,
            memory=memory if may_choose_memory(method) else None,
            backbone=backbone,
            weights=weights,
            pretrained=pretrained,
            freeze=freeze,
            data=data,
            tasks=tasks,
            image_size=image_size,
            epochs_scale=epochs_scale,
            schedule=schedule,
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
            log=log,
            devices=devices,
            accumulate=accumulate,
            sync_batchnorm=sync_batchnorm,
            timeout=timeout,
        )
        for method in methods
    ]
    count = seeds or 1
    # The first seed of all methods, then the second: half a comparison is one too.
    chosen = [one.model_copy(update={"seed": seed}) for seed in range(count) for one in first]
    for one in first:
        # What is wrong with one of them is said before there is a directory.
        present_settings(one)
    question = {**chosen[0].choices(), "memory": memory, "tasks": tasks, "methods": methods, "seeds": count}
    del question["method"], question["seed"]
    place = out or COMPARISON.find_place(Path("comparisons") / chosen[0].matter, question)
    screen = console(stderr=json)
    datasets = Datasets(warn_of_skipped)
    dataset = datasets.at_hand(first[0]) if tasks is not None or freeze is not None else None
    if dataset is not None:
        stream_now = load_stream(first[0], dataset)
        require_tasks(first[0], stream_now)
        for one in first:
            require_part(one, stream_now)
    runs, threads = (out or Path()) / RUNS, workshop.threads
    wanted = [Wanted(name, share_cores(one, threads)) for name, one in zip(methods * count, chosen, strict=True)]
    with opened(workshop, True, [runs, place]) as at_a_time, COMPARISON.opened(place, question):
        entries = list(plan_entries(wanted, runs, KnownRuns(runs), datasets).values())
        finish_runs(entries, at_a_time, datasets, place / LOGS, screen, quiet, workshop)
        summaries = summarise(
            [entry.outcome(method) for method in methods for entry in entries if method in entry.readings], shown
        )
        answer = write_comparison(place, question, summaries)
    if json:
        print_json(answer)
    if not (json and quiet):
        screen.print(comparison_table(summaries))
        for summary in summaries:
            if summary.note:
                screen.print(f"{summary.method}: {summary.note}", markup=False, soft_wrap=True)
        curves = f", curves: {place / CURVES}" if (place / CURVES).exists() else ""
        screen.print(f"table: {place / TABLE}{curves}, page: {place / PAGE}", markup=False, soft_wrap=True)
    if any(entry.failure is not None for entry in entries):
        raise typer.Exit(1)

"""``drcil run``: learn a stream with a method, in a new run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..limits import EVERY, SEED
from . import options
from .checks import within
from .chosen import chosen_settings, method_settings, require_pipeline

METHOD, STREAM = "mafdrc", "digits-b0-5"
"""What is run when nothing is named."""


def run(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="See 'drcil list methods'.")] = METHOD,
    stream: options.Stream = STREAM,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of the training.", show_default="0", rich_help_panel=options.WHAT, callback=within(SEED)
        ),
    ] = None,
    order_seed: options.OrderSeed = None,
    memory: options.Memory = None,
    backbone: options.Backbone = None,
    weights: options.WeightsFile = None,
    pretrained: options.Pretrained = False,
    freeze: options.Freeze = None,
    head: Annotated[
        str | None, typer.Option(help="Head of a pipeline; see 'drcil list heads'.", rich_help_panel=options.WHAT)
    ] = None,
    remedy: Annotated[
        str | None,
        typer.Option(
            help="Remedies of a pipeline, joined by commas, or none; see 'drcil list addons'.",
            rich_help_panel=options.WHAT,
        ),
    ] = None,
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
            "--set", metavar="KEY=VALUE", help="A setting of the method; repeatable.", rich_help_panel=options.WHAT
        ),
    ] = None,
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
    out: Annotated[Path | None, options.out("The run directory.", "runs/NAME")] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(
            metavar="EPOCHS",
            help="Also evaluate every so many epochs.",
            rich_help_panel=options.SHOWN,
            callback=within(EVERY),
        ),
    ] = None,
    log: options.Log = None,
    plugin: options.Plugin = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Learn a stream with a method, in a new run directory."""
    from .spreading import begun_together, in_team
    from .training import make_plan, train

    require_pipeline(method, head, remedy)
    chosen = chosen_settings(
        method=method,
        stream=stream,
        seed=seed,
        order_seed=order_seed,
        memory=memory,
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
        settings=method_settings(head, remedy, settings or []),
        device=device,
        precision=precision,
        threads=threads,
        workers=workers,
        cache=cache,
        compile=compile,
        eval_every=eval_every,
        log=log,
        devices=devices,
        accumulate=accumulate,
        sync_batchnorm=sync_batchnorm,
        timeout=timeout,
    )
    with in_team(chosen.engine) as team:
        plan = make_plan(chosen)
        train(begun_together(chosen, out, plan, team), plan, team, json=json, quiet=quiet)

"""``drcil check``: the laws that hold for every method, tried on one of them."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options
from .chosen import chosen_settings
from .output import console


def check(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="See 'drcil list methods'.")],
    laws: Annotated[
        list[str] | None,
        typer.Option("--law", metavar="NAME", help="Check only this law; repeatable.", show_default="all"),
    ] = None,
    backbone: options.Backbone = None,
    freeze: options.Freeze = None,
    data: options.Data = None,
    stream: Annotated[str, typer.Option(metavar="STREAM", help="Three tasks of this stream.")] = "digits-b0-5",
    plugin: options.Plugin = None,
) -> None:
    """Check that a method keeps the laws of all methods: memory, frozen parts, predictions, saving, resuming.

    Exit code 1 if one is broken.
    """
    from ..process import configure
    from ..runs.plan import require_part, require_tasks
    from ..testing import BrokenLaw, check_method
    from ..testing.trial import TASKS
    from .training import load

    names = {"method": method, "stream": stream, "backbone": backbone, "freeze": freeze}
    chosen = chosen_settings(**names, tasks=TASKS, data=data, compile=False, log=None)
    # What is wrong with a name or the data is no fault of the method.
    present = load(chosen)
    require_tasks(chosen, present)
    require_part(chosen, present)
    configure(threads=1)
    screen = console()

    def tell(law: str, failure: BrokenLaw | None) -> None:
        screen.print(f"{law}: {'holds' if failure is None else f'BROKEN: {failure}'}", markup=False, soft_wrap=True)

    try:
        check_method(
            method,
            laws or None,
            told=tell,
            stream=stream,
            backbone=backbone,
            freeze=freeze,
            data=chosen.data,
        )
    except BrokenLaw:
        raise typer.Exit(1) from None

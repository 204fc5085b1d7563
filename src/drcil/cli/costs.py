"""What the verbs that tell costs share: measuring, while it is shown what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .output import console

if TYPE_CHECKING:
    from ..suites.cost import Costs
    from ..suites.paces import Paces

_WORDS = 70
"""Characters of what is being measured."""


@contextmanager
def measuring(paces: Paces) -> Iterator[Costs]:
    """Costs of runs; what is not known of this machine is measured, and shown on standard error."""
    from ..process import configure
    from ..suites.cost import Costs

    # As processes do that train.
    configure()
    screen, kinds = console(stderr=True), 0
    with screen.status("rehearsing runs") as status:

        def told(kind: str) -> None:
            nonlocal kinds
            if not kinds and not screen.is_terminal:
                screen.print("measuring how fast this machine trains, a few steps of each kind", soft_wrap=True)
            kinds += 1
            short = kind if len(kind) <= _WORDS else f"{kind[:_WORDS]}…"
            status.update(f"measuring how fast this machine trains, kind {kinds}: {short}".replace("[", r"\["))

        yield Costs(paces, told)

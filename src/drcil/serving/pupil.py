"""``python -m drcil.serving.pupil``: the process that learns while the server answers with the old model.

It is told what to learn in one JSON argument, and tells how it goes on standard output, a JSON object per line. Killed
at any moment it leaves the old model or the new one. Asked to end (SIGTERM) it gives the lesson up; where all is learnt
and only to be written, it goes on, so that its exit code says which model there is. It ends when its parent does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..errors import UserError
from ..learner import Learner
from ..process import configure, end_with_parent
from ..report.forecast import Forecast
from ..teaching.learn import learn
from ..train import Journal, engine_settings
from ..train.events import Event, Listener, StageDone, StageStarted, StepDone

_NICE = 5
"""How far it steps back behind the server, so that predictions stay quick."""
_HELD_OUT = 0.1


class _Telling:
    """Listens to training, and tells which share of the work is done and what is left."""

    def __init__(self, work: Sequence[Sequence[int]]) -> None:
        self._forecast, self._total, self._done = Forecast(work), sum(map(sum, work)), 0
        self._stage, self._stage_work = "", 0

    def __call__(self, event: Event) -> None:
        self._forecast(event)
        if isinstance(event, StageStarted):
            self._stage, self._stage_work = event.stage, event.epochs * event.images
            self._done += event.first_epoch * event.images
        elif isinstance(event, StepDone):
            self._done += event.images
            if event.losses is None:  # They come about twice a second, which is often enough.
                return
        elif not isinstance(event, StageDone):
            return
        share = min(1.0, self._done / self._total) if self._total else None
        _tell(event="progress", stage=self._stage, share=share, left=self._forecast.seconds_left())


@contextmanager
def _showing(work: Sequence[Sequence[int]]) -> Iterator[Listener]:
    yield _Telling(work)


def _tell(**what: Any) -> None:
    # Who listened may be gone; the lesson is not lost by that.
    with suppress(OSError):
        print(json.dumps(what), flush=True)


def _make(listener: Listener, journal: Journal) -> Learner:
    raise UserError("the model is gone")


def _finish() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Carry out one lesson."""
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=end_with_parent, daemon=True).start()
    order = json.loads(sys.argv[1])
    with suppress(OSError, AttributeError):
        os.nice(_NICE)
    try:
        configure(order["threads"])
        lesson = learn(
            Path(order["model"]),
            Path(order["table"]),
            _make,
            engine_settings({"device": order["device"], "workers": 0}),
            validation=_HELD_OUT,
            known="refresh",
            showing=_showing,
            settling=_finish,
        )
    except KeyboardInterrupt:
        return 130
    except (UserError, OSError, MemoryError) as error:
        _tell(event="failed", why=str(error) or "not enough memory")
        return 1
    if not lesson.new and not lesson.refreshed:
        _tell(event="failed", why="the model has learnt from these images before")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

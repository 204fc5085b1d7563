"""``drcil predict``: which classes images show, a line for each."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UserError
from ..limits import BATCH, SHARE, THREADS, TOP, WORKERS
from .checks import known_device, usable, within
from .options import Plugin
from .output import console
from .words import require_printed

if TYPE_CHECKING:
    from ..models.predictor import Prediction, Predictor

UNKNOWN = "unknown"
"""The class of an image whose best class is not probable enough."""
_LIST = Path("-")


def predict(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A model directory, or a run: its last task.", callback=usable)
    ],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE|FOLDER|-...",
            help="Image files; folders of them; '-': a list of paths from standard input.",
            callback=usable,
        ),
    ],
    top: Annotated[int, typer.Option(help="Classes per image.", callback=within(TOP))] = 1,
    threshold: Annotated[
        float,
        typer.Option(
            metavar="PROBABILITY",
            help="Answer 'unknown' where no class is as probable as this.",
            callback=within(SHARE),
        ),
    ] = 0.0,
    json_lines: Annotated[bool, typer.Option("--json", help="Print a JSON object per image.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
    readout: Annotated[str | None, typer.Option(help="Readout to ask.", show_default="the model's first")] = None,
    batch: Annotated[int, typer.Option(help="Images per pass through the net.", callback=within(BATCH))] = 64,
    workers: Annotated[int, typer.Option(help="Threads that decode images.", callback=within(WORKERS))] = 2,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.", callback=known_device)] = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of the net.", show_default="all cores", callback=within(THREADS))
    ] = None,
    plugin: Plugin = None,
) -> int:
    """Tell the classes of images. Exit code 1 if a file is missing or could not be read; all others are answered."""
    if json_lines and as_csv:
        raise UserError("give --json or --csv, not both")
    if images.count(_LIST) > 1:
        raise UserError("standard input can be read once; give '-' once")
    _require_some(images)

    from ..data.pictures import Unreadable
    from ..models.predictor import load_predictor
    from ..process import configure

    configure(threads)
    predictor = load_predictor(model, device=device, workers=workers)
    if threshold > 0:
        print(f"drcil: {_rejection(threshold, predictor, readout)}", file=sys.stderr)
    write = _json if json_lines else _csv if as_csv else _line
    if as_csv:
        numbers = range(1, min(top, len(predictor.classes)) + 1)
        print(_row(["file", *(f"{what}{number}" for number in numbers for what in ("class", "probability"))]))
    failed = 0
    with _counted(images) as paths:
        for answer in predictor.predict_files(paths, top, readout, batch):
            if isinstance(answer, Unreadable):
                failed += 1
                print(f"drcil: {answer.file} cannot be read as an image: {answer.why}", file=sys.stderr)
            else:
                print(write(answer, answer.probability >= threshold))
                # At once: whoever reads along may have had enough.
                require_printed()
    require_printed()
    if failed:
        print(f"drcil: {failed} file{'s' if failed > 1 else ''} could not be read", file=sys.stderr)
    return 1 if failed else 0


def _require_some(places: list[Path]) -> None:
    """Something that was given must be there. What else is missing is told file by file; a list may be empty."""
    if _LIST in places:
        return
    if not any(map(os.path.exists, places)):
        few = f"{places[0]}" if len(places) == 1 else f"{places[0]}, nor any of the {len(places) - 1} others"
        raise UserError(f"there is no image file or folder {few}")
    if next(_found(places), None) is None:
        raise UserError(f"there are no image files in {', '.join(map(str, places))}")


def _rejection(threshold: float, predictor: Predictor, readout: str | None) -> str:
    """What the threshold does to images of known classes, as far as those that were held out tell."""
    from ..models.usage import STEPS

    known = predictor.calibration if readout in (None, predictor.readouts[0]) else None
    if known is None:
        return "what the threshold rejects of known classes is not known: no images of them were held out"
    step = round(STEPS * threshold) / STEPS
    bound = "it" if math.isclose(step, threshold) else f"{step:g}, the hundredth next to it"
    below = f"{100 * known.rejected(step):.1f} % are below {bound}"
    said = f"threshold {threshold:g}: of {known.images} held-out images of known classes, {below}"
    right = known.accuracy(step)
    return said if right is None else f"{said}; of the others {right:.1f} % are classified right"


def _found(places: Iterable[Path]) -> Iterator[Path]:
    """The files that are meant, in the order of what was given."""
    from ..data.pictures import picture_files

    for place in places:
        if place == _LIST:
            yield from (Path(line.rstrip("\r\n")) for line in sys.stdin if line.strip())
        else:
            yield from picture_files(place)


@contextmanager
def _counted(places: list[Path]) -> Iterator[Iterator[Path]]:
    """The files that are meant, with a bar that shows how many are done where the answers go elsewhere."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        # Lines that appear one after the other are progress enough.
        yield _found(places)
        return
    from rich.progress import track

    total = None if _LIST in places else sum(1 for _ in _found(places))
    yield iter(track(_found(places), total=total, console=console(stderr=True), description="images", transient=True))


def _line(answer: Prediction, certain: bool) -> str:
    classes = ", ".join(
        f"{name} {100 * likely:.1f} %" for name, likely in zip(answer.classes, answer.probabilities, strict=True)
    )
    return f"{answer.file}: {classes}" if certain else f"{answer.file}: {UNKNOWN} ({classes})"


def _json(answer: Prediction, certain: bool) -> str:
    ranked = zip(answer.classes, answer.probabilities, strict=True)
    classes = [{"class": name, "probability": round(likely, 6)} for name, likely in ranked]
    found = {"file": answer.file, "label": answer.label if certain else None, "classes": classes}
    return json.dumps(found)


def _csv(answer: Prediction, certain: bool) -> str:
    ranked = list(zip(answer.classes, answer.probabilities, strict=True))
    if not certain:
        ranked[0] = (UNKNOWN, ranked[0][1])
    return _row([answer.file or "", *(str(part) for name, likely in ranked for part in (name, round(likely, 6)))])


def _row(cells: list[str]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(cells)
    return written.getvalue()

"""drcil predict, evaluate."""

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
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError
from ..settings import RunSettings
from .console import console, flush_output, print_json
from .options import ModelPath, PlainJson, Plugin, takes, usable

if TYPE_CHECKING:
    from rich.table import Table

    from ..models.predictor import Prediction, Predictor
    from ..runs.evaluation import Evaluation


UNKNOWN = "unknown"
"""The class of an image whose best class is not probable enough."""
_LIST = Path("-")


@takes(RunSettings, only=("device", "threads"), panels=False)
def predict(
    values: dict[str, Any],
    model: ModelPath,
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE|FOLDER|-...",
            help="Image files; folders of them; '-': a list of paths from standard input.",
            callback=usable,
        ),
    ],
    top: Annotated[int, typer.Option(help="Classes per image.", min=1, max=2**31 - 1)] = 1,
    threshold: Annotated[
        float,
        typer.Option(
            metavar="PROBABILITY",
            help="Answer 'unknown' where no class is as probable as this.",
            min=0.0,
            max=1.0,
        ),
    ] = 0.0,
    json_lines: Annotated[bool, typer.Option("--json", help="Print a JSON object per image.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
    readout: Annotated[str | None, typer.Option(help="Readout to ask.", show_default="the model's first")] = None,
    batch: Annotated[int, typer.Option(help="Images per pass through the net.", min=1, max=2**20)] = 64,
    workers: Annotated[int, typer.Option(help="Threads that decode images.", min=0, max=256)] = 2,
    plugin: Plugin = None,
) -> int:
    """Tell the classes of images. Exit code 1 if a file is missing or could not be read; all others are answered."""
    if json_lines and as_csv:
        raise UserError("give --json or --csv, not both")
    if images.count(_LIST) > 1:
        raise UserError("standard input can be read once; give '-' once")
    if math.isnan(threshold):
        raise UserError("--threshold takes a probability from 0 to 1, not nan")
    _require_some(images)

    from ..data.user_images import Unreadable
    from ..models.predictor import load_predictor
    from ..process import configure

    configure(values.get("threads"))
    predictor = load_predictor(model, device=values.get("device", "auto"), workers=workers)
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
                # Flush each line: the reader may stop early.
                flush_output()
    flush_output()
    if failed:
        print(f"drcil: {failed} file{'s' if failed > 1 else ''} could not be read", file=sys.stderr)
    return 1 if failed else 0


def _require_some(paths: list[Path]) -> None:
    """Check that at least one path exists. Other missing files are reported one by one; a list may be empty."""
    if _LIST in paths:
        return
    if not any(map(os.path.exists, paths)):
        missing = f"{paths[0]}" if len(paths) == 1 else f"{paths[0]}, nor any of the {len(paths) - 1} others"
        raise UserError(f"there is no image file or folder {missing}")
    if next(_image_files(paths), None) is None:
        raise UserError(f"there are no image files in {', '.join(map(str, paths))}")


def _rejection(threshold: float, predictor: Predictor, readout: str | None) -> str:
    """The effect of the threshold on held-out images of known classes."""
    from ..models.usage import STEPS

    calibration = predictor.calibration if readout in (None, predictor.readouts[0]) else None
    if calibration is None:
        return "what the threshold rejects of known classes is not known: no images of them were held out"
    step = round(STEPS * threshold) / STEPS
    bound = "it" if math.isclose(step, threshold) else f"{step:g}, the hundredth next to it"
    below = f"{100 * calibration.rejected(step):.1f} % are below {bound}"
    text = f"threshold {threshold:g}: of {calibration.images} held-out images of known classes, {below}"
    right = calibration.accuracy(step)
    return text if right is None else f"{text}; accuracy on the others: {right:.1f} %"


def _image_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The image files of all paths, in order."""
    from ..data.user_images import picture_files

    for path in paths:
        if path == _LIST:
            yield from (Path(line.rstrip("\r\n")) for line in sys.stdin if line.strip())
        else:
            yield from picture_files(path)


@contextmanager
def _counted(paths: list[Path]) -> Iterator[Iterator[Path]]:
    """The image files, with a progress bar if the answers are not printed to the terminal."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        # The printed lines show the progress.
        yield _image_files(paths)
        return
    from rich.progress import track

    total = None if _LIST in paths else sum(1 for _ in _image_files(paths))
    yield iter(
        track(_image_files(paths), total=total, console=console(stderr=True), description="images", transient=True)
    )


def _line(answer: Prediction, certain: bool) -> str:
    classes = ", ".join(
        f"{name} {100 * probability:.1f} %"
        for name, probability in zip(answer.classes, answer.probabilities, strict=True)
    )
    return f"{answer.file}: {classes}" if certain else f"{answer.file}: {UNKNOWN} ({classes})"


def _json(answer: Prediction, certain: bool) -> str:
    ranked = zip(answer.classes, answer.probabilities, strict=True)
    classes = [{"class": name, "probability": round(probability, 6)} for name, probability in ranked]
    values = {"file": answer.file, "label": answer.label if certain else None, "classes": classes}
    return json.dumps(values)


def _csv(answer: Prediction, certain: bool) -> str:
    ranked = list(zip(answer.classes, answer.probabilities, strict=True))
    if not certain:
        ranked[0] = (UNKNOWN, ranked[0][1])
    return _row(
        [answer.file or "", *(str(part) for name, probability in ranked for part in (name, round(probability, 6)))]
    )


def _row(cells: list[str]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="").writerow(cells)
    return written.getvalue()


@takes(
    RunSettings,
    only=("order_seed", "data", "device", "threads"),
    defaults={"order_seed": "the run's, else 1993"},
    panels=False,
)
def evaluate(
    values: dict[str, Any],
    model: ModelPath,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream whose first tasks it has learnt.")],
    readout: Annotated[
        str | None, typer.Option(help="Readout to evaluate.", show_default="the run's, else the first")
    ] = None,
    plugin: Plugin = None,
    json: PlainJson = False,
) -> None:
    """Measure a model on the test images of the tasks it has learnt."""
    from dataclasses import asdict

    from ..process import configure
    from ..runs.evaluation import evaluate as measure

    configure(values.get("threads"))
    evaluation = measure(
        model,
        stream,
        data_dir=Path(values["data"]) if "data" in values else None,
        order_seed=values.get("order_seed"),
        readout=readout,
        device=values.get("device", "auto"),
    )
    if json:
        print_json(asdict(evaluation))
    else:
        screen = console()
        screen.print(
            f"{evaluation.model} on {evaluation.stream}, readout {evaluation.readout}", markup=False, soft_wrap=True
        )
        screen.print(_table(evaluation))
    flush_output()


def _table(evaluation: Evaluation) -> Table:
    """A row per task, and one for all their test images."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, header_style="bold", pad_edge=False)
    for name in ("task", "accuracy", "correct", "top 5"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, accuracy in enumerate(evaluation.per_task, start=1):
        table.add_row(str(number), f"{accuracy:.2f}")
    table.add_section()
    table.add_row(
        "all", f"{evaluation.accuracy:.2f}", f"{evaluation.correct} of {evaluation.total}", f"{evaluation.top5:.2f}"
    )
    return table

"""Accuracy of a saved model on the test images of a stream."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import UserError
from ..files import restore_replaced
from ..inference import Inference, find_device
from ..metrics import History, TaskPrediction, top5
from ..models.model_directory import read_model
from ..models.model_format import STATE
from ..models.predictor import Predictor
from ..settings import CONFIG
from ..streams.protocols import ORDER_SEED
from ..streams.stream import make_stream
from .execution import Run
from .plan import require_match


@dataclass(frozen=True)
class Evaluation:
    """What a readout of a model gets right. Accuracies are in percent."""

    accuracy: float
    correct: int
    total: int
    top5: float
    """An image counts if its class is among the five best."""
    per_task: tuple[float, ...]
    """Accuracy on the test images of each task, among all classes learnt."""
    readout: str
    model: str
    stream: str


def evaluate(
    path: Path,
    stream: str,
    *,
    data_dir: Path | None = None,
    order_seed: int | None = None,
    readout: str | None = None,
    device: str = "auto",
) -> Evaluation:
    """Measure a model, or the last finished task of a run, by its leading readout or another."""
    model, known_seed, leading = find_model(path)
    learnt = read_model(model)
    seed = known_seed if order_seed is None else order_seed
    loaded = make_stream(stream, data_dir=data_dir, order_seed=seed)
    require_match(learnt, loaded, seed)
    if loaded.dataset.test.shape.size != learnt.shape.size:
        loaded = make_stream(stream, data_dir=data_dir, order_seed=seed, image_size=learnt.shape.size)
    predictor = Predictor.from_model(learnt, Inference(find_device(device), learnt.data.mean, learnt.data.std))
    name = readout or leading or predictor.readouts[0]
    test = loaded.task(len(learnt.sizes)).test
    best = predictor.rank(test, 5, [name])[name].classes.numpy()
    task = np.repeat(np.arange(len(learnt.sizes)), learnt.sizes)[test.labels]

    def measured(selected: npt.NDArray[np.bool_]) -> History:
        # All classes count as one task: what a model answers is measured, not how it came to.
        return History([TaskPrediction(test.labels[selected], best[selected])], [sum(learnt.sizes)])

    overall = measured(np.ones(len(test), dtype=np.bool_))
    return Evaluation(
        accuracy=overall.accuracies[0],
        correct=int((best[:, 0] == test.labels).sum()),
        total=len(test),
        top5=top5(overall)[0],
        per_task=tuple(measured(task == number).accuracies[0] for number in range(len(learnt.sizes))),
        readout=name,
        model=str(path),
        stream=stream,
    )


def find_model(path: Path) -> tuple[Path, int, str | None]:
    """The model directory at a path, which may be a run's; the seed of the class order it learnt; the run's readout."""
    restore_replaced(path.absolute())
    if os.path.isfile(path / STATE):
        return path, ORDER_SEED, None
    if not os.path.isfile(path / CONFIG):
        raise UserError(f"{path} is neither a model nor a run: it has no {STATE} and no {CONFIG}")
    run = Run.open(path)
    finished = run.tasks()
    if not finished:
        raise UserError(f"{path} has no model yet: its first task is not finished")
    return finished[-1].directory, run.settings.order_seed, run.settings.readout

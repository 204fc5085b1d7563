"""The model format: a directory with weights, exemplars, and one JSON that says how to build what they fill.

The directory of a run's finished task is a model too.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.dataset import DataSpec
from ..data.imageset import ArraySource, Source
from ..data.load import find_source
from ..disk import read_json, read_tensors, write_directory, write_json, write_tensors
from ..errors import UserError
from ..learner import ImageShape, Learner
from ..memory import Budget
from ..methods import METHODS, MethodState

FORMAT = 1
STATE, WEIGHTS, MEMORY = "state.json", "method.safetensors", "memory.safetensors"


def save_model(learner: Learner, path: Path) -> None:
    """Write a model directory. One that is already there is replaced; anything else is left alone."""
    if path.exists() and not (path / STATE).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path} exists and is not a model; choose another place")
    write_directory(path, lambda directory: write_model(learner, directory))


def write_model(learner: Learner, directory: Path, extra: dict[str, Any] | None = None) -> None:
    """Write the model's files into a directory; ``extra`` goes into the JSON beside the model's own entries."""
    state = learner.method.state()
    write_tensors(directory / WEIGHTS, state.tensors)
    kept = learner.memory.images
    source: dict[str, Any] | None = None
    if kept is not None and len(kept):
        source = kept.source.describe()
        tensors = {"rows": torch.from_numpy(kept.rows), "labels": torch.from_numpy(kept.labels)}
        if source["kind"] not in ("dataset", "files"):
            source = {"kind": "embedded"}
            tensors |= {"rows": torch.arange(len(kept)), "pixels": kept.source.read(kept.rows)}
        write_tensors(directory / MEMORY, tensors)
    write_json(
        directory / STATE,
        {
            "format": FORMAT,
            "method": learner.options.method,
            "settings": learner.method.settings.model_dump(mode="json"),
            "architecture": asdict(learner.method.architecture),
            "parts": state.description,
            "tasks": list(learner.sizes),
            "classes": list(learner.classes),
            "images": asdict(learner.shape),
            "data": asdict(learner.spec),
            "augment": learner.options.augment,
            "readouts": list(learner.readouts()),
            "memory": {"budget": str(learner.memory.budget), "source": source},
            "seed": learner.options.seed,
            **(extra or {}),
        },
    )


def read_state(directory: Path) -> dict[str, Any]:
    """The JSON of a model, checked for its format version."""
    if not (directory / STATE).is_file():
        raise UserError(f"{directory} is not a model: it has no {STATE}")
    state = read_json(directory / STATE)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else None
        raise UserError(f"{directory} has model format {found}; this version of drcil reads format {FORMAT}")
    return state


def load_model(path: str | Path, data_dir: Path | None = None, **engine: Any) -> Learner:
    """A learner as it was saved. It predicts at once; to learn on, data its memory refers to must be at hand."""
    directory = Path(path)
    state = read_state(directory)
    learner = Learner(
        state["method"],
        backbone=state["architecture"]["backbone"],
        memory=state["memory"]["budget"],
        augment=state["augment"],
        seed=state["seed"],
        **engine,
    )
    spec = DataSpec(**{name: tuple(v) if isinstance(v, list) else v for name, v in state["data"].items()})
    settings = METHODS[state["method"]].build.Settings.model_validate(state["settings"])
    learner.start(spec, ImageShape(**state["images"]), Budget.parse(state["memory"]["budget"]), settings)
    fill(learner, directory, state)
    where = state["memory"]["source"]
    if where is not None:
        tensors, _ = read_tensors(directory / MEMORY)
        source: Source = ArraySource(tensors["pixels"]) if "pixels" in tensors else find_source(where, data_dir)
        _remember(learner, source, tensors)
    return learner


def fill(learner: Learner, directory: Path, state: dict[str, Any]) -> None:
    """Put a saved model's weights and position into a learner that was made for it."""
    tensors, _ = read_tensors(directory / WEIGHTS)
    try:
        learner.method.restore(MethodState(tensors, state["parts"]))
    except (RuntimeError, KeyError) as error:
        raise UserError(f"{directory / WEIGHTS} does not fit the model that {STATE} describes: {error}") from error
    learner.sizes, learner.classes = tuple(state["tasks"]), tuple(state["classes"])


def fill_memory(learner: Learner, directory: Path, source: Source) -> None:
    """Put a saved memory, which refers to this source, into a learner."""
    if (directory / MEMORY).is_file():
        _remember(learner, source, read_tensors(directory / MEMORY)[0])


def _remember(learner: Learner, source: Source, tensors: dict[str, torch.Tensor]) -> None:
    rows, labels = tensors["rows"].numpy(), tensors["labels"].numpy()
    learner.memory.restore(source, rows.astype(np.int64), labels.astype(np.int64))


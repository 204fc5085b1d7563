"""A model as one graph: images as they are decoded in, probabilities out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .. import __version__
from ..data.augment.pipeline import normalisation
from ..data.sources.decode import Pixels
from ..errors import UserError
from ..inference.frozen import frozen_readouts
from ..methods.parts import NearestMean, normalised
from ..models.model import Model
from ..nets.output import Output, Readout
from .formats import Answer
from .view import PictureView

INPUT, OUTPUT = "images", "probabilities"


class Classifier(nn.Module):
    """uint8 images (N, H, W, C) of any height and width to probabilities (N, classes)."""

    factor: Tensor
    offset: Tensor

    def __init__(self, readout: Readout, about: Mapping[str, Any]) -> None:
        """``about``: see ``description``."""
        super().__init__()
        self.view = PictureView(about["image_size"])
        factor, offset = normalisation(tuple(about["mean"]), tuple(about["std"]), torch.device("cpu"))
        self.register_buffer("factor", factor.clone(), persistent=False)
        self.register_buffer("offset", offset.clone(), persistent=False)
        scores = readout.scores
        self.scores = _Distances(scores.means) if isinstance(scores, NearestMean) else scores
        self.net, self.temperature = readout.net, float(about["temperature"])

    def forward(self, images: Tensor) -> Tensor:
        output = self.net(self.view(images) * self.factor - self.offset)
        return (self.scores(output) / self.temperature).softmax(dim=1)


class _Distances(nn.Module):
    """Nearest means in plain products: torch's own distances are computed in another way for larger batches.

    −|f − m|² = 2 f·m − |f|² − |m|²
    """

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.means = nn.Buffer(means)

    def forward(self, output: Output) -> Tensor:
        features, means = normalised(output.features.pooled), self.means
        lengths = features.square().sum(dim=1, keepdim=True) + means.square().sum(dim=1)
        return 2 * features @ means.T - lengths


def folded(model: Model) -> Readout:
    """The leading readout as a net in use: folded, on the CPU."""
    return frozen(model.readouts(), leading(model))


def frozen(readouts: Mapping[str, Readout], name: str) -> Readout:
    """The readout of this name, folded, on the CPU."""
    return _placed(frozen_readouts({name: readouts[name]})[name])


def unfolded(model: Model) -> Readout:
    """The leading readout as a net in training, but for the mode, on the CPU."""
    return _placed(copy.deepcopy(model.readouts()[leading(model)]))


def answering(module: Callable[[Tensor], Tensor]) -> Answer:
    """The module for those who have arrays."""

    def answer(images: Pixels) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            found: npt.NDArray[np.float32] = module(torch.from_numpy(images)).numpy()
            return found

    return answer


def leading(model: Model) -> str:
    """The name of the readout that leads."""
    if not model.classes:
        raise UserError("there is nothing to export yet: no task has been learnt")
    return next(iter(model.readouts()))


def description(model: Model) -> dict[str, Any]:
    """What a file says of itself, as JSON."""
    return {
        "drcil_version": __version__,
        "method": model.name,
        "readout": leading(model),
        "classes": list(model.classes),
        "temperature": model.temperature,
        "image_size": model.shape.size,
        "channels": model.shape.channels,
        "mean": list(model.data.mean),
        "std": list(model.data.std),
        "input": "uint8 (N, height, width, channels), any height and width",
        "output": "probabilities (N, classes)",
    }


def _placed(readout: Readout) -> Readout:
    for part in (readout.net, readout.scores):
        if isinstance(part, nn.Module):
            part.cpu().eval().requires_grad_(False)
    return readout

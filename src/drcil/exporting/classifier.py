"""The exported graph: resizing like Pillow, normalisation, net, temperature, softmax.

Pillow scales along one axis after the other. Every output pixel is a weighted sum of a row, rounded to a level; the
weights form a triangle and are multiples of 2⁻²². Here the weights are computed as integers from the size of the image
and applied as a matrix. A product of 30 bits does not fit into float32, so a weight is split into two halves of 11
bits, whose sums are exact.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from .. import __version__
from ..data.augment.pipelines import normalisation
from ..data.decoding import Pixels, short_side
from ..errors import UserError
from ..methods.nearest_mean import NearestMean, normalised
from ..models.model import Model
from ..nets.net import Output, Readout, frozen_readouts

_HALF = 11
"""Bits of each half of a weight."""
_ONE = 2**26
"""A pixel as an integer. Pillow stores the edges of a box as float32, which these can represent."""


class PictureView(nn.Module):
    """uint8 images (N, H, W, C) of any height and width to levels (N, C, size, size), as float32.

    The short side is scaled to ``short_side(size)``, then the central square is taken.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.resize = size, max(size, short_side(size))
        self.tall_first = columns_first_if_tall()

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[1], images.shape[2]
        # As tensors, since heights and widths are unknown when the graph is traced.
        down, across = (torch.full((), length, dtype=torch.int64, device=images.device) for length in (height, width))
        short = torch.minimum(down, across)
        levels = images.permute(0, 3, 1, 2).float()
        rows, columns = self._weights(across, width, short), self._weights(down, height, short).transpose(0, 1)
        if not self.tall_first:
            return self._rows_first(levels, rows, columns)
        tall = down > (2 * across - self.size).clamp_min(self.size)
        if torch.compiler.is_compiling():
            levels_out: Tensor = torch.cond(tall, self._columns_first, self._rows_first, (levels, rows, columns))
            return levels_out
        return (self._columns_first if tall else self._rows_first)(levels, rows, columns)

    def _rows_first(self, levels: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return self._down(self._across(levels, rows), columns)

    def _columns_first(self, levels: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return self._across(self._down(levels, columns), rows)

    def _across(self, levels: Tensor, weights: Tensor) -> Tensor:
        """Each row of levels (…, width) scaled and cut to (…, size)."""
        sums = levels @ weights
        return _rounded(sums[..., : self.size], sums[..., self.size :])

    def _down(self, levels: Tensor, weights: Tensor) -> Tensor:
        """Each column likewise."""
        sums = weights @ levels
        return _rounded(sums[..., : self.size, :], sums[..., self.size :, :])

    def _weights(self, length: Tensor, pixels: int, short: Tensor) -> Tensor:
        """Weight of each input pixel in each output pixel, (length, 2 x size): upper halves, then lower halves."""
        size, device = self.size, length.device
        scaled = torch.floor_divide(self.resize * length, short)
        spare = scaled - size
        half = torch.floor_divide(spare, 2)
        # Halves are rounded to even numbers.
        start = half + (spare - 2 * half) * (half - 2 * torch.floor_divide(half, 2))
        left = (start * length).float() / scaled.float()
        right = ((start + size) * length).float() / scaled.float()
        span, left = ((right - left) * _ONE).long(), (left * _ONE).long()
        # All of the following in units of 1 / (2 size _ONE) of a pixel.
        centre = 2 * size * left + (2 * torch.arange(size, device=device) + 1) * span
        pixel = torch.full((), size * _ONE, dtype=torch.int64, device=device)
        position = (2 * torch.arange(pixels, device=device) + 1) * pixel
        reach = 2 * torch.maximum(span, pixel)
        distance = (position[:, None] - centre[None, :]).abs()
        # Not clamp, which onnxruntime computes with 32 bits.
        triangle = torch.where(distance < reach, reach - distance, torch.zeros_like(distance))
        total = triangle.sum(dim=0, keepdim=True)
        # Long division in two halves, since the whole would not fit into 64 bits. Only the last bit is rounded.
        upper = torch.floor_divide(triangle * 2**_HALF, total)
        rest = triangle * 2**_HALF - upper * total
        lower = torch.floor_divide(rest * 2 ** (_HALF + 1) + total, 2 * total)
        return torch.cat([upper, lower], dim=1).float()


def _rounded(upper: Tensor, lower: Tensor) -> Tensor:
    """Integer levels from the sums with both halves of the weights."""
    carried = upper + torch.floor(lower / 2**_HALF)
    return torch.floor((carried + 2 ** (_HALF - 1)) / 2**_HALF)


@cache
def columns_first_if_tall() -> bool:
    """Whether the installed Pillow scales tall images along their columns first, as newer versions do.

    Levels are rounded in between, so the order matters.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (64, 16), dtype=np.uint8)
    picture, filter = Image.fromarray(pixels), Image.Resampling.BILINEAR
    columns_first = picture.resize((16, 8), filter).resize((8, 8), filter)
    return picture.resize((8, 8), filter).tobytes() == columns_first.tobytes()


INPUT, OUTPUT = "images", "probabilities"


class Classifier(nn.Module):
    """uint8 images (N, H, W, C) of any height and width to probabilities (N, classes)."""

    factor: Tensor
    offset: Tensor

    def __init__(self, readout: Readout, about: Mapping[str, Any]) -> None:
        """``about``: see ``describe``."""
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
    """Nearest means by matrix products: ``torch.cdist`` computes larger batches in another way.

    −|f − m|² = 2 f·m − |f|² − |m|²
    """

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.means = nn.Buffer(means)

    def forward(self, output: Output) -> Tensor:
        features, means = normalised(output.features.pooled), self.means
        lengths = features.square().sum(dim=1, keepdim=True) + means.square().sum(dim=1)
        return 2 * features @ means.T - lengths


def leading_readout(model: Model) -> str:
    """The name of the readout that predicts."""
    if not model.classes:
        raise UserError("there is nothing to export yet: no task has been learnt")
    return next(iter(model.readouts()))


def folded_readout(model: Model) -> Readout:
    """The leading readout for inference: folded, on the CPU."""
    return fold_readout(model.readouts(), leading_readout(model))


def fold_readout(readouts: Mapping[str, Readout], name: str) -> Readout:
    """The readout of this name, folded, on the CPU."""
    return _for_inference(frozen_readouts({name: readouts[name]})[name])


def unfolded_readout(model: Model) -> Readout:
    """The leading readout as it was trained, on the CPU."""
    return _for_inference(copy.deepcopy(model.readouts()[leading_readout(model)]))


def _for_inference(readout: Readout) -> Readout:
    for part in (readout.net, readout.scores):
        if isinstance(part, nn.Module):
            part.cpu().eval().requires_grad_(False)
    return readout


Predict: TypeAlias = "Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]"
"""Images (N, H, W, C) to probabilities (N, classes)."""


def predict_arrays(module: Callable[[Tensor], Tensor]) -> Predict:
    """The module as a function of arrays."""

    def predict(images: Pixels) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            probabilities: npt.NDArray[np.float32] = module(torch.from_numpy(images)).numpy()
            return probabilities

    return predict


def describe(model: Model) -> dict[str, Any]:
    """The description in an exported file, as JSON."""
    return {
        "drcil_version": __version__,
        "method": model.name,
        "readout": leading_readout(model),
        "classes": list(model.classes),
        "temperature": model.temperature,
        "image_size": model.shape.size,
        "channels": model.shape.channels,
        "mean": list(model.data.mean),
        "std": list(model.data.std),
        "input": "uint8 (N, height, width, channels), any height and width",
        "output": "probabilities (N, classes)",
    }

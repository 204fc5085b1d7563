"""Whether an exported file answers as drcil does: on images of the model's own, and on generated ones of odd sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..data.sources.decode import Pixels, whole
from ..data.sources.files import PictureSource
from ..data.sources.imageset import ChainSource, ImageSet
from ..errors import UserError
from ..inference.inference import Inference
from ..keys import numpy_generator
from ..models.model import Model
from ..models.predictor import Predictor
from .formats import Answer

MOST, _ROOM = 64, 2**28
"""Of the model's own images, and bytes that they may take: photographs as they are decoded are large."""


class Images(NamedTuple):
    """Pictures at the sizes that they have, (H, W, C) each, and what drcil says of them."""

    own: list[Pixels]
    """Held out of training, or remembered; none where there are none."""
    generated: list[Pixels]
    expected: npt.NDArray[np.float32]
    """Probabilities of all, the own ones first."""

    @property
    def all(self) -> list[Pixels]:
        return [*self.own, *self.generated]


class Comparison(NamedTuple):
    """An answer beside drcil's."""

    difference: float
    """The largest of any probability."""
    agreement: float
    """The share of images with the same best class."""


def images_of(model: Model) -> Images:
    """What a model is checked with."""
    own, generated = own_images(model, MOST), odd_images(model.shape.size, model.shape.channels)
    inference = Inference(torch.device("cpu"), model.data.mean, model.data.std, workers=0)
    predictor = Predictor.of(model, inference)
    return Images(own, generated, predictor.probabilities([*own, *generated]))


def compared(answer: Answer, images: Sequence[Pixels], expected: npt.NDArray[np.float32]) -> Comparison:
    """Images of one size are asked together, so that batches of several sizes are tried too."""
    found = np.empty_like(expected)
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, image in enumerate(images):
        by_shape[image.shape].append(place)
    for places in by_shape.values():
        found[places] = answer(np.stack([images[place] for place in places]))
    same = found.argmax(axis=1) == expected.argmax(axis=1)
    # A NaN is as far away as anything can be.
    return Comparison(float(np.nan_to_num(np.abs(found - expected), nan=np.inf).max()), float(same.mean()))


def own_images(model: Model, most: int) -> list[Pixels]:
    """Some of the images that were held out of training, else of those it remembers, as they are decoded."""
    try:
        images = model.held.images or model.memory.images
    except UserError:  # They are no longer where they were, and predicting does not need them.
        return []
    if not images:
        return []
    chosen = np.unique(np.linspace(0, len(images) - 1, min(most, len(images))).round().astype(np.int64))
    found: list[Pixels] = []
    for image in _decoded(images.subset(chosen)):
        found.append(image)
        if sum(one.nbytes for one in found) > _ROOM:
            break
    return found


def odd_images(size: int, channels: int) -> list[Pixels]:
    """Noise: of the net's size, smaller, larger, wide, tall and very tall."""
    draws, more = numpy_generator("export", size), size // 2 + 1
    shapes = [(size, size), (more, more + 1), (2 * size + 1, size + 3), (size + 2, 3 * size + 1), (5 * size, more)]
    return [draws.integers(0, 256, (*shape, channels), dtype=np.uint8) for shape in shapes]


def _decoded(images: ImageSet) -> Iterator[Pixels]:
    for row in images.rows:
        source, own = images.source, np.array([row], dtype=np.int64)
        if isinstance(source, ChainSource):
            part, own = source.locate(own)
            source = source.parts[int(part[0])]
        if isinstance(source, PictureSource):
            with source.picture(int(own[0])) as picture:
                yield whole(picture, source.mode)
        else:
            yield np.ascontiguousarray(source.read(own)[0].permute(1, 2, 0).numpy())

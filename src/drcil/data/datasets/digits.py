"""The digits that ship with the package: real handwriting, small enough to learn a whole stream in seconds.

1,797 images of 8x8 pixels in ten classes, the test part of "Optical Recognition of Handwritten Digits" by
E. Alpaydin and C. Kaynak (1998), UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0.

There is no official split of these images, so this one is fixed: of every class, in file order, each fifth image is
a test image (355), the others are for training (1,442).
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ..dataset import DIGITS_SPEC, Dataset, DatasetSize, ManualDownload, register_dataset
from ..decoding import shrink
from ..image_set import ArraySource, ImageSet, Int64
from ..source_refs import DatasetRef


@register_dataset(
    "digits",
    spec=DIGITS_SPEC,
    classes=10,
    protocols=("b0-5", "lt-shuffled-b0-5"),
    download=ManualDownload("it ships with drcil"),
    size=DatasetSize(1442, 355, 8),
)
def load_digits(root: Path | None = None, image_size: int | None = None) -> Dataset:
    """Ten handwritten digits, 8x8 pixels, built in."""
    with files(__package__).joinpath("digits.npz").open("rb") as stream, np.load(stream) as stored:
        ink, labels = stored["images"], stored["labels"].astype(np.int64)
    # The file holds ink in sixteenths; a pixel of 16 is 255.
    pixels = torch.from_numpy(np.rint(ink * (255 / 16)).astype(np.uint8)[:, None])
    pixels = shrink(pixels, image_size or pixels.shape[-1], "the images of digits")
    testing = _each_fifth(labels)
    return Dataset(
        name="digits",
        classes=tuple("0123456789"),
        train=_split("train", pixels[~torch.from_numpy(testing)], labels[~testing]),
        test=_split("test", pixels[torch.from_numpy(testing)], labels[testing]),
        spec=DIGITS_SPEC,
    )


def _each_fifth(labels: Int64) -> np.typing.NDArray[np.bool_]:
    mask = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        mask[np.flatnonzero(labels == label)[4::5]] = True
    return mask


def _split(split: Literal["train", "test"], pixels: torch.Tensor, labels: Int64) -> ImageSet:
    source = ArraySource(pixels, DatasetRef(name="digits", split=split, size=pixels.shape[-1]))
    return ImageSet.of(source, np.arange(len(labels), dtype=np.int64), labels)

"""Datasets of other libraries (torchvision, Hugging Face, a user's own class) as image sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Subset

from ..arguments import optional, whole
from ..errors import UserError, shortened
from ..limits import IMAGE_SIZE, Bounds
from .labels import class_names, class_number
from .own import stack, to_picture
from .sources.decode import SMALL, STANDARD
from .sources.files import PictureSource
from .sources.imageset import ImageSet, Int64

_IMAGE_KEYS = ("image", "img", "pixel_values")
_LABEL_KEYS = ("label", "labels", "fine_label", "target")
_CHANNELS, _MOST_CLASSES = Bounds(1, 3), 2**31


def wrap(
    dataset: Any,
    classes: Sequence[str] | None = None,
    size: int | None = None,
    channels: int | None = None,
) -> ImageSet:
    """A map-style dataset of ``(image, label)`` pairs, or of dicts with such entries, as an image set.

    Give it without random transforms: augmentation is drcil's. Images are pictures, arrays (H, W, C) or tensors
    (C, H, W). Labels come from ``targets`` or ``labels`` if it has them, else from going through it once. ``classes``
    are the class names: labels may then be names, and must lie among them.

    Small images are read into memory, of the first one's size unless ``size`` says otherwise; larger ones are read
    when needed, at 224 pixels unless ``size`` says otherwise.
    """
    if isinstance(dataset, Mapping | type) or not hasattr(dataset, "__getitem__") or not _length(dataset):
        raise UserError(
            f"a {type(dataset).__name__} cannot be wrapped: it must have a length above 0 and items by number"
        )
    size = optional(whole, "size", size, IMAGE_SIZE)
    channels = optional(whole, "channels", channels, _CHANNELS)
    names = None if classes is None else class_names(classes)
    first, _ = _pair(dataset[0])
    labels = _checked(_labels(dataset), names, len(dataset))
    rows = np.arange(len(dataset), dtype=np.int64)
    if min(first.size) <= SMALL:
        pictures = [_pair(dataset[row])[0] for row in range(len(dataset))]
        return ImageSet(stack(pictures, size, channels), rows, labels)
    return ImageSet(MapSource(dataset, size or STANDARD, channels or 3), rows, labels)


class MapSource(PictureSource):
    """The pictures of a map-style dataset, taken from it when they are read."""

    def __init__(self, dataset: Any, size: int, channels: int) -> None:
        super().__init__(size, channels=channels)
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def picture(self, row: int) -> Image.Image:
        return _pair(self.dataset[row])[0].copy()  # The dataset may hold on to the picture it gave.

    def name(self, row: int) -> str:
        return f"item {row} of the wrapped {type(self.dataset).__name__}"

    def describe(self) -> dict[str, Any]:
        return {"kind": "embedded"}


def _length(dataset: Any) -> int:
    """How many items there are; 0 also where there is no saying."""
    try:
        return len(dataset)
    except TypeError:
        return 0


def _pair(item: Any) -> tuple[Image.Image, Any]:
    if isinstance(item, Mapping):
        image, label = (next((key for key in keys if key in item), None) for keys in (_IMAGE_KEYS, _LABEL_KEYS))
        if image is None or label is None:
            raise UserError(f"an item with the entries {', '.join(map(str, item))} needs one 'image' and one 'label'")
        return to_picture(item[image]), item[label]
    if isinstance(item, Sequence) and len(item) >= 2:
        return to_picture(item[0]), item[1]
    raise UserError(f"an item of a wrapped dataset must be (image, label), not a {type(item).__name__}")


def _labels(dataset: Any) -> Sequence[Any]:
    if isinstance(dataset, Subset):
        inner = _labels(dataset.dataset)
        return [inner[index] for index in dataset.indices]
    columns = getattr(dataset, "column_names", None) or ()
    for key in _LABEL_KEYS:
        if key in columns:
            return list(dataset[key])
    for attribute in ("targets", "labels"):
        values = getattr(dataset, attribute, None)
        if values is not None and len(values) == len(dataset):
            return np.asarray(values).tolist()  # type: ignore[no-any-return]
    return [_pair(dataset[row])[1] for row in range(len(dataset))]


def _checked(labels: Sequence[Any], classes: Sequence[str] | None, length: int) -> Int64:
    if len(labels) != length:
        raise UserError(f"the dataset has {length} images but {len(labels)} labels")
    if isinstance(labels[0], str):
        labels = class_names(labels, length)
        if classes is None:
            raise UserError(
                f"labels are names, such as '{shortened(labels[0])}'; give 'classes', the list of names, with them"
            )
        place = {name: index for index, name in enumerate(classes)}
        strange = sorted(set(labels) - set(place))
        if strange:
            raise UserError(f"label '{shortened(strange[0])}' is not among the {len(classes)} class names")
        return np.array([place[label] for label in labels], dtype=np.int64)
    numbers = [class_number(label, f"the label of image {row}") for row, label in enumerate(labels)]
    most = _MOST_CLASSES if classes is None else len(classes)
    if min(numbers) < 0 or max(numbers) >= most:
        raise UserError(f"labels range from {min(numbers)} to {max(numbers)}, but must be 0 to {most - 1}")
    return np.array(numbers, dtype=np.int64)

"""Images and class names given from Python: arrays, tensors, pictures, paths, datasets of other libraries."""

from __future__ import annotations

import operator
import os
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Subset

from ..errors import (
    Bounds,
    UserError,
    WrongTypeError,
    WrongValueError,
    check_int,
    check_text,
    format_value,
    optional,
    shortened,
)
from ..errors import check_path as given_path
from ..settings import IMAGE_SIZE
from .dataset import CIFAR_SPEC as CIFAR
from .dataset import DIGITS_SPEC as DIGITS
from .dataset import PHOTO_SPEC as PHOTO
from .dataset import DataSpec
from .decoding import (
    SMALL,
    STANDARD,
    UNREADABLE,
    Mode,
    Pixels,
    centre_view,
    error_text,
    natural_size,
    open_picture,
    short_side,
    shrink,
)
from .file_source import FileList, FileSource, PictureSource, list_directory
from .image_set import ArraySource, ImageSet, ImageShape, Int64, Source


class Unreadable(NamedTuple):
    """A file that is no image, or a damaged one."""

    file: str
    why: str


def picture_files(path: Path) -> Iterator[Path]:
    """The file, or all image files below the directory, sorted within each; hidden ones are left out.

    A link to a directory that contains it is not followed.
    """
    if not os.path.isdir(path):
        yield path
        return
    yield from _files_below(path, frozenset())


def _files_below(directory: Path, above: frozenset[str]) -> Iterator[Path]:
    real = os.path.realpath(directory)
    if real in above:
        return
    listing = list_directory(directory)
    yield from (directory / name for name in listing.images)
    for name in listing.directories:
        yield from _files_below(directory / name, above | {real})


def decoded(
    paths: Iterable[str | os.PathLike[str]], shape: ImageShape, threads: int, batch: int
) -> Iterator[tuple[list[str], list[Pixels | str]]]:
    """Batches of files: their names, and the test view of each, or why it cannot be read.

    The next batch is decoded while the caller works on this one.
    """

    def seen(path: str) -> Pixels | str:
        source = FileSource(FileList.of_paths([path]), shape.size, channels=shape.channels)
        try:
            return source.view(0, None)
        except UNREADABLE as error:
            return error_text(error)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        remaining = (os.fspath(path) for path in paths)
        names = list(islice(remaining, batch))
        views = [pool.submit(seen, name) for name in names]
        while names:
            following = list(islice(remaining, batch))
            begun = [pool.submit(seen, name) for name in following]
            yield names, [view.result() for view in views]
            names, views = following, begun


_ACCEPTED = (
    "give a picture, an array (N, H, W) or (N, H, W, C), a tensor (N, C, H, W), a list of pictures or of paths, "
    "or the path of a file or of a directory"
)


def load_images(images: Any, size: int | None = None, channels: int | None = None) -> Source:
    """Images from Python, as a source of ``size`` pixels and ``channels`` channels.

    Files are decoded when read; everything else goes into memory. Arrays and tensors that fit are used unchanged,
    and larger squares averaged by area to a small size, as a dataset in memory would be; all others are shown in the
    test view of pictures. Without ``size`` the first image says it (its own if small, else 224), and
    without ``channels``, too (files: 3). Floats are taken to be in [0, 1].
    """
    if isinstance(images, Source):
        return images
    if isinstance(images, str | os.PathLike):
        path = given_path("the path of images", images, any_name=True)
        images = list(picture_files(path))
    if isinstance(images, Image.Image):
        images = [images]
    if isinstance(images, Tensor):
        return _from_batch(_channels_last(images), size, channels)
    if isinstance(images, np.ndarray) and images.ndim in (3, 4):
        return _from_batch(images if images.ndim == 4 else images[..., None], size, channels)
    if isinstance(images, bytes) or not isinstance(images, Sequence):
        shape = f" of shape {images.shape}" if isinstance(images, np.ndarray) else ""
        raise UserError(f"images cannot be read from a {type(images).__name__}{shape}; {_ACCEPTED}")
    if not len(images):
        raise UserError(f"no images were given; {_ACCEPTED}")
    if all(isinstance(image, str | os.PathLike) for image in images):
        return _from_paths(images, size, channels)
    return stack([to_picture(image) for image in images], size, channels)


def infer_data_spec(source: Source) -> DataSpec:
    """The ``DataSpec`` of a user's images, derived from the images.

    Photographs are treated as a folder of them would be. Small images in memory take the recipes of CIFAR (up to
    twelve pixels: of the digits), normalised by their own mean and deviation; grey ones, which are often
    writing, are not flipped.
    """
    if not isinstance(source, ArraySource) or source.size > SMALL:
        return replace(PHOTO, mean=PHOTO.mean[: source.channels], std=PHOTO.std[: source.channels])
    like = DIGITS if source.size <= 12 else CIFAR
    deviation, mean = torch.std_mean(source.pixels.float() / 255, dim=(0, 2, 3), correction=0)
    return replace(
        like,
        memory=PHOTO.memory,
        large_base_memory=None,
        mean=tuple(mean.tolist()),
        std=tuple(deviation.clamp_min(1 / 255).tolist()),
        padding=max(1, source.size // 8),
        flip=source.channels == 3,
        augment="basic",
    )


def to_picture(image: Any) -> Image.Image:
    """One image, a picture, an array (H, W) or (H, W, C), or a tensor (C, H, W), as a picture."""
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, Tensor):
        image = (image.permute(1, 2, 0) if image.ndim == 3 else image).detach().cpu().numpy()
    if not isinstance(image, np.ndarray) or image.ndim not in (2, 3) or image.size == 0:
        raise UserError(f"an image cannot be a {type(image).__name__}; give a picture, an array (H, W, C) or a path")
    pixels = to_bytes(image)
    if pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4):
        raise UserError(f"an image of shape {image.shape} has {pixels.shape[2]} channels; 1, 3 or 4 are possible")
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels))


def to_bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Pixel values as uint8: bytes as they are, floats from [0, 1]."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if not np.issubdtype(values.dtype, np.floating):
        raise UserError(f"pixel values of type {values.dtype} are not understood; give uint8, or floats in [0, 1]")
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        raise UserError(
            f"float pixel values must lie in [0, 1], these range from {values.min():.3g} to {values.max():.3g}; "
            f"give images that are not normalised"
        )
    scaled: npt.NDArray[np.uint8] = np.rint(values * 255).astype(np.uint8)
    return scaled


def stack(pictures: Sequence[Image.Image], size: int | None = None, channels: int | None = None) -> ArraySource:
    """Pictures in memory, each in its test view."""
    size = size or natural_size(pictures[0])
    channels = channels or natural_channels(pictures[0])
    mode: Mode = "L" if channels == 1 else "RGB"
    pixels = torch.empty((len(pictures), size, size, channels), dtype=torch.uint8)
    for index, picture in enumerate(pictures):
        try:
            # A copy, because decoding at a smaller scale would change the user's picture.
            view = centre_view(picture.copy(), size, short_side(size), mode)
        except UNREADABLE as error:
            raise UserError(f"image {index} of those given cannot be read: {error_text(error)}") from None
        pixels[index] = torch.from_numpy(np.array(view)).view(size, size, channels)
    return ArraySource(pixels.permute(0, 3, 1, 2).contiguous())


def natural_channels(picture: Image.Image) -> int:
    """1 for grey pictures without transparency, 3 for all others."""
    return 1 if picture.mode in ("1", "L", "F") or picture.mode.startswith("I") else 3


def _channels_last(images: Tensor) -> npt.NDArray[Any]:
    if images.ndim != 4:
        raise UserError(f"a tensor of images must be (N, C, H, W), this one is {tuple(images.shape)}")
    array: npt.NDArray[Any] = images.detach().permute(0, 2, 3, 1).cpu().numpy()
    return array


def _from_batch(images: npt.NDArray[Any], size: int | None, channels: int | None) -> Source:
    """(N, H, W, C): all at once where the shape allows, image by image otherwise."""
    count, height, width, depth = images.shape
    if not images.size or depth not in (1, 3, 4):
        raise UserError(f"images of shape (N, H, W, C) = {images.shape} are not possible; C must be 1, 3 or 4, N not 0")
    fits = height == width and (size is None or size == height or size < min(height, SMALL + 1))
    if not fits or depth == 4 or channels not in (None, depth):
        return stack([to_picture(image) for image in images], size, channels)
    pixels = torch.from_numpy(to_bytes(images).transpose(0, 3, 1, 2).copy())
    return ArraySource(shrink(pixels, size or height))


def _from_paths(paths: Sequence[Any], size: int | None, channels: int | None) -> Source:
    files = FileList.of_paths(paths)
    for row in range(len(files)):
        if not os.path.isfile(files.path(row)):
            raise UserError(f"there is no image file {files.path(row)}")
    if size is None:
        try:
            with open_picture(files.path(0)) as first:
                size = natural_size(first)
        except UNREADABLE as error:
            raise UserError(f"{files.path(0)} cannot be read as an image: {error_text(error)}") from None
    source = FileSource(files, size, channels=channels or 3)
    source.hint = "omit or repair it"  # They are files, not a dataset that could be checked.
    return source


_ACCEPTED_LABELS = "give a list with one string or whole number for each image"


def class_names(labels: Any, images: int | None = None) -> list[str]:
    """A class name for each image, from a list, an array, a tensor or a column of a table.

    None: any number.
    """
    names = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(names, str | bytes | bytearray) or not isinstance(names, Sequence):
        raise WrongTypeError(f"class names cannot be read from {format_value(labels)}; {_ACCEPTED_LABELS}")
    if images is not None and (len(names) != images or not images):
        raise WrongValueError(f"every image needs one class name, but {images} images came with {len(names)} names")
    return [class_name(label, index) for index, label in enumerate(names)]


def class_name(label: Any, index: int) -> str:
    """The name of one class; ``index``: the image's index, for error messages."""
    where = f"the class name of image {index}"
    return normalize_class_name(check_text(where, label)) if isinstance(label, str) else str(class_number(label, where))


def normalize_class_name(name: str) -> str:
    """The Unicode normal form of a name, such as one with accents."""
    return unicodedata.normalize("NFC", name)


def one_line(where: str, name: str) -> str:
    """A single-line name, in its normal form and without surrounding spaces."""
    if any(unicodedata.category(letter) in ("Cc", "Zl", "Zp") for letter in name):
        raise WrongValueError(f"{where} is one line without control characters, not {format_value(name)}")
    return normalize_class_name(name.strip())


def class_number(label: Any, where: str) -> int:
    """The number of one class, as an int, from any integer type."""
    label = label.item() if getattr(label, "shape", None) == () else label
    try:
        if isinstance(label, bool):
            raise TypeError
        return operator.index(label)
    except TypeError:
        raise WrongTypeError(f"{where} cannot be {format_value(label)}; {_ACCEPTED_LABELS}") from None


_IMAGE_KEYS = ("image", "img", "pixel_values")
_LABEL_KEYS = ("label", "labels", "fine_label", "target")
_CHANNELS, _MOST_CLASSES = Bounds(1, 3), 2**31


def wrap_dataset(
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
    size = optional(check_int, "size", size, IMAGE_SIZE)
    channels = optional(check_int, "channels", channels, _CHANNELS)
    names = None if classes is None else class_names(classes)
    first, _ = _pair(dataset[0])
    labels = _label_numbers(_labels(dataset), names, len(dataset))
    rows = np.arange(len(dataset), dtype=np.int64)
    if min(first.size) <= SMALL:
        pictures = [_pair(dataset[row])[0] for row in range(len(dataset))]
        return ImageSet.of(stack(pictures, size, channels), rows, labels)
    return ImageSet.of(MapSource(dataset, size or STANDARD, channels or 3), rows, labels)


class MapSource(PictureSource):
    """The pictures of a map-style dataset, taken from it when they are read."""

    def __init__(self, dataset: Any, size: int, channels: int) -> None:
        super().__init__(size, channels=channels)
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def picture(self, row: int) -> Image.Image:
        return _pair(self.dataset[row])[0].copy()  # The dataset may keep a reference to the picture.

    def name(self, row: int) -> str:
        return f"item {row} of the wrapped {type(self.dataset).__name__}"


def _length(dataset: Any) -> int:
    """The number of items; 0 if it is unknown."""
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


def _label_numbers(labels: Sequence[Any], classes: Sequence[str] | None, length: int) -> Int64:
    if len(labels) != length:
        raise UserError(f"the dataset has {length} images but {len(labels)} labels")
    if isinstance(labels[0], str):
        labels = class_names(labels, length)
        if classes is None:
            raise UserError(
                f"labels are names, such as '{shortened(labels[0])}'; give 'classes', the list of names, with them"
            )
        class_numbers = {name: index for index, name in enumerate(classes)}
        unknown = sorted(set(labels) - set(class_numbers))
        if unknown:
            raise UserError(f"label '{shortened(unknown[0])}' is not among the {len(classes)} class names")
        return np.array([class_numbers[label] for label in labels], dtype=np.int64)
    numbers = [class_number(label, f"the label of image {row}") for row, label in enumerate(labels)]
    most = _MOST_CLASSES if classes is None else len(classes)
    if min(numbers) < 0 or max(numbers) >= most:
        raise UserError(f"labels range from {min(numbers)} to {max(numbers)}, but must be 0 to {most - 1}")
    return np.array(numbers, dtype=np.int64)

"""A user's own images: arrays, tensors, pictures or paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ..arguments import path as given_path
from ..errors import UserError
from .datasets import cifar100, digits, folder
from .datasets.dataset import DataSpec
from .pictures import picture_files
from .sources.decode import SMALL, Mode, centre_view, natural_size, short_side
from .sources.filelist import FileList
from .sources.files import FileSource
from .sources.imageset import ArraySource, Source
from .sources.opening import UNREADABLE, open_picture, reason
from .sources.shrink import shrink

_ACCEPTED = (
    "give a picture, an array (N, H, W) or (N, H, W, C), a tensor (N, C, H, W), a list of pictures or of paths, "
    "or the path of a file or of a directory"
)


def images_from(images: Any, size: int | None = None, channels: int | None = None) -> Source:
    """What a user gives as images, as a source of ``size`` pixels and ``channels`` channels.

    Files are decoded when read; everything else goes into memory. Arrays and tensors that fit are taken as they are,
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


def own_spec(source: Source) -> DataSpec:
    """What methods need to know about a user's own images, from the images themselves.

    Photographs are treated as a folder of them would be. Small images in memory take the recipes of CIFAR (up to
    twelve pixels: of the digits), normalised by their own mean and deviation; grey ones, which are often
    writing, are not flipped.
    """
    if not isinstance(source, ArraySource) or source.size > SMALL:
        return replace(folder.SPEC, mean=folder.SPEC.mean[: source.channels], std=folder.SPEC.std[: source.channels])
    like = digits.SPEC if source.size <= 12 else cifar100.SPEC
    deviation, mean = torch.std_mean(source.pixels.float() / 255, dim=(0, 2, 3), correction=0)
    return replace(
        like,
        memory=folder.SPEC.memory,
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
    for place, picture in enumerate(pictures):
        try:
            # Of a copy: decoding at a smaller scale would change the picture in the user's hands.
            view = centre_view(picture.copy(), size, short_side(size), mode)
        except UNREADABLE as error:
            raise UserError(f"image {place} of those given cannot be read: {reason(error)}") from None
        pixels[place] = torch.from_numpy(np.array(view)).view(size, size, channels)
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
            raise UserError(f"{files.path(0)} cannot be read as an image: {reason(error)}") from None
    found = FileSource(files, size, channels=channels or 3)
    found.advice = "leave it out, or mend it"  # They are files, not a dataset that could be checked.
    return found

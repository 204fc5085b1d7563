"""CIFAR-100 (A. Krizhevsky, 2009): 50,000 + 10,000 images of 32x32 pixels in 100 classes.

Read from the official python files: the folder ``cifar-100-python`` or, slower, ``cifar-100-python.tar.gz`` in the
data directory. They are Python pickles, so each is opened only after its checksum matched, and then by an
unpickler that knows the three names these files use and no other. Class ids are the fine labels of the files.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy._core.multiarray import _reconstruct

from ...errors import UserError
from ...files import read_bytes
from ...settings import data_directory
from ..dataset import (
    CIFAR_SPEC,
    LONG_TAILED_PROTOCOLS,
    PROTOCOLS_OF_A_HUNDRED,
    Archive,
    Dataset,
    DatasetSize,
    register_dataset,
)
from ..decoding import shrink
from ..download import read_members
from ..image_set import ArraySource, ImageSet
from ..source_refs import DatasetRef

FOLDER = "cifar-100-python"
CHECKSUMS = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
SIZES = {"train": 155_249_918, "test": 31_049_707, "meta": 1_473}
SIZE = 32
HOME = Archive(
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    files={f"{FOLDER}/{name}": md5 for name, md5 in CHECKSUMS.items()},
)


@register_dataset(
    "cifar100",
    spec=CIFAR_SPEC,
    classes=100,
    protocols=PROTOCOLS_OF_A_HUNDRED + LONG_TAILED_PROTOCOLS,
    download=HOME,
    size=DatasetSize(50_000, 10_000, SIZE),
    holds_out_by_task=True,
)
def load_cifar100(root: Path | None = None, image_size: int | None = None) -> Dataset:
    """100 classes of photographs of 32x32 pixels. At a smaller size the crop padding shrinks in proportion."""
    size = image_size or SIZE
    contents = {name: unpickle(data) for name, data in read_files(data_directory(root)).items()}
    return Dataset(
        name="cifar100",
        classes=tuple(contents["meta"]["fine_label_names"]),
        train=_split("train", contents["train"], size),
        test=_split("test", contents["test"], size),
        spec=replace(CIFAR_SPEC, padding=max(1, round(CIFAR_SPEC.padding * size / SIZE))),
    )


def read_files(root: Path) -> dict[str, bytes]:
    """The bytes of ``train``, ``test`` and ``meta``, each with the checksum of the original."""
    folder, archive = root / FOLDER, root / f"{FOLDER}.tar.gz"
    if not os.path.isdir(folder) and os.path.isfile(archive):
        members = read_members(archive, HOME.md5, HOME.files)
        contents = {name.removeprefix(f"{FOLDER}/"): member.read() for name, member in members}
        where = f"{archive}:{FOLDER}"
    else:
        contents, where = {name: _from_folder(folder / name, archive) for name in CHECKSUMS}, str(folder)
    for name, md5 in CHECKSUMS.items():
        digest = hashlib.md5(contents[name], usedforsecurity=False).hexdigest()
        if digest != md5:
            raise UserError(
                f"{where}/{name} is not the original CIFAR-100 file (md5 {digest}, expected {md5}); "
                f"'drcil data fetch cifar100' replaces it"
            )
    return contents


def _from_folder(path: Path, archive: Path) -> bytes:
    if not os.path.lexists(path):
        raise UserError(
            f"CIFAR-100 not found: there is neither {path} nor {archive}. "
            "Run 'drcil data fetch cifar100', or set --data"
        )
    return read_bytes(path, 2 * SIZES[path.name])


_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Lists, dicts, numbers, text and numpy arrays; every other name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a CIFAR file") from None


def unpickle(data: bytes) -> dict[str, Any]:
    """The dictionary inside one of the files. They were written by Python 2, whose byte strings latin1 maps 1:1."""
    content: dict[str, Any] = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
    return content


def _split(split: Literal["train", "test"], content: dict[str, Any], size: int) -> ImageSet:
    pixels = torch.from_numpy(content["data"].reshape(-1, 3, SIZE, SIZE))
    labels = np.array(content["fine_labels"], dtype=np.int64)
    ref = DatasetRef(name="cifar100", split=split, size=size, md5=CHECKSUMS[split])
    source = ArraySource(shrink(pixels, size, "the images of cifar100"), ref)
    return ImageSet.of(source, np.arange(len(labels), dtype=np.int64), labels)

"""What a dataset is, and the table of those that are known by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from ...errors import UserError
from ...registry import Registry
from ..sources.imageset import ImageSet


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """What methods, streams and augmentation need to know about images."""

    kind: str
    """Which tables of recipes and profiles apply: ``digits``, ``cifar``, ``imagenet``, or any other name."""
    backbone: str
    """The backbone used unless another is asked for."""
    transformer: str = "convit"
    """The same for methods that need a transformer."""
    memory: str
    """The memory budget used unless the protocol or the user says otherwise."""
    large_base_memory: str | None = None
    """The budget of the published protocols after a large first task; None: the same as ``memory``."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Normalisation per channel, of values in [0, 1]."""
    augment: str
    """The training augmentation used unless another is asked for; the fields below say what it may do."""
    crop: Literal["shift", "resized"] = "shift"
    """A window of the same size at a random place, or a random box scaled to the image size."""
    padding: int = 0
    """Zeros added on each side before a shift."""
    flip: bool = False
    brightness: bool = False
    """Whether brightness may be changed."""
    policy: Literal["cifar10", "imagenet"] | None = None
    """AutoAugment's policy for such images; None: there is none."""
    cutout: bool = False
    """Whether ``auto`` may end in a square hole."""

    @property
    def photographs(self) -> bool:
        """Whether the images are cut out of pictures of any size, so that they can be had in any size."""
        return self.crop == "resized"


@dataclass(frozen=True)
class Dataset:
    """Training and test images with one list of class names; labels are positions in it."""

    name: str
    classes: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    spec: DataSpec


@dataclass(frozen=True)
class Archive:
    """A dataset that its authors offer as one tar file."""

    url: str
    md5: str
    files: Mapping[str, str]
    """The files in it that are needed (paths in the archive and in the data directory), and their md5."""


@dataclass(frozen=True)
class ByHand:
    """A dataset that cannot be fetched."""

    reason: str
    """Why not, and what to do: follows "… cannot be fetched: "."""


@dataclass(frozen=True)
class ByLibrary:
    """A dataset that another library fetches, into a cache of its own."""

    fetch: Callable[[str], Path]
    """From what stands behind the colon to the directory where it is; the library shows its progress."""


UNKNOWN_HOME = ByHand("nothing says where it comes from")


@dataclass(frozen=True)
class Extent:
    """How large a dataset is: images to learn from and to test with, about, and the pixels of a side."""

    train: int
    test: int
    size: int


@dataclass(frozen=True)
class DatasetEntry:
    """A name under which a dataset can be asked for, and what is known of it before it is loaded."""

    name: str
    load: Callable[..., Dataset]
    """``load(root, image_size)``: from the data directory (None: not given), at this size (None: the dataset's own).
    Where the name takes an argument, that comes first: ``load(argument, root, image_size)``."""
    spec: DataSpec
    classes: int | None = None
    """None: known once it is loaded."""
    cuts: tuple[str, ...] = ()
    """How published streams cut it, such as ``b0-10`` or ``lt-ordered-b50-5``, where the number of classes is known."""
    home: Archive | ByHand | ByLibrary = UNKNOWN_HOME
    argument: str | None = None
    """What has to follow the name after a colon, such as ``PATH`` for ``folder:PATH``; None: nothing may."""
    extent: Extent | None = None
    """How large it is; None: known once it is loaded."""

    @property
    def form(self) -> str:
        """How the dataset is named: ``cifar100``, ``folder:PATH``."""
        return self.name if self.argument is None else f"{self.name}:{self.argument}"


DATASETS: Registry[DatasetEntry] = Registry("dataset", "drcil.data.datasets")
CUTS_OF_A_HUNDRED = ("b0-5", "b0-10", "b0-20", "b50-5", "b50-10", "b50-25")
"""The streams on which results are published for datasets of 100 classes."""
LONG_TAILED_CUTS = ("lt-ordered-b50-5", "lt-ordered-b50-10", "lt-shuffled-b50-5", "lt-shuffled-b50-10")
"""The same, with few training images of most classes."""

Load = TypeVar("Load", bound=Callable[..., Dataset])


def dataset(
    name: str,
    *,
    spec: DataSpec,
    classes: int | None = None,
    cuts: tuple[str, ...] = (),
    home: Archive | ByHand | ByLibrary = UNKNOWN_HOME,
    argument: str | None = None,
    extent: Extent | None = None,
) -> Callable[[Load], Load]:
    """Register a function that loads a dataset; its docstring's first sentence is the summary."""

    def keep(load: Load) -> Load:
        DATASETS.register(name)(DatasetEntry(name, load, spec, classes, cuts, home, argument, extent))
        return load

    return keep


def find_dataset(name: str) -> tuple[DatasetEntry, tuple[str, ...]]:
    """The entry behind a name, and what its loader gets first: ``folder:PATH`` is ``folder`` with ``PATH``."""
    own, colon, argument = name.partition(":")
    entry = DATASETS[own]
    if entry.argument is None and colon:
        raise UserError(f"dataset '{name}' cannot be found: '{own}' takes no argument; name it without a colon")
    if entry.argument is not None and not argument:
        raise UserError(f"dataset '{name}' is incomplete; give it as {entry.form}")
    return entry, (argument,) if colon else ()

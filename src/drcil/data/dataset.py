"""Dataset, DataSpec, the dataset registry, loading by name, checking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from ..errors import UserError, check_int, optional
from ..registry import Registry
from ..settings import IMAGE_SIZE
from .file_source import FileSource, PictureSource, find_unreadable_pictures
from .image_set import ImageSet, PlaceholderSource, Source
from .source_refs import DatasetRef, FilesRef, LeafRef


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """What methods, streams and augmentation need to know about images."""

    kind: str
    """Which tables of recipes and profiles apply: ``digits``, ``cifar``, ``imagenet``, or any other name."""
    backbone: str
    """The default backbone."""
    transformer: str = "convit"
    """The default backbone of methods that need a transformer."""
    memory: str
    """The default memory budget; protocols and users can override it."""
    large_base_memory: str | None = None
    """The budget of the published protocols after a large first task; None: the same as ``memory``."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Normalisation per channel, of values in [0, 1]."""
    augment: str
    """The default training augmentation; the fields below configure it."""
    crop: Literal["shift", "resized"] = "shift"
    """A window of the same size at a random position, or a random box scaled to the image size."""
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
        """Whether the images are cropped from pictures of any size, so that any image size is possible."""
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
class ManualDownload:
    """A dataset that cannot be fetched."""

    reason: str
    """Why not, and what to do: follows "… cannot be fetched: "."""


@dataclass(frozen=True)
class LibraryDownload:
    """A dataset that another library downloads into its cache."""

    fetch: Callable[[str], Path]
    """Maps the text after the colon to the downloaded directory; the library shows the progress."""


UNKNOWN_DOWNLOAD = ManualDownload("nothing says where it comes from")


@dataclass(frozen=True)
class DatasetSize:
    """The approximate numbers of training and test images, and the side length in pixels."""

    train: int
    test: int
    size: int


@dataclass(frozen=True)
class DatasetEntry:
    """A registered dataset: its name, and what is known about it before it is loaded."""

    name: str
    load: Callable[..., Dataset]
    """``load(root, image_size)``: from the data directory (None: not set), at this size (None: the dataset's size).
    Where the name takes an argument, that comes first: ``load(argument, root, image_size)``."""
    spec: DataSpec
    classes: int | None = None
    """None: known once it is loaded."""
    protocols: tuple[str, ...] = ()
    """Published streams of it, such as ``b0-10`` or ``lt-ordered-b50-5``, where the number of classes is known."""
    download: Archive | ManualDownload | LibraryDownload = UNKNOWN_DOWNLOAD
    argument: str | None = None
    """What has to follow the name after a colon, such as ``PATH`` for ``folder:PATH``; None: nothing may."""
    size: DatasetSize | None = None
    """How large it is; None: known once it is loaded."""
    drawn_classes: tuple[str, ...] = ()
    """The classes in the order in which they were drawn from a larger dataset, if long tails follow that order."""
    holds_out_by_task: bool = False
    """Whether published long-tailed streams hold out one image of a task for each of its classes that is too small."""

    @property
    def form(self) -> str:
        """How the dataset is named: ``cifar100``, ``folder:PATH``."""
        return self.name if self.argument is None else f"{self.name}:{self.argument}"


DATASETS: Registry[DatasetEntry] = Registry("dataset", "drcil.data.datasets")
PROTOCOLS_OF_A_HUNDRED = ("b0-5", "b0-10", "b0-20", "b50-5", "b50-10", "b50-25")
"""The streams on which results are published for datasets of 100 classes."""
LONG_TAILED_PROTOCOLS = ("lt-ordered-b50-5", "lt-ordered-b50-10", "lt-shuffled-b50-5", "lt-shuffled-b50-10")
"""The same, with few training images of most classes."""

Load = TypeVar("Load", bound=Callable[..., Dataset])


def register_dataset(
    name: str,
    *,
    spec: DataSpec,
    classes: int | None = None,
    protocols: tuple[str, ...] = (),
    download: Archive | ManualDownload | LibraryDownload = UNKNOWN_DOWNLOAD,
    argument: str | None = None,
    size: DatasetSize | None = None,
    drawn_classes: tuple[str, ...] = (),
    holds_out_by_task: bool = False,
) -> Callable[[Load], Load]:
    """Register a function that loads a dataset; its docstring's first sentence is the summary."""

    def keep(load: Load) -> Load:
        entry = DatasetEntry(
            name, load, spec, classes, protocols, download, argument, size, drawn_classes, holds_out_by_task
        )
        DATASETS.register(name)(entry)
        return load

    return keep


def find_dataset(name: str) -> tuple[DatasetEntry, tuple[str, ...]]:
    """The registry entry of a name, and the loader's first argument: ``folder:PATH`` is ``folder`` with ``PATH``."""
    base_name, colon, argument = name.partition(":")
    entry = DATASETS[base_name]
    if entry.argument is None and colon:
        raise UserError(f"dataset '{name}' cannot be found: '{base_name}' takes no argument; name it without a colon")
    if entry.argument is not None and not argument:
        raise UserError(f"dataset '{name}' is incomplete; give it as {entry.form}")
    return entry, (argument,) if colon else ()


CIFAR_SPEC = DataSpec(
    kind="cifar",
    backbone="resnet32",
    memory="2000",
    large_base_memory="20/class",
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
    augment="auto",
    padding=4,
    flip=True,
    brightness=True,
    policy="cifar10",
    cutout=True,
)


DIGITS_SPEC = DataSpec(
    kind="digits",
    backbone="resnet-digits",
    transformer="convit-digits",
    memory="30",
    mean=(0.3052,),
    std=(0.3760,),
    augment="basic",
    padding=1,
)


PHOTO_SPEC = DataSpec(
    kind="imagenet",
    backbone="resnet18",
    memory="20/class",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    augment="basic",
    crop="resized",
    flip=True,
    brightness=True,
    policy="imagenet",
)


def data_kind(name: str) -> str:
    """Which tables of recipes and profiles apply to a dataset, known before it is loaded."""
    return find_dataset(name)[0].spec.kind


def load_dataset(name: str, data_dir: Path | None = None, image_size: int | None = None) -> Dataset:
    """A dataset by name: ``cifar100``, ``folder:PATH``.

    ``data_dir``: where downloaded datasets are (default: ``$DRCIL_DATA``, else ``./data``). ``image_size``: another
    size than the dataset's own; images in memory are averaged by area, images on disk are scaled and cropped to it.
    """
    image_size = optional(check_int, "the image size", image_size, IMAGE_SIZE)
    entry, argument = find_dataset(name)
    return entry.load(*argument, data_dir, image_size)


def find_source(ref: LeafRef, data_dir: Path | None = None) -> Source:
    """The source of a reference to a dataset or to files."""
    if isinstance(ref, DatasetRef):
        dataset = load_dataset(ref.name, data_dir, ref.size)
        return {"train": dataset.train, "test": dataset.test}[ref.split].source
    if isinstance(ref, FilesRef):
        return FileSource.from_ref(ref)
    raise ValueError(f"a source of kind '{ref.kind}' cannot be found again; keep a copy of its images")


def placeholder_dataset(name: str, image_size: int | None = None) -> Dataset | None:
    """The dataset of this name with dummy images, the same for all classes; None if its size is not known."""
    entry, argument = find_dataset(name)
    if argument or entry.classes is None or entry.size is None:
        return None
    size, channels, classes = image_size or entry.size.size, len(entry.spec.mean), entry.classes

    def images(count: int) -> ImageSet:
        # Photographs are read from files.
        source = PlaceholderSource(count, channels, size, in_memory=not entry.spec.photographs)
        rows = np.arange(count, dtype=np.int64)
        return ImageSet.of(source, rows, rows * classes // count)

    names = tuple(f"class {number}" for number in range(classes))
    return Dataset(name, names, images(entry.size.train), images(entry.size.test), entry.spec)


def skipped_files(dataset: Dataset) -> tuple[str, ...]:
    """The unreadable files that were left out of a dataset when it was loaded."""
    sources = {id(images.source): images.source for images in (dataset.train, dataset.test)}
    return tuple(path for source in sources.values() if isinstance(source, FileSource) for path in source.skipped)


@dataclass(frozen=True)
class Report:
    """The result of checking a dataset: facts, and problems by file."""

    facts: tuple[str, ...]
    problems: tuple[str, ...]
    dataset: Dataset


def check_dataset(
    name: str, data_dir: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Load a dataset, which checks its checksums, and decode every one of its pictures on disk."""
    dataset = load_dataset(name, data_dir)
    facts = [f"{dataset.name}: {len(dataset.classes)} classes"]
    problems: list[str] = []
    checked: list[Source] = []
    for split, images in (("train", dataset.train), ("test", dataset.test)):
        source = images.source
        facts.append(_summary(split, images, len(dataset.classes)))
        if isinstance(source, PictureSource) and not any(source is other for other in checked):
            bad = find_unreadable_pictures(source, progress)
            problems += [f"{source.name(row)}: {why}" for row, why in sorted(bad.items())]
        checked.append(source)
    return Report(tuple(facts), tuple(problems), dataset)


def _summary(split: str, images: ImageSet, classes: int) -> str:
    counts = images.counts(classes)
    per_class = str(counts.min()) if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    source = images.source
    colours = "grey" if source.channels == 1 else "RGB"
    text = f"{split}: {len(images)} images, {per_class} per class, {source.size}x{source.size} {colours}"
    return f"{text}, md5 as published" if isinstance(source.ref, DatasetRef) and source.ref.md5 else text

"""Datasets of the Hugging Face hub or on disk, as hf:NAME and hf:PATH.

The image column and the label column are found by their types. What is not found can be said behind the name, each
with a comma: ``hf:cifar100,label=fine_label``. The options are ``image`` and ``label`` (columns), ``train`` and
``test`` (splits), ``config`` and ``revision`` (of a dataset of the hub).

Labels are classes by name, strings or whole numbers. Test images are those of the split ``test``, or of ``validation``
where ``test`` has no labels; where there is neither, about a fifth of every class is set aside, chosen by a hash of the
row. Images are decoded when they are read: an unreadable one stops the run, and ``drcil data check`` finds them all.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from ...errors import UserError, shortened, unknown_name
from ...files import read_bytes
from ...process import silenced
from ...settings import expand_user
from ..class_folders import list_some, require_common, split_by_hash
from ..dataset import PHOTO_SPEC, Dataset, LibraryDownload, register_dataset
from ..decoding import FILE_LIMIT, STANDARD, Picture, open_image, open_picture, picture_in, read_picture
from ..file_source import PictureSource
from ..image_set import ImageSet
from ..source_refs import DatasetRef
from ..user_images import class_name

INSTALL = "pip install 'drcil[hf]'"


def import_datasets() -> Any:
    """The package; if it is missing, raises an error with the command that installs it."""
    if importlib.util.find_spec("datasets") is None:
        raise UserError(f"datasets 'hf:NAME' need Hugging Face's datasets, which is not installed; {INSTALL} does it")
    try:
        return importlib.import_module("datasets")
    except Exception as error:
        why = shortened(f"{type(error).__name__}: {error}")
        raise UserError(f"Hugging Face's datasets cannot be imported: {why}; install it with {INSTALL}") from error


def local_path(name: str) -> Path | None:
    """The local directory of a name; None: it is a name on the hub."""
    path = expand_user(name)
    if os.path.isdir(path):
        return path.absolute()
    if name.startswith((".", "/", "~")) or os.path.lexists(path):
        raise UserError(
            f"hf:{shortened(name)} is not a directory; give the name of a dataset of the Hugging Face hub, or the "
            "directory of one on disk"
        )
    return None


def load_splits(name: str, config: str | None, revision: str | None, shown: bool = False) -> dict[str, Any]:
    """The splits of a dataset, by name; a dataset that was saved without splits is ``train``.

    ``shown``: the library may show its progress.

    From the hub, or from this machine's cache of it; or from a directory, where ``save_to_disk`` wrote it, or
    with files of a format that the library knows. Code of a dataset is never run.
    """
    library, path = import_datasets(), local_path(name)
    with nullcontext() if shown else _silenced(library):
        try:
            if path is not None and _is_saved(path):
                loaded = library.load_from_disk(str(path))
            else:
                loaded = library.load_dataset(name if path is None else str(path), config, revision=revision)
        except Exception as error:  # Networks, formats and caches fail in many ways.
            raise UserError(f"hf:{shortened(name)} {_failure_reason(library, error, path)}") from error
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _is_saved(path: Path) -> bool:
    """Whether ``save_to_disk`` wrote this directory."""
    return any(os.path.isfile(path / name) for name in ("dataset_dict.json", "state.json"))


def _failure_reason(library: Any, error: Exception, path: Path | None) -> str:
    message = shortened(" ".join(str(error).split()) or type(error).__name__)
    if path is not None:
        return f"is not a dataset that can be loaded: {message}"
    if isinstance(error, ConnectionError):
        return (
            "is not in this machine's cache, and the Hugging Face hub cannot be reached; is this machine online? The "
            "directory of a dataset that is on disk can be given, too"
        )
    if isinstance(error, library.exceptions.DatasetNotFoundError):
        return f"cannot be downloaded from the Hugging Face hub: {message}"
    return f"cannot be loaded: {message}"


@contextmanager
def _silenced(library: Any) -> Iterator[None]:
    """Silence progress bars and messages of the library within the block."""
    bars = (library.utils, importlib.import_module("huggingface_hub.utils"))
    with ExitStack() as after, warnings.catch_warnings(), silenced("datasets", "huggingface_hub"):
        warnings.simplefilter("ignore")
        for module in bars:
            if not module.are_progress_bars_disabled():
                module.disable_progress_bars()
                after.callback(module.enable_progress_bars)
        yield


_LOOKED_AT = 64
"""The number of pictures from which the average size is estimated."""


class TableSource(PictureSource):
    """The pictures of one column, opened when they are read. The table stays on disk."""

    is_encoded = True

    def __init__(self, table: Any, column: str, dataset: str, split: Literal["train", "test"], size: int) -> None:
        """``table``: of ``datasets``, with this column not decoded. ``dataset`` and ``split`` lead back to it."""
        super().__init__(size)
        self.table, self.column, self.dataset, self.split = table, column, dataset, split

    def __len__(self) -> int:
        return len(self.table)

    def picture(self, row: int) -> AbstractContextManager[Image.Image]:
        content, path = self._stored(row)
        return open_picture(path) if content is None else picture_in(content)

    def quick_picture(self, row: int) -> AbstractContextManager[Picture]:
        content, path = self._stored(row)
        return open_image(read_picture(path) if content is None else content)

    def name(self, row: int) -> str:
        return f"row {row} of {self.dataset}, {self.split}"

    @property
    def ref(self) -> DatasetRef:
        return DatasetRef(name=self.dataset, split=self.split, size=self.size)

    def digest(self, row: int) -> bytes:
        return hashlib.sha256(self.file_bytes(row)).digest()

    def stored_bytes(self) -> int:
        rows = np.unique(np.linspace(0, len(self) - 1, _LOOKED_AT, dtype=np.int64)).tolist()
        return -(-sum(len(self.file_bytes(row)) for row in rows) // len(rows))

    def file_bytes(self, row: int) -> bytes:
        try:
            content, path = self._stored(row)
        except ValueError as error:
            raise UserError(f"{self.name(row)} cannot be read as an image ({error})") from None
        return read_bytes(Path(path), FILE_LIMIT) if content is None else content

    def _stored(self, row: int) -> tuple[bytes | None, str]:
        """The content of a picture's file, or else its path on this machine. Nothing is fetched from a network."""
        entry = self.table[row][self.column]
        if not isinstance(entry, dict) or not (entry["bytes"] or entry["path"]):
            raise ValueError("there is none")
        return entry["bytes"] or None, entry["path"] or ""


OPTIONS = ("image", "label", "train", "test", "config", "revision")
_TESTS = ("test", "validation", "valid", "val")
"""Names of test splits; the first with labels is used."""
_LABELS = ("label", "labels", "class", "category", "target")
"""Names of label columns of strings or numbers."""
_OPTION = re.compile(r",(?P<name>\w+)=(?P<value>[^,]*)$")


class HubReference(NamedTuple):
    """The text after ``hf:``, parsed."""

    name: str
    options: dict[str, str]

    def __str__(self) -> str:
        return "".join((f"hf:{self.name}", *(f",{name}={value}" for name, value in self.options.items())))


def fetch_hf(name: str) -> Path:
    """Download a dataset into the library's cache; returns its directory."""
    reference = parse_hub_reference(name)
    splits = load_splits(reference.name, reference.options.get("config"), reference.options.get("revision"), shown=True)
    return Path(next(iter(splits.values())).cache_files[0]["filename"]).parent


@register_dataset("hf", spec=PHOTO_SPEC, download=LibraryDownload(fetch_hf), argument="NAME")
def load_hf(name: str, root: Path | None = None, image_size: int | None = None) -> Dataset:
    """A dataset of the Hugging Face hub, or on disk. Options stand behind commas: see `OPTIONS`."""
    reference = parse_hub_reference(name)
    options = reference.options
    splits = load_splits(reference.name, options.get("config"), options.get("revision"))
    path = local_path(reference.name)
    source = reference if path is None else HubReference(str(path), options)
    training = _training_split(source, splits)
    columns = _image_column(source, splits[training]), _label_column(source, splits[training])
    names = _Names(source, splits, columns[1])
    testing = _test_split(source, splits, training, names)
    classes = names.of(training)
    size = image_size or STANDARD
    train = _image_set(source, "train", splits[training], columns[0], names.labels(training, classes), size)
    if testing is None:
        train, test = split_by_hash(train, classes, (b"%d" % row for row in train.rows.tolist()))
    else:
        require_common(classes, names.of(testing), f"{source}, {training}", f"{source}, {testing}")
        test = _image_set(source, "test", splits[testing], columns[0], names.labels(testing, classes), size)
    return Dataset(str(source), classes, train, test, PHOTO_SPEC)


def parse_hub_reference(text: str) -> HubReference:
    """A name and its options.

    >>> parse_hub_reference("cifar100,label=fine_label")
    HubReference(name='cifar100', options={'label': 'fine_label'})
    """
    options: dict[str, str] = {}
    while match := _OPTION.search(text):
        name, value = match["name"], match["value"]
        if name not in OPTIONS:
            raise unknown_name("option of a dataset", name, OPTIONS)
        if not value or name in options:
            raise UserError(f"'hf:{text}' must give '{name}' once, as {name}=NAME")
        options, text = {name: value, **options}, text[: match.start()]
    return HubReference(text, options)


class _Names:
    """The class names of the rows of every split, read from one column; None: the row has no label."""

    def __init__(self, reference: HubReference, splits: Mapping[str, Any], column: str) -> None:
        self._reference, self._splits, self._column = reference, splits, column
        self._rows: dict[str, tuple[str | None, ...]] = {}

    def rows(self, split: str) -> tuple[str | None, ...]:
        if split not in self._rows:
            table = self._splits[split]
            feature = table.features.get(self._column)
            values = _column(table, self._column) if feature is not None else [None] * len(table)
            class_names = getattr(feature, "names", None)
            self._rows[split] = tuple(_name(value, class_names, row) for row, value in enumerate(values))
        return self._rows[split]

    def of(self, split: str) -> tuple[str, ...]:
        """The classes of a split: in the order of the dataset's list, else numbers by size and strings sorted."""
        present = {name for name in self.rows(split) if name is not None}
        class_names = getattr(self._splits[split].features.get(self._column), "names", None)
        if class_names is not None:
            return tuple(name for name in class_names if name in present)
        if all(re.fullmatch(r"-?\d+", name) for name in present):
            return tuple(sorted(present, key=int))
        return tuple(sorted(present))

    def labels(self, split: str, classes: Sequence[str]) -> list[int]:
        """The label of every row."""
        numbers, rows = {name: number for number, name in enumerate(classes)}, self.rows(split)
        if None in rows or not rows:
            what = f"row {rows.index(None)} has no label in '{self._column}'" if rows else "it has no rows"
            raise UserError(f"split '{split}' of {self._reference} cannot be used: {what}")
        return [numbers[name] for name in rows if name is not None]


def _name(value: Any, class_names: Sequence[str] | None, row: int) -> str | None:
    if value is None or (class_names is not None and not 0 <= value < len(class_names)):
        return None
    if class_names is not None:
        return class_name(class_names[value], row)
    return str(value) if isinstance(value, bool) else class_name(value, row)


def _column(table: Any, column: str) -> list[Any]:
    values: list[Any] = table.select_columns([column]).with_format("arrow")[:].column(0).to_pylist()
    return values


def _training_split(reference: HubReference, splits: Mapping[str, Any]) -> str:
    wanted = reference.options.get("train")
    if wanted is not None:
        return _require_split(reference, wanted, splits)
    if "train" in splits or len(splits) != 1:
        return _require_split(reference, "train", splits, "; name the one to learn from with ,train=SPLIT")
    return next(iter(splits))


def _test_split(reference: HubReference, splits: Mapping[str, Any], training: str, names: _Names) -> str | None:
    """None: test images are split off the training images."""
    wanted = reference.options.get("test")
    if wanted is not None:
        return _require_split(reference, wanted, splits)
    candidates = [name for name in _TESTS if name in splits and name != training]
    return next((name for name in candidates if any(row is not None for row in names.rows(name))), None)


def _require_split(reference: HubReference, name: str, splits: Mapping[str, Any], hint: str = "") -> str:
    if name not in splits:
        raise UserError(f"{reference} has no split '{name}', but {list_some(list(splits))}{hint}")
    return name


def _image_column(reference: HubReference, table: Any) -> str:
    kind = import_datasets().Image
    columns = [name for name, feature in table.features.items() if isinstance(feature, kind)]
    return _select_column(reference, table, "image", "images", columns, columns)


def _label_column(reference: HubReference, table: Any) -> str:
    """The column of class labels, if there is one; else a column of strings or integers with a common name."""
    library = import_datasets()
    class_columns = [name for name, feature in table.features.items() if isinstance(feature, library.ClassLabel)]
    value_columns = [
        name
        for name, feature in table.features.items()
        if isinstance(feature, library.Value) and re.match(r"u?int|bool|string|large_string", feature.dtype)
    ]
    named_as_label = [name for name in value_columns if name.lower() in _LABELS]
    return _select_column(
        reference, table, "label", "labels", class_columns or named_as_label, [*class_columns, *value_columns]
    )


def _select_column(
    reference: HubReference, table: Any, option: str, what: str, names: list[str], possible: list[str]
) -> str:
    """The column named by the user, which must be among ``possible``, or the only candidate."""
    wanted = reference.options.get(option)
    if wanted is not None:
        if wanted in possible:
            return wanted
        wrong_type = f"column '{wanted}' of {reference} has no {what}"
        problem = wrong_type if wanted in table.features else f"{reference} has no column '{wanted}'"
        raise UserError(f"{problem}; columns with {what}: {list_some(possible) or 'none'}")
    if len(names) > 1:
        raise UserError(
            f"{reference} has several columns of {what}: {list_some(names)}; name one, such as hf:…,{option}={names[0]}"
        )
    if not names:
        hint = f"; name it with ,{option}=COLUMN" if possible else ""
        raise UserError(f"{reference} has no column of {what}; its columns are {list_some(list(table.features))}{hint}")
    return names[0]


def _image_set(
    reference: HubReference, split: Literal["train", "test"], table: Any, column: str, labels: list[int], size: int
) -> ImageSet:
    pictures = table.select_columns([column]).cast_column(column, import_datasets().Image(decode=False))
    rows = np.arange(len(labels), dtype=np.int64)
    return ImageSet.of(
        TableSource(pictures, column, str(reference), split, size), rows, np.array(labels, dtype=np.int64)
    )

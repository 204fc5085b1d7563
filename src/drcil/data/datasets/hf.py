"""``hf:NAME``: a dataset of the Hugging Face hub (``hf:OWNER/NAME``), or one on disk (``hf:PATH``).

The image column and the label column are found by their types. What is not found can be said behind the name, each
with a comma: ``hf:cifar100,label=fine_label``. The options are ``image`` and ``label`` (columns), ``train`` and
``test`` (splits), ``config`` and ``revision`` (of a dataset of the hub).

Labels are classes by name, strings or whole numbers. Test images are those of the split ``test``, or of ``validation``
where ``test`` has no labels; where there is neither, about a fifth of every class is set aside, chosen by a hash of the
row. Images are decoded when they are read: an unreadable one stops the run, and ``drcil data check`` finds them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import UserError, unknown
from ..labels import class_name
from ..sources.decode import STANDARD
from ..sources.imageset import ImageSet
from ..sources.table import TableSource
from .dataset import ByLibrary, Dataset, dataset
from .folder import SPEC
from .hf_library import import_datasets, load_splits, local_path
from .splits import require_common, set_aside, some

OPTIONS = ("image", "label", "train", "test", "config", "revision")
_TESTS = ("test", "validation", "valid", "val")
"""What splits to test with are called; the first that has labels is taken."""
_LABELS = ("label", "labels", "class", "category", "target")
"""What columns of labels are called that are strings or numbers."""
_OPTION = re.compile(r",(?P<name>\w+)=(?P<value>[^,]*)$")


class Place(NamedTuple):
    """What stands behind ``hf:``."""

    name: str
    options: dict[str, str]

    def __str__(self) -> str:
        return "".join((f"hf:{self.name}", *(f",{name}={value}" for name, value in self.options.items())))


def fetch_hf(place: str) -> Path:
    """Have the library fetch a dataset into its cache; where it is."""
    named = parse_place(place)
    splits = load_splits(named.name, named.options.get("config"), named.options.get("revision"), shown=True)
    return Path(next(iter(splits.values())).cache_files[0]["filename"]).parent


@dataset("hf", spec=SPEC, home=ByLibrary(fetch_hf), argument="NAME")
def load_hf(place: str, root: Path | None = None, image_size: int | None = None) -> Dataset:
    """A dataset of the Hugging Face hub, or on disk. Options stand behind commas: see `OPTIONS`."""
    named = parse_place(place)
    options = named.options
    splits = load_splits(named.name, options.get("config"), options.get("revision"))
    path = local_path(named.name)
    whole = named if path is None else Place(str(path), options)
    training = _training_split(whole, splits)
    columns = _image_column(whole, splits[training]), _label_column(whole, splits[training])
    names = _Names(whole, splits, columns[1])
    testing = _test_split(whole, splits, training, names)
    classes = names.of(training)
    size = image_size or STANDARD
    train = _image_set(whole, "train", splits[training], columns[0], names.labels(training, classes), size)
    if testing is None:
        train, test = set_aside(train, classes, (b"%d" % row for row in train.rows.tolist()))
    else:
        require_common(classes, names.of(testing), f"{whole}, {training}", f"{whole}, {testing}")
        test = _image_set(whole, "test", splits[testing], columns[0], names.labels(testing, classes), size)
    return Dataset(str(whole), classes, train, test, SPEC)


def parse_place(place: str) -> Place:
    """A name and its options.

    >>> parse_place("cifar100,label=fine_label")
    Place(name='cifar100', options={'label': 'fine_label'})
    """
    options: dict[str, str] = {}
    while match := _OPTION.search(place):
        name, value = match["name"], match["value"]
        if name not in OPTIONS:
            raise unknown("option of a dataset", name, OPTIONS)
        if not value or name in options:
            raise UserError(f"'hf:{place}' must give '{name}' once, as {name}=NAME")
        options, place = {name: value, **options}, place[: match.start()]
    return Place(place, options)


class _Names:
    """The class names of the rows of every split, read from one column; None: the row has no label."""

    def __init__(self, place: Place, splits: Mapping[str, Any], column: str) -> None:
        self._place, self._splits, self._column = place, splits, column
        self._found: dict[str, tuple[str | None, ...]] = {}

    def rows(self, split: str) -> tuple[str | None, ...]:
        if split not in self._found:
            table = self._splits[split]
            feature = table.features.get(self._column)
            values = _column(table, self._column) if feature is not None else [None] * len(table)
            known = getattr(feature, "names", None)
            self._found[split] = tuple(_name(value, known, row) for row, value in enumerate(values))
        return self._found[split]

    def of(self, split: str) -> tuple[str, ...]:
        """The classes of a split: in the order of the dataset's own list, else numbers by size and strings sorted."""
        there = {name for name in self.rows(split) if name is not None}
        listed = getattr(self._splits[split].features.get(self._column), "names", None)
        if listed is not None:
            return tuple(name for name in listed if name in there)
        if all(re.fullmatch(r"-?\d+", name) for name in there):
            return tuple(sorted(there, key=int))
        return tuple(sorted(there))

    def labels(self, split: str, classes: Sequence[str]) -> list[int]:
        """The label of every row."""
        numbers, rows = {name: number for number, name in enumerate(classes)}, self.rows(split)
        if None in rows or not rows:
            what = f"row {rows.index(None)} has no label in '{self._column}'" if rows else "it has no rows"
            raise UserError(f"split '{split}' of {self._place} cannot be used: {what}")
        return [numbers[name] for name in rows if name is not None]


def _name(value: Any, known: Sequence[str] | None, row: int) -> str | None:
    if value is None or (known is not None and not 0 <= value < len(known)):
        return None
    if known is not None:
        return class_name(known[value], row)
    return str(value) if isinstance(value, bool) else class_name(value, row)


def _column(table: Any, column: str) -> list[Any]:
    values: list[Any] = table.select_columns([column]).with_format("arrow")[:].column(0).to_pylist()
    return values


def _training_split(place: Place, splits: Mapping[str, Any]) -> str:
    wanted = place.options.get("train")
    if wanted is not None:
        return _known_split(place, wanted, splits)
    if "train" in splits or len(splits) != 1:
        return _known_split(place, "train", splits, "; name the one to learn from with ,train=SPLIT")
    return next(iter(splits))


def _test_split(place: Place, splits: Mapping[str, Any], training: str, names: _Names) -> str | None:
    """None: a share of the training images has to do."""
    wanted = place.options.get("test")
    if wanted is not None:
        return _known_split(place, wanted, splits)
    candidates = [name for name in _TESTS if name in splits and name != training]
    return next((name for name in candidates if any(row is not None for row in names.rows(name))), None)


def _known_split(place: Place, name: str, splits: Mapping[str, Any], hint: str = "") -> str:
    if name not in splits:
        raise UserError(f"{place} has no split '{name}', but {some(list(splits))}{hint}")
    return name


def _image_column(place: Place, table: Any) -> str:
    kind = import_datasets().Image
    found = [name for name, feature in table.features.items() if isinstance(feature, kind)]
    return _chosen(place, table, "image", "images", found, found)


def _label_column(place: Place, table: Any) -> str:
    """The classes, where the dataset has a list of them; else strings or whole numbers of a usual name."""
    library = import_datasets()
    listed = [name for name, feature in table.features.items() if isinstance(feature, library.ClassLabel)]
    plain = [
        name
        for name, feature in table.features.items()
        if isinstance(feature, library.Value) and re.match(r"u?int|bool|string|large_string", feature.dtype)
    ]
    usual = [name for name in plain if name.lower() in _LABELS]
    return _chosen(place, table, "label", "labels", listed or usual, [*listed, *plain])


def _chosen(place: Place, table: Any, option: str, what: str, found: list[str], possible: list[str]) -> str:
    """The column that was named, which must be possible, or the only one that was found."""
    wanted = place.options.get(option)
    if wanted is not None:
        if wanted in possible:
            return wanted
        wrong = f"column '{wanted}' of {place} has no {what}"
        said = wrong if wanted in table.features else f"{place} has no column '{wanted}'"
        raise UserError(f"{said}; columns with {what}: {some(possible) or 'none'}")
    if len(found) > 1:
        raise UserError(
            f"{place} has several columns of {what}: {some(found)}; name one, such as hf:…,{option}={found[0]}"
        )
    if not found:
        hint = f"; name it with ,{option}=COLUMN" if possible else ""
        raise UserError(f"{place} has no column of {what}; its columns are {some(list(table.features))}{hint}")
    return found[0]


def _image_set(place: Place, split: str, table: Any, column: str, labels: list[int], size: int) -> ImageSet:
    pictures = table.select_columns([column]).cast_column(column, import_datasets().Image(decode=False))
    rows = np.arange(len(labels), dtype=np.int64)
    return ImageSet(TableSource(pictures, column, str(place), split, size), rows, np.array(labels, dtype=np.int64))

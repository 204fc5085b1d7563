"""Which runs a cell of the paper asks for: method, stream, memory, augmentation, settings and class orders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..data.datasets.dataset import find_dataset
from ..errors import FaultError
from ..methods.resolve import unusual_settings
from ..methods.spec import named_method
from ..runs.settings import RunSettings, make_settings
from ..streams.longtail import long_tailed_spec
from ..streams.protocols import ORDER_SEED, parse_stream, protocol_memory
from .tables import Cell, PaperTable

_METHODS = {
    "Replay": "replay",
    "iCaRL": "icarl",
    "EEIL": "eeil",
    "BiC": "bic",
    "WA": "wa",
    "LUCIR": "lucir",
    "PODNet": "podnet",
    "DER w/o P": "der",
    "FOSTER": "foster",
    "FOSTER B4": "foster-b4",
    "DyTox": "dytox",
    "MAF": "maf",
    "MAF(ViT)": "maf-vit",
    "MAF+BFT": "maf+bft",
    "MAF+WA": "maf+wa",
    "MAF+DRC": "maf+drc",
    "MAF+DRC+LA": "mafdrc",
    "MAFRC": "mafrc",
    "MAFDRC": "mafdrc",
    "MAFDRC(ViT)": "mafdrc-vit",
    "MEC": "mec",
    "MEC+DRC": "mecdrc",
    "MDT": "mdt",
    "MDT+DRC": "mdtdrc",
}
"""Our names of the paper's methods."""
_TWO_STAGE = "+Two Stage"


@dataclass(frozen=True)
class Asked:
    """What is to be run for a cell. Equal ones are trained once, whatever tables they are in.

    What a run has anyway (memory, augmentation, backbone, settings of the recipe) is left out, so that a plain run of
    the same method is the same run.
    """

    method: str
    """With its readout, as users name it."""
    stream: str
    memory: str | None
    augment: str | None
    backbone: str | None
    settings: tuple[tuple[str, Any], ...]
    order_seed: int

    @property
    def _options(self) -> dict[str, str]:
        """Those that a plain run would have otherwise."""
        own = {"memory": self.memory, "augment": self.augment, "backbone": self.backbone}
        return {name: value for name, value in own.items() if value is not None}

    def details(self) -> tuple[str, ...]:
        """What a plain run would have otherwise, in words."""
        options = (f"{name} {value}" for name, value in self._options.items())
        order = () if self.order_seed == ORDER_SEED else (f"order {self.order_seed}",)
        return (*options, *(f"{name}={value}" for name, value in self.settings), *order)

    def command(self) -> str:
        """How to run it by itself."""
        options = [f"--{name} {value}" for name, value in self._options.items()]
        options += [f"--set {name}={value}" for name, value in self.settings]
        options += [] if self.order_seed == ORDER_SEED else [f"--order-seed {self.order_seed}"]
        return " ".join(["drcil run", self.method, self.stream, *options])

    def run_settings(self, **options: Any) -> RunSettings:
        """The run, with further options (profile, data directory, seed …); what is wrong with them is an error."""
        return make_settings(
            **{
                **options,
                **self._options,
                "method": self.method,
                "stream": self.stream,
                "order_seed": self.order_seed,
                "settings": {**options.get("settings", {}), **dict(self.settings)},
            }
        )


def asked_of(cell: Cell, orders: int = 1) -> tuple[Asked, ...]:
    """The runs whose mean is the cell: one for each class order. The paper does not say which orders it took after the
    first; ours are those of the next seeds.
    """
    name, _, exponent = cell.row.partition(" tro=")
    method = _METHODS.get(name.removesuffix(_TWO_STAGE))
    if method is None:
        raise FaultError(f"row '{cell.row}' of table {cell.table} has no method")
    method += "+two-stage" if name.endswith(_TWO_STAGE) else ""
    column = cell.column
    settings = parse_stream(column.stream)
    entry = find_dataset(settings.dataset)[0]
    spec = long_tailed_spec(entry.spec) if settings.tail else entry.spec
    memory = protocol_memory(settings, entry.classes or 0, spec)
    trained, _ = named_method(method)
    given = {"tro": float(exponent)} if exponent else {}
    own = tuple(unusual_settings(trained, spec.kind, given, column.stream).items())
    return tuple(
        Asked(
            method=method,
            stream=column.stream,
            memory=None if column.memory == memory else column.memory,
            augment=None if column.augment == spec.augment else column.augment,
            backbone=None if column.backbone == trained.backbone(spec) else column.backbone,
            settings=own,
            order_seed=seed,
        )
        for seed in range(ORDER_SEED, ORDER_SEED + orders)
    )


def swept(asked: Asked, setting: str, value: Any) -> Asked:
    """The same with one setting at another value."""
    spec, _ = named_method(asked.method)
    kind = find_dataset(parse_stream(asked.stream).dataset)[0].spec.kind
    given = {**dict(asked.settings), setting: value}
    return replace(asked, settings=tuple(unusual_settings(spec, kind, given, asked.stream, asked.backbone).items()))


def metric_of(cell: Cell) -> str:
    """The metric of ours that a cell shows: averages on long-tailed streams are unweighted means over tasks."""
    return "task_avg" if cell.column.protocol.startswith("lt-") else cell.column.metric


def runs_of(table: PaperTable) -> Iterator[tuple[Cell, tuple[Asked, ...]]]:
    """Every cell that has a value, with its runs."""
    for cell in table.cells.values():
        if cell.value is not None:
            yield cell, asked_of(cell, table.orders)


def trained(tables: Iterable[PaperTable]) -> tuple[Asked, ...]:
    """All that has to be trained for tables, each once; what is read in several ways is one run."""
    return trained_once(one for table in tables for _, runs in runs_of(table) for one in runs)


def trained_once(asked: Iterable[Asked]) -> tuple[Asked, ...]:
    """Each run once, whatever its readouts."""
    return tuple(dict.fromkeys(replace(one, method=named_method(one.method)[0].name) for one in asked))

"""The paper as data: every published figure has its run, and every run is valid."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from drcil.cli import main
from drcil.data.datasets.dataset import find_dataset
from drcil.errors import UserError
from drcil.methods.resolve import resolve_settings
from drcil.methods.spec import named_method
from drcil.metrics import METRICS
from drcil.paper.asked import Asked, asked_of, metric_of, runs_of, trained
from drcil.paper.tables import Cell, published, published_table
from drcil.streams.protocols import parse_stream

FACTS = Path(__file__).parents[2] / "shared" / "facts" / "paper_results.csv"
FIGURES = {
    **{"T1": 92, "T2": 80, "T3": 64, "T4": 16, "T5": 12, "T6": 24, "T7": 16, "T8": 16},
    **{"S1": 16, "S2": 12, "S3": 24, "S4": 16, "S5": 16, "S6": 24, "S7": 90, "S8": 80},
    **{"S9": 6, "S10": 18, "S11": 24, "S12": 24},
}
"""Non-empty cells by table."""


def cell(table: str, row: str, stream: str, metric: str = "avg") -> Cell:
    """The one that is meant, whatever else its column says."""
    cells = published_table(table).cells.values()
    (found,) = (cell for cell in cells if (cell.row, cell.column.stream, cell.column.metric) == (row, stream, metric))
    return found


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_valid_run(name: str) -> None:
    """Names exist, options are accepted, and the recipe resolves with the settings of the cell."""
    table = published_table(name)
    found = list(runs_of(table))
    assert len(found) == FIGURES[name]
    assert len(table.cells) == len(table.rows) * len(table.columns)
    for cell, runs in found:
        assert len(runs) == table.orders
        assert metric_of(cell) in METRICS
        assert (cell.error is not None) == (table.orders > 1)
        for run in runs:
            settings = run.run_settings()
            spec, _ = named_method(run.method)
            data = find_dataset(parse_stream(run.stream).dataset)[0].spec
            assert spec.backbone(data, settings.backbone) == cell.column.backbone
            resolve_settings(spec, data.kind, settings.settings, stream=run.stream)


def test_all_tables_are_there() -> None:
    assert list(published()) == list(FIGURES)


@pytest.mark.data
def test_figures_are_the_published_ones() -> None:
    """Cell by cell, against a list that was made from the paper by other means."""
    if not FACTS.exists():
        pytest.skip(f"{FACTS} is not there")
    printed: dict[str, list[tuple[str, str]]] = {name: [] for name in FIGURES}
    for line in csv.DictReader(FACTS.read_text().splitlines()):
        if line["table"] in printed:
            printed[line["table"]].append((line["value"], line["stderr"]))

    def digits(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    for name, values in printed.items():
        ours = [(digits(cell.value), digits(cell.error)) for cell in published_table(name).cells.values()]
        assert ours == values, name


def test_cells_ask_for_what_their_table_varies() -> None:
    usual = Asked("mafdrc", "cifar100-b0-10", None, None, None, (), 1993)
    assert asked_of(cell("T2", "MAFDRC", "cifar100-b0-10")) == (usual,)
    assert asked_of(cell("T4", "MAF+DRC+LA", "cifar100-b0-10")) == (usual,)
    (little,) = asked_of(cell("T8", "MAFDRC", "cifar100-b0-10"))
    assert (little.memory, little.augment) == ("20/class", None)
    (plain,) = asked_of(cell("S8", "MAFDRC", "cifar100-b0-10"))
    assert (plain.memory, plain.augment) == (None, "basic")
    assert asked_of(cell("S9", "MAFDRC tro=1.4", "cifar100-b0-20"))[0].settings == (("tro", 1.4),)
    assert asked_of(cell("S9", "MAFDRC tro=1.2", "cifar100-b0-20"))[0].settings == ()
    assert [one.order_seed for one in asked_of(cell("S12", "FOSTER", "cifar100-b0-5"), 3)] == [1993, 1994, 1995]
    tail = cell("T3", "LUCIR+Two Stage", "imagenet100-lt-shuffled-b50-10")
    assert asked_of(tail)[0].method == "lucir+two-stage"
    assert metric_of(tail) == "task_avg"


def test_shared_runs_are_trained_once() -> None:
    """T4 to T7 have 17 rows, of which 11 differ, on two datasets. FOSTER before and after compression is one run."""
    assert len(trained([published_table(name) for name in ("T4", "T5", "T6", "T7")])) == 2 * 11
    assert len(trained([published_table("T8")])) == 2 * 3


def test_commands_are_those_of_the_cells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "s9", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert first["runs"] == ["drcil run mafdrc cifar100-b0-20 --set tro=1.0"]
    assert first["value"] == 71.04


def test_tables_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper"]) == 0
    assert "368 runs" in capsys.readouterr().out
    assert main(["paper", "S11"]) == 0
    out = capsys.readouterr().out
    assert "82.31" in out and "±0.33" in out  # in two lines where there is little room


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(UserError, match="unknown table 'T9'"):
        published_table("T9")

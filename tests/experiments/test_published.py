"""The paper as data: every published figure has its run, and every run is valid."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from drcil.cli import main
from drcil.data.dataset import find_dataset, placeholder_dataset
from drcil.errors import UserError
from drcil.experiments.published import (
    PaperRun,
    PublishedValue,
    figures,
    metric_of,
    paper_run,
    published,
    published_table,
    runs_of,
    swept,
    trained,
)
from drcil.methods.catalog import named_method, resolve_settings
from drcil.methods.dry_run import dry_run
from drcil.metrics import METRICS
from drcil.runs.plan import fresh_model, load_stream
from drcil.stages import Stage
from drcil.streams.protocols import parse_stream
from support.stage_recorder import losses

DIGEST = "7b8fe73ed195d8c3881855a70c3f4c56c66636b6ae072fcac512b238baebe8a1"
"""Of the published figures, as they were when they were last compared with the paper."""
FIGURES = {
    **{"T1": 92, "T2": 80, "T3": 64, "T4": 16, "T5": 12, "T6": 24, "T7": 16, "T8": 16},
    **{"S1": 16, "S2": 12, "S3": 24, "S4": 16, "S5": 16, "S6": 24, "S7": 90, "S8": 80},
    **{"S9": 6, "S10": 18, "S11": 24, "S12": 24},
}
"""Non-empty cells by table."""


def cell(table: str, row: str, stream: str, metric: str = "avg") -> PublishedValue:
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


def printed(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def test_published_figures_are_as_they_were_read() -> None:
    """Every figure in its row and column. Whoever corrects one compares it with the paper, and renews the digest."""
    lines = [
        ",".join([name, row, *map(str, astuple(column)), printed(cell.value), printed(cell.error)])
        for name, table in published().items()
        for (row, column), cell in table.cells.items()
    ]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == DIGEST


@pytest.mark.data
def test_figures_are_those_of_another_list(data_dir: Path) -> None:
    """Cell by cell, against a list that was made from the paper by other means, beside the directory of the data."""
    path = data_dir.parent / "facts" / "paper_results.csv"
    if not path.exists():
        pytest.skip(f"needs a list of the published figures: {path} is not there")
    others: dict[str, list[tuple[str, str]]] = {name: [] for name in FIGURES}
    for line in csv.DictReader(path.read_text().splitlines()):
        if line["table"] in others:
            others[line["table"]].append((line["value"], line["stderr"]))
    for name, values in others.items():
        assert [(printed(cell.value), printed(cell.error)) for cell in published_table(name).cells.values()] == values


def test_cells_ask_for_what_their_table_varies() -> None:
    usual = PaperRun("mafdrc", "cifar100-b0-10", None, None, None, (), 1993)
    assert paper_run(cell("T2", "MAFDRC", "cifar100-b0-10")) == (usual,)
    assert paper_run(cell("T4", "MAF+DRC+LA", "cifar100-b0-10")) == (usual,)
    (little,) = paper_run(cell("T8", "MAFDRC", "cifar100-b0-10"))
    assert (little.memory, little.augment) == ("20/class", None)
    (plain,) = paper_run(cell("S8", "MAFDRC", "cifar100-b0-10"))
    assert (plain.memory, plain.augment) == (None, "basic")
    assert paper_run(cell("S9", "MAFDRC tro=1.4", "cifar100-b0-20"))[0].settings == (("tro", 1.4),)
    assert paper_run(cell("S9", "MAFDRC tro=1.2", "cifar100-b0-20"))[0].settings == ()
    assert [one.order_seed for one in paper_run(cell("S12", "FOSTER", "cifar100-b0-5"), 3)] == [1993, 1994, 1995]
    tail = cell("T3", "LUCIR+Two Stage", "imagenet100-lt-shuffled-b50-10")
    assert paper_run(tail)[0].method == "lucir+two-stage"
    assert metric_of(tail) == "task_avg"


class Losses:
    """Hears in a rehearsal of every stage, and notes its weighted loss terms on some images."""

    def __init__(self) -> None:
        self.terms: list[dict[str, float]] = []

    def begins(self) -> None: ...
    def ends(self) -> None: ...
    def looks(self, net: nn.Module, images: int) -> None: ...

    def trains(self, stage: Stage, images: int) -> None:
        pictures = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        labels = torch.from_numpy(np.quantile(stage.data.labels, np.linspace(0, 1, 8), method="nearest"))
        with torch.no_grad():
            terms = losses(stage, pictures, labels)
        self.terms.append({name: term.weight * float(term.value) for name, term in terms.items()})


def loss_terms(asked: PaperRun) -> list[dict[str, float]]:
    """The loss terms of every stage of the first two tasks of a run, before training, on its stream's images."""
    run, heard = asked.run_settings(), Losses()
    stream = load_stream(run, placeholder_dataset("cifar100"))
    model = fresh_model(run, stream)
    assert all(dry_run(model.method, stream[:2], model.memory.budget, heard))
    assert all(math.isfinite(value) for terms in heard.terms for value in terms.values())
    return heard.terms


def test_what_is_swept_changes_the_objective_on_its_stream() -> None:
    """Each value of a setting that a figure or a row of a table varies gives a loss of its own."""
    sweeps = [tuple(figure.points(setting).values()) for figure in figures().values() for setting in figure.sweep]
    runs = [run for table in published().values() for _, asked in runs_of(table) for run in asked]
    sweeps += [(replace(run, settings=()), run) for run in dict.fromkeys(runs) if run.settings]
    assert {setting for points in sweeps for run in points for setting, _ in run.settings} == {
        "alpha",
        "old_distillation",
        "tro",
    }
    for points in sweeps:
        found = [loss_terms(run) for run in points]
        assert all(one != other for one, other in itertools.combinations(found, 2)), points


def test_the_weight_of_distillation_is_that_of_the_old_classes_and_in_the_text_of_both() -> None:
    """Equation 13 has one weight; the published program has two and keeps that of the new classes."""
    run = paper_run(cell("T2", "MAFDRC", "cifar100-b0-10"))[0]
    assert swept(run, "old_distillation", 6.0).settings == (("old_distillation", 6.0),)
    text = replace(run, method="mafdrc-text")
    both = (("old_distillation", 6.0), ("new_distillation", 6.0))
    assert swept(text, "old_distillation", 6.0).settings == both
    assert swept(text, "old_distillation", 4.0).settings == ()


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


def test_figures_without_numbers_are_drawings(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("F2", "f3", "F4"):
        assert main(["paper", name]) == 2
        said = f"{name.upper()} is a drawing without numbers"
        assert said in " ".join(capsys.readouterr().err.split())


def test_figures_that_are_not_in_the_text_have_their_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "S10"]) == 0
    assert "20 tasks are from the final supplement" in capsys.readouterr().out
    assert main(["paper", "S9"]) == 0
    assert "supplement" not in capsys.readouterr().out

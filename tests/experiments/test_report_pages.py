"""Reports of many runs: true to what was measured, complete in themselves, whatever names are in them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from drcil.experiments.pages import plot_chart, report_page
from drcil.experiments.plots import band, line_styles, plot_files, plot_lines
from drcil.experiments.summary import Mean, mean_of, noise_of_means, noise_of_one, student
from drcil.experiments.tables import Cell, Plot, Report, Table, report_runs
from drcil.experiments.writers import report_csv, report_markdown
from support.html_reader import Page
from support.reports import AVG, EVIL, LAST, record, report


def test_a_difference_is_noise_if_chance_would_make_it_in_one_case_of_twenty() -> None:
    """Three runs: 79, 80, 81 have s = 1, so the mean errs by 1/√3, and a single published run by 1."""
    cell = report().tables[0].cells["MAF", AVG]
    assert cell.noise == pytest.approx(4.3027 * (1 + 1 / 3) ** 0.5, rel=1e-4)
    assert cell.verdict == "within noise"
    assert replace(cell, published=74.0).verdict == "outside noise"
    # A published error of another three runs as noisy as ours doubles the degrees of freedom: 2.776 for four.
    alike = replace(cell, published_error=(1 / 3) ** 0.5, published_orders=3)
    assert alike.noise == pytest.approx(2.7764 * (2 / 3) ** 0.5, rel=1e-4)
    # One run says nothing about noise, however far it is off.
    alone = Cell("avg", (record(avg=10.0),), 80.0, 0.1, published_orders=3)
    assert alone.noise is None and alone.verdict == "one run"
    assert Cell("avg", (record(),)).verdict is None
    # Nor do two seeds of one class order, where others are to come.
    orders = (record(), record(seed=1, avg=70.0), record(order_seed=1994, finished=False))
    assert Cell("avg", orders, 80.0).verdict == "one class order"


@pytest.mark.parametrize(("spread", "other"), [(1.0, 1.0), (1.0, 3.0), (2.0, 0.2), (1.0, None)])
def test_nineteen_of_twenty_differences_are_within_noise(spread: float, other: float | None) -> None:
    """Ours and theirs are three runs each, or theirs is one that varies as ours do; nothing but chance is between."""
    draws, count = np.random.default_rng(0), 1000
    within = 0
    for _ in range(count):
        ours = mean_of(list(draws.normal(0, spread, 3)))
        theirs = mean_of(list(draws.normal(0, other or spread, 3 if other else 1)))
        assert ours.error is not None
        noise = noise_of_one(ours.error, 3) if theirs.error is None else noise_of_means(ours.error, 3, theirs.error, 3)
        within += abs(ours.mean - theirs.mean) <= noise
    # Welch's approximation may be a little too careful; without an error of theirs it is exact.
    assert 0.93 < within / count < (0.98 if other else 0.97)
    assert [round(student(freedom), 3) for freedom in (1, 2, 10)] == [12.706, 4.303, 2.228]


def test_cells_without_a_figure_say_why() -> None:
    cells = report().tables[0].cells
    told = {at: cells[at].missing for at in (("MAF", AVG), ("iCaRL", LAST), ("WA", AVG), ("WA", LAST))}
    assert list(told.values()) == ["", "data not found", "failed", "not run"]


def test_the_page_of_a_suite_has_its_figures_and_fetches_nothing() -> None:
    page = Page(report_page(report()))
    page.require_complete()
    assert page.count("h1") == 1 and page.count("dialog") == 1
    # The table, and the values of two plots.
    assert page.count("table") == 3 and page.count("figure") == 2
    text = " ".join(page.text.split())
    for shown in ("80.00 ±0.58", "80.50", "-0.50 within noise", "+20.00 outside noise", "-1.00 one run"):
        assert shown in text
    for shown in ("data not found", "failed", "not run", "A difference is within noise if", "wa, seed 0: it broke"):
        assert shown in text
    assert "4 of 6 runs finished, 1 failed, 1 not run yet" in text
    assert page.count("td", **{"class": "within"}) == 1 and page.count("td", **{"class": "single"}) == 1
    curve = page.data["plot-0"]["series"][0]
    assert (curve["name"], curve["x"], curve["y"], curve["is_highlighted"]) == ("MAF", [2, 5], [90.0, 70.0], True)


def test_a_smaller_budget_is_shown_beside_what_was_published_without_a_verdict() -> None:
    """A row made from another is told as a difference, which can be looked at on any budget."""
    cells = {
        ("MAF", AVG): Cell("avg", (record(avg=60.0),), 69.61, full_budget=False),
        ("MAF+DRC", AVG): Cell("avg", (record(seed=1, avg=63.0),), 72.80, full_budget=False),
        ("WA", AVG): Cell("avg", (), 67.0, full_budget=False),
    }
    small = Report("A suite", "", (Table("T0", "Small", cells),))
    page = Page(report_page(small))
    text = " ".join(page.text.split())
    assert "-9.61" in text and "MAF+DRC − MAF +3.00 +3.19" in text
    assert page.count("td", **{"class": "single"}) == 0 and "within noise" not in text
    markdown = report_markdown(small, {})
    assert "| MAF | 60.00 | 69.61 | -9.61 |\n" in markdown and "| MAF+DRC − MAF | +3.00 | +3.19 |\n" in markdown
    assert "within noise" not in markdown


def test_every_run_is_in_the_page_once_and_a_cell_opens_its_runs() -> None:
    details = Page(report_page(report())).details
    names = [run["name"] for run in details["runs"]]
    assert names == ["maf, seed 0", "maf, seed 1", "maf, seed 2", "icarl, seed 0", "wa, seed 0", "wa, seed 1"]
    opened = {(opener["title"], tuple(names[number] for number in opener["runs"])) for opener in details["openers"]}
    assert ("MAF: Avg", ("maf, seed 0", "maf, seed 1", "maf, seed 2")) in opened
    first = details["runs"][0]
    facts = dict(first["facts"])
    assert facts["command"] == "drcil run maf digits-b0-5" and facts["commit"] == "0123456789"
    assert facts["budget"] == "profile full, 2 tasks" and facts["directory"] == "runs/maf-0"
    charts = {caption.partition(":")[0].partition(" ")[0]: chart for caption, chart in first["charts"]}
    assert charts["Forgetting"]["values"] == [[0.0], [30.0, 0.0]]
    assert charts["Confusion"]["values"] == [[75.0, 25.0], [5.0, 95.0]]
    assert details["runs"][4]["state"] == "failed: it broke"


def test_names_are_text_in_every_format() -> None:
    evil = record(EVIL, directory=EVIL)
    assert evil.result is not None
    made = replace(report_runs([evil], EVIL), title=EVIL, failures=(EVIL,), notes=(EVIL,))
    page = Page(report_page(made))
    page.require_complete()
    # Two scripts, and two of data.
    assert page.count("script") == 4 and page.count("b") == 0 and EVIL in page.text
    assert "<b>" not in report_markdown(replace(made, command=""), {}).replace("\\<b\\>", "")
    assert EVIL in {row["row"] for row in csv.DictReader(io.StringIO(report_csv(made)))}


def test_a_page_of_hundreds_of_runs_stays_small() -> None:
    """Ten tasks each: the first have charts, and all have their figures in the table."""
    matrix = [[100 / 3] * (task + 1) for task in range(10)]
    figures: dict[str, Any] = {
        "tasks": [10] * 10,
        "curve": [100 / 3] * 10,
        "matrix": matrix,
        "confusion": [[100 / 3] * 10] * 10,
    }
    records = [record(f"method{number}", seed, **figures) for number in range(60) for seed in range(5)]
    page = report_page(report_runs(records))
    assert len(page.encode()) < 300_000
    runs = Page(page).details["runs"]
    assert len(runs) == 300 and "charts" in runs[0] and "charts" not in runs[-1]
    assert runs[-1]["facts"] == [["directory", "runs/method59-4"]]
    assert len(report_page(report()).encode()) < 60_000


def test_markdown_and_csv_say_the_same() -> None:
    made = report()
    text = report_markdown(made, {"F0, digits": "plots/F0-digits.png"})
    assert (
        "| MAF | 80.00 ±0.58 | 80.50 | -0.50 | within noise | 70.00 ±0.00 | 50.00 ±0.50 | +20.00 | outside noise |"
        in text
    )
    assert "| WA | failed | 70.00 |  |  | not run | 70.00 |  |  |" in text
    assert "![F0, digits](plots/F0-digits.png)" in text and "| alpha | 0.1 | 0.2 |" in text
    rows = list(csv.DictReader(io.StringIO(report_csv(made))))
    first = rows[0]
    assert (first["table"], first["row"], first["metric"], first["measured"]) == ("T0", "MAF", "avg", "80.0")
    assert float(first["error"]) == pytest.approx(mean_of([79.0, 80.0, 81.0]).error or 0)
    assert (first["runs"], first["over"], first["verdict"]) == ("3", "3 seeds", "within noise")
    assert rows[-1]["row"] == "MAF" and rows[-1]["column"] == "alpha 0.2" and rows[-1]["measured"] == "71.0"


def test_the_highlighted_line_has_the_first_colour() -> None:
    assert line_styles([False, False, True, False]) == [1, 2, 0, 3] and line_styles([False, False]) == [0, 1]


def test_bands_of_errors_are_within_the_axes(tmp_path: Path) -> None:
    """Means from 93.5 to 95.9, of which the lowest errs by 1.4 and the highest by 0.3."""
    lines = {"maf": ((0.1, Mean(95.9, 0.3)), (0.2, Mean(93.5, 1.4)))}
    bottom, top = plot_chart(Plot("alpha", "", "alpha", "Avg (%)", lines)).data()["limits"]
    assert bottom <= 92.1 and top >= 96.2
    assert band([95.9, None], [0.3, None]) == pytest.approx([95.6, 96.2])


def test_plots_are_pictures_for_papers(tmp_path: Path) -> None:
    curves, sweep = report().plots
    plot_lines(curves, tmp_path / "F0.png")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["F0.pdf", "F0.png"]
    with Image.open(tmp_path / "F0.png") as image:
        shown = {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or ()}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= shown
    assert (tmp_path / "F0.pdf").read_bytes().startswith(b"%PDF")
    names = [curves.name, "F0 digits", sweep.name]
    assert list(plot_files(names).values()) == ["plots/F0-digits.png", "plots/F0-digits-2.png", "plots/F9-alpha.png"]

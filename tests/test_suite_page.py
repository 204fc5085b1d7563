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

from drcil.report.about import About
from drcil.report.figures import PLAIN
from drcil.report.gathered import stream_table, task_curves
from drcil.report.measured import Curves, Heading, MeasuredCell, MeasuredTable, SuiteReport
from drcil.report.noise import noise_of_means, noise_of_one, student
from drcil.report.outcomes import Figure, Outcome, figure
from drcil.report.pages import suite_page
from drcil.report.pages.charts import plotted
from drcil.report.plots import plot_files, plot_lines, reached, spread
from drcil.report.written import report_csv, report_markdown
from page_reading import Page
from test_pages import EVIL, measured

AVG, LAST = Heading("digits-b0-5, memory 30", "avg"), Heading("digits-b0-5, memory 30", "last")


def outcome(seed: int = 0, avg: float = 80.0, method: str = "maf", directory: str = "", **more: Any) -> Outcome:
    own = measured(method, ("classifier",), seed)
    figures = own["readouts"]["classifier"]
    figures |= {"avg": avg, "parameters": 1000.0}
    about = About(f"drcil run {method} digits-b0-5 --seed {seed}", {"commit": "0123456789" * 4})
    return replace(Outcome(method, seed, directory or f"runs/{method}-{seed}", own, about=about), **more)


def report(row: str = "MAF") -> SuiteReport:
    """A table with every kind of cell, and two plots."""
    three = tuple(outcome(seed, avg) for seed, avg in enumerate((79.0, 80.0, 81.0)))
    broken = (Outcome("wa", 0, "runs/wa", None, "it broke"),)
    cells = {
        (row, AVG): MeasuredCell("avg", three, 80.5),
        (row, LAST): MeasuredCell("last", three, 50.0, 0.5, published_runs=3),
        ("iCaRL", AVG): MeasuredCell("avg", (outcome(method="icarl", avg=60.0),), 61.0),
        ("iCaRL", LAST): MeasuredCell("last", (), 40.0, None, "data not found"),
        ("WA", AVG): MeasuredCell("avg", broken, 70.0),
        ("WA", LAST): MeasuredCell("last", (Outcome("wa", 1, "runs/wa-1", None),), 70.0),
    }
    table = MeasuredTable("T0", "Small", (row, "iCaRL", "WA"), (AVG, LAST), cells)
    curves = task_curves("F0, digits", "After each task", PLAIN, {row: three, "iCaRL": (outcome(avg=60.0),)}, row)
    assert curves is not None
    sweep = Curves(
        "F9, alpha", "Swept", "alpha", "Avg (%)", {row: ((0.1, Figure(70.0, None)), (0.2, Figure(71.0, None)))}
    )
    return SuiteReport("A suite", "drcil reproduce T0", (table,), (curves, sweep), ("wa, seed 0: it broke",))


def test_a_difference_is_noise_if_chance_would_make_it_in_one_case_of_twenty() -> None:
    """Three runs: 79, 80, 81 have s = 1, so the mean errs by 1/√3, and a single published run by 1."""
    cell = report().tables[0].cells["MAF", AVG]
    assert cell.noise == pytest.approx(4.3027 * (1 + 1 / 3) ** 0.5, rel=1e-4)
    assert cell.verdict == "within noise"
    assert replace(cell, published=74.0).verdict == "outside noise"
    # A published error of another three runs as noisy as ours doubles the degrees of freedom: 2.776 for four.
    alike = replace(cell, published_error=(1 / 3) ** 0.5, published_runs=3)
    assert alike.noise == pytest.approx(2.7764 * (2 / 3) ** 0.5, rel=1e-4)
    # One run says nothing about noise, however far it is off.
    alone = MeasuredCell("avg", (outcome(avg=10.0),), 80.0, 0.1, published_runs=3)
    assert alone.noise is None and alone.verdict == "one run"
    assert MeasuredCell("avg", (outcome(),)).verdict is None
    # Nor do two seeds of one class order, where others are to come.
    orders = (outcome(0), outcome(1, 70.0), Outcome("maf", 0, "", None, order_seed=1994))
    assert MeasuredCell("avg", orders, 80.0).verdict == "one class order"


@pytest.mark.parametrize(("spread", "other"), [(1.0, 1.0), (1.0, 3.0), (2.0, 0.2), (1.0, None)])
def test_nineteen_of_twenty_differences_are_within_noise(spread: float, other: float | None) -> None:
    """Ours and theirs are three runs each, or theirs is one that varies as ours do; nothing but chance is between."""
    draws, count = np.random.default_rng(0), 1000
    within = 0
    for _ in range(count):
        ours = figure(list(draws.normal(0, spread, 3)))
        theirs = figure(list(draws.normal(0, other or spread, 3 if other else 1)))
        assert ours.error is not None
        noise = noise_of_one(ours.error, 3) if theirs.error is None else noise_of_means(ours.error, 3, theirs.error, 3)
        within += abs(ours.mean - theirs.mean) <= noise
    # Welch's approximation may be a little too careful; without an error of theirs it is exact.
    assert 0.93 < within / count < (0.98 if other else 0.97)
    assert [round(student(freedom), 3) for freedom in (1, 2, 10)] == [12.706, 4.303, 2.228]


def test_cells_without_a_figure_say_why() -> None:
    cells = report().tables[0].cells
    told = {at: cells[at].lacking for at in (("MAF", AVG), ("iCaRL", LAST), ("WA", AVG), ("WA", LAST))}
    assert list(told.values()) == ["", "data not found", "failed", "not run"]


def test_the_page_of_a_suite_has_its_figures_and_fetches_nothing() -> None:
    page = Page(suite_page(report()))
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
    assert (curve["name"], curve["across"], curve["along"], curve["marked"]) == ("MAF", [2, 5], [90.0, 70.0], True)


def test_a_smaller_budget_is_shown_beside_what_was_published_without_a_verdict() -> None:
    """A row made from another is told as a difference, which can be looked at on any budget."""
    cells = {
        ("MAF", AVG): MeasuredCell("avg", (outcome(avg=60.0),), 69.61, comparable=False),
        ("MAF+DRC", AVG): MeasuredCell("avg", (outcome(1, 63.0),), 72.80, comparable=False),
        ("WA", AVG): MeasuredCell("avg", (), 67.0, comparable=False),
    }
    small = SuiteReport("A suite", "", (MeasuredTable("T0", "Small", ("MAF", "MAF+DRC", "WA"), (AVG,), cells),))
    page = Page(suite_page(small))
    text = " ".join(page.text.split())
    assert "-9.61" in text and "MAF+DRC − MAF +3.00 +3.19" in text
    assert page.count("td", **{"class": "single"}) == 0 and "within noise" not in text
    markdown = report_markdown(small, {})
    assert "| MAF | 60.00 | 69.61 | -9.61 |\n" in markdown and "| MAF+DRC − MAF | +3.00 | +3.19 |\n" in markdown
    assert "within noise" not in markdown


def test_every_run_is_in_the_page_once_and_a_cell_opens_its_own() -> None:
    behind = Page(suite_page(report())).behind
    names = [run["name"] for run in behind["runs"]]
    assert names == ["maf, seed 0", "maf, seed 1", "maf, seed 2", "icarl, seed 0", "wa, seed 0", "wa, seed 1"] + [
        "maf, seed 0"
    ] * (len(names) - 6)
    opened = {(own["title"], tuple(names[number] for number in own["runs"])) for own in behind["opened"]}
    assert ("MAF: Avg", ("maf, seed 0", "maf, seed 1", "maf, seed 2")) in opened
    first = behind["runs"][0]
    facts = dict(first["facts"])
    assert facts["command"] == "drcil run maf digits-b0-5 --seed 0" and facts["commit"] == "0123456789"
    assert facts["budget"].startswith("profile cpu, 50 % of the epochs, images of 8 pixels")
    assert facts["directory"] == "runs/maf-0"
    charts = {caption.partition(":")[0].partition(" ")[0]: chart for caption, chart in first["charts"]}
    assert charts["Forgetting"]["values"] == [[0.0], [30.0, 0.0]]
    assert charts["Confusion"]["values"] == [[75.0, 25.0], [5.0, 95.0]]
    assert behind["runs"][4]["why"] == "failed: it broke"


def test_names_are_text_in_every_format() -> None:
    evil = outcome(method=EVIL, directory=EVIL)
    table = stream_table(EVIL, EVIL, PLAIN, {EVIL: (evil,)})
    curves = task_curves(EVIL, EVIL, PLAIN, {EVIL: (evil,)})
    assert curves is not None
    own = SuiteReport(EVIL, "", (table,), (curves,), (EVIL,), (EVIL,))
    page = Page(suite_page(own))
    page.require_complete()
    # Bokeh, its interface, two scripts of ours, and two of data.
    assert page.count("script") == 6 and page.count("b") == 0 and EVIL in page.text
    assert "<b>" not in report_markdown(own, {}).replace("\\<b\\>", "")
    assert EVIL in {row["row"] for row in csv.DictReader(io.StringIO(report_csv(own)))}


def test_a_hundred_runs_make_a_page_that_can_be_sent() -> None:
    """Twenty tasks each; Bokeh alone is over a megabyte, and is there once."""
    matrix = [[100 / 3] * (task + 1) for task in range(20)]
    runs = []
    for seed in range(100):
        one = outcome(seed)
        assert one.result is not None
        own = one.result["readouts"]["classifier"]
        own |= {"matrix": matrix, "confusion": [[100 / 3] * 20] * 20}
        runs.append(one)
    table = stream_table("digits-b0-5", "", PLAIN, {f"row {number}": (run,) for number, run in enumerate(runs)})
    page = suite_page(SuiteReport("Many", "", (table,)))
    assert page.count("Bokeh Contributors") < 10 and len(page) < 3_000_000


def test_markdown_and_csv_say_the_same() -> None:
    own = report()
    text = report_markdown(own, {"F0, digits": "plots/F0-digits.png"})
    assert (
        "| MAF | 80.00 ±0.58 | 80.50 | -0.50 | within noise | 70.00 ±0.00 | 50.00 ±0.50 | +20.00 | outside noise |"
        in text
    )
    assert "| WA | failed | 70.00 |  |  | not run | 70.00 |  |  |" in text
    assert "![F0, digits](plots/F0-digits.png)" in text and "| alpha | 0.1 | 0.2 |" in text
    rows = list(csv.DictReader(io.StringIO(report_csv(own))))
    first = rows[0]
    assert (first["table"], first["row"], first["metric"], first["measured"]) == ("T0", "MAF", "avg", "80.0")
    assert float(first["error"]) == pytest.approx(figure([79.0, 80.0, 81.0]).error or 0)
    assert (first["runs"], first["over"], first["verdict"]) == ("3", "3 seeds", "within noise")
    assert rows[-1]["row"] == "MAF" and rows[-1]["column"] == "alpha 0.2" and rows[-1]["measured"] == "71.0"


@pytest.mark.parametrize("count", [1, 2, 12, 30])
def test_names_at_the_ends_of_lines_do_not_touch(count: int) -> None:
    wanted = [50 + (7 * number % 5) for number in range(count)]
    placed = spread(wanted, 2.0, 0.0, 70.0)
    assert min((b - a for a, b in zip(sorted(placed), sorted(placed)[1:], strict=False)), default=2.0) >= 2.0 - 1e-9
    # Whoever wanted to be above is.
    order = sorted(range(count), key=lambda at: placed[at])
    assert [wanted[at] for at in order] == sorted(wanted) and min(placed) >= 0 and max(placed) <= 70 + 1e-9


def test_bands_of_errors_are_within_the_axes(tmp_path: Path) -> None:
    """Means from 93.5 to 95.9, of which the lowest errs by 1.4 and the highest by 0.3."""
    lines = {"maf": ((0.1, Figure(95.9, 0.3)), (0.2, Figure(93.5, 1.4)))}
    bottom, top = plotted(Curves("alpha", "", "alpha", "Avg (%)", lines)).data()["limits"]
    assert bottom <= 92.1 and top >= 96.2
    assert reached([95.9, None], [0.3, None]) == pytest.approx([95.6, 96.2])


def test_plots_are_pictures_for_papers(tmp_path: Path) -> None:
    curves, sweep = report().curves
    plot_lines(curves, tmp_path / "F0.png")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["F0.pdf", "F0.png"]
    with Image.open(tmp_path / "F0.png") as image:
        shown = {colour for _, colour in image.convert("RGB").getcolors(1 << 24) or ()}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= shown
    assert (tmp_path / "F0.pdf").read_bytes().startswith(b"%PDF")
    names = [curves.name, "F0 digits", sweep.name]
    assert list(plot_files(names).values()) == ["plots/F0-digits.png", "plots/F0-digits-2.png", "plots/F9-alpha.png"]

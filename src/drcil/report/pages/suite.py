"""The page of many runs: measured beside published, curves, and the runs behind every cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import noise
from ..figures import TITLES
from ..measured import Curves, Gain, MeasuredCell, MeasuredTable, SuiteReport, figure_words
from ..outcomes import Figure, counted
from .behind import Behind
from .charts import plotted
from .render import render

_STYLES = {"within noise": "within", "outside noise": "outside", "one run": "single", "one class order": "single"}


@dataclass(frozen=True)
class Shown:
    """What stands in a place of a table."""

    text: str
    order: float | None = None
    """By which its column is sorted; None: last."""
    small: str = ""
    """Words below it."""
    style: str = ""
    opener: int | None = None
    """Which runs it opens."""


@dataclass(frozen=True)
class PageTable:
    """A table of a page."""

    caption: str
    groups: tuple[tuple[str, int], ...]
    """What columns have in common, over so many of them; none where there is nothing to say."""
    columns: tuple[str, ...]
    rows: tuple[tuple[Shown, ...], ...]


def suite_page(report: SuiteReport) -> str:
    """A report in one file that needs no network."""
    behind = Behind()
    tables = [
        {"name": table.name, "caption": table.caption, "parts": list(_parts(table, behind))} for table in report.tables
    ]
    curves = [
        {"name": own.name, "caption": own.caption, "points": _points(own, behind), "chart": f"plot-{number}"}
        for number, own in enumerate(report.curves)
    ]
    return render(
        "suite.html",
        title=report.title,
        report=report,
        counts=counts(report),
        judged=any(table.judged for table in report.tables),
        noise=noise.WORDS,
        tables=tables,
        curves=curves,
        charts={f"plot-{number}": plotted(own).data() for number, own in enumerate(report.curves)},
        behind=behind.data(),
    )


def counts(report: SuiteReport) -> str:
    """How many runs there are, and what has become of them."""
    runs = {one.directory: one for one in report.outcomes().values()}.values()
    done, failed = sum(one.result is not None for one in runs), sum(one.failure is not None for one in runs)
    left = len(runs) - done - failed
    words = [f"{done} of {len(runs)} runs finished"]
    words += [f"{failed} failed"] if failed else []
    return ", ".join([*words, *([f"{left} not run yet"] if left else [])])


def _parts(table: MeasuredTable, behind: Behind) -> Iterator[PageTable]:
    for group, part in table.parts():
        span = 3 if part.beside else 1
        titles = [TITLES.get(column.metric, column.metric) for column in part.columns]
        columns = ["measured", "published", "difference"] * len(titles) if part.beside else titles
        rows = []
        for row in part.rows:
            cells = [_shown(part.cells.get((row, column)), part, row, group, behind) for column in part.columns]
            rows.append((Shown(row), *(shown for cell in cells for shown in cell[:span])))
        groups = tuple((title, span) for title in titles) if part.beside else ()
        yield PageTable(group, groups, tuple(columns), tuple(rows))
        gains = tuple((Shown(gain.name), *_gained(gain, part)) for gain in part.gains())
        if gains:
            named = tuple((title, 2) for title in titles)
            yield PageTable(f"{group}: differences of rows", named, ("measured", "published") * len(titles), gains)


def _gained(gain: Gain, part: MeasuredTable) -> Iterator[Shown]:
    for column in part.columns:
        pair = gain.points.get(column, (None, None))
        yield from (Shown("–") if points is None else Shown(f"{points:+.2f}", points) for points in pair)


def _shown(
    cell: MeasuredCell | None, table: MeasuredTable, row: str, group: str, behind: Behind
) -> tuple[Shown, Shown, Shown]:
    """Measured, published, and the difference."""
    if cell is None:
        return Shown("–"), Shown("–"), Shown("")
    own, difference, verdict = cell.measured, cell.difference, cell.verdict
    title = TITLES.get(cell.metric, cell.metric)
    opener = behind.opener(f"{row}: {title}", _words(cell, f"{table.name}, {group}"), cell.outcomes)
    measured = Shown(
        cell.lacking if own is None else figure_words(own),
        None if own is None else own.mean,
        style="lacking" if own is None else "",
        opener=opener if cell.outcomes else None,
    )
    published = Shown("–")
    if cell.published is not None:
        published = Shown(figure_words(Figure(cell.published, cell.published_error)), cell.published)
    if difference is None:
        return measured, published, Shown("")
    style = "" if verdict is None else _STYLES[verdict]
    return measured, published, Shown(f"{difference:+.2f}", difference, verdict or "", style)


def _words(cell: MeasuredCell, where: str) -> str:
    """A cell in a sentence."""
    own, chance = cell.measured, cell.noise
    if own is None:
        return f"{where}. {cell.lacking.capitalize()}."
    runs = counted(cell.outcomes)
    said = [f"measured {figure_words(own)}, {runs if runs.startswith('one run') else f'the mean over {runs}'}"]
    if cell.published is not None and cell.difference is not None:
        said.append(f"published {figure_words(Figure(cell.published, cell.published_error))}")
        within = f", {cell.verdict} of ±{chance:.2f}" if chance is not None else ""
        said.append(f"difference {cell.difference:+.2f}{within}")
    return f"{where}. {'; '.join(said).capitalize()}."


def _points(curves: Curves, behind: Behind) -> PageTable:
    """The points of a plot; the name of a line opens its runs."""
    places = sorted({across for points in curves.lines.values() for across, _ in points})
    rows = []
    for name, points in curves.lines.items():
        own, runs = dict(points), curves.outcomes.get(name, ())
        opener = behind.opener(name, f"{curves.name}: {curves.caption}", runs) if runs else None
        values = (Shown(figure_words(own[at]), own[at].mean) if at in own else Shown("–") for at in places)
        rows.append((Shown(name, opener=opener), *values))
    caption = f"{curves.along}, by {curves.across}"
    return PageTable(caption, (), tuple(f"{place:g}" for place in places), tuple(rows))

"""A report as text: Markdown for readers, CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import noise
from .figures import TITLES
from .measured import Curves, MeasuredCell, MeasuredTable, SuiteReport, figure_words
from .outcomes import Figure, counted

_CSV = (
    "table", "row", "column", "metric", "measured", "error", "runs", "over", "published", "published_error",
    "difference", "noise", "verdict", "note", "directories",
)  # fmt: skip


def cell_words(cell: MeasuredCell | None, beside: bool) -> list[str]:
    """What was measured; with what was published and the difference, where such stand beside it."""
    if cell is None:
        return ["–", "–", ""] if beside else ["–"]
    measured, difference = cell.measured, cell.difference
    words = [cell.lacking if measured is None else figure_words(measured)]
    if beside:
        published = "–" if cell.published is None else figure_words(Figure(cell.published, cell.published_error))
        words += [published, "" if difference is None else f"{difference:+.2f}"]
    return words


def report_markdown(report: SuiteReport, plots: Mapping[str, str]) -> str:
    """The whole report; ``plots``: where the picture of each plot is, by its name."""
    parts = [f"# {_text(report.title)}\n"]
    parts += [f"{_code(report.command)}\n"] if report.command else []
    parts += [f"{_text(note)}\n" for note in report.notes]
    if any(table.judged for table in report.tables):
        parts.append(f"{noise.WORDS}\n")
    for table in report.tables:
        parts.append(f"## {_text(table.name)}\n\n{_text(table.caption)}\n")
        for group, part in table.parts():
            parts.append(_table(part) if group == table.name else f"{_text(group)}\n\n{_table(part)}")
            parts += [_gains(part)] if any(part.gains()) else []
    for curves in report.curves:
        parts.append(f"## {_text(curves.name)}\n\n{_text(curves.caption)}\n")
        parts += [f"![{_text(curves.name)}]({plots[curves.name]})\n"] if curves.name in plots else []
        parts.append(_points(curves))
    if report.failures:
        parts.append("## Failed\n\n" + "".join(f"- {_text(failure)}\n" for failure in report.failures))
    return "\n".join(parts)


def report_csv(report: SuiteReport) -> str:
    """A row for each cell of each table, then for each point of each plot; numbers unrounded."""
    text = io.StringIO()
    rows = [_CSV, *_cells(report), *_plotted(report)]
    tidy = ([round(entry, 6) if isinstance(entry, float) else entry for entry in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(tidy)
    return text.getvalue()


def _cells(report: SuiteReport) -> Iterator[Sequence[Any]]:
    for table in report.tables:
        for (row, column), cell in table.cells.items():
            own = cell.measured
            yield (
                table.name,
                row,
                column.group,
                cell.metric,
                own and own.mean,
                own and own.error,
                cell.finished,
                counted(cell.outcomes) if cell.finished else None,
                cell.published,
                cell.published_error,
                cell.difference,
                cell.noise if cell.published is not None else None,
                cell.verdict,
                cell.lacking,
                " ".join(one.directory for one in cell.outcomes),
            )


def _plotted(report: SuiteReport) -> Iterator[Sequence[Any]]:
    for curves in report.curves:
        for name, points in curves.lines.items():
            for across, own in points:
                yield curves.name, name, f"{curves.across} {across:g}", curves.along, own.mean, own.error


def _table(part: MeasuredTable) -> str:
    header = ["method"]
    for column in part.columns:
        header += [
            TITLES.get(column.metric, column.metric),
            *(("published", "difference") if part.beside else ()),
            *(("noise",) if part.judged else ()),
        ]
    lines = [header, ["---", *("---:" for _ in header[1:])]]
    for row in part.rows:
        line = [_text(row)]
        for column in part.columns:
            cell = part.cells.get((row, column))
            line += cell_words(cell, part.beside)
            line += [(cell and cell.verdict) or ""] if part.judged else []
        lines.append(line)
    return _rows(lines)


def _gains(part: MeasuredTable) -> str:
    """Rows minus those that they are made from, measured beside published."""
    header = ["difference of rows"]
    for column in part.columns:
        header += [TITLES.get(column.metric, column.metric), "published"]
    lines = [header, ["---", *("---:" for _ in header[1:])]]
    for gain in part.gains():
        pairs = [gain.points.get(column) for column in part.columns]
        lines.append(
            [_text(gain.name), *("–" if pair is None else f"{pair[at]:+.2f}" for pair in pairs for at in (0, 1))]
        )
    return _rows(lines)


def _points(curves: Curves) -> str:
    places = sorted({across for points in curves.lines.values() for across, _ in points})
    lines = [[_text(curves.across), *(f"{place:g}" for place in places)], ["---", *("---:" for _ in places)]]
    for name, points in curves.lines.items():
        own = dict(points)
        lines.append([_text(name), *(figure_words(own[place]) if place in own else "–" for place in places)])
    return _rows(lines)


def _rows(lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _code(words: str) -> str:
    fence = "``" if "`" in words else "`"
    return f"{fence}{words}{fence}"


def _text(words: str) -> str:
    """Words of others, such as names of folders, that must not be taken for markup."""
    safe = " ".join(words.split())
    for sign in "\\`*_[]<>|":
        safe = safe.replace(sign, f"\\{sign}")
    return safe

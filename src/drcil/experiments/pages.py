"""HTML pages of runs and reports, each one file without network access."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, check_path, printable
from ..files import write_bytes
from ..runs.evidence import RunRecord, record_of
from ..runs.execution import CURVE, PAGE, Run
from ..runs.result import RunResult
from ..runs.run_files import EVENTS, read_events
from ..settings import dotted
from ..streams.protocols import ORDER_SEED
from ..train.progress import duration
from . import summary
from .plots import band, limits, line_styles, plot_curve, readout_lines
from .summary import TITLES, Mean, MetricColumns, counted
from .tables import Cell, Plot, Report, Table, budget_text, mean_text
from .writers import report_csv, report_json, report_markdown, summary_cells, task_cells, title

if TYPE_CHECKING:
    from jinja2 import Environment


Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    """None: a gap."""
    error: tuple[float | None, ...] | None = None
    """Standard errors, drawn as a band."""
    is_primary: bool = True
    """Other lines are drawn thinner and dashed."""
    is_highlighted: bool = False


@dataclass(frozen=True)
class LineChart:
    """Lines over a common axis, with a legend."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    percent: bool = False
    x_names: tuple[str, ...] = ()
    """What the points at 1, 2, … are, in words."""

    def data(self) -> dict[str, Any]:
        """As the page's script reads it."""
        values = [value for line in self.series for value in band(line.y, line.error)]
        return {
            "kind": "lines",
            **asdict(self),
            "styles": line_styles([line.is_highlighted for line in self.series]),
            "limits": limits(min(values), max(values)) if self.percent and values else None,
        }


@dataclass(frozen=True)
class HeatMap:
    """Percentages by task and task, the darker the more."""

    row_label: str
    column_label: str
    values: Rows
    """A row may be shorter than the others."""
    hue: str = "blue"

    def data(self) -> dict[str, Any]:
        return {"kind": "heat", **asdict(self)}


def curve_chart(result: RunResult) -> LineChart:
    """What is measured after each task, a line for each readout."""
    series = tuple(
        Series(readout, tuple(line.x), tuple(line.y), is_primary=line.is_primary)
        for readout, line in readout_lines(result).items()
    )
    return LineChart("classes seen", MetricColumns.of(result).axis, series, percent=True)


def accuracy_map(result: RunResult) -> HeatMap:
    return HeatMap("after task", "on task", _rounded(result.figure("matrix")))


def forgetting_map(result: RunResult) -> HeatMap:
    """After each task: how far accuracy on each task is below its best so far."""
    matrix = result.figure("matrix")
    fallen = []
    for after, row in enumerate(matrix):
        best = [max(matrix[then][task] for then in range(task, after + 1)) for task in range(after + 1)]
        fallen.append([peak - value for peak, value in zip(best, row, strict=True)])
    return HeatMap("after task", "on task", _rounded(fallen), hue="orange")


def confusion_map(result: RunResult) -> HeatMap | None:
    """None: it was not measured."""
    shares = result.figure("confusion")
    return None if shares is None else HeatMap("images of task", "answered with a class of task", _rounded(shares))


def plot_chart(plot: Plot) -> LineChart:
    """The chart of a plot."""
    series = []
    for name, points in plot.lines.items():
        errors = tuple(mean.error for _, mean in points)
        line = Series(
            name,
            tuple(x for x, _ in points),
            tuple(round(mean.mean, 4) for _, mean in points),
            errors if any(error is not None for error in errors) else None,
            is_highlighted=name == plot.highlight,
        )
        series.append(line)
    return LineChart(plot.x_label, plot.y_label, tuple(series), percent=plot.percent)


def _rounded(rows: Sequence[Sequence[float]]) -> Rows:
    return tuple(tuple(round(value, 2) for value in row) for row in rows)


Facts = list[tuple[str, str]]


def facts(record: RunRecord, result: RunResult) -> Facts:
    """How a run was made: names and values."""
    settings, environment = result.settings, record.environment
    versions = result.versions or environment.get("versions") or {}
    values = {
        "command": record.command,
        "seed": f"{result.seed}, class order {result.order_seed}",
        "budget": budget_text(result),
        "memory": settings["memory"],
        "backbone": settings["backbone"],
        "augmentation": settings.get("augment"),
        "duration": duration(result.seconds),
        "finished": record.day,
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "commit": record.commit,
        "machine": _machine(environment),
    }
    return [(name, str(value)) for name, value in values.items() if value]


def method_settings(result: RunResult) -> Facts:
    """The settings of the method, those of stages by dotted names."""
    return [(name, _setting_text(value)) for name, value in dotted(result.settings.get("method", {}))]


def _machine(environment: Mapping[str, Any]) -> str:
    threads = environment.get("threads")
    parts = [
        environment.get("platform"),
        *environment.get("devices", ()),
        threads and f"{threads} CPU thread{'' if threads == 1 else 's'}",
    ]
    return ", ".join(str(part) for part in parts if part)


def _setting_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_setting_text, value)) or "none"
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


_DETAIL_BYTES = 120_000
"""Size of the details of runs in a page. The details of further runs are left out."""


class RunDetails:
    """The runs that a page shows, each once, and what opens them: cells of tables, lines of plots."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._runs: list[dict[str, Any]] = []
        self._openers: list[dict[str, Any]] = []
        self._bytes = 0

    def add_opener(self, title: str, text: str, records: Iterable[RunRecord]) -> int:
        """The number by which the page opens these runs, with this title and text."""
        self._openers.append({"title": title, "text": text, "runs": [self._number(record) for record in records]})
        return len(self._openers) - 1

    def data(self) -> dict[str, Any]:
        return {"runs": self._runs, "openers": self._openers}

    def _number(self, record: RunRecord) -> int:
        if record.key not in self._numbers:
            self._numbers[record.key] = len(self._runs)
            details = run_data(record)
            self._bytes += len(json.dumps(details))
            if self._bytes > _DETAIL_BYTES and record.result is not None:
                # A page of hundreds of runs stays small; the page of the run has its details.
                details = {"name": details["name"], "facts": details["facts"][-1:]}
            self._runs.append(details)
        return self._numbers[record.key]


def run_data(record: RunRecord) -> dict[str, Any]:
    """The details of a run: facts, figures and charts; or why there are none."""
    settings, result = record.settings, record.result
    order = "" if settings.order_seed == ORDER_SEED else f", class order {settings.order_seed}"
    name = f"{settings.label}, seed {settings.seed}{order}"
    if result is None:
        state = "not finished yet" if record.failure is None else f"failed: {record.failure}"
        return {"name": name, "state": state, "facts": [["directory", record.directory]]}
    confusion = confusion_map(result)
    return {
        "name": name,
        "facts": [*facts(record, result), ("directory", record.directory)],
        "figures": summary_cells(result),
        "charts": [
            ["Accuracy against the classes seen (%)", curve_chart(result).data()],
            ["Accuracy on each task, among all classes seen (%)", accuracy_map(result).data()],
            ["Forgetting: points below the best so far", forgetting_map(result).data()],
            *([["Confusion between tasks, after the last one (%)", confusion.data()]] if confusion else []),
        ],
    }


_TOTAL = "total"
Epochs = dict[tuple[int, int], dict[str, float]]
"""Loss terms by task and epoch."""


def loss_charts(events: Iterable[Mapping[str, Any]]) -> list[LineChart]:
    """A chart for each stage: its terms over the epochs of all tasks, one task after the other."""
    return [_chart(stage, epochs) for stage, epochs in _by_stage(events).items()]


def _by_stage(events: Iterable[Mapping[str, Any]]) -> dict[str, Epochs]:
    """The terms of every epoch. Epochs that a resumed run trained again count once."""
    stages: dict[str, Epochs] = {}
    for event in events:
        if event.get("event") == "StageStarted":
            epochs = stages.setdefault(event["stage"], {})
            for task, epoch in list(epochs):
                if task == event["task"] and epoch >= event["first_epoch"]:
                    del epochs[task, epoch]
        elif event.get("event") == "EpochDone":
            stages.setdefault(event["stage"], {})[event["task"], event["epoch"]] = event["losses"]
    return {stage: dict(sorted(epochs.items())) for stage, epochs in stages.items() if epochs}


def _chart(stage: str, epochs: Epochs) -> LineChart:
    terms = dict.fromkeys(term for losses in epochs.values() for term in losses)
    # A total of one term says the same twice.
    parts = [term for term in terms if term != _TOTAL]
    names = parts if len(parts) == 1 else [_TOTAL, *parts]
    x_names = [f"task {task}, epoch {epoch + 1}" for task, epoch in epochs]
    series = [Series(name, *_points(epochs, name), is_primary=name == _TOTAL or len(names) == 1) for name in names]
    return LineChart(f"epochs of stage '{stage}', task after task", "loss", tuple(series), x_names=tuple(x_names))


def _points(epochs: Epochs, term: str) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """A term's line, with a gap wherever a task ends."""
    x: list[float] = []
    y: list[float | None] = []
    before = None
    for number, ((task, _), losses) in enumerate(epochs.items(), start=1):
        if before not in (None, task):
            x.append(number - 0.5)
            y.append(None)
        x.append(number)
        y.append(float(f"{losses[term]:.4g}") if term in losses else None)
        before = task
    return tuple(x), tuple(y)


def render(template: str, scripts: Sequence[str], **data: Any) -> str:
    """Render a page from a template and scripts of ``page_files``; data is escaped."""
    # Imported here, so that a command that writes no page starts faster.
    from markupsafe import Markup

    files = {"style": Markup(_text("style.css")), "scripts": [Markup(_text(script)) for script in scripts]}
    return _environment().get_template(template).render(**files, **data)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _text(name: str) -> str:
    return (resources.files(__package__) / "page_files" / name).read_text(encoding="utf-8")


def run_page(record: RunRecord, events: Iterable[Mapping[str, Any]] = ()) -> str:
    """Curves, heat maps, losses and settings of a run, in one file that needs no network."""
    result = record.result
    assert result is not None
    confusion = confusion_map(result)
    losses = loss_charts(events)
    charts = {
        "curve": curve_chart(result).data(),
        "accuracy": accuracy_map(result).data(),
        "forgetting": forgetting_map(result).data(),
        **({"confusion": confusion.data()} if confusion else {}),
        **{f"loss-{number}": chart.data() for number, chart in enumerate(losses, start=1)},
    }
    name, _, rest = title(result).partition(", seed ")
    return render(
        "run.html",
        ["charts.js"],
        title=name,
        subtitle=f"Seed {rest}",
        result=result,
        summary=summary_cells(result),
        tasks=task_cells(result),
        charts=charts,
        losses=len(losses),
        facts=facts(record, result),
        settings=method_settings(result),
    )


def write_run_report(run: Run) -> None:
    """Write the page and the plot of a run into its directory."""
    plot_curve(run.result(), run.directory / CURVE)
    page = run_page(record_of(run), read_events(run.directory / EVENTS))
    write_bytes(run.directory / PAGE, page.encode())


_STYLES = {"within noise": "within", "outside noise": "outside", "one run": "single", "one class order": "single"}


@dataclass(frozen=True)
class PageCell:
    """A cell of a table of a page."""

    text: str
    order: float | None = None
    """By which its column is sorted; None: last."""
    small: str = ""
    """Text below it."""
    style: str = ""
    opener: int | None = None
    """Which runs it opens."""


@dataclass(frozen=True)
class PageTable:
    """A table of a page."""

    caption: str
    groups: tuple[tuple[str, int], ...]
    """Headings over several columns, each with their number; may be empty."""
    columns: tuple[str, ...]
    rows: tuple[tuple[PageCell, ...], ...]


def report_page(report: Report) -> str:
    """A report in one file that needs no network."""
    details = RunDetails()
    tables = [
        {"name": table.name, "caption": table.caption, "parts": list(_page_tables(table, details))}
        for table in report.tables
    ]
    plots = [
        {"name": plot.name, "caption": plot.caption, "points": _plot_points(plot, details), "chart": f"plot-{number}"}
        for number, plot in enumerate(report.plots)
    ]
    return render(
        "report.html",
        ["charts.js", "report.js"],
        title=report.title,
        report=report,
        counts=run_counts(report),
        has_verdicts=any(table.has_verdicts for table in report.tables),
        noise=summary.WORDS,
        tables=tables,
        plots=plots,
        charts={f"plot-{number}": plot_chart(plot).data() for number, plot in enumerate(report.plots)},
        details=details.data(),
    )


def run_counts(report: Report) -> str:
    """How many runs there are, and how many are finished."""
    runs = {record.directory: record for record in report.runs}.values()
    done = sum(record.result is not None for record in runs)
    failed = sum(record.failure is not None for record in runs)
    left = len(runs) - done - failed
    parts = [f"{done} of {len(runs)} runs finished"]
    parts += [f"{failed} failed"] if failed else []
    return ", ".join([*parts, *([f"{left} not run yet"] if left else [])])


def _page_tables(table: Table, details: RunDetails) -> Iterator[PageTable]:
    for group, part in table.parts():
        span = 3 if part.has_published else 1
        titles = [TITLES.get(column.metric, column.metric) for column in part.columns]
        columns = ["measured", "published", "difference"] * len(titles) if part.has_published else titles
        rows = []
        for row in part.rows:
            cells = [PageCell(row)]
            for column in part.columns:
                cells += _page_cells(part.cells.get((row, column)), part, row, group, details)[:span]
            rows.append(tuple(cells))
        groups = tuple((title, span) for title in titles) if part.has_published else ()
        yield PageTable(group, groups, tuple(columns), tuple(rows))
        differences = []
        for difference in part.row_differences():
            cells = [PageCell(difference.name)]
            for column in part.columns:
                pair = difference.points.get(column, (None, None))
                cells += [PageCell("–") if points is None else PageCell(f"{points:+.2f}", points) for points in pair]
            differences.append(tuple(cells))
        if differences:
            groups = tuple((title, 2) for title in titles)
            names = ("measured", "published") * len(titles)
            yield PageTable(f"{group}: differences of rows", groups, names, tuple(differences))


def _page_cells(cell: Cell | None, table: Table, row: str, group: str, details: RunDetails) -> list[PageCell]:
    """The measured and published value, and the difference."""
    if cell is None:
        return [PageCell("–"), PageCell("–"), PageCell("")]
    mean, difference, verdict = cell.measured, cell.difference, cell.verdict
    title = TITLES.get(cell.metric, cell.metric)
    opener = None
    if cell.records:
        opener = details.add_opener(f"{row}: {title}", _cell_sentence(cell, f"{table.name}, {group}"), cell.records)
    if mean is None:
        measured = PageCell(cell.missing, style="lacking", opener=opener)
    else:
        measured = PageCell(mean_text(mean, cell.metric), mean.mean, opener=opener)
    published = PageCell("–")
    if cell.published is not None:
        published = PageCell(mean_text(Mean(cell.published, cell.published_error)), cell.published)
    if difference is None:
        return [measured, published, PageCell("")]
    style = "" if verdict is None else _STYLES[verdict]
    return [measured, published, PageCell(f"{difference:+.2f}", difference, verdict or "", style)]


def _cell_sentence(cell: Cell, heading: str) -> str:
    """A cell in a sentence."""
    mean, noise = cell.measured, cell.noise
    if mean is None:
        return f"{heading}. {cell.missing.capitalize()}."
    runs = counted(cell.records)
    over = runs if runs.startswith("one run") else f"the mean over {runs}"
    parts = [f"measured {mean_text(mean, cell.metric)}, {over}"]
    if cell.published is not None and cell.difference is not None:
        parts.append(f"published {mean_text(Mean(cell.published, cell.published_error))}")
        within = f", {cell.verdict} of ±{noise:.2f}" if noise is not None else ""
        parts.append(f"difference {cell.difference:+.2f}{within}")
    return f"{heading}. {'; '.join(parts).capitalize()}."


def _plot_points(plot: Plot, details: RunDetails) -> PageTable:
    """The points of a plot; the name of a line opens its runs."""
    xs = sorted({x for points in plot.lines.values() for x, _ in points})
    rows = []
    for name, points in plot.lines.items():
        means, records = dict(points), plot.records.get(name, ())
        opener = details.add_opener(name, f"{plot.name}: {plot.caption}", records) if records else None
        values = (PageCell(mean_text(means[x]), means[x].mean) if x in means else PageCell("–") for x in xs)
        rows.append((PageCell(name, opener=opener), *values))
    return PageTable(f"{plot.y_label}, by {plot.x_label}", (), tuple(f"{x:g}" for x in xs), tuple(rows))


FORMATS = (".html", ".md", ".csv", ".json")


def write_report(report: Report, path: str | Path) -> None:
    """Write a report as a page (.html), Markdown (.md), CSV (.csv) or JSON (.json), by the end of the file's name."""
    path = check_path("path", path)
    if path.is_dir():
        raise UserError(f"a report is a file, and '{path}' is a directory; give '{path / 'report.html'}'")
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise UserError(f"the name of a report ends in {', '.join(FORMATS)}, not '{path.name}'")
    if kind == ".html":
        text = report_page(report)
    elif kind == ".md":
        text = report_markdown(report, {})
    elif kind == ".csv":
        text = report_csv(report)
    else:
        text = json.dumps(report_json(report), indent=1)
    write_bytes(path, printable(text).encode())

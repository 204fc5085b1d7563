"""Verified or not: what was measured with this code, on what budget, and which published runs nothing stands for."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ..errors import UserError
from ..methods import METHODS
from ..methods.spec import named_method
from ..paper.asked import Asked, runs_of, trained
from ..paper.tables import Cell, published
from ..reading import checksum
from ..recipes import dotted
from ..report.measured import figure_words
from ..report.outcomes import Figure, figure, independent
from ..runs.command import usual_run
from ..runs.evidence import Evidence
from ..runs.plain import plain
from ..runs.result import leading_metric
from ..runs.settings import RunSettings
from ..streams.protocols import ORDER_SEED, parse_stream
from .gathered import Group, grouped, outcome_of
from .reuse import present_settings

_LEFT_OUT = {"seed", "precision", "compile"}
"""Choices in which a run may differ from the published one and still stand for it."""
_BUDGET = {"profile", "epochs_scale", "schedule", "image_size"}
"""Choices that the heading of a table names."""
_DEFAULT = "default"
_HEADER = (
    "method", "Avg", "Last", "seeds", "published Avg", "published Last", "minutes", "finished", "commit"
)  # fmt: skip
_INTRODUCTION = """# Verified or not

What was measured with this code, by method and stream, from the runs whose evidence is in `evidence/`. The page is
generated, and a test compares it with what the command makes:

```sh
drcil report evidence --verified --out docs/verified.md
```

`drcil report RUN... --store evidence` adds finished runs to it. Figures are percentages, means with their standard
errors: over class orders where a row has several, else over seeds. On long-tailed streams Avg is the mean over tasks
(`task_avg`). Published values, with their table, are of the same memory, settings and class orders at full budget:
full schedules, full images, all tasks. **A run on a smaller budget should not reach them.**
"""


@dataclass(frozen=True)
class _Row:
    """A method on a stream, read in one way."""

    method: str
    readout: str | None
    """None: the method's own."""
    records: tuple[Evidence, ...]

    def figure(self, metric: str) -> Figure | None:
        readouts = (self.readout or next(iter(one.result["readouts"])) for one in self.records)
        runs = [outcome_of(one, readout) for one, readout in zip(self.records, readouts, strict=True)]
        known = independent(runs, (one.metric(metric) for one in runs))
        return figure(known) if known else None

    def seeds(self) -> str:
        """Those of training; with those of class orders, where they are not the usual one."""
        words = ", ".join(map(str, sorted({one.settings.seed for one in self.records})))
        orders = sorted({one.settings.order_seed for one in self.records})
        return words if orders == [ORDER_SEED] else f"{words}; class order {', '.join(map(str, orders))}"


def verified_page(records: Sequence[Evidence]) -> str:
    """The page as Markdown. Runs that are not finished say nothing yet."""
    finished = [one for one in records if one.result["complete"]]
    asked = trained(published().values())
    old = {one.place for one in finished if not _is_of_today(one)}
    full = {_sought(one.settings) for one in finished if _is_whole(one) and one.place not in old}
    covered = {one for one in asked if _sought(one.run_settings()) in full} if full else set()
    parts = [
        _INTRODUCTION,
        f"{len(covered)} of the {len(asked)} runs behind the published tables are here at full budget.\n",
    ]
    parts.append("## Measured\n")
    groups = sorted(grouped(finished), key=lambda group: (group.stream, group.budget))
    parts += [_measured(group, old) for group in groups] or ["Nothing yet.\n"]
    if old:
        parts.append("† Trained with settings that are not those of today's recipe.\n")
    parts.append("## Not verified at full budget\n")
    parts.append(_missing([one for one in asked if one not in covered]))
    return "\n".join(parts)


def _measured(group: Group, old: Collection[str]) -> str:
    """The table of a stream and budget; ``old``: where runs are that were trained with other settings than today's."""
    lines = [_HEADER, ("---", *("---:" for _ in _HEADER[1:]))]
    for name, records in sorted(group.rows.items()):
        for row in _readings(records):
            lines.append(_line(name, row, group.stream, old))
    return f"### {group.stream}: {group.budget}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _line(name: str, row: _Row, stream: str, old: Collection[str]) -> tuple[str, ...]:
    minutes = sum(one.result["seconds"] for one in row.records) / 60
    dagger = " †" if any(one.place in old for one in row.records) else ""
    own = "".join(f", {words}" for words in _own_choices(row.records[0].settings) if words not in name.split(", "))
    measured = (row.figure(leading_metric(stream)), row.figure("last"))
    return (
        f"`{name}`{f', {row.readout}' if row.readout else ''}{own}{dagger}",
        *("–" if own is None else figure_words(own) for own in measured),
        row.seeds(),
        *(_printed(row, stream, metric) for metric in ("avg", "last")),
        f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}",
        _span(one.about.finished for one in row.records),
        _span(one.about.commit for one in row.records),
    )


def _readings(records: tuple[Evidence, ...]) -> Iterator[_Row]:
    """The ways to read runs of one method, first the method's own."""
    for number, readout in enumerate(records[0].result["readouts"]):
        yield _Row(records[0].settings.method, readout if number else None, records)


def _printed(row: _Row, stream: str, metric: str) -> str:
    """What was published of such runs, in these class orders and at full budget; of several tables the first."""
    own = {_sought(one.settings, _BUDGET) for one in row.records}
    for cell, asked in _published_cells():
        if (cell.column.stream, cell.column.metric) == (stream, metric) and _is_read_so(asked[0], row):
            # A profile brings an augmentation and a backbone of its own.
            profile = row.records[0].settings.profile
            if own == {_sought(one.run_settings(profile=profile), _BUDGET) for one in asked}:
                assert cell.value is not None
                return f"{figure_words(Figure(cell.value, cell.error))} ({cell.table})"
    return "–"


def _own_choices(own: RunSettings) -> Iterator[str]:
    """What was chosen for a run that its profile does not bring; its seeds and budget stand elsewhere."""
    usual, fewest = (dict(dotted(plain(one).choices())) for one in (usual_run(own), own))
    chosen = dict(dotted(own.choices()))
    for name in fewest:
        if name not in {*_LEFT_OUT, *_BUDGET, "order_seed"} and usual.get(name) != fewest[name]:
            yield f"{name.removeprefix('settings.')}={chosen[name]}"


def _is_read_so(asked: Asked, row: _Row) -> bool:
    spec, readout = named_method(asked.method)
    return (spec.name, readout) == (row.method, row.readout)


@functools.cache
def _published_cells() -> tuple[tuple[Cell, tuple[Asked, ...]], ...]:
    """With the runs of each class order."""
    return tuple(entry for table in published().values() for entry in runs_of(table))


def _missing(asked: Sequence[Asked]) -> str:
    """The published runs that nothing stands for. Methods on the same streams share a line, and so do settings."""
    cuts: dict[tuple[str, str, str], set[str]] = {}
    for one in asked:
        dataset = parse_stream(one.stream).dataset
        unusual = ", ".join(one.details()) or _DEFAULT
        cuts.setdefault((dataset, unusual, one.method), set()).add(one.stream.removeprefix(f"{dataset}-"))
    methods: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (dataset, unusual, method), streams in cuts.items():
        methods.setdefault((dataset, unusual, tuple(sorted(streams, key=_by_number))), []).append(f"`{method}`")
    settings: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (dataset, unusual, shared), names in methods.items():
        settings.setdefault((dataset, shared, tuple(names)), []).append(unusual)
    lines = [
        (dataset, "; ".join(unusual), ", ".join(shared), ", ".join(names))
        for (dataset, shared, names), unusual in settings.items()
    ]
    if not lines:
        return "Nothing: every published run has been repeated.\n"
    lines.sort(key=lambda line: (line[0], line[1] != _DEFAULT))
    header = ("dataset", "settings", "streams", "methods"), ("---", "---", "---", "---")
    said = "No stored run of these methods on these streams has the full budget; their figures are not verified."
    return f"{said}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in (*header, *lines))


def _by_number(cut: str) -> tuple[str, int]:
    """``b0-5`` before ``b0-10``."""
    protocol, _, steps = cut.rpartition("-")
    return protocol, int(steps)


def _sought(own: RunSettings, aside: Collection[str] = ()) -> str:
    """Equal for runs that stand for the same published one, some choices aside."""
    left_out = {*_LEFT_OUT, *aside}
    return checksum({name: value for name, value in plain(own).choices().items() if name not in left_out})


def _is_whole(one: Evidence) -> bool:
    """Whether a run has all tasks of its stream."""
    return plain(one.settings).tasks is None


def _is_of_today(one: Evidence) -> bool:
    """Whether a run was trained with the settings that its method would have now; a method that is gone has none."""
    kept: Mapping[str, Any] = one.result["settings"]["method"]
    try:
        was = METHODS[one.settings.method].build.Settings.model_validate(kept).model_dump(mode="json")
        return was == present_settings(one.settings)
    except (UserError, ValidationError):
        return False


def _span(words: Iterator[str]) -> str:
    """Days or commits, each once; a dash where one is not known."""
    return ", ".join(dict.fromkeys(word or "–" for word in words)) or "–"

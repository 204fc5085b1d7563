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
from ..report.measured import figure_words
from ..report.outcomes import Figure, figure
from ..runs.evidence import Evidence
from ..runs.result import leading_metric, led_by
from ..runs.settings import RunSettings
from ..streams.protocols import parse_stream
from .gathered import Group, grouped
from .reuse import present_settings

_LEFT_OUT = {"seed", "precision", "compile"}
"""Choices in which a run may differ from the published one and still stand for it."""
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

`drcil report RUN... --store evidence` adds finished runs to it. Figures are percentages, means over seeds with their
standard errors. On long-tailed streams Avg is the mean over tasks (`task_avg`). Published values, with their table,
are of the full budget: full schedules, full images, all tasks. **A run on a smaller budget should not reach them.**
"""


@dataclass(frozen=True)
class _Row:
    """A method on a stream, read in one way."""

    method: str
    readout: str | None
    """None: the method's own."""
    records: tuple[Evidence, ...]

    def figure(self, metric: str) -> Figure | None:
        results = [led_by(one.result, self.readout or next(iter(one.result["readouts"]))) for one in self.records]
        values = [result["readouts"][result["readout"]].get(metric) for result in results]
        known = [float(value) for value in values if value is not None]
        return figure(known) if known else None


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
    seeds = ", ".join(str(one.settings.seed) for one in row.records)
    minutes = sum(one.result["seconds"] for one in row.records) / 60
    dagger = " †" if any(one.place in old for one in row.records) else ""
    measured = (row.figure(leading_metric(stream)), row.figure("last"))
    return (
        f"`{name}`{f', {row.readout}' if row.readout else ''}{dagger}",
        *("–" if own is None else figure_words(own) for own in measured),
        seeds,
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
    """What was published of a method on a stream with the same memory; of several tables the first."""
    memory, own = row.records[0].result["settings"]["memory"], row.records[0].settings
    for cell, asked in _published_cells():
        column = cell.column
        if (column.stream, column.metric, column.memory) == (stream, metric, memory) and _is_read_so(asked, row):
            # A profile brings an augmentation and a backbone of its own; else they must be the published ones.
            plain = own.profile != "full" and not (asked.augment or asked.backbone or asked.settings)
            if plain or (own.profile == "full" and _sought(asked.run_settings(), False) == _sought(own, False)):
                assert cell.value is not None
                return f"{figure_words(Figure(cell.value, cell.error))} ({cell.table})"
    return "–"


def _is_read_so(asked: Asked, row: _Row) -> bool:
    spec, readout = named_method(asked.method)
    return (spec.name, readout) == (row.method, row.readout)


@functools.cache
def _published_cells() -> tuple[tuple[Cell, Asked], ...]:
    """With the first of its runs."""
    return tuple((cell, asked[0]) for table in published().values() for cell, asked in runs_of(table))


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


def _sought(own: RunSettings, ordered: bool = True) -> str:
    """Equal for runs that stand for the same published one, in the same class order or (not ``ordered``) in any."""
    left_out = _LEFT_OUT if ordered else {*_LEFT_OUT, "order_seed"}
    return checksum({name: value for name, value in own.choices().items() if name not in left_out})


def _is_whole(one: Evidence) -> bool:
    """Whether a run has all tasks of its stream."""
    return one.settings.tasks is None


def _is_of_today(one: Evidence) -> bool:
    """Whether a run was trained with the settings that its method would have now; a method that is gone has none."""
    kept: Mapping[str, Any] = one.result["settings"]["method"]
    try:
        was = METHODS[one.settings.method].build.Settings.model_validate(kept).model_dump(mode="json")
        return was == present_settings(one.settings)
    except (UserError, ValidationError):
        return False


def _span(words: Iterator[str]) -> str:
    """Days or commits, each once."""
    return ", ".join(dict.fromkeys(word for word in words if word)) or "–"

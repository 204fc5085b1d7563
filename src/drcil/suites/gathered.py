"""A report of any runs: a table and curves for each stream and budget, methods as rows, means over seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, unknown
from ..recipes import dotted
from ..report.figures import Shown
from ..report.gathered import stream_table, task_curves
from ..report.measured import SuiteReport
from ..report.outcomes import Outcome, means_over
from ..report.pages.facts import budget
from ..runs.beginning import completed
from ..runs.evidence import Evidence
from ..runs.plain import plain
from ..runs.result import leading_metric, led_by
from ..streams.protocols import known_tasks

_GROUPED = {"format", "method", "stream", "profile", "epochs_scale", "schedule", "image_size", "seed", "order_seed"}
"""Choices that a table or its rows have in common, and seeds."""


@dataclass(frozen=True)
class Group:
    """Runs on one stream and budget."""

    stream: str
    budget: str
    rows: Mapping[str, tuple[Evidence, ...]]
    """By method, and what tells them from others of it; those of a row differ in their seeds."""

    @property
    def name(self) -> str:
        return f"{self.stream}, {self.budget}"


def grouped(records: Sequence[Evidence]) -> list[Group]:
    """Runs that can be compared, together; methods in the order in which they come."""
    groups: dict[tuple[str, str], list[Evidence]] = {}
    for one in records:
        groups.setdefault((one.settings.stream, budget(one.result, _planned(one))), []).append(one)
    return [Group(stream, spent, _rows(own)) for (stream, spent), own in groups.items()]


def gathered_report(records: Sequence[Evidence], command: str, highlight: str, notes: Sequence[str]) -> SuiteReport:
    """The report of these runs; ``highlight``: the row that stands out in plots."""
    groups = grouped(records)
    known = {row for group in groups for row in group.rows}
    if highlight and highlight not in known:
        raise unknown("row", highlight, known)
    streams = list(dict.fromkeys(group.stream for group in groups))
    tables, curves = [], []
    for group in groups:
        rows = {name: tuple(outcome_of(one) for one in own) for name, own in group.rows.items()}
        shown = Shown.on(group.stream, leading_metric(group.stream))
        tables.append(stream_table(group.stream, f"{means_over(rows)}. Budget: {group.budget}", shown, rows))
        drawn = task_curves(group.name, "Accuracy after each task", shown, rows, highlight)
        curves += [drawn] if drawn else []
    count = "1 run" if len(records) == 1 else f"{len(records)} runs"
    where = streams[0] if len(streams) == 1 else f"{len(streams)} streams"
    return SuiteReport(f"{count} on {where}", command, tuple(tables), tuple(curves), notes=tuple(notes))


def outcome_of(one: Evidence, readout: str | None = None) -> Outcome:
    """A run as reports show it; ``readout``: whose figures come first, if not those that its result has."""
    own, result = one.settings, one.result if readout is None else led_by(one.result, readout)
    return Outcome(own.label, own.seed, one.place, result, about=one.about, order_seed=own.order_seed)


def _planned(one: Evidence) -> int | None:
    """How many tasks a run is to have; None where that is not known before its data is."""
    if one.result["complete"]:
        return None
    if one.settings.tasks is not None:
        return one.settings.tasks
    try:
        return known_tasks(one.settings.stream)
    except UserError:
        return None


def _rows(records: Sequence[Evidence]) -> dict[str, tuple[Evidence, ...]]:
    rows: dict[str, list[Evidence]] = {}
    for one in records:
        same = [other for other in records if other.settings.label == one.settings.label]
        by_hand = {name for other in same for name in dict(dotted(other.settings.settings))}
        alike = [_chosen(other, by_hand) for other in same]
        own = _chosen(one, by_hand)
        differing = [name for name in own if any(other.get(name) != own[name] for other in alike)]
        words = [one.settings.label, *(f"{name}={own[name]}" for name in differing)]
        # The mean over fewer tasks is another figure.
        done = len(one.result["tasks"])
        words += [] if one.result["complete"] else [f"{done} task{'' if done == 1 else 's'} so far"]
        rows.setdefault(", ".join(words), []).append(one)
    return {name: tuple(sorted(own, key=_seeds)) for name, own in rows.items()}


def _chosen(one: Evidence, by_hand: Collection[str]) -> dict[str, Any]:
    """What was chosen for a run, and the settings of its method that were not set by hand in any."""
    choices = plain(one.settings).choices()
    given = choices.pop("settings")
    kept = {name: value for name, value in choices.items() if name not in _GROUPED and value is not None}
    trained = dict(dotted(completed(one.result["settings"].get("method", {}), one.settings.method)))
    recipe = {name: value for name, value in trained.items() if name not in by_hand}
    return {**kept, **recipe, **dict(dotted(given))}


def _seeds(one: Evidence) -> tuple[int, int]:
    return one.settings.order_seed, one.settings.seed

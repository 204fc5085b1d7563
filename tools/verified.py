"""Makes docs/verified.md from stored evidence: what was measured, on what budget, and what is missing."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from drcil.errors import UserError
from drcil.experiments.jobs import current_method_settings
from drcil.experiments.published import PaperRun, PublishedValue, published, runs_of, trained
from drcil.experiments.summary import Mean, independent, mean_of
from drcil.experiments.tables import Rows, group_runs, mean_text
from drcil.files import checksum
from drcil.methods import METHODS
from drcil.methods.catalog import named_method
from drcil.runs.evidence import RunRecord, find_records
from drcil.runs.plan import canonical_settings, default_settings
from drcil.runs.result import RunResult, leading_metric
from drcil.settings import RunSettings, dotted
from drcil.streams.protocols import ORDER_SEED, parse_stream

_LEFT_OUT = {"seed", "precision", "compile"}
"""Choices in which a run may differ from the published one and still stand for it."""
_BUDGET = {"profile", "epochs_scale", "schedule", "image_size"}
"""Choices that the heading of a table names."""
_DEFAULT = "default"
_HEADER = (
    "method", "Avg", "Last", "seeds", "published Avg", "published Last", "minutes", "finished", "commit"
)  # fmt: skip
_INTRODUCTION = """# Verified or not

What was measured with this code, by method and stream, from the runs stored in `evidence/`. The page is generated
in the root of the repository, and a test checks that it is current:

```sh
python tools/verified.py
```

`drcil report RUN... --store evidence` stores finished runs. Values are means in percent with standard errors: over
class orders if a row has several, else over seeds. On long-tailed streams Avg is the mean over tasks (`task_avg`).
Published values, with their table, are those of the same tasks, memory, settings and class orders, with full schedules
and full images. **A run with a smaller budget should not reach them.** Beside runs of fewer tasks no published
values are shown.
"""


@dataclass(frozen=True)
class _Row:
    """A method on a stream, by one readout."""

    method: str
    readout: str | None
    """None: the first of the method."""
    records: tuple[RunRecord, ...]

    def mean(self, metric: str) -> Mean | None:
        values = []
        for record in self.records:
            result = _result(record)
            values.append(result.figure(metric, self.readout or next(iter(result.readouts))))
        known = independent(self.records, values)
        return mean_of(known) if known else None

    def seeds(self) -> str:
        """Seeds of training, and of class orders if these are not the default."""
        text = ", ".join(map(str, sorted({record.settings.seed for record in self.records})))
        orders = sorted({record.settings.order_seed for record in self.records})
        return text if orders == [ORDER_SEED] else f"{text}; class order {', '.join(map(str, orders))}"


def _result(record: RunRecord) -> RunResult:
    assert record.result is not None
    return record.result


def verified_page(records: Sequence[RunRecord]) -> str:
    """The page as Markdown; unfinished runs are left out."""
    finished = [record for record in records if _result(record).complete]
    wanted = trained(published().values())
    old = {record.directory for record in finished if not _has_current_settings(record)}
    full = {_run_identity(record.settings) for record in finished if _is_whole(record) and record.directory not in old}
    covered = {run for run in wanted if _run_identity(run.run_settings()) in full} if full else set()
    parts = [
        _INTRODUCTION,
        f"{len(covered)} of the {len(wanted)} runs behind the published tables are here at full budget.\n",
    ]
    parts.append("## Measured\n")
    groups = sorted(group_runs(finished).items())
    parts += [_measured(stream, budget, rows, old) for (stream, budget), rows in groups] or ["Nothing yet.\n"]
    if old:
        parts.append("† Trained with settings that are not those of today's recipe.\n")
    parts.append("## Not verified at full budget\n")
    parts.append(_missing([run for run in wanted if run not in covered]))
    return "\n".join(parts)


def _measured(stream: str, budget: str, rows: Rows, old: Collection[str]) -> str:
    """The table of a stream and budget; ``old``: directories of runs that have settings of an earlier recipe."""
    lines = [_HEADER, ("---", *("---:" for _ in _HEADER[1:]))]
    for name, records in sorted(rows.items()):
        for number, readout in enumerate(_result(records[0]).readouts):
            row = _Row(records[0].settings.method, readout if number else None, records)
            lines.append(_line(name, row, stream, old))
    return f"### {stream}: {budget}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _line(name: str, row: _Row, stream: str, old: Collection[str]) -> tuple[str, ...]:
    minutes = sum(_result(record).seconds for record in row.records) / 60
    dagger = " †" if any(record.directory in old for record in row.records) else ""
    changed = [text for text in _changed_settings(row.records[0].settings) if text not in name.split(", ")]
    means = (row.mean(leading_metric(stream)), row.mean("last"))
    return (
        ", ".join([f"`{name}`", *([row.readout] if row.readout else []), *changed]) + dagger,
        *("–" if mean is None else mean_text(mean) for mean in means),
        row.seeds(),
        *(_published(row, stream, metric) for metric in ("avg", "last")),
        f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}",
        _distinct(record.day for record in row.records),
        _distinct(record.commit for record in row.records),
    )


def _published(row: _Row, stream: str, metric: str) -> str:
    """The published value of such runs, of all tasks in these class orders; of several tables the first."""
    if not all(map(_is_whole, row.records)):
        return "–"
    identities = {_run_identity(record.settings, _BUDGET) for record in row.records}
    for value, runs in _published_values():
        if (value.column.stream, value.column.metric) == (stream, metric) and _has_readout(runs[0], row):
            # A profile has an augmentation and a backbone of its own.
            profile = row.records[0].settings.profile
            if identities == {_run_identity(run.run_settings(profile=profile), _BUDGET) for run in runs}:
                assert value.value is not None
                return f"{mean_text(Mean(value.value, value.error))} ({value.table})"
    return "–"


def _changed_settings(run: RunSettings) -> Iterator[str]:
    """Settings of a run that differ from its profile, without seeds and budget."""
    default = dict(dotted(canonical_settings(default_settings(run)).identity()))
    canonical, identity = dict(dotted(canonical_settings(run).identity())), dict(dotted(run.identity()))
    for name in canonical:
        if name not in {*_LEFT_OUT, *_BUDGET, "order_seed"} and default.get(name) != canonical[name]:
            yield f"{name.removeprefix('settings.')}={identity[name]}"


def _has_readout(run: PaperRun, row: _Row) -> bool:
    spec, readout = named_method(run.method)
    return (spec.name, readout) == (row.method, row.readout)


@functools.cache
def _published_values() -> tuple[tuple[PublishedValue, tuple[PaperRun, ...]], ...]:
    """With the runs of each class order."""
    return tuple(entry for table in published().values() for entry in runs_of(table))


def _missing(runs: Sequence[PaperRun]) -> str:
    """The published runs that are not repeated. Methods on the same streams share a line, and so do settings."""
    cuts: dict[tuple[str, str, str], set[str]] = {}
    for run in runs:
        dataset = parse_stream(run.stream).dataset
        unusual = ", ".join(run.details()) or _DEFAULT
        cuts.setdefault((dataset, unusual, run.method), set()).add(run.stream.removeprefix(f"{dataset}-"))
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
    sentence = "No stored run of these methods on these streams has the full budget; their figures are not verified."
    return f"{sentence}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in (*header, *lines))


def _by_number(cut: str) -> tuple[str, int]:
    """``b0-5`` before ``b0-10``."""
    protocol, _, steps = cut.rpartition("-")
    return protocol, int(steps)


def _run_identity(run: RunSettings, ignored: Collection[str] = ()) -> str:
    """Equal for runs that repeat the same published one, without the ignored settings."""
    left_out = {*_LEFT_OUT, *ignored}
    return checksum({name: value for name, value in canonical_settings(run).identity().items() if name not in left_out})


def _is_whole(record: RunRecord) -> bool:
    """Whether a run has all tasks of its stream."""
    return canonical_settings(record.settings).tasks is None


def _has_current_settings(record: RunRecord) -> bool:
    """Whether a run was trained with the settings that its method has now; a method that is gone has none."""
    stored = _result(record).settings["method"]
    try:
        settings = METHODS[record.settings.method].build.Settings.model_validate(stored).model_dump(mode="json")
        return settings == current_method_settings(record.settings)
    except (UserError, ValidationError):
        return False


def _distinct(texts: Iterator[str]) -> str:
    """Days or commits, each once; a dash where one is not known."""
    return ", ".join(dict.fromkeys(text or "–" for text in texts)) or "–"


def main() -> None:
    """Write ``docs/verified.md`` from ``evidence``; runs that cannot be read are reported."""
    root = Path(__file__).resolve().parents[1]
    records, problems = find_records([root / "evidence"])
    for problem in problems:
        print(f"left out: {problem}", file=sys.stderr)
    (root / "docs" / "verified.md").write_text(verified_page(records), encoding="utf-8")


if __name__ == "__main__":
    main()

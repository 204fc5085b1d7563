"""Means, standard errors, and whether a difference from a published value is noise."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, exp, hypot, lgamma, pi, pow, sqrt, tan
from statistics import fmean, stdev

from ..metrics import CURVES
from ..runs.evidence import RunRecord
from ..runs.result import RunResult
from ..streams.protocols import parse_stream

WORDS = (
    "A difference is within noise if it is at most t·√(e² + p²). Here e is the standard error of our mean: over class "
    "orders where a cell has several (the mean over its seeds stands for each), else over seeds. p is the published "
    "standard error, and t is Student’s for 95 %, with the degrees of freedom of Welch and Satterthwaite. Where no "
    "error was published, the value is taken to be of a single run that varies as ours do: p is the standard deviation "
    "of our n runs, and t has n − 1 degrees of freedom: 12.7 for two runs, 4.3 for three, 2.8 for five. If we measure "
    "the same as was published, and noise is normal, about 19 of 20 differences are within it. A single run has no "
    "error of its own, so that there is no telling: one run."
)
_SHARE = 0.95
_STEPS = 100
"""Of an integral; even."""


def noise_of_means(error: float, runs: int, other: float, other_runs: int) -> float:
    """What the difference of two means stays within in 19 of 20 cases, by their standard errors and numbers of runs.

    With the degrees of freedom of Welch and Satterthwaite: the two may vary differently.

    >>> round(noise_of_means(0.5, 3, 0.5, 3), 3), round(noise_of_means(0.5, 3, 0.0, 3), 3)
    (1.963, 2.151)
    """
    combined = hypot(error, other)
    if combined == 0:
        return 0.0
    shares = (error / combined) ** 4 / (runs - 1) + (other / combined) ** 4 / (other_runs - 1)
    return student(1 / shares) * combined


def noise_of_one(error: float, runs: int) -> float:
    """The same for a mean and a single run that varies as the runs of the mean do.

    >>> round(noise_of_one(1 / 3**0.5, 3), 3)
    4.968
    """
    return student(runs - 1) * error * sqrt(runs + 1)


@functools.cache
def student(freedom: float) -> float:
    """What a value of Student's t distribution is within, to either side, in 19 of 20 cases.

    >>> round(student(1), 3), round(student(2.5), 3), round(student(4), 3), round(student(1000), 3)
    (12.706, 3.575, 2.776, 1.962)
    """
    # With t = √ν·tan θ the density is that of cosᵛ⁻¹ θ. It falls, so that Newton's steps never go too far.
    half = exp(lgamma(freedom / 2) - lgamma((freedom + 1) / 2)) * sqrt(pi) / 2
    angle, step = 0.0, 1.0
    while step > 1e-12:
        step = (_SHARE * half - _integral(freedom, angle)) / pow(cos(angle), freedom - 1)
        angle += step
    return sqrt(freedom) * tan(angle)


def _integral(freedom: float, angle: float) -> float:
    """Of cosᵛ⁻¹ from 0 to an angle, by Simpson's rule."""
    width = angle / _STEPS
    values = [pow(cos(number * width), freedom - 1) for number in range(_STEPS + 1)]
    return width / 3 * (values[0] + 4 * sum(values[1::2]) + 2 * sum(values[2:-1:2]) + values[-1])


TITLES = {
    "avg": "Avg",
    "last": "Last",
    "task_avg": "task avg",
    "class_avg": "class avg",
    "many_shot": "many",
    "medium_shot": "medium",
    "few_shot": "few",
}
"""Of columns, where they are not the names of the metrics."""
SHOTS = ("many_shot", "medium_shot", "few_shot")
COUNTS = ("parameters", "seconds")
"""Compared beside metrics: whole numbers, shown without an error."""
_CURVE_NAMES = {
    "curve": "accuracy",
    "task_curve": "task mean",
    "class_curve": "class mean",
    "top5": "top 5",
    "many_curve": "many",
    "medium_curve": "medium",
    "few_curve": "few",
}
_AVERAGES = {"task_curve": "task avg", "class_curve": "class avg"}
_AXES = {
    "curve": "accuracy on all classes seen",
    "task_curve": "accuracy, mean over the tasks seen",
    "class_curve": "accuracy, mean over the classes seen",
    "top5": "top-5 accuracy on all classes seen",
    "many_curve": "accuracy on classes of more than 100 training images",
    "medium_curve": "accuracy on classes of 20 to 100 training images",
    "few_curve": "accuracy on classes of fewer than 20 training images",
}


@dataclass(frozen=True)
class MetricColumns:
    """The metric that leads, and what stands beside it: on long-tailed streams the mean over tasks and the shots."""

    metric: str = "avg"
    long_tailed: bool = False

    @classmethod
    def on(cls, stream: str, metric: str) -> MetricColumns:
        return cls(metric, parse_stream(stream).tail is not None)

    @classmethod
    def of(cls, result: RunResult) -> MetricColumns:
        return cls.on(result.stream, result.metric)

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics, first the one that leads."""
        tail, shots = (("task_avg",), SHOTS) if self.long_tailed else ((), ())
        return tuple(dict.fromkeys((self.metric, *tail, "avg", "last", *shots, "forgetting")))

    @property
    def curve(self) -> str:
        """The metric with a value after each task: the one that the leading metric sums up, else accuracy."""
        return CURVES.get(self.metric, "curve")

    @property
    def step(self) -> str:
        """The heading of the curve's values."""
        return _CURVE_NAMES[self.curve]

    @property
    def average(self) -> str:
        """The heading of the mean of the curve so far."""
        return _AVERAGES.get(self.curve, "avg")

    @property
    def axis(self) -> str:
        return _AXES[self.curve]

    @property
    def title(self) -> str:
        """The name of the leading metric beside a curve."""
        return TITLES.get(self.metric, self.metric).lower()


_NAMED = 5
"""Rows that a sentence names."""


@dataclass(frozen=True)
class Mean:
    """A mean and its standard error; of a single value there is no error."""

    mean: float
    error: float | None


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and s / √n, where s is the sample's standard deviation (divided by n − 1).

    >>> mean_of([1.0, 2.0, 6.0])
    Mean(mean=3.0, error=1.5275252316519468)
    """
    return Mean(fmean(values), stdev(values) / sqrt(len(values)) if len(values) > 1 else None)


def independent(records: Sequence[RunRecord], values: Iterable[float | None]) -> list[float]:
    """Those values of runs (None: a run has none) that are independent of each other.

    If several class orders were requested: one value for each order, the mean over its seeds. Otherwise one for each
    seed. A run that was made twice counts once.
    """
    orders: dict[int, dict[int, list[float]]] = {}
    for record, value in zip(records, values, strict=True):
        if value is not None:
            settings = record.settings
            orders.setdefault(settings.order_seed, {}).setdefault(settings.seed, []).append(float(value))
    seeds = [[fmean(repeated) for repeated in by_seed.values()] for by_seed in orders.values()]
    if several_orders(records):
        return [fmean(means) for means in seeds]
    return [mean for means in seeds for mean in means]


def several_orders(records: Sequence[RunRecord]) -> bool:
    """Whether runs were requested in more than one class order, finished or not."""
    return len({record.settings.order_seed for record in records}) > 1


def counted(records: Sequence[RunRecord]) -> str:
    """What the mean of these runs is over: how many class orders or seeds, and whether runs are missing.

    >>> from drcil.settings import RunSettings
    >>> def run(seed, order_seed, result={}):
    ...     return RunRecord(RunSettings(method="maf", stream="digits-b0-5", seed=seed, order_seed=order_seed), result)
    >>> runs = [run(seed, order) for order in (1, 2, 3) for seed in (0, 1)]
    >>> counted(runs), counted(runs[:2]), counted(runs[:1])
    ('3 class orders, 2 seeds each', '2 seeds', 'one run')
    >>> counted([*runs[:3], run(0, 3, None)])
    '2 class orders, 1 to 2 seeds each (3 of 4 runs)'
    """
    finished = [record for record in records if record.result is not None]
    seeds: dict[int, set[int]] = {}
    for record in finished:
        seeds.setdefault(record.settings.order_seed, set()).add(record.settings.seed)
    counts = sorted(len(of_order) for of_order in seeds.values())
    if not counts:
        text = "no run"
    elif several_orders(records):
        each = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else f"{counts[0]}"
        text = "one class order" if len(counts) == 1 else f"{len(counts)} class orders"
        text += f", {each} seeds{' each' if len(counts) > 1 else ''}" if counts[-1] > 1 else ""
    else:
        text = "one run" if counts == [1] else f"{counts[0]} seeds"
    return text if len(finished) == len(records) else f"{text} ({len(finished)} of {len(records)} runs)"


def means_over(rows: Mapping[str, Sequence[RunRecord]]) -> str:
    """What the values of rows are means over, and what their errors are over; rows unlike most others are named.

    >>> from drcil.settings import RunSettings
    >>> first, second = (RunRecord(RunSettings(method="maf", stream="digits-b0-5", seed=seed), {}) for seed in (0, 1))
    >>> means_over({"maf": [first], "wa": [first]})
    'One run of each'
    >>> means_over({"maf": [first, second], "wa": [first, second], "bic": [first]})
    'Mean over 2 seeds, with the standard error over seeds; bic: one run'
    """
    names: dict[str, list[str]] = {}
    errors: set[str] = set()
    for row, records in rows.items():
        if any(record.result is not None for record in records):
            names.setdefault(counted(records), []).append(row)
            if len(independent(records, (None if record.result is None else 0.0 for record in records))) > 1:
                errors.add("class orders" if several_orders(records) else "seeds")
    if not names:
        return ""
    (most, _), *rest = sorted(names.items(), key=lambda item: -len(item[1]))
    single = most.startswith("one run")
    sentence = most.replace("one run", "One run of each", 1) if single else f"Mean over {most}"
    sentence += f", with the standard error over {' or '.join(sorted(errors))}" if errors else ""
    return "; ".join([sentence, *(f"{_listed(rows)}: {text}" for text, rows in rest)])


def with_means(caption: str, rows: Mapping[str, Sequence[RunRecord]]) -> str:
    """A caption that says what the values are means over."""
    over = means_over(rows)
    return f"{caption.removesuffix('.')}. {over}." if over else caption


def _listed(names: Sequence[str]) -> str:
    suffix = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + suffix

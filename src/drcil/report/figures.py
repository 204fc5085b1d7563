"""Which figures are shown of a result, and which of them first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..metrics import CURVES
from ..streams.protocols import parse_stream

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
_STEPS = {
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
class Shown:
    """The metric that leads, and what stands beside it: on long-tailed streams the mean over tasks and the shots."""

    metric: str = "avg"
    long_tailed: bool = False

    @classmethod
    def on(cls, stream: str, metric: str) -> Shown:
        return cls(metric, parse_stream(stream).tail is not None)

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
        return _STEPS[self.curve]

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


PLAIN = Shown()
"""As on most streams."""


def shown_of(result: dict[str, Any]) -> Shown:
    """As a result says."""
    return Shown.on(result["stream"], result["metric"])


def figure_of(result: dict[str, Any], name: str) -> Any:
    """A metric of the readout that leads, or what the whole run has."""
    own = result["readouts"][result["readout"]]
    # Older evidence may lack what is measured since.
    return own[name] if name in own else result.get(name)

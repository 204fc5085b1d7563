"""From the predictions after each task to the numbers that are reported."""

from .history import History, TaskPrediction
from .table import CURVES, METRICS, measure, require_figure

__all__ = ["CURVES", "METRICS", "History", "TaskPrediction", "measure", "require_figure"]

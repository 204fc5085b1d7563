"""Class-incremental learning: image classifiers that keep learning new classes without forgetting the old ones.

>>> import drcil
>>> stream = drcil.stream("digits-b0-5")
>>> learner = drcil.Learner("replay")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import UserError
    from .experiments.pages import write_report
    from .experiments.runner import compare, read, resume, run
    from .exporting.exporter import Exported, export
    from .exporting.torch_formats import load_exported
    from .heads import DynamicResidualHead, ResidualHead
    from .learner import Learner
    from .learner import load_learner as load
    from .models.predictor import Prediction, Predictor, load_predictor
    from .process import configure
    from .registry import use_plugins
    from .streams.stream import make_stream as stream
    from .train.loggers import make_logger as logger

__version__ = "0.1.0"
__all__ = [
    "DynamicResidualHead",
    "Exported",
    "Learner",
    "Prediction",
    "Predictor",
    "ResidualHead",
    "UserError",
    "compare",
    "configure",
    "export",
    "load",
    "load_exported",
    "load_predictor",
    "logger",
    "read",
    "resume",
    "run",
    "stream",
    "use_plugins",
    "write_report",
]

_HOMES = {
    "DynamicResidualHead": ("heads", "DynamicResidualHead"),
    "Exported": ("exporting.exporter", "Exported"),
    "Learner": ("learner", "Learner"),
    "Prediction": ("models.predictor", "Prediction"),
    "ResidualHead": ("heads", "ResidualHead"),
    "UserError": ("errors", "UserError"),
    "Predictor": ("models.predictor", "Predictor"),
    "compare": ("experiments.runner", "compare"),
    "configure": ("process", "configure"),
    "export": ("exporting.exporter", "export"),
    "load": ("learner", "load_learner"),
    "load_exported": ("exporting.torch_formats", "load_exported"),
    "load_predictor": ("models.predictor", "load_predictor"),
    "logger": ("train.loggers", "make_logger"),
    "read": ("experiments.runner", "read"),
    "resume": ("experiments.runner", "resume"),
    "run": ("experiments.runner", "run"),
    "stream": ("streams.stream", "make_stream"),
    "use_plugins": ("registry", "use_plugins"),
    "write_report": ("experiments.pages", "write_report"),
}
"""Where each public name lives. Nothing heavy is imported until one is used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'drcil' has no attribute '{name}'")
    module, own = _HOMES[name]
    return getattr(import_module(f"{__name__}.{module}"), own)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

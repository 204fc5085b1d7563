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
    from .exporting.export import Exported, export
    from .heads import DynamicResidualHead, ResidualHead
    from .learner import Learner
    from .learner import load_learner as load
    from .models.predictor import Prediction, Predictor, load_predictor
    from .plugins import use_plugins
    from .process import configure
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
    "configure",
    "export",
    "load",
    "load_predictor",
    "logger",
    "stream",
    "use_plugins",
]

_HOMES = {
    "DynamicResidualHead": ("heads", "DynamicResidualHead"),
    "Exported": ("exporting.export", "Exported"),
    "Learner": ("learner", "Learner"),
    "Prediction": ("models.predictor", "Prediction"),
    "ResidualHead": ("heads", "ResidualHead"),
    "UserError": ("errors", "UserError"),
    "Predictor": ("models.predictor", "Predictor"),
    "configure": ("process", "configure"),
    "export": ("exporting.export", "export"),
    "load": ("learner", "load_learner"),
    "load_predictor": ("models.predictor", "load_predictor"),
    "logger": ("train.loggers", "make_logger"),
    "stream": ("streams.stream", "make_stream"),
    "use_plugins": ("plugins", "use_plugins"),
}
"""Where each public name lives. Nothing heavy is imported until one is used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'drcil' has no attribute '{name}'")
    module, own = _HOMES[name]
    return getattr(import_module(f"{__name__}.{module}"), own)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

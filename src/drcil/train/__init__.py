"""The engine: the only package that steps an optimiser or writes a snapshot."""

from .engine import EngineSettings, TrainingEngine, engine_settings
from .events import Listener
from .snapshot import Journal

__all__ = ["EngineSettings", "Journal", "Listener", "TrainingEngine", "engine_settings"]

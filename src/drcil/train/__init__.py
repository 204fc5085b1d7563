"""The engine: the only package that steps an optimiser or writes a snapshot."""

from ..settings import EngineSettings
from .engine import TrainingEngine, engine_settings, make_inference
from .events import Listener
from .snapshots import SnapshotStore

__all__ = ["EngineSettings", "Listener", "SnapshotStore", "TrainingEngine", "engine_settings", "make_inference"]

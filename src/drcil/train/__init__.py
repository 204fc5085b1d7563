"""The engine: the only room that steps an optimiser, moves tensors between devices or writes a snapshot."""

from .engine import Engine, EngineSettings, Look
from .events import Listener
from .inference import FeatureBank, Ranking
from .snapshot import Journal

__all__ = ["Engine", "EngineSettings", "FeatureBank", "Journal", "Listener", "Look", "Ranking"]

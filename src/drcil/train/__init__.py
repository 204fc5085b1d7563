"""The engine: the only room that steps an optimiser, moves tensors between devices or writes a snapshot."""

from ..inference.bank import FeatureBank
from ..inference.ranking import Ranking
from .engine import EngineSettings, Preprocessing, TrainingEngine
from .events import Listener
from .snapshot import Journal

__all__ = ["EngineSettings", "FeatureBank", "Journal", "Listener", "Preprocessing", "Ranking", "TrainingEngine"]

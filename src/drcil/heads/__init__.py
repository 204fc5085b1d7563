"""Heads: features to logits. They depend on torch only and replace ``nn.Linear`` in any network.

head = DynamicResidualHead(channels=512)
head.grow(10)                    # task 1: ten classes
head(features).fused             # (N, 10)
head.grow(10)                    # task 2: branches are merged, ten rows added
head(features).fused             # (N, 20)
"""

from .cosine import CosineHead
from .head import Head, Logits
from .linear import LinearHead
from .projection import ProjectedHead
from .residual import DynamicResidualHead, NormHead, ResidualHead

__all__ = [
    "CosineHead",
    "DynamicResidualHead",
    "Head",
    "LinearHead",
    "Logits",
    "NormHead",
    "ProjectedHead",
    "ResidualHead",
]

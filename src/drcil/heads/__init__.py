"""Heads: features to logits. They need nothing but torch and can stand in any network in place of ``nn.Linear``.

head = DynamicResidualHead(channels=512)
head.grow(10)                    # task 1: ten classes
head(features).fused             # (N, 10)
head.grow(10)                    # task 2: branches are merged, ten rows added
head(features).fused             # (N, 20)
"""

from .base import Head, Logits
from .cosine import CosineHead
from .dynamic import DynamicResidualHead
from .linear import LinearHead
from .norm import NormHead
from .projected import ProjectedHead
from .residual import ResidualHead

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

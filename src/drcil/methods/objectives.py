"""Objectives of whole stages that several methods share."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F

from ..nets.output import Output
from ..objectives import distillation
from ..stages import Batch, Losses, Objective, Term


def cross_entropy(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
    """CE(z, y) over all classes seen so far: the objective of whoever has no better one."""
    return {"classification": Term(F.cross_entropy(output.logits.fused, batch.labels))}


def learning_and_keeping(temperature: float, weights: tuple[float, float]) -> Objective:
    """a · CE(z, y) + b · KD_T(z_old → z[:K]) with weights (a, b), for a stage whose teacher is named ``previous``."""

    def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
        logits, taught = output.logits.fused, teachers["previous"].logits.fused
        kept = distillation(logits[:, : taught.shape[1]], taught, temperature)
        learnt = F.cross_entropy(logits, batch.labels)
        return {"classification": Term(learnt, weights[0]), "distillation": Term(kept, weights[1])}

    return objective

"""LUCIR: a cosine classifier whose old rows stay, features that keep their direction, and a margin for old classes."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..heads.cosine import CosineHead
from ..nets.net import Output
from ..objectives import cross_entropy, margin_ranking, pod_flat
from ..stages import Batch, Engine, Losses, Schedule, Stage, Term
from ..streams.stream import Task
from .catalog import method
from .method import Settings
from .nearest_mean import CosineMethod, NearestMean
from .rebalancing import fine_tune


class LucirSettings(Settings):
    first: Schedule
    later: Schedule
    finetuning: Schedule
    """Of the head alone, its scale too, on equally many images of every class, where ``balancing`` asks for it."""
    balancing: bool
    steadiness: float = Field(ge=0)
    """λ_base: weight of the term that keeps the directions of features, where there are as many old classes as new."""
    margin: float = Field(ge=0)
    """By how much an old class must be nearer to its samples than new classes are."""
    hardest: int = Field(ge=1)
    """How many new classes, the nearest ones, each old sample is ranked against."""
    ranking: float = Field(ge=0)
    """Weight of the margin ranking term."""


@method("lucir", paper="Hou et al., Learning a Unified Classifier Incrementally via Rebalancing, CVPR", year=2019)
class Lucir(CosineMethod):
    """Cosine classifier, features kept in their direction, and a margin between old and new classes."""

    Settings = LucirSettings
    settings: LucirSettings

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        return {} if self.settings.balancing else {"finetuning": "balancing=true"}

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            net = self.begin(task, CosineHead)
            engine.fit(Stage("first", net, task.new, cross_entropy, settings.first, groups=self.all_but_old_rows()))
            return
        previous = copy.deepcopy(self.net)
        self.cosine_head.grow(len(task.classes))
        imprint(self.cosine_head, engine.features(previous, task.new), torch.from_numpy(task.new.labels))
        steadiness = settings.steadiness * math.sqrt(task.old / len(task.classes))

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """CE(η cos, y) + λ_base sqrt(K/n) · (1 - cos(f_old, f)) + w · L_mr."""
            feature_distance = pod_flat(output.features.pooled, teachers["previous"].features.pooled)
            cosines = output.logits.extras["cosines"]
            return {
                "classification": Term(F.cross_entropy(output.logits.fused, batch.labels)),
                "steadiness": Term(feature_distance, steadiness),
                "ranking": margin_ranking(
                    cosines,
                    batch.labels,
                    task.old,
                    margin=settings.margin,
                    hardest=settings.hardest,
                    weight=settings.ranking,
                ),
            }

        engine.fit(
            Stage(
                "later",
                self.net,
                task.new.join(task.memory),
                objective,
                settings.later,
                teachers={"previous": previous},
                groups=self.all_but_old_rows(),
            )
        )
        if settings.balancing:
            fine_tune("finetuning", self.net, self.cosine_head, task, engine, settings.finetuning)


@torch.no_grad()
def imprint(head: CosineHead, features: Tensor, labels: Tensor) -> None:
    """Let each new row start as the mean direction of its class's features, with the mean length of the old rows."""
    old, new = len(head.old_rows), len(head.new_rows)
    directions = NearestMean.of(features, labels - old, new).means
    length = head.old_rows.norm(dim=2).mean()
    head.new_rows.copy_(length * directions.to(length)[:, None])

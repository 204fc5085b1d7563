"""BiC: images are held back to learn an affine map that takes the newest logits down to the scale of the old ones."""

from __future__ import annotations

import copy
from typing import Literal

from pydantic import Field

from ..heads.linear import CorrectedHead
from ..objectives import ce_and_distillation, class_shares, cross_entropy
from ..stages import Engine, ParamGroup, Schedule, Stage
from ..streams.stream import Task
from .catalog import method
from .method import Method, Settings
from .rebalancing import held_out_counts, split_off


class BicSettings(Settings):
    first: Schedule
    later: Schedule
    bias: Schedule
    """How the affine pair of the newest task is learnt."""
    temperature: float = Field(gt=0)
    held_share: float = Field(gt=0, lt=1)
    """Share of an old class's images that is held back for the pair, and as many of every new class."""
    corrections: Literal["all", "newest"]
    """Whether the pairs of earlier tasks go on to apply, or only that of the newest task."""


@method("bic", paper="Wu et al., Large Scale Incremental Learning, CVPR", year=2019)
class Bic(Method):
    """Distillation, then an affine correction of the newest logits, learnt on held-back images."""

    Settings = BicSettings
    settings: BicSettings
    head = "corrected"

    def needs_memory(self) -> bool:
        """Without images of old classes nothing says how large the new logits may be."""
        return True

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            self.first_task(task, engine, CorrectedHead)
            return
        net, previous = self.net, copy.deepcopy(self.net)
        head = net.head
        assert isinstance(head, CorrectedHead)
        if settings.corrections == "newest":
            head.neutralise()
        head.grow(len(task.classes))
        images = task.new.join(task.memory)
        counts = held_out_counts(images.counts(task.total), task.memory.counts(task.old), settings.held_share)
        rest, held_out = split_off(images, counts)
        # (1 - λ) CE(z', y) + λ KD_T(z'_old → z'[:K]), λ = K / N, all logits corrected.
        objective = ce_and_distillation(settings.temperature, class_shares(task.old, task.total))
        engine.fit(Stage("later", net, rest, objective, settings.later, teachers={"previous": previous}))
        engine.fit(
            Stage("bias", net, held_out, cross_entropy, settings.bias, groups=[ParamGroup([head.newest])], frozen=[net])
        )

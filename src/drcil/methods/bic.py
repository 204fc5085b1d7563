"""BiC: images are held back to learn an affine map that takes the newest logits down to the scale of the old ones."""

from __future__ import annotations

import copy
from typing import Literal

from pydantic import Field

from ..heads.corrected import CorrectedHead
from ..objectives import class_shares
from ..schedules import Schedule
from ..stages import Engine, Group, Stage
from ..streams.stream import Task
from .balanced import held_counts, split_off
from .base import Method
from .objectives import cross_entropy, learning_and_keeping
from .settings import Settings
from .spec import method


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
    copies = "2"

    def needs_memory(self) -> bool:
        """Without images of old classes nothing says how large the new logits may be."""
        return True

    def learn(self, task: Task, engine: Engine) -> None:
        own = self.settings
        if task.number == 1:
            self.first_task(task, engine, CorrectedHead)
            return
        net, previous = self.net, copy.deepcopy(self.net)
        head = net.head
        assert isinstance(head, CorrectedHead)
        if own.corrections == "newest":
            head.neutralise()
        head.grow(len(task.classes))
        images = task.new.join(task.memory)
        counts = held_counts(images.counts(task.total), task.memory.counts(task.old), own.held_share)
        rest, held = split_off(images, counts)
        # (1 - λ) CE(z', y) + λ KD_T(z'_old → z'[:K]), λ = K / N, all logits corrected.
        objective = learning_and_keeping(own.temperature, class_shares(task.old, task.total))
        engine.fit(Stage("later", net, rest, objective, own.later, teachers={"previous": previous}))
        engine.fit(Stage("bias", net, held, cross_entropy, own.bias, groups=[Group([head.newest])], frozen=[net]))

"""PODNet: several proxies per class, a margin loss on them, and intermediate maps held near the previous model's."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field

from ..data.sources.imageset import ImageSet
from ..heads.cosine import CosineHead
from ..nets.net import Net
from ..nets.output import Output
from ..objectives import nca, pod_flat, pod_spatial
from ..schedules import Schedule
from ..stages import Batch, Engine, Losses, Stage, Term
from ..streams.stream import Task
from .balanced import balanced_set
from .cosine import CosineMethod
from .settings import Settings
from .spec import method


class PodnetSettings(Settings):
    first: Schedule
    later: Schedule
    finetuning: Schedule
    finetunes: bool
    """Whether a later task ends with balanced fine-tuning."""
    proxies: int = Field(ge=1)
    """Directions per class."""
    nca: Literal["published", "program", "softmax"]
    """The form of the classification loss: the paper's equation, what its program computes, or cross-entropy."""
    margin: float = Field(ge=0)
    """δ of the published form; the program's has none that acts."""
    spatial: float = Field(ge=0)
    """λ_c: weight of POD-spatial, before the factor sqrt(N/n)."""
    flat: float = Field(ge=0)
    """λ_f: weight of POD-flat, before the same factor."""


@method(
    "podnet",
    paper="Douillard et al., PODNet: Pooled Outputs Distillation for Small-Tasks Incremental Learning, ECCV",
    year=2020,
)
class Podnet(CosineMethod):
    """Several cosine proxies per class, and pooled maps kept near those of the previous model."""

    Settings = PodnetSettings
    settings: PodnetSettings

    def stage_map_weight(self, task: Task) -> str | None:
        return "spatial" if self.settings.spatial else None

    def learn(self, task: Task, engine: Engine) -> None:
        own = self.settings
        if task.number == 1:
            net = self.begin(task, lambda channels: CosineHead(channels, own.proxies))
            groups = self.all_but_old_rows()
            engine.fit(Stage("first", net, task.new, self._classification, own.first, groups=groups))
            return
        previous = copy.deepcopy(self.net)
        self.cosine_head.grow(len(task.classes))
        self._learn_beside(previous, "later", task.new.join(task.memory), own.later, task, engine)
        if own.finetunes:
            balanced = balanced_set(self.net, task, engine)
            self._learn_beside(previous, "finetuning", balanced, own.finetuning, task, engine)

    def _learn_beside(
        self, previous: Net, stage: str, data: ImageSet, schedule: Schedule, task: Task, engine: Engine
    ) -> None:
        """Train everything but the old proxies on these images, held near the previous model."""
        own, factor = self.settings, math.sqrt(task.total / len(task.classes))

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """L_NCA + sqrt(N/n) · ( λ_c POD-spatial + λ_f POD-flat )."""
            features, before = output.features, teachers["previous"].features
            terms = dict(self._classification(output, teachers, batch))
            if own.spatial:
                terms["spatial"] = Term(pod_spatial(features.stages, before.stages), factor * own.spatial)
            return {**terms, "flat": Term(pod_flat(features.pooled, before.pooled), factor * own.flat)}

        teachers = {"previous": previous}
        groups = self.all_but_old_rows()
        maps = bool(own.spatial)
        engine.fit(Stage(stage, self.net, data, objective, schedule, teachers=teachers, groups=groups, reads_maps=maps))

    def refresh_stage(self, net: Net, exemplars: ImageSet) -> Stage:
        return replace(super().refresh_stage(net, exemplars), objective=self._classification)

    def _classification(self, output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
        """L_NCA: the whole objective of task 1."""
        own, extras = self.settings, output.logits.extras
        value = nca(extras["cosines"], extras["scale"], batch.labels, margin=own.margin, form=own.nca)
        return {"classification": Term(value)}

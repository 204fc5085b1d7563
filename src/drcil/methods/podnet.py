"""PODNet: several proxies per class, a margin loss on them, and intermediate maps held near the previous model's."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field

from ..data.image_set import ImageSet
from ..heads.cosine import CosineHead
from ..nets.net import Net, Output
from ..objectives import nca, pod_flat, pod_spatial
from ..stages import Batch, Engine, Losses, Schedule, Stage, Term
from ..streams.stream import Task
from .catalog import method
from .method import Settings
from .nearest_mean import CosineMethod
from .rebalancing import balanced_set


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

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        idle = {} if self.settings.finetunes else {"finetuning": "finetunes=true"}
        return idle if self.settings.nca == "published" else {**idle, "margin": "nca=published"}

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            net = self.begin(task, lambda channels: CosineHead(channels, settings.proxies))
            groups = self.all_but_old_rows()
            engine.fit(Stage("first", net, task.new, self._classification, settings.first, groups=groups))
            return
        previous = copy.deepcopy(self.net)
        self.cosine_head.grow(len(task.classes))
        self._fit_with_teacher(previous, "later", task.new.join(task.memory), settings.later, task, engine)
        if settings.finetunes:
            balanced = balanced_set(self.net, task, engine)
            self._fit_with_teacher(previous, "finetuning", balanced, settings.finetuning, task, engine)

    def _fit_with_teacher(
        self, previous: Net, stage: str, data: ImageSet, schedule: Schedule, task: Task, engine: Engine
    ) -> None:
        """Train everything but the old proxies on these images, held near the previous model."""
        settings, factor = self.settings, math.sqrt(task.total / len(task.classes))

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """L_NCA + sqrt(N/n) · ( λ_c POD-spatial + λ_f POD-flat )."""
            features, before = output.features, teachers["previous"].features
            terms = dict(self._classification(output, teachers, batch))
            if settings.spatial:
                terms["spatial"] = Term(pod_spatial(features.stages, before.stages), factor * settings.spatial)
            return {**terms, "flat": Term(pod_flat(features.pooled, before.pooled), factor * settings.flat)}

        teachers = {"previous": previous}
        groups = self.all_but_old_rows()
        maps = bool(settings.spatial)
        engine.fit(Stage(stage, self.net, data, objective, schedule, teachers=teachers, groups=groups, reads_maps=maps))

    def refresh_stage(self, net: Net, exemplars: ImageSet) -> Stage:
        return replace(super().refresh_stage(net, exemplars), objective=self._classification)

    def _classification(self, output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
        """L_NCA: the whole objective of task 1."""
        settings, extras = self.settings, output.logits.extras
        margin = settings.margin if settings.nca == "published" else 0.0
        value = nca(extras["cosines"], extras["scale"], batch.labels, margin=margin, form=settings.nca)
        return {"classification": Term(value)}

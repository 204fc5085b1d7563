"""FOSTER: a new backbone learns what the frozen old one cannot tell, then one net is taught what both know.

Class weights make up for the few images that old classes have, in both stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..heads import LinearHead
from ..nets.expanded import ExpandedNet
from ..nets.net import Net, Output, Readout
from ..objectives import PerClass, balanced_distillation, class_weights
from ..stages import Batch, Engine, Losses, Schedule, Term
from ..streams.stream import Task
from .catalog import method, register_preset
from .expansion import auxiliary_term, compress, distillation_term, expand, largest_net, train_expanded, wider_head
from .method import Method, Settings

_PAPER = "Wang et al., FOSTER: Feature Boosting and Compression for Class-Incremental Learning, ECCV"
Beta = Annotated[float, Field(ge=0, lt=1)]


class FosterSettings(Settings):
    first: Schedule
    boosting: Schedule
    compression: Schedule
    temperature: float = Field(gt=0)
    distillation: float = Field(ge=0)
    """Weight of the old model's teaching during boosting."""
    auxiliary: float = Field(ge=0)
    """Weight of the classifier that sees the new backbone alone."""
    boosting_betas: tuple[Beta, ...] = Field(min_length=1)
    """How much class weights favour rare classes, for the second task, the third, …; the last goes on."""
    compression_beta: Beta


@method("foster", paper=_PAPER, year=2022)
class Foster(Method):
    """A new backbone boosts the frozen old one, then one net learns from both; weighted for rare classes."""

    Settings = FosterSettings
    settings: FosterSettings
    readout_names = ("compressed", "boosted")
    reads_logits = True

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            self.first_task(task, engine, LinearHead)
            return
        # The last boosted model has chosen its exemplars, and is not needed again.
        self.parts.pop("expanded", None)
        boosted = expand(self.net, wider_head(self.net, task), task.total)
        self._boost(boosted, task, engine)
        weights = class_weights_of(task, settings.compression_beta)

        def distil(student: Tensor, teacher: Tensor) -> Tensor:
            return balanced_distillation(student, teacher, weights.on_device_of(teacher), settings.temperature)

        self.parts["net"] = compress(self.net, boosted, task, engine, distil, settings.compression)
        self.parts["expanded"] = boosted

    def _boost(self, boosted: ExpandedNet, task: Task, engine: Engine) -> None:
        settings = self.settings
        weights = class_weights_of(
            task, settings.boosting_betas[min(task.number - 2, len(settings.boosting_betas) - 1)]
        )

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """CE(z / w, y) + CE(auxiliary, y) + KD_T(Φ_{t-1} → old columns); a rare class needs larger logits."""
            weighted = output.logits.fused / weights.on_device_of(output.logits.fused)
            return {
                "classification": Term(F.cross_entropy(weighted, batch.labels)),
                "auxiliary": auxiliary_term(output, batch.labels, settings.auxiliary),
                "distillation": distillation_term(output, settings.temperature, settings.distillation),
            }

        train_expanded("boosting", boosted, task, engine, objective, settings.boosting)

    def readouts(self) -> Mapping[str, Readout]:
        return {"compressed": Readout(self.net), "boosted": Readout(largest_net(self))}

    def herding_net(self) -> Net:
        return largest_net(self)


def class_weights_of(task: Task, beta: float) -> PerClass:
    """Class weights from the number of images of each class, new images and memory together."""
    return PerClass(class_weights(torch.from_numpy(task.new.join(task.memory).counts(task.total)), beta))


register_preset(
    "foster-b4",
    Foster,
    summary="FOSTER before compression: two backbones",
    paper=_PAPER,
    year=2022,
    recipe="foster",
    alias_of="foster",
    readout="boosted",
)

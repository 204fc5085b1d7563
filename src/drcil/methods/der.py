"""DER, dynamically expandable representation: every task adds a backbone, and none is ever changed again.

This is DER without its pruning, which was never released.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..heads import LinearHead
from ..nets.net import Output
from ..stages import Batch, Engine, Losses, Schedule, Term
from ..streams.stream import Task
from .catalog import method
from .expansion import auxiliary_term, expand, train_expanded, wider_head
from .method import Method, Settings
from .rebalancing import align_weights, classifier_of, fine_tune, renew


class DerSettings(Settings):
    first: Schedule
    expansion: Schedule
    retraining: Schedule
    """Of a fresh classifier, for ``balancing="retrain"``."""
    auxiliary: float = Field(ge=0)
    """Weight of the classifier that sees the new backbone alone."""
    balancing: Literal["align", "retrain"]
    """How the classifier is corrected: weight aligning, or a fresh one trained on equally many images per class."""
    temperature: float = Field(gt=0)
    """What divides the logits while a fresh classifier is trained."""


@method(
    "der",
    paper="Yan et al., DER: Dynamically Expandable Representation for Class Incremental Learning, CVPR",
    year=2021,
)
class Der(Method):
    """A backbone for every task beside all earlier ones, which are frozen; one classifier on top."""

    Settings = DerSettings
    settings: DerSettings

    def needs_memory(self) -> bool:
        """A fresh classifier can only learn the classes that it is shown."""
        return self.settings.balancing == "retrain"

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        retrained = self.settings.balancing == "retrain"
        return {} if retrained else dict.fromkeys(("retraining", "temperature"), "balancing=retrain")

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            self.first_task(task, engine, LinearHead)
            return
        net = expand(self.net, wider_head(self.net, task), len(task.classes) + 1)

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """CE(z, y) + CE(auxiliary, y'), y' = 0 for any old class."""
            return {
                "classification": Term(F.cross_entropy(output.logits.fused, batch.labels)),
                "auxiliary": auxiliary_term(output, auxiliary_targets(batch.labels, task.old), settings.auxiliary),
            }

        train_expanded("expansion", net, task, engine, objective, settings.expansion)
        self.parts["net"] = net
        if settings.balancing == "align":
            align_weights(classifier_of(net), task.old)
        else:
            renew(classifier_of(net))
            fine_tune("retraining", net, classifier_of(net), task, engine, settings.retraining, settings.temperature)


def auxiliary_targets(labels: Tensor, old: int) -> Tensor:
    """y' = 0 for every old class, and 1, 2, … for the new ones."""
    return (labels - old + 1).clamp(min=0)

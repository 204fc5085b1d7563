"""What the three pipelines share: any head, any remedies, and the losses of a residual classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from ..data.image_set import ImageSet
from ..heads.head import HEADS, Head, Logits
from ..heads.residual import ResidualHead
from ..nets.backbone import build_head
from ..nets.net import Net, Output
from ..objectives import PerClass, branch_loss, class_weights, fusion_loss, logit_adjustment, task_logit_adjustment
from ..stages import Batch, Engine, Losses, Schedule, Stage, Term
from ..streams.samplers import Sampler, class_balanced, shuffle
from ..streams.stream import Task
from .catalog import register_preset
from .method import Method, Settings
from .rebalancing import REMEDIES, Remedy, align_weights, classifier_of, fine_tune, renew

RESIDUAL = "a residual head, such as 'drc'"
_OF_BRANCHES = (
    "branch", "fusing", "new_branch", "conv_init", "alpha", "branch_rows", "branch_reduction", "branch_epsilon",
)  # fmt: skip
"""The settings of residual heads."""


class PipelineSettings(Settings):
    """Head and remedies, and how a residual head is built and taught."""

    first: Schedule
    finetuning: Schedule
    """Balanced fine-tuning, for the remedy ``bft``."""
    head: str = "linear"
    """Any that is registered. The settings of branches are for those that are residual."""
    remedies: tuple[Remedy, ...] = ()
    """``la`` logit adjustment, ``bft`` balanced fine-tuning, ``wa`` weight aligning, ``cb`` class-balanced weights,
    ``focal`` focal loss, ``balanced-sampling``.
    """
    branch: Literal["conv", "bn"]
    fusing: Literal["mean", "sum"]
    new_branch: Literal["keep", "reset"]
    conv_init: Literal["identity", "kaiming"]
    alpha: float = Field(ge=0, le=1)
    """Share of the branch loss in the classification loss."""
    branch_rows: Literal["old", "all"]
    branch_reduction: Literal["separate", "joint"]
    branch_epsilon: float = Field(ge=0)
    tro: float = Field(gt=0)
    adjust_by: Literal["task", "class"]
    reset_classifier: bool
    """Whether balanced fine-tuning starts from a fresh classifier."""
    cb_beta: float = Field(default=0.9999, ge=0, lt=1)
    """β of the effective number of samples, for the remedy ``cb``: 0 weighs all classes alike, near 1 by 1 / m_c."""
    focal_gamma: float = Field(default=2.0, gt=0)
    """γ of the focal loss, for the remedy ``focal``."""

    @field_validator("head")
    @classmethod
    def _check_head(cls, head: str) -> str:
        HEADS[head]
        return head

    @field_validator("remedies")
    @classmethod
    def _check_remedies(cls, remedies: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
        if len(set(remedies)) < len(remedies):
            raise ValueError("the same remedy twice")
        if {"wa", "bft"} <= set(remedies):
            raise ValueError("'wa' and 'bft' both correct the trained classifier; choose one of them")
        twice = [remedy for remedy in remedies if remedy in ("la", "cb", "balanced-sampling")]
        if len(twice) > 1:
            names = " and ".join(f"'{remedy}'" for remedy in twice)
            raise ValueError(f"{names} make up for rare classes in training, each of them fully; choose one of them")
        return remedies


class Pipeline(Method):
    """A method whose classifier is a matter of choice."""

    settings: PipelineSettings

    @classmethod
    def addons(cls, presets: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        remedies = tuple(presets.get("remedies", ()))
        return {
            **{remedy: {"remedies": (*remedies, remedy)} for remedy in REMEDIES},
            **{head: {"head": head} for head in HEADS},
        }

    def needs_memory(self) -> bool:
        """Balanced fine-tuning needs exemplars of old classes."""
        return "bft" in self.settings.remedies

    @property
    def has_branches(self) -> bool:
        """Whether the chosen head is a residual one."""
        kind = HEADS[self.settings.head]
        return isinstance(kind, type) and issubclass(kind, ResidualHead)

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        needs = {
            "la": ("tro", "adjust_by"),
            "bft": ("finetuning", "reset_classifier"),
            "cb": ("cb_beta",),
            "focal": ("focal_gamma",),
        }
        idle = {
            name: f"the remedy '{remedy}'"
            for remedy, names in needs.items()
            if remedy not in self.settings.remedies
            for name in names
        }
        if not self.has_branches:
            return idle | dict.fromkeys(_OF_BRANCHES, RESIDUAL)
        return idle if self.settings.branch == "conv" else idle | {"conv_init": "branch=conv"}

    def new_head(self, channels: int) -> Head:
        """A head of the chosen kind, without a class yet."""
        settings = self.settings
        if not self.has_branches:
            return build_head(settings.head, channels)
        options: dict[str, Any] = {
            "branch": settings.branch,
            "fusion": settings.fusing,
            "new_branch": settings.new_branch,
        }
        if settings.branch == "conv":
            options["conv_init"] = settings.conv_init
        return build_head(settings.head, channels, **options)

    def learn_first(self, task: Task, engine: Engine, head: Callable[[int], Head] | None = None) -> None:
        """Task 1: there is no past, so the head is its new branch, and the loss is CE, weighted as remedies have it."""
        net, weights = self.begin(task, head or self.new_head), self.class_weights(task.new, task)

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """CE(S, y)."""
            return {
                "classification": Term(self.classification_loss(output.logits.fused, batch.labels, weights=weights))
            }

        engine.fit(Stage("first", net, task.new, objective, self.settings.first, sampler=self.sampler))

    @property
    def sampler(self) -> Sampler:
        """The sampler of classification stages."""
        return class_balanced if "balanced-sampling" in self.settings.remedies else shuffle

    def class_weights(self, data: ImageSet, task: Task, first: int = 0) -> PerClass | None:
        """How much the classes from the ``first`` on weigh in the loss on these images; None: all the same."""
        if "cb" not in self.settings.remedies:
            return None
        return PerClass(class_weights(torch.from_numpy(data.counts(task.total)[first:]), self.settings.cb_beta))

    def classification_loss(
        self, logits: Tensor, labels: Tensor, adjust: PerClass | None = None, weights: PerClass | None = None
    ) -> Tensor:
        """L_fusion of these logits, focal if configured."""
        added, factors = (None if values is None else values.on_device_of(logits) for values in (adjust, weights))
        gamma = self.settings.focal_gamma if "focal" in self.settings.remedies else 0.0
        return fusion_loss(logits, labels, added, factors, gamma)

    def adjustment(self, task: Task, data: ImageSet) -> PerClass:
        """What logit adjustment adds to the logits in training; nothing without that remedy."""
        if "la" not in self.settings.remedies:
            return PerClass(torch.zeros(()))
        counts = torch.from_numpy(data.counts(task.total))
        if self.settings.adjust_by == "class":
            return PerClass(logit_adjustment(counts, self.settings.tro))
        return PerClass(task_logit_adjustment(counts, task.sizes, self.settings.tro))

    def classification(
        self, logits: Logits, labels: Tensor, old: int, adjust: PerClass, weights: PerClass | None
    ) -> dict[str, Term]:
        """(1 - α) L_fusion + α L_branch (Eq. 10, 11 and 13); for a head without branches L_fusion only."""
        settings = self.settings
        fusion = self.classification_loss(logits.fused, labels, adjust, weights)
        if logits.new is None or logits.old is None:
            return {"fusion": Term(fusion)}
        branch = branch_loss(
            logits.new,
            logits.old,
            labels,
            old,
            rows=settings.branch_rows,
            reduction=settings.branch_reduction,
            epsilon=settings.branch_epsilon,
            weight=settings.alpha,
        )
        return {"fusion": Term(fusion, 1 - settings.alpha), "branch": branch}

    def remedy(self, net: Net, task: Task, engine: Engine) -> None:
        """The correction of the trained classifier, if configured."""
        if "wa" in self.settings.remedies:
            align_weights(classifier_of(net), task.old)
        if "bft" in self.settings.remedies:
            if self.settings.reset_classifier:
                renew(classifier_of(net))
            fine_tune("finetuning", net, classifier_of(net), task, engine, self.settings.finetuning)


def register_pipeline(name: str, build: type[Pipeline], recipe: str, summary: str, **options: Any) -> None:
    """Register a combination of pipeline, head and remedies under a name; all are of one paper."""
    paper = "Chen & Chang, Dynamic Residual Classifier for Class Incremental Learning, ICCV"
    register_preset(name, build, summary=summary, paper=paper, year=2023, recipe=recipe, **options)

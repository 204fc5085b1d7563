"""MAF, model adaptation and fusion: learn the new classes alone, then fuse the adapted and the previous model.

With the dynamic residual classifier and logit adjustment this is MAFDRC, the paper's main method.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..heads.head import grown_linear
from ..heads.residual import ResidualHead
from ..nets.net import Net, Output
from ..nets.parts import Number
from ..objectives import distillation, kl_distillation, pod_spatial
from ..stages import Batch, Engine, Losses, Schedule, Stage, Step, StepHook, Term
from ..streams.stream import Task
from .pipeline import RESIDUAL, Pipeline, PipelineSettings, register_pipeline
from .rebalancing import classifier_of


class MafSettings(PipelineSettings):
    adaptation: Schedule
    fusion: Schedule
    student: Literal["adapted", "previous"]
    """Whose backbone and classifier the fused model starts from."""
    old_distillation: float = Field(ge=0)
    new_distillation: float = Field(ge=0)
    temperature: float = Field(gt=0)
    distillation_form: Literal["kl", "cross-entropy"]
    adjust_distillation: bool
    """Whether logit adjustment acts inside distillation too."""
    pod: float = Field(ge=0)
    """Weight of POD-spatial on streams with a large base (before the factor sqrt(N / n)); 0: never."""
    untrained_past: bool
    """Whether the first model, once it teaches, adds the batch-norm branch that its training only let decay."""
    decaying_past: bool
    """Whether the old branch, though frozen, decays in the adaptation of task 2."""


class Maf(Pipeline):
    """Adaptation on the new images, then fusion of the adapted and the previous model by distillation."""

    Settings = MafSettings
    settings: MafSettings

    def stage_map_weight(self, task: Task) -> str | None:
        return "pod" if task.large_base and self.settings.pod else None

    def idle_settings(self, large_base: bool) -> Mapping[str, str]:
        idle = dict(super().idle_settings(large_base))
        if "la" not in self.settings.remedies:
            idle["adjust_distillation"] = "the remedy 'la'"
        if not large_base:
            idle["pod"] = "a stream with a large first task"
        if not self.has_branches:
            return idle | {"untrained_past": RESIDUAL, "decaying_past": RESIDUAL}
        return idle if self.settings.branch == "bn" else idle | {"untrained_past": "branch=bn"}

    def learn(self, task: Task, engine: Engine) -> None:
        settings = self.settings
        if task.number == 1:
            self.learn_first(task, engine)
            if self.has_branches and settings.branch == "bn" and settings.untrained_past:
                steps = math.ceil(len(task.new) / settings.first.batch_size)
                self.parts["untrained"] = Number(decayed(1.0, settings.first, steps))
            return
        previous = self.net
        adapted = self._adapt(previous, task, engine)
        student = self._student(previous, adapted, len(task.classes))
        self._fuse(student, self._teacher(previous), adapted, task, engine)
        self.parts["net"] = student
        self.remedy(student, task, engine)

    def _adapt(self, previous: Net, task: Task, engine: Engine) -> Net:
        """The previous model, grown (its branches merged), trained on the new images alone."""
        adapted = copy.deepcopy(previous)
        adapted.head.grow(len(task.classes))
        old = task.old
        weights = self.class_weights(task.new, task, first=old)

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """CE of the fused logits over the new classes (Eq. 9)."""
            value = self.classification_loss(output.logits.fused[:, old:], batch.labels - old, weights=weights)
            return {"adaptation": Term(value)}

        hooks = []
        if task.number == 2 and isinstance(adapted.head, ResidualHead) and self.settings.decaying_past:
            hooks = [OldBranchDecay(adapted.head, self.settings.adaptation)]
        schedule = self.settings.adaptation
        engine.fit(Stage("adaptation", adapted, task.new, objective, schedule, sampler=self.sampler, hooks=hooks))
        return adapted

    def _student(self, previous: Net, adapted: Net, new_classes: int) -> Net:
        """The model to be fused: branches of the adapted model; backbone and classifier as the settings say."""
        student = copy.deepcopy(adapted)
        if self.settings.student == "previous":
            student.backbone = copy.deepcopy(previous.backbone)
            classifier = classifier_of(previous)
            student.head.classifier = grown_linear(classifier, classifier.in_features, new_classes)
        for module in student.head.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
        return student

    def _teacher(self, previous: Net) -> Net:
        """The previous model as a teacher of the old classes."""
        if "untrained" not in self.parts:
            return previous
        untrained = self.part("untrained", Number)
        del self.parts["untrained"]
        teacher = copy.deepcopy(previous)
        assert isinstance(teacher.head, ResidualHead)
        scale = untrained.value.float().expand(teacher.head.channels)
        teacher.head.branches.set_old_branch(scale=scale, shift=torch.zeros_like(scale))
        return teacher

    def _fuse(self, student: Net, previous: Net, adapted: Net, task: Task, engine: Engine) -> None:
        settings, old = self.settings, task.old
        data = task.new.join(task.memory)
        adjust, weights = self.adjustment(task, data), self.class_weights(data, task)
        distil = kl_distillation if settings.distillation_form == "kl" else distillation
        pod = settings.pod * math.sqrt(task.total / len(task.classes)) if self.stage_map_weight(task) else 0.0

        def objective(output: Output, teachers: Mapping[str, Output], batch: Batch) -> Losses:
            """Eq. 13: (1 - α) L_fusion + α L_branch + β₁ KD(Φ_{t-1} → old columns) + β₂ KD(Φᵃ_t → new columns)."""
            terms = self.classification(output.logits, batch.labels, old, adjust, weights)
            fused = output.logits.fused
            if "la" in settings.remedies and settings.adjust_distillation:
                fused = fused + adjust.on_device_of(fused)
            previous_logits, adapted_logits = teachers["previous"].logits.fused, teachers["adapted"].logits.fused
            terms["old"] = Term(
                distil(fused[:, :old], previous_logits, settings.temperature), settings.old_distillation
            )
            terms["new"] = Term(
                distil(fused[:, old:], adapted_logits[:, old:], settings.temperature), settings.new_distillation
            )
            if pod:
                maps = pod_spatial(output.features.stages, teachers["previous"].features.stages)
                terms["pod"] = Term(maps, pod)
            return terms

        teachers = {"previous": previous, "adapted": adapted}
        engine.fit(
            Stage(
                "fusion",
                student,
                data,
                objective,
                settings.fusion,
                teachers=teachers,
                sampler=self.sampler,
                reads_maps=bool(pod),
            )
        )


def decayed(value: float, schedule: Schedule, steps: int) -> float:
    """What weight decay leaves of the scale of a normalisation whose gradient is always zero."""
    momentum, velocity, decay = decay_momentum(schedule), 0.0, schedule.decay_of(1)
    for epoch in range(schedule.epochs):
        for step in range(steps):
            slope = decay * value
            velocity = momentum * velocity + slope
            ahead = slope + momentum * velocity if schedule.nesterov else velocity
            value -= schedule.rate(epoch, step, steps) * ahead
    return value


def decay_momentum(schedule: Schedule) -> float:
    """With which momentum weight decay acts: SGD treats it as a gradient, AdamW shrinks the parameter directly."""
    return schedule.momentum if schedule.optimizer == "sgd" else 0.0


class OldBranchDecay(StepHook):
    """Weight decay with zero gradient on the frozen old branch, step by step.

    The published run suffered it in the adaptation of task 2: its optimiser still held the branch, with a gradient
    of zeros left over from task 1.
    """

    def __init__(self, head: ResidualHead, schedule: Schedule) -> None:
        super().__init__()
        # Not in the module tree: the head belongs to the net, only the velocities to the hook.
        self._heads = (head,)
        self._schedule = schedule
        for name, stack in head.branches.stacks().items():
            self.register_buffer(name, torch.zeros_like(stack))

    def after_step(self, moment: Step) -> None:
        for name, stack in self._heads[0].branches.stacks().items():
            velocity: Tensor = self.get_buffer(name)
            # A row of the stack for each branch.
            decay = self._schedule.decay_of(stack.ndim - 1)
            momentum = decay_momentum(self._schedule)
            velocity.mul_(momentum).add_(stack, alpha=decay)
            ahead = velocity
            if self._schedule.nesterov:
                ahead = momentum * velocity + decay * stack
            stack.sub_(ahead, alpha=moment.lr)


register_pipeline("maf", Maf, "maf", "MAF with a plain linear classifier")
register_pipeline("maf+bft", Maf, "maf", "MAF, then balanced fine-tuning of the classifier", remedies=("bft",))
register_pipeline("maf+wa", Maf, "maf", "MAF, then weight aligning", remedies=("wa",))
register_pipeline("maf+drc", Maf, "maf", "MAFDRC without logit adjustment", head="drc")
register_pipeline(
    "mafrc",
    Maf,
    "maf",
    "MAF with the residual classifier, all branches kept, and logit adjustment",
    head="rc",
    remedies=("la",),
)
register_pipeline(
    "mafdrc",
    Maf,
    "maf",
    "MAF with the dynamic residual classifier and logit adjustment: the paper's main method",
    head="drc",
    remedies=("la",),
)
register_pipeline("maf-vit", Maf, "maf", "MAF with a vision transformer", family="transformer")
register_pipeline(
    "mafdrc-vit",
    Maf,
    "maf",
    "MAFDRC with a vision transformer",
    family="transformer",
    head="drc",
    remedies=("la",),
)
register_pipeline(
    "mafdrc-text",
    Maf,
    "maf",
    "MAFDRC by the letter of the paper's equations",
    head="drc",
    remedies=("la",),
    branch="conv",
    fusing="mean",
    branch_rows="old",
    branch_reduction="separate",
    branch_epsilon=0.0,
    tro=1.2,
    adjust_by="task",
    new_distillation=4.0,
    temperature=1.0,
    distillation_form="kl",
    adjust_distillation=False,
    pod=0.0,
    untrained_past=False,
)

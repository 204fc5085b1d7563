"""How long and how fast a stage learns."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .limits import BATCH, EVERY


class Schedule(BaseModel):
    """How long and how fast a stage learns."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(ge=EVERY.least, le=EVERY.most)
    lr: float = Field(gt=0)
    batch_size: int = Field(default=128, ge=BATCH.least, le=BATCH.most)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    """Whether ``sgd`` looks ahead along its momentum."""
    weight_decay: float = Field(default=0.0, ge=0)
    decay: Literal["all", "weights"] = "all"
    """What weight decay acts on: every parameter; or, as transformers have it, the weights of layers alone, not
    biases, normalisations, learnt positions or tokens.
    """
    clip: float | None = Field(default=None, gt=0)
    """The largest norm of all gradients of a step together; longer ones are shortened to it. None: any."""
    curve: Literal["cosine", "linear", "steps", "constant"] = "cosine"
    changes: Literal["epoch", "step"] = "epoch"
    """How often the rate follows its curve: it is constant within an epoch, or only within a step."""
    milestones: tuple[int, ...] = ()
    """Epochs at which ``steps`` multiplies the rate by ``factor``."""
    factor: float = Field(default=0.1, gt=0, le=1)
    lr_end: float = Field(default=0.0, ge=0)
    """Where ``cosine`` and ``linear`` end."""
    warmup: int = Field(default=0, ge=0)
    """Epochs of linear rise from ``warmup_lr`` before the curve begins."""
    warmup_share: float = Field(default=0.0, ge=0, lt=1)
    """The same as a share of all epochs; the longer of both counts."""
    warmup_lr: float = Field(default=0.0, ge=0)
    augment_growth: float = Field(default=0.0, ge=0, le=1)
    """The share of the epochs over which augmentation grows: the first one shows no image augmented, then more and more
    are, and after these epochs all.
    """

    @model_validator(mode="after")
    def _looks_ahead_along_something(self) -> Schedule:
        if self.nesterov and self.optimizer == "sgd" and not self.momentum:
            raise ValueError("'nesterov' needs a momentum")
        return self

    def scaled(self, scale: float) -> Schedule:
        """The same schedule over ``scale`` times the epochs (at least one), milestones and warm-up with it."""
        if scale == 1:
            return self
        epochs = max(1, round(self.epochs * scale))
        return self.model_copy(
            update={
                "epochs": epochs,
                # Never before the first epoch is over, or a very short stage would not learn at its rate at all.
                "milestones": tuple(max(1, round(milestone * scale)) for milestone in self.milestones),
                "warmup": min(round(self.warmup * scale), epochs - 1),
            }
        )

    def decay_of(self, name: str, dimensions: int) -> float:
        """The weight decay of a parameter, by its name and its number of dimensions."""
        is_weight = dimensions > 1 and name.endswith(("weight", "rows"))
        return self.weight_decay if is_weight or self.decay == "all" else 0.0

    def rate(self, epoch: int, step: int = 0, steps: int = 1) -> float:
        """The learning rate of a step (from 0) of the ``steps`` in an epoch (from 0)."""
        # In the middle of the step, so that none is lost to a rate of zero.
        place = epoch + (step + 0.5) / steps if self.changes == "step" else epoch
        # A stage that is over before its warm-up would never learn at its rate.
        warmup = max(min(self.warmup, self.epochs - 1), self.warmup_share * self.epochs)
        if place < warmup:
            return self.warmup_lr + (self.lr - self.warmup_lr) * place / warmup
        progress = (place - warmup) / (self.epochs - warmup) if place > warmup else 0.0
        if self.curve == "cosine":
            return self.lr_end + (self.lr - self.lr_end) * (1 + math.cos(math.pi * progress)) / 2
        if self.curve == "linear":
            return self.lr_end + (self.lr - self.lr_end) * (1 - progress)
        if self.curve == "steps":
            return self.lr * self.factor ** sum(place >= milestone for milestone in self.milestones)
        return self.lr

    def augmented(self, epoch: int) -> float:
        """The chance of an image to be augmented in an epoch (from 0)."""
        growing = self.augment_growth * self.epochs
        return epoch / growing if epoch < growing else 1.0
